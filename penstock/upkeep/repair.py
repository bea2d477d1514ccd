"""`penstock repair`: what is wrong with a root's log, what mends it, and a record of what was done.

Two things break a log for good. An entry is damaged where it is stored; or it is as it was written, and the next entry
was written after misread bytes of it. Both are seen as an entry that does not follow the one before it. A mirror's
copy tells them apart. Without a mirror one changed byte explains either: the search is proved right by a SHA-256.
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
    checksum_of,
    entry_key,
    entry_number,
    link_key,
    linked,
    parse,
)
from loader.dataset.log.log import Log
from loader.dataset.log.marker import root_id
from loader.dataset.log.snapshots import HINT_EVERY
from loader.dataset.log.state import State, fold, fold_all
from loader.dataset.names import check_words
from loader.errors import Conflict, Corrupt, FormatTooNew, ObjectNotFound, Transient
from loader.storage import Store

Believe = Literal["stored", "next"]
BYTES_SEARCHED, BITS_SEARCHED = 2 * 1024, 32 * 1024
"""Entries up to these sizes are searched for one changed byte, and for one changed bit: some seconds at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that mends the log."""

    key: str
    """Key of the repair record or log entry that is written."""
    data: bytes
    """Its bytes."""
    why: str
    """The finding, in words."""
    damaged: bytes | None = None
    """The bytes that a log entry replaces, b"" where there were none; None for a repair record."""
    n: int
    """The entry that it is about."""


def plan_repair(
    store: Store, *, by: str, mirror: Store | None = None, believe: Believe | None = None
) -> list[Step]:
    """Return what would mend the log, in order; nothing where nothing is wrong. Writes nothing.

    Reads every entry, and those before what is wrong three times.

    by: who asks for it, for the records.
    mirror: a copy of the root to compare with.
    believe: whether a stored entry is right, or what the writer of the next entry read of it, where neither a mirror
    nor a checksum decides.

    Raises: Corrupt, naming the entry, where the log cannot be mended so, with what would help; Conflict for a mirror of
    another root, and where `believe` has to decide; InvalidName for `by` that is no text; StoreError.
    """
    check_words("name of who repairs", by)
    if mirror is not None and root_id(mirror) != root_id(store):
        raise Conflict(
            f"{mirror.url} is no mirror of {store.url}: their ids differ; give a copy of this root"
        )
    return _Repair(store, by, mirror, believe).plan()


def apply_repair(store: Store, steps: list[Step], *, by: str) -> State:
    """Write the steps, each replaced entry's record first, and read the whole log. Again is no change.

    Raises: Corrupt where the log is not mended; StoreError.
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
        name = hashlib.sha256(step.damaged + step.data).hexdigest()[:16]
        store.put(f"{REPAIRS}{step.n:012d}-{name}.json", canonical({**value, "checksum": checksum_of(value)}))
        store.put(step.key, step.data)
    return Log(store).verify()


class _Repair:
    """The log of one root, read from its first entry on, with what was found so far put right in memory."""

    def __init__(self, store: Store, by: str, mirror: Store | None, believe: Believe | None) -> None:
        self.store, self.by, self.mirror, self.believe = store, by, mirror, believe
        self.steps: list[Step] = []
        self.before, self.state = State(), State()  # without the last entry, and with it
        self.last: Entry | None = None

    def plan(self) -> list[Step]:
        numbers = (entry_number(info.key) for info in self.store.list("log/"))
        end = max((n for n in numbers if n is not None), default=0)
        while not self._skip_whole() or self.state.n < end:
            upto = max(min(self.state.n + 2 * HINT_EVERY + 1, end), self.state.n + 1)  # one may not be listed
            while self.state.n < upto:
                self._add(self.state.n + 1, _read(self.store, self.state.n + 1))
        return self.steps

    def _skip_whole(self) -> bool:
        """Go on to the end of the log, or to some entries before the first that is not whole; return False then."""
        earlier = later = self.state
        try:
            entries = read_tail(self.store, later.n, prev=later.prev)
            while chunk := list(islice(entries, HINT_EVERY)):
                earlier, later = later, fold_all(later, chunk)
        except Corrupt:
            if earlier.n != self.state.n:
                self.last = None  # the next entry follows the one before it
            self.state = earlier
            return False
        self.state, self.last = later, None
        return True

    def _add(self, n: int, data: bytes | None) -> None:
        known = len(self.steps)
        try:
            if data is None:
                raise Corrupt(f"log entry {entry_key(n)} is missing")
            entry = self._parsed(n, data)
            self._take(entry if entry.follows == self.state.prev else self._link(entry))
        except Corrupt as error:
            del self.steps[known:]
            self._take(self._restored(n, data, error))

    def _parsed(self, n: int, data: bytes) -> Entry:
        return linked(self.store, parse(n, data), self.state.prev)

    def _take(self, entry: Entry) -> None:
        after = fold(self.state, entry)
        self.before, self.state, self.last = self.state, after, entry

    def _link(self, entry: Entry) -> Entry:
        """Return an entry that does not follow the one before it, once that is mended or a record has its predecessor.

        Raises: Corrupt.
        """
        before = self.last
        if before is None:
            raise Corrupt(f"log entry {entry_key(entry.n)} is the first, and says that it follows another")
        right, why = self._which(before, entry)
        if right != before.data:
            self._restore(before.n, before.data, right, why)
            self.state = self.before
            self._take(self._parsed(before.n, right))
            return entry
        now = time.time_ns() // 1000
        record = Link(n=entry.n, was=entry.prev, prev=before.sha256, at_us=now, by=self.by, why=why)
        self.steps.append(Step(key=link_key(entry.n), data=record.dump(), why=why, n=entry.n))
        return replace(entry, prev_means=before.sha256)

    def _which(self, before: Entry, entry: Entry) -> tuple[bytes, str]:
        """Return the right bytes of `before`, and how that is known.

        They are the stored ones, or the ones that the writer of `entry` read. Raises: Corrupt.
        """
        of_before, of_entry = self._copy(before.n), self._copy(entry.n)
        if of_before is not None and _sha256(of_before) == entry.prev:
            return of_before, f"entry {entry.n} has the sha256 of the mirror's bytes"
        read = next((one for one in _changed(before.data) if _sha256(one) == entry.prev), None)
        if of_before == before.data and (of_entry == entry.data or (of_entry is None and read is not None)):
            what = "other bytes" if read is None else _difference(before.data, read)
            return (
                before.data,
                f"entry {entry.n} was written after {what}; the mirror has entry {before.n} as it is stored",
            )
        if read is None:
            raise Corrupt(
                f"log entry {entry_key(entry.n)} does not follow {entry_key(before.n)} as it is stored"
            )
        what = _difference(before.data, read)
        if not before.checksum and self.believe is None and not _say_the_same(before.n, before.data, read):
            raise Conflict(
                f"log entry {entry_key(before.n)} and what the writer of the next one read of it differ in what they "
                f"say: {what}; nothing tells which is right. Give --mirror, a copy of this root, or --believe stored "
                "(the entry is right) or --believe next (what was read is right)"
            )
        if self.believe == "next" and not before.checksum:
            return read, f"entry {entry.n} was written after {what}, which is believed"
        return before.data, f"entry {entry.n} was written after {what}"

    def _restored(self, n: int, data: bytes | None, error: Corrupt) -> Entry:
        """Return entry n as it was written. Raises: Corrupt where that is not known."""
        copy, following = self._copy(n), _prev_of(n + 1, _read(self.store, n + 1))
        for one in [copy] if copy is not None and copy != data else []:
            if entry := self._sound(n, one):
                self._restore(n, data or b"", one, f"{error}; the mirror has it")
                return entry
        for one in _changed(data or b""):
            if following and _sha256(one) != following:
                continue
            entry = self._sound(n, one)
            if entry is not None and (entry.checksum or following):
                what = _difference(data or b"", one, "written", "stored")
                self._restore(n, data or b"", one, f"{error}; {what}")
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

    def _sound(self, n: int, data: bytes) -> Entry | None:
        """Return the entry of these bytes, None where they are none that could stand here."""
        try:
            entry = self._parsed(n, data)
            fold(self.state, entry)
        except (Corrupt, FormatTooNew):
            return None
        return entry

    def _restore(self, n: int, damaged: bytes, data: bytes, why: str) -> None:
        self.steps.append(Step(key=entry_key(n), data=data, why=why, damaged=damaged, n=n))

    def _copy(self, n: int) -> bytes | None:
        return None if self.mirror is None else _read(self.mirror, n)


def _read(store: Store, n: int) -> bytes | None:
    """Return the bytes of entry n, None where there are none: read twice, since a bit may flip on the way.

    Raises: Transient; StoreError.
    """
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
    """Return how bytes of this hash differ from entry n as stored, if by one byte; else None. Raises: StoreError."""
    data = store.get(entry_key(n)).data
    read = next((one for one in _changed(data) if _sha256(one) == sha256), None)
    return None if read is None else _difference(data, read)


def _prev_of(n: int, data: bytes | None) -> str:
    """Return the hash that entry n, of these bytes, follows; "" if unknown."""
    try:
        return "" if data is None else parse(n, data).prev
    except (Corrupt, FormatTooNew):
        return ""


def _changed(data: bytes) -> Iterator[bytes]:
    """Yield the bytes with one of them changed: each way in a small entry, each bit in a larger one.

    Yields nothing for a large one.
    """
    if len(data) > BITS_SEARCHED:
        return
    flips = range(1, 256) if len(data) <= BYTES_SEARCHED else [1 << bit for bit in range(8)]
    for at, byte in enumerate(data):
        for flip in flips:
            yield b"%b%c%b" % (data[:at], byte ^ flip, data[at + 1 :])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _difference(stored: bytes, other: bytes, said: str = "read", kept: str = "stored") -> str:
    at = next((i for i, (a, b) in enumerate(zip(stored, other, strict=False)) if a != b), 0)
    part = stored[max(at - 20, 0) : at + 20]
    return f"byte {at} {said} as {other[at : at + 1]!r} and {kept} as {stored[at : at + 1]!r}, in {part!r}"


def _say_the_same(n: int, stored: bytes, read: bytes) -> bool:
    """Return whether two readings of an entry differ in no more than time and nonce, or no reader would accept one."""
    try:
        one, other = parse(n, stored), parse(n, read)
    except (Corrupt, FormatTooNew):
        return True
    return (one.kind, one.prev, one.body) == (other.kind, other.prev, other.body)
