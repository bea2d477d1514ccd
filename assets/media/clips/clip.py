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
    """A clip in a scratch file."""

    path: Path
    """File of the clip."""
    packets: Path
    """File with its packet table."""
    span: Span
    """Stretch of the video that it was cut from."""
    pts: list[int]
    """Source ticks of every frame that it shows."""
    end: int
    """End of the last frame, in source ticks."""
    size_px: tuple[int, int]
    """(width, height), upright."""
    wanted: tuple[int, int]
    """(number of the first frame asked for, how many were); a reference clip may show more."""
    mode: Mode
    """Mode of the clip."""
    mode_reason: str = ""
    """Reason why it is not of the policy's mode; "" where it is."""
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    """Columns of its own."""
