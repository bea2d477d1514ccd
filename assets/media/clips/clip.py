"""Clips in scratch files, and their packet tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loader.errors import DecodeFailed
from loader.modalities.video.packet_table import StreamFacts, index_packets, read_packets

from ..unit import MetadataValue, rejected
from ..video.spans import ClipSpan

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
    """(index of the first requested frame, number of requested frames); a reference clip may have more frames."""
    mode: Mode
    """Mode in which the clip is stored."""
    mode_reason: str = ""
    """Why the clip does not use the policy's mode; "" if it does."""
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    """Columns of the samples table that describe the clip."""


PACKETS_FIELD, PACKETS_GROUP = "mp4.packets", "media_index"


class PacketTables:
    """Writes packet tables of similarly encoded clips, with test decodes only for new decoder settings."""

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
