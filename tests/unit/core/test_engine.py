"""The loop and the scheduler, one thing at a time: refusals, limits, aborts in every state, deadlines, order, sleep."""

import threading
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from core.workload import OddCompiler
from octavo.core.engine import core as loop
from octavo.core.engine.core import EngineCore
from octavo.core.scheduler import book, planning, scheduler
from octavo.core.scheduler import prompts as prefill
from octavo.errors import ConfigError, EngineDead, OutOfMemory
from octavo.testing.cores import Told, fake_config, hear
from octavo.testing.fakes import FakeWorker, expected
from octavo.testing.served import PATIENCE
from octavo.wire.arrays import pack_tokens
from octavo.wire.plan import Kind
from octavo.wire.reply import AbortReason, FinishReason
from octavo.wire.request import AdapterRef, EngineRequest, GrammarRef, MediaRef, Sampling


def make(fake: dict | None = None, compiler=None, **schedule) -> EngineCore:
    values = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "page": 4} | schedule
    core = EngineCore(fake_config(fake, **values), compiler=compiler)
    core.start()
    return core


def ask(handle: int, prompt=None, out: int = 5, **changes) -> EngineRequest:
    prompt = [handle + 1, 2, 3] if prompt is None else prompt
    return EngineRequest(handle, pack_tokens(prompt), Sampling(seed=handle), len(prompt) + out, **changes)


def finish(core: EngineCore, told: dict[int, Told] | None = None, most: int = 2000) -> dict[int, Told]:
    told = {} if told is None else told
    for _ in range(most):
        hear(core.poll(0.05), told)
        core.scheduler.book.check()
        if not (core.scheduler.unfinished or core.outstanding or core.runnable):
            return told
    raise AssertionError("an endless call")


def steps(core: EngineCore, count: int, told: dict[int, Told]) -> None:
    for _ in range(count):
        hear(core.poll(), told)


def recorded(core: EngineCore) -> list:
    plans: list = []
    assert isinstance(core.worker, FakeWorker)
    core.worker.on_forward = plans.append
    return plans


@pytest.mark.parametrize(
    ("wire", "status", "words"),
    [
        (ask(0, []), 400, "empty"),
        (ask(0, [5, 97]), 400, "token id 97; ids go from 0 to 96"),
        (ask(0, [-1]), 400, "token id -1"),
        (ask(0, out=62), 400, "over the longest length, 64"),
        (ask(0, out=-1), 400, "below the prompt's 3"),
        (ask(0, every=-1), 400, "every"),
        (ask(0, min_length=2**31), 400, "min_length"),
        (ask(0, adapter=AdapterRef("poet", b"")), 501, "no adapters"),
        (ask(0, media=(MediaRef(b"x", 0, 1),)), 501, "no media"),
        (ask(0, grammar=GrammarRef("regex", "a*")), 501, "no structured output"),
    ],
)
def test_what_cannot_run_is_refused_and_others_go_on(wire, status, words):
    core = make()
    core.add([wire, ask(1)])
    told = finish(core)
    assert told[0].refused.status == status
    assert words in told[0].refused.reason
    assert told[1].tokens == expected([2, 2, 3], 1, 8)


def test_a_handle_in_use_is_refused():
    core = make()
    core.add([ask(0), ask(0)])
    told: dict[int, Told] = {}
    steps(core, 1, told)
    assert "already in use" in told[0].refused.reason


def test_a_handle_that_is_too_large_is_refused():
    core = make()
    core.add([ask(2**31, [1, 2, 3]), ask(1)])
    told = finish(core)
    assert "handle" in told[2**31].refused.reason
    assert told[1].tokens == expected([2, 2, 3], 1, 8)


def test_max_waiting_counts_those_who_really_wait():
    core = make(max_num_seqs=2, max_waiting=1)
    core.add([ask(handle) for handle in range(5)])
    told = finish(core)
    refused = [handle for handle in range(5) if told[handle].refused]
    assert refused == [3, 4]
    assert told[3].refused.status == 429
    assert told[3].refused.retry_after > 0
    assert all(told[handle].tokens for handle in range(3))


def test_max_waiting_tokens_counts_prompts_that_are_not_computed():
    core = make(max_num_seqs=4, max_num_batched_tokens=4, max_waiting_tokens=57)
    told: dict[int, Told] = {}
    core.add([ask(0, list(range(58)), 2)])  # longer than the limit, but nobody waits
    steps(core, 4, told)
    core.add([ask(1, [1] * 3, 2), ask(2, [2] * 20, 2)])
    finish(core, told)
    assert told[0].finish is told[1].finish is FinishReason.LENGTH
    assert told[2].refused.status == 429
    assert "--max-waiting-tokens" in told[2].refused.reason
    assert core.scheduler.book.waiting_tokens == 0
    core.add([ask(2, [2] * 20, 2)])
    assert finish(core)[2].finish is FinishReason.LENGTH


def test_max_waiting_time_turns_away_those_who_never_ran(monkeypatch):
    now = 1000.0
    for module in (book, scheduler, loop):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, perf_counter=time.perf_counter))
    core = make(max_num_seqs=1, max_waiting_time=0.2)
    core.add([ask(0, out=50), ask(1), ask(2)])
    told: dict[int, Told] = {}
    steps(core, 9, told)
    assert told[1].refused is told[2].refused is None
    now += 0.3
    finish(core, told)
    assert len(told[0].tokens) == 50  # it runs longer than any may queue
    for handle in (1, 2):
        assert told[handle].refused.status == 429
        assert "--max-waiting-time" in told[handle].refused.reason
        assert told[handle].finish is None
    core.add([ask(1)])
    assert finish(core)[1].finish is FinishReason.LENGTH


def test_admission_is_answered_before_the_first_step_is_waited_for():
    core = make({"latency": 600.0})
    core.add([ask(0)])
    replies = core.poll()
    assert len(replies[0].answers) == 1
    assert not len(replies[0].handles)
    core.close(deadline=0.0)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_aborts_in_every_state_free_everything_within_a_step(depth):
    for after in range(12):
        core = make(depth=depth, max_num_seqs=2)
        asks = [ask(0, list(range(40)), 10), ask(1, out=10), ask(2, out=10)]
        core.add(asks)
        told: dict[int, Told] = {}
        steps(core, after, told)
        open_ones = core.scheduler.unfinished
        core.abort([0, 1, 2, 77], AbortReason.CLIENT)
        hear(core.poll(), told)
        pool = core.scheduler.book.kv.pool
        assert pool.free == pool.pages - 1
        assert core.scheduler.unfinished == 0
        if after:
            assert sum(one.finish is FinishReason.ABORT for one in told.values()) == open_ones
        finish(core, told)
        assert not core.worker.rows


def test_deadlines_end_those_who_run_and_those_who_wait():
    core = make({"latency": 0.01}, max_num_seqs=1)
    now = time.monotonic()
    core.add([ask(0, out=50, deadline=now + 0.1), ask(1, deadline=now + 0.05), ask(2)])
    told = finish(core)
    for handle in (0, 1):
        assert told[handle].finish is FinishReason.ABORT
        assert "deadline" in told[handle].error
    assert told[2].finish is FinishReason.LENGTH


def test_decodes_come_first_and_one_long_prompt_stalls_nobody():
    core = make(max_num_batched_tokens=8, max_model_len=64)
    plans = recorded(core)
    told: dict[int, Told] = {}
    core.add([ask(0, out=30)])
    steps(core, 4, told)
    core.add([ask(1, list(range(50)), 5)])
    steps(core, 2, told)
    core.add([ask(2, out=5)])
    finish(core, told)
    during = [plan for plan in plans if plan.kind == Kind.MIXED and len(plan.rows) > 1]
    assert during
    assert all(plan.known[0] == 0 for plan in during)
    assert all(plan.tokens <= 8 for plan in plans)
    # The short prompt got its first token while the long one was still being read.
    samples = [plan.samples.tolist() for plan in plans if plan.kind == Kind.MIXED]
    assert len(told[2].tokens) == 5
    assert sum(any(row) for row in samples) > 2
    assert told[1].tokens == expected(list(range(50)), 1, 55)


def test_a_threshold_bounds_one_prompt_a_step():
    core = make(max_num_batched_tokens=16, long_prefill_token_threshold=6)
    plans = recorded(core)
    core.add([ask(0, list(range(30)))])
    finish(core)
    assert [int(plan.takes[0]) for plan in plans if plan.kind == Kind.MIXED] == [6, 6, 6, 6, 6]


def test_first_come_first_served_and_priority():
    for policy, order in (("fcfs", [0, 1, 2, 3]), ("priority", [2, 1, 3, 0])):
        core = make(max_num_seqs=1, policy=policy)
        plans = recorded(core)
        core.add([ask(handle, priority=priority) for handle, priority in enumerate((9, 1, 0, 1))])
        finish(core)
        assert [new.sampling.seed for plan in plans for new in plan.new] == order


@pytest.mark.parametrize(("known", "running"), [(64 - prefill.KEPT, 2), (65 - prefill.KEPT, 1)])
def test_a_newcomer_leaves_the_pages_that_those_who_run_take_soon(known, running):
    core = make({"page_sizes": (64,)}, page=64, memory=(4 + 1) * 64 * 4, max_model_len=256, max_num_batched_tokens=256)
    core.add([ask(0, [1] * known, 60)])
    steps(core, 2, {})  # launched, and retired
    core.add([ask(1, [2] * 129, 60)])  # three pages, all that are free
    steps(core, 1, {})
    assert core.call("stats")["running"] == running
    core.close()


@pytest.mark.parametrize(("prompt", "running"), [(17, 2), (25, 1)])
def test_a_newcomer_leaves_as_many_pages_as_those_who_run_take_soon(prompt, running, monkeypatch):
    monkeypatch.setattr(planning, "AHEAD", 8)  # pages come one by one
    monkeypatch.setattr(planning, "SOON", 0)
    core = make({"page_sizes": (8,)}, page=8, memory=(7 + 1) * 8 * 4, max_model_len=56, max_num_batched_tokens=64)
    core.add([ask(0, [1] * 8, 40)])
    steps(core, 2, {})
    # one of the seven pages is taken, one is with the next token, and two more within KEPT tokens: three are left
    core.add([ask(1, [2] * prompt, 20)])
    steps(core, 1, {})
    assert core.call("stats")["running"] == running
    core.close()


def test_the_worst_rank_is_preempted_and_comes_back():
    # Two requests that together need more pages than there are.
    core = make(policy="priority", memory=4 * 4 * 18, max_num_batched_tokens=64)
    plans = recorded(core)
    core.add([ask(0, [1] * 20, 40, priority=1), ask(1, [2] * 20, 40)])
    told = finish(core)
    assert told[0].tokens == expected([1] * 20, 0, 60)
    epochs = [(new.sampling.seed, new.epoch) for plan in plans for new in plan.new]
    assert max(epoch for seed, epoch in epochs if seed == 0) > 0
    assert max(epoch for seed, epoch in epochs if seed == 1) == 0


def test_the_first_token_is_timed_when_it_is_known_however_late_it_is_told():
    core = make(max_num_seqs=8)
    core.add([ask(0, out=20, every=0), ask(1, out=20, every=1), ask(2, out=0)])
    told: dict[int, Told] = {}
    while 0 not in told or told[0].first is None:
        steps(core, 1, told)
    assert told[0].first <= time.monotonic()
    assert not told[0].tokens
    first = told[0].first
    finish(core, told)
    assert (told[0].first, len(told[0].tokens)) == (first, 20)
    assert told[1].first is not None
    assert told[2].first is None  # it asked for no token


def test_long_prompts_are_hashed_a_part_a_step(monkeypatch):
    monkeypatch.setattr(prefill, "HASHED", 3)
    core = make(max_num_batched_tokens=64, max_num_seqs=8)
    told: dict[int, Told] = {}
    core.add([ask(0, out=40)])
    steps(core, 3, told)
    prompts = {handle: [handle] * 55 for handle in range(1, 5)}
    core.add([ask(handle, prompt) for handle, prompt in prompts.items()])
    before = len(told[0].tokens)
    for _ in range(15):
        steps(core, 1, told)
        assert core.scheduler._planner.prompts._hashed <= 3
    assert len(told[0].tokens) >= before + 10  # a step that admits somebody says only so
    assert told[1].tokens
    finish(core, told)
    for handle, prompt in prompts.items():
        assert told[handle].tokens == expected(prompt, handle, 60)


def test_long_prefixes_are_taken_over_a_part_a_step(monkeypatch):
    monkeypatch.setattr(prefill, "CLAIMED", 20)
    core = make(max_num_batched_tokens=64, max_num_seqs=8)
    plans = recorded(core)
    prompt = list(range(50))  # 12 pages
    core.add([ask(0, prompt, 1)])
    finish(core)
    core.add([ask(handle, prompt) for handle in range(1, 7)])
    told = finish(core)
    assert [len(plan.new) for plan in plans if plan.new] == [1, 2, 2, 2]
    for handle in range(1, 7):
        assert told[handle].tokens == expected(prompt, handle, 55)


def test_prefixes_are_shared_and_salts_keep_apart():
    core = make(max_num_batched_tokens=64)
    prompt = list(range(20))
    told: dict[int, Told] = {}
    core.add([ask(0, prompt)])
    finish(core, told)
    core.add([ask(1, prompt), ask(2, [*prompt, 7]), ask(3, prompt, salt=b"x"), ask(4, prompt, read_cache=False)])
    finish(core, told)
    # At least one token is computed, and only full pages are shared.
    assert [told[handle].cached for handle in range(5)] == [0, 16, 20, 0, 0]
    core.add([ask(5, prompt, salt=b"x")])
    finish(core, told)
    assert told[5].cached == 16
    assert core.call("reset_prefix_cache") > 0
    core.add([ask(6, prompt)])
    finish(core, told)
    assert told[6].cached == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_that_share_a_prompt_compute_it_once(depth):
    core = make(max_num_batched_tokens=64, depth=depth)
    plans = recorded(core)
    prompt = list(range(21))
    core.add([ask(handle, prompt) for handle in range(4)] + [ask(4, [90] * 9)])
    told = finish(core)
    assert [told[handle].cached for handle in range(5)] == [0, 20, 20, 20, 0]
    assert sum(int(plan.known.sum()) for plan in plans) == 21 + 3 + 9
    # Who has another prompt does not wait for it.
    assert [new.sampling.seed for new in plans[0].new] == [0, 4]
    for handle in range(4):
        assert told[handle].tokens == expected(prompt, handle, 26)


def test_a_follower_goes_on_alone_when_its_leader_goes():
    core = make(max_num_batched_tokens=4)
    told: dict[int, Told] = {}
    core.add([ask(0, list(range(30))), ask(1, list(range(30)))])
    steps(core, 3, told)
    core.abort([0], AbortReason.CLIENT)
    finish(core, told)
    assert told[1].tokens == expected(list(range(30)), 1, 35)
    assert told[1].cached > 0


def test_outputs_are_cached_too():
    core = make()
    told: dict[int, Told] = {}
    core.add([ask(0, out=30)])
    finish(core, told)
    core.add([ask(1, [1, 2, 3, *told[0].tokens], 5)])
    finish(core, told)
    assert told[1].cached == 32


def test_scoring_says_nothing_and_ends_with_length():
    core = make(max_num_batched_tokens=4)
    prompt = list(range(10))
    core.add([EngineRequest(0, pack_tokens(prompt), Sampling(seed=0, prompt_logprobs=0), len(prompt))])
    told = finish(core)
    assert told[0].tokens == []
    assert told[0].finish is FinishReason.LENGTH
    assert [row[0] for piece in told[0].prompt_logprobs for row in piece.ids.tolist()] == prompt[1:]


def test_a_step_tells_so_many_log_probabilities_of_prompts_at_most(monkeypatch):
    """Of a vocabulary a token, and with two such requests at once."""
    core = make(max_num_batched_tokens=64)
    vocab = core.scheduler.vocab
    monkeypatch.setattr(prefill, "TOLD", 5 * (vocab + 1) + 3)
    plans = recorded(core)
    prompts = [list(range(20)), list(range(3, 17))]
    for handle, prompt in enumerate(prompts):
        core.add([EngineRequest(handle, pack_tokens(prompt), Sampling(seed=0, prompt_logprobs=-1), len(prompt))])
    core.add([ask(2, list(range(40)), 3)])
    told = finish(core)
    for handle, prompt in enumerate(prompts):
        assert [row[0] for piece in told[handle].prompt_logprobs for row in piece.ids.tolist()] == prompt[1:]
    assert len(told[2].tokens) == 3
    asked = {new.row: new.sampling.prompt_logprobs for plan in plans for new in plan.new}
    takes = [
        sum(take for row, take in zip(plan.rows.tolist(), plan.takes.tolist(), strict=True) if asked[row] == -1)
        for plan in plans
    ]
    assert max(takes) == 5
    assert sum(takes) == 34


def test_every_delivers_in_portions():
    core = make()
    core.add([ask(0, out=10, every=0), ask(1, out=10, every=4), ask(2, out=10)])
    sizes: dict[int, list[int]] = {0: [], 1: [], 2: []}
    told: dict[int, Told] = {}
    for _ in range(100):
        for reply in core.poll():
            for handle, count in zip(reply.handles.tolist(), reply.counts.tolist(), strict=True):
                sizes[handle].append(count)
            hear([reply], told)
    assert sizes == {0: [10], 1: [4, 4, 2], 2: [1] * 10}


def test_stop_ids_end_of_sequence_and_minimum():
    right = expected([1, 2, 3], 0, 43)
    stop = right[6]
    first = right.index(stop)
    core = make()
    core.add([ask(0, out=40, stops=(stop,), eos=0)])
    assert finish(core)[0].stop == stop
    core = make()
    core.add([ask(0, out=40, stops=(stop,), eos=1)])
    told = finish(core)
    assert told[0].tokens == right[: first + 1]
    assert told[0].finish is FinishReason.STOP
    assert told[0].stop is None
    many = tuple(sorted({stop, *range(80, 97)}))
    core = make()
    core.add([ask(0, out=40, stops=many, min_length=3 + 12)])
    told = finish(core)
    assert told[0].tokens == expected([1, 2, 3], 0, 43, stops=many, min_length=15)
    assert len(told[0].tokens) >= 12


def test_a_wrong_grammar_is_refused_and_a_right_one_obeyed():
    core = make({"vocab": 17}, compiler=OddCompiler())
    core.add([ask(0, [1], grammar=GrammarRef("regex", "none")), ask(1, [1], grammar=GrammarRef("regex", "odd"))])
    told: dict[int, Told] = {}
    until = time.monotonic() + PATIENCE
    while len(told) < 2 or told[1].finish is None:
        assert time.monotonic() < until
        hear(core.poll(0.1), told)
    assert told[0].refused.reason == "no such grammar"
    assert [token % 2 for token in told[1].tokens] == [1, 0, 1, 0, 1]


def test_a_grammar_bites_behind_reasoning():
    core = make({"vocab": 17}, compiler=OddCompiler())
    free = expected([1], 0, 41, vocab=17)
    core.add([EngineRequest(0, pack_tokens([1]), Sampling(seed=0), 41, grammar=GrammarRef("r", "odd", (free[3],)))])
    told: dict[int, Told] = {}
    until = time.monotonic() + PATIENCE
    while 0 not in told or told[0].finish is None:
        assert time.monotonic() < until
        hear(core.poll(0.1), told)
    start = free.index(free[3]) + 1
    assert told[0].tokens[:start] == free[:start]
    assert [token % 2 for token in told[0].tokens[start : start + 4]] == [1, 0, 1, 0]


def test_an_engine_that_has_run_for_months_still_obeys_grammars():
    core = make({"vocab": 17}, compiler=OddCompiler())
    core.scheduler._planner.builder.step = core.worker._step = 2**31 - 3
    core.add([ask(0, [1], out=10, grammar=GrammarRef("regex", "odd"))])
    told: dict[int, Told] = {}
    until = time.monotonic() + PATIENCE
    while 0 not in told or told[0].finish is None:
        assert time.monotonic() < until
        hear(core.poll(0.1), told)
    assert [token % 2 for token in told[0].tokens] == [1, 0] * 5


@pytest.mark.parametrize("method", ["fill", "accept"])
def test_a_grammar_that_raises_ends_its_own_request(method):
    class Faulty(OddCompiler):
        def compile(self, ref):
            grammar = super().compile(GrammarRef("r", "odd"))
            if ref.text == "faulty":

                def wrong(_):
                    raise RuntimeError("a fault of the grammar engine")

                setattr(grammar, method, wrong)
            return grammar

    core = make({"vocab": 17}, compiler=Faulty())
    core.add([ask(0, [1], grammar=GrammarRef("r", "faulty")), ask(1, [1], grammar=GrammarRef("r", "odd")), ask(2, [3])])
    told: dict[int, Told] = {}
    until = time.monotonic() + PATIENCE
    while len(told) < 3 or any(one.finish is None for one in told.values()):
        assert time.monotonic() < until
        hear(core.poll(0.1), told)
    assert [told[handle].finish for handle in range(3)] == [
        FinishReason.ERROR,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]
    assert "grammar" in told[0].error


def test_a_core_with_only_blocked_requests_sleeps():
    held = threading.Event()

    class Slow(OddCompiler):
        def compile(self, ref):
            held.wait(PATIENCE)
            return super().compile(ref)

    core = make({"vocab": 17}, compiler=Slow())
    core.add([ask(0, [1], grammar=GrammarRef("regex", "odd"))])
    told: dict[int, Told] = {}
    wait, slept = core.inbox.wait, []
    core.inbox.wait = lambda timeout: slept.append(timeout) or wait(timeout)
    for _ in range(5):
        hear(core.poll(0.1), told)
    assert slept == [0.1] * 5
    assert 0 not in told
    held.set()
    finish(core, told)
    assert len(told[0].tokens) == 5


def sleeps(core: EngineCore) -> list[bool]:
    """Of each time that the core slept, whether it was woken."""
    bell, woken = core.inbox._arrived, []
    wait = bell.wait
    bell.wait = lambda timeout: woken.append(wait(timeout))
    return woken


def test_an_add_from_another_thread_wakes_a_sleeping_core():
    core = make()
    woken = sleeps(core)
    timer = threading.Timer(0.1, lambda: core.add([ask(0)]))
    timer.start()
    replies = core.poll(PATIENCE)
    assert replies[0].answers
    assert woken in ([], [True])  # []: it came before the core slept
    finish(core)


def test_a_call_that_takes_what_has_arrived_leaves_no_loop_asleep():
    """Another thread may call between a step that finds nothing to do and the sleep behind it."""
    core = make()
    woken = sleeps(core)
    wait, crossed = core.inbox.wait, []

    def crossing(timeout):
        if not crossed:
            crossed.append(True)
            core.add([ask(0)])
            core.call("stats")
        wait(timeout)

    core.inbox.wait = crossing
    assert core.poll(PATIENCE)[0].answers
    assert False not in woken
    finish(core)


def test_calls_from_another_thread_while_the_loop_runs():
    core = make({"latency": 0.005})
    core.add([ask(handle, out=40) for handle in range(4)])
    answers: list = []

    def call():
        answers.append(core.call("stats"))
        answers.append(core.call("echo", 5))

    thread = threading.Thread(target=call)
    told: dict[int, Told] = {}
    steps(core, 5, told)
    thread.start()
    finish(core, told)
    thread.join(PATIENCE)
    assert answers[0]["running"] <= 4
    assert answers[1] == [5]


def test_pause_and_resume():
    core = make(depth=2)
    core.add([ask(0, out=20)])
    told: dict[int, Told] = {}
    steps(core, 5, told)
    assert core.call("pause") == 1
    steps(core, 5, told)
    assert core.outstanding == 0
    said = len(told[0].tokens)
    steps(core, 5, told)
    assert len(told[0].tokens) == said
    core.call("resume")
    finish(core, told)
    assert told[0].tokens == expected([1, 2, 3], 0, 23)


def test_drain_refuses_the_new_and_ends_the_old():
    core = make()
    core.add([ask(0)])
    told: dict[int, Told] = {}
    steps(core, 2, told)
    assert core.call("drain") == 1
    core.add([ask(1)])
    finish(core, told)
    assert told[0].finish is FinishReason.LENGTH
    assert told[1].refused.status == 503


def test_commands_that_nobody_knows():
    core = make()
    with pytest.raises(ValueError, match=r"known to the worker: echo.*known to the core: health"):
        core.call("nonsense")
    assert core.call("health")["stalled"] is None


def test_a_worker_that_is_gone_ends_the_core():
    core = make()

    def gone(plan):
        raise EngineDead("the device fell off the bus")

    core.worker.on_forward = gone
    core.add([ask(0)])
    with pytest.raises(EngineDead, match="fell off the bus"):
        finish(core)
    with pytest.raises(EngineDead):
        core.add([ask(1)])
    core.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_ctrl_c_in_a_step_leaves_an_engine_that_works(depth):
    core = make(depth=depth)
    core.add([ask(0, out=20)])
    told: dict[int, Told] = {}
    steps(core, 4, told)

    def interrupted(plan):
        core.worker.on_forward = None
        raise KeyboardInterrupt

    core.worker.on_forward = interrupted
    with pytest.raises(KeyboardInterrupt):
        steps(core, 10, told)
    core.add([ask(1)])
    finish(core, told)
    assert told[0].finish is FinishReason.ERROR
    assert told[1].tokens == expected([2, 2, 3], 1, 8)


def test_a_late_step_ends_the_core_at_last():
    core = make({"latency": 60.0}, step_timeout=0.02)
    core.add([ask(0)])
    with pytest.raises(EngineDead, match="did not end within"):
        finish(core)


def test_a_device_that_is_gone_for_a_command_ends_the_core():
    core = make({"latency": 60.0}, step_timeout=0.02)
    core.add([ask(0)])
    assert core.poll()[0].answers
    with pytest.raises(EngineDead, match="did not end within"):
        core.call("sleep", 1)
    with pytest.raises(EngineDead, match="did not end within"):
        core.poll()


def test_close_twice_and_then_nothing():
    core = make({"latency": 0.01}, depth=2)
    core.add([ask(0)])
    core.poll()
    worker = core.worker
    core.close()
    core.close()
    assert worker.closed
    held = weakref.ref(worker)
    del worker
    assert held() is None, "a closed engine keeps its weights"
    with pytest.raises(EngineDead, match="closed"):
        core.poll()


def test_boot_says_what_would_fit():
    with pytest.raises(OutOfMemory, match=r"(?s)weights.*KV cache, needed.*--max-model-len 60"):
        make(memory=4 * 4 * 16)
    core = EngineCore(fake_config(memory=4 * 4 * 16, page=4, max_num_batched_tokens=16))
    assert core.start().max_model_len == 60  # not asked for: cut to what fits
    with pytest.raises(ConfigError, match="scheduling-policy"):
        make(policy="lifo")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        EngineCore(replace(fake_config(), worker="octavo.testing.fakes:NoWorker")).start()


def test_plans_hold_wire_types():
    core = make()
    plans = recorded(core)
    core.add([ask(0), ask(1, list(range(20)))])
    finish(core)
    for plan in plans:
        for name in (
            "rows",
            "epochs",
            "computed",
            "takes",
            "known",
            "drafts",
            "draft_tokens",
            "chunk",
            "freed",
            "killed",
            "masked",
        ):
            column = getattr(plan, name)
            assert column.dtype == np.int32
            assert column.ndim == 1
        assert plan.samples.dtype == np.bool_
