"""What a body may hold, and how long a connection may be silent."""

import asyncio
import json
import socket

import pytest

from octavo.errors import BadRequest
from octavo.front.server import protocol
from octavo.front.server.routing import MAX_CONTAINERS, MAX_DEPTH, MAX_STRINGS, MAX_VALUES, check_structure, read_json


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * MAX_CONTAINERS + b"[]]",
        b'{"a":' * (MAX_CONTAINERS + 1) + b"1" + b"}" * (MAX_CONTAINERS + 1),
        b"[" + b'"",' * (MAX_STRINGS + 1) + b'""]',
        b"[" + b"1," * (MAX_VALUES + 1) + b"1]",
        b'["' + b'\\"' * 1000 + b'",' + b"[]," * MAX_CONTAINERS + b"[]]",
    ],
)
def test_too_many_values(body):
    with pytest.raises(BadRequest, match="too many values"):
        check_structure(body)


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, "{" * 200_000, '"' * 600_000, "\\" * 7, '\\"[' * 200_000, "," * 4_100_000, "\\\\[" * 101_000],
)
def test_what_stands_in_strings_is_no_structure(text):
    check_structure(json.dumps({"prompt": text, "stop": ['"', "\\"]}).encode())


def test_a_long_prompt_of_ids_passes():
    check_structure(json.dumps({"prompt": [49151] * 1_000_000}).encode())


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('[0,{"b":[],"a":', "}]")])
def test_depth_is_bounded(opened, closed):
    step = sum(map(opened.count, "[{")) - opened.count("[]")
    for depth in (MAX_DEPTH // step - 1, MAX_DEPTH // step + 1, 900, 100_000):
        text = (opened * depth + "1" + closed * depth).encode()
        if depth * step < MAX_DEPTH:
            assert read_json(text)
        else:
            with pytest.raises(BadRequest, match=r"too deeply|too many values"):
                read_json(text)


async def _open(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return reader, writer


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"", b""),
        (b"GET /heal", b"HTTP/1.1 400 "),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\r\n", b"HTTP/1.1 200 "),
    ],
)
@pytest.mark.parametrize("make", [protocol.best, protocol.plain])
def test_a_request_that_stays_away(monkeypatch, said, answer, make):
    """Its connection is closed, with a word where it had begun; one that only waits for its answer is left alone."""
    uvicorn = pytest.importorskip("uvicorn")
    # Who says nothing is closed by the timer. Of the others the timer's turn comes when what they said has arrived.
    monkeypatch.setattr(protocol, "PATIENCE", 240.0 if said else 0.2)
    heard, looked = bytearray(), asyncio.Event()

    class Watched(make()):
        def data_received(self, data):
            for at in range(len(data)):  # as it may come
                super().data_received(data[at : at + 1])
            heard.extend(data)
            if len(heard) == len(said):
                monkeypatch.setattr(protocol, "PATIENCE", 0.0)
                self._look()
                monkeypatch.setattr(protocol, "PATIENCE", 240.0)
                looked.set()

    async def app(scope, receive, send):
        while (message := await receive())["type"] == "http.request" and message.get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        await looked.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b""})

    async def run():
        config = uvicorn.Config(app, http=Watched, port=0, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve() if hasattr(server, "_serve") else server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await _open(port)
        writer.write(said)
        found = await asyncio.wait_for(reader.read(), 240)
        writer.close()
        server.should_exit = True
        await asyncio.wait_for(task, 240)
        return found

    found = asyncio.run(run())
    # h11 says nothing: its connection is only closed.
    assert found.startswith(answer) or (make is protocol.plain and not found and b" 400 " in answer)
    assert bytes(heard) == said


@pytest.mark.parametrize("make", [protocol.best, protocol.plain])
@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_takes_nothing_of_its_answer(reads, make):
    """It is cut off, and no more than a buffer waits for it; one that is only slow is left alone."""
    uvicorn = pytest.importorskip("uvicorn")
    piece, told, sent = b"x" * 65536, [], []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(receive())
        while not gone.done() and len(sent) < 4000:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            sent.append(sum(one.transport.get_write_buffer_size() for one in server.server_state.connections))
            await asyncio.sleep(0)
        told.append(gone.result() if gone.done() else None)
        gone.cancel()

    async def run():
        nonlocal server
        # A look at one who reads is taken by hand, so that it finds what was read since the last one.
        config = uvicorn.Config(app, http=make(240.0 if reads else 0.3), port=0, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve() if hasattr(server, "_serve") else server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        line.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(line, ("127.0.0.1", server.servers[0].sockets[0].getsockname()[1]))
        await loop.sock_sendall(line, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        until = loop.time() + 240
        while reads and len(sent) < 400:
            assert await loop.sock_recv(line, 1 << 20)
            await asyncio.sleep(0.002)
            for one in server.server_state.connections:
                if one._writer is not None and one.transport.get_write_buffer_size() < one._unsent:
                    one._writer.cancel()
                    one._look_at_writing()
        while not reads and not told and loop.time() < until:
            await asyncio.sleep(0.02)
        found = list(told)
        line.close()
        server.should_exit = True
        await asyncio.wait_for(task, 240)
        return found

    server = None
    found = asyncio.run(run())
    assert found == ([] if reads else [{"type": "http.disconnect"}])
    assert max(sent) <= 65536 + 2 * len(piece)
