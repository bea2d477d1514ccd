"""Copy objects without a digest, such as log entries: read the source twice, then read back and compare the copy."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256

from loader.dataset.log.entries import DAMAGED, entry_key, linked, parse
from loader.errors import Corrupt
from loader.json_text import parse_json_object
from loader.storage import Store

from .copy_one import Transfer
from .items import Copied, Item

TRIES = 3
READ_AHEAD = 16


class Compared:
    """A transfer that also verifies items without a digest. Thread-safe."""

    def __init__(self, source: Store, target: Store, transfer: Transfer) -> None:
        self._source, self._target, self._transfer = source, target, transfer

    def __call__(self, item: Item, *, may_exist: bool = False) -> Copied:
        """Copy an item. Raises: Corrupt if either store returns different bytes on each read; as `Transfer`."""
        if item.digest:
            return self._transfer(item, may_exist=may_exist)
        for _ in range(TRIES):
            digest = self._transfer.digest(self._source, item.path)
            try:
                copied = self._transfer(replace(item, digest=digest), may_exist=may_exist)
            except Corrupt:  # one of the two reads, or the listed size, was wrong
                continue
            if not copied.written or self._arrived(item.path, digest):
                return copied
            self._target.delete_many([item.path])
        raise _uneven(self._source, self._target, item.path)

    def _arrived(self, path: str, digest: str) -> bool:
        return any(self._transfer.digest(self._target, path) == digest for _ in range(2))


def copy_entries(source: Store, target: Store, after: int, upto: int, last: str) -> None:
    """Copy log entries in order: no reader of the mirror sees an entry before its predecessors.

    Costs two requests to the target and one to the source per entry. last: SHA-256 of entry `upto`, "" if unknown.

    Raises: Corrupt if reads differ or an entry is damaged, once its predecessors are copied; AlreadyExists if the
    target has another entry.
    """
    coming = _entries(source, range(after + 1, upto + 1))
    data = next(coming, None)
    for n in range(after + 1, upto + 1):
        assert data is not None
        follower = next(coming, None)
        stated = last if follower is None else _before(follower)
        if sha256(data).hexdigest() != stated:  # this entry or the next may have been misread
            data = read_twice(source, entry_key(n))
            follower = None if follower is None else read_twice(source, entry_key(n + 1))
        _check_entry(source, n, data, follower)
        put_compared(target, entry_key(n), data)
        data = follower


def _check_entry(source: Store, n: int, data: bytes, follower: bytes | None) -> None:
    try:
        entry = parse(n, data)
        if follower is not None and _before(follower) != entry.sha256:
            behind = linked(source, parse(n + 1, follower), entry.sha256)
            if behind.follows != entry.sha256:
                raise Corrupt(f"log entry {entry_key(n + 1)} was written after other bytes of {entry_key(n)}")
    except Corrupt as error:
        raise Corrupt(
            f"{source.url}: {error}. The entries before {entry_key(n)} were copied: mend the source with penstock "
            "repair, then run this again"
        ) from error


def _entries(source: Store, numbers: range) -> Iterator[bytes]:
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-migrate-log") as pool:
        for at in range(0, len(numbers), READ_AHEAD):
            yield from pool.map(lambda n: source.get(entry_key(n)).data, numbers[at : at + READ_AHEAD])


def _before(data: bytes) -> str:
    try:
        return str(parse_json_object(data)["prev"])
    except DAMAGED:
        return ""


def read_twice(store: Store, key: str) -> bytes:
    """Return a small object's bytes, on which two of three reads must agree."""
    seen: list[bytes] = []
    for _ in range(TRIES):
        data = store.get(key).data
        if data in seen:
            return data
        seen.append(data)
    raise Corrupt(
        f"{store.url}/{key} has other bytes at each of {TRIES} reads: look at the disk or network there"
    )


def put_compared(target: Store, key: str, data: bytes) -> None:
    """Create a small object, and verify it. Raises: AlreadyExists; Corrupt; StoreError."""
    for _ in range(TRIES):
        target.put_if_absent(key, data)
        if any(target.get(key).data == data for _ in range(2)):
            return
        target.delete_many([key])
    raise _uneven(None, target, key)


def _uneven(source: Store | None, target: Store, path: str) -> Corrupt:
    of = f"{source.url}/{path} or {target.url}/{path}" if source is not None else f"{target.url}/{path}"
    return Corrupt(
        f"{of} differed from the copied bytes, {TRIES} times: look at the disk or network there; "
        "nothing of it stays in the target, so run this again"
    )
