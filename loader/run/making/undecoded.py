"""Fields that reading alone finishes: bytes as they are, and arrays of one layout, whose values go into batch rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...dataset.reading.places import SamplePlaces
from ...dataset.reading.rows_from_disk import NotInRow, RowsOfField, read_rows
from ...dataset.reading.rows_from_maps import map_rows
from ...dataset.reading.shard_read import ReadingOf
from ...errors import DecodeFailed
from ...modalities import Decoder, array, decode_bytes
from ...order.random.keys import I64
from ..batch.columns import Columns


class InRows(NamedTuple):
    """What became of one field. filled: int64, numbers of the samples whose values lie in their rows; others: what was
    read instead; left: int64, numbers of those that were not read."""

    field: str
    filled: I64
    others: Sequence[NotInRow]
    left: I64


class Bulk:
    """Knows, of one view, which fields need no decoder and which layout its arrays had last. Thread-safe: a layout is
    a guess, which every sample's own header confirms."""

    def __init__(self, fields: Sequence[str], decoders: Mapping[str, Decoder]) -> None:
        self.plain = frozenset(f for f in fields if decoders.get(f, decode_bytes) is decode_bytes)
        self._arrays = [field for field in fields if decoders.get(field) is array.decode]
        self._layouts: dict[str, array.Layout] = {}

    def learn(self, payloads: Iterable[Mapping[str, object]]) -> None:
        """Take the layouts of the first arrays among these fields for those of their fields, if they can be read in
        rows."""
        payloads = list(payloads)
        for field in self._arrays if payloads else ():
            data = next((one[field] for one in payloads if field in one), None)
            if not isinstance(data, bytes):
                continue
            try:
                found = array.layout_of(data)
            except DecodeFailed:
                continue
            straight = not found.fortran or len(found.shape) < 2
            if straight and found.nbytes and found.dtype.isnative:
                self._layouts[field] = found

    def read(self, reading_of: ReadingOf, places: SamplePlaces, rows: I64, columns: Columns) -> list[InRows]:
        """Read what can be read in rows, from disks. rows: int64, of each sample, its row. Raises: as `read_rows`."""
        wanted, left = [], []
        for field in self._arrays:
            layout = self._layouts.get(field)
            memory = None if layout is None else columns.rows(field, layout.shape, layout.dtype)
            if layout is None or memory is None:
                continue
            fits = places.fields[field].nbytes == len(layout.head) + layout.nbytes
            numbers = np.flatnonzero(fits)
            values = memory.reshape(len(columns), -1).view(np.uint8)
            wanted.append(RowsOfField(field, layout.head, numbers, rows[numbers], values))
            left.append(np.flatnonzero(~fits))
        if not wanted:
            return []
        found, unmapped = map_rows(reading_of, places, wanted)
        if unmapped:
            found += read_rows(reading_of, places, unmapped)
        others: dict[str, dict[int, NotInRow]] = {one.field: {} for one in wanted}
        for other in found:
            others[other.field][other.number] = other
        return [
            InRows(
                one.field,
                np.setdiff1d(one.numbers, list(others[one.field]), assume_unique=True),
                list(others[one.field].values()),
                rest,
            )
            for one, rest in zip(wanted, left, strict=True)
        ]
