"""The one verb of a page cache, `read`, and its answers."""

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

Buffer = bytes | memoryview


class Grant(NamedTuple):
    """The caller has the claim: it reads the page from the store, then calls `put` or `release`."""

    nonce: Hashable
    """Identifies this claim, so that a late `put` or `release` frees no other claim of the page."""


class Absence(Enum):
    """Why a page's bytes are not here."""

    COMING = "another reader has the claim"
    NOT_KEPT = "the cache does not have the page, and the caller has no claim: read the range"
    NO_ROOM = "there is no room now, but there will be: earlier steps use what is in the way"


Answer = Sequence[Buffer] | Grant | Absence


class PageQuestion(NamedTuple):
    """A question to `PageCache.read`."""

    name: str
    cuts: Sequence[slice]
    claim: int | None
    """The page's size in bytes, to claim a page that is not here."""


def count_nothing(name: str, amount: int) -> None:
    """Count nothing, for a cache without metrics."""


class PageCache(Protocol):
    """A cache of pages by name (`pages.page_name`). Thread-safe."""

    page_bytes: int
    count: Callable[[str, int], None]
    """(counter name, amount) -> None: counts hits, misses and so on."""

    def read(
        self,
        name: str,
        cuts: Sequence[slice],
        *,
        claim: int | None = None,
        wait_s: float | None = None,
    ) -> Answer:
        """Return a page's bytes, one buffer per cut, or a claim on the page, or why there is neither.

        The bytes never change. Without cuts, only whether the page is here.

        claim: the page's size in bytes, to claim a page that is not here. wait_s: longest wait for a page that another
        process is fetching; None does not wait. A thread of this process ends its claims, so it is waited for longer.
        """

    def read_all(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        """Return the answer to each question, without waiting."""

    def read_present(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        """Return the answer to each question with cuts and without a claim; without a claim of others, for speed.

        A page that another reader is fetching may therefore be answered with NOT_KEPT.
        """

    def put(self, name: str, nonce: Hashable, data: bytes) -> object:
        """Store a claimed page and end the claim. Does nothing if the claim has ended."""

    def release(self, name: str, nonce: Hashable) -> None:
        """End a claim without a page. Does nothing if the claim has ended."""

    def discard(self, name: str) -> None:
        """Delete a page."""
