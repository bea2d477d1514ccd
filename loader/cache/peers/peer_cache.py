"""The cache of a cluster: each page lies at its owner, which is this node or a peer.

A call asks the owners of all its pages at once. If an owner grants a page, the caller reads it from the bucket,
and sends it to the owner from a bounded queue. Whatever a peer does, the call ends within `WAIT_S` and goes on with
ranges of the bucket.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from queue import Full, Queue

from ..node_cache import Count, OpenCache, Sets
from ..object_sets import ObjectSet
from ..page_cache import Absence, Answer, PageQuestion
from ..pages import page_checksum
from ..spec import NodeCache
from . import heads
from .client import PeerClient
from .connection import idle_connections
from .health import PeerFault
from .lifetime import cache_token, live_server
from .members import CacheMembers
from .page_questions import Nonces, OwnerQuestions, PageQuestions, PeerNonce, RangeQuestions
from .training_nodes import member_address

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


class PeerCache:
    """One loader's access to the cache of a cluster. Thread-safe.

    sets: the objects that this loader reads. count(name, amount) also receives cache_peer_hits, cache_peer_bytes,
    cache_peer_misses and cache_peer_down. late_s: no answer of a peer is late before.

    Raises: InvalidRuntime if the folder may not be a cache, if several peers are this machine, or if the server of this
    node does not come up.
    """

    def __init__(
        self,
        spec: NodeCache,
        count: Count,
        sets: Sets = tuple,
        *,
        late_s: float = 0.0,
    ) -> None:
        assert spec.peers is not None
        self.page_bytes = spec.page_bytes
        self.count = count
        self._folder = os.fspath(spec.path)
        self._members = CacheMembers(tuple(spec.peers))
        self._last_members: Sequence[str] = self._members.all()
        self._nodes = max(1, len(self._last_members))
        self._load_sets = sets
        self._whole_sets: Sequence[ObjectSet] | None = None
        self._own_sets: Sequence[ObjectSet] = ()
        self._sets_nodes = 0  # nodes among which `_own_sets` divides the objects
        self._claims: dict[str, PeerNonce] = {}  # page -> claim of this process at a peer
        self._lock = threading.Lock()
        self._sets_lock = threading.Lock()
        self.local = OpenCache(spec, count, self._sets_of_node)
        self.own_address = member_address(spec, self._members.all())
        self._client = PeerClient(
            cache_token(self._folder),
            spec.page_bytes,
            late_s=late_s,
            kept=idle_connections(self._nodes),
        )
        self._unheard: deque[tuple[str, PeerNonce]] = deque()
        """Claims to release at peers that may be left out."""
        self._nonces = Nonces()
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
            self.count("cache_peer_us", int(1e6 * POLL_S))

    def read_all(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        """Return the answer to each question. The owners are asked at once."""
        return self._read_all(questions, only_present=False)

    def read_present(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        """Return the answer to each question, by one list of ranges for each owner."""
        return self._read_all(questions, only_present=True)

    def _read_all(self, questions: Sequence[PageQuestion], *, only_present: bool) -> list[Answer]:
        """Return the answer to each question: own pages from the folder, the others from their owners."""
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
        remote_answers = self._ask(remote, owners, only_present=only_present)
        for number, answer in zip(numbers, remote_answers, strict=True):
            answers[number] = answer
        return answers

    def put(self, name: str, nonce: Hashable, data: bytes) -> bool:
        """Store a claimed page, at a peer by the queue."""
        if not isinstance(nonce, PeerNonce):
            return self.local.put(name, nonce, data)
        claim = nonce
        if not self._forget_claim(name, claim):
            return False

        def send() -> None:
            checksum = page_checksum(name, data)
            headers = f"{heads.NONCE}: {claim.nonce}\r\n{heads.CHECKSUM}: {checksum:08x}\r\n"
            answer = self._tell(claim.address, "PUT", f"/v1/pages/{name}", headers, data)
            if answer is None:
                self._release_later(name, claim)

        try:
            self._queue.put_nowait(send)
        except Full:
            self._end_claim(name, claim)
            return False
        return True

    def release(self, name: str, nonce: Hashable) -> None:
        """End a claim without a page. It expires at a peer that cannot be reached."""
        if not isinstance(nonce, PeerNonce):
            self.local.release(name, nonce)
        elif self._forget_claim(name, nonce):
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
        """Show that this loader runs (`OpenCache.beat`), and follow the members."""
        members = self._members.all()
        if members != self._last_members:
            self._last_members = members
            self._follow(members)
        self.local.beat()

    def _follow(self, members: Sequence[str]) -> None:
        """Divide the objects among other members than before."""
        if self.own_address is None:
            record = live_server(self._folder)
            if record is not None and record.address in members:
                self.own_address = record.address
        nodes = max(1, len(members))
        if nodes != self._nodes:
            self._nodes = nodes
            self._next_sets_s.clear()
            self.local.reload_sets()

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

    def _ask(
        self,
        questions: Sequence[PageQuestion],
        owners: Sequence[str],
        *,
        only_present: bool = False,
    ) -> list[Answer]:
        """Ask peers for pages, all at once, and return their answers."""
        if not questions:
            return []
        begun_s = time.perf_counter()
        questions = self._with_claims_that_fit(questions)
        by_owner: dict[str, list[int]] = {}  # owner -> numbers of its questions
        for number, owner in enumerate(owners):
            by_owner.setdefault(owner, []).append(number)
        set_id = self._set_id()
        answers: list[Answer] = [Absence.NOT_KEPT] * len(questions)
        sent: list[OwnerQuestions] = []
        try:
            # In one order: calls that wait for each other's peers would wait for ever.
            for owner in sorted(by_owner):
                own = [questions[number] for number in by_owner[owner]]
                owner_questions: OwnerQuestions
                if only_present:
                    owner_questions = RangeQuestions(self._client, owner, own)
                else:
                    owner_questions = PageQuestions(self._client, owner, own, self._nonces, set_id)
                sent.append(owner_questions)
                owner_questions.send()
            deadline_s = time.monotonic() + self._client.deadline_s()
            for owner_questions in sent:
                own_answers = owner_questions.answers(deadline_s)
                numbers = by_owner[owner_questions.owner]
                for number, answer in zip(numbers, own_answers, strict=True):
                    answers[number] = answer
        finally:
            for owner_questions in sent:
                owner_questions.close()
                self._note(owner_questions)
        if any(owner_questions.has_new_fault for owner_questions in sent):
            self._client.pause_after_fault()
        wait_s = time.perf_counter() - begun_s
        self.count("cache_peer_us", int(1e6 * wait_s))
        return answers

    def _note(self, questions: OwnerQuestions) -> None:
        """Count the answers of one owner, and remember its grants."""
        counts = {
            "cache_peer_hits": questions.hits,
            "cache_peer_bytes": questions.nbytes,
            "cache_peer_misses": questions.misses,
            "cache_peer_down": questions.faults,
        }
        for name, amount in counts.items():
            if amount:
                self.count(name, amount)
        if questions.grants:
            with self._lock:
                self._claims.update(questions.grants)
        for name, claim in questions.unheard_claims():
            self._release_later(name, claim)
        if questions.lacks_set:
            self._send_sets(questions.owner)

    def _release_later(self, name: str, claim: PeerNonce) -> None:
        """Let the sender release a claim."""
        self._unheard.append((name, claim))
        with suppress(Full):  # then the sender is at work, and comes to it
            self._queue.put_nowait(self._release_all_unheard)

    def _release_all_unheard(self) -> None:
        """Release the claims that peers may have granted to requests without an answer."""
        requests: dict[str, list[bytes]] = {}  # peer -> releases
        while self._unheard:
            name, claim = self._unheard.popleft()
            headers = f"{heads.NONCE}: {claim.nonce}\r\n"
            request = self._client.request(claim.address, "DELETE", f"/v1/claims/{name}", headers)
            requests.setdefault(claim.address, []).append(request)
        for address, releases in requests.items():
            # Although the peer is left out: it may have granted the page after the reader's deadline.
            with suppress(PeerFault):
                call = self._client.begin(address, releases, is_forced=True)
                # A peer that answers later has the releases all the same.
                deadline_s = time.monotonic() + self._client.deadline_s()
                for _ in releases:
                    call.answer(deadline_s)

    def _with_claims_that_fit(self, questions: Sequence[PageQuestion]) -> Sequence[PageQuestion]:
        """Return the questions, without the claims on pages that the queue would drop.

        A page that is read whole and dropped leaves the bucket again.
        """
        room = self._queue_pages - len(self._claims) - self._queue.qsize()
        if room >= len(questions):
            return questions
        fitting: list[PageQuestion] = []
        for question in questions:
            if question.claim is not None:
                room -= 1
            if room < 0:
                question = question._replace(claim=None)
            fitting.append(question)
        return fitting

    def _forget_claim(self, name: str, claim: PeerNonce) -> bool:
        """Forget a claim, which its page or a release ends from now on. Return whether this call is the first."""
        with self._lock:
            if self._claims.get(name) != claim:
                return False
            del self._claims[name]
            return True

    def _end_claim(self, name: str, claim: PeerNonce) -> None:
        """Release a claim at its peer now; later, if the peer does not answer."""
        headers = f"{heads.NONCE}: {claim.nonce}\r\n"
        answer = self._tell(claim.address, "DELETE", f"/v1/claims/{name}", headers)
        if answer is None:
            self._release_later(name, claim)

    def _tell(self, address: str, method: str, path: str, headers: str = "", body: bytes = b"") -> str | None:
        """Send a request whose failure costs nothing but a page; return the answer's text, None without one."""
        try:
            answer = self._client.ask(
                address,
                method,
                path,
                headers=headers,
                body=body,
                wait_s=SEND_S,
            )
        except PeerFault:
            self.count("cache_peer_down", 1)
            return None
        return answer.text

    def _send_queued(self) -> None:
        """Send what is in the queue until None comes; the sender's thread."""
        while True:
            send = self._queue.get()
            if send is None:
                return
            send()
            if self._unheard:
                self._release_all_unheard()

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

    def _set_id(self) -> str:
        """Return the id of this loader's set of objects; "" without one."""
        sets = self._own_sets
        if self._sets_nodes != self._nodes:
            sets = self._sets_of_node()
        return sets[0].id if sets else ""

    def _sets_of_node(self) -> Sequence[ObjectSet]:
        """Return this loader's sets of objects, with the bytes that one node keeps of each: an n-th of them.

        Computed anew when the number of nodes has changed.
        """
        with self._sets_lock:
            if self._whole_sets is None:
                self._whole_sets = self._load_sets()
            if self._sets_nodes != self._nodes:
                n_nodes = self._nodes
                shares: list[ObjectSet] = []
                for objects in self._whole_sets:
                    share = ObjectSet.of_shares(objects, n_nodes)
                    shares.append(share)
                self._own_sets = shares
                self._sets_nodes = n_nodes  # last: `_set_id` reads both without the lock
            return self._own_sets
