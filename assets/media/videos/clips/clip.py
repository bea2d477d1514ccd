"""A clip in a scratch file, and what is known of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...unit import MetadataValue
from ..stretches.spans import Span

Mode = Literal["canonical", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """packets: the file with its packet table.

    pts: source ticks of every frame that it shows; end: when the last one ends; wanted: (number of the first frame that
    was asked for, how many were): a reference clip may show more. mode_reason: why it is not of the mode that the
    policy asks for, or "". metadata: columns of its own.
    """

    path: Path
    packets: Path
    span: Span
    pts: list[int]
    end: int
    size_px: tuple[int, int]
    wanted: tuple[int, int]
    mode: Mode
    mode_reason: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
