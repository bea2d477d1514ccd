"""One server for each folder: its lock, its record, its token, and how a loader starts it."""

import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import InvalidRuntime
from ...json_text import DamagedJson, parse_json_object
from ..pages import write_whole
from .environment import TOKEN_VARIABLE, server_environment, token_text

RECORD = "server"
"""File with the address of a folder's server, replaced whole."""
LOCK = "server.lock"
TOKEN = "token"
LOG = "server.log"
LOCK_S = 0.5
"""Longest wait for the lock: `is_locked` holds it for a moment."""
POLL_S = 0.02
START_S = 20.0
"""Seconds within which a server that a loader starts must be there."""
_RECORD_BYTES = 4096
_started: list["subprocess.Popen[bytes]"] = []
"""Processes that this one started. They outlive it: Python would warn of each that it forgets."""
_TOKEN_TEXT = re.compile(r"[\x21-\x7e]{16,512}")


class ServerRecord(NamedTuple):
    """The server of a folder, as it wrote about itself."""

    address: str
    """HOST:PORT that its peers use."""
    pid: int
    started_s: float
    """Seconds since 1970."""


class FolderServed(RuntimeError):
    """Another server has the folder's lock."""


@contextmanager
def folder_lock(folder: str) -> Iterator[None]:
    """Hold the lock of a folder's server, and delete the record of the one before.

    Raises: FolderServed if another process has the lock; OSError.
    """
    descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take_lock(descriptor, folder)
        # Else the record of a killed server would count as this one's.
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, RECORD))
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, folder: str) -> None:
    """Take the lock of a folder. Raises: FolderServed if another process keeps it for longer than `LOCK_S`."""
    deadline_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A process that only looks (`is_locked`) has the lock for a moment: no server may end because of that.
            if time.monotonic() > deadline_s:
                raise FolderServed(folder) from None
            time.sleep(POLL_S)
        else:
            return


def write_record(folder: str, record: ServerRecord) -> None:
    """Publish a server's record. Raises: OSError."""
    data = json.dumps(record._asdict()).encode()
    write_whole(os.path.join(folder, "writing"), os.path.join(folder, RECORD), 0o600, data)


def live_server(folder: str) -> ServerRecord | None:
    """Return the record of the folder's server; None if none runs. A record without a lock is stale."""
    return last_server(folder) if is_locked(folder) else None


def is_locked(folder: str) -> bool:
    """Return whether a server has the folder's lock. It may not have its record yet."""
    try:
        descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a disk without locks: no server could take one
        return False
    finally:
        os.close(descriptor)
    return False


def last_server(folder: str) -> ServerRecord | None:
    """Return the record of the last server of a folder, which may have ended; None without one."""
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            body = parse_json_object(file.read(_RECORD_BYTES))
        record = ServerRecord(**body)
    except (OSError, DamagedJson, TypeError):
        return None
    is_typed = isinstance(record.address, str) and isinstance(record.pid, int)
    return record if is_typed else None


def cache_token(folder: str | None) -> str | None:
    """Return the token of a cluster, from TOKEN_VARIABLE or a file of mode 600 in the folder; None without one.

    Raises: InvalidRuntime for a token that others may read, or that is not a token.
    """
    token = token_text()
    source = TOKEN_VARIABLE
    if token is None and folder is not None:
        source = os.path.join(folder, TOKEN)
        token = _token_file(source)
    if token is None:
        return None
    if not _TOKEN_TEXT.fullmatch(token):
        raise InvalidRuntime(f"{source} holds no token: expected 16 to 512 visible ASCII characters")
    return token


def write_token(folder: str, token: str) -> None:
    """Write the folder's token file, mode 600. Raises: OSError."""
    write_whole(os.path.join(folder, "writing"), os.path.join(folder, TOKEN), 0o600, token.encode())


def _token_file(path: str) -> str | None:
    """Return the text of a token's file; None if it is missing. Raises: InvalidRuntime if others may read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRuntime(f"{path} cannot be read: {error}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or not stat.S_ISREG(status.st_mode):
            mode = stat.S_IMODE(status.st_mode)
            raise InvalidRuntime(
                f"{path} has the mode {mode:o} and belongs to user {status.st_uid}; a token must be a file of mode 600 "
                "of the user who runs the training"
            )
        return file.read(_RECORD_BYTES).decode("latin-1").strip()


def start_server(folder: str, listen: str, address: str, arguments: list[str]) -> ServerRecord:
    """Start a server process for a folder, unless one runs, and return its record.

    The process ends a minute after the last loader of the folder. It shares nothing with the caller: a training that
    is killed leaves it running.

    Raises: InvalidRuntime if it does not come up, with the last line of its log.
    """
    record = live_server(folder)
    if record is not None:
        return record
    command = [sys.executable, "-m", "loader.cache.peers.serve", "--path", folder, "--listen", listen]
    command += ["--address", address, "--while-used", *arguments]
    log = os.path.join(folder, LOG)
    # The package may be importable only from the folder of the script that imports it.
    folders = [path for path in sys.path if path]
    environment = server_environment(os.pathsep.join(folders))
    with open(log, "ab") as output:
        os.chmod(log, 0o600)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )
    _started.append(process)
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        record = live_server(folder)
        if record is not None:
            return record
        # This one ends at once if another rank's server has the lock, which may not have its record yet.
        if process.poll() is not None and not is_locked(folder):
            break
        time.sleep(POLL_S)
    raise InvalidRuntime(
        f"the cache server of {folder} did not come up at {listen}: {_last_line(log)}. Free the port, or start "
        "`penstock cache serve` before the training"
    )


def _last_line(path: str) -> str:
    with suppress(OSError, IndexError):
        return Path(path).read_text(errors="replace").strip().splitlines()[-1][:300]
    return "no line in its log"
