"""The packet table of a video, field `<field>.packets`, from which single packets are read without the file.

An Arrow IPC stream, one row per packet of the first video stream, in decode order. Schema 1 has one record batch. A
table of more packets than `PAGE_PACKETS` has schema 2: a record batch per page, cut where no frame needs an earlier
page. Its metadata lists the pages, so that `packet_pages` reads single ones.
"""

import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google_crc32c import value as crc32c

from ...errors import DecodeFailed, FormatTooNew, PenstockError
from ..fields import PACKETS_SUFFIX, Buffer, is_machine_fault, load

SUFFIX = PACKETS_SUFFIX
TABLE_VERSION = 2
PAGE_PACKETS = 4096
"""Packets of a page, and most packets of a table with schema 1."""
PAGES, LAST_PTS, METADATA_CRC = "pages", "last_pts", "metadata_crc32c"
"""Names in the metadata of schema 2. PAGES: five numbers for each page, as `_page_table` writes them."""
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of an Arrow stream: the mark before each message, and a length of 0."""
NO_TIME = -(2**63)
"""`dts` of a packet that has none (AV_NOPTS_VALUE)."""

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COLUMNS = pa.schema(
    [
        pa.field("pts", pa.int64(), nullable=False),
        pa.field("dts", pa.int64(), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
        pa.field("size", pa.int32(), nullable=False),
        pa.field("key", pa.bool_(), nullable=False),
        pa.field("discard", pa.bool_(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
    ]
)
_MAX_SIDE_PX = 2**16
_MAX_NBYTES = 2**32  # of a field
MAX_TICKS = 2**62
"""Largest time of a packet, and least with a minus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """Facts needed for decoding besides the packets, and facts about the whole field.

    `color_*` and `colorspace` are FFmpeg's numbers from the container (ITU-T H.273, except the range).
    """

    codec: str
    """FFmpeg's name of the decoder."""
    codec_tag: str
    """Four characters, or ""."""
    extradata: bytes
    """Codec configuration in the container; may be empty."""
    time_base: Fraction
    """Seconds per tick."""
    width_px: int
    """Coded width."""
    height_px: int
    """Coded height."""
    pix_fmt: str
    """FFmpeg's name of the pixel format."""
    color_range: int
    """1 limited, 2 full."""
    color_primaries: int
    """Number of the primaries."""
    color_trc: int
    """Number of the transfer characteristics."""
    colorspace: int
    """Number of the matrix coefficients."""
    sar: Fraction
    """Sample aspect ratio; 0 if unknown."""
    display_matrix: tuple[int, ...]
    """Nine int32, or empty."""
    reorder_frames: int
    """Number of frames that a decoder may hold back."""
    end_pts: int
    """Tick at which the last frame ends."""
    nbytes: int
    """Size of the whole field."""
    crc32c: int
    """CRC-32C of the field."""
    whole_because: str
    """Reason why packets cannot be read one by one; "" if they can."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketTable:
    pts: I64
    """int64 ticks."""
    dts: I64
    """int64 ticks."""
    pos: I64
    """int64: byte offset in the field; -1 if the container does not state it."""
    size: npt.NDArray[np.int32]
    """int32 bytes."""
    key: Bools
    """bool: True for key packets."""
    discard: Bools
    """bool: True for packets that an edit list hides: decoded but not shown."""
    crc32c: npt.NDArray[np.uint32]
    """uint32: CRC-32C of the packet's bytes."""
    facts: StreamFacts

    def __len__(self) -> int:
        return len(self.pts)


def index_packets(data: Buffer, tried: StreamFacts | None = None) -> bytes:
    """Return the packet table of a whole video file: one demux, two frames decoded. Equal bytes give equal tables.

    tried: facts of a file from the same encoder and muxer; if its decoder settings are equal, no frame is decoded.
    If packets cannot be separated, `whole_because` is set, and the loader reads the whole file.

    Raises: DecodeFailed if `loader.video` cannot read the file; MissingDependency (av).
    """
    table: PacketTable = load("video.make_packet_table:packet_table")(data, tried)
    return packets_bytes(table)


def packets_bytes(table: PacketTable) -> bytes:
    """Return the table as field bytes, equal for equal tables (with the same pyarrow)."""
    if len(table) > PAGE_PACKETS and not table.facts.whole_because:
        return _page_table(table)
    schema = COLUMNS.with_metadata(_metadata(table.facts))
    batch = pa.record_batch([pa.array(getattr(table, name)) for name in COLUMNS.names], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _page_table(table: PacketTable) -> bytes:
    columns = [pa.array(getattr(table, name)) for name in COLUMNS.names]
    whole = pa.record_batch(columns, schema=COLUMNS)
    starts = [*_page_starts(table), len(table)]
    batches = list[bytes]()
    pages = list[int]()
    for first, stop in pairwise(starts):
        n_packets = stop - first
        batch = whole.slice(first, n_packets).serialize().to_pybytes()
        batches.append(batch)
        is_shown = ~table.discard[first:stop]
        shown = table.pts[first:stop][is_shown]
        first_pts = int(shown.min())
        pages += [first_pts, n_packets, len(shown), len(batch), crc32c(batch)]
    last_pts = int(table.pts[~table.discard].max())
    metadata = _metadata(table.facts, {PAGES: _text(tuple(pages)), LAST_PTS: str(last_pts)}, schema=2)
    metadata[METADATA_CRC.encode()] = metadata_crc(metadata)
    head = COLUMNS.with_metadata(metadata).serialize().to_pybytes()
    return b"".join([head, *batches, END_OF_STREAM])


def _page_starts(table: PacketTable) -> list[int]:
    """Return the first packet of each page: key packets that are shown after all earlier ones and before all later."""
    # int64 [packets]: greatest time up to each packet, and least time from it on.
    latest = np.maximum.accumulate(table.pts)
    later = np.minimum.accumulate(table.pts[::-1])[::-1]
    is_cut = table.key & ~table.discard & (table.pts == later)
    is_cut[1:] &= latest[:-1] < later[1:]
    cuts = np.flatnonzero(is_cut[1:]) + 1
    starts = [0]
    while len(table) - starts[-1] > PAGE_PACKETS:
        later_cuts = cuts[cuts > starts[-1]]
        if not len(later_cuts):
            break
        # The last cut within PAGE_PACKETS, else the next one: a page without cuts is larger.
        near = later_cuts[later_cuts <= starts[-1] + PAGE_PACKETS]
        if len(near):
            starts.append(int(near[-1]))
        else:
            starts.append(int(later_cuts[0]))
    if len(starts) > 1 and table.discard[: starts[1]].all():
        del starts[1]  # each page shows a frame
    return starts


def metadata_crc(metadata: Mapping[bytes, bytes]) -> bytes:
    """Return the CRC-32C of a schema's metadata without its own entry, in hex digits."""
    lines = [name + b"=" + metadata[name] for name in sorted(metadata) if name != METADATA_CRC.encode()]
    crc = crc32c(b"\0".join(lines))
    return f"{crc:08x}".encode()


def read_packets(data: Buffer) -> PacketTable:
    """Return a table from a field's verified bytes, each value checked against its range. O(packets).

    Raises: DecodeFailed; FormatTooNew.
    """
    try:
        source = pa.BufferReader(pa.py_buffer(data))
        # Before the reader, which decompresses each batch that it reads. read_message ends a stream by EOFError.
        with suppress(EOFError):
            while True:
                check_plain(pa.ipc.read_message(source))
        with pa.ipc.open_stream(
            pa.py_buffer(data), options=pa.ipc.IpcReadOptions(use_threads=False)
        ) as reader:
            schema = reader.schema
            facts, version = read_facts(schema.metadata or {})
            if not schema.equals(COLUMNS, check_metadata=False):
                raise DecodeFailed(
                    f"packet table: its columns are {schema.names}, not {COLUMNS.names}",
                    what="packet table",
                    given=schema.names,
                    accepted=COLUMNS.names,
                )
            batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        if is_machine_fault(error):
            raise
        raise DecodeFailed(
            f"packet table: {type(error).__name__}: {error}", what="packet table", given=type(error).__name__
        ) from error
    if not batches or (version == 1 and len(batches) != 1):
        raise DecodeFailed(
            f"packet table: {len(batches)} batches; schema {version} has {'one' if version == 1 else 'some'}",
            what="packet table",
            given=f"{len(batches)} batches",
        )
    return build_table(batches, facts)


def check_plain(message: pa.ipc.Message) -> None:
    """Raise DecodeFailed for a compressed record batch: a page of 16 KB would take 600 MB."""
    if message.type != "record batch":
        return
    try:
        # By Arrow's schema the header is field 2 of a message, and the compression field 3 of a record batch.
        (root,) = struct.unpack_from("<I", message.metadata)
        header = _member(message.metadata, root, 2)
        (offset,) = struct.unpack_from("<I", message.metadata, header)
        is_plain = not _member(message.metadata, header + offset, 3)
    except struct.error as error:
        raise DecodeFailed(f"packet table: a message without a batch: {error}") from error
    if not is_plain:
        raise DecodeFailed(
            "packet table: its batch is compressed; make it again",
            what="packet table",
            given="a compressed batch",
        )


def _member(data: pa.Buffer, table: int, number: int) -> int:
    # A table of FlatBuffers begins with the distance to its field table: 4 bytes of sizes, then 2 per field.
    (back,) = struct.unpack_from("<i", data, table)
    (nbytes,) = struct.unpack_from("<H", data, table - back)
    if 4 + 2 * number >= nbytes:
        return 0
    (offset,) = struct.unpack_from("<H", data, table - back + 4 + 2 * number)
    if not offset:
        return 0
    return table + int(offset)


def build_table(batches: Sequence[pa.RecordBatch], facts: StreamFacts) -> PacketTable:
    """Return the table of validated record batches, each value checked. Raises: DecodeFailed."""
    rows = pa.Table.from_batches(batches)
    if any(column.null_count for column in rows.columns):
        raise DecodeFailed("packet table: values are missing")
    columns = {name: rows[name].to_numpy() for name in COLUMNS.names}
    table = PacketTable(**columns, facts=facts)
    _check(table)
    return table


def fact_faults(facts: StreamFacts) -> list[str]:
    """Return a text for each fact of a stream that is out of range; empty if none is."""
    wrong = {
        "an end out of range": abs(facts.end_pts) > MAX_TICKS,
        "a time base out of range": facts.time_base <= 0
        or max(facts.time_base.numerator, facts.time_base.denominator) >= 2**31,
        "a frame size out of range": not (
            0 < facts.width_px <= _MAX_SIDE_PX and 0 < facts.height_px <= _MAX_SIDE_PX
        ),
        "a display matrix that is none": len(facts.display_matrix) not in (0, 9),
        "a field size out of range": not 0 < facts.nbytes <= _MAX_NBYTES,
        "a reordering out of range": not 0 <= facts.reorder_frames <= 64,
    }
    return [what for what, is_so in wrong.items() if is_so]


def _check(table: PacketTable) -> None:
    facts = table.facts
    end = table.pos + table.size
    wrong = {
        "no packets": not len(table),
        "a size below 1": (table.size < 1).any(),
        "a time out of range": (table.pts > MAX_TICKS).any() or (table.pts < -MAX_TICKS).any(),
        "a place outside of its field": (table.pos < -1).any()
        or (table.pos > facts.nbytes).any()  # its end may exceed int64
        or (end > facts.nbytes).any(),
        "places that do not ascend": not facts.whole_because
        and ((table.pos < 0).any() or (table.pos[1:] < end[:-1]).any()),
    }
    faults = [what for what, is_so in wrong.items() if is_so] + fact_faults(facts)
    if faults:
        raise DecodeFailed(
            f"packet table: {', '.join(faults)}; make it again with add_group, or leave it out",
            what="packet table",
            given=", ".join(faults),
        )


def _metadata(
    facts: StreamFacts, more: Mapping[str, str] | None = None, schema: int = 1
) -> dict[bytes, bytes]:
    texts: dict[str, str] = {"penstock.table": "packets", "penstock.schema": str(schema), **(more or {})}
    for field in fields(facts):
        texts[field.name] = _text(getattr(facts, field.name))
    return {name.encode(): texts[name].encode() for name in sorted(texts)}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


def read_facts(metadata: Mapping[bytes, bytes]) -> tuple[StreamFacts, int]:
    """Return the facts in a schema's metadata, and its schema's number. Raises: DecodeFailed; KeyError; ValueError."""
    texts = {name.decode(): value.decode() for name, value in metadata.items()}
    if texts["penstock.table"] != "packets":
        raise DecodeFailed(
            f"packet table: this is a table of {texts['penstock.table']!r}",
            what="packet table",
            given=texts["penstock.table"],
        )
    version = int(texts["penstock.schema"])
    if version > TABLE_VERSION:
        raise FormatTooNew(
            f"packet table of schema {texts['penstock.schema']}; this penstock reads up to {TABLE_VERSION}: upgrade it",
            what="schema",
            given=texts["penstock.schema"],
            accepted=TABLE_VERSION,
        )
    facts = {field.name: _PARSERS[field.type](texts[field.name]) for field in fields(StreamFacts)}
    return StreamFacts(**facts), version


def _fraction(text: str) -> Fraction:
    numerator, _, denominator = text.partition("/")
    if not int(denominator):
        raise ValueError(f"{text!r} is not a fraction")
    return Fraction(int(numerator), int(denominator))


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"extradata: {error}") from error


_PARSERS: Mapping[Any, Any] = {
    str: str,
    int: int,
    bytes: _base64,
    Fraction: _fraction,
    tuple[int, ...]: lambda text: tuple(map(int, text.split())),
}
