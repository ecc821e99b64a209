"""Sampling parameters over the model's defaults: one way for every protocol."""

from dataclasses import MISSING, fields

from octavo.front.sampling import Asked, kind, over
from octavo.front.server.inference.sampling import read
from octavo.params import RequestOutputKind, SamplingParams


def asked(**said):
    return Asked(**(dict.fromkeys(Asked.__annotations__) | {"output_kind": kind(False)} | said))


def test_a_protocol_is_asked_for_every_field():
    assert list(Asked.__annotations__) == [one.name for one in fields(SamplingParams)]
    assert all(one.default is not MISSING for one in fields(SamplingParams))


def test_what_is_said_holds_then_the_models_defaults_then_our_own():
    defaults = {"temperature": 0.5, "top_k": 7, "max_tokens": 9}
    found = over(defaults, asked(top_k=3))
    assert (found.top_k, found.temperature, found.top_p, found.max_tokens) == (3, 0.5, 1.0, None)
    assert over(defaults, asked(max_tokens=5)).max_tokens == 5
    assert over(defaults, asked(skip_special_tokens=False)).skip_special_tokens is False
    beams = over(defaults, asked(n=2, temperature=0.0, top_k=3), drawn=False)
    assert (beams.n, beams.temperature, beams.top_k) == (2, 1.0, 0)


def test_parameters_as_json():
    defaults = {"temperature": 0.5, "max_tokens": 9}
    found = read({"n": 2, "top_p": 0.5}, defaults, stream=True)
    assert (found.n, found.top_p, found.temperature, found.max_tokens) == (2, 0.5, 0.5, 9)
    assert (found.detokenize, found.output_kind) == (False, RequestOutputKind.DELTA)
    assert read({"stop": "a", "max_tokens": 3}, defaults, stream=False).detokenize
    assert read({"output_kind": 2, "extra_args": {}}, {}, stream=False).max_tokens is None
