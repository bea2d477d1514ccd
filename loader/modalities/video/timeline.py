"""Compute when a video's frames are shown, and which packets a frame needs, from a packet table."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ...errors import DecodeFailed
from .packet_table import I64, Bools, PacketTable

FLOAT_SLACK_S = Fraction(1, 1_000_000)
"""Tolerance, in seconds, for a float time rounded below its frame: 1 / 30 as a float64 is below 1/30."""

Time = int | float | Fraction


class PacketGroup(NamedTuple):
    """Packets that are decoded together."""

    first: int
    """Number of the first packet, in decode order."""
    stop: int
    """Number of the packet after the last."""
    positions: dict[int, list[int]]
    """Packet number -> positions in the clip."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Timestamps of a video's packets and frames."""

    pts: I64
    """int64: tick of every packet, in decode order."""
    keys: I64
    """int64: numbers of the key packets, ascending."""
    shown: I64
    """int64: packet numbers of the shown frames, in display order."""
    times: I64
    """int64: ticks of the shown frames, in display order."""
    time_base: Fraction
    """Seconds per tick."""
    end_pts: int
    """Tick at which the last frame ends."""

    @staticmethod
    def of(pts: I64, key: Bools, discard: Bools, time_base: Fraction | None, end_pts: int) -> "Timeline":
        """Return the timeline of packets.

        Raises: DecodeFailed if two frames share an instant or there is no time base.
        """
        if not time_base:
            raise DecodeFailed("video: the stream has no time base")
        numbers = np.flatnonzero(~discard)
        # Packets lie in decoding order; a stable sort by time gives the order of display.
        shown = numbers[np.argsort(pts[numbers], kind="stable")]
        times = pts[shown]
        twice = np.flatnonzero(times[1:] == times[:-1])
        if len(twice):
            i = int(twice[0])
            raise DecodeFailed(
                f"video: packets {shown[i]} and {shown[i + 1]} have the same timestamp {times[i]}",
                what="timestamp",
                where=f"packets {shown[i]} and {shown[i + 1]}",
                given=int(times[i]),
            )
        return Timeline(pts, np.flatnonzero(key), shown, times, time_base, end_pts)

    @staticmethod
    def of_table(table: PacketTable) -> "Timeline":
        return Timeline.of(table.pts, table.key, table.discard, table.facts.time_base, table.facts.end_pts)

    def __len__(self) -> int:
        return len(self.shown)

    @property
    def begin_s(self) -> Fraction:
        return self.time_s(0)

    @property
    def end_s(self) -> Fraction:
        return self.end_pts * self.time_base

    def time_s(self, frame: int) -> Fraction:
        """Return the time in seconds at which a frame (number in display order) is first shown."""
        return int(self.times[frame]) * self.time_base

    def frame_number(self, time_s: Time) -> int:
        """Return the number of the frame shown at a time: the last whose timestamp is not later. O(log frames).

        Fractions and integers are exact; a float may be `FLOAT_SLACK_S` before its frame. Raises: DecodeFailed if
        nothing is shown at that time.
        """
        exact = Fraction(time_s)
        now = self._tick(exact)
        # The slack only finds the frame: a time at or after the end shows nothing, however close it is.
        if isinstance(time_s, float):
            tick = self._tick(exact + FLOAT_SLACK_S)
        else:
            tick = now
        frame = int(np.searchsorted(self.times, tick, side="right")) - 1
        if frame < 0 or now >= self.end_pts:
            span = "never"
            if len(self):
                span = f"from {float(self.begin_s):.6f} to {float(self.end_s):.6f} s"
            raise DecodeFailed(
                f"video: no frame is shown at {float(time_s):.6f} s; this video is shown {span}",
                what="time",
                given=time_s,
                accepted=span,
            )
        return frame

    def next_frame_number(self, time_s: Fraction) -> int:
        """Return the number of the first frame shown at a time or later; the number of frames if there is none."""
        return int(np.searchsorted(self.times, -self._tick(-time_s), side="left"))

    def _tick(self, time_s: Fraction) -> int:
        base = self.time_base
        return time_s.numerator * base.denominator // (time_s.denominator * base.numerator)

    def keyframe(self, number: int) -> int:
        """Return the last key packet up to packet `number` that is not displayed after it; 0 if there is none.

        A frame displayed before its preceding keyframe (open GOP) depends on the keyframe before that.
        """
        i = int(np.searchsorted(self.keys, number, side="right")) - 1
        while i >= 0 and self.pts[self.keys[i]] > self.pts[number]:
            i -= 1
        if i >= 0:
            return int(self.keys[i])
        return 0

    def runs(self, frames: Sequence[int]) -> list[PacketGroup]:
        """Return the packets to decode for these frames (in display order), ascending. O(frames log packets)."""
        packets = self.shown[np.asarray(frames, np.int64)]
        places: dict[int, list[int]] = {}
        for place, number in enumerate(packets.tolist()):
            places.setdefault(number, []).append(place)
        first_of = dict(zip(packets.tolist(), self._keyframes(packets), strict=True))
        out: list[PacketGroup] = []
        for number in sorted(places):
            first = first_of[number]
            positions = {number: places[number]}
            while out and first <= out[-1].stop:  # a late keyframe may overlap several runs
                last = out.pop()
                last.positions.update(positions)
                first = min(last.first, first)
                positions = last.positions
            out.append(PacketGroup(first, number + 1, positions))
        return out

    def _keyframes(self, packets: I64) -> list[int]:
        """Return `keyframe` of each packet, ten times faster than one by one."""
        at = np.searchsorted(self.keys, packets, side="right") - 1
        if len(self.keys):
            first = np.where(at >= 0, self.keys[at], 0)
        else:
            first = np.zeros_like(packets)
        for i in np.flatnonzero((at >= 0) & (self.pts[first] > self.pts[packets])).tolist():
            first[i] = self.keyframe(int(packets[i]))
        numbers: list[int] = first.tolist()
        return numbers
