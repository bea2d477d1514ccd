"""Ranges of several objects that may be in the cache: their pages are asked for by one call."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from ..storage import Blob, ByteRange
from .page_cache import Absence, Answer, Buffer, Grant, PageQuestion
from .pages import page_name


class Content(NamedTuple):
    """Identity of an object's bytes; its pages are named by it."""

    sha256: str
    """SHA-256 of the bytes, in hex."""
    nbytes: int
    """Size in bytes."""


class RequestedObject(NamedTuple):
    """Ranges of one object."""

    content: Content
    n_pages: list[int]
    """Pages of each range."""


class RequestedRanges:
    """Ranges of objects, and the questions for their pages. Objects are numbered in the order of `add`."""

    def __init__(self, page_bytes: int) -> None:
        self.questions: list[PageQuestion] = []
        """Questions without claims, in the order of the ranges."""
        self._page_bytes = page_bytes
        self._objects: list[RequestedObject | None] = []

    def add(self, content: Content | None, spans: Sequence[ByteRange]) -> None:
        """Add ranges of an object; None for one without pages, whose ranges are not asked for."""
        if content is None or _ends_behind(spans, content.nbytes):
            self._objects.append(None)
            return
        n_pages: list[int] = []
        for offset, nbytes in spans:
            n = self._add_range(content, offset, nbytes)
            n_pages.append(n)
        requested = RequestedObject(content, n_pages)
        self._objects.append(requested)

    def blobs(self, answers: Iterable[Answer]) -> list[list[Blob] | None]:
        """Return the ranges of each object; None if it has no pages or if one of them is not there.

        answers: to `questions`.
        """
        remaining = iter(answers)
        blobs: list[list[Blob] | None] = []
        for requested in self._objects:
            if requested is None:
                blobs.append(None)
                continue
            sha256 = requested.content.sha256
            blobs_of_object: list[Blob] = []
            for n in requested.n_pages:
                data = _joined(islice(remaining, n))
                if data is not None:
                    blob = Blob(data, sha256)
                    blobs_of_object.append(blob)
            if len(blobs_of_object) == len(requested.n_pages):
                blobs.append(blobs_of_object)
            else:
                blobs.append(None)
        return blobs

    def _add_range(self, content: Content, offset: int, nbytes: int) -> int:
        """Add a question for each page of a range; return their number."""
        page_bytes = self._page_bytes
        stop = offset + nbytes
        n = 0
        while offset < stop:
            number, low = divmod(offset, page_bytes)
            high = min(page_bytes, low + stop - offset)
            name = page_name(content.sha256, page_bytes, number)
            cut = slice(low, high)
            question = PageQuestion(name, (cut,), None)
            self.questions.append(question)
            offset += high - low
            n += 1
        return n


def _ends_behind(spans: Sequence[ByteRange], nbytes: int) -> bool:
    """Return whether a range ends after its object: the usual read raises the error."""
    for span in spans:
        stop = span.offset + span.nbytes
        if stop > nbytes:
            return True
    return False


def _joined(answers: Iterable[Answer]) -> bytes | None:
    """Return the bytes of a range that its pages have; None if a page is not there. Reads all answers."""
    pieces: list[Buffer] = []
    is_whole = True
    for answer in answers:
        if isinstance(answer, Grant | Absence):
            is_whole = False
        else:
            pieces += answer
    if not is_whole:
        return None
    if len(pieces) == 1:
        return bytes(pieces[0])
    return b"".join(pieces)
