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
        """SHA-256 hex of the entry that this one follows, by its `prev` or by a repair record."""
        return self.prev_means or self.prev

    @property
    def title(self) -> str:
        """Name of the entry in errors."""
        return f"log entry {entry_key(self.n)} ({self.kind})"

    def text(self, name: str) -> str:
        """Return a field of the body that is text. Raises: Corrupt."""
        value = self.body.get(name)
        if not isinstance(value, str):
            raise Corrupt(
                f"{self.title} has {name} {value!r}, expected text",
                what=name,
                where=self.title,
                given=value,
                accepted="text",
            )
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a field of the body that is text, None or absent. Raises: Corrupt."""
        if self.body.get(name) is None:
            return None
        return self.text(name)

    def integer(self, name: str) -> int:
        """Return a field of the body that is an integer >= 0. Raises: Corrupt."""
        value = self.body.get(name)
        # `type`, because a bool is an instance of int.
        if type(value) is not int or value < 0:
            raise Corrupt(
                f"{self.title} has {name} {value!r}, expected an integer >= 0",
                what=name,
                where=self.title,
                given=value,
                accepted="an integer >= 0",
            )
        return value


canonical = canonical_json

_SHOWN_BYTES = 80  # of a damaged entry, in its error

DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors that reading a small JSON object may raise, whatever its bytes."""


def check_record_format(number: int, newest: int, path: str) -> None:
    """Raise FormatTooNew if the record at `path` has a format above the newest that this release reads."""
    if number > newest:
        raise FormatTooNew(
            f"{path} has format {number}, this release reads {newest}: use a newer penstock",
            what="format",
            where=path,
            given=number,
            accepted=newest,
        )


def entry_key(n: int) -> str:
    return f"{FOLDER}{n:012d}.json"


def entry_number(key: str) -> int | None:
    """Return the entry number in a store key; None for other keys."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return int(match[1])


def gaps(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) for each gap between these ascending entry numbers."""
    for before, after in pairwise(numbers):
        if after - before > 1:
            yield before + 1, after - 1


def missing_error(first: int, last: int) -> Corrupt:
    """Return the error for missing entries first ... last, before a later one that exists."""
    which = f"log entry {entry_key(first)} is"
    if last > first:
        which = f"log entries {entry_key(first)} to {entry_key(last)} are"
    return Corrupt(
        f"{which} missing while a later one exists; entries are never deleted: restore what is missing from a mirror, "
        "or its former version where the bucket keeps versions",
        what="entry",
        where=f"log entry {entry_key(first)}",
        given="missing",
        accepted=entry_key(last),
    )


def seal(
    n: int,
    prev: str,
    nonce: str,
    at_us: int,
    body: Mapping[str, object],
    *,
    state: str = "",
) -> Entry:
    """Return entry n, which follows the entry with sha256 `prev`. body: "kind" and its fields. state: as `Entry.state`.

    Raises: Corrupt if a reader would reject the body; TypeError if it is not canonical JSON.
    """
    reserved = (_ENVELOPE - {"kind"}) & body.keys()
    if reserved:
        raise Corrupt(
            f"a log entry's body may not set {sorted(reserved)}: the log writes those fields itself"
        )
    value: dict[str, object] = {
        **body,
        "format": FORMAT,
        "n": n,
        "nonce": nonce,
        "prev": prev,
        "at_us": at_us,
    }
    if state:
        value["state"] = state
    value["checksum"] = entry_checksum(value)
    data = canonical(value)
    return parse(n, data)  # as a reader will: raises for a body that readers would reject


def entry_checksum(value: Mapping[str, object]) -> str:
    """Return the SHA-256 hex of `value`'s canonical JSON without `checksum`. Raises: TypeError; UnicodeEncodeError."""
    content = {name: item for name, item in value.items() if name != "checksum"}
    return hashlib.sha256(canonical(content)).hexdigest()


def parse(n: int, data: bytes) -> Entry:
    """Return entry n from its stored bytes. Raises: Corrupt; FormatTooNew."""
    where = f"log entry {entry_key(n)}"
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"{where} is not JSON ({error}); entries are never edited, restore it from a mirror"
        raise Corrupt(
            message, what="entry", where=where, given=data[:_SHOWN_BYTES], accepted="JSON"
        ) from error
    if not isinstance(value, dict):
        raise Corrupt(
            f"{where} holds a {type(value).__name__}, not a JSON object",
            what="entry",
            where=where,
            given=type(value).__name__,
            accepted="a JSON object",
        )
    # The format comes before every other check: a newer release may change what they check.
    _check_format(where, value)
    if not _is_canonical(value, data):
        message = f"{where} is not canonical JSON (sorted keys, no spaces, no floats): it was edited"
        raise Corrupt(
            message,
            what="entry",
            where=where,
            given=data[:_SHOWN_BYTES],
            accepted="canonical JSON",
        )
    return _entry(n, where, value, data)


def _check_format(where: str, value: Mapping[str, object]) -> None:
    format_number = value.get("format")
    if type(format_number) is int and format_number > FORMAT:
        message = f"{where} has format {format_number}, this package reads up to {FORMAT}; upgrade penstock"
        raise FormatTooNew(
            message,
            what="format",
            where=where,
            given=format_number,
            accepted=FORMAT,
        )
    if type(format_number) is not int or format_number < 1:
        message = f"{where} has format {format_number!r}, expected an integer from 1 to {FORMAT}"
        raise Corrupt(
            message,
            what="format",
            where=where,
            given=format_number,
            accepted=FORMAT,
        )
    kind = value.get("kind")
    if not isinstance(kind, str):
        message = f"{where} has kind {kind!r}, expected one of {sorted(KINDS)}"
        raise Corrupt(
            message,
            what="kind",
            where=where,
            given=kind,
            accepted=sorted(KINDS),
        )
    if kind not in KINDS:
        message = f"{where} is of the unknown kind {kind!r}; a newer penstock wrote it, upgrade"
        raise FormatTooNew(
            message,
            what="kind",
            where=where,
            given=kind,
            accepted=sorted(KINDS),
        )


def _is_canonical(value: object, data: bytes) -> bool:
    try:
        return canonical(value) == data
    except (TypeError, ValueError):  # a float, or a lone surrogate that UTF-8 cannot hold
        return False


def _entry(n: int, where: str, value: Mapping[str, Any], data: bytes) -> Entry:
    """Return entry n from its parsed JSON. where: name of the entry in errors. data: its stored bytes."""
    stored_n = value.get("n")
    if type(stored_n) is not int or stored_n != n:
        message = f"{where} has n = {stored_n!r}: it was copied or renamed"
        raise Corrupt(
            message,
            what="n",
            where=where,
            given=stored_n,
            accepted=n,
        )

    nonce = value.get("nonce")
    prev = value.get("prev")
    at_us = value.get("at_us")
    incomplete = f"{where} lacks nonce (text), prev (text) or at_us (integer)"
    if not isinstance(nonce, str) or not nonce:
        raise Corrupt(incomplete, what="nonce", where=where, given=nonce)
    if not isinstance(prev, str):
        raise Corrupt(incomplete, what="prev", where=where, given=prev)
    if type(at_us) is not int:
        raise Corrupt(incomplete, what="at_us", where=where, given=at_us)

    # Entries of earlier releases have no checksum: only the next entry's `prev` covers them.
    checksum = value.get("checksum", "")
    if checksum != "" and checksum != entry_checksum(value):
        message = f"{where} differs from its checksum: it was damaged after it was written"
        raise Corrupt(
            message,
            what="checksum",
            where=where,
            given=checksum,
        )
    state = value.get("state", "")
    if not isinstance(state, str):
        message = f"{where} has state {state!r}, expected text"
        raise Corrupt(
            message,
            what="state",
            where=where,
            given=state,
            accepted="text",
        )

    return Entry(
        n=n,
        nonce=nonce,
        prev=prev,
        at_us=at_us,
        kind=value["kind"],
        body={name: item for name, item in value.items() if name not in _ENVELOPE},
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        checksum=checksum,
        state=state,
    )


def find_edited(entries: Sequence[Entry]) -> list[int]:
    """Return the numbers of the entries that were edited after they were written, by the chain of hashes.

    A broken link shows that one of its two entries was edited, not which one. The fewest edits that explain all broken
    links are returned. The last entry is checked only by its `prev`.

    entries: consecutive ones.
    """
    numbers: list[int] = []
    for i, (entry, follower) in enumerate(pairwise(entries)):
        is_link_broken = follower.follows != entry.sha256
        if not is_link_broken or entry.n in numbers:
            continue
        next_after = entries[i + 2 : i + 3]  # empty if `follower` is the last one
        if next_after and next_after[0].prev != follower.sha256:
            # The next link is broken too: `follower` has a wrong prev and a wrong hash, so one edit explains both.
            numbers.append(follower.n)
        else:
            numbers.append(entry.n)
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
        value: dict[str, object] = {
            "format": REPAIR_FORMAT,
            "n": self.n,
            "was": self.was,
            "prev": self.prev,
            "at_us": self.at_us,
            "by": self.by,
            "why": self.why,
        }
        value["checksum"] = entry_checksum(value)
        return canonical(value)


def link_key(n: int) -> str:
    return f"{REPAIRS}{n:012d}.json"


def with_repair(store: Objects, entry: Entry, prev: str | None) -> Entry:
    """Return the entry, with `prev_means` if a repair record links it to the entry with sha256 `prev`.

    Costs one request if the entry's own `prev` does not match. prev: None skips the check.
    """
    if prev is None or entry.prev == prev:
        return entry
    try:
        data = store.get(link_key(entry.n)).data
    except ObjectNotFound:
        return entry
    record = _parse_link(data)
    is_of_entry = record.get("n") == entry.n and record.get("was") == entry.prev
    if is_of_entry and record.get("prev") == prev:
        return replace(entry, prev_means=prev)
    return entry


def _parse_link(data: bytes) -> Mapping[str, Any]:
    """Return a repair record; an empty mapping if it is damaged, which repairs nothing."""
    try:
        value = parse_json_object(data)
        is_intact = canonical(value) == data and value["checksum"] == entry_checksum(value)
    except DAMAGED:
        return {}
    if not is_intact or value.get("format") != REPAIR_FORMAT:
        return {}
    return value
