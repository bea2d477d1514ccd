"""Read fields of samples, whole or in parts: ranges coalesced per shard, ETags pinned, CRC-32C checked."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any, NamedTuple

from ...errors import Corrupt
from ...storage import RangeReader
from ..shards.address import UNKNOWN_CRC, FieldAddress, SampleAddress
from ..shards.shard import crc32c
from .sample_places import Int64s, SamplePlaces
from .shard_read import AddressOf, OnRead, Reading, ReadingOf, ShardRead, extent

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


OnCorrupt = Callable[[int, Corrupt], object]
"""Called with a corrupt sample's number in the current list and the error, which it may raise."""

_Item = tuple[int, str, int, int, int | None]
"""(sample number, field, offset, nbytes, CRC-32C, or None if the caller verifies)."""

_Shard = tuple[int, str]

OnCrc = Callable[[int, str, int], None]
"""Called with (sample number, field, CRC-32C) for each newly computed checksum."""


def _nothing(number: int, field: str, crc: int) -> None:
    """Discard a CRC-32C."""


def raise_corrupt(number: int, error: Corrupt) -> None:
    raise error


class FieldPart(NamedTuple):
    """A part of a field's payload, as its packet or piece table describes it."""

    offset: int
    nbytes: int
    """Number of bytes."""
    crc32c: int
    """CRC-32C; `UNKNOWN_CRC` if the caller verifies them."""


class PartsOfField(NamedTuple):
    """Parts of one field to read."""

    address: SampleAddress
    field: str
    """Field name."""
    runs: Sequence[Sequence[FieldPart]]
    """Ascending runs of parts; each is read whole."""
    said_by: str = "its packet table"
    """Table with the parts' checksums, for errors."""


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
    """Return one mapping per sample: field -> bytes. Neighbouring fields of one shard share a request.

        pins: shard path -> ETag of its first read; a replaced shard raises Changed.
        run: may be a thread pool's map.
        on_refetch: called before each second read.
        on_corrupt: called, in order, for each sample that is corrupt twice or past the shard's end; it returns as {}.
        on_read: called with each shard's `ShardRead`, in the reading thread.

    Raises: as on_corrupt, by default Corrupt; Changed; ObjectNotFound; Transient, Throttled past the retry budget.
    """
    by_shard: dict[_Shard, list[_Item]] = {}
    for number, address in enumerate(addresses):
        for field, place in address.fields.items():
            item = (number, field, place.offset, place.nbytes, place.crc32c)
            by_shard.setdefault((0, place.path), []).append(item)
    reading = Reading(store, {} if pins is None else pins, on_refetch, on_read)
    out: list[dict[str, Any]] = [dict.fromkeys(address.fields) for address in addresses]
    for number, field, data in _read_shards(lambda _: reading, by_shard, addresses.__getitem__, run):
        out[number][field] = data
    for number, fields in enumerate(out):
        bad = next((data for data in fields.values() if isinstance(data, Corrupt)), None)
        if bad is not None:
            on_corrupt(number, bad)
            out[number] = {}
    return out


def read_places(
    reading_of: ReadingOf,
    places: SamplePlaces,
    numbers: Mapping[str, Int64s],
    run: Map = map,
    unverified: Container[str] = (),
) -> list[tuple[int, str, bytes | memoryview | Corrupt]]:
    """Return (number, field, bytes or error) for each field of these samples, shard by shard.

    numbers: field -> sample numbers; a CRC-32C that was unknown is stored in `places`.
    unverified: fields whose bytes the caller verifies and copies; they may be views of cached pages.
    """

    def learn(number: int, field: str, crc: int) -> None:
        places.fields[field].crc32c[number] = crc

    by_shard: dict[_Shard, list[_Item]] = {}
    for field, rows in numbers.items():
        at = places.fields[field]
        for shard, of_shard in at.by_shard(rows):
            n = len(of_shard)
            crcs = repeat(None, n) if field in unverified else at.crc32c[of_shard].tolist()
            columns = (
                of_shard.tolist(),
                repeat(field, n),
                at.offset[of_shard].tolist(),
                at.nbytes[of_shard].tolist(),
                crcs,
            )
            by_shard.setdefault((shard.version, shard.path), []).extend(zip(*columns, strict=True))
    return _read_shards(reading_of, by_shard, places.address, run, learn)


def read_parts(
    store: RangeReader,
    requests: Sequence[PartsOfField],
    *,
    pins: dict[str, str] | None = None,
    run: Map = map,
    on_refetch: Callable[[], None] = lambda: None,
    on_corrupt: OnCorrupt = raise_corrupt,
    on_read: OnRead = lambda _: None,
) -> list[list[bytes | memoryview]]:
    """Return one list per request: the bytes of its parts, run after run; [] if corrupt.

    Other arguments as `read_fields`.

    Each run costs one request; runs of one shard at most 64 KiB apart share one. A part with a wrong checksum is read
    again.
    """
    reading = Reading(store, {} if pins is None else pins, on_refetch, on_read)
    by_path: dict[str, list[int]] = {}
    for i, item in enumerate(requests):
        by_path.setdefault(item.address.fields[item.field].path, []).append(i)

    def read_shard(item: tuple[str, list[int]]) -> list[list[bytes | memoryview] | Corrupt]:
        path, of_path = item
        return _read_parts(reading, path, [requests[i] for i in of_path])

    read: dict[int, list[bytes | memoryview] | Corrupt] = {}
    for of_path, results in zip(by_path.values(), run(read_shard, list(by_path.items())), strict=True):
        read.update(zip(of_path, results, strict=True))
    out: list[list[bytes | memoryview]] = []
    for number in range(len(requests)):
        parts = read[number]
        if isinstance(parts, Corrupt):
            on_corrupt(number, parts)
        out.append([] if isinstance(parts, Corrupt) else parts)
    return out


def _read_shards(
    reading_of: ReadingOf,
    by_shard: Mapping[_Shard, Sequence[_Item]],
    address_of: AddressOf,
    run: Map,
    on_crc: OnCrc = _nothing,
) -> list[tuple[int, str, bytes | memoryview | Corrupt]]:
    def read_shard(item: tuple[_Shard, Sequence[_Item]]) -> list[bytes | memoryview | Corrupt]:
        (of, path), items = item
        return _read_shard(reading_of(of), path, items, address_of, on_crc)

    # In shard order, so that the error raised does not depend on thread timing.
    lists = run(read_shard, list(by_shard.items()))
    return [
        (number, field, data)
        for items, blobs in zip(by_shard.values(), lists, strict=True)
        for (number, field, _, _, _), data in zip(items, blobs, strict=True)
    ]


def _read_shard(
    reading: Reading, path: str, items: Sequence[_Item], address_of: AddressOf, on_crc: OnCrc
) -> list[bytes | memoryview | Corrupt]:
    spans = [(offset, nbytes) for _, _, offset, nbytes, _ in items]
    first = partial(address_of, items[0][0])
    start = perf_counter()
    copied = {one[4] for one in items} == {None}  # by the caller, which verifies them
    try:
        blobs = reading.ranges(path, spans, first, items[0][1], lent=copied)
    except Corrupt:  # the shard ends too early for one of them: read each to find out which
        return [_again(reading, one, address_of, on_crc, None) for one in items]
    fetched = perf_counter()
    good = [copied or _matches_crc(data, one, on_crc) for data, one in zip(blobs, items, strict=True)]
    verify_s = perf_counter() - fetched
    out: list[bytes | memoryview | Corrupt] = [*blobs]
    for i, whole in enumerate(good):
        if not whole:
            out[i] = _again(reading, items[i], address_of, on_crc, blobs[i])
    reading.on_read(ShardRead(first, path, extent(spans), perf_counter() - start - verify_s, verify_s))
    return out


def _again(
    reading: Reading,
    item: _Item,
    address_of: AddressOf,
    on_crc: OnCrc,
    wrong: bytes | memoryview | None,
) -> bytes | Corrupt:
    number, field, _, _, expected = item
    data = reading.again_or_error(address_of(number), field, wrong)
    if expected == UNKNOWN_CRC and not isinstance(data, Corrupt):
        on_crc(number, field, crc32c(data))
    return data


def _matches_crc(data: bytes | memoryview, item: _Item, on_crc: OnCrc) -> bool:
    number, field, _, _, expected = item
    if expected is None:
        return True
    crc = crc32c(data)
    if expected == UNKNOWN_CRC:
        on_crc(number, field, crc)
        return True
    return crc == expected


def _read_parts(
    reading: Reading, path: str, parts_of_fields: Sequence[PartsOfField]
) -> list[list[bytes | memoryview] | Corrupt]:
    places = [item.address.fields[item.field] for item in parts_of_fields]
    spans = [
        (place.offset + run[0].offset, run[-1].offset + run[-1].nbytes - run[0].offset)
        for item, place in zip(parts_of_fields, places, strict=True)
        for run in item.runs
    ]

    def again(item: PartsOfField, place: FieldAddress, part: FieldPart, wrong: memoryview) -> bytes:
        at = replace(place, offset=place.offset + part.offset, nbytes=part.nbytes, crc32c=part.crc32c)
        return reading.again(item.address, at, item.said_by, wrong)

    first = partial(_address_of, parts_of_fields[0])
    start, verify_s = perf_counter(), 0.0
    try:
        pieces_read = iter(reading.ranges(path, spans, first, parts_of_fields[0].field))
    except Corrupt:  # the shard ends too early for one of them
        pieces_read = iter(())
    out: list[list[bytes | memoryview] | Corrupt] = []
    for item, place in zip(parts_of_fields, places, strict=True):
        runs = [memoryview(next(pieces_read, b"")) for _ in item.runs]
        read_pieces: list[bytes | memoryview] = []
        try:
            for run, data in zip(item.runs, runs, strict=True):
                pieces = [data[part.offset - run[0].offset :][: part.nbytes] for part in run]
                checking = perf_counter()
                good = [
                    part.crc32c in (UNKNOWN_CRC, crc32c(piece)) and len(piece) == part.nbytes
                    for part, piece in zip(run, pieces, strict=True)
                ]
                verify_s += perf_counter() - checking
                read_pieces += [
                    piece if whole else again(item, place, part, piece)
                    for part, piece, whole in zip(run, pieces, good, strict=True)
                ]
        except Corrupt as error:
            out.append(error)
        else:
            out.append(read_pieces)
    reading.on_read(ShardRead(first, path, extent(spans), perf_counter() - start - verify_s, verify_s))
    return out


def _address_of(item: PartsOfField) -> SampleAddress:
    return item.address
