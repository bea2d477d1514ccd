"""Bars of block characters."""

from collections.abc import Sequence

from .metric_values import Values, cell_ranges

BAR = 12
"""Characters of a bar that is full."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar_text(share: float, width: int = BAR) -> str:
    """Return a bar of a share from 0 to 1, in eighths of a character. A share above 0 has at least one eighth."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    text = _EIGHTHS[8] * whole
    if rest:
        text += _EIGHTHS[rest]
    return text.ljust(width)


def metric_bars(
    values: Values,
    cells: Sequence[int],
    n_cells: int,
) -> str:
    """Return the largest value of each cell as a bar."""
    drawn = [" "] * n_cells
    ranges = cell_ranges(values, cells)
    if not ranges:
        return "".join(drawn)
    lowest = min(each.low for each in ranges)
    highest = max(each.high for each in ranges)
    scale = 0.0
    if highest > lowest:
        scale = (len(_HEIGHTS) - 1) / (highest - lowest)
    for each in ranges:
        height = round((each.high - lowest) * scale)
        drawn[each.cell] = _HEIGHTS[height]
    return "".join(drawn)
