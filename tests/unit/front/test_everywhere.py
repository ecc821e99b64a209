"""What is asked of all processes that serve an engine is asked of all at once."""

import asyncio
from types import SimpleNamespace

from octavo.front.server.control.everywhere import Everywhere

PATIENCE = 120.0


def test_nobody_waits_for_another_to_begin():
    begun = {name: asyncio.Event() for name in ("here", "others")}

    async def both(name, answer):
        begun[name].set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(event.wait() for event in begun.values()))
        return answer

    class Peers:
        words = {}

        async def ask_all(self, word, *args, timeout):
            assert (word, args) == ("drain", (3.0,))
            assert timeout > 3.0
            return await both("others", [True, False])

    gate = SimpleNamespace(close=None, open=None)
    engine = SimpleNamespace(drain=lambda seconds: both("here", True))
    service = SimpleNamespace(gate=gate, engine=engine, stop_open=None, open=set(), peers=Peers())
    everywhere = Everywhere(service)
    assert asyncio.run(everywhere.drain(3.0)) is False
    assert set(service.peers.words) >= {"drain", "close", "open", "load"}
    service.peers = None
    assert asyncio.run(everywhere.drain(3.0)) is True
    assert asyncio.run(everywhere.load()) == 0
