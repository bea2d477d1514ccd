"""How raw objects are cut into units, a policy per kind of media.

Everything here is part of the id of the units of its kind: another policy for videos gives other clips, and leaves
the photos as they are.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from loader.modalities.channels import CHANNELS, Channels

from .buckets import Buckets
from .photos.alpha import ground_of
from .unit import Kind

_SIDES_PX = (16, 4096)
_RATES_HZ = (8_000, 48_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePolicy:
    """How photos are stored.

    mode: "canonical" (decoded, upright, sRGB, 8 bits, small, without metadata) or "reference" (the source's bytes; what
    the loader would read wrong or not at all is stored as PNG of full size). short_side_px (never enlarged) and
    jpeg_quality (1 to 100): of canonical photos. strip_gps: take the place where it was taken out of a reference
    photo, and with it every other metadata, not touching a pixel.

    alpha: what transparent photos are laid on ("white", "black" or "#rrggbb"), or "drop" to leave them out, or "keep"
    to store those few as PNG with their alpha. animated: "drop" what has more frames or pages than one, or take the
    "first". buckets: the shapes that photos are trained at (the column `bucket`).

    The photos of a dataset lie in one field: `jpg` where all are JPEGs, `img` (JPEG, PNG or WebP) under
    mode="reference" or alpha="keep". Raises: ValueError.
    """

    mode: Literal["canonical", "reference"] = "canonical"
    short_side_px: int = 256
    jpeg_quality: int = 92
    strip_gps: bool = True
    alpha: str = "white"
    animated: Literal["drop", "first"] = "drop"
    buckets: Buckets = field(default_factory=Buckets)

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("canonical", "reference"))
        check_range("short_side_px", self.short_side_px, _SIDES_PX)
        check_range("jpeg_quality", self.jpeg_quality, (1, 100))
        if self.mode == "canonical" and not self.strip_gps:
            raise ValueError(
                "strip_gps=False with mode='canonical': what is encoded anew carries no metadata"
            )
        if self.mode == "reference" and (self.short_side_px, self.jpeg_quality) != (256, 92):
            raise ValueError(
                "short_side_px and jpeg_quality are of canonical photos; a reference photo keeps its own"
            )
        ground_of(self.alpha)
        check_choice("animated", self.animated, ("drop", "first"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPolicy:
    """How videos become clips.

    units: "windows" (clips of clip_s end to end), "shots" (the same within each shot, none across a scene cut) or
    "segments" (those that the landing place's `_segments` table gives, each as long as it says). clip_s: length of
    a window, and the longest clip of a shot; min_clip_s: the shortest clip of a shot, what is shorter is left out;
    max_clips: windows or clips of shots taken from one video, spread evenly over it, None for all.

    mode: "canonical" (encoded anew, small) or "reference" (whole GOPs of the source, packet for packet; a clip for
    which that is not possible is canonical, and says why). max_overhead_ratio: the most by which a reference clip
    may hold more frames than were asked for. short_side_px: of a canonical clip, never enlarged.

    hdr: "drop" HDR video, or "tonemap" it to SDR; deep: "drop" SDR video of more than 8 bits, or "reduce" it to 8.
    sound_rate_hz: of the sound that goes with a clip. buckets: the shapes that clips are trained at (the column
    `bucket`). Raises: ValueError.
    """

    units: Literal["windows", "shots", "segments"] = "windows"
    clip_s: float = 2.5
    min_clip_s: float = 0.5
    max_clips: int | None = 8
    mode: Literal["canonical", "reference"] = "canonical"
    max_overhead_ratio: float = 1.25
    short_side_px: int = 256
    hdr: Literal["drop", "tonemap"] = "drop"
    deep: Literal["drop", "reduce"] = "drop"
    sound_rate_hz: int = 16_000
    buckets: Buckets = field(default_factory=Buckets)

    def __post_init__(self) -> None:
        check_choice("units", self.units, ("windows", "shots", "segments"))
        check_choice("mode", self.mode, ("canonical", "reference"))
        check_choice("hdr", self.hdr, ("drop", "tonemap"))
        check_choice("deep", self.deep, ("drop", "reduce"))
        check_range("clip_s", self.clip_s, (0.2, 60))
        check_range("min_clip_s", self.min_clip_s, (0.1, self.clip_s))
        if self.max_clips is not None:
            check_range("max_clips", self.max_clips, (1, None))
        check_range("max_overhead_ratio", self.max_overhead_ratio, (1, 4))
        check_range("short_side_px", self.short_side_px, _SIDES_PX)
        check_range("sound_rate_hz", self.sound_rate_hz, _RATES_HZ)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPolicy:
    """How sounds become segments.

    segments: "fixed" (end to end, segment_s each, nothing is left out), "energy" (the stretches that are louder than
    their background; a pause of pause_s ends one, min_sound_s is the shortest that counts, padding_s of what is around
    stays with it) or "given" (those that the landing place's `_segments` table gives, each as long as it says).
    segment_s: the longest segment, of the first two.

    sample_rate_hz: of the stored sound. channels: "mono" or "stereo" (mixed by ITU-R BS.775, lowered so that no mix can
    clip), "keep" or "first". bits: 16 or 24, of the FLAC. Raises: ValueError.
    """

    segments: Literal["fixed", "energy", "given"] = "fixed"
    segment_s: float = 5.0
    pause_s: float = 0.5
    padding_s: float = 0.2
    min_sound_s: float = 0.1
    sample_rate_hz: int = 16_000
    channels: Channels = "mono"
    bits: Literal[16, 24] = 16

    def __post_init__(self) -> None:
        check_choice("segments", self.segments, ("fixed", "energy", "given"))
        check_choice("channels", self.channels, CHANNELS)
        check_range("segment_s", self.segment_s, (0.5, 60))
        check_range("pause_s", self.pause_s, (0.1, self.segment_s))
        check_range("padding_s", self.padding_s, (0, self.segment_s / 2))
        check_range("min_sound_s", self.min_sound_s, (0, self.segment_s))
        check_range("sample_rate_hz", self.sample_rate_hz, _RATES_HZ)
        if self.bits not in (16, 24):
            raise ValueError(f"bits={self.bits}; accepted: 16, 24")


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
    if not (math.isfinite(value) and low <= value <= (value if high is None else high)):
        accepted = f"{low} or more" if high is None else f"{low} to {high}"
        raise ValueError(f"{name}={value}; accepted: {accepted}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises: ValueError naming the field, what it got and what it takes."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}; accepted: {', '.join(map(repr, choices))}")
