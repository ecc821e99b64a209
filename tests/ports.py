"""Ports for servers that cannot be asked which one they got."""

import contextlib
import random
import socket


def free_port() -> int:
    """One that no connection of another program gets by chance, as it may one that the system chooses."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port
