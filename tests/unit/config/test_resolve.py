"""What is decided, and why."""

import json
import logging

import pytest

from octavo.common.probe import GPU
from octavo.config.args import EngineArgs, ServeArgs
from octavo.config.resolve import DECISIONS, Machine, resolve
from octavo.config.show import AT_START, rows, show
from octavo.errors import ConfigError
from octavo.testing.served import fake_model

FAST = Machine(8, frozenset({"avx512_bf16"}))
OLD = Machine(2, frozenset({"avx2"}))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fake_model(tmp_path_factory.mktemp("model"))


def decided(model, machine=FAST, **asked):
    return resolve(ServeArgs.of({"model": str(model), **asked}), machine)


def stored_as(model, kind):
    return {"hf_overrides": {"torch_dtype": kind}}


def test_defaults_and_reasons(model):
    config = decided(model)
    assert set(config.why) == set(DECISIONS)
    assert all(config.why.values())
    assert config.text.served_names == (str(model),)
    assert config.schedule.max_model_len is None
    assert config.cache.prefix_caching
    lines = show(config).splitlines()
    assert len(lines) == len(DECISIONS)
    assert all("  # " in line for line in lines)


def shown(config):
    return {row.name: row.value for row in rows(config)}


def test_what_is_shown_is_what_will_be(model):
    found = shown(decided(model))
    assert found["device.threads"] == FAST.cores
    assert found["schedule.max_model_len"] == 512
    assert found["cache.page"] == found["cache.memory"] == AT_START
    assert found["schedule.speculation"] == {"method": "grammar", "num_speculative_tokens": 16}
    ngram = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    asked = decided(model, GPU_HERE, speculative_config=ngram, block_size=8, kv_cache_memory="1GiB", max_model_len=9)
    found = shown(asked)
    assert found["schedule.speculation"] == ngram
    assert f"  {json.dumps(ngram)}  # --speculative-config: as asked" in show(asked)
    assert (found["cache.page"], found["cache.memory"], found["schedule.max_model_len"]) == (8, 1 << 30, 9)
    assert found["device.threads"] == AT_START, "of a GPU"


@pytest.mark.parametrize(
    ("stored", "machine", "kind"),
    [
        ("bfloat16", FAST, "bfloat16"),
        ("float16", FAST, "bfloat16"),
        ("float32", FAST, "float32"),
        ("bfloat16", OLD, "float32"),
        ("float32", OLD, "float32"),
    ],
)
def test_dtype(model, stored, machine, kind):
    assert decided(model, machine, **stored_as(model, stored)).model.dtype == kind
    assert decided(model, machine, dtype="half").model.dtype == "float16"


def test_overrides_reach_the_facts(model):
    assert decided(model, hf_overrides={"max_position_embeddings": 64}).model.facts.max_positions == 64
    with pytest.raises(ConfigError, match="--hf-overrides"):
        decided(model, hf_overrides={"hidden_size": -4})


def test_sampling_defaults(tmp_path):
    folder = fake_model(tmp_path)
    own = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 50, "bos_token_id": 0, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(own))
    assert decided(folder).text.generation_defaults == {"temperature": 0.6, "top_k": 20, "max_tokens": 50}
    assert decided(folder, generation_config="vllm").text.generation_defaults == {}
    more = {"override_generation_config": {"temperature": 1.0}}
    assert decided(folder, **more).text.generation_defaults["temperature"] == 1.0
    assert decided(folder, **more).text.generation_defaults["top_k"] == 20
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_p": 0.5}')
    assert decided(folder, generation_config=str(other)).text.generation_defaults == {"top_p": 0.5}


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"max_model_len": 513}, "512 positions"),
        ({"max_model_len": 0}, "at least 1"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_seqs": 100, "max_num_batched_tokens": 50}, "--max-num-seqs"),
        ({"threads": 0}, "--threads"),
        ({"step_timeout": 0}, "--step-timeout"),
        ({"tokenizer": "/no/such/place"}, "--tokenizer"),
        ({"chat_template": "/no/such/place"}, "--chat-template"),
        ({"generation_config": "/no/such/place"}, "--generation-config"),
        ({"override_generation_config": {"temprature": 1}}, "temprature"),
        ({"override_generation_config": {"temperature": -1}}, "temperature must be at least"),
        ({"step_timeout": float("nan")}, "step_timeout"),
        ({"threads": 10**6}, "--threads must be at most"),
        ({"max_num_seqs": 10**9}, "--max-num-seqs must be at most"),
        ({"chat_template": "x" * 3000}, "--chat-template"),
        ({"tokenizer": "x" * 3000}, "--tokenizer"),
    ],
)
def test_what_cannot_be(model, asked, what):
    with pytest.raises(ConfigError, match=what):
        decided(model, **asked)


def test_templates(model, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert decided(model, chat_template=str(file)).text.chat_template == "{{ messages }}"
    assert decided(model, chat_template="{{ messages }}").text.chat_template == "{{ messages }}"


def test_a_template_of_one_long_line(model):
    line = "{% for m in messages %}{{ m.content }}{% endfor %}" + "{# a word #}" * 100
    assert decided(model, chat_template=line).text.chat_template == line


def test_names_and_steps(model):
    config = decided(model, served_model_name=["a", "b"], async_scheduling=True, max_model_len="auto")
    assert config.text.served_names == ("a", "b")
    assert config.schedule.depth == 2
    assert config.schedule.max_model_len is None
    assert resolve(EngineArgs(model=str(model)), FAST).text.served_names == (str(model),)


GPU_HERE = Machine(16, frozenset({"avx512_bf16"}), (GPU("NVIDIA H200", 150 << 30, (9, 0)),))


def test_a_gpu_is_taken_where_there_is_one(model):
    config = decided(model, GPU_HERE)
    assert (config.device.platform, config.device.enforce_eager) == ("cuda", False)
    assert "H200" in config.why["device.platform"]
    schedule = config.schedule
    assert (schedule.depth, schedule.max_num_seqs, schedule.max_num_batched_tokens) == (2, 256, 8192)
    assert config.cache.utilization == 0.9
    assert config.model.dtype == config.model.facts.dtype
    asked = decided(model, GPU_HERE, device="cpu")
    assert (asked.device.platform, asked.schedule.depth) == ("cpu", 1)
    asked = decided(model, GPU_HERE, gpu_memory_utilization=0.5, enforce_eager=True, async_scheduling=False)
    assert (asked.cache.utilization, asked.device.enforce_eager, asked.schedule.depth) == (0.5, True, 1)


def test_bursts_are_for_devices_that_work_on_their_own(model):
    default = decided(model, GPU_HERE)
    assert default.schedule.burst_ms == 4.0
    assert "nobody waits" in default.why["schedule.burst_ms"]
    for machine, asked in ((FAST, {}), (FAST, {"async_scheduling": True}), (GPU_HERE, {"async_scheduling": False})):
        assert decided(model, machine, **asked).schedule.burst_ms == 0.0
        assert decided(model, machine, burst_ms=2.5, **asked).schedule.burst_ms == 2.5
    assert decided(model, GPU_HERE, burst_ms=0).schedule.burst_ms == 0.0
    assert decided(model, GPU_HERE, burst_ms=0).why["schedule.burst_ms"] == "as asked"
    for wrong in (-1, 1001):
        with pytest.raises(ConfigError, match=rf"--burst-ms must be from 0 to 1000, got {wrong}"):
            decided(model, burst_ms=wrong)
    ngram = {"method": "ngram", "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match="--burst-ms 4: ngram drafts look at every token"):
        decided(model, burst_ms=4, speculative_config=ngram)
    assert decided(model, speculative_config=ngram).schedule.burst_ms == 0.0


@pytest.mark.parametrize(
    ("machine", "asked", "says"),
    [
        (GPU_HERE, {"gpu_memory_utilization": 1.5}, r"over 0 and at most 1, got 1\.5"),
        (GPU_HERE, {"gpu_memory_utilization": 0.0}, r"over 0 and at most 1, got 0\.0"),
        (GPU_HERE, {"gpu_memory_utilization": 0.5, "kv_cache_memory": "1GiB"}, "give one of them"),
        (FAST, {"gpu_memory_utilization": 1.5}, r"over 0 and at most 1, got 1\.5"),
    ],
)
def test_memory_flags_that_say_nothing_are_refused(model, machine, asked, says):
    with pytest.raises(ConfigError, match=says):
        decided(model, machine, **asked)


def test_a_share_of_a_gpu_has_no_effect_on_a_cpu(model, caplog):
    with caplog.at_level(logging.WARNING, "octavo"):
        config = decided(model, gpu_memory_utilization=0.5)
    (record,) = caplog.records
    said = record.getMessage()
    assert said == config.why["cache.utilization"].join(("gpu_memory_utilization 0.5 has ", ""))
    assert "no effect on a CPU: kv_cache_memory_bytes (--kv-cache-memory)" in said
    caplog.clear()
    decided(model, GPU_HERE, gpu_memory_utilization=0.5)
    decided(model)
    assert not caplog.records
