"""Read stored texts of samples or of whole parts."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...errors import Corrupt
from ..reading.sample_places import SamplePlaces
from ..reading.shard_read import Reading
from ..reading.verified_bucket_reads import read_places
from ..tables.parquet import Int64s
from .field_texts import MOST_TEXT_CHARACTERS, searched_text
from .how import How
from .segments import SegmentKind
from .vectors import BLOCK_ROWS, part_places

if TYPE_CHECKING:
    from ..versions.version import Version

_READS_AT_ONCE = 16
_MOST_BLOCK_BYTES = 32 * 2**20
"""Most bytes of texts in memory at once, if no single one has more."""


def text_kind(how: How) -> SegmentKind:
    """Return the kind of segments with texts of a field."""
    columns = pa.schema([("text", pa.string())])
    # A character has at most four bytes.
    return SegmentKind(
        name="texts",
        columns=columns,
        most_value_bytes=4 * MOST_TEXT_CHARACTERS,
    )


class TextReader:
    """Reads one field's texts of a version. Not thread-safe."""

    def __init__(self, version: "Version", field: str) -> None:
        self._version = version
        self._field = field
        self._reading = Reading(version.shard_store, {})
        self._pool = ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="penstock-texts")

    def close(self) -> None:
        self._pool.shutdown()

    def samples(self, ordinals: Int64s) -> pa.ChunkedArray:
        """Return the texts of live ordinals, int64 [n], null where a text is damaged."""
        pieces = []
        for start in range(0, len(ordinals), BLOCK_ROWS):
            block = ordinals[start : start + BLOCK_ROWS]
            places = self._version.places(
                block,
                [self._field],
                self._pool.map,
            )
            pieces.append(self._read(places))
        return pa.chunked_array(pieces, pa.string())

    def part(self, position: int) -> pa.ChunkedArray:
        """Return the texts of all rows of a part, excluded ones too, null where a text is damaged."""
        pieces = [self._read(places) for places in part_places(self._version, self._field, position)]
        return pa.chunked_array(pieces, pa.string())

    def _read(self, places: SamplePlaces) -> pa.Array:
        texts: list[str | None] = [None] * len(places)
        nbytes = places.fields[self._field].nbytes
        block = np.cumsum(nbytes) // _MOST_BLOCK_BYTES  # int64 [n]: number of each text's block
        for start in np.unique(block):
            reads = read_places(
                self._find_reading,
                places,
                {self._field: np.flatnonzero(block == start)},
                self._pool.map,
            )
            for number, _, data in reads:
                if not isinstance(data, Corrupt):
                    texts[number] = searched_text(self._field, bytes(data))
        return pa.array(texts, pa.string())

    def _find_reading(self, version: int) -> Reading:
        return self._reading
