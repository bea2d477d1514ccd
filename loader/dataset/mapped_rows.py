"""Fields of one size copied out of mapped shards into rows of memory: one vectorised copy per shard."""

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import numpy as np
from google_crc32c import extend

from ..errors import Corrupt
from ..storage import Span
from ..storage.mapped import MappedFiles
from ..storage.traffic import count_request
from .read_rows import NotInRow, RowsOfField
from .sample_places import Int64s, SamplePlaces
from .shard import crc32c
from .shard_read import CACHED_BYTES, MAPPED_BYTES, Reading, ShardRead

GATHERED_BYTES = 2048
"""Rows from this size on are copied one by one: numpy's gathering copies twice."""


def map_rows(
    reading: Reading, maps: MappedFiles, places: SamplePlaces, wanted: Sequence[RowsOfField]
) -> tuple[list[NotInRow], list[RowsOfField]]:
    """Fill the rows of shards that are mapped, verified: (what is not in its row, what is to be read instead). Raises:
    as `read_rows`."""
    out: list[NotInRow] = []
    left: list[RowsOfField] = []
    for one in wanted:
        unmapped: list[Int64s] = []
        for path, mine in places.fields[one.field].by_shard(one.numbers):
            if not _filled(reading, maps, places, one, path, mine, out):
                unmapped.append(mine)
        if unmapped:
            left.append(one.part(np.sort(np.concatenate(unmapped))))
    return out, left


def map_bytes(
    reading: Reading, maps: MappedFiles, places: SamplePlaces, field: str, numbers: Int64s
) -> tuple[dict[int, bytes | Corrupt], Int64s]:
    """(number of a sample -> its bytes, verified, or why it has none; the numbers of those to be read instead). Raises:
    as `read_rows`."""
    at, found, left = places.fields[field], dict[int, bytes | Corrupt](), list[Int64s]()
    for path, mine in at.by_shard(numbers):
        if int(at.nbytes[mine].sum()) > len(mine) * MAPPED_BYTES:
            left.append(mine)
            continue
        start, first = perf_counter(), partial(places.address, int(mine[0]))
        with reading.told(first, field), maps.using(path, reading.pins.get(path)) as mapped:
            begin, end = at.offset[mine], at.offset[mine] + at.nbytes[mine]
            if mapped is None or int(end.max()) > len(mapped[0].data):
                left.append(mine)
                continue
            reading.pin(path, mapped[1])
            count_request()
            copied_s = 0.0
            whole, spans, crcs = (
                mapped[0].data,
                [*zip(begin.tolist(), end.tolist(), strict=True)],
                list[int](),
            )
            at_once = max(1, CACHED_BYTES * len(mine) // max(1, int((end - begin).sum())))
            data = list[bytes]()
            for i in range(0, len(mine), at_once):
                copying = perf_counter()
                data += [whole[low:high] for low, high in spans[i : i + at_once]]
                copied_s += perf_counter() - copying
                crcs += map(crc32c, data[i:])
            found.update(zip(mine.tolist(), data, strict=True))
            bad = mine[np.array(crcs) != at.crc32c[mine]].tolist()
        verified_s = perf_counter() - start - copied_s
        for number in bad:
            found[number] = reading.again_or_error(places.address(number), field)
        span = Span(int(begin.min()), int(end.max() - begin.min()))
        reading.on_read(ShardRead(first, path, span, perf_counter() - start - verified_s, verified_s))
    return found, np.sort(np.concatenate(left)) if left else np.zeros(0, np.int64)


def _filled(
    reading: Reading,
    maps: MappedFiles,
    places: SamplePlaces,
    one: RowsOfField,
    path: str,
    mine: Int64s,
    out: list[NotInRow],
) -> bool:
    """Fill the rows of one shard's samples `mine`; False where it is not mapped, or ends too early for one of them."""
    at, n_head, n_row = places.fields[one.field], len(one.head), one.memory.shape[1]
    start, first = perf_counter(), partial(places.address, int(mine[0]))
    with reading.told(first, one.field), maps.using(path, reading.pins.get(path)) as mapped:
        if mapped is None:
            return False
        reading.pin(path, mapped[1])
        whole, offset = mapped[0].array, at.offset[mine]
        low, end = int(offset.min()), int(offset.max()) + n_head + n_row
        if low < 0 or end > len(whole):
            return False
        count_request()
        rows = one.rows[np.searchsorted(one.numbers, mine)]
        heads = _windows(whole, n_head)[offset]
        copied_s, crcs = 0.0, list[int]()
        begun, at_once = crc32c(one.head), max(1, CACHED_BYTES // n_row)
        for first_row in range(0, len(rows), at_once):
            block = slice(first_row, first_row + at_once)
            copying = perf_counter()
            _copy(whole, offset[block] + n_head, one.memory, rows[block])
            copied_s += perf_counter() - copying
            crcs += [extend(begun, one.memory[row]) for row in rows[block].tolist()]
    same = (heads == np.frombuffer(one.head, np.uint8)).all(axis=1)
    odd = mine[~(same & (np.array(crcs) == at.crc32c[mine]))].tolist()
    verified_s = perf_counter() - start - copied_s
    for number in odd:
        begin = int(at.offset[number])
        data = whole[begin : begin + n_head + n_row].tobytes()
        good = crc32c(data) == at.crc32c[number]
        again = data if good else reading.again_or_error(places.address(number), one.field)
        out.append(NotInRow(number, one.field, again))
    fetched_s = perf_counter() - start - verified_s
    reading.on_read(ShardRead(first, path, Span(low, end - low), fetched_s, verified_s))
    return True


def _copy(whole: np.ndarray, begin: Int64s, memory: np.ndarray, rows: Int64s) -> None:
    """Bytes of `whole` from each `begin` on into whole rows."""
    n_row = memory.shape[1]
    if n_row < GATHERED_BYTES:
        memory[rows] = _windows(whole, n_row)[begin]
        return
    source, target = whole.data, memory.reshape(-1).data
    for row, start in zip((rows * n_row).tolist(), begin.tolist(), strict=True):
        target[row : row + n_row] = source[start : start + n_row]


def _windows(data: np.ndarray, nbytes: int) -> np.ndarray:
    """uint8 [len(data) - nbytes + 1, nbytes]: row i is data[i : i + nbytes], without a copy."""
    return np.ndarray((len(data) - nbytes + 1, nbytes), np.uint8, buffer=data, strides=(1, 1))
