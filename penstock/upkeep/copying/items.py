"""The objects that a migration copies, its notes of the copied ones, and their check."""

from dataclasses import dataclass

from loader.errors import Corrupt
from loader.storage import Store

from .digest import in_words

HELD_BYTES = 64 * 2**20
"""A larger object goes through a file on this machine: its bytes are known to be right before the target has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object to copy."""

    path: str
    """Key at the source and at the target."""
    nbytes: int | None
    """Size in bytes; None where it is not known."""
    digest: str = ""
    """Digest that its bytes must have; "" where it is not known."""
    etag: str = ""
    """ETag of the object that was listed at the source; "" where any will do."""
    look: bool = False
    """True where it may be there already."""
    was: str = ""
    """Digest of the copy that an earlier run made of an object that seems to have changed since; "" for no such copy.
    """
    replace: bool = False
    """True where it may be put in that copy's place."""


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
    """ETag of the source's object; "" where it does not count."""
    written: bool = False
    """True where this run wrote it."""


def check(source: Store, item: Item, nbytes: int, digest: str) -> None:
    """Check the bytes of an object. digest: "" before there is one.

    Raises: Corrupt for bytes that are not what the item must have.
    """
    known = [
        (said, found)
        for said, found in (
            ("" if item.nbytes is None else f"bytes {item.nbytes}", f"bytes {nbytes}"),
            (in_words(item.digest), in_words(digest)),
        )
        if said and found
    ]
    if any(said != found for said, found in known):
        says, has = (", ".join(parts) for parts in zip(*known, strict=True))
        raise Corrupt(
            f"{source.url}/{item.path} has {has}; the root says {says}. It was not copied: run penstock verify on the "
            "source, restore the object, then run this again"
        )
