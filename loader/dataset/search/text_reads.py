"""Read stored texts of samples or of whole parts: a block of texts at once, without an object for each."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...errors import Corrupt
from ...storage.threads import DaemonPool
from ..reading.pinned_reads import Reading
from ..reading.sample_places import SamplePlaces
from ..reading.verified_bucket_reads import FieldRead, read_places
from ..reading.verified_gathers import GatheredBytes, OpenShards, gather_bytes
from ..shards.bitmap import Bools
from ..tables.parquet import Int64s, string_array, take_rows
from .field_texts import MOST_TEXT_CHARACTERS, search_text
from .index_record import IndexRecord
from .segments import SegmentKind
from .vectors import BLOCK_ROWS, open_reading, part_places

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

_READS_AT_ONCE = 16
_MOST_BLOCK_BYTES = 32 * 2**20
"""Most bytes of texts in memory at once, if no single one has more."""


def text_kind(record: IndexRecord) -> SegmentKind:
    """Return the kind of segments with texts of a field."""
    columns = pa.schema([("text", pa.string())])
    # A character has at most four bytes.
    return SegmentKind(
        name="texts",
        columns=columns,
        most_value_bytes=4 * MOST_TEXT_CHARACTERS,
    )


class TextReader:
    """Reads one field's texts of a version. Not thread-safe. Opens shards of a local disk once."""

    def __init__(self, version: "VersionData", field: str) -> None:
        self._version = version
        self._field = field
        self._reading = open_reading(version)
        self._pool = DaemonPool(_READS_AT_ONCE, "penstock-texts")

    def close(self) -> None:
        self._pool.shutdown()
        if self._reading.files is not None:
            self._reading.files.close()

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
            pieces += self._read(places)
        return pa.chunked_array(pieces, pa.string())

    def part(self, position: int) -> pa.ChunkedArray:
        """Return the texts of all rows of a part, excluded ones too, null where a text is damaged."""
        pieces = []
        for places in part_places(self._version, self._field, position):
            pieces += self._read(places)
        return pa.chunked_array(pieces, pa.string())

    def _read(self, places: SamplePlaces) -> list[pa.Array]:
        """Return the texts of these places, in order, in blocks."""
        nbytes = places.fields[self._field].nbytes
        block = np.cumsum(nbytes) // _MOST_BLOCK_BYTES  # int64 [n]: number of each text's block
        pieces = []
        for block_number in np.unique(block):
            numbers = np.flatnonzero(block == block_number)
            stored, again = self._read_bytes(places, numbers)
            pieces.append(_block_texts(self._field, numbers, stored, again))
        return pieces

    def _read_bytes(
        self,
        places: SamplePlaces,
        numbers: Int64s,
    ) -> tuple[GatheredBytes, list[FieldRead]]:
        """Return (verified bytes of these texts, texts that needed a second read or failed)."""
        if self._reading.files is not None:
            gatherable = OpenShards(self._find_reading, places)
            return gather_bytes(gatherable, self._field, numbers, np.empty)
        reads = read_places(
            self._find_reading,
            places,
            {self._field: numbers},
            self._pool.map,
        )
        return _join_reads(reads), []

    def _find_reading(self, version: int) -> Reading:
        return self._reading


def _join_reads(reads: Sequence[FieldRead]) -> GatheredBytes:
    """Return the bytes of these reads one after the other, without the damaged ones."""
    numbers = []
    pieces = []
    for number, _, data in reads:
        if not isinstance(data, Corrupt):
            numbers.append(number)
            pieces.append(data)
    nbytes = [len(data) for data in pieces]
    sizes = np.array(nbytes, np.int64)
    joined = b"".join(pieces)
    return GatheredBytes(
        numbers=np.array(numbers, np.int64),
        memory=np.frombuffer(joined, np.uint8),
        begin=np.cumsum(sizes) - sizes,
        sizes=sizes,
    )


def _block_texts(
    field: str,
    numbers: Int64s,
    stored: GatheredBytes,
    again: Sequence[FieldRead],
) -> pa.Array:
    """Return the texts with these numbers, int64 [n], without a gap; null where a text is damaged.

    again: reads that `stored` lacks.
    """
    plain, is_plain = _plain_texts(field, stored)
    # The others are decoded one by one.
    single_numbers = []
    singles = []
    others = _single_bytes(
        stored,
        is_plain,
        again,
    )
    for number, data in others:
        text = search_text(field, data)
        if text is not None:
            single_numbers.append(number)
            singles.append(text)

    # A null, the plain texts, then the single ones. A text that is in neither takes the null.
    null = pa.nulls(1, pa.string())
    values = pa.concat_arrays([null, plain, string_array(singles)])
    first_single = 1 + len(plain)
    plain_numbers = stored.numbers[is_plain]
    source = np.zeros(len(numbers), np.int64)  # [n]: position of each text in `values`
    source[plain_numbers - numbers[0]] = np.arange(1, first_single)
    single_rows = np.array(single_numbers, np.int64) - numbers[0]
    source[single_rows] = np.arange(first_single, len(values))
    return take_rows(values, source)


def _single_bytes(
    stored: GatheredBytes,
    is_plain: Bools,
    again: Sequence[FieldRead],
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of the readable texts that are not plain."""
    for position in np.flatnonzero(~is_plain).tolist():
        number = int(stored.numbers[position])
        begin = stored.begin[position]
        end = begin + stored.sizes[position]
        yield number, stored.memory[begin:end].tobytes()
    for number, _, data in again:
        if not isinstance(data, Corrupt):
            yield number, bytes(data)


def _plain_texts(field: str, stored: GatheredBytes) -> tuple[pa.Array, Bools]:
    """Return (texts whose bytes are searched as they are; bool [n]: which of the stored ones they are).

    1e6 captions take 0.1 s; decoded one by one, 1.3 s.
    """
    n = len(stored.numbers)
    nothing = string_array([])
    is_nothing = np.zeros(n, bool)
    if not field.endswith(".txt"):
        return nothing, is_nothing
    if not len(stored.memory):
        return nothing, is_nothing
    # A text of zeros is none, and a long one is cut.
    is_short = stored.sizes > 0
    is_short &= stored.sizes <= MOST_TEXT_CHARACTERS
    # An empty text at the end begins after the memory.
    last_byte = len(stored.memory) - 1
    begin = np.minimum(stored.begin, last_byte)
    first_byte = stored.memory[begin]
    is_short &= first_byte != 0
    # Begin and end of each text: every second piece is a text, and the others are gaps of damaged ones.
    offsets = np.empty(2 * n, np.int64)
    offsets[0::2] = stored.begin
    offsets[1::2] = stored.begin + stored.sizes
    offset_buffer = pa.py_buffer(offsets)
    data_buffer = pa.py_buffer(stored.memory)
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        2 * n - 1,
        [None, offset_buffer, data_buffer],
    )
    short_positions = np.flatnonzero(is_short)
    short = take_rows(pieces, 2 * short_positions)
    try:
        plain = short.cast(pa.string())  # checks that each is UTF-8
    except pa.ArrowInvalid:
        return nothing, is_nothing
    return plain, is_short
