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
"""Largest residual; beyond it, the transform is not a crop, flip, scaling or rotation."""
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
        if self.mirrored:
            return f"{corners}, mirrored"
        return corners

    def original_colours(self, pixels: NDArray[Any]) -> NDArray[np.uint8]:
        """Return uint8 [H, W, C]. pixels: transformed image, [H, W, C]."""
        black = np.array(self.black)
        white = np.array(self.white)
        shares = (np.asarray(pixels, np.float64) - black) / (white - black)
        levels = np.rint(np.nan_to_num(shares * 255))
        colours: NDArray[np.uint8] = np.clip(levels, 0, 255).astype(np.uint8)
        return colours


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
    if pixels.shape[0] in (1, 3, 4):
        return pixels.transpose(1, 2, 0)
    return None


def placements(
    decoded: Mapping[str, Any], trained: Mapping[str, Any], transformed: Callable[[Sample], Sample]
) -> dict[str, Placement]:
    """Return the placement of each changed image that was uint8 before the transform.

    transformed: runs the transform with this sample's generator. Called five times per field.
    """
    out = {}
    for name, after in trained.items():
        before = decoded.get(name)
        original = channels_last(before)
        image = channels_last(after)
        if original is None or image is None or original.dtype != np.uint8:
            continue
        is_channels_last = original is before
        if not is_channels_last:  # no decoder returns channels first
            continue
        if np.array_equal(original, image):
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
        plane = np.broadcast_to(steps, (height, width))
        image = np.repeat(plane[:, :, None], n_channels, axis=2)
        if n_channels == 4:
            image[:, :, 3] = 255
        return np.ascontiguousarray(image)

    def ramp(length: int) -> NDArray[np.uint8]:
        return np.linspace(0, 255, length).round().astype(np.uint8)

    try:
        black, grey, white = (run(gradient(np.array([[level]], np.uint8))) for level in _LEVELS)
        across = run(gradient(ramp(width)[None, :]))
        down = run(gradient(ramp(height)[:, None]))
    except _ShapeDiffers:
        return Placement(reason="the result's size depends on the image's content")
    black_levels, white_levels = _colours(black, grey, white)
    ends = np.array([width - 1, height - 1])
    corners, mirrored, residual = _fit(black, white, across, down, ends)
    reasons = []
    if not black_levels:
        reasons.append("its colours are not a linear map of the original's")
    if not corners:
        reasons.append("it is not a crop, flip, scale or rotation of the original")
    return Placement(
        corners=corners,
        mirrored=mirrored,
        residual_px=round(residual, 2),
        black=black_levels,
        white=white_levels,
        reason="; ".join(reasons),
    )


class _ShapeDiffers(Exception):
    """A test image's transformed shape is not the sample's."""


def _colours(black: Floats, grey: Floats, white: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return transformed black and white per channel; empty if grey is not halfway."""
    low, middle, high = (np.median(pixels, axis=(0, 1)) for pixels in (black, grey, white))
    span = high - low
    is_finite = np.isfinite([low, middle, high]).all()
    if not is_finite or np.any(np.abs(span) <= 1e-9):
        return (), ()
    expected = low + span * _LEVELS[1] / _LEVELS[2]
    deviation = np.abs(middle - expected)
    tolerance = MOST_NONLINEAR * np.abs(span) + 0.5 * _step(black)
    if np.any(deviation > tolerance):
        return (), ()
    return tuple(low.tolist()), tuple(high.tolist())


def _step(values: Floats) -> float:
    """Return the rounding step: 1 for integers, else 0."""
    if np.array_equal(values, np.rint(values)):
        return 1.0
    return 0.0


def _fit(
    black: Floats, white: Floats, across: Floats, down: Floats, ends: NDArray[np.int64]
) -> tuple[tuple[tuple[float, float], ...], bool, float]:
    """Return (corners in the original, is mirrored, residual in pixels)."""
    colour = slice(0, min(3, black.shape[2]))
    span = (white - black)[:, :, colour]
    height, width = span.shape[:2]
    with np.errstate(all="ignore"):
        shares_across = (across - black)[:, :, colour] / span
        shares_down = (down - black)[:, :, colour] / span
        share_across = np.nanmean(shares_across, axis=2)
        share_down = np.nanmean(shares_down, axis=2)
    # [height, width]: each pixel's position in the original.
    x = share_across * ends[0]
    y = share_down * ends[1]
    # Padding has no position, and pixels at the ends of a gradient may be clipped. No comparison holds for NaN.
    x_is_known = (x > 0.5) & (x < ends[0] - 0.5)
    y_is_known = (y > 0.5) & (y < ends[1] - 0.5)
    points = np.flatnonzero(x_is_known & y_is_known)
    if len(points) < 16:
        return (), False, 0.0
    step = max(1, len(points) // _MOST_POINTS)
    points = points[::step]
    row, column = np.divmod(points, width)
    ones = np.ones(len(points))
    image_points = np.stack([column, row, ones], axis=1)
    original_x = x.reshape(-1)[points]
    original_y = y.reshape(-1)[points]
    original_points = np.stack([original_x, original_y], axis=1)
    affine = np.linalg.lstsq(image_points, original_points, rcond=None)[0]  # [3, 2]
    errors = image_points @ affine - original_points
    distance = np.hypot(errors[:, 0], errors[:, 1])
    # Gradients have only 256 levels. Half a level of rounding does not count as an error of the fit.
    rounding_px = float(ends.max()) / 510
    error_px = float(np.percentile(distance, 95))
    residual = max(0.0, error_px - rounding_px)
    if residual > MOST_RESIDUAL_PX:
        return (), False, residual
    right = width - 0.5
    bottom = height - 0.5
    image_corners = np.array(
        [
            [-0.5, -0.5, 1],
            [right, -0.5, 1],
            [right, bottom, 1],
            [-0.5, bottom, 1],
        ]
    )
    original_corners = (image_corners @ affine + 0.5).round(1)
    corners = tuple((float(x), float(y)) for x, y in original_corners)
    determinant = np.linalg.det(affine[:2])
    return corners, bool(determinant < 0), residual
