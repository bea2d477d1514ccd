"""The interface of all stores, its value types, and rules for keys and listings.

One `Store` is one URL prefix. Keys are relative to it, `/`-separated UTF-8 without a leading `/`, with the same rules
for every backend. Stores are thread-safe.
"""

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, Protocol, TypedDict, Unpack, cast

from ..errors import InvalidRuntime, InvalidStore, MissingDependency, ObjectNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object, as reported by a listing or `head`."""

    key: str
    """Key, relative to the store."""
    nbytes: int
    """Size in bytes."""
    etag: str
    """Opaque change token: ETag, GCS generation, or mtime+inode+size. Differs between mirrors: never store it."""
    modified_us: int | None = field(default=None, compare=False)
    """Time of the last write by the store's clock, in microseconds since 1970; None if the store does not report it."""


class Blob(NamedTuple):
    """Bytes read, with their object's change token."""

    data: bytes
    etag: str
    """Change token of the object (`ObjectInfo.etag`)."""


class ByteRange(NamedTuple):
    """A byte range of one object."""

    offset: int
    """First byte."""
    nbytes: int
    """Number of bytes."""


class ReadLimits(TypedDict, total=False):
    max_gap: int
    """Most bytes between two spans that share a request; default 64 KiB."""
    max_span: int
    """Most bytes of a request; default 16 MiB."""


class Objects(Protocol):
    """The part of a store needed to read whole objects."""

    @property
    def url(self) -> str:
        """URL of the store, without secrets."""

    def get(self, key: str) -> Blob:
        """Return the whole object."""


class ObjectReader(Objects, Protocol):
    """The part of a store, or of a cache in front of it, needed to read indexes."""

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return a range, as `RangeReader.get_range`."""


class RangeReader(Protocol):
    """The part of a store, or of a cache in front of it, needed to read samples."""

    @property
    def url(self) -> str:
        """URL of the store, without secrets: messages and manifests may show it."""

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return exactly `nbytes` bytes from `offset`.

        Raises: ObjectNotFound; Changed if the object's etag is not `etag`; Corrupt if the object ends too early.
        """

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        """Return one blob per span, in order.

        Spans closer than `max_gap` bytes share a request of at most `max_span` bytes; a larger span takes several
        requests.
        """


class Store(RangeReader, Protocol):
    """One URL prefix. Methods are synchronous and thread-safe, and raise only leaves of `StoreError`."""

    def get(self, key: str) -> Blob:
        """Return the whole object."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Create or replace the object, whole or not at all."""

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        """Create the object. Succeeds if the key already holds these bytes (an own write whose response was lost).

        Raises: AlreadyExists if it holds other bytes.
        """

    def put_file(self, key: str, path: str) -> None:
        """Upload a local file, in parts if the store needs that; visible whole or not at all."""

    def head(self, key: str) -> ObjectInfo:
        """Return size and change token."""

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix` and sorts after `start_after`, in key order."""

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing key is not an error."""

    def copy(self, src: str, dst: str) -> None:
        """Copy an object within the store."""

    def open_stream(self, key: str) -> BinaryIO:
        """Return a sequential binary reader. Requests have at most 16 MiB, or 64 MiB for many S3 objects at once."""

    def close(self) -> None:
        """Release connections; the store can be used again afterwards."""


Buffer = Any
"""A buffer that `os.preadv` can fill: a C-contiguous, writable memoryview, bytearray or numpy array."""
Piece = tuple[int, int, Sequence[Buffer]]
"""(offset, nbytes, buffers to fill from there on, `nbytes` in total)."""


def fill_pieces(pieces: Sequence[Piece], data: Sequence[bytes]) -> None:
    for piece_data, (_, _, buffers) in zip(data, pieces, strict=True):
        at = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            view[:] = piece_data[at : at + len(view)]
            at += len(view)


class Disk(RangeReader, Protocol):
    """A local folder, or several stores whose nearest is one. Raises the same as every store."""

    @property
    def disk(self) -> "Disk | None":
        """This store itself; None if the nearest store is not a local folder."""

    def read_each(
        self, key: str, spans: Sequence[tuple[int, int]], *, etag: str | None = None
    ) -> tuple[list[bytes], str]:
        """Return the bytes of (offset, nbytes) spans in the order given, and the object's etag."""

    def read_into(self, key: str, pieces: Sequence[Piece], *, etag: str | None = None) -> str:
        """Fill the buffers of pieces from one object, and return its etag. Fastest if sorted by offset."""

    def etag_of(self, key: str, etag: str | None = None) -> str | None:
        """Return a file's current etag; None if the object must be read elsewhere."""

    def open_same(self, key: str, etag: str) -> int | None:
        """Return a new descriptor for the file with this etag; None if it was replaced."""


def as_disk(store: RangeReader) -> Disk | None:
    """Return the store as a `Disk` if it can act as a local folder, else None."""
    return cast(Disk, store).disk if hasattr(type(store), "disk") else None


class NewObject(Protocol):
    """A new object that is being written. Raises leaves of StoreError."""

    def write(self, data: memoryview) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Publish the object under its key, replacing any existing one."""

    def close(self) -> None:
        """Discard the object if it is unfinished."""


class WritesInPlace(Protocol):
    """A store that needs no object sizes in advance."""

    def open_new(self, key: str) -> NewObject:
        """Return an unfinished new object."""


def new_in_place(store: Store, key: str) -> NewObject | None:
    """Return a new object that is written in place; None if the store only puts whole objects (`scratch.OnScratch`)."""
    return cast(WritesInPlace, store).open_new(key) if hasattr(type(store), "open_new") else None


def is_local(store: RangeReader) -> bool:
    """Return whether a store is a local folder: its reads are fast and need no cache."""
    if isinstance(known := getattr(store, "is_local", None), bool):  # set by stores that combine several
        return known
    return as_disk(store) is not None or "://" not in store.url.removeprefix("file://")


def is_on_network(store: RangeReader) -> bool:
    """Return whether a local folder of the store is on a network file system: its reads wait as a bucket's do."""
    return bool(getattr(store, "is_on_network", False))


def is_there(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True


def list_from(store: Store, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Yield as `Store.list` does, but start a bucket's listing after `start_after`: O(listed objects).

    Servers implement that differently, so the result may be incomplete. Other stores list from the beginning. Raises:
    as `Store.list`.
    """
    seeking = cast(Callable[[str, str], Iterator[ObjectInfo]], getattr(store, "list_from", store.list))
    return seeking(prefix, start_after)


TEMPORARY = ".tmp-"  # prefix of files that a local store is still writing; never listed, never a key
UNFINISHED = r"\.tmp-[0-9a-f]{16}"
"""Regular expression for names from `temporary_name`."""
MAX_KEY_BYTES = 1024  # S3 and GCS; Azure allows 1024 characters

_ACCEPTED = (
    "a key is a relative path of '/'-separated UTF-8 segments, such as 'data/part-00042.tar', "
    f"of at most {MAX_KEY_BYTES} bytes"
)


def temporary_name() -> str:
    return f"{TEMPORARY}{secrets.token_hex(8)}"


@lru_cache(maxsize=8192)
def check_key(key: str) -> str:
    """Return the key if every backend accepts it. Raises: InvalidStore (failures are not cached)."""
    if not isinstance(key, str):
        raise InvalidStore(f"key {key!r} is a {type(key).__name__}; {_ACCEPTED}", what="key", given=key)
    if not key:
        raise InvalidStore(f"the key is empty; {_ACCEPTED}", what="key", given=key)
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidStore(
                f"key {key!r} has the segment {segment!r}, which no store accepts; {_ACCEPTED}",
                what="segment of a key",
                where=key,
                given=segment,
            )
    if TEMPORARY in key and any(segment.startswith(TEMPORARY) for segment in key.split("/")):
        raise InvalidStore(
            f"key {key!r}: names beginning with {TEMPORARY!r} are unfinished files; choose another name",
            what="name of an unfinished file",
            where=key,
            given=TEMPORARY,
        )
    _check_text(key)
    return key


_PLAIN_KEY = re.compile(r"(?!.*//|/|.*/\Z)(?!.*(?:\A|/)\.)[^\x00-\x1f\x7f\ud800-\udfff]{1,256}", re.DOTALL)
"""Pattern of most valid keys; checking others by `key_fault` costs a few microseconds."""


def key_fault(key: str) -> str:
    """Return the reason why this text is not a valid key; "" if it is valid."""
    if _PLAIN_KEY.fullmatch(key):
        return ""
    try:
        check_key(key)
    except InvalidStore as error:
        return f"its {str(error).removesuffix(f'; {_ACCEPTED}').removeprefix('the ')[:300]}; rename it"
    return ""


def check_prefix(prefix: str) -> str:
    """Return a listing's prefix: the beginning of a key, possibly empty. Raises: InvalidStore."""
    if not isinstance(prefix, str) or prefix.startswith("/"):
        raise InvalidStore(f"prefix {prefix!r} cannot begin a key; {_ACCEPTED}")
    if any(segment in ("", ".", "..") for segment in prefix.split("/")[:-1]):
        raise InvalidStore(f"prefix {prefix!r} cannot begin a key; {_ACCEPTED}")
    _check_text(prefix)
    return prefix


def check_span(key: str, offset: int, nbytes: int) -> None:
    """Raise InvalidStore if no object could have this range."""
    if offset < 0 or nbytes < 0:
        raise InvalidStore(f"{key}: range [{offset}, +{nbytes}) is negative; offset and nbytes are 0 or more")


def _check_text(text: str) -> None:
    if not text.isprintable() and any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise InvalidStore(f"key {text!r} holds a control character; {_ACCEPTED}")
    try:
        nbytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidStore(f"key {text!r} is not valid UTF-8; {_ACCEPTED}") from None
    if nbytes > MAX_KEY_BYTES:
        raise InvalidStore(f"key {text!r} is {nbytes} bytes long; {_ACCEPTED}")


_log = logging.getLogger(__name__)

SHOWN = 20
Refuse = Callable[[str, str], object]
"""Receives (name, reason) for an object that a listing cannot return."""


@dataclass(slots=True)
class Refusals:
    n: int = 0
    """Number of refused objects."""
    first: list[tuple[str, str]] = field(default_factory=list)
    """(name, reason) of the first `SHOWN`."""

    def __call__(self, name: str, reason: str) -> None:
        self.n += 1
        if len(self.first) < SHOWN:
            self.first.append((name, reason))

    def lines(self) -> list[str]:
        """Return one line per object in `first`, and one with the number not shown."""
        shown = [f"  refused: {name[:300]!r}: {reason}" for name, reason in self.first]
        return [*shown, f"  ... and {self.n - len(shown)} more"] if self.n > len(shown) else shown


class _ListsKeys(Protocol):
    def list_keys(self, prefix: str) -> Iterator[str]: ...


def list_keys(store: Store, prefix: str = "") -> Iterator[str]:
    """Yield the keys of the objects that `Store.list` yields. Faster than that on a disk."""
    if hasattr(type(store), "list_keys"):
        yield from cast(_ListsKeys, store).list_keys(prefix)
        return
    for info in store.list(prefix):
        yield info.key


class _ListsPlaces(Protocol):
    def list_place(
        self, prefix: str, start_after: str, refuse: Refuse, *, seek: bool, outside: bool
    ) -> Iterator[ObjectInfo]: ...


def list_place(
    store: Store,
    prefix: str = "",
    start_after: str = "",
    *,
    refuse: Refuse | None = None,
    seek: bool = False,
    outside: bool = False,
) -> Iterator[ObjectInfo]:
    """Yield the objects of a location that others write to, as `Store.list` does.

    refuse: receives each object that cannot be listed; None logs it. seek: as `list_from`. outside: follow symbolic
    links out of the location.
    """
    refuse = refuse or log_refusals(store.url)
    if hasattr(type(store), "list_place"):
        return cast(_ListsPlaces, store).list_place(prefix, start_after, refuse, seek=seek, outside=outside)
    return list_from(store, prefix, start_after) if seek else store.list(prefix, start_after)


def check_recordable(url: str) -> None:
    """Raise InvalidStore if records cannot hold the URL, because a path's bytes are not UTF-8."""
    try:
        url.encode()
    except UnicodeEncodeError:
        raise InvalidStore(f"{url!r} is not UTF-8 text, and the URL is recorded: rename the folder") from None


def log_refusals(url: str) -> Refuse:
    """Return a function that logs objects refused by a listing of `url`: the first `SHOWN` by name."""
    refusals = Refusals()

    def refuse(name: str, reason: str) -> None:
        refusals(name, reason)
        if refusals.n <= SHOWN:
            _log.warning("%s: %r is left out: %s", url, name[:300], reason)
        elif refusals.n == SHOWN + 1:
            _log.warning("%s: more is left out, and not named", url)

    return refuse


KeyFilter = Callable[[str], str]
"""Key -> reason why it is left out: "not_included", "excluded", or "" if it is not."""


def key_filter(include: Sequence[str], exclude: Sequence[str], whose: str) -> KeyFilter:
    """Return a function that returns the reason why patterns leave out a key.

    include: patterns to keep; empty keeps all. exclude: patterns to leave out. Raises: InvalidRuntime for an invalid
    pattern; MissingDependency.
    """
    if not include and not exclude:
        return lambda key: ""
    try:
        from pathspec import GitIgnoreSpec  # 20 ms; definitions are loaded often
    except ImportError:
        raise MissingDependency(f"{whose}: patterns need pathspec: pip install pathspec") from None
    try:
        included = GitIgnoreSpec.from_lines(include) if include else None
        excluded = GitIgnoreSpec.from_lines(exclude) if exclude else None
    except (ValueError, TypeError) as error:
        message = f"{whose}: {error}; write patterns as in .gitignore"
        raise InvalidRuntime(message, what="patterns", where=whose, given=[*include, *exclude]) from error

    def why(key: str) -> str:
        if included is not None and not included.match_file(key):
            return "not_included"
        return "excluded" if excluded is not None and excluded.match_file(key) else ""

    return why
