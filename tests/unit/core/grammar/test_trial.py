"""The process that grammars are tried in: what is hostile costs its sender an error, and the next one is served."""

import os
import queue
import signal
import threading
import time

import pytest

from octavo.config.engine import GrammarSection
from octavo.core.grammar import trial
from octavo.core.grammar.base import Compiler, NotQuick
from octavo.core.grammar.compiler import TriedCompiler, _key
from octavo.core.grammar.manager import Grammars
from octavo.errors import BadRequest, OctavoError, RequestFailed
from octavo.testing.served import PATIENCE
from octavo.wire.request import GrammarRef
from tests.unit.core.grammar.support import BYTES, says

#: Each doubles what came before: the library's parser goes deeper than a stack.
DEEP = "start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(5000)) + '\na5000: "x"'
#: The library takes minutes and gigabytes for it.
LARGE = "a?" * 100_000


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What a grammar may compute is bounded; how long that takes is a matter of who else has the processor."""
    monkeypatch.setattr(trial, "SLOWER", 1000)
    monkeypatch.setattr(trial, "START", PATIENCE)


def hostile(compiler, ref, words):
    """It is refused after a second of a processor; later ones have the usual time."""
    compiler._trial._deadline = 1.0
    with pytest.raises(BadRequest, match=words):
        compiler.compile(ref)
    compiler._trial._deadline = trial.DEADLINE


@pytest.fixture
def compiler():
    found = TriedCompiler(GrammarSection(), BYTES, 257)
    yield found
    found.close()


def test_a_crash_a_flood_and_an_endless_one_cost_their_own_request_only(compiler):
    assert says(compiler.compile(GrammarRef("regex", "a+")), "aa")
    for ref in (GrammarRef("grammar", DEEP), GrammarRef("regex", LARGE)):
        before = compiler._trial.pid
        hostile(compiler, ref, "too complex")
        assert says(compiler.compile(GrammarRef("choice", f'["{ref.kind}"]')), ref.kind)
        assert compiler._trial.pid != before
    assert says(compiler.compile(GrammarRef("regex", "b")), "b")


def test_the_process_stands_back_and_who_is_slow_goes_last(compiler):
    """A grammar that takes long is compiled by a thread that gets what nobody else wants; the next one is not."""
    assert says(compiler.compile(GrammarRef("regex", "a")), "a")
    pid = compiler._trial.pid
    assert os.getpriority(os.PRIO_PROCESS, pid) >= trial.NICE
    errors: list[BaseException] = []

    def wait():
        try:
            compiler.compile(GrammarRef("regex", LARGE))
        except BaseException as error:
            errors.append(error)

    def policies():
        return {int(one): os.sched_getscheduler(int(one)) for one in os.listdir(f"/proc/{pid}/task")}

    thread = threading.Thread(target=wait)
    thread.start()
    until = time.monotonic() + 60
    while os.SCHED_IDLE not in (found := policies()).values():
        assert time.monotonic() < until, "the thread does not go last"
        assert thread.is_alive(), "nothing was slow"
        time.sleep(0.01)
    assert found[pid] == os.SCHED_OTHER
    compiler.close()
    thread.join(60)
    assert isinstance(errors[0], OctavoError)


def test_a_process_that_somebody_ends_is_started_again(compiler):
    compiler.compile(GrammarRef("regex", "a"))
    os.kill(compiler._trial.pid, signal.SIGKILL)  # while nobody asks anything
    assert says(compiler.compile(GrammarRef("regex", "b+")), "b")
    before = compiler._trial.pid
    timer = threading.Timer(0.2, os.kill, (before, signal.SIGKILL))  # or in the midst of it
    timer.start()
    hostile(compiler, GrammarRef("regex", LARGE), "took over 1 seconds")
    timer.join()
    assert says(compiler.compile(GrammarRef("regex", "c")), "c")


def test_a_process_that_gets_no_processor_is_nobodys_grammar(compiler, monkeypatch):
    compiler.compile(GrammarRef("regex", "a"))
    os.kill(compiler._trial.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(trial, "SLOWER", 0.1)
        with pytest.raises(RequestFailed, match="too busy"):
            compiler.compile(GrammarRef("regex", "b"))
    assert says(compiler.compile(GrammarRef("regex", "b")), "b")


def test_a_process_that_does_not_start_is_nobodys_grammar(compiler, monkeypatch):
    answers: queue.Queue = queue.Queue()
    grammars = Grammars(compiler, 257, lambda _, outcome: answers.put(outcome))
    with monkeypatch.context() as patch:
        patch.setattr(trial, "START", 0.0)
        with pytest.raises(RequestFailed, match="did not start"):
            compiler.compile(GrammarRef("regex", "a"))
        grammars.start(1, GrammarRef("regex", "a"))
        assert answers.get(timeout=PATIENCE).status == 500
    grammars.start(1, GrammarRef("regex", "a"))
    assert answers.get(timeout=PATIENCE).accept(ord("a"))
    grammars.close()


def test_short_grammars_come_first_and_those_of_nobody_never():
    started, held = threading.Event(), threading.Event()
    compiled, told, gone = [], queue.Queue(), set()

    class Slow(Compiler):
        def compile(self, ref):
            started.set()
            held.wait(PATIENCE)
            compiled.append(ref.text)
            raise BadRequest("no", "structured_outputs")

        def close(self):
            pass

    grammars = Grammars(Slow(), 257, lambda key, outcome: told.put(key), gone.__contains__)
    for key, text in enumerate(["first", "x" * 900, "y" * 900, "b" * 9, "a" * 9, "x" * 800]):
        grammars.start(key, GrammarRef("regex", text))
    assert started.wait(PATIENCE)
    gone.add(2)
    held.set()
    assert [told.get(timeout=PATIENCE) for _ in range(5)] == [0, 3, 4, 5, 1]
    assert "y" * 900 not in compiled
    grammars.close()


def test_who_takes_long_makes_room():
    """Behind a grammar that takes for ever others are compiled, and it is not forgotten."""
    held, told = threading.Event(), queue.Queue()

    class TwoWays(Compiler):
        def compile_quickly(self, ref):
            if ref.text == "endless":
                raise NotQuick
            raise BadRequest("quickly", "structured_outputs")

        def compile(self, ref):
            assert held.wait(30)
            raise BadRequest("slowly", "structured_outputs")

        def close(self):
            pass

    grammars = Grammars(TwoWays(), 257, lambda key, outcome: told.put((key, outcome.message)))
    for key, text in enumerate(["endless", "a", "endless", "b"]):
        grammars.start(key, GrammarRef("regex", text))
    assert {told.get(timeout=30) for _ in range(2)} == {(1, "quickly"), (3, "quickly")}
    held.set()
    assert [told.get(timeout=30) for _ in range(2)] == [(0, "slowly"), (2, "slowly")]
    grammars.close()


def test_what_is_not_common_is_given_up_soon_and_known_afterwards(compiler):
    compiler._first._deadline = 0.1
    with pytest.raises(NotQuick):
        compiler.compile_quickly(GrammarRef("regex", LARGE))
    compiler._first._deadline = trial.DEADLINE
    assert says(compiler.compile_quickly(GrammarRef("regex", "b")), "b")
    pid = compiler._first.pid
    compiler._slow[_key(GrammarRef("regex", LARGE))] = "it is too complex"
    with pytest.raises(BadRequest, match="too complex"):
        compiler.compile_quickly(GrammarRef("regex", LARGE))
    assert compiler._first.pid == pid


def test_memory_is_bounded(compiler, monkeypatch):
    monkeypatch.setattr(trial, "MEMORY", 64 << 20)
    small = TriedCompiler(GrammarSection(), BYTES, 257)
    try:
        with pytest.raises(BadRequest, match="too complex"):
            small.compile(GrammarRef("regex", LARGE))
    finally:
        small.close()


def test_what_was_compiled_is_kept_and_each_request_starts_afresh(compiler):
    ref = GrammarRef("regex", "ab", (7,))
    assert compiler.kept(ref) is None
    first = compiler.compile(ref)
    assert first.accept(ord("a"))
    second = compiler.kept(GrammarRef("regex", "ab"))
    assert second.accept(ord("a"))
    assert not second.accept(ord("a"))
    assert first.accept(ord("b"))
    assert compiler.kept(GrammarRef("choice", "ab")) is None


def test_few_are_kept(compiler, monkeypatch):
    monkeypatch.setattr("octavo.core.grammar.compiler.KEPT", 2)
    refs = [GrammarRef("regex", text) for text in "abc"]
    for ref in refs:
        compiler.compile(ref)
    assert [compiler.kept(ref) is not None for ref in refs] == [False, True, True]


def test_closing_ends_the_process_and_who_waits_for_it(compiler):
    compiler.compile(GrammarRef("regex", "a"))
    pid = compiler._trial.pid
    errors: list[BaseException] = []

    def wait():
        try:
            compiler.compile(GrammarRef("regex", LARGE))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    compiler.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert isinstance(errors[0], OctavoError)
    with pytest.raises((ProcessLookupError, ChildProcessError)):
        os.kill(pid, 0)


def test_a_vocabulary_without_an_end_cannot_be_ruled():
    from msgspec.structs import replace

    found = TriedCompiler(GrammarSection(), replace(BYTES, eos=()), 257)
    try:
        with pytest.raises(OctavoError, match="end-of-sequence"):
            found.compile(GrammarRef("regex", "a"))
    finally:
        found.close()


def test_the_process_says_seconds_and_whoever_asked_it_judges_them(compiler, monkeypatch):
    for text, limit, soon in (("ab", PATIENCE, True), ("abc", 0.0, False)):
        monkeypatch.setattr("octavo.core.grammar.cost.DEAR", limit)
        compiler.compile(ref := GrammarRef("regex", text))
        cost = compiler.cost(ref)
        assert (cost.dear, cost.guesses) == (not soon, soon)
