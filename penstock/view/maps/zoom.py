"""The parts of a map that a page links to: larger, smaller, and beside the one that is drawn."""

from ...search.map.drawing import SIDE_PX, WHOLE, Box
from ...search.map.lasso import MAP_UNITS

LEAST_SIDE = SIDE_PX
"""Map units along an axis of the smallest part: one a pixel."""
MOVED = 4
"""A step beside moves by this part of the side."""


def box_text(box: Box) -> str:
    """Return a part as it stands in an address; "" for the whole map."""
    if box == WHOLE:
        return ""
    return ",".join(map(str, box))


def zoom_boxes(box: Box) -> dict[str, Box]:
    """Return name -> part; a part that is drawn already has no name."""
    width = box.x1 - box.x0
    height = box.y1 - box.y0
    right = width // MOVED
    down = height // MOVED
    parts = {
        "in": _resize(
            box,
            width // 2,
            height // 2,
        ),
        "out": _resize(
            box,
            width * 2,
            height * 2,
        ),
        "left": _move(box, -right, 0),
        "right": _move(box, right, 0),
        "up": _move(box, 0, -down),
        "down": _move(box, 0, down),
        "whole": WHOLE,
    }
    # A link to the same part would look like one that is broken.
    return {name: part for name, part in parts.items() if part != box}


def _resize(
    box: Box,
    width: int,
    height: int,
) -> Box:
    """Return a part with the same middle."""
    width = max(LEAST_SIDE, width)
    width = min(MAP_UNITS, width)
    height = max(LEAST_SIDE, height)
    height = min(MAP_UNITS, height)
    x = (box.x0 + box.x1) // 2
    y = (box.y0 + box.y1) // 2
    x0 = _inside(x - width // 2, width)
    y0 = _inside(y - height // 2, height)
    return Box(
        x0,
        y0,
        x0 + width,
        y0 + height,
    )


def _move(
    box: Box,
    right: int,
    down: int,
) -> Box:
    width = box.x1 - box.x0
    height = box.y1 - box.y0
    x0 = _inside(box.x0 + right, width)
    y0 = _inside(box.y0 + down, height)
    return Box(
        x0,
        y0,
        x0 + width,
        y0 + height,
    )


def _inside(first: int, side: int) -> int:
    """Return the nearest start of a side that lies on the map."""
    last = MAP_UNITS - side
    return max(0, min(last, first))
