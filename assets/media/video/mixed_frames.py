"""Find frames that are a mix of a frame before and a frame after them: m = of_a * a + of_b * b, by least squares."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LAGS = (6, 12, 24)
"""Half lengths of dissolves, in frames."""
UNRELATED = 0.35
"""Highest correlation of two scenes that a dissolve joins."""
_LEAST_SHARE = 0.2  # of each scene in a mixed frame
_LARGEST_SHARE = 0.8
_LARGEST_REST = 0.24  # share of the frame that no mixture explains
_LEAST_STD = 6.0  # of both scenes: a flat frame mixes with everything
_COARSE = 4  # searched at 1/4 of the thumbnails' size, with 1/16 of the pixels

Frames = NDArray[np.uint8]
Floats = NDArray[np.float64]


class MixedFrame(NamedTuple):
    """A frame that is a mix of the frames `lag` before and after it."""

    position: int
    lag: int
    """Frames to either scene, one of `LAGS`."""
    balance: float
    """Smaller of the two weights."""


class _Mixture(NamedTuple):
    """Frames m, as mixtures of a and b. Each float64 [frames]; nan or inf where a and b are proportional."""

    of_a: Floats
    of_b: Floats
    rest: Floats
    same: Floats


def mixed_frames(
    frames: Frames,
    std: Floats,
    begin: int,
    end: int,
) -> Iterator[MixedFrame]:
    """Yield the mixed frames at positions in [begin, end), by lag.

    frames: uint8 [n, height, width]. std: standard deviation of each frame.
    """
    coarse = _quarter(frames)
    mean = coarse.mean(axis=1, keepdims=True)
    plain = coarse - mean  # [n, blocks]: products are covariances
    power = _dots(plain, plain)  # [n]
    for lag in LAGS:
        # Only frames with both neighbours in memory.
        low = max(begin, lag)
        high = min(end, len(frames) - lag)
        if low >= high:
            continue
        a = slice(low - lag, high - lag)  # frames of the scene that goes
        m = slice(low, high)
        b = slice(low + lag, high + lag)  # frames of the scene that comes
        mixture = _mixture(plain, power, a, m, b)
        balance = np.minimum(mixture.of_a, mixture.of_b)  # this and all below: [high - low]
        larger_share = np.maximum(mixture.of_a, mixture.of_b)
        lower_std = np.minimum(std[a], std[b])
        is_mixed = balance > _LEAST_SHARE
        is_mixed &= larger_share < _LARGEST_SHARE
        is_mixed &= mixture.rest < _LARGEST_REST
        is_mixed &= mixture.same < UNRELATED
        is_mixed &= lower_std >= _LEAST_STD
        for number in np.flatnonzero(is_mixed).tolist():
            yield MixedFrame(
                position=low + number,
                lag=lag,
                balance=float(balance[number]),
            )


def _mixture(
    plain: Floats,
    power: Floats,
    a: slice,
    m: slice,
    b: slice,
) -> _Mixture:
    # The normal equations, solved by Cramer's rule for all frames at once.
    power_a = power[a]
    power_b = power[b]
    ab = _dots(plain[a], plain[b])
    am = _dots(plain[a], plain[m])
    mb = _dots(plain[m], plain[b])
    determinant = power_a * power_b - ab * ab
    with np.errstate(divide="ignore", invalid="ignore"):
        of_a = (am * power_b - mb * ab) / determinant
        of_b = (mb * power_a - am * ab) / determinant
        explained = (of_a * am + of_b * mb) / power[m]  # share of m's power
        unexplained = np.maximum(0, 1 - explained)  # rounding may lift `explained` above 1
        same = ab / np.sqrt(power_a * power_b)
    return _Mixture(
        of_a=of_a,
        of_b=of_b,
        rest=np.sqrt(unexplained),
        same=same,
    )


def _dots(x: Floats, y: Floats) -> Floats:
    dots: Floats = np.einsum("tp,tp->t", x, y)  # without the [t, p] temporary of a product
    return dots


def _quarter(frames: Frames) -> Floats:
    """Return the means of 4 x 4 px blocks, float64 [n, blocks]."""
    n, height, width = frames.shape
    strips = frames.reshape(
        n,
        height // _COARSE,
        _COARSE,
        width,
    )
    rows = strips.sum(axis=2, dtype=np.uint16)  # [n, height / 4, width]: sums of 4 px, one above the other
    # Strided sums: numpy is slow at summing a last axis of 4.
    blocks = rows[:, :, ::_COARSE].copy()  # [n, height / 4, width / 4]
    for column in range(1, _COARSE):
        blocks += rows[:, :, column::_COARSE]
    means: Floats = blocks.reshape(n, -1) / _COARSE**2
    return means
