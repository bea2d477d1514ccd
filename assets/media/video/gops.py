"""Cut points of a video without decoding, by its packets."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from ..policy import VideoPolicy
from .spans import Span

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

Reason = Literal["no_timestamps", "edit_list", "long_gop", "open_gop", "no_gop_inside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """Packets of one stream, in decode order."""

    pts: Sequence[int]
    """Times in ticks."""
    duration: Sequence[int]
    """Durations in ticks."""
    key: Sequence[bool]
    """True for a keyframe, by the container."""
    hidden: Sequence[bool]
    """True for a frame that an edit list hides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Packets in decode order with the frames of whole GOPs and no others."""

    first: int
    """Number of the first packet."""
    stop: int
    """Number one past the last packet."""


def packets_of(container: "InputContainer", stream: "VideoStream") -> Packets | None:
    """Return the packets by one demux; None if one has no display time."""
    rows = [
        (packet.pts, packet.duration or 0, packet.is_keyframe, packet.is_discard)
        for packet in container.demux(stream)
        if packet.size
    ]
    if not rows or any(row[0] is None for row in rows):
        return None
    pts, duration, key, hidden = zip(*rows, strict=True)
    return Packets(pts=pts, duration=duration, key=key, hidden=hidden)


class Gops:
    """Cut points: keyframes with all earlier packets shown before, and all later ones after.

    An open GOP's keyframe is none: frames stored after it and shown before it refer to the GOP before.
    """

    def __init__(self, packets: Packets, shortest: int) -> None:
        self._packets, self._shortest = packets, shortest
        pts, n = packets.pts, len(packets.pts)
        latest = [pts[0] - 1, *accumulate(pts, max)]  # of the packets before
        earliest = [*accumulate(reversed(pts), min)][::-1]  # of this packet and all after it
        keys = [number for number in range(n) if packets.key[number]]
        self._all = _Points(keys, pts)
        self._clean = _Points([at for at in keys if earliest[at] == pts[at] > latest[at]], pts)
        self._shown = sorted(at for at, hidden in zip(pts, packets.hidden, strict=True) if not hidden)

    def cut(self, span: Span, policy: VideoPolicy) -> Cut | Reason:
        """Return the whole GOPs around a span, within `max_overhead_ratio`; for a shot, the ones inside it.

        O(log n + packets of the span).
        """
        low, high = bisect_left(self._shown, span.start), bisect_left(self._shown, span.end)
        if low == high:
            return "no_gop_inside"
        gops = self._inside(span) if span.shot is not None else self._around(self._clean, low, high)
        if gops is None:
            return "open_gop" if len(self._all.numbers) > len(self._clean.numbers) else "no_gop_inside"
        if any(self._packets.hidden[gops.first : gops.stop]):
            return "edit_list"
        most = policy.max_overhead_ratio * (high - low)
        if span.shot is None and gops.stop - gops.first > most:
            least = self._around(self._all, low, high)
            return "open_gop" if least is not None and least.stop - least.first <= most else "long_gop"
        return gops

    def _around(self, points: "_Points", low: int, high: int) -> Cut | None:
        """Return the cut around frames [low, high), numbered in display order."""
        first = bisect_right(points.pts, self._shown[low]) - 1
        stop = bisect_left(points.pts, self._shown[high]) if high < len(self._shown) else len(points.pts)
        if first < 0:
            return None
        end = points.numbers[stop] if stop < len(points.numbers) else len(self._packets.pts)
        return Cut(first=points.numbers[first], stop=end)

    def _inside(self, span: Span) -> Cut | None:
        points = self._clean
        first, stop = bisect_left(points.pts, span.start), bisect_right(points.pts, span.end) - 1
        if span.end > self._shown[-1]:  # the span ends after the last frame
            last, end = len(self._packets.pts), span.end
        else:
            last, end = (points.numbers[stop], points.pts[stop]) if stop >= 0 else (0, 0)
        if first >= len(points.numbers) or end - points.pts[first] < self._shortest:
            return None
        return Cut(first=points.numbers[first], stop=last)


class _Points:
    """Keyframes: numbers in decode order, and pts."""

    def __init__(self, numbers: Sequence[int], pts: Sequence[int]) -> None:
        self.numbers, self.pts = numbers, [pts[number] for number in numbers]
