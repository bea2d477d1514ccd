"""A folder with memory beside it, for pages that the folder does not keep and the next steps need."""

from collections.abc import Hashable, Sequence

from .fixed_share import page_rank
from .memory import MemoryPages
from .node_cache import OpenCache
from .page_cache import Absence, Answer, PageQuestion


class FolderWithMemory:
    """A page cache whose pages are in a folder or in this process.

    live_bytes: bytes of the pages that this loader reads side by side. Claims that `read` grants are the folder's.
    """

    def __init__(
        self,
        folder: OpenCache,
        memory: MemoryPages,
        live_bytes: int,
    ) -> None:
        self.folder = folder
        self.memory = memory
        self.page_bytes = folder.page_bytes
        self.count = folder.count
        self._live_bytes = live_bytes

    def read(
        self,
        name: str,
        cuts: Sequence[slice],
        *,
        claim: int | None = None,
        wait_s: float | None = None,
    ) -> Answer:
        # Without a claim: claims are the folder's, which other processes share.
        answer = self.memory.read(name, cuts, wait_s=wait_s)
        if answer is not Absence.NOT_KEPT:
            return answer
        return self.folder.read(
            name,
            cuts,
            claim=claim,
            wait_s=wait_s,
        )

    def read_present(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        return self.read_all(questions)

    def read_all(self, questions: Sequence[PageQuestion]) -> list[Answer]:
        return [self.read(name, cuts, claim=claim) for name, cuts, claim in questions]

    def put(self, name: str, nonce: Hashable, data: bytes) -> None:
        self.folder.put(name, nonce, data)

    def release(self, name: str, nonce: Hashable) -> None:
        self.folder.release(name, nonce)

    def discard(self, name: str) -> None:
        self.memory.discard(name)
        self.folder.discard(name)

    def claim_memory(self, name: str, nbytes: int) -> Answer:
        """Claim memory for a page that the folder does not keep; NOT_KEPT if the folder keeps it.

        Memory that does not hold all such pages would read each of them for one sample after another: it holds none.
        """
        share = self.folder.share
        if share.takes(page_rank(name)):
            return Absence.NOT_KEPT
        # Ranks are uniform: of the pages in use the folder keeps its share, and the rest is for memory.
        overflow_bytes = self._live_bytes * (1.0 - share.share)
        if overflow_bytes > self.memory.limit_bytes:
            return Absence.NOT_KEPT
        return self.memory.read(name, (), claim=nbytes)
