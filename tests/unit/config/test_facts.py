"""ModelFacts from config.json: silence takes the class's default, what is not supported is named."""

import pytest

from octavo.config.facts import ARCHITECTURES, ModelFacts, RopeFacts
from octavo.errors import ConfigError
from octavo.testing import tiny


def facts(architecture="LlamaForCausalLM", rope="default", generation=None, **changes):
    return ModelFacts.from_config(tiny.config(architecture, rope, **changes), generation)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["Qwen3MoeForCausalLM"]}, ["'Qwen3MoeForCausalLM' is not supported; supp", *ARCHITECTURES]),
        ({"architectures": []}, ["no architecture", *ARCHITECTURES]),
        ({"architectures": None}, ["no architecture"]),
        ({"hidden_act": "relu"}, ["relu", "silu", "gelu_pytorch_tanh"]),
        ({"num_hidden_layers": "three"}, ["num_hidden_layers", "'three'"]),
        ({"num_hidden_layers": None}, ["num_hidden_layers"]),
        ({"hidden_size": True}, ["hidden_size"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads (4)", "num_key_value_heads (3)"]),
        ({"hidden_size": 66}, ["hidden_size (66)"]),
        ({"dtype": "float8_e4m3fn"}, ["float8_e4m3fn", "bfloat16"]),
        ({"rms_norm_eps": -1}, ["rms_norm_eps"]),
        ({"eos_token_id": "x"}, ["eos_token_id"]),
        ({"attention_bias": 1}, ["attention_bias"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["gptq", "GGUF"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["longrope", "llama3", "yarn"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["linear", "factor"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, ["factor"]),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ["partial_rotary_factor"]),
        ({"rope_parameters": [1]}, ["rope_parameters"]),
        ({"rope_scaling": {"type": "mrope"}}, ["mrope"]),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, ["rope type", "yarn"]),
        ({"rope_parameters": {"rope_theta": 10**400}}, ["rope_theta"]),
        ({"rope_parameters": {"rope_type": "factors", "factors": "x"}}, ["factors"]),
        ({"hidden_act": ["silu"]}, ["hidden_act"]),
        ({"num_hidden_layers": 10**6}, ["num_hidden_layers", "10000"]),
        ({"hidden_size": 10**30}, ["hidden_size"]),
        ({"tie_word_embeddings": "x"}, ["tie_word_embeddings"]),
    ],
)
def test_what_is_not_supported_is_named(changes, words):
    with pytest.raises(ConfigError) as caught:
        facts(**changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "3"]),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, ["chunked_attention"]),
        ({"layer_types": [["full_attention"]] * 3}, ["layer_types"]),
    ],
)
def test_what_gemma_cannot_be(changes, words):
    with pytest.raises(ConfigError) as caught:
        facts("Gemma3ForCausalLM", **changes)
    for word in words:
        assert word in str(caught.value)


def test_eos_ids_of_both_files():
    assert facts(generation={"eos_token_id": [7, 1]}).eos == (7, 1)
    assert facts(generation={"eos_token_id": 9}, eos_token_id=[1, 2]).eos == (9, 1, 2)
    assert facts(eos_token_id=None).eos == ()


def test_windows():
    assert facts("MistralForCausalLM").windows == (9, 9, 9)
    assert facts("MistralForCausalLM", sliding_window=None).windows == (None,) * 3
    assert facts("Qwen2ForCausalLM").windows == (None, 9, 9)
    assert facts("Qwen2ForCausalLM", use_sliding_window=False).windows == (None,) * 3
    assert facts("Gemma3ForCausalLM").windows == (9, None, 9)
    assert facts("Gemma3ForCausalLM", layer_types=None, sliding_window_pattern=3).windows == (9, 9, None)
    assert facts("LlamaForCausalLM", sliding_window=9).windows == (None,) * 3


def test_ropes_in_both_forms():
    linear = {"rope_type": "linear", "factor": 4.0}
    new = facts(rope_parameters=linear | {"rope_theta": 5.0}).rope
    old = facts(rope_parameters=None, rope_theta=5.0, rope_scaling={"type": "linear", "factor": 4.0}).rope
    assert new == old
    assert new.theta == 5.0
    assert facts(rope_parameters=None, rope_theta=7.0).rope == RopeFacts(theta=7.0)
    gemma = facts("Gemma3ForCausalLM", rope_parameters=None, rope_theta=8.0, rope_scaling=linear)
    assert (gemma.rope.kind, gemma.rope.theta, gemma.local_rope) == ("linear", 8.0, RopeFacts(theta=10000.0))
    assert gemma.layer_rope(0) == gemma.local_rope
    assert gemma.layer_rope(1) == gemma.rope


@pytest.mark.parametrize(
    ("rope", "positions"), [("default", 128), ("llama3", 128), ("linear", 512), ("yarn", 128), ("dynamic", 128)]
)
def test_the_longest_sequence(rope, positions):
    """yarn says 4 x 32 of 128, the same; linear and dynamic stretch what the file has."""
    assert facts(rope=rope).max_positions == positions


def test_a_sparse_text_config_takes_the_classs_defaults():
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "torch_dtype": "bfloat16",
        "eos_token_id": [1, 106],
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {},
    }
    found = ModelFacts.from_config(config)
    assert (found.architecture, found.q_heads, found.kv_heads, found.head_dim) == ("Gemma3ForCausalLM", 8, 4, 256)
    assert found.windows == tuple(None if i % 6 == 5 else 1024 for i in range(34))
    assert (found.scale, found.tied, found.dtype, found.eos) == (1 / 16, True, "bfloat16", (1, 106))
    assert (found.max_positions, found.rope.theta, found.act) == (131072, 1e6, "gelu_tanh")
