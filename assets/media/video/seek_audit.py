"""Check that seeking to a pts returns bit for bit the frame that a decode from the start returns."""

import zlib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ..container import PacketIndex, first_video, opened, packets_of

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

SKIPPING = ("h264",)
"""Decoders that can start to skip frames at any packet; others, such as libdav1d, keep their first setting."""


def frame_crc(frame: "VideoFrame") -> int:
    """Return the CRC-32 of all planes' visible samples."""
    crc = 0
    for plane in frame.planes:
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
        width = plane.line_size if plane.width <= 0 else _row_bytes(frame, plane.width)
        crc = zlib.crc32(np.ascontiguousarray(rows[:, :width]).tobytes(), crc)
    return crc


def _row_bytes(frame: "VideoFrame", width: int) -> int:
    packed = len(frame.planes) == 1 and len(frame.format.components) > 1
    bits = frame.format.bits_per_pixel if packed else 8 * ((frame.format.components[0].bits + 7) // 8)
    return (width * bits + 7) // 8


def seek_ok(path: str, hashes: Mapping[int, int], index: PacketIndex) -> bool:
    """Return whether seeking finds each of these frames, bit for bit.

    hashes: pts -> CRC-32 of the frame. Raises: Unusable.
    """
    import av

    with opened(path) as container:
        stream = first_video(container)
        assert stream is not None  # the same file had one before
        stream.thread_count = 1
        try:
            return all(_is_found(container, stream, pts, crc, index) for pts, crc in hashes.items())
        except av.error.FFmpegError:  # a container that cannot seek is decoded in order
            return False


def _is_found(
    container: "InputContainer", stream: "VideoStream", pts: int, crc: int, index: PacketIndex
) -> bool:
    """Return whether a seek finds the frame: first skipping others, then from increasingly far back."""
    second = max(1, round(1 / Fraction(*index.time_base)))
    can_skip = stream.codec_context.name in SKIPPING
    for back in (0, second, 4 * second, pts - index.start_pts + second):
        container.seek(pts - back, stream=stream, backward=True)
        passed = False
        for n_frames, frame in enumerate(_towards(container, stream, pts, skips=can_skip and not back)):
            at = frame.dts if frame.pts is None else frame.pts
            if at == pts:
                if frame_crc(frame) == crc:
                    return True
                break  # the frame's references were missing
            passed = at is None or at > pts
            if passed or n_frames > 2 * index.max_gop_frames + 64:
                break
    return False


def _towards(
    container: "InputContainer", stream: "VideoStream", pts: int, *, skips: bool
) -> "Iterator[VideoFrame]":
    """Decode from the current position. skips: skip unreferenced frames before `pts` (about half)."""
    for packet in packets_of(container, stream):
        at = packet.dts if packet.pts is None else packet.pts
        before = at is not None and at < pts
        stream.codec_context.skip_frame = "NONREF" if skips and before else "DEFAULT"
        yield from packet.decode()
