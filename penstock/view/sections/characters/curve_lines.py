"""Metrics by step in characters: the main one as a range and a running median, the others as bars of eight heights."""

from collections.abc import Mapping, Sequence

from ....text import clean
from .bars import metric_bars
from .metric_values import Values, present_values
from .step_scale import StepScale
from .tall_curve import tall_lines

_NAME_LENGTH = 20
"""Most characters shown of a name."""
_STRUCK = "unusual steps"
_LAST = ("wait_ms", "substituted")
"""Metrics of every run, shown only if one is not zero."""


def curve_lines(
    chart: Mapping[str, Values],
    struck: Sequence[int],
    main: str,
    columns: int,
) -> list[str]:
    """Return the main metric's rows, then a line per metric: name, range and bars on its own scale; then the steps.

    chart, struck, main: of `CurvesSection`. columns: width in cells.
    """
    steps = [int(step) for step in chart["step"] if step is not None]
    if not steps:
        return []
    metrics = select_metrics(chart)
    heads = {name: _head(name, values) for name, values in metrics.items()}
    longest = max(heads.values(), default="", key=len)
    margin = 1 + max(len(longest), len(_STRUCK))
    # An unusual step may lie outside of the points, such as the last one of a run that diverged.
    numbers = [*steps, *struck]
    scale = StepScale(
        first=min(numbers),
        last=max(numbers),
        most_cells=columns - margin,
    )
    cells = [scale.step_cell(step) for step in steps]
    lines: list[str] = []
    if main in metrics:
        lines += tall_lines(
            metrics[main],
            cells,
            scale.n_cells,
            margin,
        )
    for name, values in metrics.items():
        head = heads[name].ljust(margin)
        bars = metric_bars(values, cells, scale.n_cells)
        lines.append(head + bars)
    if struck:
        head = _STRUCK.ljust(margin)
        strokes = scale.strokes(struck)
        lines.append(head + strokes)
    head = "step".ljust(margin)
    lines.append(head + scale.ends())
    return lines


def select_metrics(chart: Mapping[str, Values], first: str = "") -> dict[str, Values]:
    """Return the metrics of a chart to draw: waits and substitutions only if they are not zero.

    first: metric that comes before the others; "" keeps the chart's order.
    """
    metrics = {}
    names = sorted(chart, key=lambda name: name != first)
    for name in names:
        values = chart[name]
        is_shown = name not in _LAST or any(values)
        if name != "step" and is_shown:
            metrics[name] = values
    return metrics


def _head(name: str, values: Values) -> str:
    known = present_values(values)
    text = "no finite value"
    if known:
        low = known[0]
        high = known[-1]
        text = f"{low:.4g} to {high:.4g}"
    shown_name = clean(name, _NAME_LENGTH)
    return f"{shown_name:<16} {text}"
