"""The questions of one call to one owner of pages, and their answers."""

import itertools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..page_cache import Absence, Answer, Buffer, Grant, PageQuestion
from .client import PeerCall, PeerClient
from .heads import (
    COMING,
    GRANTED,
    MOST_RANGES,
    UNKNOWN_SET,
    PageRange,
    PageRequest,
    page_request_head,
    ranges_request,
)
from .health import PeerFault

ANSWER_BYTES = 2**22
"""Bytes of ranges beyond which a list ends: an answer is in memory whole."""

TOGETHER_BYTES = 2**16
"""Bytes of small ranges that one system call receives together. A large range is received by itself.

Cutting it from the whole answer would copy it. So large a block of memory may also go back to the kernel each time, for
250 page faults a megabyte.
"""


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


class OwnerQuestions(ABC):
    """Questions to one owner. Call `send`, then `answers`, which sets the figures.

    n: their number.
    """

    def __init__(self, client: PeerClient, owner: str, n: int) -> None:
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
        self._n = n
        self._n_present = 0  # pages that were only asked for by name
        self._call: PeerCall | None = None
        self._may_have_claims = True

    def send(self) -> None:
        """Send the questions. A fault of the owner shows in `answers`."""
        requests = self._requests()
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
                # `extend` keeps the answers that came before a fault.
                answers.extend(self._read_answers(self._call, deadline_s))
            except PeerFault:
                self.has_new_fault = True  # the client logs it and leaves the peer out
        self.faults = self._n - len(answers)
        self.misses = self._n - self.hits - self._n_present
        answers += [Absence.NOT_KEPT] * self.faults
        return answers

    def close(self) -> None:
        """End the call, if an error kept its answers from being read."""
        if self._call is not None:
            self._call.close()

    def unheard_claims(self) -> Iterator[tuple[str, PeerNonce]]:
        """Yield (page, claim) of questions without an answer: the owner may have granted them."""
        return iter(())

    @abstractmethod
    def _requests(self) -> Sequence[bytes]:
        """Return the requests, in the order of their answers."""

    @abstractmethod
    def _read_answers(self, call: PeerCall, deadline_s: float) -> Iterator[Answer]:
        """Yield the answers to the questions. Raises: PeerFault."""


class PageQuestions(OwnerQuestions):
    """Questions to one owner for pages, which may claim them.

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
        super().__init__(client, owner, len(questions))
        self._questions = questions
        self._n_heard = 0  # questions with an answer
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

    def unheard_claims(self) -> Iterator[tuple[str, PeerNonce]]:
        """Yield (page, claim) of questions without an answer: the owner may have granted them."""
        if not self._may_have_claims:
            return
        for page in self._pages[self._n_heard :]:
            if page.claim_bytes is not None:
                yield page.name, PeerNonce(self.owner, page.nonce)

    def _requests(self) -> list[bytes]:
        authorization = self._client.authorization
        requests: list[bytes] = []
        for page in self._pages:
            head = page_request_head(self.owner, authorization, page)
            requests.append(head.encode("latin-1"))
        return requests

    def _read_answers(self, call: PeerCall, deadline_s: float) -> Iterator[Answer]:
        for question, page in zip(self._questions, self._pages, strict=True):
            answer = self._answer(call, question, page, deadline_s)
            self._n_heard += 1
            yield answer

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
            # The question was only whether the owner has the page.
            self._n_present += 1
            return []
        if answer.status != 404:
            shown = answer.text[:200]
            raise call.fault(OSError(0, f"it answered {answer.status}: {shown}"))
        # The text is the verdict, and ends with UNKNOWN_SET if the owner lacks the set's list.
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


class RangeQuestions(OwnerQuestions):
    """Questions to one owner for cuts of pages, in as few lists as possible."""

    def __init__(self, client: PeerClient, owner: str, questions: Sequence[PageQuestion]) -> None:
        super().__init__(client, owner, len(questions))
        self._questions = questions
        self._lists = _range_lists(questions)

    def _requests(self) -> list[bytes]:
        authorization = self._client.authorization
        return [ranges_request(self.owner, authorization, ranges) for ranges in self._lists]

    def _read_answers(self, call: PeerCall, deadline_s: float) -> Iterator[Answer]:
        pieces = self._pieces(call, deadline_s)
        for question in self._questions:
            of_page: list[Buffer] = []
            for _ in question.cuts:
                piece = next(pieces)
                if piece is not None:
                    of_page.append(piece)
            if len(of_page) < len(question.cuts):
                yield Absence.NOT_KEPT
                continue
            self.hits += 1
            for piece in of_page:
                self.nbytes += len(piece)
            yield of_page

    def _pieces(self, call: PeerCall, deadline_s: float) -> Iterator[Buffer | None]:
        """Yield the bytes of each cut of each question; None if the owner lacks the page. Raises: PeerFault."""
        for ranges in self._lists:
            sizes = [stop - start for _, start, stop in ranges]
            present = call.begin_ranges(deadline_s, sizes)
            pieces: list[Buffer | None] = [None] * len(sizes)
            for numbers in receive_parts(present, sizes):
                nbytes = sum(sizes[number] for number in numbers)
                body = call.read_piece(nbytes, deadline_s)
                if len(numbers) == 1:
                    pieces[numbers[0]] = body
                    continue
                view = memoryview(body)
                for number in numbers:
                    pieces[number] = view[: sizes[number]]
                    view = view[sizes[number] :]
            call.end_answer()
            yield from pieces


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


def receive_parts(present: int, sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield numbers of ranges to receive together. Bit i of `present` is set if range i is there."""
    numbers: list[int] = []
    nbytes = 0
    for number, size in enumerate(sizes):
        if not present >> number & 1:
            continue
        numbers.append(number)
        nbytes += size
        if nbytes >= TOGETHER_BYTES:
            yield numbers
            numbers = []
            nbytes = 0
    if numbers:
        yield numbers


def _range_lists(questions: Sequence[PageQuestion]) -> list[list[PageRange]]:
    """Return the cuts of all questions, in order, as lists that one request may have."""
    lists: list[list[PageRange]] = []
    ranges: list[PageRange] = []
    nbytes = 0
    for question in questions:
        for cut in question.cuts:
            ranges.append(PageRange(question.name, cut.start, cut.stop))
            nbytes += cut.stop - cut.start
            if len(ranges) == MOST_RANGES or nbytes > ANSWER_BYTES:
                lists.append(ranges)
                ranges = []
                nbytes = 0
    if ranges:
        lists.append(ranges)
    return lists
