"""Cut policies, one per kind of media, each part of its kind's unit ids; and resolution buckets.

Buckets follow Stable Diffusion XL's table (Podell et al. 2023, appendix I). Each multiple of 64 px (32 for a base of
256) as width gets the largest height on this grid whose area is within base x base. Sizes also occur turned. Names:
`w896h1152`, `w640h384f32`.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from math import isqrt
from typing import Any, Literal

from assets import invalid_option
from loader.errors import InvalidSpec
from loader.modalities.audio.downmix import CHANNELS, Channels

from .unit import Kind

Size = tuple[int, int]

_GRID_PX = 64
_SMALL_GRID_PX = 32
_SMALL_BELOW_PX = 512
_BASES_PX = (64, 8192)


GROUNDS = {"white": (255, 255, 255), "black": (0, 0, 0)}
ALPHA_RULES = (*GROUNDS, "#rrggbb", "drop", "keep")
_HEX_COLOUR = re.compile(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})", re.I)


def alpha_ground(rule: str) -> tuple[int, int, int] | None:
    """Return the RGB background that an alpha rule names; None for 'drop' and 'keep'. Raises: InvalidSpec."""
    if rule in ("drop", "keep"):
        return None
    match = _HEX_COLOUR.fullmatch(rule)
    if rule not in GROUNDS and not match:
        raise invalid_option("alpha", rule, ", ".join(ALPHA_RULES))
    if match:
        return (int(match[1], 16), int(match[2], 16), int(match[3], 16))
    return GROUNDS[rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Shapes for training on images and clips. Raises: InvalidSpec for an invalid field."""

    bases_px: tuple[int, ...] = (256, 512, 1024)
    """Sides in px of the squares that set buckets' areas: 64 to 8192, ascending, multiples of 64 (32 below 512)."""
    max_aspect: int = 4
    """Largest ratio of longer to shorter side, 1 to 16."""
    aspects: tuple[Size, ...] | None = None
    """Aspect ratios such as (3, 2), each mapped to the nearest size; None for every size."""
    frames: tuple[int, ...] = (16, 32, 64)
    """Lengths of clips in frames, ascending."""
    max_upscale: float = 1.0
    """Largest factor, 1 to 8, by which an image may be enlarged."""
    max_crop: float = 0.5
    """Largest share of an image's area that may be cropped, 0 to below 1."""

    def __post_init__(self) -> None:
        low, high = _BASES_PX
        is_ascending = _ascending(self.bases_px, low, high)
        if not is_ascending or any(base % grid_px(base) for base in self.bases_px):
            accepted = f"{low} to {high}, ascending, multiples of {_GRID_PX} ({_SMALL_GRID_PX} below {_SMALL_BELOW_PX})"
            raise invalid_option("bases_px", self.bases_px, accepted)
        if not _ascending(self.frames, 1, None):
            raise invalid_option("frames", self.frames, "whole numbers from 1, ascending")
        if not 1 <= self.max_aspect <= 16:
            raise invalid_option("max_aspect", self.max_aspect, "1 to 16")
        for pair in self.aspects or ():
            if min(pair) <= 0 or max(pair) > self.max_aspect * min(pair):
                accepted = f"(width, height) pairs, at most {self.max_aspect}:1, or None"
                raise invalid_option("aspects", self.aspects, accepted)
        if not 1 <= self.max_upscale <= 8:
            raise invalid_option("max_upscale", self.max_upscale, "1 to 8")
        if not 0 <= self.max_crop < 1:
            raise invalid_option("max_crop", self.max_crop, "0 up to, not including, 1")


@lru_cache(maxsize=4096)
def image_bucket(
    buckets: Buckets,
    width_px: int,
    height_px: int,
    n_frames: int | None = None,
) -> str | None:
    """Return the bucket of an image, or of a clip of `n_frames`; None if no bucket fits.

    Chooses the largest base that the image fills, the nearest aspect ratio and the longest length, with fractions. The
    image is scaled to cover the bucket and cropped.
    """
    length = None
    if n_frames is not None:
        length = max((frames for frames in buckets.frames if frames <= n_frames), default=None)
        if length is None:
            return None
    for base in reversed(buckets.bases_px):
        size = _nearest(sizes(buckets, base), width_px, height_px)
        if size is not None and _fits(buckets, size, width_px, height_px):
            return bucket_name(size, length)
    return None


def bucket_name(size: Size, n_frames: int | None = None) -> str:
    """Return a bucket's name, `w<width>h<height>`, with `f<frames>` for clips."""
    width, height = size
    name = f"w{width}h{height}"
    if n_frames is not None:
        name += f"f{n_frames}"
    return name


@cache
def sizes(buckets: Buckets, base_px: int) -> tuple[Size, ...]:
    """Return the (width, height) of each bucket of a base, from tallest to widest."""
    if buckets.aspects is None:
        shapes = set(_of_grid(base_px, buckets.max_aspect))
    else:
        shapes = {_on_grid(base_px, width, height) for width, height in buckets.aspects}
    by_aspect = sorted(shapes, key=lambda size: (Fraction(*size), size))
    return tuple(by_aspect)


def grid_px(base_px: int) -> int:
    """Return the number of px of which sides are multiples."""
    if base_px < _SMALL_BELOW_PX:
        return _SMALL_GRID_PX
    return _GRID_PX


def _of_grid(base_px: int, max_aspect: int) -> Iterator[Size]:
    step = grid_px(base_px)
    area = base_px * base_px
    for width in range(step, base_px * max_aspect + 1, step):
        height = area // width // step * step
        if height and max(width, height) <= max_aspect * min(width, height):
            yield width, height
            yield height, width


def _on_grid(base_px: int, width: int, height: int) -> Size:
    step = grid_px(base_px)

    def side(over: int, under: int) -> int:
        # round(base * sqrt(over / under) / step) in integers: add half a step before truncating the root
        half_steps = isqrt(4 * base_px * base_px * over // (under * step * step))
        steps = (half_steps + 1) // 2
        return max(1, steps) * step

    return side(width, height), side(height, width)


def _nearest(candidates: tuple[Size, ...], width_px: int, height_px: int) -> Size | None:
    """Ties go to the larger, then the wider."""

    def distance(size: Size) -> tuple[Fraction, int, int]:
        width, height = size
        ratio = Fraction(width_px * height, height_px * width)
        return max(ratio, 1 / ratio), -width * height, -width

    return min(candidates, key=distance, default=None)


def _fits(buckets: Buckets, size: Size, width_px: int, height_px: int) -> bool:
    width, height = size
    scale = max(Fraction(width, width_px), Fraction(height, height_px))
    if scale > Fraction(buckets.max_upscale):
        return False
    remaining = Fraction(width * height, width_px * height_px) / scale**2
    return 1 - remaining <= Fraction(buckets.max_crop)


def _ascending(numbers: tuple[int, ...], low: int, high: int | None) -> bool:
    if not numbers or not all(isinstance(number, int) for number in numbers):
        return False
    if list(numbers) != sorted(set(numbers)) or numbers[0] < low:
        return False
    return high is None or numbers[-1] <= high


_SIDES_PX = (16, 4096)
_RATES_HZ = (8_000, 48_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePolicy:
    """Rules for photos.

    A dataset's photos use one field: `img` (JPEG, PNG or WebP) with mode="reference" or alpha="keep", else `jpg`.
    Raises: InvalidSpec for an invalid field.
    """

    mode: Literal["canonical", "reference"] = "canonical"
    """"canonical": re-encoded upright in 8-bit sRGB, small, without metadata. "reference": the source's bytes, or a
    full-size PNG if the loader would misread them.
    """
    short_side_px: int = 256
    """Shorter side of a canonical photo in px, 16 to 4096; never enlarged."""
    jpeg_quality: int = 92
    """JPEG quality of a canonical photo, 1 to 100."""
    strip_gps: bool = True
    """True removes all metadata from reference photos with coordinates."""
    alpha: str = "white"
    """Background of transparent photos: "white", "black" or "#rrggbb". "drop" drops them; "keep" stores PNGs with
    alpha.
    """
    animated: Literal["drop", "first"] = "drop"
    """Objects of several frames: "drop", or "first" uses the first."""
    deep: Literal["drop", "reduce"] = "drop"
    """Gray of more than 8 bits, such as depth, unless its bytes are stored: "drop" drops it, "reduce" scales it to 8.
    Colour is always reduced.
    """
    buckets: Buckets = field(default_factory=Buckets)
    """Training shapes of photos (the column `bucket`)."""

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("canonical", "reference"))
        check_range("short_side_px", self.short_side_px, _SIDES_PX)
        check_range("jpeg_quality", self.jpeg_quality, (1, 100))
        if self.mode == "canonical" and not self.strip_gps:
            raise InvalidSpec(
                "strip_gps=False with mode='canonical': a canonical photo has no metadata",
                what="strip_gps",
                given=self.strip_gps,
                accepted=True,
            )
        if self.mode == "reference" and (self.short_side_px, self.jpeg_quality) != (256, 92):
            raise InvalidSpec(
                "short_side_px and jpeg_quality apply to canonical photos; a reference photo keeps its own",
                what="short_side_px and jpeg_quality",
                given=(self.short_side_px, self.jpeg_quality),
                accepted=(256, 92),
            )
        alpha_ground(self.alpha)
        check_choice("animated", self.animated, ("drop", "first"))
        check_choice("deep", self.deep, ("drop", "reduce"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPolicy:
    """Rules for clips of videos. Raises: InvalidSpec for an invalid field."""

    units: Literal["windows", "shots", "segments"] = "windows"
    """"windows": consecutive clips of `clip_s`. "shots": the same within each shot. "segments": rows of the `_segments`
    table, at their own lengths.
    """
    clip_s: float = 2.5
    """Length of a window and of the longest shot clip in seconds, 0.2 to 60."""
    min_clip_s: float = 0.5
    """Shortest shot clip in seconds, 0.1 to `clip_s`."""
    max_clips: int | None = 8
    """Most clips per video, spread evenly; None: all."""
    mode: Literal["canonical", "reference"] = "canonical"
    """"canonical": re-encoded, small. "reference": whole GOPs of the source, packet for packet, or else canonical with
    a column that states why.
    """
    max_overhead_ratio: float = 1.25
    """Largest ratio of stored to requested frames, 1 to 4."""
    short_side_px: int = 256
    """Shorter side of a canonical clip in px, 16 to 4096; never enlarged."""
    hdr: Literal["drop", "tonemap"] = "drop"
    """"drop" drops HDR video; "tonemap" converts it to SDR."""
    deep: Literal["drop", "reduce"] = "drop"
    """"drop" drops SDR video with more than 8 bits; "reduce" converts it to 8 bits."""
    sound_rate_hz: int = 16_000
    """Sample rate of a clip's audio in Hz, 8,000 to 48,000."""
    buckets: Buckets = field(default_factory=Buckets)
    """Training shapes of clips (the column `bucket`)."""

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
    """Rules for segments of audio. Raises: InvalidSpec for an invalid field."""

    segments: Literal["fixed", "energy", "given"] = "fixed"
    """"fixed": consecutive segments of `segment_s`. "energy": stretches louder than their background. "given": rows of
    the `_segments` table, at their own lengths.
    """
    segment_s: float = 5.0
    """Longest "fixed" or "energy" segment in seconds, 0.5 to 60."""
    pause_s: float = 0.5
    """Pause in seconds that ends an "energy" segment, 0.1 to `segment_s`."""
    padding_s: float = 0.2
    """Seconds kept around an "energy" segment, 0 to half of `segment_s`."""
    min_sound_s: float = 0.1
    """Shortest "energy" segment in seconds before padding, 0 to `segment_s`."""
    sample_rate_hz: int = 16_000
    """Sample rate of the stored audio in Hz, 8,000 to 48,000."""
    channels: Channels = "mono"
    """"mono" or "stereo" (ITU-R BS.775, attenuated so that no mix clips), "keep" or "first"."""
    bits: Literal[16, 24] = 16
    """Bits per FLAC sample, 16 or 24."""

    def __post_init__(self) -> None:
        check_choice("segments", self.segments, ("fixed", "energy", "given"))
        check_choice("channels", self.channels, CHANNELS)
        check_range("segment_s", self.segment_s, (0.5, 60))
        check_range("pause_s", self.pause_s, (0.1, self.segment_s))
        check_range("padding_s", self.padding_s, (0, self.segment_s / 2))
        check_range("min_sound_s", self.min_sound_s, (0, self.segment_s))
        check_range("sample_rate_hz", self.sample_rate_hz, _RATES_HZ)
        if self.bits not in (16, 24):
            raise invalid_option("bits", self.bits, "16, 24")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPolicy:
    """Cut policies of all kinds. Texts are stored unchanged."""

    image: ImagePolicy = field(default_factory=ImagePolicy)
    """Rules for photos."""
    video: VideoPolicy = field(default_factory=VideoPolicy)
    """Rules for clips of videos."""
    audio: AudioPolicy = field(default_factory=AudioPolicy)
    """Rules for segments of audio."""

    def of(self, kind: Kind) -> dict[str, Any]:
        """Return the settings that determine this kind's units, as plain values."""
        if kind == "text":
            return {}
        settings = asdict(getattr(self, kind))
        # Without this default, units of earlier releases keep their ids: it changes no unit, it only drops some.
        if kind == "image" and settings["deep"] == "drop":
            del settings["deep"]
        return settings


def check_range(name: str, value: float, bounds: tuple[float, float | None]) -> None:
    """Check that a number is within inclusive bounds. Raises: InvalidSpec."""
    low, high = bounds
    accepted = f"{low} or more"
    is_inside = math.isfinite(value) and value >= low
    if high is not None:
        accepted = f"{low} to {high}"
        is_inside = is_inside and value <= high
    if not is_inside:
        raise invalid_option(name, value, accepted)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that a value is one of the choices. Raises: InvalidSpec."""
    if value not in choices:
        accepted = ", ".join(map(repr, choices))
        raise invalid_option(name, value, accepted)


def policy_words(policy: CutPolicy, kinds: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return kind -> setting -> text, for stage records."""
    plain: dict[str, dict[str, Any]] = {kind: policy.of(kind) for kind in sorted(set(kinds))}  # type: ignore[arg-type]
    return {
        kind: {name: str(value) for name, value in rules.items()} for kind, rules in plain.items() if rules
    }
