"""A worker process: runs one function on units that come through a socket.

Run as a script and made of the standard library alone, so that a worker starts in the time that Python takes
and imports what its function needs, nothing of the parent's main module. `python -P worker.py <socket> <life>
<scratch>`: two inherited file descriptors, and a folder for temporary files. A message is one letter, the
length of its body as 8 bytes, and the body.
"""

import contextlib
import faulthandler
import fcntl
import os
import pickle
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

FUNCTION, UNIT = b"f", b"u"  # to the worker: (sys.path, pickled function); a pickled unit
READY, VALUE, FAILED = b"r", b"v", b"x"  # from it: loaded; a pickled value; pickled (code, reason)

_HEADER = struct.Struct(">cQ")
_SMALL_BYTES = 2**16
_HEADLINE_CHARS, _TRACE_CHARS = 500, 1500
_OOM_SCORE = "500"  # of -1000..1000: when memory runs out the kernel takes a worker, not who supervises it


def send(sock: socket.socket, kind: bytes, body: bytes) -> None:
    """Raises: OSError, TimeoutError as the socket's timeout has it."""
    header = _HEADER.pack(kind, len(body))
    if len(body) < _SMALL_BYTES:
        sock.sendall(header + body)
    else:
        sock.sendall(header)
        sock.sendall(body)


def receive(sock: socket.socket, deadline_s: float | None = None) -> tuple[bytes, bytearray]:
    """Kind and body of the next message. deadline_s: on the monotonic clock.

    Raises: EOFError when the other side is gone; TimeoutError at the deadline; ValueError for noise.
    """
    kind, nbytes = _HEADER.unpack(_exactly(sock, _HEADER.size, deadline_s))
    if kind not in (FUNCTION, UNIT, READY, VALUE, FAILED):
        raise ValueError(f"not a message: it begins with {kind!r}")
    return kind, _exactly(sock, nbytes, deadline_s)


def _exactly(sock: socket.socket, nbytes: int, deadline_s: float | None) -> bytearray:
    body = bytearray(nbytes)
    rest = memoryview(body)
    while rest:
        if deadline_s is not None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
        n = sock.recv_into(rest)
        if not n:
            raise EOFError
        rest = rest[n:]
    return body


def described(error: BaseException) -> tuple[str, str]:
    """(code, reason) of a failure: type and message on the first line, then the end of the traceback."""
    headline = " ".join("".join(traceback.format_exception_only(error)).split())
    if len(headline) > _HEADLINE_CHARS:
        headline = headline[: _HEADLINE_CHARS - 4] + " ..."
    trace = error.__traceback__.tb_next if error.__traceback__ else None  # the first frame is the engine's
    tail = "".join(traceback.format_tb(trace))[-_TRACE_CHARS:].rstrip()
    return "memory" if isinstance(error, MemoryError) else "exception", f"{headline}\n{tail}".rstrip()


def _die_with_parent(life: int) -> None:
    """End this process and what it started once nobody holds the other end of the pipe `life`.

    On Linux by a signal from the kernel: a decoder that never gives back the interpreter's lock dies as well.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([life], [], [], 0)[0]:  # the parent was gone before the signal was asked for
            os.killpg(0, signal.SIGKILL)
    else:
        threading.Thread(target=_kill_at_end_of, args=(life,), daemon=True).start()


def _kill_at_end_of(life: int) -> None:
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _load(body: bytearray) -> Callable[[Any], Any]:
    paths, function = pickle.loads(body)  # noqa: S301 - from our parent
    sys.path[:] = paths
    loaded: Callable[[Any], Any] = pickle.loads(function)  # noqa: S301 - from our parent
    return loaded


def _answer(function: Callable[[Any], Any], body: bytearray) -> tuple[bytes, bytes]:
    try:
        return VALUE, pickle.dumps(function(pickle.loads(body)), protocol=5)  # noqa: S301 - from our parent
    except BaseException as error:  # noqa: BLE001 - whatever it raises, SystemExit too, is this unit's outcome
        return FAILED, pickle.dumps(described(error))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # a unit may have closed or replaced it
            stream.flush()


def serve(sock: socket.socket) -> None:
    """Answer messages until the parent closes its side."""

    def no_function(_: Any) -> Any:
        raise RuntimeError("a unit came before the function")

    function: Callable[[Any], Any] = no_function
    while True:
        try:
            kind, body = receive(sock)
        except (EOFError, ConnectionError):
            return
        if kind == FUNCTION:
            try:
                function = _load(body)
                reply = READY, b""
            except BaseException as error:  # noqa: BLE001 - importing its module may raise anything
                reply = FAILED, pickle.dumps(described(error))
        else:
            reply = _answer(function, body)
        _flush()
        try:
            send(sock, *reply)
        except ConnectionError:
            return
        del body, reply  # or they would stay in memory until the next message is there


def _prepare(sock_fd: int, life_fd: int, scratch: str) -> socket.socket:
    """Set up the process; returns its socket."""
    for fd in (sock_fd, life_fd):
        os.set_inheritable(fd, False)
    _die_with_parent(life_fd)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(_OOM_SCORE)
    with contextlib.suppress(ValueError, AttributeError):  # without a stderr there is nowhere to write to
        faulthandler.enable()
    tempfile.tempdir = scratch
    sock = socket.socket(fileno=sock_fd)
    os.register_at_fork(after_in_child=sock.close)  # or a unit's child would hide the end of this process
    return sock


if __name__ == "__main__":
    # A name of the module: the parent takes the end of the socket for the end of the process, so it must close last.
    SOCKET = _prepare(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    try:
        serve(SOCKET)
    except BaseException:  # noqa: BLE001 - no memory for the next unit, or a fault of ours
        traceback.print_exc()
        os._exit(1)
