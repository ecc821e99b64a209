"""The parent of several API processes: connections that had to wait, deaths that do not stop, an engine that ends."""

import asyncio
import os
import socket
from types import SimpleNamespace

import pytest

from octavo.errors import ConfigError, EngineDead
from octavo.launch import several
from octavo.launch.several import ENDS, WITHIN, Ends, Several

#: Seconds for what must come at last.
PATIENCE = 120.0
#: More connections than are handed on at once, twice over.
MANY = 3 * several._AT_ONCE


class FakeAPI:
    """Takes connections while it is ``free``."""

    def __init__(self, serves=True):
        self.number, self.name, self.serves, self.free, self.deaf = 0, "api 1", serves, True, False
        self.taken, self.word = [], None
        self.line, self.other = socket.socketpair()
        self.ended, self.end = os.pipe()
        self.child = SimpleNamespace(
            pid=1, fd=self.ended, end_text=lambda: "ended", terminate=lambda: None, kill=lambda: None
        )

    def take(self, connection):
        if self.free:
            self.taken.append(connection.getpeername())
        return self.free

    def hear(self):
        return None

    def close(self):
        pass


class FakeClient:
    """Of an engine that has died, as soon as somebody reads."""

    client = 0

    def __init__(self):
        self.fd, self._end = os.pipe()

    def die(self):
        os.write(self._end, b"x")

    def poll(self, timeout):
        raise EngineDead("it ended")


@pytest.fixture
def parent():
    said = []
    args = SimpleNamespace(shutdown_timeout=None)
    announced = SimpleNamespace(url="http://here", say=lambda: said.append(True))
    listener = socket.create_server(("127.0.0.1", 0), backlog=MANY)
    found = Several(args, None, None, listener, FakeClient(), announced, 1)
    found.metrics = SimpleNamespace(bury=lambda strip: None)
    found.said = said
    yield found
    listener.close()


def sockets():
    """Two with the same address, of which only one can listen."""
    made = [socket.socket() for _ in range(2)]
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made[0].bind(("127.0.0.1", 0))
    made[1].bind(made[0].getsockname())
    return made


async def until(check):
    async with asyncio.timeout(PATIENCE):
        while not check():
            await asyncio.sleep(0.01)


def test_all_that_waited_are_handed_on_when_somebody_takes_them_again(parent):
    async def run():
        api = parent._apis[0] = FakeAPI()
        parent._listen()
        api.free = False
        address = parent.listener.getsockname()
        clients = [socket.create_connection(address)]
        await until(lambda: parent._held is not None)  # nobody takes it: the rest waits in the kernel
        clients += [socket.create_connection(address) for _ in range(MANY - 1)]
        api.free = True
        await until(lambda: len(api.taken) == MANY)
        clients.append(socket.create_connection(address))
        await until(lambda: len(api.taken) == MANY + 1)
        assert sorted(api.taken) == sorted(client.getsockname() for client in clients)
        for client in clients:
            client.close()
        asyncio.get_running_loop().remove_reader(parent.listener)

    asyncio.run(run())


def test_an_engine_that_ends_before_all_serve_ends_the_server(parent):
    async def run():
        api = parent._apis[0] = FakeAPI(serves=False)
        serving = asyncio.ensure_future(parent.serve())
        await asyncio.sleep(0)
        parent.client.die()
        await until(lambda: parent._gone)
        os.write(api.end, b"x")
        async with asyncio.timeout(PATIENCE):
            assert await serving == 1
        assert not parent.said, "it never served"

    asyncio.run(run())


def test_who_cannot_listen_says_so_and_nothing_else(parent):
    async def run():
        api = parent._apis[0] = FakeAPI(serves=False)
        other, parent.listener = sockets()
        other.listen()
        serving = asyncio.ensure_future(parent.serve())
        await asyncio.sleep(0)
        parent._serves(api)
        await until(lambda: parent._ending)
        os.write(api.end, b"x")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ConfigError, match="cannot listen on http://here"):
                await serving
        assert not parent.said
        other.close()

    asyncio.run(run())


def test_a_process_that_ends_again_and_again_ends_the_server(parent, monkeypatch):
    begun = []

    def start(number):
        begun.append(number)
        parent._apis[number] = FakeAPI()

    monkeypatch.setattr(parent, "_start", start)
    monkeypatch.setattr(parent, "_read", lambda: None)
    monkeypatch.setattr(several, "WITHIN", float("inf"))

    async def run():
        start(0)
        parent._watch(parent._apis[0])
        serving = asyncio.ensure_future(parent.serve())
        await until(lambda: parent._listening)
        for _ in range(ENDS):
            assert not parent._ending
            parent._ended(parent._apis[0])
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(EngineDead, match=rf"^api 1 .*{ENDS} times within"):
                await serving
        assert len(begun) == ENDS

    asyncio.run(run())


def test_ends_that_are_far_apart_or_of_others_do_not_add_up():
    ends, apart = Ends(), WITHIN / (ENDS - 1)
    assert not any(ends.many(0, number * apart * 1.01) for number in range(10 * ENDS))
    assert not any(ends.many(number, 0.0) for number in range(1, 10 * ENDS))
    assert [Ends().many(0, 0.0) for _ in range(ENDS)] == [False] * ENDS
    ends = Ends()
    assert [ends.many(0, number * apart) for number in range(ENDS)] == [False] * (ENDS - 1) + [True]
