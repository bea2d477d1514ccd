"""Answers of a node's server: pages of its folder, claims on them, and lists of the objects that readers need.

The folder decides as it does for a reader on the node. A name is 40 hex digits and a body is one page: nothing else
that a caller sends becomes part of a path.
"""

import hashlib
import json
import os
import re
import threading
from collections import Counter
from contextlib import suppress
from typing import cast

from ..claims import ClaimFile
from ..page_cache import Absence, Grant
from ..pages import HEADER_BYTES, page_checksum
from ..spec import NodeCache
from .exchange import Exchange, FileRange
from .heads import (
    CHECKSUM,
    COMING,
    GRANTED,
    LIST_BYTES,
    NONCE,
    NOT_STORED,
    RANGES_PATH,
    UNKNOWN_SET,
    BadHead,
    PageRequest,
    page_answer_head,
    page_request,
    parse_ranges,
    ranges_head,
)
from .near_answers import PREFIX, NearAnswers
from .open_pages import OpenPageFile
from .reader_claims import ReaderClaim, ReaderClaims
from .served_cache import SETS_BYTES, ServedCache

ID_BYTES = 16
"""Bytes of the hash that is a list's id."""
PREFIXES_BYTES = 17 * 65536
"""Most bytes of a list of prefixes: 16 digits and a line's end for each."""
BODIES_BYTES = 32 * 2**20
"""Most bytes of bodies in memory at once. One body is always accepted."""

_PAGE_PATH = re.compile(r"/v1/(pages|claims|checks)/([0-9a-f]{40})")
_SET_PATH = re.compile(r"/v1/sets/([0-9a-f]{32})")
_PREFIXES = re.compile(rb"(?:[0-9a-f]{16}\n){1,65536}")
_NONCE = re.compile(r"[0-9a-f]{32}")


class PageAnswers:
    """Answers requests for the pages of one folder. Thread-safe. Raises: InvalidRuntime if it may not be a cache."""

    def __init__(self, spec: NodeCache) -> None:
        self._folder = os.fspath(spec.path)
        self._counts: Counter[str] = Counter()
        self._cache = ServedCache(spec, self._count)
        self._near = NearAnswers(spec)
        self._claims = ReaderClaims()
        bodies = BODIES_BYTES // spec.page_bytes
        self._bodies = threading.Semaphore(max(1, bodies))

    def answer(self, exchange: Exchange) -> None:
        """Answer one request. Raises: BadHead; BrokenExchange; OSError."""
        head = exchange.head
        page = _PAGE_PATH.fullmatch(head.path)
        if page is not None:
            self._answer_page(exchange, page[1], page[2])
            return
        if head.path == "/v1/objects" and head.method in ("DELETE", "POST"):
            self._answer_objects(exchange)
            return
        set_path = _SET_PATH.fullmatch(head.path)
        if set_path is not None and head.method == "PUT":
            self._store_set(exchange, set_path[1])
            return
        if head.path == RANGES_PATH and head.method == "POST":
            self._send_ranges(exchange)
            return
        if head.path.startswith(PREFIX):
            self._near.answer(exchange)
            return
        if head.path == "/v1/status" and head.method == "GET":
            exchange.send_text(200, json.dumps(self.status()))
            return
        raise BadHead(
            404, "unknown path: this server has pages, claims, checks, sets, objects, near and status"
        )

    def status(self) -> dict[str, object]:
        """Return the figures of `penstock cache ls`."""
        status = self._cache.status()
        for name in ("hits", "misses", "stored", "corrupt"):
            status[name] = self._counts[name]
        return status

    def beat(self) -> None:
        """Show that the server runs, and follow what the loaders need. Call every few seconds."""
        self._cache.beat()
        # Readers of other nodes begin their epochs without a word: what was refused is asked for again.
        self._cache.reopen_share()

    def is_used(self) -> bool:
        """Return whether a loader of this node runs."""
        return self._cache.running_loaders() > 1

    def close(self) -> None:
        """End the sign that the server runs."""
        self._cache.close()

    def _answer_page(self, exchange: Exchange, kind: str, name: str) -> None:
        method = exchange.head.method
        match method, kind:
            case "GET", "pages":
                self.send_page(exchange, page_request(name, exchange.head))
            case "PUT", "pages":
                self._store_page(exchange, name)
            case "DELETE", "claims":
                self._release(name, _nonce(exchange))
                exchange.send_text(200, "released")
            case "POST", "checks":
                verdict = "right"
                was_wrong = self._cache.discard_wrong(name)
                if was_wrong:
                    verdict = "wrong"
                exchange.send_text(200, verdict)
            case _:
                raise BadHead(404, f"{method} of {kind} is not served")

    def _answer_objects(self, exchange: Exchange) -> None:
        """Answer with the number of pages of the objects in the body; with DELETE, delete them first."""
        if exchange.head.nbytes > PREFIXES_BYTES:
            raise BadHead(413, f"a list of prefixes has at most {PREFIXES_BYTES} bytes")
        body = bytearray()
        for piece in exchange.body():
            body += piece
        if not _PREFIXES.fullmatch(body):
            raise BadHead(400, "expected prefixes of page names, 16 hex digits in each line")
        prefixes = frozenset(body.decode().split())
        pages = self._cache.object_pages(prefixes)
        if exchange.head.method == "DELETE":
            for name in pages:
                self._cache.discard(name)
        exchange.send_text(200, str(len(pages)))

    def send_page(self, exchange: Exchange, request: PageRequest) -> None:
        """Answer with a page's bytes, its size if no bytes are asked for, or why it is not here.

        Raises: BadHead; BrokenExchange; OSError.
        """
        page = self._cache.open_page(request.name)
        if page is None:
            exchange.send_text(404, self._verdict(request))
            return
        if request.cut is None:
            exchange.send_text(200, str(page.nbytes))
            return
        start, stop = request.cut
        if stop > page.nbytes:
            raise BadHead(416, f"the page has {page.nbytes} bytes")
        self._counts["hits"] += 1
        head = page_answer_head(start, stop, page.nbytes)
        exchange.send_file(
            head,
            page.descriptor,
            HEADER_BYTES + start,
            stop - start,
        )

    def _send_ranges(self, exchange: Exchange) -> None:
        """Answer with those ranges of a list whose pages are here. Raises: BadHead; BrokenExchange; OSError."""
        if exchange.head.nbytes > LIST_BYTES:
            raise BadHead(413, f"a list of ranges has at most {LIST_BYTES} bytes")
        ranges = parse_ranges(b"".join(map(bytes, exchange.body())))
        pages: list[OpenPageFile] = []  # keeps their files open
        files: list[FileRange] = []
        present = 0
        nbytes = 0
        for number, (name, start, stop) in enumerate(ranges):
            page = self._cache.open_page(name)
            if page is None:
                self._counts["misses"] += 1
                continue
            if stop > page.nbytes:
                raise BadHead(416, f"the page {name} has {page.nbytes} bytes")
            self._counts["hits"] += 1
            pages.append(page)
            files.append(FileRange(page.descriptor, HEADER_BYTES + start, stop - start))
            present |= 1 << number
            nbytes += stop - start
        exchange.send_files(ranges_head(nbytes, present), files)

    def _verdict(self, request: PageRequest) -> str:
        """Return why a page is not here, after a claim if the caller asks for one."""
        self._counts["misses"] += 1
        most = self._cache.page_bytes
        if request.claim_bytes is not None and not 0 < request.claim_bytes <= most:
            raise BadHead(
                413, f"a page of this cluster has 1 to {most} bytes; use one page size on all nodes"
            )
        verdict = self._claim_verdict(request)
        if request.set_id:
            is_set_here = self._cache.touch_set(request.set_id)
            if not is_set_here:
                verdict += UNKNOWN_SET
        return verdict

    def _claim_verdict(self, request: PageRequest) -> str:
        """Return GRANTED, COMING or NOT_STORED for a page that was not here."""
        name = request.name
        if self._claims.has(request.nonce, name):
            return GRANTED
        answer = self._cache.read(name, (), claim=request.claim_bytes)
        if isinstance(answer, Grant):
            file = cast(ClaimFile, answer.nonce)
            is_new = self._claims.begin(request.nonce, ReaderClaim(name, file))
            if is_new:
                return GRANTED
            # The reader gave up before this request was answered.
            self._cache.release(name, file)
            return NOT_STORED
        if answer is Absence.NOT_KEPT or answer is Absence.NO_ROOM:
            return NOT_STORED
        # Also if the page has come since it was looked for: the reader asks again.
        return COMING

    def _release(self, name: str, nonce: str) -> None:
        file = self._claims.end(nonce, name)
        if file is not None:
            self._cache.release(name, file)

    def _store_page(self, exchange: Exchange, name: str) -> None:
        """Receive a claimed page. A page that cannot be stored ends its claim, too: no reader waits for it."""
        head = exchange.head
        nonce = _nonce(exchange)
        if not 0 < head.nbytes <= self._cache.page_bytes:
            self._release(name, nonce)
            raise BadHead(413, f"a page of this cluster has 1 to {self._cache.page_bytes} bytes")
        try:
            with self._bodies:
                body = bytearray()
                for piece in exchange.body():
                    body += piece
                data = bytes(body)
        except OSError:
            self._release(name, nonce)
            raise
        checksum = page_checksum(name, data)
        if head.headers.get(CHECKSUM) != f"{checksum:08x}":
            self._release(name, nonce)
            raise BadHead(400, "the page's bytes do not have their checksum")
        file = self._claims.end(nonce, name)
        is_stored = False
        if file is not None:
            is_stored = self._cache.put(name, file, data)
        if not is_stored:
            exchange.send_text(409, "the claim has ended")
            return
        self._counts["stored"] += 1
        exchange.send_text(200, "stored")

    def _store_set(self, exchange: Exchange, set_id: str) -> None:
        """Receive a list of the objects that a reader needs. set_id: hash of the list."""
        has_room = self._cache.make_room_for_set(exchange.head.nbytes)
        if not has_room:
            raise BadHead(413, f"lists of objects have at most {SETS_BYTES} bytes together")
        # Through a file: sixteen callers may send one at once.
        path, descriptor = self._cache.temporary_file()
        digest = hashlib.blake2b(digest_size=ID_BYTES)
        try:
            with open(descriptor, "wb") as file:
                for piece in exchange.body():
                    digest.update(piece)
                    file.write(piece)
            if digest.hexdigest() != set_id:
                raise BadHead(400, "the list of objects does not have its id")
            self._cache.adopt_set(set_id, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
        exchange.send_text(200, "stored")

    def _count(self, name: str, amount: int) -> None:
        if name == "cache_corrupt":
            self._counts["corrupt"] += amount


def _nonce(exchange: Exchange) -> str:
    """Return the nonce of a request. Raises: BadHead."""
    text = exchange.head.headers.get(NONCE, "")
    if not _NONCE.fullmatch(text):
        raise BadHead(400, f"the header {NONCE} is missing or no nonce")
    return text
