"""Requests for the near checkpoints of other nodes: each blocks its thread, and ends within a bound.

`PeerClient` gives up after a quarter of a second, because a training waits for a page. Nothing waits for a near save
but the next one, and a part of 64 MiB takes longer: these bounds suit a slow network.
"""

import base64
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...json_text import DamagedJson, parse_json_object
from ...storage.cloud.http_connection import PLAIN, HttpConnection, Place
from ..addresses import split_address
from .heads import CHECKSUM
from .near_answers import MARKER, PREFIX
from .near_files import MARKER_BYTES, MARKERS, NearFile, NearRun, NearStep

CONNECT_S = 2.0
PROGRESS_S = 5.0
"""Seconds without progress after which a body is given up, or a node is asked whether it still answers."""
REQUEST_S = 40.0
"""Most seconds of one request. A server gives up after 30."""
BUSY_S = 0.1
"""Seconds after which a server is asked again that receives enough files."""
NO_PATH = f"{PREFIX}/-"
"""Names nothing: each server answers 404, or 401."""
SEND_BYTES = 2**20
"""Bytes that are sent between two looks at the clock."""
KEPT = 4
"""Connections kept to each node."""
IDLE_S = 10.0
"""Seconds after which a kept connection is closed."""
TEXT_CHARACTERS = 300
"""Most characters of a server's text in an error."""
LIST_BYTES = 2 * MARKERS * MARKER_BYTES
"""Most bytes of a list."""

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class NearFault(OSError):
    """A node did not answer as it should. Its text names the node and the reason."""


class NearClient:
    """Sends requests for near checkpoints. Thread-safe. Addresses are HOST:PORT; methods raise NearFault.

    token: secret that the servers expect; None for servers on the loopback interface. request_s: most seconds of one
    request.
    """

    def __init__(self, token: str | None, *, request_s: float = REQUEST_S) -> None:
        self._authorization = ""
        if token is not None:
            self._authorization = f"Authorization: Bearer {token}\r\n"
        self._request_s = request_s
        self._idle: dict[str, list[HttpConnection]] = {}
        self._lock = threading.Lock()

    def put(
        self,
        address: str,
        run: str,
        step: int,
        name: str,
        pieces: Sequence[bytes | memoryview],
        checksum: int,
    ) -> None:
        """Store a part or an index on a node, durably once this returns. Waits for a busy node.

        pieces: the file's bytes, in order. checksum: their CRC-32C.
        """
        path = f"{PREFIX}/{run}/{step:012d}/{name}"
        # The server's refusals come before the body: a full disk costs no transfer.
        nbytes = sum(len(piece) for piece in pieces)
        headers = f"{CHECKSUM}: {checksum:08x}\r\nContent-Length: {nbytes}\r\nExpect: 100-continue\r\n"
        deadline_s = time.monotonic() + self._request_s
        while True:
            status, text = self._put_once(
                address,
                path,
                headers,
                pieces,
                deadline_s,
            )
            if status == 200:
                return
            is_late = time.monotonic() + BUSY_S > deadline_s
            if status != 503 or is_late:
                raise NearFault(f"{address} refused {name}: {status}: {text}")
            time.sleep(BUSY_S)

    def put_marker(
        self,
        address: str,
        run: str,
        step: int,
        data: bytes,
        checksum: int,
    ) -> None:
        """Store a step's marker on a node, durably once this returns."""
        self.put(
            address,
            run,
            step,
            MARKER,
            [data],
            checksum,
        )

    def read(
        self,
        address: str,
        run: str,
        step: int,
        name: str,
        start: int,
        stop: int,
    ) -> bytes:
        """Return bytes [start, stop) of a file of a node. They are not checked."""
        path = f"{PREFIX}/{run}/{step:012d}/{name}"
        headers = f"Range: bytes={start}-{stop - 1}\r\n"
        nbytes = stop - start
        data = self._get(
            address,
            path,
            headers,
            nbytes,
        )
        if len(data) != nbytes:
            raise NearFault(f"{address} answered {len(data):,} bytes of {name}; asked were {nbytes:,}")
        return data

    def run(self, address: str, run: str) -> NearRun:
        """Return a node's files of a run, and its newest markers. Nothing in them is checked but its type."""
        path = f"{PREFIX}/{run}"
        body = self._list(address, path)
        markers: dict[int, bytes] = {}
        files: list[NearFile] = []
        try:
            for step, text in body["markers"].items():
                number = int(step)
                markers[number] = base64.b64decode(text)
            for step, name, nbytes in body["files"]:
                file = NearFile(
                    int(step),
                    str(name),
                    int(nbytes),
                )
                files.append(file)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise NearFault(f"{address} answered no list of near files: {error!r}") from error
        return NearRun(markers, files)

    def runs(self, address: str) -> dict[str, list[NearStep]]:
        """Return run -> its steps on a node."""
        body = self._list(address, PREFIX)
        runs: dict[str, list[NearStep]] = {}
        try:
            for run in body["runs"]:
                name = str(run["run"])
                runs[name] = []
                for step, has_marker, nbytes in run["steps"]:
                    near_step = NearStep(
                        int(step),
                        bool(has_marker),
                        int(nbytes),
                    )
                    runs[name].append(near_step)
        except (LookupError, TypeError, ValueError) as error:
            raise NearFault(f"{address} answered no list of runs: {error!r}") from error
        return runs

    def delete(self, address: str, run: str, step: int) -> int:
        """Delete a step of a run on a node, its marker first; return the bytes of its parts."""
        path = f"{PREFIX}/{run}/{step:012d}"
        deadline_s = time.monotonic() + self._request_s
        with self._request(address, "DELETE", path, "") as connection:
            self._await(address, connection, deadline_s)
            status = self._read_head(address, connection)
            text = _text(connection)
            connection.discard()
        if status != 200 or not _NUMBER.fullmatch(text):
            raise NearFault(f"{address} did not delete step {step}: {status}: {text}")
        return int(text)

    def close(self) -> None:
        """Close the kept connections."""
        idle: list[HttpConnection] = []
        with self._lock:
            for connections in self._idle.values():
                idle += connections
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _put_once(
        self,
        address: str,
        path: str,
        headers: str,
        pieces: Sequence[bytes | memoryview],
        deadline_s: float,
    ) -> tuple[int, str]:
        """Send a file; return the status and the text of the answer."""
        with self._request(address, "PUT", path, headers) as connection:
            status = self._read_head(address, connection)
            if status == 100:
                # Not in one call: a server that takes a byte a second would occupy this thread for ever.
                for block in _blocks(pieces):
                    _check_time(deadline_s)
                    connection.send(block)
                self._await(address, connection, deadline_s)
                status = self._read_head(address, connection)
            text = _text(connection)
            connection.discard()
        return status, text

    def _get(
        self,
        address: str,
        path: str,
        headers: str,
        most: int,
    ) -> bytes:
        """Return the body of an answer, of at most so many bytes."""
        with self._request(address, "GET", path, headers) as connection:
            # Within PROGRESS_S: a node that is silent must not occupy the saver for REQUEST_S.
            status = self._read_head(address, connection, most)
            if status == PLAIN and connection.nbytes <= most:
                return connection.all()
            if status == PLAIN:
                problem = f"would answer {connection.nbytes:,} bytes; at most {most:,} are read"
                connection.close()
            else:
                text = _text(connection)
                problem = f"answered {status}: {text}"
                # It is kept, and another thread may use it from here on.
                connection.discard()
        raise NearFault(f"{address} {problem}")

    def _list(self, address: str, path: str) -> dict[str, Any]:
        """Return a JSON object that a node answers with. Its content is not checked."""
        data = self._get(
            address,
            path,
            "",
            LIST_BYTES,
        )
        try:
            return parse_json_object(data)
        except DamagedJson as error:
            raise NearFault(f"{address} answered no list: {error}") from error

    @contextmanager
    def _request(
        self,
        address: str,
        method: str,
        path: str,
        headers: str,
    ) -> Iterator[HttpConnection]:
        """Send a request, and yield its connection. An error closes the connection, and names the node."""
        connection = self._connect(address)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\n{self._authorization}{headers}\r\n"
            request = head.encode("latin-1")
            connection.send(request)
            yield connection
        except OSError as error:
            connection.close()
            raise _fault(address, error) from error

    def _await(self, address: str, connection: HttpConnection, deadline_s: float) -> None:
        """Wait until an answer begins, as long as the node answers others. Raises: NearFault; TimeoutError."""
        while True:
            remaining_s = deadline_s - time.monotonic()
            if connection.has_data(max(0.0, min(PROGRESS_S, remaining_s))):
                return
            if remaining_s <= PROGRESS_S:
                raise TimeoutError("its disk or the network is slow: it did not answer in time")
            # The sync of a part may take longer than PROGRESS_S. A node that is silent answers nothing at all.
            self._check_alive(address)

    def _check_alive(self, address: str) -> None:
        """Ask a node for a path that it refuses without a look at its disk. Raises: NearFault if it is silent."""
        with self._request(address, "GET", NO_PATH, "") as connection:
            self._read_head(address, connection)
            connection.discard()

    def _read_head(self, address: str, connection: HttpConnection, most: int = 0) -> int:
        """Read the head of an answer, with its text if it is no part of a file. Return its status.

        most: bytes of a file that the answer may have; 0 if only a text is expected. The connection is kept for other
        requests once its answer was read whole or discarded.
        """
        keep = partial(self._keep, address)
        return connection.read_head(most, keep)

    def _connect(self, address: str) -> HttpConnection:
        """Return a kept connection that is still open, else a new one."""
        now_s = time.monotonic()
        while True:
            with self._lock:
                idle = self._idle.get(address)
                if not idle:
                    break
                connection = idle.pop()
            idle_s = now_s - connection.idle_since
            # A server that was started anew has closed the connection.
            if idle_s < IDLE_S and connection.is_quiet():
                return connection
            connection.close()
        host, port = split_address(address)
        place = Place(host, port, None)
        try:
            return HttpConnection(place, CONNECT_S, PROGRESS_S)
        except OSError as error:
            raise _fault(address, error) from error

    def _keep(self, address: str, connection: HttpConnection) -> None:
        """Keep a connection whose answer was read."""
        connection.idle_since = time.monotonic()
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < KEPT:
                idle.append(connection)
                return
        connection.close()


def _fault(address: str, error: OSError) -> NearFault:
    if isinstance(error, NearFault):
        return error
    # A store needs the prefix to translate its errors; a near save has none.
    text = str(error).removeprefix("HTTP error: ")
    return NearFault(f"{address}: {text}")


def _blocks(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of pieces in blocks of at most SEND_BYTES. Small pieces share one."""
    small: list[bytes | memoryview] = []
    small_bytes = 0
    for piece in pieces:
        if small and small_bytes + len(piece) > SEND_BYTES:
            yield b"".join(small)
            small = []
            small_bytes = 0
        if len(piece) < SEND_BYTES:
            small.append(piece)
            small_bytes += len(piece)
            continue
        view = memoryview(piece)
        for start in range(0, len(view), SEND_BYTES):
            stop = start + SEND_BYTES
            yield view[start:stop]
    if small:
        yield b"".join(small)


def _check_time(deadline_s: float) -> None:
    """Raise TimeoutError after a deadline, of `time.monotonic`."""
    if time.monotonic() > deadline_s:
        raise TimeoutError("the network or its disk is slow: it did not take a file in time")


def _text(connection: HttpConnection) -> str:
    """Return the text of an answer, cut for an error."""
    text = connection.text.decode("utf-8", "replace")
    return text.strip()[:TEXT_CHARACTERS]
