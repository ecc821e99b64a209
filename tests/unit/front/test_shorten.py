"""The short way of a stream: told within the engine's call or by whoever iterates, nothing is lost, doubled or late."""

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from front.support import small
from front.test_engine import DELTA, House, run
from octavo.errors import EngineDead
from octavo.front.fanout import Desk, Group
from octavo.front.metrics.prometheus import Prometheus
from octavo.front.server.app import build_app
from octavo.front.server.options import Options
from octavo.front.server.protocol import DIRECT
from octavo.front.stream import Stream
from octavo.launch.inprocess import post
from octavo.params import SamplingParams
from octavo.wire.reply import Admitted, FinishReason, RequestDelta, StepReply


class Bench:
    """A request of ``n`` answers at a desk, without an engine; who iterates appends to ``told`` after a while."""

    def __init__(self, n=1):
        self.desk = Desk()
        handles = self.desk.handles(n)
        params = SamplingParams(n=n, output_kind=DELTA)
        self.group = Group("r", None, [5, 6], params, small(), handles, 0.0)
        self.closed = False
        self.stream = Stream(self.group, self._close, self._close, self._close)
        self.desk.open(self.group)
        self.desk.read(StepReply(0, answers=[Admitted(handle) for handle in handles]))
        self.told: list[tuple[int, int, str]] = []
        self.short = 0
        self.ready = True
        self.next = 10

    def _close(self, group):
        self.desk.close(group)
        self.closed = True

    def shorten(self):
        self.stream.shorten(self._tell, lambda: self.ready)

    def _tell(self, output):
        self.short += 1
        self.note(output)

    def note(self, output):
        for choice in output.outputs:
            self.told += [(choice.index, token, choice.text) for token in choice.token_ids]

    async def iterate(self):
        async for output in self.stream:
            await asyncio.sleep(0)  # a client that is behind
            self.note(output)

    def tokens(self, answer, count):
        handle = self.group.handles[answer]
        ids = list(range(self.next, self.next + count))
        self.next += count
        self.desk.read(_reply(handle, ids))
        return [(answer, token) for token in ids]

    def finish(self, answer, reason=FinishReason.LENGTH, error=None):
        delta = RequestDelta(self.group.handles[answer], finish=reason, error=error)
        self.desk.read(StepReply(0, deltas=[delta]))


def _reply(handle, ids):
    ints = [np.asarray(values, np.int32) for values in ([handle], [len(ids)], ids)]
    return StepReply(0, *ints)


STEPS = st.lists(
    st.tuples(st.just("tokens"), st.integers(0, 1), st.integers(1, 3))
    | st.tuples(st.just("ready"), st.booleans(), st.just(0))
    | st.tuples(st.just("turns"), st.integers(1, 4), st.just(0)),
    max_size=30,
)


@given(steps=STEPS)
def test_each_token_is_told_once_and_in_order(steps):
    async def main():
        bench = Bench(n=2)
        job = asyncio.ensure_future(bench.iterate())
        bench.shorten()
        said = []
        for what, value, count in steps:
            if what == "tokens":
                said += bench.tokens(value, count)
            elif what == "ready":
                bench.ready = value
            else:
                for _ in range(value):
                    await asyncio.sleep(0)
        for answer in (0, 1):
            bench.finish(answer)
        await job
        for answer in (0, 1):
            expected = [token for index, token in said if index == answer]
            assert [token for index, token, _ in bench.told if index == answer] == expected
        assert bench.closed

    run(main())


def test_who_waits_is_passed_by_and_who_does_not_is_not():
    async def main():
        bench = Bench()
        job = asyncio.ensure_future(bench.iterate())
        bench.shorten()
        bench.tokens(0, 1)
        assert bench.short == 0, "nobody waits yet"
        for _ in range(4):
            await asyncio.sleep(0)
        bench.tokens(0, 1)
        assert (bench.short, len(bench.told)) == (1, 2), "told within the call"
        bench.ready = False
        bench.tokens(0, 1)
        bench.ready = True
        bench.tokens(0, 1)
        assert (bench.short, len(bench.told)) == (1, 2), "what waits for the iteration is not overtaken"
        for _ in range(4):
            await asyncio.sleep(0)
        bench.tokens(0, 1)
        assert (bench.short, len(bench.told)) == (2, 5)
        bench.finish(0)
        await job
        assert [token for _, token, _ in bench.told] == [10, 11, 12, 13, 14]

    run(main())


def test_replies_that_come_together_make_one_piece():
    async def main():
        bench = Bench()
        job = asyncio.ensure_future(bench.iterate())
        bench.shorten()
        for _ in range(2):
            await asyncio.sleep(0)
        bench.desk.read(*(_reply(bench.group.handles[0], [token]) for token in (10, 11, 12)))
        assert (bench.short, [token for _, token, _ in bench.told]) == (1, [10, 11, 12])
        bench.finish(0)
        await job

    run(main())


@pytest.mark.parametrize("how", ["raises", "fails", "dies", "leaves", "aborted"])
def test_ends(how):
    async def main():
        bench = Bench()
        job = asyncio.ensure_future(bench.iterate())
        bench.shorten()
        for _ in range(2):
            await asyncio.sleep(0)
        bench.tokens(0, 1)
        assert bench.short == 1
        if how == "raises":
            bench.stream.shorten(lambda output: 1 / 0, lambda: True)
            bench.tokens(0, 1)
        elif how == "fails":
            bench.finish(0, FinishReason.ERROR, "it broke")
        elif how == "dies":
            bench.desk.fail_all(EngineDead("gone"))
        elif how == "leaves":
            job.cancel()
        else:
            bench.stream.abort()
        found = (await asyncio.gather(job, return_exceptions=True))[0]
        kinds = {
            "raises": "ZeroDivisionError",
            "fails": "RequestFailed",
            "dies": "EngineDead",
            "leaves": "CancelledError",
        }
        assert type(found).__name__ == kinds.get(how, "NoneType")
        assert bench.closed
        assert not len(bench.desk)
        bench.tokens(0, 1)  # crossed the end

    run(main())


# -- over an engine, by every route that has it --

CHAT = "/v1/chat/completions"
ROUTES = [
    ("/v1/completions", {"prompt": [[5, 6], [7, 8, 9]], "n": 2}),
    ("/v1/completions", {"prompt": [5, 6], "logprobs": 2, "echo": True, "return_token_ids": True}),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "n": 3}),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "return_token_ids": True}),
]


def _folded(body):
    """What chunks say together: text, tokens and end of each choice, and the last usage."""
    assert body.endswith(b"data: [DONE]\n\n")
    choices, usage = {}, None
    for line in body.split(b"\n\n")[:-2]:
        chunk = json.loads(line.removeprefix(b"data: "))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text, ids, ends = choices.setdefault(choice["index"], ([], [], []))
            text.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
            ids += choice.get("token_ids") or ()
            ends += [reason] if (reason := choice.get("finish_reason")) else []
    usage.pop("prompt_tokens_details")  # the prompt is in the cache the second time
    return {index: ("".join(text), ids, ends) for index, (text, ids, ends) in choices.items()}, usage


@pytest.mark.parametrize(("path", "more"), ROUTES)
@pytest.mark.parametrize("ready", [(True,), (False,), (True, False, True, True, False)])
def test_every_route_says_the_same(path, more, ready):
    async def main():
        async with House() as house:
            app, _ = build_app(house.engine, Options(), Prometheus("m", 64, {}))
            body = {"max_tokens": 12, "seed": 3, "temperature": 1.0, "ignore_eos": True, "stream": True} | more
            body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
            pieces: list[bytes] = []
            asked = 0

            async def offering(scope, receive, send):
                def write(data):
                    nonlocal asked
                    asked += not data
                    if not ready[asked % len(ready)]:
                        return False
                    pieces.append(data)
                    return True

                async def noting(message):
                    pieces.append(message.get("body", b""))
                    await send(message)

                scope["extensions"] = {DIRECT: {"write": write}}
                await app(scope, receive, noting)

            plain = await post(app, path, json.dumps(body).encode())
            assert (await post(offering, path, json.dumps(body).encode())).status == plain.status == 200
            assert _folded(b"".join(pieces)) == _folded(plain.body)
            await house.idle()

    run(main())


@pytest.mark.parametrize(("path", "more"), ROUTES)
def test_a_client_that_leaves_aborts_its_request(path, more):
    async def main():
        async with House() as house:
            app, _ = build_app(house.engine, Options(), Prometheus("m", 64, {}))
            begun = asyncio.Event()

            async def offering(scope, receive, send):
                def write(data):
                    begun.set()
                    return True

                scope["extensions"] = {DIRECT: {"write": write}}
                await app(scope, receive, send)

            body = {"max_tokens": 40, "seed": 3, "ignore_eos": True, "stream": True} | more
            job = asyncio.ensure_future(post(offering, path, json.dumps(body).encode()))
            await begun.wait()
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            await house.idle()
            assert house.engine.open_requests == 0

    run(main())
