"""EngineConfig: what was decided, frozen, in sections. A component is given its section, never the whole.

``config.resolve`` makes it from ``EngineArgs`` and ``ModelFacts``. What only the device can say (pages, the dtype it
supports, the length that fits) comes back in ``wire.hello.Hello`` and is settled once, at boot (``core.engine.boot``).
"""

from dataclasses import dataclass, field
from typing import Literal

from octavo.config.facts import ModelFacts

#: The worker that ``launch`` builds unless told otherwise; named, not imported: floors never import one another.
WORKER = "octavo.device.worker.worker:Worker"


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """``path``: a directory or a GGUF file, local by now. ``dtype``: of weights and activations: float32, bfloat16 or
    float16. ``load_format``: auto, safetensors, gguf or dummy. ``seed``: of dummy weights, and of requests without."""

    path: str
    facts: ModelFacts
    dtype: str
    load_format: str = "auto"
    quantization: str | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TextSection:
    """For the front. ``tokenizer``: a directory or GGUF file. ``chat_template``: text of a template that was given."""

    tokenizer: str
    served_names: tuple[str, ...]
    chat_template: str | None = None
    skip_tokenizer: bool = False
    max_logprobs: int = 20
    max_n: int = 128
    max_stop: int = 64
    generation_defaults: dict = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CacheSection:
    """``page``: tokens a page, None for the backend's choice. ``memory``: bytes for KV, None for what the device
    offers. ``dtype``: of the cache, auto for the model's."""

    page: int | None = None
    memory: int | None = None
    utilization: float = 0.9
    prefix_caching: bool = True
    dtype: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Drafts that a step verifies, at most ``tokens`` a row. ``method``: "grammar", what a request's grammar leaves no
    choice about; "ngram", that and else what followed when the last ``longest`` to ``shortest`` tokens came before.
    ``asked``: by the user, so that a device which verifies none is an error, and drafts are made whether they pay or
    not."""

    method: str
    tokens: int
    shortest: int = 5
    longest: int = 5
    asked: bool = True


@dataclass(frozen=True, kw_only=True)
class ScheduleSection:
    """``max_model_len``: longest prompt plus output; None: the model's, cut to what fits. ``max_num_seqs``: rows.
    ``max_num_batched_tokens``: tokens a step. ``long_prefill_token_threshold``: most tokens of one prompt a step (0:
    the budget). ``depth``: steps in flight, this one included. ``max_waiting``: requests that may queue,
    ``max_waiting_tokens``: prompt tokens that may wait to be computed, ``max_waiting_time``: seconds that a request may
    queue (each 0: no limit).
    ``burst_ms``: milliseconds of decode steps that are launched from one plan while nobody waits (0: one step).
    ``step_timeout``: seconds after which a step without progress is reported. ``speculation``: None for no drafts."""

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    depth: int = 1
    max_waiting: int = 0
    max_waiting_tokens: int = 0
    max_waiting_time: float = 0.0
    burst_ms: float = 0.0
    step_timeout: float = 120.0
    speculation: Speculation | None = None

    @property
    def rows(self) -> int:
        """Device rows: ``max_num_seqs`` and a few spare ones, since a freed row rests while a step that names it is in
        flight. Row numbers of plans are below this."""
        return self.max_num_seqs + min(self.max_num_seqs, 64)


@dataclass(frozen=True, kw_only=True)
class DeviceSection:
    """``platform``: cpu or cuda. ``threads``: compute threads on a CPU, None for the cores. ``logprobs_mode``: what
    log-probabilities tell: raw_logprobs, processed_logprobs, raw_logits or processed_logits. ``deterministic``: no
    request's results depend, to the bit, on what runs beside it or how its tokens are cut into steps."""

    platform: str = "cpu"
    threads: int | None = None
    attention_backend: str | None = None
    enforce_eager: bool = False
    deterministic: bool = False
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = "raw_logprobs"


@dataclass(frozen=True, kw_only=True)
class GrammarSection:
    """``backend``: the engine of structured output, auto for the first that there is. ``whitespace``: as
    ``wire.GrammarRef`` has it, for requests that do not say; ``closed`` the same."""

    backend: str = "auto"
    whitespace: str | None = None
    closed: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """``why``: for each decided value, a word on the reason; ``--show-config`` prints it."""

    model: ModelSection
    text: TextSection
    cache: CacheSection = CacheSection()
    schedule: ScheduleSection = ScheduleSection()
    device: DeviceSection = DeviceSection()
    grammar: GrammarSection = GrammarSection()
    worker: str = WORKER
    why: dict[str, str] = field(default_factory=dict)
