"""Decode the frames of a video's spans in one pass from its start, or by seeking to each.

Seeking is used only if the audit found that it works (`seek_ok`) and that frames are in order. Work on a frame must not
depend on other frames, as deinterlacing does.

Decoding starts at the keyframe before a span. The decoder must return that keyframe intact, then exactly the packets'
frames. Otherwise `CannotSeek` is raised, and the caller decodes in order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..unit import rejected
from .audit import prepare_strict
from .spans import ClipSpan
from .timestamps import TimedFrame, has_display_times, timed_frames

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream


class CannotSeek(Exception):
    """Raised if the frames after a seek differ from the packets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times in a stream, in ascending ticks."""

    shown: Sequence[int]
    """Time of every shown frame."""
    keys: Sequence[int]
    """Time of every keyframe."""


def times_of(container: "InputContainer", stream: "VideoStream") -> Times:
    """Return a stream's times, reading all packets once."""
    shown_at, keys = [], []
    for packet in container.demux(stream):
        if packet.pts is not None and packet.size:
            if packet.is_keyframe:
                keys.append(packet.pts)
            if not packet.is_discard:
                shown_at.append(packet.pts)
    return Times(shown=sorted(shown_at), keys=sorted(keys))


def may_seek(container: "InputContainer", audit: Mapping[str, Any]) -> bool:
    """Return whether the audit allows seeking."""
    in_order = audit.get("n_pts_backward") == 0 and audit.get("n_pts_dup") == 0
    alone = audit.get("interlaced_ratio") == 0 and not audit.get("hdr")
    plain = audit.get("n_discard_packets") == 0 and has_display_times(container)
    return bool(audit.get("seek_ok")) and in_order and alone and plain


def prepare(stream: "VideoStream", audit: Mapping[str, Any]) -> None:
    """Prepare a decoder before its first packet: one thread, and errors for hidden damage if there is no audit."""
    stream.thread_count = 1
    if not audit:
        prepare_strict(stream)


def frames_of(
    container: "InputContainer",
    stream: "VideoStream",
    spans: Sequence[ClipSpan],
    audit: Mapping[str, Any],
    *,
    seeks: bool,
) -> Iterator[TimedFrame]:
    """Return the frames of all spans, and possibly others, from an unread container.

    If `audit` is empty, every frame is decoded. Raises: Unusable; CannotSeek; av.error.FFmpegError.
    """
    if seeks and may_seek(container, audit):
        return frames_sought(container, stream, spans, times_of(container, stream))
    return frames_in_order(container, stream, max(span.end for span in spans) if audit else None)


def frames_in_order(
    container: "InputContainer", stream: "VideoStream", stop: int | None = None
) -> Iterator[TimedFrame]:
    """Yield every frame, or every frame before `stop`. Raises: Unusable for a damaged frame."""
    for number, timed in enumerate(timed_frames(container, container.decode(stream))):
        if timed.frame.is_corrupt:
            raise rejected("decode", "corrupt", f"frame {number} is damaged")
        if stop is not None and timed.pts >= stop:
            return
        yield timed


def frames_sought(
    container: "InputContainer", stream: "VideoStream", spans: Sequence[ClipSpan], times: Times
) -> Iterator[TimedFrame]:
    """Yield the frames of all spans in order, without repeats. Raises: CannotSeek; av.error.FFmpegError."""
    frames: Iterator[TimedFrame] = iter(())
    position: int | None = None  # pts of the last decoded frame
    for start, end in stretches(spans):
        expected = times.shown[bisect_left(times.shown, start) : bisect_left(times.shown, end)]
        if not expected:
            continue
        n_keys = bisect_right(times.keys, expected[0])
        if not n_keys:
            raise CannotSeek(f"no keyframe before {expected[0]}")
        key = times.keys[n_keys - 1]
        if position is None or position < key:
            container.seek(key, stream=stream, backward=True)
            frames = _from_key(timed_frames(container, container.decode(stream)), key)
        for pts in expected:
            timed = next((frame for frame in frames if frame.pts >= pts or frame.frame.is_corrupt), None)
            if timed is None or timed.frame.is_corrupt or timed.pts != pts:
                raise CannotSeek(f"no intact frame at {pts}")
            position = pts
            yield timed


def stretches(spans: Sequence[ClipSpan]) -> list[tuple[int, int]]:
    """Return the union of the spans as [start, end), in order."""
    union: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda item: item.start):
        if union and span.start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], span.end))
        else:
            union.append((span.start, span.end))
    return union


def _from_key(frames: Iterator[TimedFrame], key: int) -> Iterator[TimedFrame]:
    for timed in frames:
        if timed.pts < key:
            continue
        if timed.pts > key or not timed.frame.key_frame:
            raise CannotSeek(f"no keyframe came back at {key}")
        yield timed
        break
    yield from frames
