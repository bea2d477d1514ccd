"""The better of two copies: a total order over samples, the same in every process.

1. More pixels in the source, as seen (upright, square).
2. More bytes per pixel of the source, and per second of a video.
3. Sharper, where the featurizer `picture` measured it.
4. Published before; landed before; the smaller key.

The first three are compared in classes: a quarter of an octave of pixels, half an octave of bytes and of sharpness. A
copy that was saved again with 1 % more bytes is not better, and a published sample is not replaced for it. An unknown
value is in the lowest class. The order judges by the size of a file, not by its content: an enlarged copy has more
pixels.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from .hamming import Int64s

if TYPE_CHECKING:
    import polars as pl

Float64s = np.ndarray[Any, np.dtype[np.float64]]

COLUMNS = (
    "width_px",
    "height_px",
    "source_width_px",
    "source_height_px",
    "source_nbytes",
    "source_duration_s",
    "sharpness_laplacian_var",
)
"""Columns of the samples table; a column that it lacks is null."""

_BETTER = (("has more pixels", ".0f"), ("has more bytes per pixel", ".3g"), ("is sharper", ".3g"))
_STEPS_PER_OCTAVE = (4, 2, 2)
_UNKNOWN = -(1 << 20)


def measured(table: "pl.DataFrame") -> Float64s:
    """Return float64 [n, 3]: pixels, bytes per pixel (and second), sharpness; NaN where unknown."""

    def column(name: str) -> Float64s:
        values: Float64s = table[name].cast(float).fill_null(float("nan")).to_numpy()
        return values

    source = column("source_width_px") * column("source_height_px")
    pixels = np.where(np.isnan(source), column("width_px") * column("height_px"), source)
    seconds = np.nan_to_num(column("source_duration_s"), nan=1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        nbytes = column("source_nbytes") / (pixels * np.where(seconds > 0, seconds, 1.0))
    return np.stack([pixels, nbytes, column("sharpness_laplacian_var")], axis=1)


def classes(values: Float64s) -> Int64s:
    """Return int64 [n, 3] of `measured`: the class of each, the larger the better."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.rint(np.log2(values) * _STEPS_PER_OCTAVE)
    found: Int64s = np.where(np.isfinite(steps), steps, _UNKNOWN).astype(np.int64)
    return found


def why(better: Float64s, worse: Float64s) -> str:
    """Return in which way one of two rows of `measured` is better, or "" when their classes are the same."""
    for place, (ours, theirs) in enumerate(zip(classes(better), classes(worse), strict=True)):
        if ours != theirs:
            words, digits = _BETTER[place]
            known = "" if np.isnan(worse[place]) else f" against {worse[place]:{digits}}"
            return f"{words}: {better[place]:{digits}}{known}"
    return ""
