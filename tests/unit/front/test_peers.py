"""Processes among themselves: what one forwards another answers, and one that hangs or dies is told, not waited for."""

import asyncio
import contextlib
import tempfile

import pytest
from starlette.responses import Response

from octavo.errors import RequestFailed
from octavo.front.server import peers
from octavo.front.server.peers import Forward, Peers
from octavo.testing.served import PATIENCE

NAME = "resp_01" + 32 * "0"


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as found:  # of a short name, since it is for sockets
        yield found


async def echo(scope, receive, send):
    """Answers with the path and the body."""
    await Response(scope["path"].encode() + b" " + (await receive())["body"])(scope, receive, send)


async def here(scope, receive, send):
    """Who is asked itself."""
    await Response(b"here")(scope, receive, send)


def ask(app, path, *parts):
    """The messages of the answer; the body comes in ``parts``."""
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"root_path": "", "scheme": "http", "http_version": "1.1", "client": None, "server": None, "headers": []}
    unread = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    unread.append({"type": "http.request", "body": b"", "more_body": False})
    told = []

    async def receive():
        return unread.pop(0) if unread else await asyncio.Event().wait()

    async def send(message):
        told.append(message)

    async def asked():
        async with asyncio.timeout(PATIENCE):
            await app(scope | {"state": {"request_id": "one"}}, receive, send)
        return told

    return asked()


def said(messages):
    return messages[0]["status"], b"".join(message.get("body", b"") for message in messages)


@contextlib.asynccontextmanager
async def two(folder, **words):
    """Process 0, and process 1 which answers with ``echo``."""
    one, other = Peers(folder, 0, 2), Peers(folder, 1, 2)
    other.words |= words
    await other.open(echo)
    try:
        yield one
    finally:
        other.close()


@pytest.mark.parametrize(
    ("root", "path", "forwarded"),
    [
        ("", f"/v1/responses/{NAME}", True),
        ("/in/front", f"/v1/responses/{NAME}", True),
        ("/in/front", f"/in/front/v1/responses/{NAME}/cancel", True),
        ("/in/front", f"/in/front/in/front/v1/responses/{NAME}", False),
        ("/in/front", f"/in/front/v1/responses/{NAME}/more", False),
        ("", f"/in/front/v1/responses/{NAME}", False),
    ],
)
def test_whoever_has_the_router_behind_it_forwards_the_same_paths(folder, root, path, forwarded):
    async def main():
        async with two(folder) as one:
            return said(await ask(Forward(here, one, frozenset(), root), path, b"a", b"", b"bc"))

    assert asyncio.run(main()) == (200, f"{path} abc".encode() if forwarded else b"here")


def test_steering_is_found_behind_the_root_path_too(folder):
    async def main():
        one, other = Peers(folder, 0, 2), Peers(folder, 1, 2)
        await one.open(echo)
        try:
            return [
                said(await ask(Forward(here, other, frozenset({"/pause"}), "/x"), path))
                for path in ("/pause", "/x/pause")
            ]
        finally:
            one.close()

    assert asyncio.run(main()) == [(200, b"/pause "), (200, b"/x/pause ")]


def test_a_process_that_hangs_is_told(folder, monkeypatch):
    monkeypatch.setattr(peers, "PATIENCE", 0.05)

    async def main():
        one = Peers(folder, 0, 2)
        left = asyncio.Event()

        async def hang(reader, writer):
            await left.wait()
            writer.close()

        async with await asyncio.start_unix_server(hang, f"{folder}/api-1"):
            try:
                with pytest.raises(RequestFailed, match="API process 2 did not answer in time"):
                    await one.ask_all("load", timeout=PATIENCE)
                return said(await ask(Forward(here, one, frozenset()), f"/v1/responses/{NAME}"))
            finally:
                left.set()

    status, body = asyncio.run(main())
    assert status == 503
    assert b"API process 2, which keeps this, does not answer" in body


def test_an_answer_that_takes_long_is_waited_for(folder):
    async def main():
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow():
            begun.set()
            await go.wait()
            return 7

        async with two(folder, slow=slow) as one:
            asked = asyncio.ensure_future(one.ask_all("slow", timeout=PATIENCE))
            await begun.wait()
            go.set()
            return await asked

    assert asyncio.run(main()) == [7]


def test_an_answer_whose_process_dies_is_not_made_whole(folder, caplog):
    async def main():
        one = Peers(folder, 0, 2)

        async def die(reader, writer):
            await peers._read(reader)
            await peers._write(writer, None)
            await peers._write(writer, {"type": "http.response.start", "status": 200, "headers": []})
            await peers._write(writer, {"type": "http.response.body", "body": b"some", "more_body": True})
            writer.close()

        async with await asyncio.start_unix_server(die, f"{folder}/api-1"):
            return await ask(Forward(here, one, frozenset()), f"/v1/responses/{NAME}")

    messages = asyncio.run(main())
    assert said(messages) == (200, b"some")
    assert messages[-1]["more_body"] is True
    assert [record.message for record in caplog.records] == ["API process 2 was lost in the middle of an answer"]


def test_a_process_that_is_not_there_is_told(folder):
    async def main():
        one = Peers(folder, 0, 2)
        assert await one.ask_all("load") == []
        return said(await ask(Forward(here, one, frozenset()), f"/v1/responses/{NAME}"))

    status, body = asyncio.run(main())
    assert status == 503
    assert b"is not there now; try again" in body
