"""Fields of one size read from a disk straight into rows of memory: one vector of buffers per run of neighbours."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import NamedTuple

import numpy as np
from google_crc32c import extend

from ...errors import Corrupt
from ...storage.store import disk_of
from ..shards.shard import crc32c
from .places import Int64s, SamplePlaces
from .shard_read import Reading, ReadingOf, ShardRead, extent


class RowsOfField(NamedTuple):
    """Memory for the values of one field."""

    field: str
    """Name of the field."""
    head: bytes
    """Bytes that all values begin with; they are compared and dropped."""
    numbers: Int64s
    """int64 [n], ascending: numbers of the samples."""
    rows: Int64s
    """int64 [n]: row of `memory` that the rest of each sample fills."""
    memory: np.ndarray
    """uint8 [any, nbytes], contiguous."""

    def part(self, numbers: Int64s) -> "RowsOfField":
        """Return the rows for some of the samples."""
        return self._replace(numbers=numbers, rows=self.rows[np.searchsorted(self.numbers, numbers)])


class NotInRow(NamedTuple):
    """A sample whose row is not filled."""

    number: int
    """Number of the sample."""
    field: str
    """Name of the field."""
    data: bytes | Corrupt
    """All bytes of its field, where they do not begin with `head`; or the error."""


def read_rows(reading_of: ReadingOf, places: SamplePlaces, wanted: Sequence[RowsOfField]) -> list[NotInRow]:
    """Fill the rows from disks, verified; return the samples that do not lie in their row.

    A field of another size than its head and row raises nothing here: it must not be asked for.

    Raises: Changed; ObjectNotFound; Transient.
    """
    heads = [np.empty((len(one.numbers), len(one.head)), np.uint8) for one in wanted]
    by_shard: dict[tuple[int, str], list[_Piece]] = {}
    for which, (one, head) in enumerate(zip(wanted, heads, strict=True)):
        at = places.fields[one.field]
        for shard, mine in at.by_shard(one.numbers):
            of = np.searchsorted(one.numbers, mine)
            columns = (of, one.rows[of], at.offset[mine], at.crc32c[mine])
            by_shard.setdefault((shard.of, shard.path), []).extend(
                (offset, len(one.head) + one.memory.shape[1], (head[i], one.memory[row]), crc, which, i)
                for i, row, offset, crc in zip(*(column.tolist() for column in columns), strict=True)
            )
    out: list[NotInRow] = []
    read = [
        (reading, path, pieces, _filled(reading, places, wanted, path, pieces, out))
        for (of, path), pieces in by_shard.items()
        for reading in (reading_of(of),)
    ]
    begun = [crc32c(one.head) for one in wanted]
    same = [
        (head == np.frombuffer(one.head, np.uint8)).all(axis=1).tolist()
        for one, head in zip(wanted, heads, strict=True)
    ]
    for reading, path, pieces, fetch_s in read:
        if fetch_s is None:
            continue
        start = perf_counter()
        odd = [
            (*_of(wanted, which, i), buffers, crc)
            for _, _, buffers, crc, which, i in pieces
            if not same[which][i] or extend(begun[which], buffers[1]) != crc
        ]
        verified = perf_counter()
        for number, field, buffers, crc in odd:
            whole = b"".join(map(bytes, buffers))
            good = crc32c(whole) == crc
            data = whole if good else reading.again_or_error(places.address(number), field)
            out.append(NotInRow(number, field, data))
        again_s = perf_counter() - verified
        address = partial(places.address, _of(wanted, *pieces[0][4:])[0])
        span = extent([(offset, nbytes) for offset, nbytes, *_ in pieces])
        reading.on_read(ShardRead(address, path, span, fetch_s + again_s, verified - start))
    return out


_Piece = tuple[int, int, tuple[np.ndarray, np.ndarray], int, int, int]
"""Offset, nbytes, head and row, CRC-32C, number of the field and of the row in it."""


def _filled(
    reading: Reading,
    places: SamplePlaces,
    wanted: Sequence[RowsOfField],
    path: str,
    pieces: list[_Piece],
    out: list[NotInRow],
) -> float | None:
    """Sort one shard's pieces and fill their buffers; return the seconds.

    None where the shard ends too early for one of them: each was then asked for by itself, to know for which.
    """
    disk = disk_of(reading.store)
    assert disk is not None  # of others nothing is read into rows
    pieces.sort(key=itemgetter(0))
    number, field = _of(wanted, *pieces[0][4:])
    start = perf_counter()
    try:
        with reading.told(partial(places.address, number), field):
            etag = disk.read_into(path, [piece[:3] for piece in pieces], etag=reading.pins.get(path))
    except Corrupt:
        for *_, which, i in pieces:
            number, field = _of(wanted, which, i)
            out.append(NotInRow(number, field, reading.again_or_error(places.address(number), field)))
        return None
    reading.pin(path, etag)
    return perf_counter() - start


def _of(wanted: Sequence[RowsOfField], which: int, i: int) -> tuple[int, str]:
    """Return (number of the sample, field) of a piece."""
    return int(wanted[which].numbers[i]), wanted[which].field
