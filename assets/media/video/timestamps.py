"""Assign display times to decoded frames, measure timestamps, and check that seeking works."""

import heapq
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..container import MAX_GAP_S, PacketIndex, demux_packets, first_video, open_container
from ..unit import rejected

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


# Containers without display times: FFmpeg reports their packet times in decode order.
_WITHOUT_PTS = ("avi",)

_REORDER_FRAMES = 16  # H.264 and HEVC decode a frame at most so many frames early


def has_display_times(container: "InputContainer") -> bool:
    """Return whether the container stores display times."""
    return container.format.name not in _WITHOUT_PTS


class TimedFrame(NamedTuple):
    """Decoded frame with its times."""

    frame: "VideoFrame"
    """Decoded frame."""
    tagged: int
    """Frame's own timestamp, in ticks."""
    pts: int
    """Display time, in ticks."""


class FrameClock:
    """Assigns display times to frames: their own, or sorted ones if the container has none."""

    def __init__(self, container: "InputContainer") -> None:
        self._sorts = not has_display_times(container)
        self._frames: deque[tuple[VideoFrame, int]] = deque()
        self._times: list[int] = []
        self._n = 0

    def take(self, frame: "VideoFrame") -> Iterator[TimedFrame]:
        """Yield the frames that are ready. Raises: Unusable for a frame without a timestamp."""
        if frame.pts is None:
            pts = frame.dts
        else:
            pts = frame.pts
        if pts is None:
            raise rejected("decode", "no_timestamps", f"frame {self._n} has neither pts nor dts")
        self._n += 1
        if not self._sorts:
            yield TimedFrame(frame, pts, pts)
            return
        self._frames.append((frame, pts))
        heapq.heappush(self._times, pts)
        if len(self._frames) > _REORDER_FRAMES:
            yield self._next()

    def rest(self) -> Iterator[TimedFrame]:
        while self._frames:
            yield self._next()

    def _next(self) -> TimedFrame:
        frame, tagged = self._frames.popleft()
        return TimedFrame(frame, tagged, heapq.heappop(self._times))


def time_frames(container: "InputContainer", frames: Iterator["VideoFrame"]) -> Iterator[TimedFrame]:
    """Yield all frames with their times. Raises: Unusable."""
    clock = FrameClock(container)
    for frame in frames:
        yield from clock.take(frame)
    yield from clock.rest()


MAX_MISPLACED = 0.5
"""Largest share of frames not later than all before."""


class Timing:
    """Statistics of timestamps: backward and equal ones as tagged, gaps as shown."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last = self.n_backward = self.n_dup = self.last_duration = 0
        self.low: int | None = None
        self.high = 0
        self._n = 0
        self._newest: int | None = None

    def add(self, timed: TimedFrame) -> int:
        """Add a frame; return the gap before it in ticks, 0 if it is not later."""
        self._n += 1
        newest = self._newest
        if newest is not None:
            self.n_dup += timed.tagged == newest
            self.n_backward += timed.tagged < newest
        if newest is None:
            self._newest = timed.tagged
        else:
            self._newest = max(newest, timed.tagged)
        gap = 0
        if self.first is None:
            self.first = self.last = timed.pts
        elif timed.pts > self.last:
            gap = timed.pts - self.last
            if self.low is None:
                self.low = gap
            else:
                self.low = min(self.low, gap)
            self.high = max(self.high, gap)
            self.last = timed.pts
        if timed.pts == self.last:
            self.last_duration = timed.frame.duration or 0
        return gap

    def facts(self, time_base: Fraction) -> Mapping[str, Any]:
        """Return the media columns. The rate varies if gaps differ by over a tick and 2 ms. Raises: Unusable."""
        assert self.first is not None  # there was a frame
        low = self.low or 0
        longest_s = max(self.high, self.last_duration) * time_base
        if longest_s > MAX_GAP_S:
            raise rejected(
                "decode",
                "timestamps",
                f"one frame is shown for {float(longest_s):.0f} s",
                given=float(longest_s),
                accepted=MAX_GAP_S,
            )
        misplaced = self.n_backward + self.n_dup
        if misplaced > MAX_MISPLACED * self._n:
            raise rejected(
                "decode",
                "timestamps",
                f"{misplaced} of {self._n} frames lie at or before the time of another",
                given=misplaced,
                accepted=MAX_MISPLACED * self._n,
            )
        slack = max(1, round(Fraction(2, 1000) / time_base))
        end = self.last + max(1, self.last_duration or low)
        return {
            "start_pts": self.first,
            "end_pts": end,
            "duration_s": float((end - self.first) * time_base),
            "min_pts_gap": self.low,
            "max_pts_gap": self.high if self.low is not None else None,
            "is_vfr": self.high - low > slack,
            "n_pts_backward": self.n_backward,
            "n_pts_dup": self.n_dup,
        }


SKIPPING = ("h264",)
"""Decoders that can start to skip frames at any packet; libdav1d and others keep their first setting."""


def frame_crc(frame: "VideoFrame") -> int:
    """Return the CRC-32 of all planes' visible samples."""
    crc = 0
    for plane in frame.planes:
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
        if plane.width <= 0:
            width = plane.line_size
        else:
            width = _row_bytes(frame, plane.width)
        crc = zlib.crc32(np.ascontiguousarray(rows[:, :width]).tobytes(), crc)
    return crc


def _row_bytes(frame: "VideoFrame", width: int) -> int:
    packed = len(frame.planes) == 1 and len(frame.format.components) > 1
    if packed:
        bits = frame.format.bits_per_pixel
    else:
        bits = 8 * ((frame.format.components[0].bits + 7) // 8)
    return (width * bits + 7) // 8


def seek_ok(path: str, hashes: Mapping[int, int], index: PacketIndex) -> bool:
    """Return whether seeking finds each of these frames, bit for bit.

    hashes: pts -> CRC-32 of the frame. Raises: Unusable.
    """
    import av

    with open_container(path) as container:
        stream = first_video(container)
        assert stream is not None  # the same file had one before
        stream.thread_count = 1
        try:
            return all(_is_found(container, stream, pts, crc, index) for pts, crc in hashes.items())
        except av.error.FFmpegError:  # a container that cannot seek is decoded in order
            return False


def _is_found(
    container: "InputContainer",
    stream: "VideoStream",
    pts: int,
    crc: int,
    index: PacketIndex,
) -> bool:
    """Return whether a seek finds the frame: first skipping others, then from increasingly far back."""
    second = max(1, round(1 / Fraction(*index.time_base)))  # ticks
    can_skip = stream.codec_context.name in SKIPPING
    before_all = pts - index.start_pts + second
    # Bounds each try. From the keyframe before it, the frame comes within one GOP; the rest is a margin.
    most_frames = 2 * index.max_gop_frames + 64
    for back in (0, second, 4 * second, before_all):
        container.seek(pts - back, stream=stream, backward=True)
        skips = can_skip and not back
        for n_frames, frame in enumerate(_decode_onwards(container, stream, pts, skips=skips)):
            if frame.pts is None:
                at = frame.dts
            else:
                at = frame.pts
            if at == pts:
                if frame_crc(frame) == crc:
                    return True
                break  # the frame's references were missing
            is_passed = at is None or at > pts
            if is_passed or n_frames > most_frames:
                break
    return False


def _decode_onwards(
    container: "InputContainer",
    stream: "VideoStream",
    pts: int,
    *,
    skips: bool,
) -> "Iterator[VideoFrame]":
    """Decode from the current position. skips: skip unreferenced frames before `pts` (about half)."""
    for packet in demux_packets(container, stream):
        if packet.pts is None:
            at = packet.dts
        else:
            at = packet.pts
        before = at is not None and at < pts
        if skips and before:
            stream.codec_context.skip_frame = "NONREF"
        else:
            stream.codec_context.skip_frame = "DEFAULT"
        yield from packet.decode()
