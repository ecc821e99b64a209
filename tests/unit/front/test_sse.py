"""Streams of events over real connections: what a client gets is the same whichever way its bytes take, and however
it reads; who does not read, or leaves, is left behind."""

import asyncio
import contextlib
import gc
import ssl
import weakref

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response
from uvicorn.server import ServerState

from octavo.errors import EngineDead, Overloaded
from octavo.front.server import protocol
from octavo.front.server.sse import DONE, EventStream
from octavo.testing.certificates import Papers

WITHIN = 30.0
#: Bytes of a piece of which a few hundred are more than the buffers between two sockets hold.
PIECE = 32 << 10


class Told:
    """An application that answers every request with ``pieces``. ``messages``: what went the long way."""

    def __init__(self, pieces, direct=True, end=DONE):
        self.pieces, self.direct, self.end = pieces, direct, end
        self.messages: list[dict] = []
        self.told = 0
        self.closed = asyncio.Event()
        self.left = asyncio.Event()

    async def frames(self):
        try:
            for piece in self.pieces:
                await asyncio.sleep(0)
                if isinstance(piece, Exception):
                    raise piece
                self.told += len(piece)
                yield piece
        finally:
            self.left.set()

    async def __call__(self, scope, receive, send):
        if not self.direct:
            scope.pop("extensions", None)
        while (await receive()).get("more_body"):
            pass

        async def noted(message):
            self.messages.append(message)
            await send(message)

        await EventStream(self.frames(), self.closed.set, self.end)(scope, receive, noted)


@contextlib.asynccontextmanager
async def served(app, http=None, tls=None):
    """The port at which ``app`` is served."""
    config = uvicorn.Config(app, http=http or protocol.best(), ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0, ssl=tls
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


def head(method="POST", version="1.1", **headers):
    lines = [f"{method} / HTTP/{version}", "Host: x", "Content-Length: 2"]
    return "\r\n".join((*lines, *(f"{name}: {value}" for name, value in headers.items()), "", "{}")).encode()


async def answer(reader, body=True):
    """(head, the chunks of the body) of one answer."""
    start = await reader.readuntil(b"\r\n\r\n")
    chunks: list[bytes] = []
    while body:
        size = int(await reader.readline(), 16)
        chunks.append((await reader.readexactly(size + 2))[:-2])
        if not size:
            break
    return start, chunks[:-1]


def run(work):
    asyncio.run(asyncio.wait_for(work, WITHIN))


async def said(app, http=None, tls=None, requests=2):
    """Answers to ``requests``, one after another on one connection."""
    context = None if tls is None else tls.client()
    server = None
    if tls is not None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(tls.cert, tls.key)
    async with served(app, http, server) as port:
        host = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        found = []
        for _ in range(requests):
            writer.write(head())
            found.append(await answer(reader))
        writer.close()
    return found


PIECES = st.lists(st.binary(max_size=64) | st.integers(0, 3 * PIECE).map(bytes), max_size=12)


@given(pieces=PIECES, end=st.sampled_from((b"", DONE)), broken=st.booleans())
def test_every_way_tells_the_same(pieces, end, broken):
    if broken:
        pieces = [*pieces, EngineDead("it fell over"), b"never told"]

    async def work():
        direct, sent, plain = Told(pieces, end=end), Told(pieces, direct=False, end=end), Told(pieces, end=end)
        first = await said(direct)
        assert first == await said(sent), "the bytes on the wire are the same, on a connection that is used again"
        assert [b"".join(chunks) for _, chunks in first] == [
            b"".join(chunks) for _, chunks in await said(plain, protocol.plain())
        ]
        whole = [piece for piece in pieces if isinstance(piece, bytes) and piece != b"never told"]
        for _, chunks in first:
            text = b"".join(chunks)
            assert text.startswith(b"".join(whole))
            assert text.endswith(end)
            assert broken == (b"it fell over" in text)

    run(work())


def test_pieces_pass_the_layers_by():
    async def work():
        for direct in (True, False):
            app = Told([b"%d" % i for i in range(100)], direct)
            ((_, chunks),) = await said(app, requests=1)
            assert chunks == [*app.pieces, DONE]
            # The head, the first piece and the end; the others only where there is no other way.
            assert len(app.messages) == (3 if direct else 102)

    run(work())


def test_an_answer_leaves_nothing_to_the_collector():
    answered = []

    async def work():
        app = Told([b"a", b"b"])

        async def noting(scope, receive, send):
            answered.append(weakref.ref(send.__self__))
            await app(scope, receive, send)

        await said(noting)
        await asyncio.sleep(0)  # the tasks of the last answer end

    gc.collect()
    gc.disable()
    try:
        run(work())
        assert [one() for one in answered] == [None, None]
    finally:
        gc.enable()


def test_over_tls(tmp_path):
    papers = Papers(tmp_path)

    async def work():
        pieces = [bytes([65 + i % 26]) * (i * 997 % PIECE) for i in range(60)]
        found = await said(Told(pieces), tls=papers)
        assert found == await said(Told(pieces, direct=False), tls=papers)
        assert [b"".join(chunks) for _, chunks in found] == [b"".join(pieces) + DONE] * 2

    run(work())


@pytest.mark.parametrize("method", ["POST", "HEAD"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_answers_that_end_the_connection(method, version):
    async def told(direct):
        async with served(Told([b"one", b"", b"three" * 9999], direct)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(method, version, Connection="close"))
            found = await reader.read()
            writer.close()
            return found

    async def work():
        found = await told(True)
        assert found.startswith(b"HTTP/1.1 200 ")
        assert found.endswith(b"\r\n\r\n")
        assert found == await told(False)

    run(work())


def test_pipelined_requests_are_answered_in_order():
    async def work():
        async with served(Told([b"a" * PIECE, b"b"] * 20)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head() * 3)
            found = [await answer(reader) for _ in range(3)]
            assert found[0] == found[1] == found[2]
            writer.close()

    run(work())


def test_a_refusal_before_the_first_piece_is_an_answer():
    async def work():
        app = Told([Overloaded("too much")])
        async with served(app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head())
            start = await reader.readuntil(b"\r\n\r\n")
            assert start.startswith(b"HTTP/1.1 429 ")
            await app.closed.wait()
            writer.close()

    run(work())


class _Endless:
    """Pieces without end."""

    def __iter__(self):
        while True:
            yield b"x" * PIECE


@pytest.mark.parametrize("way", ["direct", "sent"])
def test_who_does_not_read_is_waited_for_and_cut_off(way):
    async def work():
        app = Told(_Endless(), way == "direct")
        async with served(app, protocol.best(write_timeout=0.2)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(head())
            await app.closed.wait()  # nobody reads: the connection is cut, and the work on it ends
            await app.left.wait()
            # What sockets hold between them and the transport's own buffer, not what could be told meanwhile.
            assert app.told < 64 << 20
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await answer(reader)
            writer.close()

    run(work())


@pytest.mark.parametrize("way", ["direct", "sent"])
def test_who_reads_slowly_gets_everything(way):
    async def work():
        app = Told([bytes([i % 251]) * PIECE for i in range(400)], way == "direct")
        async with served(app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(head())
            while app.told < PIECE * 100:  # until the sockets are full, or nearly
                before = app.told
                await asyncio.sleep(0.02)
                if app.told == before:
                    break
            _, chunks = await answer(reader)
            assert b"".join(chunks) == b"".join(app.pieces) + DONE
            writer.close()

    run(work())


@pytest.mark.parametrize("way", ["direct", "sent"])
def test_who_leaves_ends_the_work(way):
    async def work():
        app = Told(_Endless(), way == "direct")
        async with served(app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head())
            await reader.readexactly(10 * PIECE)
            writer.transport.abort()
            await app.closed.wait()
            await app.left.wait()

    run(work())


def test_an_application_without_a_connection():
    async def work():
        sent: list[bytes] = []

        async def send(message):
            sent.append(message.get("body", b""))

        async def receive():
            await asyncio.Event().wait()

        app = Told([b"a", b"b"])
        await EventStream(app.frames(), app.closed.set)({"type": "http", "path": "/"}, receive, send)
        assert b"".join(sent) == b"ab" + DONE
        assert app.closed.is_set()
        assert isinstance(EventStream(app.frames(), app.closed.set), Response)

    run(work())
