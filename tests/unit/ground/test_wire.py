"""What crosses a process comes back as it went."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from octavo.wire.arrays import pack_tokens, unpack_tokens
from octavo.wire.codec import Codec
from octavo.wire.plan import Kind, NewRow, PageDiff, StepPlan
from octavo.wire.reply import Admitted, FinishReason, Refused, RequestDelta, StepReply
from octavo.wire.request import EngineRequest, GrammarRef, MediaRef, Sampling
from octavo.wire.result import LogprobArrays
from octavo.wire.stats import StepStats

columns = arrays(np.int32, st.integers(0, 5), elements=st.integers(-(2**31), 2**31 - 1))


def same(a, b) -> bool:
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in a.__struct_fields__)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def there_and_back(value):
    codec = Codec(type(value))
    return codec.decode(codec.encode(value))


@given(columns, columns)
def test_plans_travel(rows, chunk):
    new = [NewRow(1, 2, 3, 4, 5, 0, (7,), Sampling(seed=-5, bad_words=((1, 2),)), b"abcd")]
    plan = StepPlan(step=2**40, kind=Kind.MIXED, rows=rows, chunk=chunk, new=new, pages=PageDiff(pages=rows))
    assert same(plan, there_and_back(plan))


@given(columns, arrays(np.float32, (2, 3), elements=st.floats(width=32, allow_nan=False)))
def test_replies_travel(tokens, values):
    logprobs = LogprobArrays(np.zeros((2, 3), np.int32), values, np.ones(2, np.int32))
    reply = StepReply(
        client=3,
        tokens=tokens,
        deltas=[RequestDelta(1, finish=FinishReason.STOP, logprobs=logprobs), RequestDelta(2, error="x")],
        answers=[Admitted(1), Refused(2, 429, "full", None, 1.5)],
        stats=StepStats(running=1, kv_usage=0.5),
    )
    assert same(reply, there_and_back(reply))


def test_requests_travel():
    request = EngineRequest(
        5,
        pack_tokens([1, 2, 3]),
        Sampling(seed=2**62, temperature=0.5),
        9,
        grammar=GrammarRef("regex", "a*", (4,)),
        media=(MediaRef(b"x", 0, 2),),
    )
    back = there_and_back(request)
    assert same(request, back)
    assert unpack_tokens(back.tokens).tolist() == [1, 2, 3]


@given(st.binary(max_size=64))
def test_garbage_is_an_error_of_one_kind(data):
    try:
        Codec(StepPlan).decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError):
        pass


def test_what_does_not_travel_says_so():
    with pytest.raises(NotImplementedError, match="object does not travel"):
        Codec(StepPlan).encode(object())
