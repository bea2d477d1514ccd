"""Make a packet table: every packet's offset and checksum, and whether single packets can be decoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from google_crc32c import extend
from google_crc32c import value as crc32c

from ...errors import DecodeFailed
from ..fields import Buffer, is_machine_fault
from .demux import Codec, VideoPacket, prepare, whole_file
from .display_matrix import frame_matrix
from .packet_decode import copy_packet, open_codec
from .packet_table import NO_TIME, PacketTable, StreamFacts
from .timeline import Timeline

# Codecs verified, packet by packet, against decodes of whole files; other codecs are read whole.
BARE_CODECS = frozenset({"h264", "hevc", "libdav1d", "vp9", "vp8", "mpeg4", "mjpeg"})

# Packet side data that does not affect pixels (captions, reference times, rates).
HARMLESS = frozenset({"a53_cc", "cpb_properties", "prft", "s12m_timecode", "mpegts_stream_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPackets:
    """Contiguous packets, in decode order."""

    bodies: Sequence[bytes]
    pts: Sequence[int]
    """Tick at which each packet's frame is shown."""
    dts: Sequence[int]
    """Tick at which each packet is decoded."""
    key: Sequence[bool]
    """True for keyframes."""
    end: int
    """Tick at which the last frame ends."""


def packet_table(data: Buffer, tried: StreamFacts | None = None) -> PacketTable:
    """Return the table that `packet_table.index_packets` stores. Raises: DecodeFailed."""
    whole = memoryview(data)
    with whole_file(data) as file:
        if not file.packets:
            raise DecodeFailed(f"video: the video stream has no packets ({len(whole)} bytes)")
        bodies = [bytes(packet) for packet in file.packets]
        table = PacketTable(
            pts=file.pts,
            dts=np.array([NO_TIME if p.dts is None else p.dts for p in file.packets], np.int64),
            pos=np.array([-1 if p.pos is None else p.pos for p in file.packets], np.int64),
            size=np.array([len(body) for body in bodies], np.int32),
            key=file.key,
            discard=file.discard,
            crc32c=np.array([crc32c(body) for body in bodies], np.uint32),
            facts=_facts(
                file.codec(),
                file.timeline,
                file.reorder_frames,
                len(whole),
                int(crc32c(np.frombuffer(whole, np.uint8))),
                _obstacle(file.packets, bodies, whole, file.codec().codec.name),
            ),
        )
        return _check_table(table, file.codec, bodies.__getitem__, tried)


def table_of_run(codec: Codec, packets: RunPackets, time_base: Fraction) -> PacketTable:
    """Return the table of contiguous packets, the first at byte 0. Raises: DecodeFailed.

    codec: the container's unused decoder. `whole_because` is set if the packets need the container.
    """
    prepare(codec)
    bodies = packets.bodies
    size = np.array([len(body) for body in packets.bodies], np.int32)
    n = len(bodies)
    pts = np.array(packets.pts, np.int64)
    key = np.array(packets.key, np.bool_)
    timeline = Timeline.of(pts, key, np.zeros(n, np.bool_), time_base, packets.end)
    name = codec.codec.name
    table = PacketTable(
        pts=pts,
        dts=np.array(packets.dts, np.int64),
        pos=np.cumsum(size, dtype=np.int64) - size,
        size=size,
        key=key,
        discard=np.zeros(n, np.bool_),
        crc32c=np.array([crc32c(body) for body in bodies], np.uint32),
        facts=_facts(
            codec,
            timeline,
            codec.reorder_depth,
            int(size.sum()),
            reduce(extend, bodies, 0),
            "" if name in BARE_CODECS else f"codec {name} was not tried",
        ),
    )
    return _check_table(table, lambda: codec, bodies.__getitem__, None)


def _same_decoder(facts: StreamFacts, tried: StreamFacts) -> bool:
    """Return whether a decoder is set up alike for both streams: all facts agree, except a single file's."""
    own = {name: getattr(facts, name) for name in ("end_pts", "nbytes", "crc32c", "display_matrix")}
    return facts == replace(tried, **own)


def _obstacle(packets: list[VideoPacket], bodies: list[bytes], whole: memoryview, codec: str) -> str:
    """Return why single packets cannot be read from a file's bytes `whole`, or ""."""
    if codec not in BARE_CODECS:
        return f"codec {codec} was not tried"
    end = 0
    for number, (packet, body) in enumerate(zip(packets, bodies, strict=True)):
        pos = packet.pos
        if pos is None or pos < end or bytes(whole[pos : pos + len(body)]) != body:
            return f"packet {number} does not lie in the file as the decoder gets it"
        end = pos + len(body)
        side_data = {side.data_type for side in packet.iter_sidedata()} - HARMLESS
        if side_data:
            return f"packet {number} comes with {', '.join(sorted(side_data))}"
    return ""


def _facts(
    codec: Codec, timeline: Timeline, reorder_frames: int, nbytes: int, crc: int, obstacle: str
) -> StreamFacts:
    return StreamFacts(
        codec=codec.codec.name,
        codec_tag=_tag(codec),
        extradata=codec.extradata or b"",
        time_base=timeline.time_base,
        width_px=codec.width,
        height_px=codec.height,
        pix_fmt=codec.pix_fmt or "",
        color_range=int(codec.color_range),
        color_primaries=int(codec.color_primaries),
        color_trc=int(codec.color_trc),
        colorspace=int(codec.colorspace),
        sar=codec.sample_aspect_ratio or Fraction(0),
        display_matrix=(),
        reorder_frames=reorder_frames,
        end_pts=timeline.end_pts,
        nbytes=nbytes,
        crc32c=crc,
        whole_because=obstacle,
    )


def _tag(codec: Any) -> str:
    """Return the container's four letters for the codec, or "" if they are no text."""
    try:
        tag: str = codec.codec_tag
    except UnicodeDecodeError:
        return ""
    if "\0" in tag:
        return ""
    return tag


def _check_table(
    table: PacketTable,
    codec: Callable[[], Codec],
    body_of: Callable[[int], bytes],
    tried: StreamFacts | None,
) -> PacketTable:
    if table.facts.whole_because:
        return table
    if not table.key.any():
        return replace(table, facts=replace(table.facts, whole_because="no packet is marked as a keyframe"))
    if tried is not None and _same_decoder(table.facts, tried):
        return replace(table, facts=replace(table.facts, display_matrix=tried.display_matrix))
    body = body_of(int(np.flatnonzero(table.key)[0]))
    theirs = _first_picture(codec(), body)
    ours = _first_picture(open_codec(table.facts), body)  # the codec's name is specific to this FFmpeg
    matrix = None
    if theirs is not None:
        matrix = frame_matrix(theirs)
    because = ""
    if theirs is None or ours is None:
        because = "its first key packet gives no picture alone"
    elif frame_matrix(ours) is not None:
        because = "its bitstream turns the picture"
    elif not _alike(theirs, ours):
        because = "a bare packet gives another picture"
    facts = replace(table.facts, display_matrix=matrix or (), whole_because=because)
    return replace(table, facts=facts)


def _first_picture(codec: Codec, body: bytes) -> av.VideoFrame | None:
    try:
        frames = [*codec.decode(copy_packet(body, 0, True)), *codec.decode(None)]
    except FFmpegError as error:
        if is_machine_fault(error):
            raise
        return None  # the loader's own read reports the error, frame by frame
    if frames:
        return frames[0]
    return None


def _alike(a: av.VideoFrame, b: av.VideoFrame) -> bool:
    same = all(
        getattr(a, name) == getattr(b, name) for name in ("width", "height", "colorspace", "color_range")
    )
    if not same or a.format.name != b.format.name:
        return False
    # Resized frames reveal the assumed position of colour samples.
    sizes: tuple[dict[str, Any], ...] = ({}, {"width": 64, "height": 64})
    return all(np.array_equal(_rgb(a, **size), _rgb(b, **size)) for size in sizes)


def _rgb(frame: av.VideoFrame, **size: Any) -> np.ndarray:
    depth = max(component.bits for component in frame.format.components)
    return frame.to_ndarray(format="rgb24" if depth <= 8 else "rgb48le", threads=1, **size)
