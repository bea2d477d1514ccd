"""Write and read one entry of the root's log as bytes, and detect edits.

An entry is `log/<n>.json` (12 digits, from 1), canonical JSON (docs/format.md, "The log"). Its `n` reveals a copied or
renamed entry, its `nonce` a writer's own entry after a lost response.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ...errors import Corrupt, FormatTooNew, ObjectNotFound
from ...json_text import canonical_json, parse_json_object
from ...storage.store import Objects

FORMAT = 1
KINDS = frozenset({"begin", "gated", "commit", "abort", "retire", "ref", "deny", "hold", "mirror", "primary"})
_ENVELOPE = frozenset({"format", "n", "nonce", "prev", "at_us", "kind", "checksum", "state"})
FOLDER = "log/"
_KEY = re.compile(r"log/([0-9]{12})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    n: int
    """Number of the entry, from 1."""
    nonce: str
    """Nonce of the append, hex."""
    prev: str
    """Sha256 hex of the previous entry's bytes; "" for n = 1."""
    at_us: int
    """Time of writing, UTC microseconds; informational only."""
    kind: str
    body: Mapping[str, object]
    """The kind's own fields."""
    data: bytes
    """The stored bytes."""
    sha256: str
    """Sha256 hex of the stored bytes."""
    checksum: str = ""
    """Stored checksum; "" for an entry of an earlier release."""
    state: str = ""
    """Checksum of the state before the entry; "" for most entries."""
    prev_means: str = ""
    """SHA-256 that a repair record puts in place of `prev`, or ""."""

    @property
    def follows(self) -> str:
        return self.prev_means or self.prev


canonical = canonical_json

DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors that reading a small JSON object may raise, whatever its bytes."""


def entry_key(n: int) -> str:
    return f"{FOLDER}{n:012d}.json"


def entry_number(key: str) -> int | None:
    """Return the entry number in a store key; None for other keys."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None


def gaps(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) for each gap between these ascending entry numbers."""
    return ((before + 1, after - 1) for before, after in pairwise(numbers) if after - before > 1)


def missing(first: int, last: int) -> str:
    which = f"log entry {entry_key(first)} is"
    if last > first:
        which = f"log entries {entry_key(first)} to {entry_key(last)} are"
    return (
        f"{which} missing while a later one exists; entries are never deleted: restore what is missing from a mirror, "
        "or its former version where the bucket keeps versions"
    )


def seal(n: int, prev: str, nonce: str, at_us: int, body: Mapping[str, object], *, state: str = "") -> Entry:
    """Return entry n, which follows the entry with sha256 `prev`. body: "kind" and its fields. state: as `Entry.state`.

    Raises: Corrupt if a reader would reject the body; TypeError if it is not canonical JSON.
    """
    reserved = (_ENVELOPE - {"kind"}) & body.keys()
    if reserved:
        raise Corrupt(
            f"a log entry's body may not set {sorted(reserved)}: the log writes those fields itself"
        )
    envelope = {"format": FORMAT, "n": n, "nonce": nonce, "prev": prev, "at_us": at_us}
    value = {**body, **envelope, **({"state": state} if state else {})}
    return parse(n, canonical({**value, "checksum": checksum_of(value)}))


def checksum_of(value: Mapping[str, object]) -> str:
    """Return the SHA-256 hex of `value`'s canonical JSON without `checksum`. Raises: TypeError; UnicodeEncodeError."""
    return hashlib.sha256(canonical({k: v for k, v in value.items() if k != "checksum"})).hexdigest()


def parse(n: int, data: bytes) -> Entry:
    where = f"log entry {entry_key(n)}"
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise Corrupt(f"{where} is not JSON ({e}); entries are never edited, restore it from a mirror") from e
    if not isinstance(value, dict):
        raise Corrupt(f"{where} holds a {type(value).__name__}, not a JSON object")
    written_by, kind = value.get("format"), value.get("kind")
    if type(written_by) is int and written_by > FORMAT:
        raise FormatTooNew(
            f"{where} has format {written_by}, this package reads up to {FORMAT}; upgrade penstock"
        )
    if type(written_by) is not int or written_by < 1:
        raise Corrupt(f"{where} has format {written_by!r}, expected an integer from 1 to {FORMAT}")
    if not isinstance(kind, str):
        raise Corrupt(f"{where} has kind {kind!r}, expected one of {sorted(KINDS)}")
    if kind not in KINDS:
        raise FormatTooNew(f"{where} is of the unknown kind {kind!r}; a newer penstock wrote it, upgrade")
    if not _is_canonical(value, data):
        raise Corrupt(f"{where} is not canonical JSON (sorted keys, no spaces, no floats): it was edited")
    if type(value.get("n")) is not int or value["n"] != n:
        raise Corrupt(f"{where} has n = {value.get('n')!r}: it was copied or renamed")
    nonce, prev, at_us = value.get("nonce"), value.get("prev"), value.get("at_us")
    if not (isinstance(nonce, str) and nonce and isinstance(prev, str) and type(at_us) is int):
        raise Corrupt(f"{where} lacks nonce (text), prev (text) or at_us (integer)")
    checksum, state = value.get("checksum", ""), value.get("state", "")
    if checksum != "" and checksum != checksum_of(value):
        raise Corrupt(f"{where} differs from its checksum: it was damaged after it was written")
    if not isinstance(state, str):
        raise Corrupt(f"{where} has state {state!r}, expected text")
    return Entry(
        n=n,
        nonce=nonce,
        prev=prev,
        at_us=at_us,
        kind=kind,
        body={name: item for name, item in value.items() if name not in _ENVELOPE},
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        checksum=checksum,
        state=state,
    )


def _is_canonical(value: object, data: bytes) -> bool:
    try:
        return canonical(value) == data
    except (TypeError, ValueError):  # a float, or a lone surrogate that UTF-8 cannot hold
        return False


def edited(entries: Sequence[Entry]) -> list[int]:
    """Return the numbers of consecutive entries that were edited after they were written, derived from the hash chain.

    The fewest edits that explain all broken links are returned. The last entry is checked only by its `prev`.
    """
    numbers: list[int] = []
    for entry, right in pairwise(entries):
        if right.follows == entry.sha256 or entry.n in numbers:
            continue
        i = right.n - entries[0].n
        after = entries[i + 1] if i + 1 < len(entries) else None
        # The next link is broken too: `right` has a wrong prev and a wrong hash, so one edit explains both.
        numbers.append(right.n if after is not None and after.prev != right.sha256 else entry.n)
    return numbers


REPAIR_FORMAT = 1
REPAIRS = f"{FOLDER}repair-"
"""Prefix of repair records: links of the chain, and restored entries (`penstock repair`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A repair record for a broken link of the chain."""

    n: int
    """The entry whose `prev` is wrong."""
    was: str
    """The entry's `prev`: SHA-256 hex of the bytes that its writer read."""
    prev: str
    """Sha256 hex of entry n - 1 as stored."""
    at_us: int
    """Creation time of the record, UTC microseconds."""
    by: str
    """Author of the record."""
    why: str
    """Human-readable findings."""

    def dump(self) -> bytes:
        value = {
            "format": REPAIR_FORMAT,
            "n": self.n,
            "was": self.was,
            "prev": self.prev,
            "at_us": self.at_us,
            "by": self.by,
            "why": self.why,
        }
        return canonical({**value, "checksum": checksum_of(value)})


def link_key(n: int) -> str:
    return f"{REPAIRS}{n:012d}.json"


def linked(store: Objects, entry: Entry, prev: str | None) -> Entry:
    """Return the entry. Sets `prev_means` if a repair record links it to the entry with sha256 `prev`.

    Costs one request if the entry's own `prev` does not match.
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
    try:
        value = parse_json_object(data)
        sound = canonical(value) == data and value["checksum"] == checksum_of(value)
    except DAMAGED:
        return {}
    return value if sound and value.get("format") == REPAIR_FORMAT else {}
