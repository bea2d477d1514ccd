"""Runs: an episode's packets left in their file, described by a byte range and a packet table."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from ...errors import DecodeFailed, InvalidStore
from ..container_parts import box
from ..fields import Buffer
from .episode_packets import PacketSpan, episode_mp4, last_frame_end, open_video, stream_kind
from .packet_table import PacketTable, packets_bytes, read_packets

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

CONFIGURATION = {"h264": b"avcC", "hevc": b"hvcC", "libdav1d": b"av1C"}
"""Decoder -> mp4 box with its configuration."""
_UPRIGHT = 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000
"""Display matrix of an unturned video: fixed point with 16, in the last column 30 bits after the point."""
_NO_COLOUR = 0, 2, 2, 2
"""Range, primaries, transfer and matrix of a stream that states none (FFmpeg's AVCOL_*_UNSPECIFIED)."""


class PacketRun(NamedTuple):
    offset: int
    """First byte in the file."""
    nbytes: int
    """Number of bytes."""
    crc32c: int
    """CRC-32C of the bytes."""
    packets: bytes
    """Packet table, with offsets relative to the run's first byte."""


def packet_run(
    video: tuple["InputContainer", "VideoStream"], span: PacketSpan, file: io.RawIOBase | BinaryIO, what: str
) -> PacketRun:
    """Return an episode's packets as a run in their open file. what: name of the video for errors. Decodes two frames.

    Raises: InvalidStore if the packets are not contiguous in decode order.
    """
    from .make_packet_table import RunPackets, table_of_run

    sizes = np.array([len(body) for body in span.bodies], np.int64)
    places = np.array(span.places, np.int64)
    apart = np.flatnonzero(np.diff(places) != sizes[:-1])
    if len(apart) or places[0] < 0:
        number = 0
        if len(apart):
            number = int(apart[0]) + 1
        reason = f"packet {number} of the episode does not come after the one before it"
        raise _refusal(what, reason, f"place of packet {number}")
    file.seek(int(places[-1]))  # the last packet was just read; it matches if all do
    if file.read(int(sizes[-1])) != span.bodies[-1]:
        raise _refusal(what, "its packets do not lie in the file as a decoder takes them", "packets")
    packets = RunPackets(bodies=span.bodies, pts=span.pts, dts=span.decoded, key=span.key, end=span.end)
    table = table_of_run(video[1].codec_context, packets, span.time_base)
    facts = table.facts
    because = facts.whole_because
    if not because and facts.codec not in CONFIGURATION:
        because = f"codec {facts.codec}"
    if because:
        raise _refusal(what, because, "packets", facts.codec)
    return PacketRun(int(places[0]), facts.nbytes, facts.crc32c, packets_bytes(table))


def _refusal(what: str, why: str, part: str, codec: str | None = None) -> InvalidStore:
    return InvalidStore(
        f"{what}: {why}, so it cannot be read where it lies: penstock import lerobot copies the packets, or leave the "
        "camera out (--without)",
        what=part,
        where=what,
        given=codec,
        accepted=sorted(CONFIGURATION) if codec else None,
    )


@contextmanager
def open_run(
    data: Buffer, packets: Buffer, what: str
) -> Iterator[tuple[tuple["InputContainer", "VideoStream"], PacketSpan]]:
    """Yield ((open file, stream), the run's packets). The file holds only the run's first packet.

    data: the run's bytes. packets: its packet table. what: name of the run for errors. Raises: DecodeFailed; Corrupt.
    """
    table = read_packets(packets)
    whole = memoryview(data)
    facts = table.facts
    if len(whole) != facts.nbytes or facts.codec not in CONFIGURATION:
        codecs = ", ".join(sorted(CONFIGURATION))
        raise DecodeFailed(
            f"{what}: {len(whole)} bytes of {facts.codec}; its packet table is of {facts.nbytes} bytes, "
            f"and runs are of {codecs}",
            what="run",
            where=what,
            given=[len(whole), facts.codec],
            accepted=[facts.nbytes, codecs],
        )
    pts = table.pts.tolist()
    places = table.pos.tolist()
    bodies = []
    for begin, size in zip(places, table.size.tolist(), strict=True):
        bodies.append(bytes(whole[begin : begin + size]))
    # FFmpeg opens no bare packets: a file of the first one gives the stream's settings.
    first = io.BytesIO(_first_packet(table, bodies[0]))
    with open_video(first, what) as video:
        span = PacketSpan(
            bodies=bodies,
            pts=pts,
            key=table.key.tolist(),
            end=last_frame_end(pts, facts.end_pts),
            places=places,
            time_base=facts.time_base,
            kind=stream_kind(video[1]),
        )
        yield video, span


def mp4_of_run(data: Buffer, packets: Buffer, what: str) -> bytes:
    """Return an mp4 file for a run, equal to an imported one. Raises: DecodeFailed; Corrupt; StoreError."""
    with open_run(data, packets, what) as (video, span):
        return episode_mp4(video, span, what)


def _first_packet(table: PacketTable, body: bytes) -> bytes:
    """Return an mp4 file with one packet (boxes: ISO/IEC 14496-12)."""
    facts = table.facts
    ticks = facts.time_base.denominator
    kind = box(b"ftyp", b"isom", 512, b"isomiso2")

    def moov(at: int) -> bytes:
        """Return the header of a file whose packet begins at byte `at`."""
        samples = box(
            b"stbl",
            _full(b"stsd", 1, _entry(table)),
            _full(b"stts", 1, 1, 1),
            _full(b"stsc", 1, 1, 1, 1),
            _full(b"stsz", len(body), 1),
            _full(b"stco", 1, at),
        )
        same_file = box(b"url ", 1)
        references = box(b"dinf", _full(b"dref", 1, same_file))
        info = box(b"minf", box(b"vmhd", bytes(12)), references, samples)
        handler = _full(b"hdlr", 0, b"vide", bytes(13))
        clock = _full(b"mdhd", 0, 0, ticks, 1, 0x55C40000)  # language "und"
        media = box(b"mdia", clock, handler, info)
        matrix = struct.pack(">9i", *(facts.display_matrix or _UPRIGHT))
        # Fixed point with 16 bits before the point.
        width = facts.width_px % 2**16 << 16
        height = facts.height_px % 2**16 << 16
        track = _full(b"tkhd", 0, 0, 1, 0, 1, bytes(16), matrix, width, height)
        upright = struct.pack(">9i", *_UPRIGHT)
        header = _full(b"mvhd", 0, 0, ticks, 1, 0x10000, bytes(12), upright, bytes(24), 2)
        return box(b"moov", header, box(b"trak", track, media))

    # The header's length does not depend on where the packet begins.
    start = len(kind) + len(moov(0)) + 8
    return kind + moov(start) + box(b"mdat", body)


def _entry(table: PacketTable) -> bytes:
    """Return the sample entry, from which a decoder gets the codec's settings."""
    facts = table.facts
    picture = struct.pack(
        ">6xH16xHHIIIH32xHh", 1, facts.width_px, facts.height_px, 0x480000, 0x480000, 0, 1, 24, -1
    )
    more = [box(CONFIGURATION[facts.codec], facts.extradata)]
    colour = facts.color_range, facts.color_primaries, facts.color_trc, facts.colorspace
    if colour != _NO_COLOUR:
        full = 0
        if facts.color_range == 2:  # FFmpeg's number of the full range
            full = 0x80
        more.append(box(b"colr", b"nclx", struct.pack(">3HB", *colour[1:], full)))
    if facts.sar > 0:
        more.append(box(b"pasp", facts.sar.numerator, facts.sar.denominator))
    return box(facts.codec_tag.encode("latin-1"), picture, *more)


def _full(kind: bytes, *content: bytes | int) -> bytes:
    """Return a "full" box: its content begins with a version and flags, here all 0."""
    return box(kind, 0, *content)
