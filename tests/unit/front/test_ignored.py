"""Fields that nobody knows are told of once, in one line, and not without end."""

import pytest

from octavo.front.server import ignored
from octavo.front.server.anthropic.convert import chat_fields
from octavo.front.server.anthropic.schema import MessagesBody
from octavo.front.server.openai.responses.convert import check
from octavo.front.server.openai.responses.schema import ResponsesBody
from octavo.front.server.openai.schema import ChatBody

USER = [{"role": "user", "content": "a"}]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(ignored, "_told", set())


def test_each_name_is_told_once(caplog):
    for _ in range(2):
        ChatBody(messages=USER, tempereture=1, store=True, functions=None, nothing=None).refuse_unsupported()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'tempereture'" in caplog.text


def test_other_apis_too(caplog):
    check(ResponsesBody(input="a", one=1, n=1))
    chat_fields(MessagesBody(model="m", messages=USER, max_tokens=1, two=2))
    assert [record.args[0] for record in caplog.records] == ["one", "two"]


def test_names_are_bounded(caplog):
    ignored.tell({"x\n\x1b\u2028" + "y" * 500: 1} | {str(number): 1 for number in range(1000)}, ())
    assert len(caplog.records) == ignored.MAX_TOLD
    first = caplog.records[0].getMessage()
    assert first.isprintable()
    assert len(first) < 200
