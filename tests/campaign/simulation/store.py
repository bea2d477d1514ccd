"""A bucket as one actor sees it: every request waits for its turn, and some meet a fault."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, TypeVar

from loader.errors import AlreadyExists, Changed, Corrupt, ObjectNotFound, Throttled, Transient
from loader.storage.store import Blob, ByteRange, ObjectInfo
from loader.storage.stream import open_reader

from .bucket import Bucket, Stored
from .turns import Actor, Killed

T = TypeVar("T")


def is_sign_of_life(key: str) -> bool:
    """Whether it is written under a lock."""
    return key.startswith(("leases/", "heartbeats/")) and key.endswith(".json")


class ActorStore:
    """See `loader.storage.store.Store`. world: is asked for turns and faults, and told of writes."""

    def __init__(self, world: Any, bucket: Bucket, url: str, actor: Actor) -> None:
        self._world, self._bucket, self.url, self.actor = world, bucket, url, actor
        self._number = 0

    def get(self, key: str) -> Blob:
        def read(fault: str, rng: Random) -> Blob:
            one = self._stored(key)
            return Blob(self._spoiled(key, one.data, fault, rng), one.etag)

        return self._ask("get", key, read)

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        def read(fault: str, rng: Random) -> Blob:
            one = self._pinned(key, etag)
            data = one.data[offset : offset + nbytes]
            if len(data) != nbytes or offset > len(one.data):
                raise Corrupt(f"{self.url}/{key}[{offset}:{offset + nbytes}]: it has {len(one.data)} bytes")
            return Blob(self._spoiled(key, data, fault, rng), one.etag)

        return self._ask("get_range", key, read)

    def get_ranges(
        self,
        key: str,
        spans: Sequence[ByteRange],
        *,
        etag: str | None = None,
        max_gap: int = 64 * 2**10,
        max_span: int = 16 * 2**20,
    ) -> list[Blob]:
        pinned = etag
        found = []
        for span in spans:
            found.append(self.get_range(key, span.offset, span.nbytes, pinned))
            pinned = found[0].etag
        return found

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._write("put", key, bytes(data), create_only=False)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        self._write("put_if_absent", key, bytes(data), create_only=True)

    def put_file(self, key: str, path: str) -> None:
        self._write("put_file", key, Path(path).read_bytes(), create_only=False)

    def head(self, key: str) -> ObjectInfo:
        return self._ask("head", key, lambda *_: self._info(key, self._stored(key)))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        def read(fault: str, rng: Random) -> list[ObjectInfo]:
            self._world.lists(self.actor, self._bucket, prefix)
            shown = {key: one for key, one in self._bucket.objects.items() if key.startswith(prefix)}
            missing: set[str] = set()
            may_miss = sorted(shown.keys() - self._world.faults.missed - self._world.never_missed)
            if fault == "torn" and may_miss:
                missing = set(rng.sample(may_miss, rng.choice([1, 1, min(3, len(may_miss)), len(may_miss)])))
            elif fault == "late":
                missing = set(may_miss) - self._bucket.before.keys()
            if missing:
                self._world.faults.missed |= missing
                self._happens(fault, f"list {prefix} lacks {', '.join(sorted(missing))}")
            return [
                self._info(key, one)
                for key, one in sorted(shown.items())
                if key not in missing and (start_after is None or key > start_after)
            ]

        return iter(self._ask("list", prefix, read))

    def delete_many(self, keys: Iterable[str]) -> None:
        there = list(keys)
        self._world.before_delete(self.actor, self._bucket, there)

        def delete(fault: str, rng: Random) -> None:
            some = there[: rng.randrange(len(there) + 1)] if fault == "ambiguous" and there else there
            for key in some:
                self._bucket.delete(key)
            if fault == "ambiguous":
                self._happens(fault, f"{len(some)} of {len(there)} are deleted: {there[:3]}")
                raise Transient(f"{self.url}: the connection was reset")

        self._ask("delete_many", there[0] if there else "", delete)

    def copy(self, src: str, dst: str) -> None:
        self.put(dst, self.get(src).data)

    def open_stream(self, key: str) -> BinaryIO:
        return open_reader(self, key)

    def close(self) -> None:
        """Nothing to release."""

    # how

    def _write(self, verb: str, key: str, data: bytes, *, create_only: bool) -> None:
        self._world.uploads(key, data)

        def write(fault: str, rng: Random) -> None:
            what = rng.choice(["done", "not done", "late"]) if fault == "ambiguous" else "done"
            if what == "done":
                there = key in self._bucket.objects
                if create_only and not self._bucket.create(key, data, self._world.turns.true_us):
                    raise AlreadyExists(f"{self.url}/{key}: the key already holds another object")
                if not create_only:
                    self._bucket.put(key, data, self._world.turns.true_us)
                if not there:
                    self._world.created(self.actor, self._bucket, key, data)
            elif what == "late":
                self._bucket.late.append((key, data, create_only))
            if fault == "ambiguous":
                self._happens(fault, f"{verb} {key}: {what}")
                raise Transient(f"{self.url}/{key}: the connection was reset")

        self._ask(verb, key, write)
        self._world.wrote(self.actor, self._bucket, key)

    def _ask(self, verb: str, key: str, does: Callable[[str, Random], T]) -> T:
        """One request: its turn, its fault, and what it does."""
        world = self._world
        if world.over:
            raise Transient(f"{self.url}: the world is over")
        self._number = number = world.turns.ask(self.actor, at_once=is_sign_of_life(key))
        if self._bucket.late and world.turns.rng.random() < 0.2:
            self._bucket.arrive(world.turns.true_us)
        world.trace.append((number, self.actor.name, verb, key))
        drawn = world.faults.draw(number, verb)
        if drawn is None:
            return does("", world.turns.rng)
        fault, rng = drawn
        if fault == "storms":
            self._happens(fault, f"{verb} {key}")
            raise (Throttled if rng.random() < 0.5 else Transient)(f"{self.url}/{key}: 503 slow down")
        if fault in ("kills", "stalls"):
            return self._struck(fault, rng, verb, key, lambda: does("", rng))
        return does(fault, rng)

    def _struck(self, fault: str, rng: Random, verb: str, key: str, does: Callable[[], T]) -> T:
        """The actor itself is befallen, before its request or after."""
        what = f"{verb} {key}"
        world, mortal = self._world, self.actor.facts.get("mortal")
        if fault == "stalls" and is_sign_of_life(key):
            return does()
        if not mortal or world.turns.beating or world.turns.current is not self.actor:
            return does()
        first = rng.random() < 0.5
        found = does() if first else None
        if fault == "stalls":
            hours = rng.choice([1, 30, 80, 160, 250])
            self._happens(fault, f"{hours} h {'after' if first else 'before'} {what}")
            world.turns.stall(self.actor, hours)
            return found if first else does()  # type: ignore[return-value]
        self._happens(fault, f"{'after' if first else 'before'} {what}")
        self.actor.dead = True
        raise Killed

    def _happens(self, fault: str, words: str) -> None:
        self._world.faults.note(self._number, fault, f"{self.actor.name}: {words}")

    def _stored(self, key: str) -> Stored:
        if key not in self._bucket.objects:
            raise ObjectNotFound(f"{self.url}/{key}: there is no such object")
        return self._bucket.objects[key]

    def _pinned(self, key: str, etag: str | None) -> Stored:
        one = self._stored(key)
        if etag is not None and one.etag != etag:
            raise Changed(f"{self.url}/{key}: the object was replaced since it was first read")
        return one

    def _spoiled(self, key: str, data: bytes, fault: str, rng: Random) -> bytes:
        """Once per object."""
        if fault not in ("flips", "truncated") or not data or key in self._world.faults.flipped:
            return data
        self._world.faults.flipped.add(key)
        if fault == "truncated":
            nbytes = rng.randrange(len(data))
            self._happens(fault, f"{nbytes} of {len(data)} bytes of {key}")
            return data[:nbytes]
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        self._happens(fault, f"bit {bit} of byte {at} of {len(data)} of {key}")
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    def _info(self, key: str, one: Stored) -> ObjectInfo:
        told = one.at_us if self._world.store_tells_time else None
        return ObjectInfo(key=key, nbytes=len(one.data), etag=one.etag, modified_us=told)
