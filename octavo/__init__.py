"""octavo: an engine that serves large language models.

The public names are loaded on first use, so that ``import octavo`` costs nothing and never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.async_llm",
    "BeamSearchParams": "octavo.params",
    "SamplingParams": "octavo.params",
    "StructuredOutputsParams": "octavo.params",
    "RequestOutput": "octavo.outputs",
    "CompletionOutput": "octavo.outputs",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM
    from octavo.llm import LLM
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.params import BeamSearchParams, SamplingParams


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return __all__
