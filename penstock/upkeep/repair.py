"""`penstock repair`: find damage in a root's log, repair it, and record the repair.

A mirror's copy, or a search for one changed byte, shows whether the store damaged an entry or the writer of the next
entry misread it.
"""

import hashlib
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from loader.dataset.log.append import read_tail
from loader.dataset.log.entries import (
    REPAIR_FORMAT,
    REPAIRS,
    Entry,
    Link,
    canonical,
    entry_checksum,
    entry_key,
    entry_number,
    link_key,
    parse,
    with_repair,
)
from loader.dataset.log.fold import fold, fold_all
from loader.dataset.log.log import Log
from loader.dataset.log.marker import root_id
from loader.dataset.log.snapshots import HINT_EVERY
from loader.dataset.log.state import State
from loader.dataset.names import check_stated
from loader.errors import Conflict, Corrupt, FormatTooNew, ObjectNotFound, Transient
from loader.storage import Store

Believe = Literal["stored", "next"]
BYTES_SEARCHED = 2 * 1024
BITS_SEARCHED = 32 * 1024
"""Largest entries, in bytes, that are searched for one changed byte, or bit: seconds at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One repair of the log."""

    key: str
    """Key of the repair record or log entry to write."""
    data: bytes
    """Bytes to write."""
    why: str
    """Finding."""
    damaged: bytes | None = None
    """Bytes that a log entry replaces; None for a repair record."""
    n: int
    """Number of the log entry."""


def plan_repair(
    store: Store, *, by: str, mirror: Store | None = None, believe: Believe | None = None
) -> list[Step]:
    """Return the steps that repair the log, in order; empty for a healthy log. Writes nothing.

    by: name for the records. mirror: a copy of the root to compare with.
    believe: which bytes are right if neither mirror nor checksum decides: the stored ones, or the ones that the next
    entry's writer read.

    Raises: Corrupt, naming the entry and what would help, if the log cannot be repaired; Conflict if `mirror` belongs
    to another root, or `believe` must decide; InvalidName if `by` is invalid.
    """
    check_stated("name of who repairs", by)
    if mirror is not None and root_id(mirror) != root_id(store):
        message = f"{mirror.url} is not a mirror of {store.url}: their ids differ; give a copy of this root"
        raise Conflict(message, what="id", where=mirror.url, accepted=store.url)
    return _Repair(store, by, mirror, believe).plan()


def apply_repair(store: Store, steps: list[Step], *, by: str) -> State:
    """Write the steps, each replaced entry's record first, then verify the whole log. Idempotent.

    Raises: Corrupt if the log is still damaged; StoreError.
    """
    for step in steps:
        if step.damaged is None:
            store.put(step.key, step.data)  # a damaged record of the same link is replaced
            continue
        value = {
            "format": REPAIR_FORMAT,
            "n": step.n,
            "at_us": time.time_ns() // 1000,
            "by": by,
            "why": step.why,
            "damaged": b64encode(step.damaged).decode(),
            "sha256": hashlib.sha256(step.data).hexdigest(),
        }
        # By content: a repair that is repeated after a kill writes the same record.
        name = hashlib.sha256(step.damaged + step.data).hexdigest()[:16]
        store.put(
            f"{REPAIRS}{step.n:012d}-{name}.json", canonical({**value, "checksum": entry_checksum(value)})
        )
        # The record has the damaged bytes by now, so this write can be undone.
        store.put(step.key, step.data)
    return Log(store).verify()


class _Repair:
    """Reads one root's log from its first entry, with the repairs so far applied in memory."""

    def __init__(self, store: Store, by: str, mirror: Store | None, believe: Believe | None) -> None:
        self.store = store
        self.by = by
        self.mirror = mirror
        self.believe = believe
        self.steps: list[Step] = []
        # states without and with the last entry
        self.before = State()
        self.state = State()
        self.last: Entry | None = None

    def plan(self) -> list[Step]:
        numbers = (entry_number(info.key) for info in self.store.list("log/"))
        end = max((n for n in numbers if n is not None), default=0)
        while not self._skip_whole() or self.state.n < end:
            upto = max(
                min(self.state.n + 2 * HINT_EVERY + 1, end), self.state.n + 1
            )  # an entry may be unlisted
            while self.state.n < upto:
                self._add(self.state.n + 1, _read(self.store, self.state.n + 1))
        return self.steps

    def _skip_whole(self) -> bool:
        """Skip undamaged entries; return False at a damaged one, True at the end."""
        earlier = later = self.state
        try:
            entries = read_tail(self.store, later.n, prev=later.prev)
            # In chunks, so that few entries before a damaged one are read one by one.
            while chunk := list(islice(entries, HINT_EVERY)):
                earlier = later
                later = fold_all(later, chunk)
        except Corrupt:
            if earlier.n != self.state.n:
                self.last = None  # the next entry follows its predecessor
            self.state = earlier
            return False
        self.state = later
        self.last = None
        return True

    def _add(self, n: int, data: bytes | None) -> None:
        known = len(self.steps)
        try:
            if data is None:
                raise Corrupt(f"log entry {entry_key(n)} is missing")
            entry = self._parse(n, data)
            self._take(entry if entry.follows == self.state.prev else self._link(entry))
        except Corrupt as error:
            # The steps of an explanation that failed.
            del self.steps[known:]
            self._take(self._restored(n, data, error))

    def _parse(self, n: int, data: bytes) -> Entry:
        return with_repair(self.store, parse(n, data), self.state.prev)

    def _take(self, entry: Entry) -> None:
        after = fold(self.state, entry)
        self.before = self.state
        self.state = after
        self.last = entry

    def _link(self, entry: Entry) -> Entry:
        before = self.last
        if before is None:
            raise Corrupt(f"log entry {entry_key(entry.n)} is the first, and claims to follow another")
        right, why = self._which(before, entry)
        # The entry was damaged after its successor's writer had read it.
        if right != before.data:
            self._restore(before.n, before.data, right, why)
            self.state = self.before
            self._take(self._parse(before.n, right))
            return entry
        now = time.time_ns() // 1000
        record = Link(n=entry.n, was=entry.prev, prev=before.sha256, at_us=now, by=self.by, why=why)
        self.steps.append(Step(key=link_key(entry.n), data=record.dump(), why=why, n=entry.n))
        return replace(entry, prev_means=before.sha256)

    def _which(self, before: Entry, entry: Entry) -> tuple[bytes, str]:
        of_before = self._copy(before.n)
        of_entry = self._copy(entry.n)
        if of_before is not None and _sha256(of_before) == entry.prev:
            return of_before, f"entry {entry.n} has the sha256 of the mirror's bytes"
        read = next((one for one in _bit_flips(before.data) if _sha256(one) == entry.prev), None)
        if of_before == before.data and (of_entry == entry.data or (of_entry is None and read is not None)):
            what = "other bytes"
            if read is not None:
                what = _difference(before.data, read)
            return (
                before.data,
                f"entry {entry.n} was written after {what}; the mirror has entry {before.n} as it is stored",
            )
        if read is None:
            raise Corrupt(
                f"log entry {entry_key(entry.n)} does not follow {entry_key(before.n)} as it is stored"
            )
        what = _difference(before.data, read)
        if (
            not before.checksum
            and self.believe is None
            and not _have_same_content(before.n, before.data, read)
        ):
            raise Conflict(
                f"log entry {entry_key(before.n)} and what the writer of the next one read of it differ in "
                f"content: {what}; no evidence shows which is right. Give --mirror, a copy of this root, or --believe "
                "stored (the entry is right) or --believe next (what was read is right)"
            )
        if self.believe == "next" and not before.checksum:
            return read, f"entry {entry.n} was written after {what}, which is believed"
        return before.data, f"entry {entry.n} was written after {what}"

    def _restored(self, n: int, data: bytes | None, error: Corrupt) -> Entry:
        copy = self._copy(n)
        following = _parse_prev(n + 1, _read(self.store, n + 1))
        for candidate in [copy] if copy is not None and copy != data else []:
            if entry := self._valid_entry(n, candidate):
                self._restore(n, data or b"", candidate, f"{error}; the mirror has it")
                return entry
        for candidate in _bit_flips(data or b""):
            # The next entry has the hash of the right bytes.
            if following and _sha256(candidate) != following:
                continue
            entry = self._valid_entry(n, candidate)
            if entry is not None and (entry.checksum or following):
                what = _difference(data or b"", candidate, "written", "stored")
                self._restore(n, data or b"", candidate, f"{error}; {what}")
                return entry
        raise Corrupt(
            f"{error}; no single changed byte explains it, "
            + (
                f"nor does the copy in {self.mirror.url} mend it"
                if self.mirror
                else "and no --mirror was given"
            )
            + f". Restore {entry_key(n)}, or the entry before it, from a copy of this root, or its former version "
            "where the bucket keeps versions"
        )

    def _valid_entry(self, n: int, data: bytes) -> Entry | None:
        try:
            entry = self._parse(n, data)
            fold(self.state, entry)
        except (Corrupt, FormatTooNew):
            return None
        return entry

    def _restore(self, n: int, damaged: bytes, data: bytes, why: str) -> None:
        self.steps.append(Step(key=entry_key(n), data=data, why=why, damaged=damaged, n=n))

    def _copy(self, n: int) -> bytes | None:
        if self.mirror is None:
            return None
        return _read(self.mirror, n)


def _read(store: Store, n: int) -> bytes | None:
    # Reads twice, since a bit may flip in transit
    try:
        first, second = (store.get(entry_key(n)).data for _ in range(2))
    except ObjectNotFound:
        return None
    if first != second:
        raise Transient(
            f"{store.url}/{entry_key(n)} gave other bytes when it was read again: do the same again"
        )
    return first


def misread(store: Store, n: int, sha256: str) -> str | None:
    """Return how bytes with this hash differ from the stored entry n, if in one byte; else None."""
    data = store.get(entry_key(n)).data
    read = next((one for one in _bit_flips(data) if _sha256(one) == sha256), None)
    if read is None:
        return None
    return _difference(data, read)


def _parse_prev(n: int, data: bytes | None) -> str:
    try:
        return "" if data is None else parse(n, data).prev
    except (Corrupt, FormatTooNew):
        return ""


def _bit_flips(data: bytes) -> Iterator[bytes]:
    if len(data) > BITS_SEARCHED:
        return
    # The search hashes the entry once per candidate: quadratic in its size.
    flips = range(1, 256) if len(data) <= BYTES_SEARCHED else [1 << bit for bit in range(8)]
    for at, byte in enumerate(data):
        for flip in flips:
            yield b"%b%c%b" % (data[:at], byte ^ flip, data[at + 1 :])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _difference(stored: bytes, other: bytes, first: str = "read", second: str = "stored") -> str:
    """Return where two texts of bytes first differ. first: verb for `other`. second: verb for `stored`."""
    position = 0  # also if one is a beginning of the other
    for i, (stored_byte, other_byte) in enumerate(zip(stored, other, strict=False)):
        if stored_byte != other_byte:
            position = i
            break
    start = max(position - 20, 0)
    part = stored[start : position + 20]
    other_byte_text = other[position : position + 1]
    stored_byte_text = stored[position : position + 1]
    return f"byte {position} {first} as {other_byte_text!r} and {second} as {stored_byte_text!r}, in {part!r}"


def _have_same_content(n: int, stored: bytes, read: bytes) -> bool:
    try:
        entry = parse(n, stored)
        other = parse(n, read)
    except (Corrupt, FormatTooNew):
        return True
    return (entry.kind, entry.prev, entry.body) == (other.kind, other.prev, other.body)
