"""The hashes of a shard's pages: so that a part of it can be proved, which its own SHA-256 does for the whole alone."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ...errors import Corrupt

PAGE_BYTES = 64 * 2**10
"""A sample that is read alone costs the pages that hold it, half a page too much at either end: as much as a store
reads of what lies between two ranges rather than ask twice. The hashes take 0.05 % of a shard."""
DIGEST_BYTES = 32
_BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class PageHashes:
    """Of a shard's pages of `page_bytes`, the last one shorter: `digests` has 32 bytes for each."""

    digests: bytes
    page_bytes: int
    nbytes: int

    @staticmethod
    def of(digests: bytes, page_bytes: int, nbytes: int, name: str) -> "PageHashes":
        """Of a shard of `nbytes`. name: of its index. Raises: Corrupt where they are more or fewer than its pages."""
        if page_bytes < 1 or len(digests) != DIGEST_BYTES * -(-nbytes // page_bytes):
            raise Corrupt(
                f"{name} has {len(digests)} bytes of hashes of pages of {page_bytes} bytes, for a shard of {nbytes} "
                "bytes; restore it from a mirror"
            )
        return PageHashes(digests, page_bytes, nbytes)

    @property
    def n_pages(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def others(self, digests: Sequence[bytes]) -> list[int]:
        """The pages that have another digest among these of all pages, in order."""
        step = DIGEST_BYTES
        return [n for n, one in enumerate(digests) if self.digests[n * step : (n + 1) * step] != one]

    def is_page(self, page: int, data: bytes | memoryview) -> bool:
        """Whether these are its bytes."""
        start = page * DIGEST_BYTES
        return hashlib.sha256(data).digest() == self.digests[start : start + DIGEST_BYTES]


def hash_pages(path: str) -> bytes:
    """The digests of a local file's pages, 32 bytes each."""
    with open(path, "rb", buffering=0) as file:
        return b"".join(_digests(file))


def _digests(file: BinaryIO) -> Iterator[bytes]:
    block = memoryview(bytearray(_BLOCK_BYTES))  # of whole pages
    while nbytes := _filled(file, block):
        for start in range(0, nbytes, PAGE_BYTES):
            yield hashlib.sha256(block[start : min(start + PAGE_BYTES, nbytes)]).digest()


def _filled(file: BinaryIO, block: memoryview) -> int:
    """Read until the block is full, or the file ends. Returns the bytes read."""
    at = 0
    while at < len(block) and (n := file.readinto(block[at:])):  # type: ignore[attr-defined]
        at += n
    return at
