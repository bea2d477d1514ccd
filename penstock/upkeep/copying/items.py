"""The objects that a migration copies, its notes of them, and their check."""

from dataclasses import dataclass

from loader.errors import Corrupt
from loader.storage import Store

from .digest import in_words

HELD_BYTES = 64 * 2**20
"""Larger objects pass through a file of this machine, so that only correct bytes reach the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object to copy."""

    path: str
    """Key at the source and at the target."""
    nbytes: int | None
    """Size in bytes; None if unknown."""
    digest: str = ""
    """Digest that its bytes must have, or ""."""
    etag: str = ""
    """ETag of the listed object at the source; "" accepts any."""
    may_exist: bool = False
    """True if it may exist already."""
    was: str = ""
    """Digest of an earlier copy of an object that seems to have changed since, or ""."""
    replace: bool = False
    """True if that copy may be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A note on an object in the target."""

    path: str
    """Key."""
    nbytes: int
    """Size in bytes."""
    digest: str
    """Digest of its bytes; "" if they were not read."""
    etag: str = ""
    """ETag of the source's object; "" if it does not matter."""
    written: bool = False
    """True if this run wrote it."""


def check(source: Store, item: Item, nbytes: int, digest: str) -> None:
    """Check the bytes of an object. digest: "" before there is one. Raises: Corrupt."""
    known = [
        (stated, actual)
        for stated, actual in (
            ("" if item.nbytes is None else f"bytes {item.nbytes}", f"bytes {nbytes}"),
            (in_words(item.digest), in_words(digest)),
        )
        if stated and actual
    ]
    if any(stated != actual for stated, actual in known):
        says, has = (", ".join(parts) for parts in zip(*known, strict=True))
        raise Corrupt(
            f"{source.url}/{item.path} has {has}; the root states {says}. It was not copied: run penstock verify on "
            "the source, restore the object, then run this again"
        )
