"""Messages between a trainer and a worker: a few numbers each, over a socket that keeps them apart.

What is large lies in shared memory; its descriptor goes with the first message that names it.
"""

import array
import errno
import os
import resource
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from ...errors import InvalidRuntime

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
    """Place of the outcome in it, as `batch_memory.OutcomePlace.at`."""
    pickled: int = 0
    """As `OutcomePlace.nbytes`."""
    arrays: int = 0
    """As `OutcomePlace.arrays`."""


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


_HEAD = struct.Struct("<?qd")
_ANSWER = struct.Struct("<qq")
_MAX_BYTES = 2**16


class ForkRequest(NamedTuple):
    """A worker process to fork."""

    number: int
    """Number that the trainer gives it."""
    socket: int
    """Descriptor of its socket."""
    sent: int
    """Descriptor of the memory with its `StartupMessage`."""
    stdout: int
    """Descriptor of its standard output."""
    stderr: int
    """Descriptor of its standard error."""
    modules: tuple[str, ...]
    """Modules to import before the fork."""


class WaitRequest(NamedTuple):
    """The end of a worker process to wait for; it is killed after the timeout."""

    number: int
    """Number that it was forked with."""
    timeout_s: float
    """Timeout in seconds."""


def send_fork(control: socket.socket, request: ForkRequest) -> None:
    """Send a request. Raises: ConnectionError where the server is gone; OSError."""
    head = _HEAD.pack(True, request.number, 0.0)
    fds = [request.socket, request.sent, request.stdout, request.stderr]
    socket.send_fds(control, [head, " ".join(request.modules).encode()], fds)


def send_wait(control: socket.socket, request: WaitRequest) -> None:
    """Send a request. Raises: ConnectionError where the server is gone; OSError."""
    control.sendall(_HEAD.pack(False, *request))


def receive_request(control: socket.socket) -> ForkRequest | WaitRequest:
    """Return the next request. Raises: EOFError; OSError (EMFILE) where this process may not open its files."""
    data, fds, flags, _ = socket.recv_fds(control, _MAX_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError
    is_fork, number, timeout_s = _HEAD.unpack_from(data)
    if not is_fork:
        return WaitRequest(number, timeout_s)
    if flags & socket.MSG_CTRUNC or len(fds) < 4:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    sock, sent, stdout, stderr = fds
    return ForkRequest(number, sock, sent, stdout, stderr, tuple(data[_HEAD.size :].decode().split()))


def answer(control: socket.socket, request: WaitRequest, exit_code: int) -> None:
    """Send the exit code that was waited for. Raises: ConnectionError where the trainer is gone; OSError."""
    control.sendall(_ANSWER.pack(request.number, exit_code))


def receive_exit_code(control: socket.socket, number: int) -> int:
    """Return the answer about a worker; those about others, which an interrupt left behind, are dropped.

    Raises: EOFError or ConnectionError where the server is gone.
    """
    while True:
        data = control.recv(_ANSWER.size)
        if not data:
            raise EOFError
        of, exit_code = _ANSWER.unpack(data)
        if of == number:
            return int(exit_code)


NO_FILES = 24
"""The exit status of a worker that could not open what a batch needs."""

_FEW = 64


def is_want_of_files(error: OSError) -> bool:
    """Return whether it is the limit of this process, or that of the machine."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def too_few_files(doing: str, workers: int) -> InvalidRuntime:
    """Return the error of too few files. workers: processes that there are to be."""
    return InvalidRuntime(
        f"{doing} needs more open files than this process may have: {_limit()} (`ulimit -n`); {workers} worker "
        f"processes take {_FEW + 4 * workers}, and two for each batch that is kept: raise the limit, or use "
        "executor='threads'"
    )


def if_few() -> str:
    """Return a hint for a worker that ended without a word; "" where the limit is no reason for it."""
    return f" It may have {_limit()} open files (`ulimit -n`): raise that." if 0 <= _limit() < _FEW else ""


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
