"""What a migration copies, what it knows of what it has copied, and whether that is what it must be."""

import hashlib
from dataclasses import dataclass
from functools import partial

from google_crc32c import extend

from loader.errors import Corrupt
from loader.storage import Store

HELD_BYTES = 64 * 2**20
"""A larger object goes through a file on this machine: its bytes are known to be right before the target has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object to copy. nbytes: None where nobody has said; sha256, crc32c: what its bytes must have, where known.
    etag: of the object that was listed at the source, "" where any will do. look: it may be there already. was: the
    SHA-256 of what the target has from an earlier run, of an object that seems to have changed since; replace: whether
    it may be put in its place."""

    path: str
    nbytes: int | None
    sha256: str | None = None
    crc32c: int | None = None
    etag: str = ""
    look: bool = False
    was: str = ""
    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What is known of an object in the target: sha256 "" where nobody has read it, etag that of the source's object.
    written: whether this run wrote it."""

    path: str
    nbytes: int
    sha256: str
    etag: str = ""
    written: bool = False


class Hashes:
    """Of the bytes of an item. crc32c: 0 where nobody has said what it must be."""

    def __init__(self, item: Item) -> None:
        self.sha256, self.crc32c = hashlib.sha256(), 0
        self._frombuffer = None
        if item.crc32c is not None:
            from numpy import frombuffer, uint8  # 0.1 s, for roots alone

            self._frombuffer = partial(frombuffer, dtype=uint8)

    def update(self, piece: memoryview) -> None:
        """The next bytes, of any length."""
        self.sha256.update(piece)
        if self._frombuffer is not None:
            self.crc32c = extend(self.crc32c, self._frombuffer(piece))  # it takes no view


def check(source: Store, item: Item, nbytes: int, sha256: str, crc32c: int) -> None:
    """Raises: Corrupt for bytes that are not what the item must have."""
    known = [
        (name, said, found)
        for name, said, found in (
            ("bytes", item.nbytes, nbytes),
            ("sha256", item.sha256, sha256),
            ("CRC-32C", item.crc32c, crc32c),
        )
        if said is not None
    ]
    if any(said != found for _, said, found in known):
        has = ", ".join(f"{name} {found}" for name, _, found in known)
        says = ", ".join(f"{name} {said}" for name, said, _ in known)
        raise Corrupt(
            f"{source.url}/{item.path} has {has}; the root says {says}. It was not copied: run penstock verify on the "
            "source, restore the object, then run this again"
        )
