"""The cache of a cluster: each page lies at its owner, which is this node or a peer.

A call asks the owners of all its pages at once. A page that its owner grants is read from the bucket by the caller,
which sends it to the owner from a bounded queue. Whatever a peer does, the call ends within `WAIT_S` and goes on with
ranges of the bucket.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from typing import NamedTuple

from ...errors import InvalidRuntime
from ...storage.cloud.http_connection import PLAIN
from ..answers import Absence, Answer, Grant, PageQuestion
from ..node_cache import Count, OpenCache, Sets
from ..object_sets import ObjectSet
from ..pages import page_checksum
from ..spec import NodeCache
from . import heads
from .client import PeerCall, PeerClient, PeerFault
from .lifetime import cache_token, live_server, start_server
from .members import CacheMembers, is_local
from .training_nodes import listen_address, server_arguments

logger = logging.getLogger(__name__)

QUEUE_BYTES = 64 * 2**20
"""Most bytes of pages that are claimed at peers or wait to be sent there. A page more is not claimed."""
POLL_S = 0.02
"""Seconds between two questions for a page that another reader is fetching."""
SEND_S = 2.0
"""Longest time to send a page, or to end a claim. Nothing waits for it but the queue."""
SETS_S = 30.0
"""Seconds after which the lists of objects go again to a peer that does not have them."""
CLOSE_S = 2.0
"""Longest wait for the queue at the end."""


class PeerNonce(NamedTuple):
    """A claim at a peer."""

    address: str
    nonce: str
    """As the peer wrote it."""


class PeerCache:
    """One loader's access to the cache of a cluster. Thread-safe.

    sets: the objects that this loader reads. count(name, amount) also receives cache_peer_hits, cache_peer_bytes,
    cache_peer_misses and cache_peer_down.

    Raises: InvalidRuntime if the folder may not be a cache, if several peers are this machine, or if the server of this
    node does not come up.
    """

    def __init__(self, spec: NodeCache, count: Count, sets: Sets = tuple) -> None:
        assert spec.peers is not None
        self.page_bytes = spec.page_bytes
        self.count = count
        self._folder = os.fspath(spec.path)
        self._members = CacheMembers(tuple(spec.peers))
        self._nodes = max(1, len(self._members.all()))
        self._load_sets = sets
        self._own_sets: Sequence[ObjectSet] | None = None
        self._claims: dict[str, PeerNonce] = {}  # page -> claim of this process at a peer
        self._lock = threading.Lock()
        self._sets_lock = threading.Lock()
        self.local = OpenCache(spec, count, self._sets_of_node)
        self.own_address = member_address(spec, self._members.all())
        self._client = PeerClient(cache_token(self._folder), spec.page_bytes)
        self._queue_pages = max(1, QUEUE_BYTES // spec.page_bytes)
        self._queue: Queue[Callable[[], object] | None] = Queue(self._queue_pages)
        self._next_sets_s: dict[str, float] = {}  # address -> earliest time to send the lists again
        self._sender = threading.Thread(
            target=self._send_queued,
            name="penstock-cache-sender",
            daemon=True,
        )
        self._sender.start()
        if self.own_address is None:
            logger.info("node cache %s: this machine is none of the peers: it keeps no pages", self._folder)

    @property
    def limit_bytes(self) -> int | None:
        """Most bytes of this node's pages; None if unknown."""
        return self.local.limit_bytes

    @property
    def peers(self) -> int:
        """Nodes that keep pages for each other."""
        return self._nodes

    def read(
        self,
        name: str,
        cuts: Sequence[slice],
        *,
        claim: int | None = None,
        wait_s: float | None = None,
    ) -> Answer:
        """Return a page's bytes, or a claim, or why there is neither (`PageCache.read`)."""
        owner = self._owner(name)
        if owner is None:
            return self.local.read(
                name,
                cuts,
                claim=claim,
                wait_s=wait_s,
            )
        question = PageQuestion(name, cuts, claim)
        until_s = time.monotonic() + (wait_s or 0.0)
        while True:
            (answer,) = self._ask([question], [owner])
            next_s = time.monotonic() + POLL_S
            if answer is not Absence.COMING or next_s > until_s:
                return answer
            time.sleep(POLL_S)

    def read_all(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        """Return the answer to each question. The owners are asked at once."""
        answers: list[Answer] = [Absence.NOT_KEPT] * len(questions)
        numbers: list[int] = []  # of the questions for peers
        remote: list[PageQuestion] = []
        owners: list[str] = []
        for number, question in enumerate(questions):
            owner = self._owner(question.name)
            if owner is None:
                answers[number] = self.local.read(
                    question.name,
                    question.cuts,
                    claim=question.claim,
                )
                continue
            numbers.append(number)
            remote.append(question)
            owners.append(owner)
        remote_answers = self._ask(remote, owners)
        for number, answer in zip(numbers, remote_answers, strict=True):
            answers[number] = answer
        return answers

    def put(self, name: str, nonce: Hashable, data: bytes) -> bool:
        """Store a claimed page, at a peer by the queue."""
        if not isinstance(nonce, PeerNonce):
            return self.local.put(name, nonce, data)
        claim = nonce
        if not self._hand_over(name, claim):
            return False

        def send() -> None:
            checksum = page_checksum(name, data)
            headers = f"{heads.NONCE}: {claim.nonce}\r\n{heads.CHECKSUM}: {checksum:08x}\r\n"
            self._tell(claim.address, "PUT", f"/v1/pages/{name}", headers, data)

        try:
            self._queue.put_nowait(send)
        except Full:
            self._end_claim(name, claim)
            return False
        return True

    def release(self, name: str, nonce: Hashable) -> None:
        """End a claim without a page. At a peer it has ended, or will expire there, if the peer does not answer."""
        if not isinstance(nonce, PeerNonce):
            self.local.release(name, nonce)
        elif self._hand_over(name, nonce):
            self._end_claim(name, nonce)

    def discard(self, name: str) -> None:
        """Delete a page of this node whose bytes were wrong; let a peer check its own."""
        owner = self._owner(name)
        if owner is None:
            self.local.discard(name)
            return

        def check() -> None:
            answer = self._tell(owner, "POST", f"/v1/checks/{name}")
            if answer == "wrong":
                self._client.report_wrong_page(owner)

        with suppress(Full):
            self._queue.put_nowait(check)

    def beat(self) -> None:
        """Show that this loader runs (`OpenCache.beat`)."""
        self.local.beat()

    def begin_epoch(self) -> None:
        """Note that the order begins again."""
        self.local.begin_epoch()

    def close(self) -> None:
        """Send what waits, for a short time, and close all connections."""
        with suppress(Full):
            self._queue.put(None, timeout=CLOSE_S)
            self._sender.join(CLOSE_S)
        self._client.close()
        self.local.close()

    def is_own(self, name: str) -> bool:
        """Return whether this node owns a page."""
        return self._owner(name) is None

    def _owner(self, name: str) -> str | None:
        """Return the address of the peer that owns a page; None if this node does."""
        owner = self._members.owner(name)
        return None if owner == self.own_address else owner

    def _ask(self, questions: Sequence[PageQuestion], owners: Sequence[str]) -> list[Answer]:
        """Ask peers for pages, all at once, and return their answers."""
        calls: list[PeerCall | None] = []
        set_header = self._set_header()
        for question, owner in zip(questions, owners, strict=True):
            call = self._begin(question, owner, set_header)
            calls.append(call)
        deadline_s = time.monotonic() + self._client.deadline_s()
        answers: list[Answer] = []
        for question, call in zip(questions, calls, strict=True):
            answer: Answer = Absence.NOT_KEPT
            if call is not None:
                answer = self._finish(question, call, deadline_s)
            if isinstance(answer, Absence | Grant):
                self.count("cache_peer_misses", 1)
            answers.append(answer)
        return answers

    def _begin(
        self,
        question: PageQuestion,
        owner: str,
        set_header: str,
    ) -> PeerCall | None:
        """Send a question; None if its owner is out of order."""
        headers = set_header
        first, stop = _range(question)
        if stop > first:
            headers += f"Range: bytes={first}-{stop - 1}\r\n"
        if question.claim is not None and self._has_room_to_send():
            headers += f"{heads.CLAIM}: {question.claim}\r\n"
        path = f"/v1/pages/{question.name}"
        try:
            return self._client.begin(owner, "GET", path, headers)
        except PeerFault:
            self.count("cache_peer_down", 1)
            return None

    def _finish(
        self,
        question: PageQuestion,
        call: PeerCall,
        deadline_s: float,
    ) -> Answer:
        """Return the answer to a question that was sent."""
        if self._client.is_left_out(call.address):
            # An earlier question of this call found a fault: waiting for each would add up.
            call.abandon()
            return Absence.NOT_KEPT
        try:
            return self._answer(question, call, deadline_s)
        except PeerFault:
            self.count("cache_peer_down", 1)
            return Absence.NOT_KEPT

    def _answer(
        self,
        question: PageQuestion,
        call: PeerCall,
        deadline_s: float,
    ) -> Answer:
        """Read the answer to one question. Raises: PeerFault."""
        first, stop = _range(question)
        nbytes = stop - first
        answer = call.answer(nbytes, deadline_s)
        if answer.status == PLAIN:
            data = call.body(first, nbytes)
            self.count("cache_peer_hits", 1)
            self.count("cache_peer_bytes", nbytes)
            view = memoryview(data)
            return [view[cut.start - first : cut.stop - first] for cut in question.cuts]
        is_whether = answer.status == 200 and not question.cuts
        if not is_whether and answer.status != 404:
            shown = answer.text[:200]
            raise call.fault(OSError(0, f"it answered {answer.status}: {shown}"))
        call.done()
        if is_whether:
            return []
        verdict = answer.text.removesuffix(heads.UNKNOWN_SET)
        if verdict != answer.text:
            self._send_sets(call.address)
        if verdict.startswith(heads.GRANTED) and question.claim is not None:
            nonce = verdict.removeprefix(heads.GRANTED)
            claim = PeerNonce(call.address, nonce.strip())
            with self._lock:
                self._claims[question.name] = claim
            return Grant(claim)
        if verdict == heads.COMING:
            return Absence.COMING
        return Absence.NOT_KEPT

    def _has_room_to_send(self) -> bool:
        """Return whether the queue takes another page: one that it drops would leave the bucket again."""
        return len(self._claims) + self._queue.qsize() < self._queue_pages

    def _hand_over(self, name: str, claim: PeerNonce) -> bool:
        """Forget a claim, which its page or a release ends from now on. Return whether this call is the first."""
        with self._lock:
            if self._claims.get(name) != claim:
                return False
            del self._claims[name]
            return True

    def _end_claim(self, name: str, claim: PeerNonce) -> None:
        headers = f"{heads.NONCE}: {claim.nonce}\r\n"
        self._tell(claim.address, "DELETE", f"/v1/claims/{name}", headers)

    def _tell(self, address: str, method: str, path: str, headers: str = "", body: bytes = b"") -> str:
        """Send a request whose failure costs nothing but a page; return the answer's text, "" without one."""
        try:
            call = self._client.begin(address, method, path, headers, body)
            answer = call.answer(0, time.monotonic() + SEND_S)
        except PeerFault:
            self.count("cache_peer_down", 1)
            return ""
        call.done()
        return answer.text

    def _send_queued(self) -> None:
        while True:
            send = self._queue.get()
            if send is None:
                return
            send()

    def _send_sets(self, address: str) -> None:
        """Send the lists of this loader's objects to a peer that does not have them."""
        now_s = time.monotonic()
        if now_s < self._next_sets_s.get(address, 0.0):
            return
        self._next_sets_s[address] = now_s + SETS_S
        for objects in self._sets_of_node():
            path = f"/v1/sets/{objects.id}"
            send = partial(self._tell, address, "PUT", path, body=objects.body)
            with suppress(Full):
                self._queue.put_nowait(send)

    def _set_header(self) -> str:
        sets = self._sets_of_node()
        if not sets:
            return ""
        return f"{heads.SET}: {sets[0].id}\r\n"

    def _sets_of_node(self) -> Sequence[ObjectSet]:
        """Return the objects of this loader, with the bytes of each that one node keeps."""
        with self._sets_lock:
            if self._own_sets is None:
                own_sets: list[ObjectSet] = []
                for objects in self._load_sets():
                    share = ObjectSet.of_shares(objects.sizes(), self._nodes)
                    own_sets.append(share)
                self._own_sets = own_sets
            return self._own_sets


def _range(question: PageQuestion) -> tuple[int, int]:
    """Return the range of a page around the cuts of a question: (start, stop)."""
    if not question.cuts:
        return 0, 0
    start = min(cut.start for cut in question.cuts)
    stop = max(cut.stop for cut in question.cuts)
    return start, stop


def member_address(spec: NodeCache, members: Sequence[str]) -> str | None:
    """Return this node's address among the members, whose server runs from now on; None if it is none of them."""
    folder = os.fspath(spec.path)
    record = live_server(folder)
    if record is not None and record.address in members:
        return record.address
    local = [address for address in members if is_local(address)]
    names = ", ".join(members)
    if record is not None:
        raise InvalidRuntime(
            f"the cache server of {folder} serves at {record.address}, which is none of the peers {names}: give the "
            "peers the address that `penstock cache serve --address` has"
        )
    if not local:
        return None
    if len(local) > 1:
        raise InvalidRuntime(
            f"several of the peers {names} are this machine: start `penstock cache serve` for each folder before the "
            "training"
        )
    (address,) = local
    start_server(
        folder,
        listen_address(address),
        address,
        server_arguments(spec),
    )
    return address
