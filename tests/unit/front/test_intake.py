"""What depends on the model is checked before the core sees it, in a sentence that names field, value and limit."""

import numpy as np
import pytest

from front.support import VOCAB, config, ready, small
from octavo.config.engine import EngineConfig
from octavo.errors import BadRequest
from octavo.front.intake import Intake
from octavo.params import SamplingParams
from octavo.wire.arrays import unpack_tokens
from octavo.wire.hello import Limits


def intake(
    settings: EngineConfig | None = None, length: int = 64, limits: Limits | None = None, tokenizer=True
) -> Intake:
    return Intake(settings or config(), small() if tokenizer else None, ready(length, limits))


def admit(one: Intake, params: SamplingParams, prompt=(10, 11), **more):
    return one.admit(one.prompt(list(prompt)), params, list(range(params.n)), **more)


PROMPTS = [
    ("", "prompt must not be empty"),
    ([], "prompt must not be empty"),
    ([VOCAB], f"prompt has the token id {VOCAB}, which is out of the vocabulary (0 to {VOCAB - 1})"),
    ([-1], "prompt has the token id -1"),
    ([2**63], "prompt has the token id 9223372036854775808"),
    ([5, -(2**31)], "prompt has the token id -2147483648"),
    ([5, True], "prompt must hold whole numbers only, got bool"),
    ([1.5], "prompt must hold whole numbers only, got float"),
    ([True], "prompt must hold whole numbers only, got bool"),
    ("a\ud800b", "lone surrogate (U+D800) at character 1"),
    (7, "prompt must be text or a list of token ids, got int"),
    (None, "prompt must be text or a list of token ids, got NoneType"),
    ({"prompt": "a", "image": 1}, "has the key 'image'; possible: prompt, prompt_token_ids, cache_salt"),
    ({"prompt": "a", "cache_salt": ""}, "cache_salt must be a non-empty string"),
    ({}, "prompt must be text or a list of token ids"),
]


@pytest.mark.parametrize(("prompt", "message"), PROMPTS)
def test_prompts_that_are_refused(prompt, message):
    with pytest.raises(BadRequest) as refused:
        intake().prompt(prompt)
    assert message in refused.value.message


def test_prompts_that_are_taken():
    one = intake()
    ids = small().encode("the cat")
    assert one.prompt("the cat").ids == ids
    assert one.prompt({"prompt": "the cat"}).ids == ids
    given = one.prompt({"prompt_token_ids": [5, 6], "prompt": "x", "cache_salt": "s"})
    assert (given.ids, given.text, len(given.salt)) == ([5, 6], "x", 16)
    assert one.prompt(np.asarray([5, 6])).ids == one.prompt(list(np.asarray([5, 6]))).ids == [5, 6]
    assert [prompt.ids for prompt in one.prompts(["the cat", [7], "x"])] == [ids, [7], small().encode("x")]


def test_many_prompts_name_the_one_that_is_wrong():
    with pytest.raises(BadRequest) as refused:
        intake().prompts(["fine", ""])
    assert refused.value.param == "prompts.1"


def test_truncation_only_when_asked_and_from_the_left():
    one = intake(length=8)
    assert one.prompt("abcdefgh", truncate=3).ids == small().encode("fgh")
    assert len(one.prompt("abcdefgh" * 1000, truncate=-1).ids) == 7
    assert len(one.prompt("abcdefgh").ids) == 8
    assert one.prompt("abcdefgh", truncate=3, side="right").ids == small().encode("abc")
    assert one.prompt([1, 2, 3, 4], truncate=3, side="right").ids == [1, 2, 3]
    for wrong in (0, -2, 9, True, "3"):
        with pytest.raises(BadRequest, match="truncate_prompt_tokens"):
            one.prompt("a", truncate=wrong)


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_cut_is_never_tokenised(monkeypatch, side):
    one, seen = intake(length=8), []
    encode = type(small()).encode
    monkeypatch.setattr(
        type(small()), "encode", lambda coder, text, *more: seen.append(text) or encode(coder, text, *more)
    )
    text = "abc " * 1_000_000
    kept = one.prompt(text, truncate=3, side=side).ids
    whole = small().encode("abc " * 50)
    assert kept == (whole[-3:] if side == "left" else whole[:3])
    assert len(seen[0]) <= 4 * small().longest


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(monkeypatch):
    one = intake(length=8)
    monkeypatch.setattr(type(small()), "encode", lambda *_: pytest.fail("tokenised"))
    with pytest.raises(BadRequest, match=r"maximum context length is 8 tokens.*characters"):
        one.prompt("a" * 100_000)


LENGTHS = [
    (64, 1, False, "maximum context length is 64 tokens. However, your prompt has 64 tokens and max_tokens is 1, 65"),
    (64, None, False, "your prompt has 64 tokens and an answer needs at least 1, 65"),
    (70, 1, True, "your prompt has 70 tokens"),
    (60, 5, False, "your prompt has 60 tokens and max_tokens is 5, 65 tokens in total"),
]


@pytest.mark.parametrize(("length", "max_tokens", "cap", "message"), LENGTHS)
def test_lengths_that_are_refused(length, max_tokens, cap, message):
    with pytest.raises(BadRequest) as refused:
        admit(intake(), SamplingParams(max_tokens=max_tokens), [5] * length, cap=cap)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("length", "max_tokens", "cap", "limit"),
    [(60, 4, False, 64), (60, None, False, 64), (60, 9, True, 64), (64, 0, False, 64), (3, 0, False, 3)],
)
def test_lengths_that_are_taken(length, max_tokens, cap, limit):
    params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=0)
    assert admit(intake(), params, [5] * length, cap=cap)[0].limit == limit


LIMITS = Limits(stop_ids=4, bad_words=4, bias=2)
REFUSED = [
    ({"logit_bias": {VOCAB: 1.0}}, "logit_bias", f"token id {VOCAB}"),
    ({"logit_bias": {1: 1.0, 2: 1.0, 3: 1.0}}, "logit_bias", "at most 2 entries, got 3"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids", f"token id {VOCAB}"),
    ({"stop_token_ids": [5, 6, 7, 8]}, "stop_token_ids", "at most 3 ids for this model, got 4"),
    ({"allowed_token_ids": [5, VOCAB]}, "allowed_token_ids", f"token id {VOCAB}"),
    ({"logprob_token_ids": [VOCAB]}, "logprob_token_ids", f"token id {VOCAB}"),
    ({"bad_words": ["a", "b", "c"]}, "bad_words", "6 token sequences; this engine allows at most 4"),
    ({"bad_words": ["  "]}, "bad_words", "spaces only"),
    ({"bad_words": ["\udc00"]}, "bad_words", "lone surrogate"),
    ({"stop": ["\udc00"]}, "stop", "lone surrogate"),
    ({"logprobs": 21}, "logprobs", "asks for 21; this engine allows at most 20 (--max-logprobs)"),
    ({"logprobs": -1}, "logprobs", f"the whole vocabulary ({VOCAB})"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "at most 20"),
    ({"n": 129}, "n", "n is 129; this engine allows at most 128"),
    ({"extra_args": {"magic": 1}}, "extra_args", "'magic'"),
]


@pytest.mark.parametrize(("params", "field", "message"), REFUSED)
def test_params_that_are_refused(params, field, message):
    with pytest.raises(BadRequest) as refused:
        admit(intake(limits=LIMITS), SamplingParams(**params))
    assert refused.value.param == field
    assert message in refused.value.message


def test_all_logprobs_where_there_is_no_limit():
    assert admit(intake(config(max_logprobs=-1)), SamplingParams(logprobs=-1))[0].sampling.logprobs == -1
    with pytest.raises(BadRequest, match="the vocabulary has only"):
        admit(intake(config(max_logprobs=-1)), SamplingParams(logprobs=VOCAB + 1))
    with pytest.raises(BadRequest, match="at most 5"):
        admit(intake(config(max_logprobs=-1), limits=Limits(logprobs=5)), SamplingParams(logprobs=6))


def test_priority_needs_its_policy():
    with pytest.raises(BadRequest, match="--scheduling-policy priority"):
        admit(intake(), SamplingParams(), priority=1)
    assert admit(intake(config("priority")), SamplingParams(), priority=-3)[0].priority == -3
    for wrong in (2**31, True, "1"):
        with pytest.raises(BadRequest, match="priority"):
            admit(intake(config("priority")), SamplingParams(), priority=wrong)


def test_without_a_tokenizer_only_ids():
    one = intake(tokenizer=False)
    assert len(admit(one, SamplingParams(detokenize=False))) == 1
    for params in ({"stop": "x"}, {"bad_words": ["x"]}):
        with pytest.raises(BadRequest, match="without one"):
            admit(one, SamplingParams(**params))
    with pytest.raises(BadRequest, match="must be token ids"):
        one.prompt("text")


def test_what_the_core_gets():
    params = SamplingParams(
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=[30, 31],
        logit_bias={7: 500.0, 8: -1.5},
        allowed_token_ids=[9, 8, 9],
        bad_words=["cat"],
        top_k=10**6,
        seed=-1 * 2**62,
    )
    request = admit(intake(), params, [5, 6, 7], salt="s", deadline=3.5, every=0, arrival=1.5)[0]
    assert unpack_tokens(request.tokens).tolist() == [5, 6, 7]
    assert (request.limit, request.min_length, request.stops, request.eos) == (12, 5, (1, 30, 31), 1)
    assert (request.every, request.deadline, request.arrival) == (0, 3.5, 1.5)
    sampling = request.sampling
    assert unpack_tokens(sampling.bias_ids).tolist() == [7, 8]
    assert np.frombuffer(sampling.bias_values, "<f4").tolist() == [100.0, -1.5]
    assert unpack_tokens(sampling.allowed).tolist() == [8, 9]
    assert set(sampling.bad_words) == {tuple(small().encode("cat")), tuple(small().encode(" cat"))}
    assert (sampling.top_k, sampling.seed >= 0) == (VOCAB, True)


def test_ends_are_reported_without_a_reason_unless_they_are_ignored():
    assert admit(intake(), SamplingParams(stop_token_ids=[1]))[0].eos == 1
    request = admit(intake(), SamplingParams(ignore_eos=True, stop_token_ids=[5]))[0]
    assert (request.stops, request.eos) == ((5,), 0)


def test_answers_of_one_request_share_a_prompt_and_differ_in_seed():
    first, second, third = admit(intake(), SamplingParams(n=3, seed=7, prompt_logprobs=1), [5])
    assert [one.sampling.seed for one in (first, second, third)] == [7, 8, 9]
    assert [one.handle for one in (first, second, third)] == [0, 1, 2]
    assert [one.sampling.prompt_logprobs for one in (first, second, third)] == [1, None, None]


def test_seeds_are_drawn_alike_by_engines_alike():
    seeds = [[admit(one, SamplingParams())[0].sampling.seed for _ in range(3)] for one in (intake(), intake())]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


def test_stop_strings_need_tokens_one_by_one():
    assert admit(intake(), SamplingParams(stop="x"), every=0)[0].every == 1


def test_scoring_a_prompt_or_asking_for_it_reads_no_cached_pages():
    assert not admit(intake(), SamplingParams(prompt_logprobs=0))[0].read_cache
    assert not admit(intake(), SamplingParams(skip_reading_prefix_cache=True))[0].read_cache
    assert admit(intake(), SamplingParams())[0].read_cache


def test_defaults_are_the_models():
    params = intake(config(generation_defaults={"temperature": 0.5, "top_k": 3})).default_params()
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 1.0)
