"""A viewer's server as a process of its own, and a client that asks as a browser does."""

import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import TracebackType
from urllib.parse import urljoin, urlsplit

from ..contest import ROOT
from ..meter import family

CONNECTIONS = 6
"""Connections of a browser to one host."""
ANSWER_S = 300
WINDOW = 24
"""Pictures that a window shows before anybody scrolls."""
_IMAGE = re.compile(r'<img [^>]*src="([^"]+)"')


class Viewer:
    """`penstock view` on a free port. Leave it with its block; it is told to end, and waited for."""

    def __init__(self, root: str, *options: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "penstock", "view", "--root", root, "--port", "0", *options]
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        url = urlsplit(self._process.stdout.readline().strip())
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = Lock()
        self.host = url.netloc
        answer = self._asked(f"{url.path}?{url.query}", "")
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        self.start_s = time.perf_counter() - begun
        """From the command to the first answer."""

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._idle:
            connection.close()
        self._process.terminate()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str, *, fragment: bool = False) -> bytes:
        """The body of an answer, over a connection that is kept. Thread-safe. fragment: asks as htmx does."""
        answer = self._asked(path, self.cookie, fragment=fragment)
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {answer.body[:500]!r}")
        return answer.body

    def transferred_bytes(self, path: str, *, fragment: bool = False) -> int:
        """Return the bytes of an answer's body as a browser gets it, compressed. fragment: as in `get`."""
        answer = self._asked(path, self.cookie, fragment=fragment, encoding="gzip")
        return len(answer.body)

    def _asked(
        self,
        path: str,
        cookie: str,
        *,
        fragment: bool = False,
        encoding: str = "identity",
    ) -> "_Answer":
        headers = {"cookie": cookie, "accept-encoding": encoding}
        if fragment:
            headers["hx-request"] = "true"
        while True:
            with self._lock:  # a connection belongs to one thread at a time
                kept = self._idle.pop() if self._idle else None
            connection = kept or http.client.HTTPConnection(self.host, timeout=ANSWER_S)
            try:
                connection.request("GET", path, headers=headers)
                got = connection.getresponse()
                answer = _Answer(got.status, got.headers, got.read())
            except BaseException as error:
                connection.close()
                # The server closes those that are idle for 5 s.
                if kept and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                    continue
                raise
            self._idle.append(connection)
            return answer

    def get_all(self, paths: Iterable[str], connections: int = CONNECTIONS) -> list[bytes]:
        """The bodies of answers, asked for over so many connections at once."""
        with ThreadPoolExecutor(connections) as pool:
            return list(pool.map(self.get, paths))

    def look(self, path: str, pictures: int = WINDOW) -> "Looked":
        """A page as a person sees it: its HTML, then so many of its pictures."""
        start = time.perf_counter()
        html = self.get(path).decode()
        read_s = time.perf_counter() - start
        found = pictures_of(html, path)[:pictures]
        self.get_all(found)
        return Looked(read_s, time.perf_counter() - start, len(found))

    def peak_mib(self) -> list[float]:
        """The most memory that the server had, then that of each process that it started."""
        return [_mib(pid, "VmHWM") for pid in self._processes()]

    def files_mib(self) -> list[float]:
        """Pages of files that each of them has in memory now: the system shares them, and takes them back."""
        return [_mib(pid, "RssFile") for pid in self._processes()]

    def _processes(self) -> list[int]:
        return sorted(family(self._process.pid), key=lambda pid: (pid != self._process.pid, pid))


class _Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


class Looked:
    """Seconds of a look: until the page was there, and until its pictures were."""

    def __init__(self, page_s: float, whole_s: float, pictures: int) -> None:
        self.page_s, self.whole_s, self.pictures = page_s, whole_s, pictures


def pictures_of(html: str, path: str) -> list[str]:
    """Addresses of the pictures of a page."""
    return [urljoin(path, one.replace("&amp;", "&")) for one in _IMAGE.findall(html)]


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that this share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _mib(pid: int, what: str) -> float:
    found = re.search(rf"{what}:\s*([0-9]+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
