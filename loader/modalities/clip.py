"""Chosen frames of an mp4, exactly: found by timestamp, decoded from the right keyframe, and checked.

The file is demuxed once, without decoding: its packets say which frames are displayed, when, and which are
keyframes. The wanted frames' packets then go to the decoder straight from the keyframe that their pictures
build on. Nothing is computed from a frame rate, no container seek is trusted, and each frame that comes back
is known by its own timestamp: the result is bit for bit that of a decode from the start.

- Frames that an edit list hides are not counted and not shown; two frames at one instant are refused.
- One thread per decoder: parallelism is the loader's.
"""

import io
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias, cast

import av
import numpy as np
from av.error import FFmpegError

from ..errors import DecodeFailed
from .fields import Buffer
from .frames import ClipBuilder
from .mp4 import check_complete

# A frame above this is refused by the decoder itself: twice 8K.
MAX_FRAME_PX = 2**26

VideoPacket: TypeAlias = "av.Packet[av.VideoStream]"


class Run(NamedTuple):
    """Packets [first, stop) in decode order, decoded together; wanted: pts -> place in the clip."""

    first: int
    stop: int
    wanted: dict[int, int]


def read_clip(
    data: Buffer, pick: Callable[[int], Sequence[int]], size: tuple[int, int] | None = None
) -> np.ndarray:
    """uint8 [T, H, W, 3] RGB, upright: the frames that `pick(n_frames)` names, ascending, in display order.

    size: (height, width) in px to resize to (bilinear over the whole source area), or None.

    Raises: DecodeFailed (not an mp4, no video, damaged, truncated, no timestamps, too large), and what
    `pick` raises.
    """
    try:
        # The format is given so that no other demuxer is tried: some of them open files and URLs.
        with av.open(io.BytesIO(data), mode="r", format="mp4") as container:
            if not container.streams.video:
                raise DecodeFailed(f"mp4: no video stream ({len(data)} bytes)")
            stream = container.streams.video[0]
            codec = cast("av.VideoCodecContext | None", stream.codec_context)
            if codec is None:
                raise DecodeFailed("mp4: the video stream's codec is unknown or has no decoder here")
            codec.thread_count = 1
            codec.options = {"max_pixels": str(MAX_FRAME_PX)}
            packets = demuxed(container, stream, len(data))
            shown = displayed(packets)
            numbers = pick(len(shown))
            clip = ClipBuilder(len(numbers), size)
            for run in _runs(packets, [shown[number] for number in numbers]):
                _decode(codec, packets, run, clip)
            return clip.upright()
    except DecodeFailed:
        raise
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        raise DecodeFailed(f"mp4: {type(error).__name__}: {error} ({len(data)} bytes)") from error


def demuxed(container: av.container.InputContainer, stream: av.VideoStream, nbytes: int) -> list[VideoPacket]:
    """Every packet of the stream of a file of `nbytes` bytes, in decode order.

    Raises: DecodeFailed (a truncated file; a packet that is cut or has no timestamp).
    """
    packets = [packet for packet in container.demux(stream) if packet.size]
    check_complete(stream, nbytes)
    for number, packet in enumerate(packets):
        if packet.pts is None or packet.is_corrupt:
            raise DecodeFailed(
                f"mp4: video packet {number} {'has no timestamp' if packet.pts is None else 'is cut short'}"
            )
    return packets


def displayed(packets: list[VideoPacket]) -> list[int]:
    """Places in `packets` of the frames that are shown, in display order.

    Raises: DecodeFailed (two at one instant: their order cannot be known from their timestamps).
    """
    shown = sorted((packet.pts or 0, i) for i, packet in enumerate(packets) if not packet.is_discard)
    for (pts, i), (following, j) in pairwise(shown):
        if pts == following:
            raise DecodeFailed(f"mp4: video packets {i} and {j} have the same timestamp {pts}")
    return [i for _, i in shown]


def _runs(packets: list[VideoPacket], wanted: list[int]) -> list[Run]:
    """What to decode for the wanted packets: one run per keyframe needed, neighbours joined."""
    runs: list[Run] = []
    for place, i in enumerate(wanted):
        key, pts = _keyframe(packets, i), packets[i].pts or 0
        if runs and runs[-1].first <= key <= runs[-1].stop:
            last = runs.pop()
            runs.append(Run(last.first, max(last.stop, i + 1), {**last.wanted, pts: place}))
        else:
            runs.append(Run(key, i + 1, {pts: place}))
    return runs


def _keyframe(packets: list[VideoPacket], i: int) -> int:
    """The last keyframe before or at packet `i` in decode order that is not displayed after it.

    A frame displayed before the keyframe that precedes it in the file (open GOP) builds on the one before.
    """
    pts = packets[i].pts or 0
    while i > 0 and not (packets[i].is_keyframe and (packets[i].pts or 0) <= pts):
        i -= 1
    return i


def _decode(codec: av.VideoCodecContext, packets: list[VideoPacket], run: Run, clip: ClipBuilder) -> None:
    """Decode a run into the clip; from further and further back while frames are missing or damaged.

    The mark "keyframe" is the container's word; some files have it on frames that do build on others.

    Raises: DecodeFailed.
    """
    back = 1
    while True:
        trouble = _attempt(codec, packets, run, clip)
        if trouble is None:
            return
        if run.first == 0:
            raise DecodeFailed(f"mp4: {trouble} (decoded from the first packet to {run.stop - 1})")
        run = run._replace(first=_keyframe(packets, max(0, run.first - back)))
        back *= 2


def _attempt(
    codec: av.VideoCodecContext, packets: list[VideoPacket], run: Run, clip: ClipBuilder
) -> str | None:
    """None when each wanted frame came back sound, else what was wrong."""
    codec.flush_buffers()
    missing = set(run.wanted)
    start_pts = packets[run.first].pts or 0
    entered = run.first == 0
    try:
        for packet in [*packets[run.first : run.stop], None]:
            for frame in codec.decode(packet):
                pts = frame.pts
                if pts is None or (pts < start_pts and run.first > 0):
                    continue  # displayed before the keyframe: not wanted, and may lack what it builds on
                if not entered and not frame.key_frame:
                    return f"packet {run.first} is marked as a keyframe and is none"
                entered = True
                if frame.is_corrupt:
                    return f"the frame at timestamp {pts} is damaged"
                if pts in missing:
                    clip.put(run.wanted[pts], frame)
                    missing.discard(pts)
    except FFmpegError as error:
        return f"{type(error).__name__}: {error}"
    return f"no frame came back for timestamp {min(missing)}" if missing else None
