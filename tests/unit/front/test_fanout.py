"""Desk under random replies and with whatever may raise in it: everybody hears the end of what is theirs, once."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from front.support import small
from octavo.errors import BadRequest, RequestFailed
from octavo.front.fanout import Desk, Finished, Group, Observer
from octavo.params import SamplingParams
from octavo.wire.arrays import ints
from octavo.wire.reply import Admitted, FinishReason, Refused, RequestDelta, StepReply
from octavo.wire.result import TOO_COMPLEX

#: Where something raises.
FAULTS = ("push", "flush", "note", "wake", "observer", "on_end")


class Raising(Observer):
    """Counts what it is told, and may raise then."""

    def __init__(self, raises: bool):
        self.raises, self.counts = raises, Counter()

    def told(self, what: str) -> None:
        self.counts[what] += 1
        if self.raises:
            raise ZeroDivisionError(what)

    def first_token(self, seconds: float) -> None:
        self.told("first")

    def more_tokens(self, seconds: float, count: int) -> None:
        self.told("more")

    def finished(self, one: Finished) -> None:
        self.told("finished")

    def ended(self, outcome: str) -> None:
        self.told("ended")


class House:
    """Open requests at a desk, and who of them breaks where."""

    def __init__(self, sizes: list[int], faults: set[str], broken: int):
        self.desk, self.observer = Desk(), Raising("observer" in faults)
        self.desk.observe(self.observer)
        self.over: Counter[str] = Counter()
        self.woken: Counter[str] = Counter()
        self.desk.on_end(self.end if "on_end" not in faults else self.broken_end)
        self.groups = []
        for number, size in enumerate(sizes):
            params = SamplingParams(n=size, max_tokens=9)
            handles = self.desk.handles(size)
            group = Group(str(number), None, [5], params, small(), handles, 0.0)
            group.wake = lambda name=str(number): self.wake(name, "wake" in faults)
            self.groups.append(group)
            self.desk.open(group)
        self.victim = self.groups[broken % len(sizes)]
        if "note" in faults:
            self.victim.note = self.fail
        for answer in self.victim.answers:
            if "push" in faults or "flush" in faults:
                answer._detokenizer = Broken(answer._detokenizer, faults)

    def fail(self, *_):
        raise ZeroDivisionError

    def end(self, group: Group) -> None:
        self.over[group.request_id] += 1

    def broken_end(self, group: Group) -> None:
        self.end(group)
        raise ZeroDivisionError

    def wake(self, name: str, raises: bool) -> None:
        self.woken[name] += 1
        if raises:
            raise ZeroDivisionError


class Broken:
    """A detokenizer that raises."""

    def __init__(self, inner, faults):
        self.inner, self.faults = inner, faults

    def push(self, ids):
        if "push" in self.faults:
            raise ZeroDivisionError
        return self.inner.push(ids)

    def flush(self):
        if "flush" in self.faults:
            raise ZeroDivisionError
        return self.inner.flush()


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sets(st.sampled_from(FAULTS), max_size=3),
    st.integers(0, 3),
    st.data(),
)
def test_everybody_hears_the_end_of_what_is_theirs(sizes, faults, broken, data):
    house = House(sizes, faults, broken)
    open_ones = {handle for group in house.groups for handle in group.handles}
    said: Counter[int] = Counter()
    ended: set[int] = set()
    house.desk.read(StepReply(0, answers=[Admitted(handle) for handle in sorted(open_ones)]))
    for last in (False, False, True):
        some = (
            sorted(open_ones - ended) if last else data.draw(st.lists(st.sampled_from(sorted(open_ones)), unique=True))
        )
        some = [handle for handle in some if handle not in ended]
        counts = [data.draw(st.integers(1, 3)) for _ in some]
        deltas = [RequestDelta(9999, FinishReason.STOP)]
        for handle, count in zip(some, counts, strict=True):
            said[handle] += count
            if last or data.draw(st.booleans()):
                ended.add(handle)
                deltas.append(RequestDelta(handle, FinishReason.LENGTH))
        reply = StepReply(0, ints([*some, 9999]), ints([*counts, 2]), ints([70] * (sum(counts) + 2)), deltas)
        over = house.desk.read(reply)
        assert set(over) <= set(house.victim.handles)
    assert len(house.desk) == 0
    for group in house.groups:
        assert group.finished
        assert house.over[group.request_id] == 1
        assert house.woken[group.request_id] > 0
        if group is house.victim and faults & {"push", "flush", "note"}:
            assert isinstance(group.error, RequestFailed)
        else:
            assert group.error is None
            assert [answer.count for answer in group.answers] == [said[handle] for handle in group.handles]
    assert house.observer.counts["ended"] == len(sizes)


def test_a_reply_that_is_no_reply_fails_whom_it_names():
    house = House([1, 2, 1], set(), 0)
    (first,), (second, third), (other,) = (group.handles for group in house.groups)
    over = house.desk.read(StepReply(0, ints([first, second]), ints([1]), ints([70])))
    assert sorted(over) == [first, second, third]
    assert [type(group.error) for group in house.groups] == [RequestFailed, RequestFailed, type(None)]
    house.desk.read(StepReply(0, answers=[Refused(other, "no", None, None)]))  # no status
    assert isinstance(house.groups[2].error, RequestFailed)
    assert len(house.desk) == 0
    assert set(house.over.values()) == {1}


def test_a_grammar_that_passes_its_limits_is_the_requests_fault():
    house = House([1, 1], set(), 0)
    (one,), (other,) = (group.handles for group in house.groups)
    faults = RequestDelta(one, FinishReason.ERROR, error=f"{TOO_COMPLEX}: lexer error: too many states")
    house.desk.read(StepReply(0, deltas=[faults, RequestDelta(other, FinishReason.ERROR, error="the step failed")]))
    first, second = (group.error for group in house.groups)
    assert isinstance(first, BadRequest)
    assert first.param == "structured_outputs"
    assert "too many states" in str(first)
    assert isinstance(second, RequestFailed)
