"""Parser names as vLLM's users know them -> formats. Of two that a model's template fits alike, the first is chosen."""

from octavo.common.registry import Registry
from octavo.front.parsers.spec import ParserSpec

TOOL_PARSERS: Registry[ParserSpec] = Registry(
    "tool parser",
    "octavo.front.parsers.formats",
    {
        "hermes": "hermes:HERMES",
        "qwen3_coder": "qwen3:QWEN3_CODER",
        "qwen3_xml": "qwen3:QWEN3_CODER",
        "mimo": "qwen3:QWEN3_CODER",
    },
    plugins="octavo.tool_parsers",
)

REASONING_PARSERS: Registry[ParserSpec] = Registry(
    "reasoning parser",
    "octavo.front.parsers.formats",
    {
        "qwen3": "qwen3:QWEN3_CODER",
        "mimo": "qwen3:QWEN3_CODER",
    },
    plugins="octavo.reasoning_parsers",
)
