"""The packet table of a video, field `<field>.packets`, from which single packets are read without the file.

An Arrow IPC stream with one record batch, one row per packet of the first video stream, in decode order. The schema's
metadata has the decoder settings. docs/format.md is normative.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import DecodeFailed, FormatTooNew, PenstockError
from ..fields import PACKETS_SUFFIX, Buffer, is_of_the_machine, load

SUFFIX = PACKETS_SUFFIX
TABLE_VERSION = 1
NO_TIME = -(2**63)
"""`dts` of a packet that has none (AV_NOPTS_VALUE)."""

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_COLUMNS = pa.schema(
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
_MAX_TICKS = 2**62


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
    """Codec configuration in the container; empty if there is none."""
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
    """Nine int32; empty if there is none."""
    reorder_frames: int
    """Number of frames that a decoder may hold back."""
    end_pts: int
    """Tick at which the last frame ends."""
    nbytes: int
    """Size of the whole field."""
    crc32c: int
    """CRC-32C of the whole field."""
    whole_because: str
    """Reason why packets cannot be read one by one; "" if they can."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketTable:
    """Arrays with one entry per packet, in decode order."""

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
    """Facts of the stream."""

    def __len__(self) -> int:
        return len(self.pts)


def index_packets(data: Buffer, tried: StreamFacts | None = None) -> bytes:
    """Return the packet table of a whole video file: one demux, two frames decoded. Equal bytes give equal tables.

    tried: facts of a file from the same encoder and muxer; if its decoder settings are equal, no frame is decoded. If
    packets cannot be separated, `whole_because` is set, and the loader reads the whole file.

    Raises: DecodeFailed if `loader.video` cannot read the file; MissingDependency (av).
    """
    table: PacketTable = load("video.make_packet_table:packet_table")(data, tried)
    return packets_bytes(table)


def packets_bytes(table: PacketTable) -> bytes:
    """Return the table as field bytes. Equal tables give equal bytes (with the same pyarrow)."""
    schema = _COLUMNS.with_metadata(_metadata(table.facts))
    batch = pa.record_batch([pa.array(getattr(table, name)) for name in _COLUMNS.names], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_packets(data: Buffer) -> PacketTable:
    """Return a table from a field's verified bytes, each value checked against its range. O(packets).

    Raises: DecodeFailed; FormatTooNew.
    """
    try:
        with pa.ipc.open_stream(
            pa.py_buffer(data), options=pa.ipc.IpcReadOptions(use_threads=False)
        ) as reader:
            schema = reader.schema
            facts = _facts(schema.metadata or {})
            if not schema.equals(_COLUMNS, check_metadata=False):
                raise DecodeFailed(f"packet table: its columns are {schema.names}, not {_COLUMNS.names}")
            batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        if is_of_the_machine(error):
            raise
        raise DecodeFailed(f"packet table: {type(error).__name__}: {error}") from error
    if len(batches) != 1 or any(column.null_count for column in batches[0].columns):
        raise DecodeFailed(f"packet table: {len(batches)} batches or missing values; one batch is needed")
    columns = {
        name: column.to_numpy(zero_copy_only=False)
        for name, column in zip(_COLUMNS.names, batches[0].columns, strict=True)
    }
    table = PacketTable(**columns, facts=facts)
    _check(table)
    return table


def _check(table: PacketTable) -> None:
    facts, end = table.facts, table.pos + table.size
    wrong = {
        "no packets": not len(table),
        "a size below 1": (table.size < 1).any(),
        "a time out of range": (table.pts > _MAX_TICKS).any()
        or (table.pts < -_MAX_TICKS).any()
        or abs(facts.end_pts) > _MAX_TICKS,
        "a place outside of its field": (table.pos < -1).any()
        or (table.pos > facts.nbytes).any()  # its end may exceed int64
        or (end > facts.nbytes).any(),
        "places that do not ascend": not facts.whole_because
        and ((table.pos < 0).any() or (table.pos[1:] < end[:-1]).any()),
        "a time base out of range": facts.time_base <= 0
        or max(facts.time_base.numerator, facts.time_base.denominator) >= 2**31,
        "a frame size out of range": not (
            0 < facts.width_px <= _MAX_SIDE_PX and 0 < facts.height_px <= _MAX_SIDE_PX
        ),
        "a display matrix that is none": len(facts.display_matrix) not in (0, 9),
        "a field size out of range": not 0 < facts.nbytes <= _MAX_NBYTES,
        "a reordering out of range": not 0 <= facts.reorder_frames <= 64,
    }
    faults = [what for what, is_so in wrong.items() if is_so]
    if faults:
        raise DecodeFailed(
            f"packet table: {', '.join(faults)}; make it again with add_group, or leave it out"
        )


def _metadata(facts: StreamFacts) -> dict[bytes, bytes]:
    texts: dict[str, str] = {"penstock.table": "packets", "penstock.schema": str(TABLE_VERSION)}
    for field in fields(facts):
        texts[field.name] = _text(getattr(facts, field.name))
    return {name.encode(): texts[name].encode() for name in sorted(texts)}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _facts(metadata: Mapping[bytes, bytes]) -> StreamFacts:
    texts = {name.decode(): value.decode() for name, value in metadata.items()}
    if texts["penstock.table"] != "packets":
        raise DecodeFailed(f"packet table: this is a table of {texts['penstock.table']!r}")
    if int(texts["penstock.schema"]) > TABLE_VERSION:
        raise FormatTooNew(
            f"packet table of schema {texts['penstock.schema']}; this penstock reads up to {TABLE_VERSION}: upgrade it"
        )
    return StreamFacts(
        **{field.name: _PARSERS[field.type](texts[field.name]) for field in fields(StreamFacts)}
    )


def _fraction(text: str) -> Fraction:
    numerator, _, denominator = text.partition("/")
    if denominator == "0":
        raise ValueError(f"{text!r} is no fraction")
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
