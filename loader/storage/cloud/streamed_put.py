"""An object that is put while its bytes come from elsewhere: nothing of it is held, or waits for the rest.

S3 has it once its last byte was sent, and not before: a caller that finds wrong bytes at the end sends no more.
"""

from __future__ import annotations

from collections.abc import Callable

from .http_connection import Broken, Wire
from .range_requests import Direct

_THROTTLED = {429, 503}
_REFUSED = {400, 401, 403, 501}
_TOO_SLOW = b"<Code>RequestTimeout</Code>"


class Sending:
    """One object on its way. Used by one thread, which closes it. is_refused: whether the store takes no object so."""

    def __init__(self, direct: Direct, wire: Wire, nbytes: int, ended: Callable[[bool], None]) -> None:
        """nbytes: of the object; ended: is told, once, whether the store was asked for too much."""
        self._direct, self._wire, self._left = direct, wire, nbytes
        self._ended: Callable[[bool], None] | None = ended
        self.is_refused = False

    def send(self, piece: memoryview) -> bool:
        """Send the next bytes, and return whether the store still takes them."""
        try:
            self._wire.send(piece)
        except Broken:
            self._direct.refused()
            return False
        self._left -= len(piece)
        return True

    def finish(self) -> str:
        """Return the ETag of the object that the store has now; "" where it has none, or nobody knows."""
        if self._left:
            return ""
        try:
            status, etag, text = self._direct.end(self._wire)
        except Broken:
            self._direct.refused()
            return ""
        self.is_refused = status in _REFUSED and _TOO_SLOW not in text
        self._end(throttled=status in _THROTTLED)
        return etag

    def close(self) -> None:
        """Send no more: the store forgets what came. After `finish` of all there is nothing to forget."""
        if self._left:
            self._wire.close()
        self._end(throttled=False)

    def _end(self, *, throttled: bool) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(throttled)
