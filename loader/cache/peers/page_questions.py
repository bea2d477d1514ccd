"""The questions of one call to one owner of pages, and their answers."""

import itertools
import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..answers import Absence, Answer, Buffer, Grant, PageQuestion
from .client import PeerCall, PeerClient, PeerFault
from .heads import COMING, GRANTED, UNKNOWN_SET, PageRequest, page_request_head


class PeerNonce(NamedTuple):
    """A claim at a peer."""

    address: str
    nonce: str
    """As this process chose it."""


class Nonces:
    """New nonces, which no other process chooses. Thread-safe."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()

    def new(self) -> str:
        """Return a nonce of 32 hex digits."""
        return f"{self._prefix}{next(self._numbers):016x}"


class PageQuestions:
    """Questions to one owner. Call `send`, then `answers`, which sets the figures.

    set_id: of the objects that this loader reads; empty without one.
    """

    def __init__(
        self,
        client: PeerClient,
        owner: str,
        questions: Sequence[PageQuestion],
        nonces: Nonces,
        set_id: str,
    ) -> None:
        self.owner = owner
        self.hits = 0
        """Pages whose bytes came."""
        self.nbytes = 0
        """Their bytes."""
        self.misses = 0
        """Pages that the owner does not have, or that it did not answer for."""
        self.faults = 0
        """Questions without an answer."""
        self.grants: dict[str, PeerNonce] = {}
        """Page -> claim of this process."""
        self.has_new_fault = False
        """True if the owner was not left out before."""
        self.lacks_set = False
        """True if the owner has no list of the set's objects."""
        self._client = client
        self._questions = questions
        self._call: PeerCall | None = None
        self._n_heard = 0
        self._n_present = 0  # pages that were only asked for by name
        self._may_have_claims = True
        self._pages: list[PageRequest] = []
        for question in questions:
            nonce = ""
            if question.claim is not None:
                nonce = nonces.new()
            page = PageRequest(
                question.name,
                _range(question.cuts),
                question.claim,
                nonce,
                set_id,
            )
            self._pages.append(page)

    def send(self) -> None:
        """Send the questions. A fault of the owner shows in `answers`."""
        authorization = self._client.authorization
        requests: list[bytes] = []
        for page in self._pages:
            head = page_request_head(self.owner, authorization, page)
            requests.append(head.encode("latin-1"))
        try:
            self._call = self._client.begin(self.owner, requests)
        except PeerFault as fault:
            self._may_have_claims = not fault.is_unsent
            self.has_new_fault = not fault.is_known

    def answers(self, deadline_s: float) -> list[Answer]:
        """Return the answers. From the owner's first fault on, pages are not kept.

        deadline_s: of `time.monotonic`.
        """
        answers: list[Answer] = []
        if self._call is not None:
            try:
                for question, page in zip(self._questions, self._pages, strict=True):
                    answer = self._answer(self._call, question, page, deadline_s)
                    answers.append(answer)
                    self._n_heard += 1
            except PeerFault:
                self.has_new_fault = True  # the client logs it and leaves the peer out
        n = len(self._questions)
        self.faults = n - len(answers)
        self.misses = n - self.hits - self._n_present
        answers += [Absence.NOT_KEPT] * self.faults
        return answers

    def close(self) -> None:
        """End the call, if an error kept its answers from being read."""
        if self._call is not None:
            self._call.close()

    def unheard_claims(self) -> Iterator[tuple[str, PeerNonce]]:
        """Yield (page, claim) of questions without an answer: the owner may have granted them."""
        if not self._may_have_claims:
            return
        for page in self._pages[self._n_heard :]:
            if page.claim_bytes is not None:
                yield page.name, PeerNonce(self.owner, page.nonce)

    def _answer(
        self,
        call: PeerCall,
        question: PageQuestion,
        page: PageRequest,
        deadline_s: float,
    ) -> Answer:
        """Read the answer to one question. Raises: PeerFault."""
        answer = call.answer(deadline_s, page.cut)
        data = answer.data
        if data is not None and page.cut is not None:
            start, _ = page.cut
            self.hits += 1
            self.nbytes += len(data)
            return _cut(data, question.cuts, start)
        if answer.status == 200 and page.cut is None:
            self._n_present += 1
            return []
        if answer.status != 404:
            shown = answer.text[:200]
            raise call.fault(OSError(0, f"it answered {answer.status}: {shown}"))
        verdict = answer.text.removesuffix(UNKNOWN_SET)
        if verdict != answer.text:
            self.lacks_set = True
        if verdict == GRANTED and question.claim is not None:
            claim = PeerNonce(self.owner, page.nonce)
            self.grants[page.name] = claim
            return Grant(claim)
        if verdict == COMING:
            return Absence.COMING
        return Absence.NOT_KEPT


def _range(cuts: Sequence[slice]) -> tuple[int, int] | None:
    """Return the range of a page around its cuts, [start, stop); None without cuts."""
    if not cuts:
        return None
    start = cuts[0].start
    stop = cuts[0].stop
    for cut in cuts:
        start = min(start, cut.start)
        stop = max(stop, cut.stop)
    return start, stop


def _cut(data: bytes, cuts: Sequence[slice], start: int) -> list[Buffer]:
    """Return the cuts of a page. data: the page's bytes from `start` on, as `_range` has them."""
    if len(cuts) == 1:
        return [data]  # not a view: a caller may want bytes
    view = memoryview(data)
    pieces: list[Buffer] = []
    for cut in cuts:
        begin = cut.start - start
        end = cut.stop - start
        pieces.append(view[begin:end])
    return pieces
