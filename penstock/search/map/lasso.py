"""Select places on a map by a polygon, drawn on a grid of 1,024 x 1,024 cells.

A place is inside if the centre of its cell is inside by the even-odd rule. Crossings of edges and rows of cells are
whole-number divisions, so that page, command and slice agree on each sample. A grid costs 1 ms and a place 3 ns; a test
of each place against each edge would take 40 times longer at 12 corners.
"""

import re
from typing import Any

import numpy as np

from loader.dataset.shards.bitmap import Bools
from loader.dataset.tables.parquet import Int64s
from loader.errors import InvalidRuntime

MAP_UNITS = 65_536
"""Places of a map along one axis: whole numbers from 0 to 65,535."""
FEWEST_CORNERS = 3
MOST_CORNERS = 64
GRID = 1_024
"""Cells along one axis."""

_CELL = MAP_UNITS // GRID
_CELL_BITS = _CELL.bit_length() - 1
_HALF = _CELL // 2
_MOST_CHARACTERS = MOST_CORNERS * len("65535,65535;")
_NUMBER = re.compile(r"[0-9]{1,5}", re.ASCII)
_FORM = 'a lasso is 3 to 64 corners "X,Y;X,Y;..." of whole numbers from 0 to 65,535'

Corner = tuple[int, int]
Corners = tuple[Corner, ...]
Places = np.ndarray[Any, np.dtype[np.uint16]]


def parse_lasso(text: str) -> Corners:
    """Return the corners of a polygon such as "100,100;900,100;500,800". Raises: InvalidRuntime."""
    if len(text) > _MOST_CHARACTERS:
        message = f"the lasso has {len(text):,} characters, accepted are {_MOST_CHARACTERS}: {_FORM}"
        raise InvalidRuntime(
            message,
            what="lasso",
            given=len(text),
            accepted=_MOST_CHARACTERS,
        )
    stated = text.strip().removesuffix(";").split(";")
    if not FEWEST_CORNERS <= len(stated) <= MOST_CORNERS:
        message = f"the lasso {text!r:.60} has {len(stated)} corners: {_FORM}"
        raise InvalidRuntime(
            message,
            what="corners",
            given=len(stated),
            accepted="3 to 64",
        )
    corners = []
    for corner in stated:
        x, comma, y = corner.partition(",")
        if not comma:
            message = f"the corner {corner!r:.40} of the lasso is not X,Y: {_FORM}"
            raise InvalidRuntime(
                message,
                what="corner",
                given=corner,
                accepted="X,Y",
            )
        corners.append((_coordinate(x), _coordinate(y)))
    return tuple(corners)


def _coordinate(text: str) -> int:
    if not _NUMBER.fullmatch(text.strip()) or int(text) >= MAP_UNITS:
        message = f"the lasso has the number {text!r:.40}: {_FORM}"
        raise InvalidRuntime(
            message,
            what="coordinate",
            given=text,
            accepted="0 to 65,535",
        )
    return int(text)


def lasso_text(corners: Corners) -> str:
    """Return the polygon as it stands in an address."""
    stated = [f"{x},{y}" for x, y in corners]
    return ";".join(stated)


def lasso_grid(corners: Corners) -> Bools:
    """Return bool [GRID, GRID]: [column, row] is True for cells whose centre is inside by the even-odd rule."""
    # [column, row]: 1 if a row changes between outside and inside at this column. One column more than the grid, for
    # crossings beyond its last cell.
    flips = np.zeros((GRID + 1, GRID), np.uint8)
    cell = np.arange(GRID, dtype=np.int64)
    centre = cell * _CELL + _HALF
    start = corners[-1]
    for end in corners:
        column, row = _crossings(
            start,
            end,
            centre,
        )
        flips[column, row] ^= 1
        start = end
    # A cell is inside after an odd number of changes in its row. [GRID, GRID / 8]: eight rows in one number, which is
    # ten times faster than bytes.
    eight_rows = flips[:GRID].view(np.uint64)
    inside = np.bitwise_xor.accumulate(eight_rows, axis=0)
    return inside.view(bool)


def _crossings(
    start: Corner,
    end: Corner,
    centre: Int64s,
) -> tuple[Int64s, Int64s]:
    """Return (columns, rows): the first cell at or right of the edge, in each row that it crosses.

    Without such a cell, the column is `GRID`. centre: int64 [GRID], y of the rows' centres. If a centre has the y of an
    edge's end, the edge crosses its row only at the end with the lower y. So an outline that goes up or down through a
    corner crosses the corner's row once.
    """
    x0, y0 = start
    x1, y1 = end
    is_crossed = (y0 <= centre) != (y1 <= centre)
    row = np.flatnonzero(is_crossed)
    dx = x1 - x0
    dy = y1 - y0
    if not len(row):
        return row, row
    # The edge crosses a row at x = x0 + (centre - y0) * dx / dy. The column is ceil((x - _HALF) / _CELL).
    # As one fraction of whole numbers: ceil(((centre - y0) * dx + (x0 - _HALF) * dy) / (_CELL * dy)).
    down = centre[row] - y0
    numerator = down * dx
    numerator += (x0 - _HALF) * dy
    denominator = _CELL * dy
    column = -(-numerator // denominator)  # rounded up, whatever the sign of dy: // rounds down
    column = np.clip(
        column,
        0,
        GRID,
    )
    return column, row


def in_lasso(
    grid: Bools,
    x: Places,
    y: Places,
) -> Bools:
    """Return bool [n]: which places, uint16 [n] each, lie in a lasso's cells."""
    column = x >> _CELL_BITS
    row = y >> _CELL_BITS
    cell = column.astype(np.intp)
    cell *= GRID
    cell += row
    inside: Bools = grid.ravel()[cell]
    return inside
