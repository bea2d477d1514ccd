"""Messages between trainer, fork server and workers; and the errors for too few open files.

A message is a few numbers. Large data is in shared memory, whose descriptor is sent with the first message about it.
"""

import array
import errno
import os
import resource
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeVar

from ...errors import InvalidRuntime

_LAYOUT = struct.Struct("<9q")

Received = TypeVar("Received")


class MessageKind(IntEnum):
    """Kinds of messages: the first three go to the worker, the others to the trainer."""

    MAKE = 1  # `steps` from `step` on, into `segment`
    DROP = 2  # drops all requested steps that have not started
    FORGET = 3  # drops `segment`
    READY = 4
    REFUSED = 5  # the startup message could not be opened
    DONE = 6  # names its task
    DROPPED = 7  # names its task
    STARTED = 8  # from the fork server; the task is the process number
    NOT_STARTED = 9  # from the fork server; the task is the system's error number
    SLOW_ITEM = 10  # the task is the source's number, the step an ordinal; then its seconds


class WorkerMessage(NamedTuple):
    kind: int
    task: int = -1
    """Number of the task, chosen by the trainer."""
    step: int = -1
    """First step."""
    steps: int = 0
    """Number of steps."""
    segment: int = -1
    """Number of the segment; -1 also for a new one, whose descriptor is attached."""
    nbytes: int = 0
    """Bytes of the segment."""
    at: int = 0
    """As `batch_memory.OutcomePlace.at`."""
    pickled: int = 0
    """As `OutcomePlace.nbytes`."""
    arrays: int = 0
    """As `OutcomePlace.arrays`."""


def connection() -> tuple[socket.socket, socket.socket]:
    """Return the trainer's socket and the worker's. A reader gets an end of file when the other process is gone."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: WorkerMessage, fd: int | None = None) -> None:
    """Send a message, optionally with a descriptor. Raises: EOFError if the other side is gone; OSError."""
    if fd is None:
        rights = []
    else:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    try:
        sock.sendmsg([_LAYOUT.pack(*message)], rights)
    except ConnectionError:
        raise EOFError from None


def receive(sock: socket.socket, *, wait: bool) -> tuple[WorkerMessage, int | None] | None:
    """Return a message and its descriptor; None if there is none yet and `wait` is False.

    Raises: EOFError if the other side is gone; OSError (EMFILE) if this process cannot open the descriptor.
    """
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    rights_bytes = socket.CMSG_SPACE(array.array("i").itemsize)
    try:
        data, rights, message_flags, _ = _past_reset(lambda: sock.recvmsg(_LAYOUT.size, rights_bytes, flags))
    except BlockingIOError:
        return None
    except OSError:  # the connection broke, or was closed here
        raise EOFError from None
    if not data:
        raise EOFError
    # The kernel drops a descriptor that would be above the limit, and reports only that something was cut.
    if message_flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    fds = array.array("i", b"".join(payload for _, _, payload in rights))
    return WorkerMessage(*_LAYOUT.unpack(data)), fds[0] if fds else None


def _past_reset(receive: Callable[[], Received]) -> Received:
    """Return what is received, also if the other process has ended without reading everything.

    The system then reports the reset before the packets that the process had sent, and reports it once.
    """
    try:
        return receive()
    except ConnectionResetError:
        return receive()


_HEAD = struct.Struct("<?qd")
_ANSWER = struct.Struct("<qq")
_MAX_BYTES = 2**16


class ForkRequest(NamedTuple):
    """Request to fork a worker process."""

    number: int
    """Number to pass to `wait`."""
    socket: int
    """Descriptor of the worker's socket."""
    sent: int
    """Descriptor of the memory with its `StartupMessage`."""
    stdout: int
    """Descriptor of its standard output."""
    stderr: int
    """Descriptor of its standard error."""
    modules: tuple[str, ...]
    """Modules to import before the fork."""


class WaitRequest(NamedTuple):
    """Request to wait for a worker process, which is killed after the timeout."""

    number: int
    """Number of its ForkRequest."""
    timeout_s: float
    """Timeout in seconds."""


def send_fork(control: socket.socket, request: ForkRequest) -> None:
    head = _HEAD.pack(True, request.number, 0.0)
    fds = [request.socket, request.sent, request.stdout, request.stderr]
    socket.send_fds(control, [head, " ".join(request.modules).encode()], fds)


def send_wait(control: socket.socket, request: WaitRequest) -> None:
    control.sendall(_HEAD.pack(False, *request))


def receive_request(control: socket.socket) -> ForkRequest | WaitRequest:
    """Return the next request. Raises: EOFError; OSError (EMFILE) if this process cannot open its files."""
    data, fds, flags, _ = socket.recv_fds(control, _MAX_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError
    is_fork, number, timeout_s = _HEAD.unpack_from(data)
    if not is_fork:
        return WaitRequest(number, timeout_s)
    if flags & socket.MSG_CTRUNC or len(fds) < 4:  # as in `receive`
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    sock, sent, stdout, stderr = fds
    return ForkRequest(number, sock, sent, stdout, stderr, tuple(data[_HEAD.size :].decode().split()))


def answer(control: socket.socket, request: WaitRequest, exit_code: int) -> None:
    control.sendall(_ANSWER.pack(request.number, exit_code))


def receive_exit_code(control: socket.socket, number: int) -> int:
    """Return a worker's exit code. Skips the answers to earlier requests. Raises: EOFError."""
    while True:
        data = _past_reset(lambda: control.recv(_ANSWER.size))
        if not data:
            raise EOFError
        of, exit_code = _ANSWER.unpack(data)
        if of == number:
            return int(exit_code)


NO_FILES = 24
"""Exit status of a worker that could not open files."""

_FEW = 64
"""Open files that a training needs besides those for its workers, roughly."""


def is_want_of_files(error: OSError) -> bool:
    """Return whether the process or the machine has reached its limit of open files."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def too_few_files(doing: str, workers: int) -> InvalidRuntime:
    return InvalidRuntime(
        f"{doing} needs more open files than this process may have: {_limit()} (`ulimit -n`); {workers} worker "
        f"processes take {_FEW + 4 * workers}, and two for each batch that is kept: raise the limit, or use "
        "executor='threads'",
        what="open files",
        where=doing,
        given=_limit(),
        accepted=_FEW + 4 * workers,
    )


def if_few() -> str:
    """Return a hint for a worker that ended silently; "" if the limit is an unlikely cause."""
    if 0 <= _limit() < _FEW:
        return f" It may have {_limit()} open files (`ulimit -n`): raise that."
    return ""


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
