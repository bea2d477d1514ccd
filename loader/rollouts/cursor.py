"""The rows of a dataset that no step of a run has decided."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dataset.shards.bitmap import pack, unpack
from ..keywords import is_whole_number

Int64s = np.ndarray[Any, np.dtype[np.int64]]

MOST_RANGES = 64
"""Ranges of a part that are stored as numbers; more take a bitmap, an eighth of a byte per row."""
MOST_PARTS = 2**31
"""Group numbers multiply a part's number by a number of groups (`group_numbers`)."""
MOST_ROWS = 2**40
"""Most rows of a part that a record may name: a larger number would be damage."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cursor:
    """Position of a run in a dataset. Parts from `parts` on are undecided."""

    version: str = ""
    """Id of the version that the last decision read; "" before the first one."""
    parts: int = 0
    """Number of parts that decisions have read."""
    last: str = ""
    """Id of the last part that decisions have read."""
    ranges: Mapping[int, Int64s]
    """Part -> its undecided rows among the parts that decisions have read, int64 [ranges, 2]: first row, stop."""

    def to_json(self) -> dict[str, Any]:
        undecided = []
        for part, ranges in sorted(self.ranges.items()):
            undecided.append([part, _ranges_json(ranges)])
        return {
            "version": self.version,
            "parts": self.parts,
            "last": self.last,
            "left": undecided,
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Cursor":
        """Return the cursor in a record. Raises: ValueError, LookupError or TypeError for other JSON."""
        n_parts = stored_number(body["parts"], MOST_PARTS)
        last_part = n_parts - 1
        ranges: dict[int, Int64s] = {}
        before = -1  # the part before; parts ascend
        for part, stored in body["left"]:
            number = stored_number(part, last_part)
            if number <= before:
                raise ValueError(f"part {number} of `left` comes after part {before}")
            before = number
            ranges[number] = _parse_ranges(stored)
        return Cursor(
            version=text(body["version"]),
            parts=n_parts,
            last=text(body["last"]),
            ranges=ranges,
        )


START = Cursor(ranges={})
"""Position of a run that has decided nothing."""


def row_ranges(rows: Int64s) -> Int64s:
    """Return int64 [ranges, 2]: first row and stop of each run of consecutive rows. rows: int64, ascending."""
    n_rows = len(rows)
    is_first = np.ones(n_rows, bool)  # [rows]: True where a run begins
    distance = np.diff(rows)
    is_first[1:] = distance != 1
    is_last = np.ones(n_rows, bool)  # [rows]: True where a run ends
    is_last[:-1] = is_first[1:]
    firsts = rows[is_first]
    stops = rows[is_last] + 1
    return np.stack(
        [firsts, stops],
        axis=1,
    )


def range_rows(ranges: Int64s) -> Int64s:
    """Return int64 [rows], ascending: the rows of ranges. Check the ranges' bounds first: they may be damaged."""
    firsts = ranges[:, 0]
    stops = ranges[:, 1]
    counts = stops - firsts
    n_rows = counts.sum()
    n_before = np.cumsum(counts) - counts  # [ranges]: rows in the ranges before
    # [rows]: what to add to a number among all rows for the row itself. Ranges [5, 7) and [9, 11) have the numbers
    # 0, 1, 2, 3 for the rows 5, 6, 9, 10: add 5, 5, 7, 7.
    shift = np.repeat(firsts - n_before, counts)
    numbers = np.arange(n_rows)
    rows: Int64s = numbers + shift
    return rows


def ranges_by_part(parts: Int64s, rows: Int64s) -> dict[int, Int64s]:
    """Return part -> its ranges. parts, rows: int64 [n], in the order of part and row."""
    ranges: dict[int, Int64s] = {}
    distinct, firsts, counts = np.unique(
        parts,
        return_index=True,
        return_counts=True,
    )
    stops = firsts + counts
    bounds = zip(
        distinct.tolist(),
        firsts.tolist(),
        stops.tolist(),
        strict=True,
    )
    for part, first, stop in bounds:
        part_rows = rows[first:stop]
        ranges[part] = row_ranges(part_rows)
    return ranges


def _ranges_json(ranges: Int64s) -> list[list[int]] | str:
    """Return ranges as a record stores them: pairs, or a bitmap of the part's rows in base64."""
    if len(ranges) <= MOST_RANGES:
        pairs: list[list[int]] = ranges.tolist()
        return pairs
    n_rows = int(ranges[-1, 1])  # up to the last undecided one
    is_undecided = np.zeros(n_rows, bool)
    undecided = range_rows(ranges)
    is_undecided[undecided] = True
    bitmap = pack(is_undecided)
    return base64.b64encode(bitmap).decode()


def _parse_ranges(stored: object) -> Int64s:
    """Return int64 [ranges, 2] from either stored form. Raises: ValueError or TypeError for other JSON."""
    if isinstance(stored, str):
        ranges = _ranges_in_bitmap(stored)
    else:
        ranges = _ranges_in_pairs(stored)
    if not len(ranges):
        raise ValueError("`left` names a part without rows")
    bounds = ranges.reshape(-1)  # first, stop, first, stop, ...: each must be above the one before
    growth = np.diff(bounds)
    if growth.min() <= 0:
        raise ValueError("`left` has ranges that are empty, or out of order")
    return ranges


def _ranges_in_bitmap(stored: str) -> Int64s:
    try:
        bitmap = base64.b64decode(stored, validate=True)
    except binascii.Error as error:
        raise ValueError(f"`left` has a bitmap that is not base64: {error}") from None
    n_bits = 8 * len(bitmap)
    is_undecided = unpack(bitmap, n_bits)
    rows = np.flatnonzero(is_undecided)
    return row_ranges(rows)


def _ranges_in_pairs(stored: object) -> Int64s:
    bounds: list[int] = []
    for first, stop in check_list(stored):
        bounds.append(stored_number(first, MOST_ROWS))
        bounds.append(stored_number(stop, MOST_ROWS))
    # The bounds are checked: a damaged record may hold numbers beyond int64.
    pairs = np.array(bounds, np.int64)
    return pairs.reshape(-1, 2)


def check_list(value: object) -> Iterable[Any]:
    """Return a list in a record. Raises: TypeError for another value."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.80} is not a list")
    return value


def stored_number(value: object, most: int) -> int:
    """Return a whole number from 0 to `most`. Raises: ValueError."""
    if not is_whole_number(value, 0, most):
        raise ValueError(f"{value!r:.80} is not a whole number from 0 to {most}")
    return value


def text(value: object) -> str:
    """Return a text in a record. Raises: TypeError for another value."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not text")
    return value
