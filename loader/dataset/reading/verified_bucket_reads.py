"""Read fields of samples, whole or in parts: ranges coalesced per shard, ETags pinned, CRC-32C checked."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
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

FieldRead = tuple[int, str, bytes | memoryview | Corrupt]
"""(sample number, field, bytes or error)."""

_Item = tuple[int, str, int, int, int | None]
"""(sample number, field, offset, nbytes, CRC-32C, or None if the caller verifies)."""

_Shard = tuple[int, str]
"""(version number, path)."""

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
    crc32c: int
    """CRC-32C; `UNKNOWN_CRC` if the caller verifies them."""


class PartsOfField(NamedTuple):
    """Parts of one field to read."""

    address: SampleAddress
    field: str
    runs: Sequence[Sequence[FieldPart]]
    """Ascending runs of parts; each is read whole."""
    crc_source: str = "its packet table"
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

    Args:
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

    if pins is None:
        pins = {}
    reading = Reading(store, pins, on_refetch, on_read)
    read = _read_shards(
        lambda _: reading,
        by_shard,
        addresses.__getitem__,
        run,
    )
    out: list[dict[str, Any]] = [dict.fromkeys(address.fields) for address in addresses]
    for number, field, data in read:
        out[number][field] = data

    for number, fields in enumerate(out):
        errors = [data for data in fields.values() if isinstance(data, Corrupt)]
        if errors:
            on_corrupt(number, errors[0])
            out[number] = {}
    return out


def read_places(
    reading_of: ReadingOf,
    places: SamplePlaces,
    numbers: Mapping[str, Int64s],
    run: Map = map,
    unverified: Container[str] = (),
) -> list[FieldRead]:
    """Return (number, field, bytes or error) for each field of these samples, shard by shard.

    numbers: field -> sample numbers; a CRC-32C that was unknown is stored in `places`.
    unverified: fields whose bytes the caller verifies and copies; they may be views of cached pages.
    """

    def store_crc(number: int, field: str, crc: int) -> None:
        places.fields[field].crc32c[number] = crc

    by_shard: dict[_Shard, list[_Item]] = {}
    for field, rows in numbers.items():
        field_places = places.fields[field]
        for shard, of_shard in field_places.by_shard(rows):
            n = len(of_shard)
            crcs: Iterable[int | None] = field_places.crc32c[of_shard].tolist()
            if field in unverified:
                crcs = repeat(None, n)
            items = zip(
                of_shard.tolist(),
                repeat(field, n),
                field_places.offset[of_shard].tolist(),
                field_places.nbytes[of_shard].tolist(),
                crcs,
                strict=True,
            )
            name = (shard.version, shard.path)
            by_shard.setdefault(name, []).extend(items)
    return _read_shards(
        reading_of,
        by_shard,
        places.address,
        run,
        store_crc,
    )


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
    if pins is None:
        pins = {}
    reading = Reading(store, pins, on_refetch, on_read)
    by_path: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        place = request.address.fields[request.field]
        by_path.setdefault(place.path, []).append(number)

    def read_shard(item: tuple[str, list[int]]) -> list[list[bytes | memoryview] | Corrupt]:
        path, numbers = item
        of_shard = [requests[number] for number in numbers]
        return _read_parts(reading, path, of_shard)

    results_of_shards = run(read_shard, list(by_path.items()))
    results: dict[int, list[bytes | memoryview] | Corrupt] = {}
    for numbers, of_shard in zip(
        by_path.values(),
        results_of_shards,
        strict=True,
    ):
        results.update(zip(numbers, of_shard, strict=True))

    out: list[list[bytes | memoryview]] = []
    for number in range(len(requests)):
        parts = results[number]
        if isinstance(parts, Corrupt):
            on_corrupt(number, parts)
            parts = []
        out.append(parts)
    return out


def _read_shards(
    reading_of: ReadingOf,
    by_shard: Mapping[_Shard, Sequence[_Item]],
    address_of: AddressOf,
    run: Map,
    on_crc: OnCrc = _nothing,
) -> list[FieldRead]:
    def read_shard(shard: tuple[_Shard, Sequence[_Item]]) -> list[FieldRead]:
        (version, path), items = shard
        reading = reading_of(version)
        return _read_shard(
            reading,
            path,
            items,
            address_of,
            on_crc,
        )

    # In shard order, so that the error raised does not depend on thread timing.
    reads = run(read_shard, list(by_shard.items()))
    return list(chain.from_iterable(reads))


def _read_shard(
    reading: Reading,
    path: str,
    items: Sequence[_Item],
    address_of: AddressOf,
    on_crc: OnCrc,
) -> list[FieldRead]:
    spans = [(offset, nbytes) for _, _, offset, nbytes, _ in items]
    first_number, first_field, _, _, _ = items[0]
    first = partial(address_of, first_number)
    # A field that the caller verifies is also copied by it, so that the store need not copy it out of a page.
    # (A set, not `all`: a generator is a call for each sample.)
    expected_crcs = {expected for _, _, _, _, expected in items}
    is_lent = expected_crcs == {None}
    start = perf_counter()
    try:
        blobs = reading.ranges(
            path,
            spans,
            first,
            first_field,
            lent=is_lent,
        )
    except Corrupt:  # the shard ends too early for one of them: read each to find out which
        return [_read_again(reading, item, address_of, on_crc, None) for item in items]
    fetched = perf_counter()

    wrong: list[int] = []
    if not is_lent:
        for position, (item, data) in enumerate(zip(items, blobs, strict=True)):
            if not _matches_crc(data, item, on_crc):
                wrong.append(position)
    verify_s = perf_counter() - fetched

    # After the others were timed: a second read counts as fetching.
    out: list[FieldRead] = [
        (number, field, data) for (number, field, _, _, _), data in zip(items, blobs, strict=True)
    ]
    for position in wrong:
        out[position] = _read_again(
            reading,
            items[position],
            address_of,
            on_crc,
            blobs[position],
        )
    _report(reading, first, path, spans, start, verify_s)
    return out


def _read_again(
    reading: Reading,
    item: _Item,
    address_of: AddressOf,
    on_crc: OnCrc,
    wrong: bytes | memoryview | None,
) -> FieldRead:
    number, field, _, _, expected = item
    address = address_of(number)
    data = reading.read_again_or_error(address, field, wrong)
    if expected == UNKNOWN_CRC and not isinstance(data, Corrupt):
        crc = crc32c(data)
        on_crc(number, field, crc)
    return number, field, data


def _matches_crc(
    data: bytes | memoryview,
    item: _Item,
    on_crc: OnCrc,
) -> bool:
    number, field, _, _, expected = item
    if expected is None:
        return True
    crc = crc32c(data)
    if expected == UNKNOWN_CRC:
        on_crc(number, field, crc)
        return True
    return crc == expected


def _report(
    reading: Reading,
    first: Callable[[], SampleAddress],
    path: str,
    spans: Sequence[tuple[int, int]],
    start: float,
    verify_s: float,
) -> None:
    took_s = perf_counter() - start
    read = ShardRead(
        first=first,
        path=path,
        span=extent(spans),
        fetch_s=took_s - verify_s,
        verify_s=verify_s,
    )
    reading.on_read(read)


def _read_parts(
    reading: Reading,
    path: str,
    requests: Sequence[PartsOfField],
) -> list[list[bytes | memoryview] | Corrupt]:
    """Return the bytes of each request's parts, or its error. All requests are of one shard."""
    places = [request.address.fields[request.field] for request in requests]
    spans: list[tuple[int, int]] = []
    for request, place in zip(requests, places, strict=True):
        spans.extend(_span_of_run(place, run) for run in request.runs)

    first = partial(_address_of, requests[0])
    first_field = requests[0].field
    start = perf_counter()
    verify_s = 0.0
    blobs: Iterator[bytes | memoryview]
    try:
        blobs = iter(reading.ranges(path, spans, first, first_field))
    except Corrupt:  # the shard ends too early for one of them
        blobs = iter(())

    out: list[list[bytes | memoryview] | Corrupt] = []
    for request, place in zip(requests, places, strict=True):
        # Without bytes every part is read again, and the one behind the shard's end raises.
        runs = [memoryview(next(blobs, b"")) for _ in request.runs]
        parts_read: list[bytes | memoryview] = []
        try:
            for run, data in zip(request.runs, runs, strict=True):
                pieces = _pieces_of_run(run, data)
                checking = perf_counter()
                is_right = [
                    part.crc32c in (UNKNOWN_CRC, crc32c(piece)) and len(piece) == part.nbytes
                    for part, piece in zip(run, pieces, strict=True)
                ]
                verify_s += perf_counter() - checking
                for part, piece, right in zip(run, pieces, is_right, strict=True):
                    if right:
                        parts_read.append(piece)
                    else:
                        parts_read.append(_read_part_again(reading, request, place, part, piece))
        except Corrupt as error:
            out.append(error)
        else:
            out.append(parts_read)
    _report(reading, first, path, spans, start, verify_s)
    return out


def _span_of_run(
    place: FieldAddress,
    run: Sequence[FieldPart],
) -> tuple[int, int]:
    """Return (offset in the shard, nbytes) of a run of a field's parts."""
    first_part = run[0]
    last_part = run[-1]
    end = last_part.offset + last_part.nbytes
    return place.offset + first_part.offset, end - first_part.offset


def _pieces_of_run(
    run: Sequence[FieldPart],
    data: memoryview,
) -> list[memoryview]:
    """Return each part's bytes; fewer than it has if the shard ends too early."""
    run_offset = run[0].offset
    pieces: list[memoryview] = []
    for part in run:
        start = part.offset - run_offset
        pieces.append(data[start : start + part.nbytes])
    return pieces


def _read_part_again(
    reading: Reading,
    request: PartsOfField,
    place: FieldAddress,
    part: FieldPart,
    wrong: memoryview,
) -> bytes:
    part_place = replace(
        place,
        offset=place.offset + part.offset,
        nbytes=part.nbytes,
        crc32c=part.crc32c,
    )
    return reading.read_again(
        request.address,
        part_place,
        request.crc_source,
        wrong,
    )


def _address_of(request: PartsOfField) -> SampleAddress:
    return request.address
