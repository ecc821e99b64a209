"""Fields of requests that nobody here knows: ignored, as clients expect, and told of in the log, each name once."""

from collections.abc import Container, Mapping
from typing import Any

from octavo.common.log import logger

_log = logger(__name__)
#: Names that are told of at most, and characters of each: who sends names without end fills neither memory nor log.
MAX_TOLD = 100
_MAX_NAME = 60
#: Those of OpenAI's that clients send always, and that change no answer.
_QUIET = frozenset({"store", "service_tier", "metadata", "prompt_cache_key", "safety_identifier", "prediction"})
_told: set[str] = set()


def tell(given: Mapping[str, Any] | None, known: Container[str]) -> None:
    """Log the fields of ``given`` that are neither null nor ``known``, if they are the first of their name."""
    for name, value in (given or {}).items():
        if value is None or name in known or name in _QUIET:
            continue
        if len(_told) == MAX_TOLD:
            return
        short = name[:_MAX_NAME]
        if short not in _told:
            _told.add(short)
            _log.warning("the request's field %a is not known here and ignored (told once)", short)
