"""An object that is put while its bytes come from elsewhere: nothing of it is held, or waits for the rest.

S3 has it once its last byte was sent, and not before: whoever finds at the end that the bytes are wrong sends no more.
"""

from __future__ import annotations

from .direct import Direct
from .wire import Broken, Wire


class Sending:
    """One object on its way. Used by one thread."""

    def __init__(self, direct: Direct, wire: Wire, nbytes: int) -> None:
        """nbytes: of the object."""
        self._direct, self._wire, self._left = direct, wire, nbytes

    def send(self, piece: memoryview) -> bool:
        """The next bytes; whether the store still takes them."""
        try:
            self._wire.send(piece)
        except Broken:
            self._direct.refused()
            return False
        self._left -= len(piece)
        return True

    def finish(self) -> str:
        """The ETag of what the store has now; "" where it has nothing, or nobody knows."""
        if self._left:
            return ""
        try:
            return self._direct.end(self._wire)
        except Broken:
            self._direct.refused()
            return ""

    def close(self) -> None:
        """Send no more: the store forgets what came. After `finish` of all there is nothing to forget."""
        if self._left:
            self._wire.close()
