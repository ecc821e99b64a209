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
        "kimi_k2": "kimi:KIMI_K2",
        "glm45": "glm:GLM",
        "glm47": "glm:GLM",
        "deepseek_v4": "deepseek_v4:DEEPSEEK_V4",
        "gemma4": "gemma:GEMMA4",
        "openai": "harmony:HARMONY",
        "json": "guided:GUIDED",
        "pythonic": "pythonic:PYTHONIC",
    },
    plugins="octavo.tool_parsers",
)

REASONING_PARSERS: Registry[ParserSpec] = Registry(
    "reasoning parser",
    "octavo.front.parsers.formats",
    {
        "deepseek_r1": "thinking:DEEPSEEK_R1",
        "qwen3": "qwen3:QWEN3_CODER",
        "mimo": "qwen3:QWEN3_CODER",
        "kimi_k2": "kimi:KIMI_K2",
        "glm45": "glm:GLM",
        "glm47": "glm:GLM",
        "deepseek_v4": "deepseek_v4:DEEPSEEK_V4",
        "gemma4": "gemma:GEMMA4",
        "openai_gptoss": "harmony:HARMONY",
    },
    plugins="octavo.reasoning_parsers",
)
