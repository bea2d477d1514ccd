"""Fields copied out of mapped shards and held against their CRC-32C.

Fields of one size become rows of memory, and neighbours are verified by one checksum; others become bytes.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from google_crc32c import extend, value
from numpy.typing import NDArray

from ...errors import Corrupt
from ...storage import Span
from ...storage.shared.requests import count_request
from ..shards.shard import crc32c
from .crc_sums import U32, joined_crcs, moved_crc
from .places import Int64s, SamplePlaces, members
from .rows_from_disk import NotInRow, RowsOfField
from .shard_read import CACHED_BYTES, MAPPED_BYTES, Reading, ReadingOf, ShardRead

ROWS_AT_ONCE = 64
"""Rows of a block, at most: the tables of its expected checksum take 4 KiB a row."""


class RowChecks:
    """Takes rows as they are filled, block by block, while they are in the processor's cache.

    memory: uint8 [any, nbytes], contiguous.
    crcs: uint32 [n], of the rows in the order of their `add`.

    A wrong block passes with a probability of 2^-32, as a row by itself would.
    """

    def __init__(self, memory: np.ndarray, crcs: U32) -> None:
        self._memory, self._crcs = memory, crcs
        self._n = 0
        # Of blocks of so many rows: number and place of the first one, checksum of all.
        self._sums: dict[int, list[tuple[int, int, int]]] = {}
        self._wrong: list[int] = []

    def add(self, rows: Int64s) -> None:
        """Take the next filled rows, ascending. Quick where they are neighbours, and most blocks of one size."""
        first, low, high = self._n, int(rows[0]), int(rows[-1]) + 1
        self._n += len(rows)
        if high - low == len(rows):
            self._sums.setdefault(len(rows), []).append((first, low, extend(0, self._memory[low:high])))
        else:
            self._check_each(first, rows.tolist())

    def wrong(self) -> Int64s:
        """Return the wrong rows, as int64 numbers counted from 0 in the order of `add`."""
        for n, blocks in self._sums.items():
            crcs = self._crcs[np.add.outer([first for first, *_ in blocks], np.arange(n))]
            for wanted, (first, row, found) in zip(
                joined_crcs(crcs, self._memory.shape[1]).tolist(), blocks, strict=True
            ):
                if found != wanted:
                    self._check_each(first, range(row, row + n))
        self._sums.clear()
        return np.array(self._wrong, np.int64)

    def _check_each(self, first: int, rows: Sequence[int]) -> None:
        wanted = self._crcs[first : first + len(rows)].tolist()
        self._wrong += [
            first + i
            for i, (row, crc) in enumerate(zip(rows, wanted, strict=True))
            if extend(0, self._memory[row]) != crc
        ]


GATHERED_BYTES = 2048
"""Rows from this size on are copied one by one: numpy's gathering copies twice."""


def map_rows(
    reading_of: ReadingOf, places: SamplePlaces, wanted: Sequence[RowsOfField]
) -> tuple[list[NotInRow], list[RowsOfField]]:
    """Fill the rows of shards that are mapped, verified; return (samples not in their row, rows to be read instead).

    Raises: as `read_rows`.
    """
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
    """Return (number of a sample -> its verified bytes, or the error; numbers of the samples to be read instead).

    A shard costs a look at its file: all else is computed for all shards in one go.

    Raises: as `read_rows`.
    """
    at, found, left = places.fields[field], dict[int, bytes | Corrupt](), list[Int64s]()
    ordered, shares = at.shares(numbers)
    if not shares:
        return found, ordered
    begin, nbytes = at.offset[ordered], at.nbytes[ordered]
    starts = [share.start for share in shares]
    lows = np.minimum.reduceat(begin, starts).tolist()
    ends = np.maximum.reduceat(begin + nbytes, starts).tolist()
    totals = np.add.reduceat(nbytes, starts).tolist()
    spans = list(zip(begin.tolist(), (begin + nbytes).tolist(), strict=True))
    who, wanted, reads = ordered.tolist(), at.crc32c[ordered].tolist(), list[tuple[Reading, ShardRead]]()
    for (shard, first, stop), low, end, total in zip(shares, lows, ends, totals, strict=True):
        mine, reading, path = slice(first, stop), reading_of(shard.of), shard.path
        if reading.maps is None or total > (stop - first) * MAPPED_BYTES:
            left.append(ordered[mine])
            continue
        start, first_of = perf_counter(), partial(places.address, who[first])
        with reading.told(first_of, field), reading.maps.using(path, reading.pins.get(path)) as mapped:
            if (
                mapped is None
                or end > len(mapped[0].data)
                or not reading.is_verified(path, mapped, begin[mine], nbytes[mine])
            ):
                left.append(ordered[mine])
                continue
            reading.pin(path, mapped[1])
            count_request()
            whole, data, crcs, copied_s = mapped[0].data, list[bytes](), list[int](), 0.0
            at_once = max(1, CACHED_BYTES * (stop - first) // max(1, total))
            for i in range(first, stop, at_once):
                copying, copied = perf_counter(), len(data)
                data += [whole[low:high] for low, high in spans[i : min(i + at_once, stop)]]
                copied_s += perf_counter() - copying
                crcs += map(value, data[copied:])
        found.update(zip(who[mine], data, strict=True))
        verified_s = perf_counter() - start - copied_s
        if crcs != wanted[mine]:
            for number, crc, right in zip(who[mine], crcs, wanted[mine], strict=True):
                if crc != right:
                    found[number] = reading.again_or_error(places.address(number), field)
        fetched_s = perf_counter() - start - verified_s
        reads.append((reading, ShardRead(first_of, path, Span(low, end - low), fetched_s, verified_s)))
    # The slowest first: whoever keeps the slowest asks for its address, and for no other.
    for reading, read in sorted(reads, key=lambda one: -one[1].fetch_s):
        reading.on_read(read)
    return found, np.sort(np.concatenate(left)) if left else np.zeros(0, np.int64)


class _Shard(NamedTuple):
    """Samples of a field that lie in one mapped shard."""

    reading: Reading
    path: str
    whole: np.ndarray
    """uint8: bytes of the shard."""
    mine: Int64s
    """int64, ascending: numbers of the samples."""
    begin: Int64s
    """int64: first byte of each sample's field in `whole`."""
    opened_s: float
    """Seconds of opening the shard."""


def _mapped(
    reading_of: ReadingOf, places: SamplePlaces, one: RowsOfField, held: ExitStack
) -> tuple[list[_Shard], list[Int64s]]:
    """Return a field's shards, mapped as long as `held` is, and the numbers of the other samples.

    Those lie in shards that are not mapped, or that end too early for one of them.
    """
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
        if (
            mapped is None
            or int(begin.min()) < 0
            or int(begin.max()) + nbytes > len(mapped[0].array)
            or not reading.is_verified(path, mapped, begin, nbytes)
        ):
            unmapped.append(mine)
            continue
        count_request()
        shards.append(_Shard(reading, path, mapped[0].array, mine, begin, perf_counter() - start))
    return shards, unmapped


def _filled(places: SamplePlaces, one: RowsOfField, shards: Sequence[_Shard]) -> list[NotInRow]:
    """Fill the rows of these shards, and return the samples that are not in their row."""
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
    odd = ~same
    odd[checked.wrong()] = True
    verified_s = perf_counter() - start - copied_s
    out = []
    for i in np.flatnonzero(odd).tolist():
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
    """Return bool [samples of the shard]: whether each field begins with `head`."""
    words = np.uint64 if len(head) % 8 == 0 else np.uint8  # an eighth of the comparisons
    found = _windows(shard.whole, len(head))[shard.begin].view(words)
    same: NDArray[np.bool_] = (found == np.frombuffer(head, words)).all(axis=1)
    return same


def _copier(
    wholes: Sequence[np.ndarray], which: Int64s, begin: Int64s, memory: np.ndarray, rows: Int64s
) -> Callable[[slice], None]:
    """Return a function that copies, for a slice of the rows, the bytes of `wholes[which]` from each `begin` on."""
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
    """Return ascending rows as a slice where they are neighbours, which numpy is quicker with."""
    low, high = int(rows[0]), int(rows[-1]) + 1
    return slice(low, high) if high - low == len(rows) else rows


def _windows(data: np.ndarray, nbytes: int) -> np.ndarray:
    """Return uint8 [len(data) - nbytes + 1, nbytes]: row i is data[i : i + nbytes], without a copy."""
    return np.ndarray((len(data) - nbytes + 1, nbytes), np.uint8, buffer=data, strides=(1, 1))
