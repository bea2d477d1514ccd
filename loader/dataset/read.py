"""Fields of samples as bytes, whole or in parts: ranges coalesced per shard, ETag pinned, every CRC-32C checked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple, cast

from ..errors import Changed, Corrupt, ObjectNotFound, StoreError
from ..storage import Blob, RangeReader, Span
from .address import FieldAddress, SampleAddress
from .shard import crc32c

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


OnCorrupt = Callable[[int, Corrupt], object]
"""Told of a sample that is corrupt: its number in the list at hand, and the error. It may raise it."""


def raise_corrupt(number: int, error: Corrupt) -> None:
    """The `OnCorrupt` that stops at the first corrupt sample."""
    raise error


_NOTHING = Blob(b"", "")


class FieldPart(NamedTuple):
    """Bytes [offset, offset + nbytes) of a field's payload, and the checksum that a table of it says they have."""

    offset: int
    nbytes: int
    crc32c: int


class PartsOfField(NamedTuple):
    """What to read of one field: runs of parts, ascending; a run is read from its first to its last byte."""

    address: SampleAddress
    field: str
    runs: Sequence[Sequence[FieldPart]]


class ShardRead(NamedTuple):
    """What one shard's share of a read took: `span` is from the first to the last byte that was wanted of `path`,
    `first` the sample at the head of the list; second reads are in `fetch_s`."""

    first: SampleAddress
    path: str
    span: Span
    fetch_s: float
    verify_s: float


OnRead = Callable[[ShardRead], None]


def read_fields(
    store: RangeReader,
    addresses: Sequence[SampleAddress],
    *,
    pins: dict[str, str] | None = None,
    run: Map = map,
    on_refetch: Callable[[], None] = lambda: None,
    on_corrupt: OnCorrupt = raise_corrupt,
    on_read: OnRead = lambda _: None,
) -> list[dict[str, bytes]]:
    """Per sample, field -> its bytes. Fields of one shard that lie close together share a request.

    pins: shard path -> ETag seen at its first read; a shard that was replaced since raises Changed. `run` may be
    a thread pool's map. on_refetch: called before each read that is repeated. on_corrupt: told of each sample with a
    field whose checksum is wrong twice, or which the shard ends before, in the order of `addresses`; such a sample is
    {}. The error has its full address. on_read: told of each shard's share, in the thread that read it. Raises: what
    on_corrupt does, by default Corrupt; Changed; ObjectNotFound; Transient, Throttled past the retry budget.
    """
    pins = {} if pins is None else pins
    by_path: dict[str, list[tuple[SampleAddress, FieldAddress]]] = {}
    for address in addresses:
        for place in address.fields.values():
            by_path.setdefault(place.path, []).append((address, place))

    def read_shard(item: tuple[str, list[tuple[SampleAddress, FieldAddress]]]) -> list[bytes | Corrupt]:
        return _read_shard(store, *item, pins, on_refetch, on_read)

    # Taken in order, shard by shard: which of several errors is raised does not depend on threads.
    lists = list(run(read_shard, list(by_path.items())))
    read = dict(zip(by_path, map(iter, lists), strict=True))
    found = [
        {name: next(read[place.path]) for name, place in address.fields.items()} for address in addresses
    ]
    if any(any(map(_is_corrupt, some)) for some in lists):
        for number, fields in enumerate(found):
            bad = next(filter(_is_corrupt, fields.values()), None)
            if bad is not None:
                on_corrupt(number, cast("Corrupt", bad))
                found[number] = {}
    return cast("list[dict[str, bytes]]", found)


def read_parts(
    store: RangeReader,
    wanted: Sequence[PartsOfField],
    *,
    pins: dict[str, str] | None = None,
    run: Map = map,
    on_refetch: Callable[[], None] = lambda: None,
    on_corrupt: OnCorrupt = raise_corrupt,
    on_read: OnRead = lambda _: None,
) -> list[list[bytes | memoryview]]:
    """Per item of `wanted`, the bytes of its parts, run after run. One request per run; runs of one shard that lie at
    most 64 KiB apart share one, as fields do. What is between the parts of a run is read and not looked at.

    A part whose checksum is wrong is read once more. Arguments and errors as those of `read_fields`; a corrupt item
    is [].
    """
    pins = {} if pins is None else pins
    by_path: dict[str, list[int]] = {}
    for i, item in enumerate(wanted):
        by_path.setdefault(item.address.fields[item.field].path, []).append(i)

    def read_shard(item: tuple[str, list[int]]) -> list[list[bytes | memoryview] | Corrupt]:
        path, mine = item
        return _read_parts(store, path, [wanted[i] for i in mine], pins, on_refetch, on_read)

    read: dict[int, list[bytes | memoryview] | Corrupt] = {}
    for mine, found in zip(by_path.values(), run(read_shard, list(by_path.items())), strict=True):
        read.update(zip(mine, found, strict=True))
    out: list[list[bytes | memoryview]] = []
    for number in range(len(wanted)):
        parts = read[number]
        if isinstance(parts, Corrupt):
            on_corrupt(number, parts)
        out.append([] if isinstance(parts, Corrupt) else parts)
    return out


def _is_corrupt(data: object) -> bool:
    return isinstance(data, Corrupt)


def _read_shard(
    store: RangeReader,
    path: str,
    wanted: Sequence[tuple[SampleAddress, FieldAddress]],
    pins: dict[str, str],
    on_refetch: Callable[[], None],
    on_read: OnRead,
) -> list[bytes | Corrupt]:
    def again(address: SampleAddress, place: FieldAddress) -> bytes | Corrupt:
        try:
            return _refetch(store, address, place, pins, on_refetch)
        except Corrupt as error:
            return error

    spans = [Span(place.offset, place.nbytes) for _, place in wanted]
    start = perf_counter()
    try:
        blobs = _get_ranges(store, path, spans, wanted[0], pins)
    except Corrupt:  # it ends too early for one of them: ask for each, to know for which
        return [again(address, place) for address, place in wanted]
    fetched = perf_counter()
    good = [crc32c(blob.data) == place.crc32c for (_, place), blob in zip(wanted, blobs, strict=True)]
    verify_s = perf_counter() - fetched
    read = [
        blob.data if whole else again(address, place)
        for (address, place), blob, whole in zip(wanted, blobs, good, strict=True)
    ]
    on_read(ShardRead(wanted[0][0], path, _extent(spans), perf_counter() - start - verify_s, verify_s))
    return read


def _read_parts(
    store: RangeReader,
    path: str,
    wanted: Sequence[PartsOfField],
    pins: dict[str, str],
    on_refetch: Callable[[], None],
    on_read: OnRead,
) -> list[list[bytes | memoryview] | Corrupt]:
    places = [item.address.fields[item.field] for item in wanted]
    spans = [
        Span(place.offset + run[0].offset, run[-1].offset + run[-1].nbytes - run[0].offset)
        for item, place in zip(wanted, places, strict=True)
        for run in item.runs
    ]

    def again(item: PartsOfField, place: FieldAddress, part: FieldPart) -> bytes:
        at = replace(place, offset=place.offset + part.offset, nbytes=part.nbytes, crc32c=part.crc32c)
        return _refetch(store, item.address, at, pins, on_refetch, "its packet table")

    start, verify_s = perf_counter(), 0.0
    try:
        blobs = iter(_get_ranges(store, path, spans, (wanted[0].address, places[0]), pins))
    except Corrupt:  # it ends too early for one of them
        blobs = iter(())
    out: list[list[bytes | memoryview] | Corrupt] = []
    for item, place in zip(wanted, places, strict=True):
        runs = [memoryview(next(blobs, _NOTHING).data) for _ in item.runs]
        found: list[bytes | memoryview] = []
        try:
            for run, data in zip(item.runs, runs, strict=True):
                pieces = [data[part.offset - run[0].offset :][: part.nbytes] for part in run]
                checking = perf_counter()
                good = [crc32c(piece) == part.crc32c for part, piece in zip(run, pieces, strict=True)]
                verify_s += perf_counter() - checking
                found += [
                    piece if whole else again(item, place, part)
                    for part, piece, whole in zip(run, pieces, good, strict=True)
                ]
        except Corrupt as error:
            out.append(error)
        else:
            out.append(found)
    on_read(ShardRead(wanted[0].address, path, _extent(spans), perf_counter() - start - verify_s, verify_s))
    return out


def _extent(spans: Sequence[Span]) -> Span:
    """From the first byte of all spans to the last."""
    low = min((span.offset for span in spans), default=0)
    return Span(low, max((span.offset + span.nbytes for span in spans), default=0) - low)


def _get_ranges(
    store: RangeReader,
    path: str,
    spans: Sequence[Span],
    first: tuple[SampleAddress, FieldAddress],
    pins: dict[str, str],
) -> list[Blob]:
    """Raises: Corrupt when the shard ends too early; the other leaves with the address of what was wanted first."""
    address, place = first
    try:
        blobs = store.get_ranges(path, spans, etag=pins.get(path))
    except Corrupt:
        raise
    except ObjectNotFound as error:
        raise ObjectNotFound(
            f"{address.describe(place.field)}: the shard is gone ({error}); restore it from a mirror"
        ) from error
    except StoreError as error:
        error.add_note(f"while reading {address.describe(place.field)}")
        raise
    for blob in blobs:
        _pin(pins, path, blob.etag, store)
    return blobs


def _pin(pins: dict[str, str], path: str, etag: str, store: RangeReader) -> None:
    if pins.setdefault(path, etag) != etag:
        raise Changed(
            f"{store.url}/{path} was replaced while it was being read; shards are immutable: find out who wrote "
            "there, and run penstock verify"
        )


def _refetch(
    store: RangeReader,
    address: SampleAddress,
    place: FieldAddress,
    pins: dict[str, str],
    on_refetch: Callable[[], None],
    said_by: str = "its index",
) -> bytes:
    """A flipped bit on the way is cured by a second read; one on the disk is not. Raises: Corrupt; Changed."""
    on_refetch()
    advice = f"Run penstock verify {address.version}; restore the shard from a mirror or exclude the sample"
    try:
        blob = store.get_range(place.path, place.offset, place.nbytes, pins.get(place.path))
    except Corrupt as error:
        raise Corrupt(f"{address.describe(place.field)} is cut off: {error}. {advice}") from error
    _pin(pins, place.path, blob.etag, store)
    found = crc32c(blob.data)
    if found != place.crc32c:
        raise Corrupt(
            f"{address.describe(place.field)} is corrupt: CRC-32C {found:08x}, {said_by} says {place.crc32c:08x}, "
            f"for bytes [{place.offset}:{place.offset + place.nbytes}], after reading it twice. {advice}"
        )
    return blob.data
