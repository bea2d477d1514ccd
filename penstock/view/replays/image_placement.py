"""Find the position of a transformed image in the decoded one, and how its colours were scaled.

Black, grey and white images give each channel's scale; two gradients give each pixel's original position, to which an
affine map is fitted by least squares.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import PenstockError

MOST_RESIDUAL_PX = 3.0
"""Largest residual; beyond it, the transform is no crop, flip, scaling or rotation."""
MOST_NONLINEAR = 0.02
"""Largest deviation of grey, as a share of the distance of black and white."""
_MOST_POINTS = 4096
_LEVELS = (0, 128, 255)

Sample = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Position and colours of a transformed image in the original."""

    corners: tuple[tuple[float, float], ...] = ()
    """(x, y) in original pixels: top left, top right, bottom right, bottom left; empty without a fit."""
    mirrored: bool = False
    """True if mirrored."""
    residual_px: float = 0.0
    """Fit error's 95th percentile, in original pixels."""
    black: tuple[float, ...] = ()
    """Transformed black per channel; empty if colours are not scaled linearly."""
    white: tuple[float, ...] = ()
    """Likewise for white."""
    reason: str = ""
    """Why corners or colours are missing, or ""."""

    @property
    def outline(self) -> str:
        """The corners as text."""
        # Adding zero makes -0 a 0.
        corners = " ".join(f"({x + 0:g}, {y + 0:g})" for x, y in self.corners)
        return f"{corners}, mirrored" if self.mirrored else corners

    def original_colours(self, pixels: NDArray[Any]) -> NDArray[np.uint8]:
        """Return uint8 [H, W, C]. pixels: transformed image, [H, W, C]."""
        black, white = np.array(self.black), np.array(self.white)
        levels = (np.asarray(pixels, np.float64) - black) / (white - black) * 255
        rounded: NDArray[np.uint8] = np.clip(np.rint(np.nan_to_num(levels)), 0, 255).astype(np.uint8)
        return rounded


def channels_last(value: object) -> NDArray[Any] | None:
    """Return an image of 1, 3 or 4 channels as [H, W, C], or None."""
    if not hasattr(value, "__array__"):
        return None
    try:
        pixels = np.asarray(value)
    except TypeError:  # numpy lacks bfloat16, whose values float32 represents exactly
        pixels = np.asarray(value.float())  # type: ignore[attr-defined]
    if pixels.ndim != 3 or pixels.dtype.kind not in "uif" or not pixels.size:
        return None
    if pixels.shape[2] in (1, 3, 4):
        return pixels
    return pixels.transpose(1, 2, 0) if pixels.shape[0] in (1, 3, 4) else None


def placements(
    decoded: Mapping[str, Any], trained: Mapping[str, Any], transformed: Callable[[Sample], Sample]
) -> dict[str, Placement]:
    """Return the placement of each changed image that was uint8 before the transform.

    transformed: runs the transform with this sample's generator. Called five times per field.
    """
    out = {}
    for name, after in trained.items():
        before = decoded.get(name)
        original, image = channels_last(before), channels_last(after)
        if original is None or image is None or original.dtype != np.uint8:
            continue
        is_last = original is before
        if not is_last:  # no decoder returns channels first
            continue
        if original.shape == image.shape and np.array_equal(original, image):
            continue
        try:
            out[name] = _placement(decoded, name, original.shape, image.shape, transformed)
        except PenstockError as error:
            out[name] = Placement(reason=f"the transform fails on a test image: {error}")
    return out


def _placement(
    decoded: Mapping[str, Any],
    name: str,
    shape: tuple[int, ...],
    target_shape: tuple[int, ...],
    transformed: Callable[[Sample], Sample],
) -> Placement:
    height, width, n_channels = shape

    def run(image: NDArray[np.uint8]) -> Floats:
        out = channels_last(transformed({**decoded, name: image}).get(name))
        if out is None or out.shape != target_shape:
            raise _ShapeDiffers
        return out.astype(np.float64)

    def gradient(steps: NDArray[np.uint8]) -> NDArray[np.uint8]:
        image = np.repeat(np.broadcast_to(steps, (height, width))[:, :, None], n_channels, axis=2)
        if n_channels == 4:
            image[:, :, 3] = 255
        return np.ascontiguousarray(image)

    try:
        black, grey, white = (run(gradient(np.array([[level]], np.uint8))) for level in _LEVELS)
        ramp = [np.linspace(0, 255, side).round().astype(np.uint8) for side in (width, height)]
        across, down = run(gradient(ramp[0][None, :])), run(gradient(ramp[1][:, None]))
    except _ShapeDiffers:
        return Placement(reason="the result's size depends on the image's content")
    colours = _colours(black, grey, white)
    ends = np.array([width - 1, height - 1])
    corners, mirrored, residual = _fitted(black, white, across, down, ends)
    reasons = []
    if not colours[0]:
        reasons.append("its colours are no linear map of the original's")
    if not corners:
        reasons.append("it is no crop, flip, scale or rotation of the original")
    return Placement(
        corners=corners,
        mirrored=mirrored,
        residual_px=round(residual, 2),
        black=colours[0],
        white=colours[1],
        reason="; ".join(reasons),
    )


class _ShapeDiffers(Exception):
    """A test image's transformed shape is not the sample's."""


def _colours(black: Floats, grey: Floats, white: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return transformed black and white per channel; empty if grey is not halfway."""
    low, middle, high = (np.median(pixels, axis=(0, 1)) for pixels in (black, grey, white))
    span = high - low
    if not np.isfinite([low, middle, high]).all() or not np.all(np.abs(span) > 1e-9):
        return (), ()
    expected = low + span * _LEVELS[1] / _LEVELS[2]
    if np.any(np.abs(middle - expected) > MOST_NONLINEAR * np.abs(span) + 0.5 * _step(black)):
        return (), ()
    return tuple(low.tolist()), tuple(high.tolist())


def _step(values: Floats) -> float:
    """Return the rounding step: 1 for integers, else 0."""
    return 1.0 if np.array_equal(values, np.rint(values)) else 0.0


def _fitted(
    black: Floats, white: Floats, across: Floats, down: Floats, ends: NDArray[np.int64]
) -> tuple[tuple[tuple[float, float], ...], bool, float]:
    """Return (corners in the original, is mirrored, residual in pixels)."""
    colour = slice(0, min(3, black.shape[2]))
    span = (white - black)[:, :, colour]
    height, width = span.shape[:2]
    with np.errstate(all="ignore"):
        x = np.nanmean((across - black)[:, :, colour] / span, axis=2) * ends[0]
        y = np.nanmean((down - black)[:, :, colour] / span, axis=2) * ends[1]
    rows, columns = np.mgrid[0:height, 0:width]
    # Padding has no position, and pixels at the ends of a gradient may be clipped.
    known = (
        np.isfinite(x) & np.isfinite(y) & (x > 0.5) & (x < ends[0] - 0.5) & (y > 0.5) & (y < ends[1] - 0.5)
    )
    chosen = np.flatnonzero(known)
    if len(chosen) < 16:
        return (), False, 0.0
    chosen = chosen[:: max(1, len(chosen) // _MOST_POINTS)]
    ones = np.ones(len(chosen))
    at = np.stack([columns.reshape(-1)[chosen], rows.reshape(-1)[chosen], ones], axis=1)
    to = np.stack([x.reshape(-1)[chosen], y.reshape(-1)[chosen]], axis=1)
    solved = np.linalg.lstsq(at, to, rcond=None)[0]
    distance = np.hypot(*(at @ solved - to).T)
    # Gradients have only 256 levels. Half a level of rounding does not count as an error of the fit.
    residual = max(0.0, float(np.percentile(distance, 95)) - float(ends.max()) / 510)
    if residual > MOST_RESIDUAL_PX:
        return (), False, residual
    outer = np.array(
        [[-0.5, -0.5, 1], [width - 0.5, -0.5, 1], [width - 0.5, height - 0.5, 1], [-0.5, height - 0.5, 1]]
    )
    corners = outer @ solved + 0.5
    determinant = float(solved[0, 0] * solved[1, 1] - solved[0, 1] * solved[1, 0])
    return tuple((round(float(a), 1), round(float(b), 1)) for a, b in corners), determinant < 0, residual
