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
        frames = self.choice.frames
        framing = self.choice.framing
        clip: np.ndarray | None = load("video.decode:read_bare")(
            self.table, self.timeline, self.bodies, frames, framing, self.runs, place
        )
        if self.of_whole is None:
            choice = self.choice
        else:
            choice = self.of_whole.choice
        if clip is None and self.is_run:
            if self.of_whole is None:
                table = self.table
            else:
                table = read_packets(self.of_whole.packets())
            if self.of_whole is None:
                timeline = self.timeline
            else:
                timeline = Timeline.of_table(table)
            clip = load("video.decode:read_run")(table, timeline, self.whole(), choice)
        if clip is None:
            read: dict[str, np.ndarray] = load("video.decode:read_whole")(
                {"": self.whole()}, lambda timelines: {"": choice}
            )
            clip = read[""]
        return clip


class WholeClip:
    """Frames of a video whose packets cannot be read one by one.

    data: the whole field. choice: frames to decode.
    """

    def __init__(self, data: bytes, choice: Choice) -> None:
        self.data = data
        self.choice = choice

    def decoded(self, place: Place = nowhere) -> np.ndarray:
        read: dict[str, np.ndarray] = load("video.decode:read_whole")(
            {"": self.data}, lambda _: {"": self.choice}
        )
        return read[""]
