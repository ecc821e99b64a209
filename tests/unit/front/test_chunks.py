"""A chunk that holds only text is written around it, and reads as any other."""

import json
from types import SimpleNamespace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from octavo.front.server.openai.chat import ChatJob
from octavo.front.server.openai.chunks import ChatChoiceChunk, Delta, TextChoice, TextChunk
from octavo.front.server.openai.completions import CompletionJob
from octavo.front.server.sse import frame

#: What a name may hold that looks like a field of a chunk.
NAMES = st.text(max_size=20) | st.sampled_from(('"text":"-"', '{"content":"-"}', "-"))
TEXTS = st.lists(st.text(), min_size=1, max_size=4)


def job(**more):
    return SimpleNamespace(created=7, _around={}, **more)


@given(name=NAMES, model=NAMES, index=st.integers(0, 40), texts=TEXTS)
def test_completions(name, model, index, texts):
    one = job(id=name, model=model)
    for text in texts:
        whole = TextChunk(name, 7, model, [TextChoice(index, text)])
        assert CompletionJob._text(one, index, text) == frame(msgspec.json.encode(whole))


@given(name=NAMES, model=NAMES, index=st.integers(0, 40), field=st.sampled_from(("content", "reasoning")), texts=TEXTS)
def test_chat(name, model, index, field, texts):
    one = job(id=name, model=model)
    one._chunk = lambda choice, usage: ChatJob._chunk(one, choice, usage)
    for text in texts:
        whole = ChatJob._chunk(one, ChatChoiceChunk(index, Delta(**{field: text})), None)
        told = ChatJob._text(one, index, field, text)
        assert told == frame(msgspec.json.encode(whole))
        assert json.loads(told[6:])["choices"][0]["delta"] == {field: text}
