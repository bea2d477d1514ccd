"""Places where a video can be cut without decoding it, from its packets alone."""

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
    """True for a keyframe as the container says."""
    hidden: Sequence[bool]
    """True for a frame that an edit list does not show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Packets in decode order that hold the frames of whole GOPs and nothing else."""

    first: int
    """Number of the first packet."""
    stop: int
    """Number of the packet behind the last."""


def packets_of(container: "InputContainer", stream: "VideoStream") -> Packets | None:
    """Return the packets by one demux; None when a packet does not say when it is shown."""
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
    """Cut points: keyframes before which nothing in the file is shown later, and after which nothing is shown earlier.

    A keyframe of an open GOP is none: the frames stored behind it and shown before it build on the GOP before.
    """

    def __init__(self, packets: Packets, shortest: int) -> None:
        """Find the cut points. shortest: clip of a shot, in ticks."""
        self._packets, self._shortest = packets, shortest
        pts, n = packets.pts, len(packets.pts)
        latest = [pts[0] - 1, *accumulate(pts, max)]  # of those before
        earliest = [*accumulate(reversed(pts), min)][::-1]  # of this and those behind
        keys = [number for number in range(n) if packets.key[number]]
        self._all = _Points(keys, pts)
        self._clean = _Points([at for at in keys if earliest[at] == pts[at] > latest[at]], pts)
        self._shown = sorted(at for at, hidden in zip(pts, packets.hidden, strict=True) if not hidden)

    def cut(self, span: Span, policy: VideoPolicy) -> Cut | Reason:
        """Return the whole GOPs around a span, within `max_overhead_ratio`; for a clip of a shot, those inside it.

        So the clip stays within its shot. O(log n), and O(packets of the span).
        """
        low, high = bisect_left(self._shown, span.start), bisect_left(self._shown, span.end)
        if low == high:
            return "no_gop_inside"
        found = self._inside(span) if span.shot is not None else self._around(self._clean, low, high)
        if found is None:
            return "open_gop" if len(self._all.numbers) > len(self._clean.numbers) else "no_gop_inside"
        if any(self._packets.hidden[found.first : found.stop]):
            return "edit_list"
        most = policy.max_overhead_ratio * (high - low)
        if span.shot is None and found.stop - found.first > most:
            least = self._around(self._all, low, high)
            return "open_gop" if least is not None and least.stop - least.first <= most else "long_gop"
        return found

    def _around(self, points: "_Points", low: int, high: int) -> Cut | None:
        """Return the cut around frames [low, high), numbered in the order shown."""
        first = bisect_right(points.pts, self._shown[low]) - 1
        stop = bisect_left(points.pts, self._shown[high]) if high < len(self._shown) else len(points.pts)
        if first < 0:
            return None
        end = points.numbers[stop] if stop < len(points.numbers) else len(self._packets.pts)
        return Cut(first=points.numbers[first], stop=end)

    def _inside(self, span: Span) -> Cut | None:
        points = self._clean
        first, stop = bisect_left(points.pts, span.start), bisect_right(points.pts, span.end) - 1
        if span.end > self._shown[-1]:  # nothing is shown behind it
            last, end = len(self._packets.pts), span.end
        else:
            last, end = (points.numbers[stop], points.pts[stop]) if stop >= 0 else (0, 0)
        if first >= len(points.numbers) or end - points.pts[first] < self._shortest:
            return None
        return Cut(first=points.numbers[first], stop=last)


class _Points:
    """Keyframes: their numbers in decode order, and their pts."""

    def __init__(self, numbers: Sequence[int], pts: Sequence[int]) -> None:
        self.numbers, self.pts = numbers, [pts[number] for number in numbers]
