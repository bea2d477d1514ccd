"""Copy one object between stores, hashed on the way; it appears in the target only if correct.

An object without a digest, such as a log entry, is read twice; then the copy is read back and compared.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from contextvars import copy_context
from dataclasses import replace
from hashlib import sha256
from typing import IO

from loader.dataset.log.entries import DAMAGED, entry_key, parse, with_repair
from loader.errors import AlreadyExists, Changed, Corrupt, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Store
from loader.storage.cloud.listing import differ, is_md5
from loader.storage.cloud.reads import ReadStore
from loader.storage.cloud.s3 import S3PutStore
from loader.storage.cloud.store import RemoteStore
from loader.storage.disk.folder_files import write_all
from loader.storage.disk.scratch import on_scratch, scratch_file
from loader.storage.disk.store import LocalStore
from loader.storage.files import MemoryBudget
from loader.storage.store import as_disk
from loader.storage.stream import MAX_BYTES, PieceReader, SequentialRead, fill_from
from loader.storage.threads import DaemonPool

from .items import HELD_BYTES, Copied, Digest, Item, Pace, check, in_words, proves

PIECE_BYTES = 16 * 2**20
SMALL_PIECE_BYTES = 4 * 2**20
"""Larger objects are read in ranges of this size; small ranges cost a server more (Ceph: 8 % more at 4 MiB).

The smaller size is for stores that return each range in a new buffer.
"""
AHEAD = 2
"""Ranges in flight while another is hashed."""
READERS = 8
"""Threads that read ranges, shared by all objects."""
UPLOAD_BYTES = 80 * 2**20
"""Most memory for an object that passes through a file: four 16 MiB parts in flight, and one being read."""
PART_BYTES = 16 * 2**20
"""Part size of a multipart upload, in bytes."""
BESIDE_BYTES = (AHEAD + 1) * SMALL_PIECE_BYTES
"""Memory to read an object, besides its own bytes."""
# Three objects of the largest size that is kept in memory, or more of smaller ones.
ROOM_BYTES = 3 * (HELD_BYTES + BESIDE_BYTES)


class Transfer:
    """Copies items from one store to another. Thread-safe.

    scratch: local folder for large objects. hash: digest kind for objects without an expected
    digest, one of `items.KINDS`.
    """

    def __init__(
        self, source: Store, target: Store, pace: Pace, scratch: str | None = None, hash: str = "sha256"
    ) -> None:
        self._source = source
        self._target = target
        self._pace = pace
        self._scratch = scratch
        self._hash = hash
        self._room = MemoryBudget(ROOM_BYTES)
        self._readers = DaemonPool(READERS, "penstock-migrate-read")
        # Clients of other stores accept only `bytes`, so the buffer is copied.
        self._takes_views = isinstance(target, RemoteStore | LocalStore)
        fills = isinstance(source, ReadStore) or as_disk(source) is not None
        self._piece = PIECE_BYTES if fills else min(PIECE_BYTES, SMALL_PIECE_BYTES)

    def __call__(self, item: Item, *, may_exist: bool = False) -> Copied:
        """Copy an item. may_exist: check first whether the target has it.

        Raises: Corrupt or Changed if the bytes differ from the root's digest or the listed object; ObjectNotFound;
        AlreadyExists if the target has different bytes; store errors.
        """
        if may_exist or item.may_exist:
            there = self._there(item)
            if there is not None:
                return Copied(path=item.path, nbytes=there, digest="", etag=item.etag)
        if item.nbytes is None:
            with self._room.for_bytes(BESIDE_BYTES):
                return self._unknown(item)
        if item.nbytes > HELD_BYTES:
            with self._room.for_bytes(UPLOAD_BYTES):
                return self._through_a_file(item, item.nbytes)
        return self._held(item, item.nbytes)

    def digest(self, store: Store, path: str) -> str:
        """Return the SHA-256 of an object as stored. Reads it whole."""
        # SHA-256, even if another kind is recorded: equal digests must prove equal bytes here.
        digest = Digest("", "sha256")
        asked = 0
        with self._room.for_bytes(BESIDE_BYTES):
            pieces = PieceReader(store, path)
            try:
                while piece := pieces.next():
                    # After the read: its requests are known only now, and the next piece waits for them.
                    self._pace.take(requests=pieces.requests - asked, nbytes=len(piece))
                    asked = pieces.requests
                    digest.update(piece)
            finally:
                pieces.close()
        return str(digest)

    def _there(self, item: Item) -> int | None:
        self._pace.take(requests=1)
        try:
            # A manifest, whose size the log does not state: only its bytes show that it is the same.
            if item.nbytes is None:
                return self._size_of_manifest(item)
            info = self._target.head(item.path)
        except ObjectNotFound:
            return None  # the usual case
        if info.nbytes != item.nbytes:
            return None
        if is_md5(info.etag):  # a killed run may have left an object that was damaged in transit
            self._pace.take(requests=1)
            if differ(self._source.head(item.path).etag, info.etag):
                return None
        return info.nbytes

    def _size_of_manifest(self, item: Item) -> int | None:
        data = self._target.get(item.path).data
        digest = self._digest(item)
        digest.update(data)
        if str(digest) == item.digest:
            return len(data)
        return None

    def _unknown(self, item: Item) -> Copied:
        self._pace.take(requests=1)
        read = self._source.get(item.path)
        self._pace.take(nbytes=len(read.data))
        digest = self._digest(item)
        digest.update(read.data)
        return self._put(item, read.data, read.etag, str(digest))

    def _held(self, item: Item, nbytes: int) -> Copied:
        overhead = min((AHEAD + 1) * nbytes, BESIDE_BYTES) + (0 if self._takes_views else nbytes)
        with self._room.memory(nbytes, overhead) as lent:
            copied = self._put(item, lent.view, *self._read(item, lent.view))
            lent.is_free = True  # not after an error: a range may still be written into it
        return copied

    def _put(self, item: Item, data: bytes | memoryview, etag: str, digest: str) -> Copied:
        # Before the write: a damaged object must not appear in the target even for a moment.
        check(self._source, item, len(data), digest)
        is_needed = self._is_needed(item, digest)
        if is_needed:
            self._pace.take(requests=1)
            if isinstance(self._target, S3PutStore):
                self._target.put_same(item.path, data, etag, replace=item.replace)
            elif item.replace:
                self._target.put(item.path, data)
            else:
                self._target.put_if_absent(item.path, data)
        return Copied(path=item.path, nbytes=len(data), digest=digest, etag=item.etag, written=is_needed)

    def _through_a_file(self, item: Item, nbytes: int) -> Copied:
        with ExitStack() as held:
            with self._on_scratch(item):
                file = held.enter_context(scratch_file("migrate", self._scratch, buffering=0))
            digest = self._to_file(item, nbytes, file.fileno())
            check(self._source, item, nbytes, digest)
            if not self._is_needed(item, digest):
                return Copied(path=item.path, nbytes=nbytes, digest=digest, etag=item.etag)
            self._pace.take(requests=count_copy_requests(nbytes)[1])
            try:
                there = None
                if not item.replace:
                    # `put_file` replaces what is there, unlike `put_if_absent`.
                    there = self._target.head(item.path).nbytes
            except ObjectNotFound:
                there = None
            if there is None:
                self._target.put_file(item.path, file.name)
            # Compared byte by byte: an equal size does not show that a killed run wrote it.
            elif there != nbytes or not self._has(item.path, file):
                what = "other bytes"
                if there != nbytes:
                    what = f"{there} bytes and the source's {nbytes}"
                raise AlreadyExists(
                    f"{self._target.url}/{item.path} has {what}: another tool wrote there; move that object away, "
                    "then run this again"
                )
        return Copied(path=item.path, nbytes=nbytes, digest=digest, etag=item.etag, written=there is None)

    def _has(self, path: str, file: IO[bytes]) -> bool:
        pieces = PieceReader(self._target, path)
        file.seek(0)
        try:
            while piece := pieces.next():
                self._pace.take(nbytes=len(piece))
                if file.read(len(piece)) != piece:
                    return False
        finally:
            self._pace.take(requests=pieces.requests)
            pieces.close()
        return True

    def _read(self, item: Item, view: memoryview) -> tuple[str, str]:
        digest = self._digest(item)
        # The listed object, else the first range's: all ranges must be of one object.
        etag = item.etag or None
        at = 0
        sequential = SequentialRead(self._source, item.path, len(view))
        try:
            while nbytes := sequential.next_bytes(at):
                self._pace.take(requests=int(not sequential.is_under_way), nbytes=nbytes)
                etag = sequential.fill(at, view[at : at + nbytes], etag)
                digest.update(view[at : at + nbytes])
                at += nbytes
            # No stream was used, or it ended early. An empty object needs its ETag too.
            if etag is None or not at or at < len(view):
                etag = self._read_ahead(item, view, at, etag, digest)
        finally:
            sequential.close()
        return etag, str(digest)

    def _read_ahead(
        self, item: Item, view: memoryview, begin: int, pinned: str | None, digest: Digest
    ) -> str:
        # An empty object has one empty piece, whose request shows that it exists.
        pieces = [view[at : at + self._piece] for at in range(begin, len(view), self._piece)] or [view]
        # The first piece on its own: its ETag pins the others.
        etag = self._fetch(item.path, begin, pieces[0], pinned)
        asked = 1
        coming: deque[Future[str]] = deque()
        try:
            for number, piece in enumerate(pieces):
                while asked < len(pieces) and len(coming) <= AHEAD:
                    # Requests are counted by context, and a thread has none of its own.
                    context = copy_context()
                    at = begin + asked * self._piece
                    coming.append(
                        self._readers.submit(context.run, self._fetch, item.path, at, pieces[asked], etag)
                    )
                    asked += 1
                if number:
                    coming.popleft().result()
                digest.update(piece)
        finally:
            for future in coming:
                future.cancel()
        return etag

    def _fetch(self, path: str, offset: int, view: memoryview, etag: str | None) -> str:
        self._pace.take(requests=1, nbytes=len(view))
        # An empty object: the request shows that it is there, and returns its ETag.
        if not view:
            return self._source.get_range(path, 0, 0, etag).etag
        return fill_from(self._source, path, offset, view, etag)

    def _to_file(self, item: Item, nbytes: int, descriptor: int) -> str:
        info = None
        if item.etag:
            info = ObjectInfo(key=item.path, nbytes=nbytes, etag=item.etag)
        pieces = PieceReader(self._source, item.path, info)
        digest = self._digest(item)
        asked = 0
        try:
            # By its size, before any of its bytes are fetched.
            check(self._source, item, pieces.info.nbytes, "")
            while piece := pieces.next():
                self._pace.take(requests=pieces.requests - asked, nbytes=len(piece))
                asked = pieces.requests
                digest.update(piece)
                # Only the write: an error of the store is none of the scratch disk.
                with self._on_scratch(item):
                    write_all(descriptor, piece)
        finally:
            pieces.close()
        return str(digest)

    def _on_scratch(self, item: Item) -> AbstractContextManager[None]:
        meanwhile = f"while {item.path} was copied; it was not"
        room_for = f"two of the largest objects (this one has {item.nbytes} bytes)"
        again = "run the same command again"
        return on_scratch(self._scratch, meanwhile, room_for=room_for, again=again, option="--scratch")

    def _digest(self, item: Item) -> Digest:
        # The earlier copy's kind, so that the two can be compared.
        return Digest(item.digest or (item.was if proves(item.was) else ""), self._hash)

    def _is_needed(self, item: Item, digest: str) -> bool:
        if not item.was:
            return True
        if digest == item.was and proves(digest):
            return False  # rewritten or moved with the same bytes
        if not item.replace:
            raise Changed(
                f"{self._source.url}/{item.path} was replaced since it was copied, or written again: "
                f"{in_words(item.was)} then, {in_words(digest)} now. The target keeps the former; run this again with "
                "--update to replace it"
            )
        return True


def count_copy_requests(nbytes: int | None) -> tuple[int, int]:
    """Return how many (reads, writes) a copy of this size takes."""
    known_nbytes = nbytes or 0
    if known_nbytes <= HELD_BYTES:
        n_pieces = -(-known_nbytes // PIECE_BYTES)  # rounded up
        reads = max(1, n_pieces)  # an empty object is read, too
        return reads, 1
    n_ranges = -(-known_nbytes // MAX_BYTES)
    n_parts = -(-known_nbytes // PART_BYTES)
    # Reads: as `PieceReader` makes them. Writes: a HEAD and a multipart upload.
    return 2 + n_ranges, 3 + n_parts


# A single misread must not end a migration; three in a row are a fault of disk or network.
TRIES = 3
READ_AHEAD = 16


class Compared:
    """A transfer that also verifies items without a digest. Thread-safe."""

    def __init__(self, source: Store, target: Store, transfer: Transfer) -> None:
        self._source = source
        self._target = target
        self._transfer = transfer

    def __call__(self, item: Item, *, may_exist: bool = False) -> Copied:
        """Copy an item. Raises: Corrupt if either store returns different bytes on each read; as `Transfer`."""
        # The root states its digest, so that one read proves the copy.
        if item.digest:
            return self._transfer(item, may_exist=may_exist)
        for _ in range(TRIES):
            digest = self._transfer.digest(self._source, item.path)
            try:
                copied = self._transfer(replace(item, digest=digest), may_exist=may_exist)
            except Corrupt:  # one of the two reads, or the listed size, was wrong
                continue
            if not copied.written or self._has_arrived(item.path, digest):
                return copied
            # Readers must not find a wrong copy, and the next try creates it anew.
            self._target.delete_many([item.path])
        raise _uneven(self._source, self._target, item.path)

    def _has_arrived(self, path: str, digest: str) -> bool:
        # Twice: a wrong read of the target is not a wrong copy.
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
        # Each entry has its predecessor's hash: one read of it proves both, if they agree.
        stated = last if follower is None else _previous_digest(follower)
        if sha256(data).hexdigest() != stated:  # this entry or the next may have been misread
            data = read_twice(source, entry_key(n))
            follower = None if follower is None else read_twice(source, entry_key(n + 1))
        _check_entry(source, n, data, follower)
        put_compared(target, entry_key(n), data)
        data = follower


def _check_entry(source: Store, n: int, data: bytes, follower: bytes | None) -> None:
    try:
        entry = parse(n, data)
        if follower is not None and _previous_digest(follower) != entry.sha256:
            # A repair may have recorded which bytes the next entry follows.
            behind = with_repair(source, parse(n + 1, follower), entry.sha256)
            if behind.follows != entry.sha256:
                message = f"log entry {entry_key(n + 1)} was written after other bytes of {entry_key(n)}"
                raise Corrupt(message, what="prev", where=f"log entry {entry_key(n + 1)}")
    except Corrupt as error:
        raise Corrupt(
            f"{source.url}: {error}. The entries before {entry_key(n)} were copied: mend the source with penstock "
            "repair, then run this again",
            what=error.what or "log entry",
            where=f"{source.url}/{entry_key(n)}",
            given=error.given,
            accepted=error.accepted,
        ) from error


def _entries(source: Store, numbers: range) -> Iterator[bytes]:
    """Yield the bytes of log entries, in order."""

    def read(n: int) -> bytes:
        return source.get(entry_key(n)).data

    with DaemonPool(READ_AHEAD, "penstock-migrate-log") as pool:
        for start in range(0, len(numbers), READ_AHEAD):
            # Reads run ahead of the writes, which must be in order.
            yield from pool.map(read, numbers[start : start + READ_AHEAD])


def _previous_digest(data: bytes) -> str:
    try:
        return str(parse_json_object(data)["prev"])
    # The caller then reads both entries twice, and names the damaged one.
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
        f"{store.url}/{key} has other bytes at each of {TRIES} reads: look at the disk or network there",
        what="reads of an object",
        where=f"{store.url}/{key}",
        given=TRIES,
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
        "nothing of it stays in the target, so run this again",
        what="copied bytes",
        where=of,
        given=TRIES,
    )
