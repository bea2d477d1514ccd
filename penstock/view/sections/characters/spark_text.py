"""Small lines in characters."""

from ...polyline import SPARK_HEIGHT, SPARK_WIDTH
from .bars import metric_bars

SPARK_CELLS = 16
"""Characters of a small line."""


def spark_text(points: str) -> str:
    """Return a small line as bars. points: of an SVG polyline, whose y grows downwards."""
    heights = []
    cells = []
    for point in points.split():
        x, _, y = point.partition(",")
        cell = int(float(x) * SPARK_CELLS / SPARK_WIDTH)
        cells.append(min(cell, SPARK_CELLS - 1))
        heights.append(SPARK_HEIGHT - float(y))
    return metric_bars(heights, cells, SPARK_CELLS)
