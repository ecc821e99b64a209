"""Beam search: the search against an enumeration of everything, a model's against Transformers', and HTTP's."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import BadRequest
from octavo.front.beam import Search
from octavo.outputs import Logprob
from octavo.params import BeamSearchParams

VOCAB = 4
END = 0


def table(seed):
    """tokens so far -> log-probabilities of the next, as a function that knows no model."""

    def of(tokens):
        draws = np.random.default_rng([seed, len(tokens), *(token + 1 for token in tokens)]).normal(size=VOCAB) * 2
        return draws - np.log(np.exp(draws).sum())

    return of


def position(values, most):
    """As the engine tells it: the drawn token (here always the last id), then the likeliest."""
    order = np.argsort(-values, kind="stable")
    ranks = {int(token): rank for rank, token in enumerate(order, 1)}
    told = [VOCAB - 1, *(int(token) for token in order[:most] if token != VOCAB - 1)]
    return {token: Logprob(float(values[token]), ranks[token]) for token in told}


def searched(of, params):
    search, steps = Search(params, {END}, 100, VOCAB), 0
    while not search.done:
        search.feed([position(of(beam.tokens), search.step.logprobs) for beam in search.live])
        steps += 1
    return search, steps


def everything(of, most, penalty, ignore_eos):
    """(score, tokens) of each answer there is, the best first."""
    found = []
    for length in range(1, most + 1):
        for tokens in itertools.product(range(VOCAB), repeat=length):
            early = END in tokens[:-1] and not ignore_eos
            ended = tokens[-1] == END and not ignore_eos
            if not early and (ended or length == most):
                total = sum(of(list(tokens[:i]))[token] for i, token in enumerate(tokens))
                found.append((total / length**penalty, list(tokens)))
    return sorted(found, key=lambda one: -one[0])


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.7, 1.0, 2.0, -1.0]), st.booleans())
@settings(max_examples=25)
def test_a_wide_search_finds_the_best_of_all(seed, penalty, ignore_eos):
    of = table(seed)
    params = BeamSearchParams(beam_width=64, max_tokens=3, length_penalty=penalty, ignore_eos=ignore_eos)
    search, _ = searched(of, params)
    best = [(search.score(beam), beam.tokens) for beam in search.best(5)]
    for (score, tokens), (want, path) in zip(best, everything(of, 3, penalty, ignore_eos), strict=False):
        assert math.isclose(score, want, abs_tol=1e-9)
        assert tokens == path


@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0, 3.0, -2.0]))
@settings(max_examples=40)
def test_an_early_end_changes_nothing(seed, width, penalty):
    """A search by the rule alone, to the last step: the one that stops when nothing better can come says the same."""
    of = table(seed)
    search, _ = searched(of, BeamSearchParams(beam_width=width, max_tokens=6, length_penalty=penalty))
    live, ended = [([], 0.0)], []
    for _ in range(6):
        going = []
        for tokens, total in live:
            values = of(tokens)
            for token in np.argsort(-values, kind="stable")[: 2 * width]:
                one = ([*tokens, int(token)], total + float(values[token]))
                (ended if token == END else going).append(one)
        live = sorted(going, key=lambda one: -one[1])[:width]
    ranked = sorted(ended + live, key=lambda one: -one[1] / len(one[0]) ** penalty)[:width]
    assert [beam.tokens for beam in search.best(width)] == [tokens for tokens, _ in ranked]


def test_a_likely_end_is_found_early():
    def of(tokens):
        values = np.full(VOCAB, -20.0)
        values[END] = -0.001 if tokens else -3.0
        values[1] = -0.1 if not tokens else -10.0
        return values

    search, steps = searched(of, BeamSearchParams(beam_width=1, max_tokens=90, length_penalty=0.0))
    assert steps < 5
    assert search.best(1)[0].tokens == [1, END]
    told = search.told(search.best(1)[0])
    assert (told.finish.word, told.stop) == ("stop", None)


def test_stop_ids_end_beams_and_are_named():
    search, _ = searched(table(3), BeamSearchParams(beam_width=8, max_tokens=3, ignore_eos=True, stop_token_ids=[2]))
    for beam in search.best(8):
        assert 2 not in beam.tokens[:-1]
        assert search.told(beam).stop == (2 if beam.tokens[-1] == 2 else None)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 10**6}, "beam_width"),
        ({"beam_width": 1.5}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"length_penalty": 100}, "length_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ],
)
def test_wrong_parameters_are_named(more, param):
    with pytest.raises(BadRequest) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4} | more)
    assert caught.value.param == param


def test_a_models_beams_are_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    from octavo import LLM
    from octavo.testing import tiny

    folder = tiny.write_hf(tmp_path, "Qwen3ForCausalLM")
    prompts = [[5, 9, 31, 77], [8, 8, 200]]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with LLM(str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=64, threads=1) as llm:
        for penalty in (1.0, 0.0):
            params = BeamSearchParams(beam_width=4, max_tokens=8, length_penalty=penalty, ignore_eos=True)
            found = llm.beam_search([{"prompt_token_ids": ids} for ids in prompts], params)
            for ids, output in zip(prompts, found, strict=True):
                want = theirs.generate(
                    torch.tensor([ids]), num_beams=4, num_return_sequences=4, max_new_tokens=8, do_sample=False,
                    length_penalty=penalty, eos_token_id=None, pad_token_id=0, return_dict_in_generate=True,
                    output_scores=True,
                )  # fmt: skip
                assert [one.tokens for one in output.sequences] == want.sequences.tolist()
                scores = [one.score for one in output.sequences]
                assert scores == pytest.approx(want.sequences_scores.tolist(), abs=1e-4)
                for one in output.sequences:
                    assert one.cum_logprob == pytest.approx(sum(next(iter(p.values())).logprob for p in one.logprobs))
                    assert [next(iter(p)) for p in one.logprobs] == one.tokens[len(ids) :]
                    assert one.finish_reason == "length"
        with pytest.raises(BadRequest, match="max-logprobs"):
            llm.beam_search(prompts, BeamSearchParams(beam_width=11, max_tokens=4))
        ends = llm.beam_search(prompts[0], BeamSearchParams(beam_width=2, max_tokens=1000))
        assert all(len(one.tokens) <= 64 for one in ends[0].sequences)


COMPLETION = ("/v1/completions", {"prompt": "the cat"})
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
BEAMS = {"use_beam_search": True, "max_tokens": 5, "ignore_eos": True}


@pytest.mark.parametrize(("path", "ask"), [COMPLETION, CHAT])
def test_over_http(server, path, ask):
    status, answer = server.post(path, ask | BEAMS | {"n": 3, "temperature": 0, "return_token_ids": True})
    assert status == 200, answer
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    tokens = [choice["token_ids"] for choice in answer["choices"]]
    assert len(set(map(tuple, tokens))) == 3
    # The fake model finds id 0 the likeliest, then 1, whatever was before: their sums tell how beams rank.
    assert tokens[0] == [0] * 5
    assert sum(tokens[0]) <= sum(tokens[1]) <= sum(tokens[2])
    assert answer["usage"]["completion_tokens"] == 15
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    wide = server.post(path, ask | BEAMS | {"best_of": 4, "return_token_ids": True})[1]["choices"]
    assert [choice["token_ids"] for choice in wide] == tokens[:1]


def test_ends_and_log_probabilities_over_http(server):
    path, ask = COMPLETION
    more = {"n": 2, "ignore_eos": False, "logprobs": 1, "skip_special_tokens": False, "length_penalty": 0}
    status, answer = server.post(path, ask | BEAMS | more)
    assert status == 200, answer
    for choice in answer["choices"]:
        assert choice["finish_reason"] in ("stop", "length")
        assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"])
        assert "<|end|>" not in choice["text"]
    two = server.post(path, ask | BEAMS | {"prompt": [[7], [5, 6]], "n": 2})[1]
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"stream": True}, 400, "stream"),
        ({"n": 9}, 400, "n"),
        ({"best_of": 9}, 400, "best_of"),
        ({"n": 3, "best_of": 2}, 400, "best_of"),
        ({"stop": "x"}, 400, "stop"),
        ({"presence_penalty": 1.0}, 400, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
        ({"structured_outputs": {"regex": "a"}}, 400, "use_beam_search"),
        ({"max_tokens": 10**6}, 400, "max_tokens"),
        ({"length_penalty": 10**6}, 400, "length_penalty"),
        ({"use_beam_search": False, "length_penalty": 2.0}, 501, "length_penalty"),
        ({"use_beam_search": False, "best_of": 3}, 501, "best_of"),
        ({"temperature": -1}, 400, "temperature"),
    ],
)
def test_what_does_not_go_together_is_said(server, more, status, param):
    for path, ask in (COMPLETION, CHAT):
        found, answer = server.post(path, ask | BEAMS | more)
        assert (found, answer["error"]["param"]) == (status, param), answer


def test_a_search_leaves_nothing_behind(server):
    server.until("end", lambda: server.metric("vllm:num_requests_running") == 0)
    server.until("free pages", lambda: server.metric("vllm:kv_cache_usage_perc") == 0)
