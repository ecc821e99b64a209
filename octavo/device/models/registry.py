"""Architecture -> model. A row here, one in ``config.facts`` and one file are a new model."""

from octavo.common.registry import Registry
from octavo.device.models.base import CausalLM

MODELS: Registry[type[CausalLM]] = Registry(
    "architecture",
    "octavo.device.models",
    {
        "LlamaForCausalLM": "llama:Llama",
        "MistralForCausalLM": "mistral:Mistral",
        "Qwen2ForCausalLM": "qwen2:Qwen2",
        "Qwen3ForCausalLM": "qwen3:Qwen3",
        "Gemma3ForCausalLM": "gemma3:Gemma3",
    },
)
