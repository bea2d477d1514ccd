"""Messages between a trainer and a worker: a few numbers each, over a socket that keeps them apart.

What is large lies in shared memory; its descriptor goes with the first message that names it.
"""

import array
import errno
import os
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

_LAYOUT = struct.Struct("<9q")


class Kind(IntEnum):
    """Kinds of messages: the first three go to the worker, the others come from it.

    - MAKE: `steps` from `step` on (into `segment`).
    - DROP: whatever was asked for and is not begun.
    - FORGET: `segment`.
    - READY: for work.
    - REFUSED: it could not open what it was sent.
    - DONE, DROPPED: with a task.
    - STARTED: with its process number as the task; from the fork server.
    - NOT_STARTED: with the number of the system's error as the task; from the fork server.
    """

    MAKE = 1
    DROP = 2
    FORGET = 3
    READY = 4
    REFUSED = 5
    DONE = 6
    DROPPED = 7
    STARTED = 8
    NOT_STARTED = 9


class Message(NamedTuple):
    """A message; -1 where a number is not given."""

    kind: int
    """Kind of the message."""
    task: int = -1
    """Number that the trainer gave the task."""
    step: int = -1
    """First step."""
    steps: int = 0
    """Number of steps."""
    segment: int = -1
    """Number of the segment; -1 also for a new one, whose descriptor comes along."""
    nbytes: int = 0
    """Bytes of the segment."""
    at: int = 0
    """Place of the outcome in it, as `batch_memory.Written.at`."""
    pickled: int = 0
    """As `Written.nbytes`."""
    arrays: int = 0
    """As `Written.arrays`."""


def connection() -> tuple[socket.socket, socket.socket]:
    """Return the trainer's end and the worker's. A reader sees the end when the other process is gone."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, fd: int | None = None) -> None:
    """Send a message, with a descriptor. Raises: EOFError where the other side is gone; OSError."""
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    try:
        sock.sendmsg([_LAYOUT.pack(*message)], rights)
    except ConnectionError:
        raise EOFError from None


def receive(sock: socket.socket, *, wait: bool) -> tuple[Message, int | None] | None:
    """Return a message, with the descriptor that came along; None where there is none yet and `wait` is False.

    Raises: EOFError where the other side is gone; OSError (EMFILE) where a descriptor came along that this process may
    not have: the kernel leaves it out, and what lies in that memory would be looked for in another.
    """
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    try:
        data, rights, message_flags, _ = sock.recvmsg(
            _LAYOUT.size, socket.CMSG_SPACE(array.array("i").itemsize), flags
        )
    except BlockingIOError:
        return None
    except OSError:  # it broke off, or was closed here
        raise EOFError from None
    if not data:
        raise EOFError
    if message_flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    fds = array.array("i", b"".join(payload for _, _, payload in rights))
    return Message(*_LAYOUT.unpack(data)), fds[0] if fds else None
