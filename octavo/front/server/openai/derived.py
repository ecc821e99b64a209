"""Chat requests made of another API's: checked as chat's are, with errors under the other API's names."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from octavo.errors import BadRequest, RequestError
from octavo.front.server.errors import describe
from octavo.front.server.openai.schema import ChatBody

_FUNCTION = re.compile(r"^(tools\.\d+)\.function")


def chat_body(fields: Mapping[str, Any]) -> ChatBody:
    """Raises ``BadRequest``, under chat's names."""
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        info = describe(RequestValidationError(error.errors(include_url=False, include_context=False)))
        raise BadRequest(info.message, info.param) from None


def refuse(value: Any, name: str, harmless: Sequence[Any] = ()) -> None:
    """Raises ``BadRequest`` for a value of field ``name`` that is neither None nor one of ``harmless``."""
    if value is None or any(type(value) is type(other) and value == other for other in harmless):
        return
    possible = f"; possible: null, {', '.join(map(repr, harmless))}" if harmless else ""
    raise BadRequest(f"{name} is not supported by this server{possible}", name)


@contextlib.contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name their field as the client knows it. ``names``: chat's name -> the client's."""
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            error.param = _rename(error.param, names)
        raise


def _rename(param: str, names: Mapping[str, str]) -> str:
    for chats, theirs in names.items():
        if param == chats or param.startswith(f"{chats}."):
            return theirs
    return _FUNCTION.sub(r"\1", param)
