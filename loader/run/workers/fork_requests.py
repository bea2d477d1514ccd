"""Requests to a fork server: a worker process to fork, with its open files, or the end of one to wait for."""

import errno
import os
import socket
import struct
from typing import NamedTuple

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
    """Descriptor of the memory with its `Sent`."""
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
