"""A note along the steps of a run in one line of a terminal."""

from collections.abc import Sequence

import numpy as np

_HEIGHTS = "▁▂▃▄▅▆▇█"


def chart_line(name: str, values: Sequence[float | None], columns: int) -> str:
    """Return a note along the steps in one line: its name, its least and largest value, and eight heights."""
    known = [one for one in values if one is not None]
    if not known:
        return f"{name:<16} no finite value"
    low, high = min(known), max(known)
    head = f"{name:<16} {low:.4g} to {high:.4g} "
    room = max(8, columns - len(head))
    parts = [part.tolist() for part in np.array_split(np.array(values, object), min(room, len(values)))]
    tops = [max((one for one in part if one is not None), default=None) for part in parts]
    scale = (len(_HEIGHTS) - 1) / (high - low) if high > low else 0.0
    return head + "".join(" " if top is None else _HEIGHTS[round((top - low) * scale)] for top in tops)
