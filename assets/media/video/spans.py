"""Spans of a video that become clips, in time base ticks; their frames; clips in scratch files with packet tables.

Frames are decoded in one pass, or by seeking if the audit found that it works (`seek_ok`) and that frames are in order.
A seek must return the keyframe before a span intact, then exactly the packets' frames, else `CannotSeek` is raised.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loader.errors import DecodeFailed
from loader.modalities.video.packet_table import StreamFacts, index_packets, read_packets

from ..container import TAIL_S, PacketIndex
from ..policy import VideoPolicy
from ..segments import Segment
from ..unit import MetadataValue, dropped, rejected
from .audit import prepare_strict
from .timestamps import TimedFrame, has_display_times, time_frames

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSpan:
    """Span of a video that may become a clip."""

    start: int
    """Start in ticks."""
    end: int
    """End in ticks, exclusive."""
    shot: int | None = None
    """Number of the span's shot, from 0; None outside shots."""
    segment: Segment | None = None
    """Given segment of the span, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Spans that lie within shots."""

    spans: list[ClipSpan]
    """Spans that become clips, in order."""
    n_shots: int
    """Number of shots."""
    n_short: int
    """Shots, and ends of shots, too short for a clip."""


def windows(index: PacketIndex, policy: VideoPolicy) -> list[ClipSpan]:
    """Return consecutive spans of `clip_s`, or `max_clips` of them evenly spread; a shorter video is one span."""
    ticks = _ticks(policy.clip_s, index)
    possible = max(1, (index.end_pts - index.start_pts) // ticks)
    starts = [index.start_pts + number * ticks for number in spread(possible, policy.max_clips)]
    return [ClipSpan(start=start, end=start + ticks) for start in starts]


def shots(index: PacketIndex, policy: VideoPolicy, cuts: Sequence[int]) -> Shots:
    """Return spans that each lie within one shot; a shot longer than `clip_s` has several.

    cuts: pts of every shot's first frame but the first shot's. Raises: Unusable if all shots are too short.
    """
    longest = _ticks(policy.clip_s, index)
    shortest = _ticks(policy.min_clip_s, index)
    inside = [cut for cut in cuts if index.start_pts < cut < index.end_pts]
    by_shot: list[ClipSpan] = []
    n_short = 0
    for number, (start, end) in enumerate(pairwise([index.start_pts, *inside, index.end_pts])):
        for begin in range(start, end, longest):
            span = ClipSpan(start=begin, end=min(begin + longest, end), shot=number)
            if span.end - span.start >= shortest:
                by_shot.append(span)
            else:
                n_short += 1
    if not by_shot:
        raise dropped(
            "cut",
            "short_shots",
            f"all of its {len(inside) + 1} shots are shorter than {policy.min_clip_s} s",
            given=len(inside) + 1,
            accepted=policy.min_clip_s,
        )
    spans = [by_shot[number] for number in spread(len(by_shot), policy.max_clips)]
    return Shots(spans=spans, n_shots=len(inside) + 1, n_short=n_short)


def segment_spans(index: PacketIndex, segments: Sequence[Segment]) -> list[ClipSpan]:
    """Return the spans of given segments. Raises: Unusable if there are none, or one lies outside the video."""
    if not segments:
        raise dropped("cut", "no_segments", "no row of the _segments table names it")
    base = Fraction(*index.time_base)
    spans = []
    for segment in segments:
        start_s, end_s = segment.span_s()
        start = index.start_pts + round(start_s / base)
        end = index.start_pts + round(end_s / base)
        # A segment may end at the header's duration, which may be rounded up.
        if start >= index.end_pts or end > index.end_pts + TAIL_S / base:
            raise rejected(
                "cut",
                "segment",
                f"the segment from {segment.start_s} to {segment.end_s} s lies outside of the video, which is "
                f"{index.duration_s:.3f} s long; correct the _segments table and land the batch again",
                given=[segment.start_s, segment.end_s],
                accepted=index.duration_s,
            )
        end = min(end, index.end_pts)
        end = max(end, start + 1)  # one tick at least: a short segment may be rounded to none
        spans.append(ClipSpan(start=start, end=end, segment=segment))
    return spans


def audit_cuts(audit: Mapping[str, Any]) -> list[int]:
    """Return the pts of the audit's scene cuts."""
    return [int(pts) for pts in audit["scene_cuts"] or ()]


def spread(n_possible: int, n_wanted: int | None) -> list[int]:
    """Return at most `n_wanted` (None: all) of `n_possible` numbers, evenly spread."""
    if n_wanted is None:
        n_taken = n_possible
    else:
        n_taken = min(n_wanted, n_possible)
    return [number * n_possible // n_taken for number in range(n_taken)]


def _ticks(seconds: float, index: PacketIndex) -> int:
    return max(1, round(seconds / Fraction(*index.time_base)))


Mode = Literal["canonical", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Clip in a scratch file, with its facts."""

    path: Path
    """File of the clip."""
    packets: Path
    """File of its packet table."""
    span: ClipSpan
    """Span of the video that it was cut from."""
    pts: list[int]
    """Time of every frame, in source ticks."""
    end: int
    """End of the last frame, in source ticks."""
    size_px: tuple[int, int]
    """(width, height), upright."""
    requested: tuple[int, int]
    """(index of the first requested frame, number of them); a reference clip may have more frames."""
    mode: Mode
    """Mode in which the clip is stored."""
    mode_reason: str = ""
    """Why the clip's mode is not the policy's, or ""."""
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    """Columns of the samples table."""


PACKETS_FIELD, PACKETS_GROUP = "mp4.packets", "media_index"


class PacketTables:
    """Writes packet tables of similarly encoded clips, with test decodes for new decoder settings."""

    def __init__(self) -> None:
        self._tried: StreamFacts | None = None

    def write(self, mp4: Path) -> Path:
        """Write a clip's packet table next to it, and return its path. Raises: Unusable; OSError."""
        target = mp4.with_suffix(".packets")
        try:
            table = index_packets(mp4.read_bytes(), self._tried)
        except DecodeFailed as error:
            raise rejected("cut", "unreadable_clip", error) from error
        target.write_bytes(table)
        if self._tried is None:
            self._tried = read_packets(table).facts
        return target


class CannotSeek(Exception):
    """Raised if the frames after a seek differ from the packets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times in a stream, in ascending ticks."""

    shown: Sequence[int]
    """Time of every shown frame."""
    keys: Sequence[int]
    """Time of every keyframe."""


def stream_times(container: "InputContainer", stream: "VideoStream") -> Times:
    """Return a stream's times, reading all packets once."""
    shown_at = []
    keys = []
    for packet in container.demux(stream):
        if packet.pts is not None and packet.size:
            if packet.is_keyframe:
                keys.append(packet.pts)
            if not packet.is_discard:
                shown_at.append(packet.pts)
    return Times(shown=sorted(shown_at), keys=sorted(keys))


def may_seek(container: "InputContainer", audit: Mapping[str, Any]) -> bool:
    """Return whether the audit allows seeking."""
    is_in_order = audit.get("n_pts_backward") == 0 and audit.get("n_pts_dup") == 0
    is_progressive_sdr = audit.get("interlaced_ratio") == 0 and not audit.get("hdr")
    shows_all_packets = audit.get("n_discard_packets") == 0 and has_display_times(container)
    return bool(audit.get("seek_ok")) and is_in_order and is_progressive_sdr and shows_all_packets


def prepare(stream: "VideoStream", audit: Mapping[str, Any]) -> None:
    """Set the decoder's options before its first packet. audit: facts of the file's audit; empty without one."""
    stream.thread_count = 1
    if not audit:  # nothing has looked for damage that the decoder hides by default
        prepare_strict(stream)


def span_frames(
    container: "InputContainer",
    stream: "VideoStream",
    spans: Sequence[ClipSpan],
    audit: Mapping[str, Any],
    *,
    seeks: bool,
) -> Iterator[TimedFrame]:
    """Return the frames of all spans, and possibly others, from an unread container.

    Every frame is decoded if `audit` is empty. Raises: Unusable; CannotSeek; av.error.FFmpegError.
    """
    if seeks and may_seek(container, audit):
        return frames_sought(container, stream, spans, stream_times(container, stream))
    stop = None  # without an audit, the whole video is decoded, since nothing else has checked the rest
    if audit:
        stop = max(span.end for span in spans)
    return frames_in_order(container, stream, stop)


def frames_in_order(
    container: "InputContainer", stream: "VideoStream", stop: int | None = None
) -> Iterator[TimedFrame]:
    """Yield every frame, or every frame before `stop`. Raises: Unusable for a damaged frame."""
    for number, timed in enumerate(time_frames(container, container.decode(stream))):
        if timed.frame.is_corrupt:
            raise rejected("decode", "corrupt", f"frame {number} is damaged")
        if stop is not None and timed.pts >= stop:
            return
        yield timed


def frames_sought(
    container: "InputContainer",
    stream: "VideoStream",
    spans: Sequence[ClipSpan],
    times: Times,
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
            frames = _from_key(time_frames(container, container.decode(stream)), key)
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
    """Yield the frames from a keyframe's time on. Raises: CannotSeek if it does not come back as a keyframe."""
    for timed in frames:
        if timed.pts < key:
            continue
        if timed.pts > key or not timed.frame.key_frame:
            raise CannotSeek(f"no keyframe came back at {key}")
        yield timed
        break
    yield from frames
