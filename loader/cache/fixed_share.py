"""The fixed share: the pages that a cache keeps of data that is larger, the same in every epoch.

Every page has a rank, which its name decides. The cache keeps pages of ranks below the share. A shuffled
epoch visits every page once, so a cache of the pages used last would evict each page before its next use.
"""

RANK_DIGITS = 8
"""Last hex digits of a page's name that are its rank."""
RANKS = 2.0 ** (4 * RANK_DIGITS)


def page_rank(name: str) -> float:
    """Return a page's rank, 0 <= rank < 1. Uniform over pages, and the same in every process."""
    rank = int(name[-RANK_DIGITS:], 16)
    return rank / RANKS


class FixedShare:
    """The ranks that one loader takes pages of.

    A page that is refused is read by ranges until the epoch ends. A cache that took it in the same epoch would read its
    first samples twice. So the ceiling falls at once and rises only when an epoch begins.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._ceiling = 1.0

    def set_share(self, capacity_bytes: int, demand_bytes: int) -> None:
        """Set the share of the pages that there is room for.

        capacity_bytes: room for pages. demand_bytes: size of all pages that some loader reads.
        """
        share = 1.0
        if demand_bytes > 0:
            share = min(1.0, max(0, capacity_bytes) / demand_bytes)
        self.share = share
        self._ceiling = min(self._ceiling, share)

    def takes(self, rank: float) -> bool:
        return rank < self._ceiling

    def refuse(self, rank: float) -> None:
        """Take no page from this rank on until the next epoch."""
        self._ceiling = min(self._ceiling, rank)

    def begin_epoch(self) -> None:
        self._ceiling = self.share
