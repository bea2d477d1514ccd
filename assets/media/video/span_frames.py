"""The decoded frames of some stretches of a video: in one pass from its start, or by seeking to each.

Seeking saves decoding frames that nobody wants, and is trusted only where all of these hold:

- The audit has seen that this container seeks (`seek_ok`).
- Frames come in order.
- The picture made of a frame depends on no other. Deinterlacing does, and so does the curve of an HDR video, which its
  first frame decides.

Then a stretch is decoded from the last keyframe before it. It must come back as a keyframe at its own time, sound, and
be followed by exactly the frames that the packets announce. Frames decoded before that keyframe are thrown away. By the
rules of the codecs such frames are those of a decode from the start. Anything else is `CannotSeek`, and the caller
decodes in order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..unit import rejected
from .audit import strictly
from .spans import Span
from .timestamps import Shown, has_display_times, shown

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream


class CannotSeek(Exception):
    """Frames after a seek that are not those that the packets announce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of one stream, in ascending ticks."""

    shown: Sequence[int]
    """Ticks of every frame that is shown."""
    keys: Sequence[int]
    """Ticks of every keyframe."""


def times_of(container: "InputContainer", stream: "VideoStream") -> Times:
    """Return the times of a stream, by one demux."""
    shown_at, keys = [], []
    for packet in container.demux(stream):
        if packet.pts is not None and packet.size:
            if packet.is_keyframe:
                keys.append(packet.pts)
            if not packet.is_discard:
                shown_at.append(packet.pts)
    return Times(shown=sorted(shown_at), keys=sorted(keys))


def may_seek(container: "InputContainer", audit: Mapping[str, Any]) -> bool:
    """Return whether the audit's findings allow seeking."""
    in_order = audit.get("n_pts_backward") == 0 and audit.get("n_pts_dup") == 0
    alone = audit.get("interlaced_ratio") == 0 and not audit.get("hdr")
    plain = audit.get("n_discard_packets") == 0 and has_display_times(container)
    return bool(audit.get("seek_ok")) and in_order and alone and plain


def prepare(stream: "VideoStream", audit: Mapping[str, Any]) -> None:
    """Prepare a decoder before the first packet: one thread.

    Where no audit has decoded the stream before, damage that decoders hide is an error.
    """
    stream.thread_count = 1
    if not audit:
        strictly(stream)


def frames_of(
    container: "InputContainer",
    stream: "VideoStream",
    spans: Sequence[Span],
    audit: Mapping[str, Any],
    *,
    seeks: bool,
) -> Iterator[Shown]:
    """Return the frames of all spans, and maybe others. seeks: to seek where the audit's findings allow it.

    Without an audit every frame is decoded. The container has not been read from. Raises: Unusable; CannotSeek;
    av.error.FFmpegError.
    """
    if seeks and may_seek(container, audit):
        return frames_sought(container, stream, spans, times_of(container, stream))
    return frames_in_order(container, stream, max(span.end for span in spans) if audit else None)


def frames_in_order(
    container: "InputContainer", stream: "VideoStream", stop: int | None = None
) -> Iterator[Shown]:
    """Yield every frame from the first on, or those shown before `stop`. Raises: Unusable for a damaged one."""
    for number, one in enumerate(shown(container, container.decode(stream))):
        if one.frame.is_corrupt:
            raise rejected("decode", "corrupt", f"frame {number} is damaged")
        if stop is not None and one.pts >= stop:
            return
        yield one


def frames_sought(
    container: "InputContainer", stream: "VideoStream", spans: Sequence[Span], times: Times
) -> Iterator[Shown]:
    """Yield the frames of all spans, each once, in order. Raises: CannotSeek; av.error.FFmpegError."""
    frames: Iterator[Shown] = iter(())
    position: int | None = None  # of the last frame that was decoded
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
            frames = _from_key(shown(container, container.decode(stream)), key)
        for pts in expected:
            one = next((frame for frame in frames if frame.pts >= pts or frame.frame.is_corrupt), None)
            if one is None or one.frame.is_corrupt or one.pts != pts:
                raise CannotSeek(f"no sound frame at {pts}")
            position = pts
            yield one


def stretches(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the union of the spans as [start, end), in order."""
    found: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda one: one.start):
        if found and span.start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], span.end))
        else:
            found.append((span.start, span.end))
    return found


def _from_key(frames: Iterator[Shown], key: int) -> Iterator[Shown]:
    """Yield the frames from the keyframe on. Raises: CannotSeek when it does not come back as one."""
    for one in frames:
        if one.pts < key:
            continue
        if one.pts > key or not one.frame.key_frame:
            raise CannotSeek(f"no keyframe came back at {key}")
        yield one
        break
    yield from frames
