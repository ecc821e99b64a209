"""LLM over the real worker: an answer never depends on its neighbours, its chunks or the cache; and SmolLM2."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo import LLM, SamplingParams
from octavo.errors import BadRequest
from octavo.testing import tiny, tokenizer

#: Two log-probabilities nearer than this are a tie: sums of other shapes may order them either way.
TIE = 1e-3
VOCAB = 320


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Gemma3ForCausalLM"])
def folder(request, tmp_path_factory) -> Path:
    """A tiny model with a tokenizer; Gemma's has layers with and without a window."""
    path = tiny.write_hf(tmp_path_factory.mktemp(request.param), request.param)
    return tokenizer.write(path, size=VOCAB)


@pytest.fixture(scope="module")
def engines(folder):
    """Engines of the same weights: alone, and in ways that cut, mix, preempt and share."""
    options = {
        "alone": {"max_num_seqs": 1, "enable_prefix_caching": False},
        "batched": {"max_num_seqs": 16, "enable_prefix_caching": False},
        "chunked": {"max_num_seqs": 4, "max_num_batched_tokens": 7, "enable_prefix_caching": False},
        "shared": {"max_num_seqs": 4, "max_num_batched_tokens": 16, "enable_prefix_caching": True},
        "preempted": {"max_num_seqs": 6, "max_num_batched_tokens": 32, "kv_cache_memory_bytes": 160 * 1024},
    }
    made = {
        name: LLM(str(folder), dtype="float32", max_model_len=64, block_size=16, threads=1, **more)
        for name, more in options.items()
    }
    yield made
    for engine in made.values():
        engine.close()


@st.composite
def workloads(draw):
    """Prompts, many with a beginning in common, and how to sample them."""
    beginnings = draw(st.lists(st.lists(st.integers(4, VOCAB - 1), min_size=16, max_size=30), min_size=1, max_size=2))
    prompts, params = [], []
    for i in range(draw(st.integers(1, 8))):
        begin = draw(st.sampled_from([[], *beginnings]))
        prompts.append(begin + draw(st.lists(st.integers(4, VOCAB - 1), min_size=1, max_size=10)))
        common = {"max_tokens": draw(st.integers(1, 14)), "seed": i, "ignore_eos": draw(st.booleans()), "logprobs": 1}
        kind = draw(st.sampled_from(["greedy", "greedy", "sampled", "penalised"]))
        more = {
            "greedy": {"temperature": 0.0},
            "sampled": {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
            "penalised": {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        }[kind]
        params.append(SamplingParams(**common, **more))
    return prompts, params


def check(alone, other, params, where):
    """Equal ids up to a tie: there both tokens must be as likely, and what comes behind is no longer comparable."""
    left, right = alone.outputs[0], other.outputs[0]
    pairs = zip(left.token_ids, right.token_ids, left.logprobs, right.logprobs, strict=False)
    for a, b, logprobs, others in pairs:
        if a != b:
            gap = abs(logprobs[a].logprob - others[b].logprob)
            assert gap < TIE or params.temperature, f"{where}: {left.token_ids} became {right.token_ids}"
            assert gap < 0.5, f"{where}: {left.token_ids} became {right.token_ids}"
            return
    assert left.token_ids == right.token_ids, where
    assert left.finish_reason == right.finish_reason, where


@settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))
@given(workload=workloads())
def test_each_answer_is_the_answer_alone(engines, workload):
    prompts, params = workload
    alone = engines["alone"].generate(prompts, params, use_tqdm=False)
    for name in ("batched", "chunked", "shared", "preempted"):
        outputs = engines[name].generate(prompts, params, use_tqdm=False)
        for one, other, wanted in zip(alone, outputs, params, strict=True):
            check(one, other, wanted, name)


def test_the_ways_were_really_taken(engines):
    prompt = [5 + i for i in range(40)]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    engines["shared"].reset_prefix_cache()
    counts = [engines["shared"].generate([prompt], params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert counts[0] == 0
    assert counts[1] > 0
    ready = engines["preempted"]._engine.ready
    assert ready.kv_tokens < 6 * 60, "six requests at once do not fit"


def test_prompt_logprobs_are_those_of_the_same_tokens_generated(engines):
    llm = engines["batched"]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3)
    first = llm.generate([[9, 8, 7]], params, use_tqdm=False)[0]
    tokens = [9, 8, 7, *first.outputs[0].token_ids]
    scored = llm.generate([tokens], SamplingParams(max_tokens=0, prompt_logprobs=3), use_tqdm=False)[0]
    assert scored.prompt_logprobs[0] is None
    assert len(scored.prompt_logprobs) == len(tokens)
    for said, read in zip(first.outputs[0].logprobs, scored.prompt_logprobs[3:], strict=True):
        assert list(said) == list(read)
        for token, entry in said.items():
            assert entry.logprob == pytest.approx(read[token].logprob, abs=1e-3)
            assert (entry.rank, entry.decoded_token) == (read[token].rank, read[token].decoded_token)


@pytest.fixture(scope="module")
def smollm():
    with LLM(dtype="float32", max_model_len=512, max_num_seqs=8, threads=1) as llm:
        yield llm


GOLDEN = json.loads((Path(__file__).parent / "golden_smollm2.json").read_text())


@pytest.mark.model
def test_the_embedded_model_says_what_it_said_to_transformers(smollm):
    """Greedy, float32; recorded with transformers from the same file."""
    texts, chats = GOLDEN["completions"], GOLDEN["chats"]
    params = [SamplingParams(temperature=0.0, max_tokens=len(one["ids"])) for one in texts]
    outputs = smollm.generate([one["prompt"] for one in texts], params, use_tqdm=False)
    for one, output in zip(texts, outputs, strict=True):
        assert output.prompt_token_ids == one["prompt_ids"]
        assert output.outputs[0].token_ids == one["ids"]
    params = [SamplingParams(temperature=0.0, max_tokens=len(one["ids"])) for one in chats]
    outputs = smollm.chat([[{"role": "user", "content": one["prompt"]}] for one in chats], params, use_tqdm=False)
    for one, output in zip(chats, outputs, strict=True):
        assert output.prompt_token_ids == one["prompt_ids"]
        assert output.outputs[0].token_ids == one["ids"]
        assert output.outputs[0].text == one["text"]


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_slept_says_the_same(folder, level):
    params = SamplingParams(temperature=0.0, max_tokens=4)
    with LLM(str(folder), max_model_len=64, max_num_seqs=2, threads=1) as llm:
        ask = lambda: llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0].token_ids  # noqa: E731
        before = ask()
        llm.sleep(level)
        llm.sleep(level)
        with pytest.raises(BadRequest, match="wake_up"):
            ask()
        llm.wake_up(["weights"])
        with pytest.raises(BadRequest, match="wake_up"):
            ask()
        llm.wake_up()
        assert ask() == before
