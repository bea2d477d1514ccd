"""A clip in a scratch file, and its facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..unit import MetadataValue
from ..video.spans import Span

Mode = Literal["canonical", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Clip in a scratch file."""

    path: Path
    """File of the clip."""
    packets: Path
    """File of its packet table."""
    span: Span
    """Span of the video that it was cut from."""
    pts: list[int]
    """Source ticks of every frame."""
    end: int
    """End of the last frame, in source ticks."""
    size_px: tuple[int, int]
    """(width, height), upright."""
    requested: tuple[int, int]
    """(number of the first requested frame, count); a reference clip may hold more."""
    mode: Mode
    """Mode of the clip."""
    mode_reason: str = ""
    """Why it has not the policy's mode; "" if it has."""
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    """Columns of its own."""
