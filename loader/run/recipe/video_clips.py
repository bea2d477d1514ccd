"""Clips of videos between reading and decoding: chosen frames, with what was read for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...modalities.fields import Place, load, nowhere
from ...modalities.video.packet_table import PacketTable, read_packets
from ...modalities.video.request import Choice
from ...modalities.video.timeline import PacketGroup, Timeline


class WholeChoice:
    """Frames of a video by their numbers in all of it. packets: reads its packet table."""

    def __init__(self, choice: Choice, packets: Callable[[], bytes]) -> None:
        self.choice = choice
        self.packets = packets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BareClip:
    """A clip whose packets have been read and are still to be decoded."""

    table: PacketTable
    """Packet table of the field."""
    timeline: Timeline
    """Timestamps of the video."""
    choice: Choice
    """Frames to decode."""
    runs: Sequence[PacketGroup]
    """Packets to decode."""
    bodies: Mapping[int, bytes | memoryview]
    """Packet number -> its bytes."""
    whole: Callable[[], bytes]
    """Reads all of the field's bytes."""
    is_run: bool = False
    """True for packets without a container."""
    of_whole: WholeChoice | None = None
    """Frames by their numbers in the whole video, if `table` has a part of it."""

    def decoded(self, place: Place = nowhere) -> np.ndarray:
        """Return [T, H, W, C]. Reads the whole field if packets do not suffice (a false keyframe)."""
        read_bare = load("video.decode:read_bare")
        clip: np.ndarray | None = read_bare(
            self.table,
            self.timeline,
            self.bodies,
            self.choice.frames,
            self.choice.framing,
            self.runs,
            place,
        )
        if clip is None and self.is_run:
            clip = self._decode_run()
        if clip is None:
            clip = decode_whole(self.whole(), self._choice_of_whole())
        return clip

    def _choice_of_whole(self) -> Choice:
        if self.of_whole is None:
            return self.choice
        return self.of_whole.choice

    def _decode_run(self) -> np.ndarray | None:
        """Decode packets without a container from all of the field's bytes, by the table of all of them."""
        table = self.table
        timeline = self.timeline
        if self.of_whole is not None:
            table = read_packets(self.of_whole.packets())
            timeline = Timeline.of_table(table)
        read_run = load("video.decode:read_run")
        clip: np.ndarray | None = read_run(table, timeline, self.whole(), self._choice_of_whole())
        return clip


class WholeClip:
    """Frames of a video whose packets cannot be read one by one.

    data: the whole field. choice: frames to decode.
    """

    def __init__(self, data: bytes, choice: Choice) -> None:
        self.data = data
        self.choice = choice

    def decoded(self, place: Place = nowhere) -> np.ndarray:
        """Return [T, H, W, C]."""
        return decode_whole(self.data, self.choice)


def decode_whole(data: bytes, choice: Choice) -> np.ndarray:
    """Return the chosen frames [T, H, W, C] of a whole video."""
    read_whole = load("video.decode:read_whole")
    read: dict[str, np.ndarray] = read_whole({"": data}, lambda timelines: {"": choice})
    return read[""]
