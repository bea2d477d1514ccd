"""Buckets of resolution, aspect and length: which fixed shape a picture or clip is trained at.

The sizes of a base are those of Stable Diffusion XL's table (Podell et al. 2023, appendix I) by the rule behind it:
for every width on a grid of 64 px the largest height on the grid whose area stays within base x base, and the same
turned on its side; of 256 on a grid of 32 px. At 1024 this gives 33 of that table's 40 sizes; the other 7 have less
area than their neighbours.

A bucket is a name, `w896h1152`, or with frames `w640h384f32`, so that a plan or a predicate can select it as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from math import isqrt

Size = tuple[int, int]

_GRID_PX, _SMALL_GRID_PX, _SMALL_BELOW_PX = 64, 32, 512
_BASES_PX = (64, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """bases_px: sides of the squares whose areas buckets have, ascending multiples of 64 (of 32 below 512); max_aspect:
    the longer side over the shorter, at most; aspects: None for every size of the grid, or (width, height) pairs such
    as (3, 2), each of which gives the nearest size of the grid. frames: lengths of clips, ascending.

    max_upscale: by how much a picture may be enlarged to fill its bucket; max_crop: the share of its area that may be
    cut off. Raises: ValueError.
    """

    bases_px: tuple[int, ...] = (256, 512, 1024)
    max_aspect: int = 4
    aspects: tuple[Size, ...] | None = None
    frames: tuple[int, ...] = (16, 32, 64)
    max_upscale: float = 1.0
    max_crop: float = 0.5

    def __post_init__(self) -> None:
        low, high = _BASES_PX
        if not _ascending(self.bases_px, low, high) or any(base % grid_px(base) for base in self.bases_px):
            raise ValueError(
                f"bases_px={self.bases_px}; accepted: {low} to {high}, ascending, multiples of {_GRID_PX} "
                f"({_SMALL_GRID_PX} below {_SMALL_BELOW_PX})"
            )
        if not _ascending(self.frames, 1, None):
            raise ValueError(f"frames={self.frames}; accepted: whole numbers from 1, ascending")
        if not 1 <= self.max_aspect <= 16:
            raise ValueError(f"max_aspect={self.max_aspect}; accepted: 1 to 16")
        if self.aspects is not None and not all(
            min(pair) > 0 and max(pair) <= self.max_aspect * min(pair) for pair in self.aspects
        ):
            raise ValueError(
                f"aspects={self.aspects}; accepted: (width, height) pairs, at most {self.max_aspect}:1, or None"
            )
        if not 1 <= self.max_upscale <= 8:
            raise ValueError(f"max_upscale={self.max_upscale}; accepted: 1 to 8")
        if not 0 <= self.max_crop < 1:
            raise ValueError(f"max_crop={self.max_crop}; accepted: 0 up to, not including, 1")


@lru_cache(maxsize=4096)
def bucket_of(buckets: Buckets, width_px: int, height_px: int, n_frames: int | None = None) -> str | None:
    """The bucket of a picture, or of a clip of `n_frames`: of the largest base that it fills, the size whose aspect is
    nearest in ratio; of the lengths, the longest that it has. None where it fills none, or would be cut too much.

    It is scaled until it covers the bucket, and cut there. Exact: compared as fractions, the same on every machine.
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
    """`w<width>h<height>`, with `f<frames>` for clips."""
    return f"w{size[0]}h{size[1]}" + (f"f{n_frames}" if n_frames is not None else "")


@cache
def sizes(buckets: Buckets, base_px: int) -> tuple[Size, ...]:
    """The (width, height) of a base's buckets, from the tallest to the widest."""
    found = set(_of_grid(base_px, buckets.max_aspect) if buckets.aspects is None else ())
    for width, height in buckets.aspects or ():
        found.add(_on_grid(base_px, width, height))
    return tuple(sorted(found, key=lambda size: (Fraction(*size), size)))


def grid_px(base_px: int) -> int:
    """Sides are multiples of this."""
    return _SMALL_GRID_PX if base_px < _SMALL_BELOW_PX else _GRID_PX


def _of_grid(base_px: int, max_aspect: int) -> Iterator[Size]:
    step, area = grid_px(base_px), base_px * base_px
    for width in range(step, base_px * max_aspect + 1, step):
        height = area // width // step * step
        if height and max(width, height) <= max_aspect * min(width, height):
            yield width, height
            yield height, width


def _on_grid(base_px: int, width: int, height: int) -> Size:
    """The size of the base's area and this aspect, each side to the nearest multiple."""
    step = grid_px(base_px)

    def side(over: int, under: int) -> int:
        # round(base * sqrt(over / under) / step), in whole numbers: half a step is added before the root is cut off
        return max(1, (isqrt(4 * base_px * base_px * over // (under * step * step)) + 1) // 2) * step

    return side(width, height), side(height, width)


def _nearest(found: tuple[Size, ...], width_px: int, height_px: int) -> Size | None:
    """By the ratio of the two aspects; of two that are equally near, the larger and then the wider."""

    def distance(size: Size) -> tuple[Fraction, int, int]:
        ratio = Fraction(width_px * size[1], height_px * size[0])
        return max(ratio, 1 / ratio), -size[0] * size[1], -size[0]

    return min(found, key=distance, default=None)


def _fits(buckets: Buckets, size: Size, width_px: int, height_px: int) -> bool:
    scale = max(Fraction(size[0], width_px), Fraction(size[1], height_px))
    kept = Fraction(size[0] * size[1], width_px * height_px) / scale**2
    return scale <= Fraction(buckets.max_upscale) and 1 - kept <= Fraction(buckets.max_crop)


def _ascending(numbers: tuple[int, ...], low: int, high: int | None) -> bool:
    return (
        bool(numbers)
        and all(isinstance(number, int) for number in numbers)
        and list(numbers) == sorted(set(numbers))
        and numbers[0] >= low
        and (high is None or numbers[-1] <= high)
    )
