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
from .pinned_reads import FindAddress, FindReading, OnRead, Reading, ShardRead, extent
from .sample_places import Int64s, Map, SamplePlaces

OnCorrupt = Callable[[int, Corrupt], object]
"""Called with a corrupt sample's number in the current list and the error, which it may raise."""

FieldRead = tuple[int, str, bytes | memoryview | Corrupt]
"""(sample number, field, bytes or error)."""

_Item = tuple[int, str, int, int, int | None]
"""(sample number, field, offset, nbytes, CRC-32C): `UNKNOWN_CRC` if an `OnCrc` gets it, None if the caller verifies."""

_Shard = tuple[int, str]
"""(version number, path)."""

IsReadAhead = Callable[[str, tuple[int, int]], bool]
"""(key, (offset, nbytes)) -> whether the range was read ahead: `AheadReader.is_read_ahead`."""

OnCrc = Callable[[int, str, int], None]
"""Called with (sample number, field, CRC-32C) for each newly computed checksum."""


def _discard_crc(number: int, field: str, crc: int) -> None:
    """Do nothing with a CRC-32C, as an `OnCrc`."""


def raise_corrupt(number: int, error: Corrupt) -> None:
    """Raise the error, as an `OnCorrupt`."""
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
    parallel_map: Map = map,
    on_refetch: Callable[[], None] = lambda: None,
    on_corrupt: OnCorrupt = raise_corrupt,
    on_read: OnRead = lambda _: None,
) -> list[dict[str, bytes]]:
    """Return one mapping per sample: field -> bytes. Neighbouring fields of one shard share a request.

    Args:
        pins: shard path -> ETag of its first read; a replaced shard raises Changed.
        parallel_map: a thread pool's map reads several shards at once.
        on_refetch: called before each second read.
        on_corrupt: called, in order, for each sample that is corrupt twice or past the shard's end; it returns as {}.
        on_read: called with each shard's `ShardRead`, in the reading thread.

    Raises: as on_corrupt, by default Corrupt; Changed; ObjectNotFound; Transient, Throttled past the retry budget.
    """
    by_shard: dict[_Shard, list[_Item]] = {}
    for number, address in enumerate(addresses):
        for field, place in address.fields.items():
            item = (number, field, place.offset, place.nbytes, place.crc32c)
            shard = (0, place.path)  # one store serves all addresses: their versions need no numbers
            by_shard.setdefault(shard, []).append(item)

    if pins is None:
        pins = {}
    reading = Reading(store, pins, on_refetch, on_read)
    read = _read_shards(
        lambda _: reading,
        by_shard,
        addresses.__getitem__,
        parallel_map,
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
    find_reading: FindReading,
    places: SamplePlaces,
    numbers: Mapping[str, Int64s],
    parallel_map: Map = map,
    unverified: Container[str] = (),
) -> list[FieldRead]:
    """Return (number, field, bytes or error) for each field of these samples, shard by shard.

    Stores each CRC-32C that was unknown in `places`.

    numbers: field -> sample numbers, int64 [n], ascending. unverified: fields whose bytes the caller verifies and
    copies; they may be views of cached pages.
    """

    def store_crc(number: int, field: str, crc: int) -> None:
        places.fields[field].crc32c[number] = crc

    by_shard: dict[_Shard, list[_Item]] = {}
    for field, rows in numbers.items():
        field_places = places.fields[field]
        for shard, shard_numbers in field_places.by_shard(rows):
            n = len(shard_numbers)
            crcs: Iterable[int | None] = field_places.crc32c[shard_numbers].tolist()
            if field in unverified:
                crcs = repeat(None, n)
            items = zip(
                shard_numbers.tolist(),
                repeat(field, n),
                field_places.offset[shard_numbers].tolist(),
                field_places.nbytes[shard_numbers].tolist(),
                crcs,
                strict=True,
            )
            # Without the group: fields of one shard share its requests.
            version_and_path = (shard.version, shard.path)
            by_shard.setdefault(version_and_path, []).extend(items)
    return _read_shards(
        find_reading,
        by_shard,
        places.address,
        parallel_map,
        store_crc,
    )


def read_parts(
    store: RangeReader,
    requests: Sequence[PartsOfField],
    *,
    pins: dict[str, str] | None = None,
    parallel_map: Map = map,
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
        shard_requests = [requests[number] for number in numbers]
        return _read_parts(reading, path, shard_requests)

    results_by_shard = parallel_map(read_shard, list(by_path.items()))
    results: dict[int, list[bytes | memoryview] | Corrupt] = {}
    for numbers, shard_results in zip(
        by_path.values(),
        results_by_shard,
        strict=True,
    ):
        results.update(zip(numbers, shard_results, strict=True))

    # In the order of the requests, whatever shard they are in.
    out: list[list[bytes | memoryview]] = []
    for number in range(len(requests)):
        result = results[number]
        if isinstance(result, Corrupt):
            on_corrupt(number, result)
            result = []
        out.append(result)
    return out


def _read_shards(
    find_reading: FindReading,
    by_shard: Mapping[_Shard, Sequence[_Item]],
    find_address: FindAddress,
    parallel_map: Map,
    on_crc: OnCrc = _discard_crc,
) -> list[FieldRead]:
    def read_shard(shard_and_items: tuple[_Shard, Sequence[_Item]]) -> list[FieldRead]:
        (version, path), items = shard_and_items
        reading = find_reading(version)
        return _read_shard(
            reading,
            path,
            items,
            find_address,
            on_crc,
        )

    # Handing a shard to a thread costs more than copying what was read ahead.
    if _are_read_ahead(find_reading, by_shard):
        parallel_map = map
    # In shard order, so that the error raised does not depend on thread timing.
    reads = parallel_map(read_shard, list(by_shard.items()))
    return list(chain.from_iterable(reads))


def _are_read_ahead(find_reading: FindReading, by_shard: Mapping[_Shard, Sequence[_Item]]) -> bool:
    """Return whether the first range of each shard was read ahead: a step's ranges of a shard are read together."""
    for (version, path), items in by_shard.items():
        store = find_reading(version).store
        is_read_ahead: IsReadAhead | None = getattr(store, "is_read_ahead", None)
        _, _, offset, nbytes, _ = items[0]
        if is_read_ahead is None or not is_read_ahead(path, (offset, nbytes)):
            return False
    return True


def _read_shard(
    reading: Reading,
    path: str,
    items: Sequence[_Item],
    find_address: FindAddress,
    on_crc: OnCrc,
) -> list[FieldRead]:
    """Read fields of samples from one shard, and verify them. Returns wrong ones from a second read, or as errors."""
    spans = [(offset, nbytes) for _, _, offset, nbytes, _ in items]
    first_number, first_field, _, _, _ = items[0]
    first_address = partial(find_address, first_number)
    # The caller copies a field that it verifies (None), so that the store need not copy it out of a page.
    # (A set, not `all`: a generator is a call for each sample.)
    expected_crcs = {expected for _, _, _, _, expected in items}
    is_lent = expected_crcs == {None}
    start_s = perf_counter()
    try:
        blobs = reading.read_ranges(
            path,
            spans,
            first_address,
            first_field,
            lent=is_lent,
        )
    except Corrupt:  # the shard ends too early for one of them: read each to find out which
        return [_read_again(reading, item, find_address, on_crc, None) for item in items]
    fetched_s = perf_counter()

    wrong: list[int] = []
    if not is_lent:
        for position, (item, data) in enumerate(zip(items, blobs, strict=True)):
            if not _matches_crc(data, item, on_crc):
                wrong.append(position)
    verify_s = perf_counter() - fetched_s

    # After the verification was timed: a second read counts as fetching.
    out: list[FieldRead] = [
        (number, field, data) for (number, field, _, _, _), data in zip(items, blobs, strict=True)
    ]
    for position in wrong:
        out[position] = _read_again(
            reading,
            items[position],
            find_address,
            on_crc,
            blobs[position],
        )
    _report(reading, first_address, path, spans, start_s, verify_s)
    return out


def _read_again(
    reading: Reading,
    item: _Item,
    find_address: FindAddress,
    on_crc: OnCrc,
    wrong: bytes | memoryview | None,
) -> FieldRead:
    """Read an item a second time. wrong: what the first read returned; None if the shard ended too early."""
    number, field, _, _, expected = item
    address = find_address(number)
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
    """Return whether the bytes have the expected CRC-32C. Passes one that was unknown to `on_crc`."""
    number, field, _, _, expected = item
    if expected is None:  # the caller verifies them
        return True
    crc = crc32c(data)
    if expected == UNKNOWN_CRC:
        on_crc(number, field, crc)
        return True
    return crc == expected


def _report(
    reading: Reading,
    first_address: Callable[[], SampleAddress],
    path: str,
    spans: Sequence[tuple[int, int]],
    start_s: float,
    verify_s: float,
) -> None:
    """Report a read that began at `start_s` and took `verify_s` for verification."""
    took_s = perf_counter() - start_s
    read = ShardRead(
        first_address=first_address,
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

    first_request = requests[0]
    first_field = first_request.field

    def first_address() -> SampleAddress:
        return first_request.address

    start_s = perf_counter()
    verify_s = 0.0
    blobs: Iterator[bytes | memoryview]
    try:
        blobs = iter(reading.read_ranges(path, spans, first_address, first_field))
    except Corrupt:  # the shard ends too early for one of them
        # Without bytes every part is read again below, and the one after the shard's end raises.
        blobs = iter(())

    out: list[list[bytes | memoryview] | Corrupt] = []
    for request, place in zip(requests, places, strict=True):
        parts: list[FieldPart] = []
        pieces: list[bytes | memoryview] = []
        for run in request.runs:
            data = memoryview(next(blobs, b""))
            parts.extend(run)
            pieces.extend(_pieces_of_run(run, data))

        checking_s = perf_counter()
        is_right = [
            part.crc32c in (UNKNOWN_CRC, crc32c(piece)) and len(piece) == part.nbytes
            for part, piece in zip(parts, pieces, strict=True)
        ]
        verify_s += perf_counter() - checking_s

        try:
            for number, part in enumerate(parts):
                if not is_right[number]:
                    wrong = pieces[number]
                    pieces[number] = _read_part_again(reading, request, place, part, wrong)
        except Corrupt as error:
            out.append(error)
        else:
            out.append(pieces)
    _report(reading, first_address, path, spans, start_s, verify_s)
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
    wrong: bytes | memoryview,
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
