"""Speculation through the whole path: flags in, the same ids out, in fewer steps, and counted."""

import json

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError
from octavo.front.metrics.periodic import Periodic
from octavo.front.metrics.prometheus import Prometheus
from octavo.params import StructuredOutputsParams
from octavo.testing import tiny, tokenizer
from octavo.wire.stats import StepStats

SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"enum": ["Ann", "Bea"]}, "is_registered": {"type": "boolean"}},
    "required": ["first_name", "is_registered"],
    "additionalProperties": False,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
NOBODY = {"method": "grammar", "num_speculative_tokens": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tiny.write_hf(tmp_path_factory.mktemp("tiny"), "LlamaForCausalLM")
    return tokenizer.write(path, size=320)


TEXT = "one two three one two three one two"


def said(folder, speculation):
    """What a few requests of all kinds are answered, side by side, and the steps of two that are asked alone: without
    a grammar, and with one."""
    llm = LLM(str(folder), dtype="float32", max_model_len=128, threads=1, speculative_config=speculation)
    ruled = StructuredOutputsParams(json=json.dumps(SCHEMA))
    params = [
        SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.4, seed=5, max_tokens=60, repetition_penalty=1.1, min_tokens=20),
        SamplingParams(temperature=0.3, seed=7, max_tokens=50, n=2, stop=["th"], logit_bias={10: 3.0}),
        SamplingParams(temperature=0, max_tokens=60, structured_outputs=ruled, logprobs=1),
        SamplingParams(temperature=1.0, seed=9, max_tokens=60, structured_outputs=ruled),
    ]
    try:
        outputs = llm.generate([TEXT] * len(params), params, use_tqdm=False)
        # A grammar may be ready sooner or later, so that only one request at a time takes a known number of steps.
        steps = [alone(llm, params[0]), alone(llm, params[3])]
    finally:
        llm.close()
    told = [
        (one.text, list(one.token_ids), one.finish_reason, [list(place) for place in one.logprobs or []])
        for output in outputs
        for one in output.outputs
    ]
    assert all(len(places) in (0, len(ids)) for _, ids, _, places in told)
    return told, steps


def alone(llm, params):
    before = llm.stats()["steps"]
    llm.generate([TEXT], [params], use_tqdm=False)
    return llm.stats()["steps"] - before


@pytest.mark.parametrize("speculation", [NGRAM, {"method": "grammar", "num_speculative_tokens": 8}])
def test_the_same_answers_in_fewer_steps(folder, speculation):
    plain, (free, ruled) = said(folder, NOBODY)
    drafted, (free_drafted, ruled_drafted) = said(folder, speculation)
    assert drafted == plain
    if speculation is NGRAM:
        assert free_drafted < free
    else:  # a model without sense cuts forced text as no tokenizer would, so that its drafts may all be wrong
        assert free_drafted == free
        assert ruled_drafted <= ruled


def test_drafts_are_counted_by_the_names_of_vllm():
    metrics = Prometheus("m", 64, {})
    for accepted in ([3, 1], [2]):
        metrics.stats(StepStats(steps=1, drafts=4, draft_tokens=9, accepted=accepted))
    text = metrics.text().decode()
    for name, value in (
        ('num_drafts_total{engine="0",model_name="m"}', 8),
        ('num_draft_tokens_total{engine="0",model_name="m"}', 18),
        ('num_accepted_tokens_total{engine="0",model_name="m"}', 6),
        ('num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"}', 5),
        ('num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"}', 1),
    ):
        assert f"vllm:spec_decode_{name} {value}.0" in text
    line = Periodic()
    assert "drafts" not in line.line(1.0)
    line._drafts, line._accepted = 18, 6
    assert line.line(1.0).endswith("drafts accepted 33% of 18")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"speculative_config": {"method": "nram", "num_speculative_tokens": 2}}, "did you mean 'ngram'"),
        ({"speculative_config": NGRAM, "async_scheduling": True}, "needs --no-async-scheduling"),
    ],
)
def test_what_cannot_be_is_said_at_the_start(folder, asked, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LLM(str(folder), **asked)
