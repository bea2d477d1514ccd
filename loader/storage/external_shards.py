"""Read shards outside the root, and check each object against its registered size and change token.

A shard with a path in `foreign/` is one object in a bucket or folder, several concatenated objects, or an object's
decoded bytes.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Unpack

from ..errors import Changed, Corrupt, Forbidden, ObjectNotFound, PenstockError
from .store import (
    Blob,
    ByteRange,
    Disk,
    ObjectInfo,
    Piece,
    ReadLimits,
    Store,
    as_disk,
    check_span,
    fill_pieces,
    is_local,
    is_on_network,
)
from .threads import lock

FOREIGN = "foreign/"
"""Prefix of the paths of foreign shards."""
SEVERAL = "several"
"""Change token of a shard with several objects; reads check each object."""
DECODED = "decoded"
"""Change token of a decoded shard; reads check its object."""

ReadRaw = Callable[[Sequence[ByteRange]], Sequence[bytes]]
"""Stored spans of an object -> their bytes."""


class Decoded(Protocol):
    """The bytes that an object decodes to."""

    @property
    def nbytes(self) -> int:
        """Number of decoded bytes."""

    def read(self, spans: Sequence[ByteRange], raw: ReadRaw, *, anew: bool = False) -> list[bytes]:
        """Return the decoded bytes of spans, in order. anew: bypass the cache. Raises: Corrupt; as `raw`."""

    def forget(self) -> None:
        """Drop cached bytes."""

    def apart(self) -> "Decoded":
        """Return a decoder for another copy of the object, with its own cache."""


class PlacedObject(NamedTuple):
    """One object of a shard, as registered."""

    store: Store
    """Store that contains the object."""
    key: str
    """Key in that store."""
    nbytes: int
    """Size in bytes."""
    etag: str
    """Change token; "" in a folder, which uses `modified_us` instead."""
    modified_us: int | None
    """Last write, microseconds since 1970; 0 if unknown, None for an object adopted into the root."""
    offset: int
    """First byte in the shard."""
    decoded: Decoded | None = None
    """Decoder, if the shard has the object's decoded bytes; None for stored bytes."""

    @property
    def is_adopted(self) -> bool:
        """True if the object was copied into the root."""
        return self.modified_us is None


class RefusedPlace:
    """Stands for a location that is not opened; every use raises."""

    is_local = False
    is_on_network = False

    def __init__(self, url: str, why: PenstockError) -> None:
        self.url = url
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise self._why.with_message(str(self._why))  # a new error: readers add notes to it


ObjectsOf = Callable[[str], Sequence[PlacedObject]]
"""Path of a shard -> its objects, sorted by offset. Raises: Corrupt."""


class PlacedStore:
    """Reads shards in the root and in foreign locations. Thread-safe.

    home: store of the root. places: stores of the locations. Raises: as these stores; also Changed.

    unvouched: id of a location that the caller does not vouch for -> error that a copy of its bytes raises.
    """

    def __init__(
        self,
        home: Store,
        places: Sequence[Store],
        objects_of: ObjectsOf,
        unvouched: Mapping[str, Forbidden] = MappingProxyType({}),
    ) -> None:
        self._home = home
        self._places = places
        self._objects_of = objects_of
        self._unvouched = unvouched
        self._lock = lock()
        self._pins: dict[tuple[str, str], str] = {}
        """(URL of a folder, key) -> token to check; "" for none."""
        self.is_local = all(map(is_local, (home, *places)))

    @property
    def url(self) -> str:
        return self._home.url

    @property
    def urls(self) -> list[str]:
        return [self._home.url, *(one.url for one in self._places)]

    @property
    def stores(self) -> list[Store]:
        return [self._home, *self._places]

    @property
    def disk(self) -> "PlacedStore | None":
        return self if all(as_disk(one) is not None for one in (self._home, *self._places)) else None

    @property
    def is_on_network(self) -> bool:
        return any(map(is_on_network, self.stores))

    def check_vouched(self, places: Iterable[str]) -> None:
        """Raise Forbidden for a location whose bytes must not be copied into the root."""
        for place in places:
            if place in self._unvouched:
                error = self._unvouched[place]
                raise error.with_message(str(error))  # a new error: readers add notes to it

    def is_adopted(self, key: str) -> bool:
        return self._objects_of(key)[0].is_adopted

    def objects(self, key: str) -> Sequence[PlacedObject]:
        """Return the objects of a registered shard, sorted by offset."""
        return self._objects_of(key)

    def stored(self, placed: PlacedObject, span: ByteRange) -> bytes:
        with self._explain_errors(placed):
            return self._read_ranges(placed, [span])[0][0]

    def place(self, key: str, offset: int = 0) -> tuple[str, int]:
        """Return (object URL, offset in it) for a byte of a shard; a decoded offset if the shard is decoded."""
        if not key.startswith(FOREIGN):
            return f"{self._home.url}/{key}", offset
        objects = self._objects_of(key)
        placed = objects[_which(objects, offset)]
        return f"{placed.store.url}/{placed.key}", offset - placed.offset

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        check_span(key, offset, nbytes)
        if not key.startswith(FOREIGN) or self._objects_of(key)[0].decoded is None:
            return self.get_ranges(key, [ByteRange(offset, nbytes)], etag=etag)[0]
        (data,), token = self._read(key, [ByteRange(offset, nbytes)], self._read_ranges, anew=True)
        return Blob(data, token)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        if not key.startswith(FOREIGN):
            return self._home.get_ranges(key, spans, etag=etag, **limits)

        data, token = self._read(key, spans, partial(self._read_ranges, **limits))
        return [Blob(piece, token) for piece in data]

    def _read_ranges(
        self, placed: PlacedObject, own_spans: Sequence[ByteRange], **limits: Unpack[ReadLimits]
    ) -> tuple[list[bytes], str]:
        blobs = placed.store.get_ranges(placed.key, own_spans, etag=self._check_pin(placed), **limits)
        return [blob.data for blob in blobs], blobs[0].etag

    def head(self, key: str) -> ObjectInfo:
        if not key.startswith(FOREIGN):
            return self._home.head(key)
        objects = self._objects_of(key)
        infos = [self._check_info(placed) for placed in objects]
        decoded = objects[0].decoded
        if decoded is not None:
            return ObjectInfo(key=key, nbytes=decoded.nbytes, etag=DECODED)
        token = SEVERAL
        if len(infos) == 1:
            token = infos[0].etag
        return ObjectInfo(key=key, nbytes=sum(info.nbytes for info in infos), etag=token)

    def check_objects(self, key: str, offsets: Iterable[int]) -> None:
        """Check the objects that contain these bytes of a shard. Raises if one is missing or changed."""
        objects = self._objects_of(key)
        for number in sorted({_which(objects, offset) for offset in offsets}):
            self._check_info(objects[number])

    # methods of a disk store

    def read_each(
        self, key: str, spans: Sequence[tuple[int, int]], *, etag: str | None = None
    ) -> tuple[list[bytes], str]:
        if not key.startswith(FOREIGN):
            return _disk(self._home).read_each(key, spans, etag=etag)

        def read(placed: PlacedObject, own_spans: Sequence[ByteRange]) -> tuple[list[bytes], str]:
            return _disk(placed.store).read_each(placed.key, own_spans, etag=self._check_pin(placed))

        return self._read(key, [ByteRange(*span) for span in spans], read)

    def read_into(self, key: str, pieces: Sequence[Piece], *, etag: str | None = None) -> str:
        if not key.startswith(FOREIGN):
            return _disk(self._home).read_into(key, pieces, etag=etag)
        data, token = self.read_each(key, [piece[:2] for piece in pieces], etag=etag)
        fill_pieces(pieces, data)
        return token

    def etag_of(self, key: str, etag: str | None = None) -> str | None:
        """Return a file's etag, like the disk store; None for several or decoded files."""
        if not key.startswith(FOREIGN):
            return _disk(self._home).etag_of(key, etag)
        objects = self._objects_of(key)
        if len(objects) > 1 or objects[0].decoded is not None:
            return None
        with self._explain_errors(objects[0]):
            return _disk(objects[0].store).etag_of(objects[0].key, self._check_pin(objects[0]))

    def open_same(self, key: str, etag: str) -> int | None:
        if not key.startswith(FOREIGN):
            return _disk(self._home).open_same(key, etag)
        (placed,) = self._objects_of(key)
        return _disk(placed.store).open_same(placed.key, etag)

    def _read(
        self,
        key: str,
        spans: Sequence[ByteRange],
        read: Callable[[PlacedObject, Sequence[ByteRange]], tuple[list[bytes], str]],
        *,
        anew: bool = False,
    ) -> tuple[list[bytes], str]:
        """Return (bytes of a shard's spans in order, its change token). Each span is within one object.

        read: returns (bytes of an object's spans, the object's token). anew: bypass the decode cache.
        """
        objects = self._objects_of(key)
        first = objects[0]
        if first.decoded is not None:

            def read_stored(stored_spans: Sequence[ByteRange]) -> list[bytes]:
                stored, _ = read(first, stored_spans)
                return stored

            with self._explain_errors(first):
                return first.decoded.read(spans, read_stored, anew=anew), DECODED
        spans_by_object: dict[int, list[int]] = {}  # number of an object -> numbers of the spans in it
        for number, span in enumerate(spans):
            spans_by_object.setdefault(_which(objects, span.offset), []).append(number)
        out = [b""] * len(spans)
        token = SEVERAL
        for object_number, numbers in spans_by_object.items():
            placed = objects[object_number]
            own_spans = [ByteRange(spans[n].offset - placed.offset, spans[n].nbytes) for n in numbers]
            with self._explain_errors(placed):
                data, own_token = read(placed, own_spans)
            if len(objects) == 1:
                token = own_token
            for number, piece in zip(numbers, data, strict=True):
                out[number] = piece
        return out, token

    def _check_pin(self, placed: PlacedObject) -> str | None:
        """Return the change token to check. A folder is checked once."""
        # An adopted object has no token: its store may have mirrors, and its fields have checksums.
        if placed.etag:
            return placed.etag
        name = (placed.store.url, placed.key)
        with self._lock:
            pin = self._pins.get(name)
        if pin is None:
            info = self._check_info(placed)
            pin = "" if placed.is_adopted else info.etag
            with self._lock:
                self._pins[name] = pin
        return pin or None

    def _check_info(self, placed: PlacedObject) -> ObjectInfo:
        """Return an object's current facts. Raises: ObjectNotFound; Changed since its registration; Forbidden."""
        location = f"{placed.store.url}/{placed.key}"
        try:
            info = placed.store.head(placed.key)
        except ObjectNotFound as error:
            if placed.is_adopted:
                raise ObjectNotFound(
                    f"{location} is gone, which was adopted into the root: restore it from a mirror",
                    what="adopted object",
                    where=location,
                ) from error
            raise ObjectNotFound(
                f"{location} is gone, and its bytes were registered where they lay: restore it, "
                "or register again, which leaves its samples out",
                what="registered object",
                where=location,
            ) from error
        if not placed.is_adopted:  # only penstock writes in the root
            _check_inside(placed)
        differs = difference(info, placed.nbytes, placed.etag, placed.modified_us)
        if differs is not None:
            todo = "register again, old samples keep their keys"
            if placed.is_adopted:
                todo = "it was damaged or exchanged in the root; restore it from a mirror"
            raise Changed(
                f"{location} {differs.text}: {todo}",
                what=differs.what,
                where=location,
                given=differs.current,
                accepted=differs.registered,
            )
        return info

    @contextmanager
    def _explain_errors(self, placed: PlacedObject) -> Iterator[None]:
        try:
            yield
        except (Changed, ObjectNotFound, Corrupt):
            self._check_info(placed)  # if the object differs from its registration, that is the error
            raise


def _check_inside(placed: PlacedObject) -> None:
    """Raise Forbidden for a file behind a link out of its location: another writer may have chosen it."""
    if as_disk(placed.store) is None:
        return
    base = os.path.realpath(placed.store.url)
    path = os.path.realpath(f"{placed.store.url}/{placed.key}")
    if not path.startswith(f"{base.rstrip('/')}/"):
        raise Forbidden(
            f"{placed.store.url}/{placed.key} is a link out of its place, to {path}, and is not followed: put the file "
            "itself there, then register again",
            what="link",
            where=f"{placed.store.url}/{placed.key}",
            given=path,
            accepted="a file in its location",
        )


class ObjectDifference(NamedTuple):
    """A fact in which an object differs from its registration."""

    what: str
    """Name of the fact: size, change token or time."""
    current: int | str | None
    """The object's, now: bytes, token, or microseconds since 1970."""
    registered: int | str
    """The same fact at the registration."""
    text: str
    """The difference in words, which follow the object's name."""


def difference(info: ObjectInfo, nbytes: int, etag: str, modified_us: int | None) -> ObjectDifference | None:
    """Return the difference between an object and its registration, or None."""
    if info.nbytes != nbytes:
        text = f"has {info.nbytes:,} bytes, registered were {nbytes:,}"
        return ObjectDifference("size", info.nbytes, nbytes, text)
    if etag and info.etag != etag:
        text = f"has the change token {info.etag}, registered was {etag}"
        return ObjectDifference("change token", info.etag, etag, text)
    if not etag and modified_us is not None and info.modified_us != modified_us:
        text = f"was written at {info.modified_us} us since 1970, registered was {modified_us}"
        return ObjectDifference("time", info.modified_us, modified_us, text)
    return None


def _which(objects: Sequence[PlacedObject], offset: int) -> int:
    """Return the number of the object that has a byte of the shard."""
    if len(objects) == 1:
        return 0
    return bisect_right(objects, offset, key=lambda item: item.offset) - 1


def _disk(store: Store) -> Disk:
    disk = as_disk(store)
    assert disk is not None, f"{store.url} is not a folder of this machine"
    return disk
