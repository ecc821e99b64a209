"""``--speculative-config``: a JSON object with vLLM's names -> Speculation."""

from collections.abc import Mapping
from typing import Any

from octavo.common.words import nearest
from octavo.config.engine import Speculation
from octavo.errors import ConfigError

METHODS = ("grammar", "ngram")
#: Most drafts of a row and step. What the device verifies may be less. None are made where a grammar may make 0.
MOST = 32
#: Longest run of tokens that may be looked for; where neither bound is given, both are 5.
LONGEST = 64
#: Where nothing was asked: tokens that a grammar forces cost no guess.
FORCED = Speculation(method="grammar", tokens=16, asked=False)
_NAMES = ("method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


def speculation_of(asked: Mapping[str, Any]) -> Speculation:
    """Raises ``ConfigError`` with a sentence that says what is possible."""
    for name in asked:
        if name not in _NAMES:
            raise _wrong(f"has {repr(name)[:60]}{nearest(str(name), _NAMES)}; possible: {', '.join(_NAMES)}")
    given = {name: value for name, value in asked.items() if value is not None}
    method = given.get("method")
    if method not in METHODS:
        named = f"has the method {repr(method)[:60]}{nearest(str(method), METHODS)}"
        what = "names no method" if method is None else named
        raise _wrong(f"{what}; possible: {', '.join(METHODS)} (drafts that need a model of their own are not)")
    if "num_speculative_tokens" not in given:
        raise _wrong(f"needs num_speculative_tokens: how many tokens to guess at most, from 1 to {MOST}")
    tokens = _number(given, "num_speculative_tokens", MOST, least=0 if method == "grammar" else 1)
    if method != "ngram":
        for name in ("prompt_lookup_max", "prompt_lookup_min"):
            if name in given:
                raise _wrong(f"has {name!r}, which only the method 'ngram' takes")
        return Speculation(method=method, tokens=tokens)
    longest = _number(given, "prompt_lookup_max", LONGEST) if "prompt_lookup_max" in given else None
    shortest = _number(given, "prompt_lookup_min", LONGEST) if "prompt_lookup_min" in given else longest or 5
    if longest is None:
        longest = shortest
    if shortest > longest:
        raise _wrong(f"has prompt_lookup_min {shortest} over prompt_lookup_max {longest}")
    return Speculation(method=method, tokens=tokens, shortest=shortest, longest=longest)


def said(speculation: Speculation) -> dict[str, Any]:
    """The object that asks for it."""
    found: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
    if speculation.method == "ngram":
        found |= {"prompt_lookup_min": speculation.shortest, "prompt_lookup_max": speculation.longest}
    return found


def _number(given: Mapping[str, Any], name: str, most: int, least: int = 1) -> int:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(f"has {name} {repr(value)[:60]}; it must be a whole number from {least} to {most}")
    return value


def _wrong(text: str) -> ConfigError:
    return ConfigError(f"--speculative-config {text}")
