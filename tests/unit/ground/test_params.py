"""SamplingParams: what is refused, and what it says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import BadRequest, RequestError
from octavo.params import MAX_STOP_STRINGS, MIN_TEMPERATURE, SamplingParams

REFUSED = [
    ("n", 0),
    ("n", 1.5),
    ("n", True),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", -1),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("min_p", 1.5),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("seed", 2**63),
    ("seed", "x"),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.0),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("logprobs", -2),
    ("prompt_logprobs", "all"),
    ("stop", [""]),
    ("stop", ["a"] * 10_000),
    ("stop", 3),
    ("stop", [3]),
    ("stop", "x" * 100_000),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [0] * 10_000),
    ("bad_words", [""]),
    ("bad_words", ["a"] * 10_000),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [2**40]),
    ("logit_bias", [1]),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {-1: 1}),
    *[
        (name, value)
        for name in ("n", "temperature", "top_k", "repetition_penalty", "seed", "logprobs", "max_tokens")
        for value in (10**400, -(10**5000))
    ],
]


@pytest.mark.parametrize(
    ("name", "value"),
    REFUSED,
    ids=lambda value: "huge" if type(value) is int and abs(value) > 2**64 else str(value)[:20],
)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in caught.value.message
    assert len(caught.value.message) < 300
    assert isinstance(caught.value, ValueError)


def test_unknown_names_are_refused():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)


def test_greedy_turns_the_cuts_off():
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    assert params.greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_several_greedy_answers_are_refused():
    with pytest.raises(BadRequest, match="same"):
        SamplingParams(n=2, temperature=0)


def test_tiny_temperatures_are_raised_and_biases_clamped():
    assert SamplingParams(temperature=0.001).temperature == MIN_TEMPERATURE
    assert SamplingParams(logit_bias={"7": 1000, 8: -1000}).logit_bias == {7: 100.0, 8: -100.0}


def test_words_of_other_engines_keep_their_meaning():
    params = SamplingParams(top_k=-1, seed=-1, stop="x", max_tokens=None)
    assert (params.top_k, params.seed, params.stop, params.max_tokens) == (0, None, ["x"], None)
    assert len(SamplingParams(stop=["a"] * MAX_STOP_STRINGS).stop) == MAX_STOP_STRINGS


def test_a_prompt_may_be_scored_without_an_answer():
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
)


@given(st.dictionaries(st.sampled_from(list(SamplingParams.__dataclass_fields__)), anything, max_size=4))
def test_whatever_comes_it_is_accepted_or_refused(values):
    """Never another exception than ours, and what is accepted survives a copy."""
    named = set(SamplingParams.__dataclass_fields__)
    try:
        params = SamplingParams(**values)
    except RequestError as error:
        named.remove(error.param)
    else:
        assert params.clone() == params or any(isinstance(v, float) and math.isnan(v) for v in values.values())


def test_a_copy_is_validated_anew_and_shares_no_list():
    params = SamplingParams(stop_token_ids=[3])
    copy = params.clone(max_tokens=7)
    copy.stop_token_ids.append(4)
    assert (params.max_tokens, params.stop_token_ids, copy.max_tokens) == (16, [3], 7)
    params.temperature = -1.0
    with pytest.raises(BadRequest, match="temperature"):
        params.clone()
    with pytest.raises(TypeError, match="temprature"):
        copy.clone(temprature=1)
