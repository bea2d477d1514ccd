"""The claims that readers of other nodes have in a server's folder, by the nonces that the readers chose.

A reader that received no answer in time does not know whether it was granted the page. It releases the nonce, and the
release may overtake the request. So a nonce that was released is never granted.
"""

import threading
from collections import OrderedDict
from typing import NamedTuple

from ..claims import ClaimFile

NONCES = 2**14
"""Newest nonces that a server remembers: about 4 MB."""


class ReaderClaim(NamedTuple):
    """A granted claim."""

    page: str
    file: ClaimFile


class ReaderClaims:
    """Claims by nonce. Thread-safe."""

    def __init__(self) -> None:
        # None: the nonce has ended. Not a `SizedLru`, whose `get` returns None for unknown keys too, and whose lock
        # does not span the look and the addition of `begin`.
        self._claims: OrderedDict[str, ReaderClaim | None] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, nonce: str, claim: ReaderClaim) -> bool:
        """Remember a claim; return False if its nonce has a claim, or was released already."""
        with self._lock:
            if nonce in self._claims:
                return False
            self._claims[nonce] = claim
            self._forget_oldest()
            return True

    def has(self, nonce: str, page: str) -> bool:
        """Return whether a nonce has the claim of a page: the same request came again."""
        claim = self._claims.get(nonce)
        return claim is not None and claim.page == page

    def end(self, nonce: str, page: str) -> ClaimFile | None:
        """End a nonce, whether it was granted or not; return its claim on the page."""
        with self._lock:
            claim = self._claims.get(nonce)
            self._claims[nonce] = None
            self._claims.move_to_end(nonce)
            self._forget_oldest()
        if claim is None or claim.page != page:
            return None
        return claim.file

    def _forget_oldest(self) -> None:
        if len(self._claims) > NONCES:
            self._claims.popitem(last=False)
