"""Points of small lines and areas that the server draws as SVG."""

from collections.abc import Sequence

import numpy as np

SPARK_WIDTH = 120
SPARK_HEIGHT = 22
"""Size of a line in a table, in the drawing's units."""
_EDGE = 2.0
"""Free space above and below a line, so that its stroke is not cut."""


def polyline_points(
    positions: Sequence[float],
    values: Sequence[float],
    *,
    width: float = SPARK_WIDTH,
    height: float = SPARK_HEIGHT,
    low: float | None = None,
) -> str:
    """Return the points of an SVG polyline, as "x,y x,y"; "" for fewer than two values.

    positions: ascending. values: finite. low: value at the bottom; None for the smallest one.
    """
    if len(values) < 2:
        return ""
    x = np.asarray(positions, np.float64)
    y = np.asarray(values, np.float64)
    bottom = float(y.min()) if low is None else low
    spread = float(y.max()) - bottom
    # A line without a spread runs in the middle.
    share = (y - bottom) / spread if spread > 0 else np.full(len(y), 0.5)
    across = (x - x[0]) / (x[-1] - x[0]) * width if x[-1] > x[0] else np.linspace(0, width, len(x))
    down = height - _EDGE - share * (height - 2 * _EDGE)
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True))
