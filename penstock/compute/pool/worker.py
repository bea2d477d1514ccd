"""Worker process: runs one function on units from a socket. The parent never unpickles an answer.

`python -P worker.py <socket> <tickets> <life> <folder> <scratch>`, by the standard library. A message is a letter, the
body's length in 8 bytes, and the body. A ticket, one byte in a socket pair, lets the next unit of a lot start.
"""

import contextlib
import errno
import faulthandler
import fcntl
import json
import os
import pathlib
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
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

# to the worker: (sys.path, pickled function); a pickled unit
FUNCTION = b"f"
UNIT = b"u"
# from the worker: loaded; an encoded value; encoded [code, reason]
READY = b"r"
VALUE = b"v"
FAILED = b"x"
# tickets: the next unit starts; the parent took it back, and gets no answer
GO = b"g"
SKIP = b"s"

MAX_BYTES = 2**32
"""Largest message, in bytes."""

ARRAY_KINDS = "?biufcmMSU"
"""Dtype kinds that raw bytes describe fully."""

Classes = dict[type, tuple[int, list[str]]]
"""Dataclass -> (its number, names of the fields that its `__init__` takes)."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_TEXT = frozenset({str})
_HEADER = struct.Struct(">cQ")
_LENGTH = struct.Struct(">Q")
_PIECE_BYTES = 2**18
_SMALL_BYTES = 2**16
_HEADLINE_CHARS = 500
_TRACE_CHARS = 1500
FAULT = "fault"
"""Failure code of broken code or a failing machine: no outcome of the unit."""

_MACHINE_ERRNOS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE),  # disk
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM),  # limits and rights
    }
)
"""Error numbers of a failing disk or machine; a missing file is the unit's own error."""
_OF_ONE_OBJECT = ("ObjectNotFound", "Changed", "AlreadyExists", "InvalidStore")
"""Errors of `loader.errors.StoreError` that concern one object, not the store."""
_OF_SETTINGS = ("InvalidRuntime", "CodeMismatch", "WorkerFailed")
"""Further errors of `loader.errors` that concern code or settings."""
_TRIAL_BYTES = 64 * 2**20
_OOM_SCORE = "500"  # in -1000..1000: if memory runs out, the kernel kills a worker, not its parent


def message(kind: bytes, body: bytes) -> bytes:
    return _HEADER.pack(kind, len(body)) + body


def send(sock: socket.socket, kind: bytes, body: bytes) -> None:
    """Send a message. Raises: OSError; TimeoutError."""
    if len(body) > _SMALL_BYTES:  # sent in two parts, to avoid a copy
        sock.sendall(_HEADER.pack(kind, len(body)))
        sock.sendall(body)
    else:
        sock.sendall(message(kind, body))


class Messages:
    """Reads messages from a socket; buffers the start of later ones."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = bytearray()

    def next(self, deadline_s: float | None = None) -> tuple[bytes, bytearray]:
        """Return the next message's kind and body. deadline_s: on the monotonic clock.

        Raises: EOFError if the other side is closed; TimeoutError; ValueError if it is not a message.
        """
        self._fill(_HEADER.size, deadline_s)
        kind, nbytes = _HEADER.unpack_from(self._held)
        if kind not in (FUNCTION, UNIT, READY, VALUE, FAILED):
            raise ValueError(f"not a message: it begins with {kind!r}")
        if nbytes > MAX_BYTES and kind in (READY, VALUE, FAILED):
            raise ValueError(f"a message of {nbytes} bytes; accepted: at most {MAX_BYTES}")
        end = _HEADER.size + nbytes
        self._fill(end, deadline_s)
        body = self._held
        self._held = self._held[end:]
        del body[end:], body[: _HEADER.size]
        return kind, body

    def _fill(self, nbytes: int, deadline_s: float | None) -> None:
        """Buffer `nbytes` bytes. Memory grows with received bytes, not with the announced length."""
        while (missing := nbytes - len(self._held)) > 0:
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                self._sock.settimeout(left_s)
            piece = self._sock.recv(max(_SMALL_BYTES, min(missing, _PIECE_BYTES)))
            if not piece:
                raise EOFError
            self._held += piece


def encode_result(value: Any) -> bytes:
    """Encode a value as JSON, followed by its binary pieces.

    Layout: the JSON's length (8 bytes; 0: plain bytes follow); [lengths of pieces, names of dataclasses, value]; the
    pieces. In the value, a list is a list, and an object has one key: its type. Raises: TypeError if the value is not
    plain, or too large.
    """
    if type(value) is bytes and len(value) < MAX_BYTES - _LENGTH.size:
        return _LENGTH.pack(0) + value
    pieces: list[bytes] = []
    classes: Classes = {}
    plain = _plain(value, pieces, classes)
    names = [f"{one.__module__}:{one.__qualname__}" for one in classes]
    head = json.dumps([[len(piece) for piece in pieces], names, plain], separators=(",", ":")).encode("ascii")
    body = b"".join((_LENGTH.pack(len(head)), head, *pieces))
    if len(body) > MAX_BYTES:
        raise TypeError(
            f"a value of {len(body)} bytes; accepted: at most {MAX_BYTES}; write it to a file or the store"
        )
    return body


def _plain(value: Any, pieces: list[bytes], classes: Classes) -> Any:
    """Return a value of `encode_result` as JSON: a scalar, a list, or {type: value}.

    Appends the bytes that JSON cannot hold to `pieces`, and adds each new dataclass to `classes`.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list:
        return _each(value, pieces, classes)
    if kind is dict or isinstance(value, Mapping):
        has_text_keys = _TEXT.issuperset(map(type, value))
        if has_text_keys:
            return {"dict": dict(zip(value, _each(value.values(), pieces, classes), strict=True))}
        # JSON's own keys are text only.
        return {"pairs": [_each(pair, pieces, classes) for pair in value.items()]}
    if kind not in classes and is_dataclass(kind):
        classes[kind] = len(classes), [one.name for one in fields(kind) if one.init]
    if kind in classes:
        number, names = classes[kind]
        # "is": a value of this dataclass.
        return {"is": [number, _each([getattr(value, name) for name in names], pieces, classes)]}
    if kind in (tuple, set, frozenset):
        return {kind.__name__: _each(value, pieces, classes)}
    return _typed_plain(value, pieces)


def _each(values: Collection[Any], pieces: list[bytes], classes: Classes) -> list[Any]:
    """Return `_plain` of each value."""
    has_only_scalars = _SCALARS.issuperset(map(type, values))
    if has_only_scalars:
        return list(values)  # without a call for each, such as each of a million numbers
    return [_plain(one, pieces, classes) for one in values]


def _typed_plain(value: Any, pieces: list[bytes]) -> Any:
    """Return a value that JSON lacks as {type: value}. Its bytes go to `pieces`; it names their number in the list."""
    kind = type(value)
    if kind in (bytes, bytearray, memoryview):
        pieces.append(bytes(value))
        return {"bytes": len(pieces) - 1}
    if isinstance(value, pathlib.PurePath):
        return {"path": str(value)}
    np = sys.modules.get("numpy")  # an array exists only if numpy is imported
    if np is not None and isinstance(value, np.ndarray | np.generic) and value.dtype.kind in ARRAY_KINDS:
        pieces.append(value.tobytes())
        name = "array" if isinstance(value, np.ndarray) else "number"
        return {name: [value.dtype.str, list(value.shape), len(pieces) - 1]}
    if isinstance(value, str | int | float):  # an instance of a subclass, such as a version that is a str
        return value
    raise TypeError(
        f"a value of {kind.__module__}.{kind.__qualname__} cannot be sent back; accepted: None, bool, int, float, str, "
        "bytes, paths, lists, tuples, sets, dicts, numpy arrays of numbers or text, and dataclasses of these that the "
        "function's return annotation names"
    )


def is_fault(error: BaseException) -> bool:
    """Return whether the cause is the code or the machine: no verdict on the data may follow.

    These are failing imports, undefined names, a failing store, disk or connection, and missing rights. The rule is
    about units, which read files and stores. `loader.modalities.fields` has a rule about decoders, which only get
    bytes: there every OSError with a number is the machine's.
    """
    if type(error).__module__.partition(".")[0] == "av":
        return False  # FFmpeg reports damage by the operating system's error numbers
    # By its type: the subclass UnboundLocalError counts as the unit's own.
    if isinstance(error, ImportError | ConnectionError | TimeoutError) or type(error) is NameError:
        return True
    if isinstance(error, SyntaxError):  # Pillow raises it for damaged files
        return str(error.filename).endswith(".py")
    errors = sys.modules.get("loader.errors")  # such an error exists only if its module is imported
    if errors is not None:
        of_one_object = tuple(getattr(errors, name) for name in _OF_ONE_OBJECT)
        of_settings = tuple(getattr(errors, name) for name in _OF_SETTINGS)
        if isinstance(error, errors.StoreError):
            return not isinstance(error, of_one_object)
        if isinstance(error, of_settings):
            return True
    return isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS


def _failure_code(error: BaseException) -> str:
    """Return FAULT if the machine failed, "memory" if the unit took too much, else "exception"."""
    if not isinstance(error, MemoryError):
        return FAULT if is_fault(error) else "exception"
    traceback.clear_frames(error.__traceback__)  # their variables may hold what filled the memory
    try:
        bytearray(_TRIAL_BYTES)
    except MemoryError:
        return FAULT  # the machine has none, whatever the unit takes
    return "memory"


def describe_failure(error: BaseException) -> tuple[str, str]:
    """Return a failure's (code, reason): type, message, and the end of the traceback."""
    headline = " ".join("".join(traceback.format_exception_only(error)).split())
    if len(headline) > _HEADLINE_CHARS:
        headline = headline[: _HEADLINE_CHARS - 4] + " ..."
    # the first frame is the engine's
    trace = None
    if error.__traceback__:
        trace = error.__traceback__.tb_next
    tail = "".join(traceback.format_tb(trace))[-_TRACE_CHARS:].rstrip()
    return _failure_code(error), f"{headline}\n{tail}".rstrip()


def _die_with_parent(life: int) -> None:
    """Let this process and its children die once the parent ends, which closes the other end of the pipe `life`."""
    if hasattr(fcntl, "F_SETSIG"):  # on Linux the kernel sends the signal
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())  # negative: to the whole group
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([life], [], [], 0)[0]:  # the parent ended before the signal was set up
            os.killpg(0, signal.SIGKILL)
    else:
        threading.Thread(target=_kill_after, args=(life,), daemon=True).start()


def _kill_after(life: int) -> None:
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _load(body: bytearray) -> Callable[[Any], Any]:
    paths, function = pickle.loads(body)  # noqa: S301 - from our parent
    sys.path[:] = paths
    loaded: Callable[[Any], Any] = pickle.loads(function)  # noqa: S301 - from our parent
    return loaded


def _unit(body: bytearray) -> Any:
    try:
        return pickle.loads(body)  # noqa: S301 - from our parent
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"a worker process cannot import what it works on: {type(error).__name__}: {error}"
        ) from error


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A unit may have closed or replaced the stream.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def serve(sock: socket.socket, tickets: socket.socket) -> None:
    """Answer messages. Raises: EOFError or ConnectionError once the parent closes its side."""
    messages = Messages(sock)
    while True:
        kind, body = messages.next()
        if kind == UNIT and (ticket := tickets.recv(1)) != GO:
            if not ticket:
                raise EOFError
            continue
        try:
            if kind == FUNCTION:
                function = _load(body)
                reply = (READY, b"")
            else:
                reply = VALUE, encode_result(function(_unit(body)))
        except BaseException as error:  # noqa: BLE001 - whatever it raises, even SystemExit, is this unit's outcome
            reply = FAILED, encode_result(list(describe_failure(error)))
        _flush()
        send(sock, *reply)
        del body, reply  # otherwise they would stay in memory until the next message


def _prepare(descriptors: list[int], scratch: str) -> tuple[socket.socket, socket.socket]:
    """Set up signals, limits and temporary files; return the sockets of messages and of tickets.

    descriptors: socket, tickets, life and the scratch folder, which this process only has to hold open.
    """
    sock_fd, tickets_fd, life_fd, _ = descriptors
    for fd in descriptors:
        os.set_inheritable(fd, False)
    _die_with_parent(life_fd)
    # A new program inherits ignored signals: Dagster uses SIGINT's handler for SIGTERM, and a script's background
    # job ignores SIGINT.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the parent too, and this process ends with it
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(_OOM_SCORE)
    with contextlib.suppress(ValueError, AttributeError):  # without a stderr there is nothing to write to
        faulthandler.enable()
    tempfile.tempdir = scratch
    sock = socket.socket(fileno=sock_fd)
    os.register_at_fork(after_in_child=sock.close)  # else a unit's child would hide the end of this process
    return sock, socket.socket(fileno=tickets_fd)


if __name__ == "__main__":
    # Module-level names: the parent takes the socket's end for the process's end, so it must close last.
    SOCKET, TICKETS = _prepare([*map(int, sys.argv[1:5])], sys.argv[5])
    try:
        with contextlib.suppress(EOFError, ConnectionError):
            serve(SOCKET, TICKETS)
    except BaseException:  # noqa: BLE001 - no memory for the next unit, or a bug of ours
        traceback.print_exc()
        os._exit(1)
