"""What a migration copies, what it knows of what it has copied, and whether that is what it must be."""

from dataclasses import dataclass

from loader.errors import Corrupt
from loader.storage import Store

from .digest import in_words

HELD_BYTES = 64 * 2**20
"""A larger object goes through a file on this machine: its bytes are known to be right before the target has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object to copy. nbytes: None where nobody has said.

    digest: what its bytes must have, "" where that is not known. etag: of the object that was listed at the source, ""
    where any will do. look: it may be there already. was: the digest of what the target has from an earlier run, of an
    object that seems to have changed since; replace: whether it may be put in its place.
    """

    path: str
    nbytes: int | None
    digest: str = ""
    etag: str = ""
    look: bool = False
    was: str = ""
    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What is known of an object in the target: digest "" where nobody has read it, etag that of the source's object.
    written: whether this run wrote it."""

    path: str
    nbytes: int
    digest: str
    etag: str = ""
    written: bool = False


def check(source: Store, item: Item, nbytes: int, digest: str) -> None:
    """Raises: Corrupt for bytes that are not what the item must have. digest: "" before there is one."""
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
