"""How raw objects are cut into units, a policy per kind of media.

Everything here is part of the id of the units of its kind: another policy for videos gives other clips, and leaves
the photos as they are.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from .unit import Kind

_SIDES_PX = (16, 4096)
_RATES_HZ = (8_000, 48_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePolicy:
    """short_side_px: of the stored photo, never enlarged; jpeg_quality: 1 to 100. Raises: ValueError."""

    short_side_px: int = 256
    jpeg_quality: int = 92

    def __post_init__(self) -> None:
        check_range("short_side_px", self.short_side_px, _SIDES_PX)
        check_range("jpeg_quality", self.jpeg_quality, (1, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPolicy:
    """short_side_px: of the stored clip, never enlarged; clip_s: length of a clip; max_clips: clips taken from one
    video, spread evenly over it; sound_rate_hz: of the sound that goes with a clip. Raises: ValueError."""

    short_side_px: int = 256
    clip_s: float = 2.5
    max_clips: int = 8
    sound_rate_hz: int = 16_000

    def __post_init__(self) -> None:
        check_range("short_side_px", self.short_side_px, _SIDES_PX)
        check_range("clip_s", self.clip_s, (0.2, 60))
        check_range("max_clips", self.max_clips, (1, None))
        check_range("sound_rate_hz", self.sound_rate_hz, _RATES_HZ)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPolicy:
    """segment_s: the longest piece; sample_rate_hz: of the stored sound. Raises: ValueError."""

    segment_s: float = 5.0
    sample_rate_hz: int = 16_000

    def __post_init__(self) -> None:
        check_range("segment_s", self.segment_s, (0.5, 60))
        check_range("sample_rate_hz", self.sample_rate_hz, _RATES_HZ)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPolicy:
    """One policy per kind. Texts are taken as they are."""

    image: ImagePolicy = field(default_factory=ImagePolicy)
    video: VideoPolicy = field(default_factory=VideoPolicy)
    audio: AudioPolicy = field(default_factory=AudioPolicy)

    def of(self, kind: Kind) -> dict[str, Any]:
        """What a unit of this kind depends on, as plain values."""
        return {} if kind == "text" else asdict(getattr(self, kind))


def check_range(name: str, value: float, bounds: tuple[float, float | None]) -> None:
    """Raises: ValueError naming the field, what it got and what it takes; the bounds are included."""
    low, high = bounds
    if not low <= value <= (value if high is None else high):
        accepted = f"{low} or more" if high is None else f"{low} to {high}"
        raise ValueError(f"{name}={value}; accepted: {accepted}")
