"""Probe a store below a scratch prefix: conditional creates, listings, reads after writes."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from random import Random
from threading import Barrier
from typing import IO

from loader.dataset.log.marker import PROBES
from loader.dataset.shards.shard import crc32c
from loader.errors import AlreadyExists, Changed, Corrupt, InvalidStore, ObjectNotFound, StoreError
from loader.storage import ByteRange, Store
from loader.storage.disk.scratch import default_place, scratch_file
from loader.storage.store import TEMPORARY
from loader.storage.threads import DaemonPool

from .finding import Finding, fail, note, ok, warn


class Folder:
    """A new folder inside the store's folder. disk: path of a subfolder that the store does not list."""

    def __init__(self, root: str, prefix: str) -> None:
        self.path = self._there = os.path.join(root, prefix.rstrip("/"))
        self.disk = os.path.join(self.path, f"{TEMPORARY}disk")
        # The deepest folder that existed before, at which `remove` stops.
        while not os.path.isdir(self._there):
            self._there = os.path.dirname(self._there)
        os.makedirs(self.disk)

    def remove(self) -> None:
        """Remove the folder and its files, then the empty parents that were new."""
        shutil.rmtree(self.path, ignore_errors=True)
        above = os.path.dirname(self.path)
        with suppress(OSError):  # another process has files there
            while above != self._there:
                os.rmdir(above)
                above = os.path.dirname(above)


class Scratch:
    """The probes' objects, below a new prefix. If the doctor is killed, they block no writer of a new root."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prefix = f"{PROBES}{secrets.token_hex(8)}/"
        self._keys: set[str] = set()

    def key(self, name: str) -> str:
        """Return the key for a probe's object, which `remove` will delete."""
        key = self.prefix + name
        self._keys.add(key)
        return key

    def remove(self) -> None:
        """Delete all named objects, even if the store does not list them."""
        self.store.delete_many(sorted(self._keys))


WRITERS = 16
ROUNDS = 4
ELSEWHERE = (
    "publish elsewhere: two writers here could both believe they had won, and a version be lost. S3, GCS, Azure, Ceph "
    "and POSIX disks create atomically; `rclone serve s3`, s3rver and gateways that ignore If-None-Match do not"
)


def creates(scratch: Scratch) -> Iterator[Finding]:
    """Check that a second create of a key fails, in turn and in parallel. Costs 2 requests per writer and round."""
    try:
        yield _in_turn(scratch)
    except InvalidStore as error:  # the backend states that it has no atomic create
        yield fail("create-only", str(error), ELSEWHERE)
        return
    yield _at_once(scratch)


def _in_turn(scratch: Scratch) -> Finding:
    key = scratch.key("create/second")
    scratch.store.put_if_absent(key, b"first")
    try:
        scratch.store.put_if_absent(key, b"second")
    except AlreadyExists:
        held = scratch.store.get(key).data
        if held == b"first":
            return ok("create-only", "a second create of a key is refused, and changes nothing")
        return fail("create-only", f"a refused create replaced the object: it holds {held!r}", ELSEWHERE)
    return fail(
        "create-only", "a second create of a key replaced the first: creates are not conditional", ELSEWHERE
    )


def _at_once(scratch: Scratch) -> Finding:
    check = "creates at once"
    with DaemonPool(WRITERS, "penstock-doctor") as threads:
        for number in range(ROUNDS):
            key = scratch.key(f"create/{number}")
            # All at one moment: a server that checks and then writes fails only in a race.
            start = Barrier(WRITERS)

            def create(writer: int, key: str = key, start: Barrier = start) -> bool:
                start.wait()
                try:
                    scratch.store.put_if_absent(key, b"writer %d" % writer)
                except AlreadyExists:
                    return False
                return True

            won = [writer for writer, created in enumerate(threads.map(create, range(WRITERS))) if created]
            held = scratch.store.get(key).data
            if [b"writer %d" % writer for writer in won] != [held]:
                return fail(
                    check,
                    f"of {WRITERS} creates of one key at once {len(won)} won; the object holds {held!r}",
                    ELSEWHERE,
                )
    return ok(
        check, f"of {WRITERS} creates of one key at once exactly one wins, {ROUNDS} times out of {ROUNDS}"
    )


AT_ONCE = 32
ODD = ("a b", "a+b", "a.b", "a/b", "a0", "A", "Z/z", "ü", "%41", "日本", "𝄞", "~")
"""Names that some servers order or escape wrongly; a disk cannot hold both 'a' and 'a/b'."""
PUBLISH_ELSEWHERE = "histories and collections are read by listing: publish elsewhere"


def listing(scratch: Scratch, many: int) -> Iterator[Finding]:
    """Check listings of unusual names and of `many` more keys. More than 1,000 keys also show whether pages join.

    Costs a request per key.
    """
    base = scratch.prefix + "list/"  # (the objects are not empty: empty ones look like a console's folders)
    names = [f"odd/{name}" for name in ODD] + [f"many/{number:06}" for number in range(many)]
    with DaemonPool(AT_ONCE, "penstock-doctor") as threads:
        list(threads.map(lambda name: scratch.store.put(scratch.key(f"list/{name}"), b"x"), names))
    # By code points, which is the order of UTF-8 bytes, and so of stores.
    names.sort()
    try:
        yield _compare_listing(scratch, base, names)
    except StoreError as error:
        yield fail("listing", str(error), PUBLISH_ELSEWHERE)


def _compare_listing(scratch: Scratch, base: str, names: list[str]) -> Finding:
    def listed(prefix: str, start_after: str | None = None) -> list[str]:
        after = None
        if start_after is not None:
            after = base + start_after
        return [info.key[len(base) :] for info in scratch.store.list(base + prefix, after)]

    middle = names[len(names) // 2]
    asked = {
        "everything": (listed(""), names),
        f"what follows {middle!r}": (listed("", middle), [name for name in names if name > middle]),
        "what follows the last": (listed("", names[-1]), []),
        "the prefix 'odd/a'": (listed("odd/a"), [name for name in names if name.startswith("odd/a")]),
        "a prefix that nothing has": (listed("nothing"), []),
    }
    for what, (listed_keys, expected) in asked.items():
        if listed_keys != expected:
            return fail("listing", f"of {what}: {_difference(listed_keys, expected)}", PUBLISH_ELSEWHERE)
    return ok(
        "listing",
        f"{len(names):,} keys, odd names among them, come once each and in order, after a key and by prefix",
    )


def _difference(listed_keys: list[str], expected: list[str]) -> str:
    if missing := sorted(set(expected) - set(listed_keys)):
        return f"{len(missing)} of {len(expected)} keys are missing ({missing[0]!r} ...)"
    if extra := sorted(set(listed_keys) - set(expected)):
        return f"{len(extra)} keys come that were not asked for ({extra[0]!r} ...)"
    if len(listed_keys) > len(expected):
        return "some keys come twice"
    return "the keys are not in order"


TURNS = 8
NBYTES = 2**20 + 17
PARTS_BYTES = 64 * 2**20 + 1
"""Object size just above the limit for one upload request."""
NOT_STRONG = (
    "a cache or a gateway stands before the store, or it is eventually consistent: give the store's own URL"
)
DAMAGED = "nothing read from here can be trusted: look for a proxy that rewrites bodies, and at the store's own health"


def writing(scratch: Scratch) -> Iterator[Finding]:
    """Check that anything can be written."""
    scratch.store.put(scratch.key("first"), b"")
    yield ok("writing", "objects can be written")


def read_after_write(scratch: Scratch) -> Iterator[Finding]:
    """Check that writes, overwrites and deletes are visible at once. Costs 9 requests per turn."""
    check = "read after write"
    store = scratch.store
    for turn in range(TURNS):
        key = scratch.key(f"fresh/{turn}")
        if _there(scratch, key):
            yield fail(check, f"a key that was never written was there: {key}", NOT_STRONG)
            return
        for data in (b"one", b"two, longer"):
            store.put(key, data)
            if (held := store.get(key).data) != data or store.head(key).nbytes != len(data):
                yield fail(check, f"after {data!r} was written, {held!r} was read", NOT_STRONG)
                return
        store.delete_many([key])
        if _there(scratch, key):
            yield fail("delete", "an object was still there after it was deleted", NOT_STRONG)
            return
    store.delete_many([scratch.key("fresh/never")])
    yield ok(check, f"writes, overwrites and deletes are seen at once, {TURNS} times out of {TURNS}")
    yield ok("delete", "a deleted object is gone, and a key that is not there may be deleted")


def etags(scratch: Scratch) -> Iterator[Finding]:
    """Check that every verb returns the same ETag, which readers pin, and that an overwrite changes it."""
    check = "etags"
    store = scratch.store
    key = scratch.key("etag")
    store.put(key, b"first")
    first = store.get(key).etag
    seen = {"get": first, "a range": store.get_range(key, 0, 1).etag, "head": store.head(key).etag}
    if not first or len(set(seen.values())) > 1:
        etags_seen = ", ".join(f"{verb}: {etag or 'none'}" for verb, etag in seen.items())
        yield fail(check, f"one object has several ETags, or none: {etags_seen}", NOT_STRONG)
        return
    store.put(key, b"other")  # as long as the first
    if store.get(key).etag == first:
        yield fail(
            check,
            "another object at the same key has the same ETag",
            "a replaced shard would not be noticed: " + NOT_STRONG,
        )
        return
    try:
        store.get_range(key, 0, 1, first)
    except Changed:
        yield ok(check, "every verb returns the same ETag, and an overwrite changes it")
        return
    yield fail(check, "a read that pins the old ETag got the new object", NOT_STRONG)


def ranges(scratch: Scratch) -> Iterator[Finding]:
    """Check ranges: first, middle, last, empty and beyond the end. Costs 14 requests."""
    check = "ranges"
    store = scratch.store
    key = scratch.key("ranges")
    # Without a period, which would hide a shifted range; seeded, so that a finding repeats.
    data = Random(1).randbytes(NBYTES)
    store.put(key, data)
    inside = ((0, 1), (NBYTES - 1, 1), (4096, 65536), (NBYTES - 5, 5), (0, NBYTES), (7, 0), (NBYTES, 0))
    for offset, nbytes in inside:
        if store.get_range(key, offset, nbytes).data != data[offset : offset + nbytes]:
            yield fail(check, f"bytes {offset} to {offset + nbytes} differ from the written bytes", DAMAGED)
            return
    spans = [ByteRange(NBYTES // 2, 100), ByteRange(0, 100), ByteRange(NBYTES - 100, 100)]
    if [blob.data for blob in store.get_ranges(key, spans, max_gap=0)] != [
        data[at : at + n] for at, n in spans
    ]:
        yield fail(check, "several ranges of one object, asked for at once, came back as others", DAMAGED)
        return
    for offset, nbytes in ((NBYTES - 1, 2), (NBYTES, 1), (NBYTES + 10**6, 1)):
        try:
            store.get_range(key, offset, nbytes)
        except Corrupt:
            continue
        yield fail(
            check,
            f"a range beyond the end (byte {offset} of {NBYTES}) was answered as if it were there",
            DAMAGED,
        )
        return
    yield ok(check, "first, middle, last, empty and whole ranges are right; those beyond the end are errors")


def checksums(scratch: Scratch) -> Iterator[Finding]:
    """Check the checksums of empty, small and multipart objects by reading them back. Moves 130 MiB."""
    check = "checksums"
    store = scratch.store
    for nbytes in (0, 1, 65_537):
        data = Random(nbytes).randbytes(nbytes)
        key = scratch.key(f"sum/{nbytes}")
        store.put(key, data)
        if crc32c(store.get(key).data) != crc32c(data):
            yield fail(check, f"the CRC-32C of {nbytes} bytes is another after they were read back", DAMAGED)
            return
    key = scratch.key("sum/parts")
    digest = hashlib.sha256()
    with ExitStack() as held:
        try:
            file = held.enter_context(scratch_file("doctor", buffering=0))
            expected = _fill(file)
        except OSError as error:  # from this machine's disk, not from the store
            what = (
                "what is uploaded in parts was not checked: temporary space "
                f"{default_place()} does not take a file of {PARTS_BYTES / 2**20:.0f} MiB: "
                f"{error.strerror or error}"
            )
            do = "free some space there or set TMPDIR to a writable disk that has it, and run this again"
            yield warn(check, what, do)
            return
        store.put_file(key, file.name)
    with store.open_stream(key) as stream:
        while piece := stream.read(2**20):
            digest.update(piece)
    if expected != digest.digest():
        yield fail(
            check,
            "the SHA-256 of 64 MiB that were uploaded in parts is another after they were read back",
            DAMAGED,
        )
        return
    yield ok(check, "CRC-32C and SHA-256 are the same after reading back, up to 64 MiB uploaded in parts")


def copies(scratch: Scratch) -> Iterator[Finding]:
    """Check that a copy inside the store equals its source. Costs 3 requests."""
    store = scratch.store
    source = scratch.key("copy/from")
    target = scratch.key("copy/to ü +%41")
    store.put(source, b"copied")
    try:
        store.copy(source, target)
        held = store.get(target).data
    except (StoreError, InvalidStore) as error:
        yield note("copies", f"objects cannot be copied inside the store: {error}")
        return
    if held != b"copied":
        yield fail("copies", f"a copy holds {held!r} instead of b'copied'", DAMAGED)
    else:
        yield ok(
            "copies", "a copy inside the store is the same, under a name with blanks and other characters too"
        )


def _fill(file: IO[bytes]) -> bytes:
    block = memoryview(Random(2).randbytes(2**20))
    digest = hashlib.sha256()
    for at in range(0, PARTS_BYTES, len(block)):
        piece = block[: PARTS_BYTES - at]
        digest.update(piece)
        while piece:
            # An unbuffered write may write less than all of it.
            piece = piece[file.write(piece) :]
    return digest.digest()


def _there(scratch: Scratch, key: str) -> bool:
    try:
        scratch.store.get(key)
    except ObjectNotFound:
        return False
    return True
