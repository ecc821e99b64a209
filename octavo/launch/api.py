"""An API process, one of several before one engine: what ``launch.several`` starts."""

import signal
import socket
import sys
from typing import Any

from octavo.common import log
from octavo.errors import OctavoError
from octavo.front.client.process import ProcessClient
from octavo.front.metrics.strips import Strips
from octavo.launch.house import House, Place
from octavo.launch.listening import FAREWELL, runner
from octavo.launch.text import format_of, front_of


def main(setup: dict[str, Any]) -> None:
    """The child's main function (``common.proc.spawn``)."""
    log.setup(setup["log_level"], tag=f"api {setup['number'] + 1}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    strips, line = Strips(setup["count"] + 1, setup["memory"]), socket.socket(fileno=setup["line"])
    place = Place(setup["number"], setup["count"], strips, setup["folder"], line)
    try:
        status = _serve(setup, place)
    except OctavoError as error:
        place.say(error)
        status = 1
    sys.exit(status)


def _serve(setup: dict[str, Any], place: Place) -> int:
    args, config, options = setup["args"], setup["config"], setup["options"]
    client = ProcessClient(config, client=setup["client"], join=setup["engine"])
    try:
        client.launch()
        import octavo.front.server.app  # noqa: F401  (while the engine is on its way)

        tokenizer, chat = front_of(config)
        format_of(tokenizer, chat, options)
        ready = client.start()
        house = House(args, config, options, setup["host"], place.say, place=place)
        with runner() as loop:
            return loop.run(house.serve(client, tokenizer, chat, ready))
    finally:
        client.close(FAREWELL)
