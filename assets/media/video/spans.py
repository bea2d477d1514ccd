"""Spans of a video that become clips: windows, shots or given segments, in ticks of its time base."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ..container import TAIL_S, PacketIndex
from ..policy import VideoPolicy
from ..segments import Segment
from ..unit import dropped, rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSpan:
    """Span of a video."""

    start: int
    """Start in ticks."""
    end: int
    """End in ticks, exclusive."""
    shot: int | None = None
    """Number of its shot, from 0; None outside shots."""
    segment: Segment | None = None
    """Its given segment; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Spans by shot."""

    spans: list[ClipSpan]
    """Spans that become clips."""
    n_shots: int
    """Number of shots."""
    n_short: int
    """Shots, and ends of shots, too short for a clip."""


def windows(index: PacketIndex, policy: VideoPolicy) -> list[ClipSpan]:
    """Return whole clips end to end, or `max_clips` of them evenly spread; a shorter video is one clip."""
    ticks = _ticks(policy.clip_s, index)
    possible = max(1, (index.end_pts - index.start_pts) // ticks)
    starts = [index.start_pts + number * ticks for number in spread(possible, policy.max_clips)]
    return [ClipSpan(start=start, end=start + ticks) for start in starts]


def shots(index: PacketIndex, policy: VideoPolicy, cuts: Sequence[int]) -> Shots:
    """Return spans within one shot each, several if it is longer than `clip_s`.

    cuts: pts of the first frame of every shot but the first. Raises: Unusable if all shots are too short.
    """
    longest, shortest = _ticks(policy.clip_s, index), _ticks(policy.min_clip_s, index)
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
            "cut", "short_shots", f"all of its {len(inside) + 1} shots are shorter than {policy.min_clip_s} s"
        )
    spans = [by_shot[number] for number in spread(len(by_shot), policy.max_clips)]
    return Shots(spans=spans, n_shots=len(inside) + 1, n_short=n_short)


def given_spans(index: PacketIndex, segments: Sequence[Segment]) -> list[ClipSpan]:
    """Return the spans of the given segments. Raises: Unusable without any, and for one outside the video."""
    if not segments:
        raise dropped("cut", "no_segments", "no row of the _segments table names it")
    base = Fraction(*index.time_base)
    spans = []
    for segment in segments:
        start_s, end_s = segment.span_s()
        start = index.start_pts + round(start_s / base)
        end = index.start_pts + round(end_s / base)
        if start >= index.end_pts or end > index.end_pts + TAIL_S / base:
            raise rejected(
                "cut",
                "segment",
                f"the segment from {segment.start_s} to {segment.end_s} s lies outside of the video, which is "
                f"{index.duration_s:.3f} s long; correct the _segments table and land the batch again",
            )
        spans.append(ClipSpan(start=start, end=max(start + 1, min(end, index.end_pts)), segment=segment))
    return spans


def cuts_of(audit: Mapping[str, Any]) -> list[int]:
    """Return the pts of the audit's scene cuts."""
    return [int(pts) for pts in audit["scene_cuts"] or ()]


def spread(n_possible: int, n_wanted: int | None) -> list[int]:
    """Return at most `n_wanted` of `n_possible` numbers, evenly spread; None: all."""
    n_taken = n_possible if n_wanted is None else min(n_wanted, n_possible)
    return [number * n_possible // n_taken for number in range(n_taken)]


def _ticks(seconds: float, index: PacketIndex) -> int:
    return max(1, round(seconds / Fraction(*index.time_base)))
