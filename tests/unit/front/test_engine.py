"""AsyncEngine over a real core and a fake worker: many at once, slow consumers, early ends, and a core that dies."""

import asyncio
import select
import threading
import time

import pytest

from front.support import VOCAB, config, small
from octavo.config.engine import EngineConfig
from octavo.core.engine.core import EngineCore
from octavo.errors import BadRequest, EngineDead, RequestFailed
from octavo.front.chat.template import ChatTemplate
from octavo.front.client.thread import ThreadClient
from octavo.front.collect import Answer
from octavo.front.engine import AsyncEngine, Observer
from octavo.params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from octavo.testing.fakes import FakeOptions, FakeWorker, expected
from octavo.testing.served import PATIENCE
from octavo.wire.reply import AbortReason, StepReply

DELTA = RequestOutputKind.DELTA
WAIT = PATIENCE


class House:
    """An engine with a core in a thread, closed at the end."""

    def __init__(self, settings: EngineConfig | None = None, **options):
        self.config = settings or config()
        self.worker = FakeWorker(self.config, FakeOptions(vocab=VOCAB, **options))
        self.core = EngineCore(self.config, self.worker)
        ready = self.core.start()
        self.engine = AsyncEngine(self.core, self.config, small(), ChatTemplate.of(small()), ready)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.engine.close()

    def hold(self, after: int) -> threading.Event:
        """The device hangs behind so many steps, until the event is set."""
        free = threading.Event()
        self.worker.on_forward = lambda plan: self.worker.plans <= after or free.wait(WAIT)
        return free

    async def together(self, prompts, params):
        """Streams of requests of which none has begun before all are open: the core is paused, ``resume`` it."""
        await self.engine.call("pause")
        params = params if isinstance(params, list) else [params] * len(prompts)
        return [await self.engine.submit(prompt, one) for prompt, one in zip(prompts, params, strict=True)]

    async def idle(self):
        """Wait until the core has no request; its pages are then all free."""
        until = time.monotonic() + WAIT
        while (stats := await self.engine.call("stats"))["running"] or stats["waiting"]:
            assert time.monotonic() < until
            await asyncio.sleep(0.005)
        assert stats["pages_free"] == stats["pages"]


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, WAIT))


def right(prompt, seed, max_tokens):
    return expected(prompt, seed, len(prompt) + max_tokens, VOCAB, stops=(1,))


def test_many_at_once_each_as_alone():
    async def main():
        async with House() as house:

            async def one(i):
                params = SamplingParams(max_tokens=3 + i % 7, seed=i, output_kind=DELTA)
                ids, text = [], ""
                async for output in await house.engine.submit([5 + i, 6], params):
                    ids += output.outputs[0].token_ids
                    text += output.outputs[0].text
                assert ids == right([5 + i, 6], i, 3 + i % 7)
                kept = ids[:-1] if output.outputs[0].finish_reason == "stop" else ids
                assert text == small().decode(kept)
                assert output.finished

            await asyncio.gather(*(one(i) for i in range(100)))
            await house.idle()

    run(main())


def test_a_slow_consumer_gets_fewer_and_longer_deltas():
    async def main():
        async with House() as house:
            params = SamplingParams(max_tokens=40, seed=1, output_kind=DELTA, ignore_eos=True)
            stream = await house.engine.submit([5, 6], params)
            await house.idle()
            outputs = [output async for output in stream]
            assert len(outputs) == 1
            assert outputs[0].outputs[0].token_ids == expected([5, 6], 1, 42, VOCAB)

    run(main())


def test_several_answers_of_one_prompt():
    async def main():
        async with House() as house:
            stream = await house.engine.submit([5, 6], SamplingParams(n=3, seed=9, max_tokens=5))
            output = await stream.final()
            assert [answer.token_ids for answer in output.outputs] == [right([5, 6], 9 + i, 5) for i in range(3)]

    run(main())


@pytest.mark.parametrize("how", ["break", "abort", "cancel", "drop"])
def test_leaving_early_frees_everything(how):
    async def main():
        async with House() as house:
            params = SamplingParams(max_tokens=60, ignore_eos=True, output_kind=DELTA, seed=0)
            free, begun = house.hold(3), asyncio.Event()

            async def consume():
                stream = await house.engine.submit([5, 6], params)
                if how == "drop":
                    return None
                last = None
                async for output in stream:
                    last = output
                    begun.set()
                    if how == "break":
                        break
                    if how == "abort":
                        stream.abort()
                        free.set()
                return last

            task = asyncio.create_task(consume())
            if how == "cancel":
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                last = await task
                if how == "abort":
                    assert last.outputs[0].finish_reason == "abort"
            free.set()
            await house.idle()
            assert house.engine.open_requests == 0

    run(main())


def test_refusals_come_from_submit():
    async def main():
        async with House() as house:
            for prompt, params in (("", None), ([VOCAB], None), ("a", SamplingParams(max_tokens=10**6))):
                with pytest.raises(BadRequest):
                    await house.engine.submit(prompt, params)
            with pytest.raises(BadRequest, match="no chat template"):
                ChatTemplate({}, {}).render([{"role": "user", "content": "a"}])
            await house.engine.call("drain")
            with pytest.raises(EngineDead, match="shutting down"):
                await house.engine.submit("a")
            assert (house.engine.open_requests, house.engine.dead) == (0, None)

    run(main())


def test_one_that_fails_raises_and_others_go_on():
    async def main():
        async with House() as house:
            house.worker.row_faults = lambda plan: {0: "NaN"} if len(plan.rows) and house.worker.plans > 3 else {}
            with pytest.raises(RequestFailed, match="NaN"):
                await (await house.engine.submit([5], SamplingParams(max_tokens=30, ignore_eos=True))).final()
            house.worker.row_faults = None
            output = await (await house.engine.submit([6], SamplingParams(max_tokens=3, seed=2))).final()
            assert output.outputs[0].token_ids == right([6], 2, 3)

    run(main())


def test_an_answer_that_cannot_be_read_fails_alone(monkeypatch):
    read = Answer.push

    def push(answer, ids, deltas=()):
        if answer.count >= 2 and answer in broken:
            raise IndexError("a decoder that is wrong")
        return read(answer, ids, deltas)

    async def main():
        async with House() as house:
            params = [SamplingParams(max_tokens=20, seed=i, ignore_eos=True) for i in range(3)]
            streams = await house.together([[9]] * 3, params)
            broken.append(streams[1]._group.answers[0])
            await house.engine.call("resume")
            ends = await asyncio.gather(*(stream.final() for stream in streams), return_exceptions=True)
            assert isinstance(ends[1], RequestFailed)
            assert [len(end.outputs[0].token_ids) for end in (ends[0], ends[2])] == [20, 20]
            await house.idle()

    broken: list[Answer] = []
    monkeypatch.setattr(Answer, "push", push)
    run(main())


def test_a_core_that_dies_is_told_to_everybody():
    async def main():
        async with House() as house:
            reasons = []
            house.engine.on_dead(reasons.append)
            streams = await house.together([[5], [6], [7]], SamplingParams(max_tokens=60, ignore_eos=True))

            def broken(*_):
                raise RuntimeError("bits flipped")

            house.core.scheduler.update = broken
            await house.engine.call("resume")
            for stream in streams:
                with pytest.raises(EngineDead, match="bits flipped"):
                    await stream.final()
            assert len(reasons) == 1
            assert "bits flipped" in house.engine.dead
            with pytest.raises(EngineDead):
                await house.engine.submit("a")
            with pytest.raises(EngineDead):
                await house.engine.call("stats")

    run(main())


def test_a_core_that_dies_with_its_last_words_is_told_after_them():
    """Both may be there when the loop looks for the first time; it must come again."""

    class Dying:
        replies = [StepReply(0)]

        def poll(self, timeout):
            if not self.replies:
                raise EngineDead("gone")
            return [self.replies.pop()]

        def abort(self, handles, reason):
            pass

        def close(self, deadline):
            pass

    client = ThreadClient(Dying())
    client._thread.join(WAIT)
    assert len(client.poll()) == 1
    assert select.select([client.fd], [], [], 0)[0], "the file descriptor slept over the end"
    with pytest.raises(EngineDead, match="gone"):
        client.poll()
    client.close()


def test_a_deadline_ends_a_request():
    async def main():
        async with House(latency=0.01) as house:
            params = SamplingParams(max_tokens=60, ignore_eos=True)
            stream = await house.engine.submit([5], params, deadline=time.monotonic() + 0.05)
            assert (await stream.final()).outputs[0].finish_reason == "abort"
            await house.idle()

    run(main())


def test_drain_waits_for_what_is_open():
    async def main():
        async with House() as house:
            assert await house.engine.drain(0.0)
            await house.together([[5]], SamplingParams(max_tokens=20, ignore_eos=True))
            assert not await house.engine.drain(0.0)
            await house.engine.call("resume")
            assert await house.engine.drain(WAIT)

    run(main())


def test_a_stop_string_ends_the_core_too():
    async def main():
        async with House(latency=0.002) as house:
            whole = expected([5, 6], 3, 62, VOCAB)
            text = small().decode(whole)
            stop = next(text[i : i + 2] for i in range(8, len(text)) if "\ufffd" not in text[i : i + 2])
            params = SamplingParams(max_tokens=60, ignore_eos=True, seed=3, stop=stop)
            output = await (await house.engine.submit([5, 6], params)).final()
            assert output.outputs[0].text == text[: text.index(stop)]
            assert output.outputs[0].stop_reason == stop
            await house.idle()

    run(main())


def test_chat_and_long_texts():
    async def main():
        async with House() as house:
            ids = house.engine.render_chat([{"role": "user", "content": "hi"}])
            assert small().decode(ids, False) == "<|turn|>user\nhi<|turn_end|>\n<|turn|>assistant\n"
            prompt = await house.engine.prepare("ab " * 20_000, truncate=4)
            assert len(prompt.ids) == 4

    run(main())


def test_statistics_and_close():
    async def main():
        house = House()
        seen = []
        house.engine.on_stats(seen.append)
        await (await house.engine.submit([5], SamplingParams(max_tokens=5, ignore_eos=True))).final()
        assert sum(stats.generation_tokens for stats in seen) == 5
        (stream,) = await house.together([[5]], SamplingParams(max_tokens=60, ignore_eos=True))
        house.engine.close()
        house.engine.close()
        with pytest.raises(EngineDead, match="closed"):
            await stream.final()
        house.core.abort((), AbortReason.CLIENT)

    run(main())


@pytest.mark.parametrize("where", ["poll", "stats"])
def test_whoever_raises_where_replies_are_read_leaves_nobody_waiting(where):
    def broken(*_):
        raise ZeroDivisionError("on fire")

    async def main():
        async with House() as house:
            streams = await house.together([[5], [6], [7]], SamplingParams(max_tokens=30, ignore_eos=True))
            if where == "stats":
                house.engine.on_stats(broken)
            else:
                house.engine._core.poll = broken
            await house.engine.call("resume")
            ends = await asyncio.gather(*(stream.final() for stream in streams), return_exceptions=True)
            if where == "stats":
                assert [len(end.outputs[0].token_ids) for end in ends] == [30] * 3
            else:
                assert all(isinstance(end, EngineDead) for end in ends)
                assert "on fire" in house.engine.dead

    run(main())


@pytest.mark.parametrize("error", [EngineDead("gone"), asyncio.CancelledError()])
def test_a_request_that_ends_before_it_is_open_is_counted_once(error):
    """The first grammar waits for the vocabulary to be taught; what ends it there ends a request that was received."""
    told = []

    class Counts(Observer):
        def received(self):
            told.append("received")

        def ended(self, outcome):
            told.append(outcome)

    async def main():
        async with House() as house:

            async def teach():
                raise error

            house.engine.observe(Counts())
            house.engine.teach = teach
            params = SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(json_object=True))
            with pytest.raises(type(error)):
                await house.engine.submit([5], params)
            assert told == ["received", "failed" if isinstance(error, EngineDead) else "aborted"]
            assert house.engine.open_requests == 0

    run(main())
