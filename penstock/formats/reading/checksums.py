"""Checksums of an archive's contents, from the bytes that its walk read anyway."""

from array import array
from collections.abc import Sequence

from loader.native import UNKNOWN_CRC, crc32c


class Checksums:
    """CRC-32C of the contents of an archive, one behind the other, as long as the walk reads all of them."""

    def __init__(self) -> None:
        self._crcs: array[int] | None = array("q")
        self._at, self._left = 0, 0
        """First byte of the last content that was not summed, and how many there are from it on."""

    @property
    def go_on(self) -> bool:
        """True as long as no content was jumped over."""
        return self._crcs is not None

    @property
    def lack_bytes(self) -> bool:
        """True where the last content was not read to its end."""
        return self._left > 0

    def all(self) -> Sequence[int]:
        """Return the checksum of each content; none where one was jumped over."""
        return () if self._crcs is None or self._left else self._crcs

    def take(self, places: Sequence[int], crcs: Sequence[int], start: int, data: bytes) -> None:
        """Take the next contents.

        places: first byte and bytes of each. crcs: of each, or `UNKNOWN_CRC`. data: bytes of the archive from `start`
        on, with what was read of the last content.
        """
        if self._crcs is None:
            return
        if self._left or UNKNOWN_CRC in crcs[:-1]:
            self._crcs = None  # the rest of one was not read
            return
        self._crcs.extend(crcs)
        if crcs[-1] == UNKNOWN_CRC:
            self._crcs[-1] = 0
            self._at, self._left = places[-2:]
            self.read(start, data)

    def read(self, start: int, data: bytes) -> None:
        """Sum the bytes of the last content in what was read. data: bytes of the archive from `start` on."""
        begin = self._at - start
        if self._crcs and self._left and begin >= 0:
            some = memoryview(data)[begin : begin + self._left]
            self._crcs[-1] = crc32c(some, self._crcs[-1])
            self._at, self._left = self._at + len(some), self._left - len(some)
