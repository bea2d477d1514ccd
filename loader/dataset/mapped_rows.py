"""Fields copied out of mapped shards: those of one size into rows of memory, verified many at once; others as bytes."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from google_crc32c import value
from numpy.typing import NDArray

from ..errors import Corrupt
from ..storage import Span
from ..storage.traffic import count_request
from .crc_linear import moved_crc
from .read_rows import NotInRow, RowsOfField
from .row_checks import ROWS_AT_ONCE, RowChecks
from .sample_places import Int64s, SamplePlaces, members
from .shard import crc32c
from .shard_read import CACHED_BYTES, MAPPED_BYTES, Reading, ReadingOf, ShardRead

GATHERED_BYTES = 2048
"""Rows from this size on are copied one by one: numpy's gathering copies twice."""


def map_rows(
    reading_of: ReadingOf, places: SamplePlaces, wanted: Sequence[RowsOfField]
) -> tuple[list[NotInRow], list[RowsOfField]]:
    """Fill the rows of shards that are mapped, verified: (what is not in its row, what is to be read instead). Raises:
    as `read_rows`."""
    out: list[NotInRow] = []
    left: list[RowsOfField] = []
    for one in wanted:
        with ExitStack() as held:
            shards, unmapped = _mapped(reading_of, places, one, held)
            if shards:
                out += _filled(places, one, shards)
        if unmapped:
            left.append(one.part(np.sort(np.concatenate(unmapped))))
    return out, left


def map_bytes(
    reading_of: ReadingOf, places: SamplePlaces, field: str, numbers: Int64s
) -> tuple[dict[int, bytes | Corrupt], Int64s]:
    """(number of a sample -> its bytes, verified, or why it has none; the numbers of those to be read instead). Raises:
    as `read_rows`."""
    at, found, left = places.fields[field], dict[int, bytes | Corrupt](), list[Int64s]()
    for shard, mine in at.by_shard(numbers):
        reading, path = reading_of(shard.of), shard.path
        maps = reading.maps
        if maps is None or int(at.nbytes[mine].sum()) > len(mine) * MAPPED_BYTES:
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
                crcs += map(value, data[i:])
            found.update(zip(mine.tolist(), data, strict=True))
            bad = mine[np.array(crcs) != at.crc32c[mine]].tolist()
        verified_s = perf_counter() - start - copied_s
        for number in bad:
            found[number] = reading.again_or_error(places.address(number), field)
        span = Span(int(begin.min()), int(end.max() - begin.min()))
        reading.on_read(ShardRead(first, path, span, perf_counter() - start - verified_s, verified_s))
    return found, np.sort(np.concatenate(left)) if left else np.zeros(0, np.int64)


class _Shard(NamedTuple):
    """Samples of a field that lie in one mapped shard. mine: int64, their numbers, ascending; begin: int64, where
    the field of each begins in `whole`, uint8; opened_s: seconds."""

    reading: Reading
    path: str
    whole: np.ndarray
    mine: Int64s
    begin: Int64s
    opened_s: float


def _mapped(
    reading_of: ReadingOf, places: SamplePlaces, one: RowsOfField, held: ExitStack
) -> tuple[list[_Shard], list[Int64s]]:
    """A field's shards, mapped as long as `held` is; and the numbers of the samples of those that are not mapped, or
    that end too early for one of them."""
    at, nbytes = places.fields[one.field], len(one.head) + one.memory.shape[1]
    shards, unmapped = list[_Shard](), list[Int64s]()
    for shard, mine in at.by_shard(one.numbers):
        start, reading, path = perf_counter(), reading_of(shard.of), shard.path
        if reading.maps is None:
            unmapped.append(mine)
            continue
        with reading.told(partial(places.address, int(mine[0])), one.field):
            mapped = held.enter_context(reading.maps.using(path, reading.pins.get(path)))
        begin = at.offset[mine]
        if mapped is not None:
            reading.pin(path, mapped[1])
        if mapped is None or int(begin.min()) < 0 or int(begin.max()) + nbytes > len(mapped[0].array):
            unmapped.append(mine)
            continue
        count_request()
        shards.append(_Shard(reading, path, mapped[0].array, mine, begin, perf_counter() - start))
    return shards, unmapped


def _filled(places: SamplePlaces, one: RowsOfField, shards: Sequence[_Shard]) -> list[NotInRow]:
    """Fill the rows of these shards. What is not in its row."""
    start, at, n_row = perf_counter(), places.fields[one.field], one.memory.shape[1]
    numbers = np.concatenate([shard.mine for shard in shards])
    same = np.concatenate([_begin_with(one.head, shard) for shard in shards])
    # In the order of the rows, so that neighbours in memory are verified together.
    which = np.repeat(np.arange(len(shards)), [len(shard.mine) for shard in shards])
    values = np.concatenate([shard.begin for shard in shards]) + len(one.head)
    if len(shards) > 1:
        order = np.argsort(numbers)
        numbers, same, which, values = numbers[order], same[order], which[order], values[order]
    rows = one.rows[np.searchsorted(one.numbers, numbers)]
    wanted = at.crc32c[numbers].astype(np.uint32) ^ moved_crc(crc32c(one.head), n_row)
    copied_s, checked = 0.0, RowChecks(one.memory, wanted)
    copy = _copier([shard.whole for shard in shards], which, values, one.memory, rows)
    for first in range(0, len(rows), at_once := max(1, min(ROWS_AT_ONCE, CACHED_BYTES // n_row))):
        block, copying = slice(first, first + at_once), perf_counter()
        copy(block)
        copied_s += perf_counter() - copying
        checked.add(rows[block])
    odd = np.union1d(np.flatnonzero(~same), checked.wrong())
    verified_s = perf_counter() - start - copied_s
    out = []
    for i in odd.tolist():
        number, begin = int(numbers[i]), int(values[i]) - len(one.head)
        data = shards[which[i]].whole[begin : begin + len(one.head) + n_row].tobytes()
        good = crc32c(data) == at.crc32c[number]
        again = data if good else shards[which[i]].reading.again_or_error(places.address(number), one.field)
        out.append(NotInRow(number, one.field, again))
    copied_s = perf_counter() - start - verified_s
    for shard in shards:
        low, share = int(shard.begin.min()), len(shard.mine) / len(rows)
        span = Span(low, int(shard.begin.max()) + len(one.head) + n_row - low)
        first_of = partial(places.address, int(shard.mine[0]))
        shard.reading.on_read(
            ShardRead(first_of, shard.path, span, shard.opened_s + copied_s * share, verified_s * share)
        )
    return out


def _begin_with(head: bytes, shard: _Shard) -> NDArray[np.bool_]:
    """Whether each sample's field begins with `head`."""
    words = np.uint64 if len(head) % 8 == 0 else np.uint8  # an eighth of the comparisons
    found = _windows(shard.whole, len(head))[shard.begin].view(words)
    same: NDArray[np.bool_] = (found == np.frombuffer(head, words)).all(axis=1)
    return same


def _copier(
    wholes: Sequence[np.ndarray], which: Int64s, begin: Int64s, memory: np.ndarray, rows: Int64s
) -> Callable[[slice], None]:
    """Copies, of some of the rows, the bytes of `wholes[which]` from each `begin` on."""
    n_row = memory.shape[1]

    def gather(block: slice) -> None:
        to, start = rows[block], begin[block]
        for number, mine in members(which[block], len(wholes)):
            if len(mine):
                memory[_as_slice(to[mine])] = _windows(wholes[number], n_row)[start[mine]]

    if n_row < GATHERED_BYTES:
        return gather
    target, data = memory.reshape(-1).data, [whole.data for whole in wholes]
    places, sources = (rows * n_row).tolist(), [data[number] for number in which.tolist()]
    starts = begin.tolist()

    def copy(block: slice) -> None:
        for to, source, start in zip(places[block], sources[block], starts[block], strict=True):
            target[to : to + n_row] = source[start : start + n_row]

    return copy


def _as_slice(rows: Int64s) -> slice | Int64s:
    """Ascending rows as a slice where they are neighbours, which numpy is quicker with."""
    low, high = int(rows[0]), int(rows[-1]) + 1
    return slice(low, high) if high - low == len(rows) else rows


def _windows(data: np.ndarray, nbytes: int) -> np.ndarray:
    """uint8 [len(data) - nbytes + 1, nbytes]: row i is data[i : i + nbytes], without a copy."""
    return np.ndarray((len(data) - nbytes + 1, nbytes), np.uint8, buffer=data, strides=(1, 1))
