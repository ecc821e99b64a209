"""Tiny checkpoints give the logits of Transformers: every architecture and rope kind, however a prompt is cut."""

import pytest
import torch

from conformance.driver import Sequence, model_of, random_ids
from octavo.testing import tiny

transformers = pytest.importorskip("transformers")
LONG = 44  # past the trained length of the stretched kinds (32), past the windows (9)
TOLERANCE = 1e-4
CASES = [
    *(("LlamaForCausalLM", rope, {}) for rope in tiny.ROPES if rope != "dynamic"),
    ("LlamaForCausalLM", "default", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("LlamaForCausalLM", "default", {"num_key_value_heads": 4, "head_dim": 12}),
    ("MistralForCausalLM", "default", {}),
    ("MistralForCausalLM", "yarn", {"sliding_window": None}),
    ("Qwen2ForCausalLM", "default", {}),
    ("Qwen2ForCausalLM", "yarn", {"use_sliding_window": False, "tie_word_embeddings": True}),
    ("Qwen3ForCausalLM", "default", {}),
    ("Qwen3ForCausalLM", "linear", {"attention_bias": True}),
    ("Gemma3ForCausalLM", "default", {}),
    ("Gemma3ForCausalLM", "linear", {"final_logit_softcapping": 15.0}),
]


def theirs(folder):
    """Transformers' model of a directory, every weight found."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


@torch.inference_mode()
def full(model, ids):
    return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize(("architecture", "rope", "changes"), CASES)
def test_any_chunking_gives_the_logits_of_transformers(tmp_path, architecture, rope, changes):
    folder = tiny.write_hf(tmp_path, architecture, rope, **changes)
    ids = random_ids(LONG, 320)
    want = full(theirs(folder), ids)
    model = model_of(folder)
    for size in range(1, LONG + 1):
        got = Sequence(model).chunked(ids, size)
        torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE, msg=lambda text, n=size: f"chunks of {n}: {text}")


@pytest.mark.parametrize("cut", [1, 7, 20, 43])
def test_decode_after_a_prompt(tmp_path, cut):
    folder = tiny.write_hf(tmp_path, "Qwen3ForCausalLM")
    ids = random_ids(LONG, 320)
    want = full(theirs(folder), ids)
    row = Sequence(model_of(folder))
    got = torch.cat([row.feed(ids[:cut]), *(row.feed([token]) for token in ids[cut:])])
    torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE)


def test_dynamic_rope_is_that_of_decoding_token_by_token(tmp_path):
    """Up to the trained length Transformers' own result does not depend on chunks; past it only its decode does not."""
    folder = tiny.write_hf(tmp_path, "LlamaForCausalLM", "dynamic")
    reference = theirs(folder)
    ids = random_ids(LONG, 320)
    trained = reference.config.max_position_embeddings
    with torch.inference_mode():
        out = reference(torch.tensor([ids[:trained]]), use_cache=True)
        want, cache = [out.logits[0]], out.past_key_values
        for token in ids[trained:]:
            out = reference(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            want.append(out.logits[0])
    model = model_of(folder)
    assert model.facts.max_positions == 4 * trained
    for size in range(1, LONG + 1):
        torch.testing.assert_close(Sequence(model).chunked(ids, size), torch.cat(want), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("old", ["rope_scaling", "plain"])
def test_the_old_form_of_the_rope_keys(tmp_path, old):
    """Before version 5 the theta stood beside ``rope_scaling``."""
    settings = tiny.config("LlamaForCausalLM", "llama3")
    rope = settings["rope_parameters"]
    changes = {"rope_parameters": None, "rope_theta": 500.0}
    if old == "rope_scaling":
        changes["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    folder = tiny.write_hf(tmp_path, **changes)
    ids = random_ids(LONG, 320)
    torch.testing.assert_close(Sequence(model_of(folder)).feed(ids), full(theirs(folder), ids), rtol=0, atol=TOLERANCE)


def test_gemma_in_its_old_form_and_as_the_text_part_of_a_larger_model(tmp_path):
    old = {
        "rope_parameters": None,
        "rope_theta": 20000.0,
        "rope_local_base_freq": 700.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "layer_types": None,
        "sliding_window_pattern": 2,
    }
    folder = tiny.write_hf(tmp_path / "old", "Gemma3ForCausalLM", **old)
    ids = random_ids(LONG, 320)
    want = full(theirs(folder), ids)
    torch.testing.assert_close(Sequence(model_of(folder)).feed(ids), want, rtol=0, atol=TOLERANCE)


def test_saved_by_transformers_itself(tmp_path):
    """The config and the names that ``save_pretrained`` of the installed version writes."""
    for architecture in tiny.ARCHITECTURES:
        folder = tiny.write_hf(tmp_path / architecture, architecture)
        reference = theirs(folder)
        reference.save_pretrained(tmp_path / f"{architecture} again", max_shard_size="40KB")
        model = model_of(tmp_path / f"{architecture} again")
        ids = random_ids(LONG, 320)
        torch.testing.assert_close(Sequence(model).feed(ids), full(reference, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "prefixes", [("model.language_model.", "lm_head"), ("language_model.model.", "language_model.lm_head")]
)
def test_the_text_part_of_a_vision_model(tmp_path, prefixes):
    inner, _ = prefixes
    settings = tiny.config("Gemma3ForCausalLM")
    tensors = tiny.weights(settings)
    plain = tiny.write_hf(tmp_path / "plain", "Gemma3ForCausalLM")
    outer = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": settings,
        "vision_config": {},
        "dtype": "float32",
    }
    folder = tmp_path / "outer"
    folder.mkdir()
    (folder / "config.json").write_text(__import__("json").dumps(outer))
    renamed = {inner + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    renamed["vision_tower.patch.weight"] = torch.zeros(2, 2)
    renamed["multi_modal_projector.mm_soft_emb_norm.weight"] = torch.zeros(2)
    tiny.write_safetensors(folder, renamed)
    ids = random_ids(LONG, 320)
    torch.testing.assert_close(
        Sequence(model_of(folder)).feed(ids), Sequence(model_of(plain)).feed(ids), rtol=0, atol=0
    )
