"""Parser names as vLLM's users know them -> formats. Of two that a model's template fits alike, the first is chosen."""

from octavo.common.registry import Registry
from octavo.common.words import nearest
from octavo.errors import ConfigError
from octavo.front.parsers.spec import ParserSpec

#: Names of no parser at all.
NONE = ("", "none", "identity")

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
        "deepseek_v3": "deepseek_v3:DEEPSEEK_V3",
        "deepseek_v31": "deepseek_v3:DEEPSEEK_V31",
        "deepseek_v32": "deepseek_v4:DEEPSEEK_V32",
        "deepseek_v4": "deepseek_v4:DEEPSEEK_V4",
        "ernie45": "ernie45:ERNIE45",
        "gigachat3": "gigachat3:GIGACHAT3",
        "hunyuan_a13b": "hunyuan:HUNYUAN_A13B",
        "hy_v3": "hy_v3:HY_V3",
        "minicpm5": "minicpm5:MINICPM5",
        "minimax_m2": "minimax:MINIMAX_M2",
        "minimax_m3": "minimax:MINIMAX_M3",
        "nemotron_v3": "qwen3:NEMOTRON_V3",
        "poolside_v1": "glm:POOLSIDE_V1",
        "seed_oss": "qwen3:SEED_OSS",
        "step3": "step3:STEP3",
        "step3p5": "qwen3:STEP3P5",
        "gemma4": "gemma:GEMMA4",
        "openai": "harmony:HARMONY",
        "json": "guided:GUIDED",
        "pythonic": "pythonic:PYTHONIC",
        "llama3_json": "llama:LLAMA3_JSON",
        "llama4_json": "llama:LLAMA4_JSON",
        "llama4_pythonic": "pythonic:LLAMA4_PYTHONIC",
        "olmo3": "pythonic:OLMO3",
        "lfm2": "pythonic:LFM2",
        "mistral": "mistral:MISTRAL",
        "granite": "granite:GRANITE",
        "granite4": "hermes:HERMES",
        "granite-20b-fc": "granite:GRANITE_20B_FC",
        "jamba": "jamba:JAMBA",
        "nemotron_json": "jamba:NEMOTRON_JSON",
        "internlm": "internlm:INTERNLM",
        "phi4_mini_json": "phi4:PHI4_MINI_JSON",
        "phi4_mini": "phi4:PHI4_MINI",
        "xlam": "xlam:XLAM",
        "cohere_command3": "cohere:COHERE",
        "cohere_command4": "cohere:COHERE",
        "apertus": "apertus:APERTUS",
        "functiongemma": "gemma:FUNCTIONGEMMA",
        "longcat": "longcat:LONGCAT",
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
        "deepseek_v3": "thinking:DEEPSEEK_V3",
        "deepseek_v4": "deepseek_v4:DEEPSEEK_V4",
        "ernie45": "ernie45:ERNIE45",
        "holo2": "thinking:HOLO2",
        "hunyuan_a13b": "hunyuan:HUNYUAN_A13B",
        "hy_v3": "hy_v3:HY_V3",
        "minimax_m2": "minimax:MINIMAX_M2",
        "minimax_m2_append_think": "minimax:APPEND_THINK",
        "minimax_m3": "minimax:MINIMAX_M3",
        "nemotron_v3": "qwen3:NEMOTRON_V3",
        "poolside_v1": "glm:POOLSIDE_V1",
        "seed_oss": "qwen3:SEED_OSS",
        "step3": "step3:STEP3",
        "step3p5": "qwen3:STEP3P5",
        "gemma4": "gemma:GEMMA4",
        "openai_gptoss": "harmony:HARMONY",
        "olmo3": "pythonic:OLMO3",
        "mistral": "mistral:MISTRAL",
        "granite": "granite:GRANITE",
        "cohere_command3": "cohere:COHERE",
        "cohere_command4": "cohere:COHERE",
        "apertus": "apertus:APERTUS",
        "longcat": "longcat:LONGCAT",
    },
    plugins="octavo.reasoning_parsers",
)


def check_name(name: str, registry: Registry[ParserSpec], flag: str) -> None:
    """Raises ``ConfigError`` for a name that is no parser's, before any model is there to try it on."""
    if name == "auto" or name in NONE or name in registry:
        return
    known = ["auto", "none", *registry.names()]
    raise ConfigError(f"{flag}: unknown {registry.kind} {name[:80]!r}{nearest(name, known)}; known: {', '.join(known)}")
