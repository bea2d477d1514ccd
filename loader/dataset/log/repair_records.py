"""`log/repair-<n>.json` names the entry that entry n follows, where its writer misread that entry.

A release without checksums in entries wrote the SHA-256 of the bytes it had read into the next entry. A bit that
flipped on the way broke the chain for good. Entries are never replaced: a repair record, created once, lets readers go
on, and names its author and reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ObjectNotFound
from ...json_text import parse_json_object
from ...storage.store import Objects
from .entries import DAMAGED, FOLDER, Entry, canonical, checksum_of

FORMAT = 1
REPAIRS = f"{FOLDER}repair-"
"""Prefix of repair records: links of the chain, and restored entries (`penstock repair`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A repair record of a broken link of the chain."""

    n: int
    """The entry whose `prev` is wrong."""
    was: str
    """Its `prev`: sha256 hex of the bytes that its writer read."""
    prev: str
    """Sha256 hex of entry n - 1 as it is stored."""
    at_us: int
    """UTC microseconds when the record was made."""
    by: str
    """Author of the record."""
    why: str
    """Findings, in words."""

    def dump(self) -> bytes:
        """Return canonical JSON, with a checksum of its own."""
        value = {
            "format": FORMAT,
            "n": self.n,
            "was": self.was,
            "prev": self.prev,
            "at_us": self.at_us,
            "by": self.by,
            "why": self.why,
        }
        return canonical({**value, "checksum": checksum_of(value)})


def link_key(n: int) -> str:
    """Return the store key of entry n's repair record."""
    return f"{REPAIRS}{n:012d}.json"


def linked(store: Objects, entry: Entry, prev: str | None) -> Entry:
    """Return the entry, with `prev_means` if a repair record links it to the entry with sha256 `prev`.

    One request for an entry that does not follow by itself.
    """
    if prev is None or entry.prev == prev:
        return entry
    try:
        record = _parse(store.get(link_key(entry.n)).data)
    except ObjectNotFound:
        return entry
    fits = (record.get("n"), record.get("was"), record.get("prev")) == (entry.n, entry.prev, prev)
    return replace(entry, prev_means=prev) if fits else entry


def _parse(data: bytes) -> Mapping[str, Any]:
    """Return the fields of a record; {} if it is damaged: the link stays broken."""
    try:
        value = parse_json_object(data)
        sound = canonical(value) == data and value["checksum"] == checksum_of(value)
    except DAMAGED:
        return {}
    return value if sound and value.get("format") == FORMAT else {}
