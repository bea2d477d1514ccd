"""Ports for servers of the tests' own."""

import random
import socket
from contextlib import suppress

_PORTS = range(20_000, 32_000)
"""Below those that the system gives out by itself: between the choice and the server's start nobody gets one."""


def free_port() -> int:
    """One on which nobody listens now."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
