"""The layout of stored sequences: ids and masks from the starts of their pieces."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import DecodeFailed, InvalidSample
from ...modalities.array import decode
from ...native import number_pieces
from ...order.random.keyed_permutation import I64
from ...order.sources.packing import LOSS_MASK, POSITION_IDS, SEGMENT_IDS, STARTS

STARTS_DTYPE = np.dtype(np.int32)
LAYOUT_DTYPES = {
    POSITION_IDS: np.dtype(np.int32),
    SEGMENT_IDS: np.dtype(np.int32),
    LOSS_MASK: np.dtype(np.bool_),
}
"""Suffix of a field that a layout adds -> its dtype."""

_REMEDY = "pack the documents again with penstock pack"


def split_sequence(sample: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return a sample without its starts, and with the fields of its layout. Raises: InvalidSample."""
    if field not in sample or STARTS not in sample:
        names = list(sample)
        raise InvalidSample(
            f"laid_out({field!r}) needs {field!r} and {STARTS!r}, and the sample has {names}; select both",
            what="fields",
            given=names,
            accepted=[field, STARTS],
        )
    # A decoder of the user may return a tensor or a list.
    shape = np.shape(sample[field])
    length = shape[0]
    starts = check_starts(sample[STARTS], length)
    arrays = {}
    for suffix, dtype in LAYOUT_DTYPES.items():
        arrays[suffix] = np.zeros((1, length), dtype)
    n_starts = np.array([len(starts)], np.int64)
    row = np.zeros(1, np.int64)
    number_rows(
        starts,
        n_starts,
        row,
        arrays,
    )
    fields = dict(sample)
    del fields[STARTS]
    for suffix, array in arrays.items():
        name = f"{field}.{suffix}"
        fields[name] = array[0]
    return fields


def check_starts(value: object, length: int) -> np.ndarray:
    """Return int32 [n + 1] from an array or its file. Raises: InvalidSample unless they fit a sequence of `length`."""
    starts = value
    if isinstance(value, bytes | memoryview):
        try:
            starts = decode(value)
        except DecodeFailed as error:
            message = f"{STARTS}: {error}; {_REMEDY}"
            raise InvalidSample(message, what=STARTS, given=str(error)) from error
    described = type(starts).__name__
    if isinstance(starts, np.ndarray):
        shape = list(starts.shape)
        described = f"{starts.dtype} {shape}"
        has_format = starts.dtype == STARTS_DTYPE and starts.ndim == 1
        if has_format and starts.size:
            n_starts = np.array([starts.size])
            is_right = fits(
                starts,
                n_starts,
                length,
            )
            if is_right[0]:
                return starts
            first = starts[:3].tolist()
            described = f"{first} ... {starts[-1]}"
    raise InvalidSample(
        f"{STARTS} is {described}; int32 [n + 1] is needed, ascending from 0 to at most {length}: {_REMEDY}",
        what=STARTS,
        given=described,
        accepted=f"int32 [n + 1], ascending from 0 to at most {length}",
    )


def fits(
    starts: np.ndarray,
    n_starts: I64,
    length: int,
) -> np.ndarray:
    """Return bool [rows]: whether a row's starts ascend from 0 to at most `length`.

    starts: int32 [sum of n_starts], row after row. n_starts: int64 [rows], each at least 1.
    """
    stop = np.cumsum(n_starts)
    first = stop - n_starts
    begins_at_0 = starts[first] == 0
    is_inside = starts[stop - 1] <= length
    # [starts]: whether a piece has no token, or the one before does not end where it begins.
    descends = np.zeros(len(starts), np.bool_)
    descends[1:] = starts[1:] <= starts[:-1]
    descends[first] = False  # a row's first start follows the row before
    n_descents = np.add.reduceat(
        descends,
        first,
        dtype=np.int64,
    )
    is_right: np.ndarray = begins_at_0 & is_inside
    is_right &= n_descents == 0
    return is_right


def number_rows(
    starts: np.ndarray,
    n_starts: I64,
    rows: I64,
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write positions, segments and loss masks into rows.

    starts: int32 [sum of n_starts], sequence after sequence, which fit. n_starts: int64 [n]. rows: int64 [n], of each
    sequence. arrays: suffix -> [rows, length], contiguous.
    """
    length = arrays[POSITION_IDS].shape[1]
    stop = np.cumsum(n_starts)
    is_piece = np.ones(len(starts), np.bool_)
    is_piece[stop - 1] = False  # the last one is the number of filled positions
    pieces = np.flatnonzero(is_piece)

    row_start = np.repeat(rows * length, n_starts)  # [starts]: first place of each one's row
    first = stop - n_starts
    first_of_row = np.repeat(first, n_starts)  # [starts]: index of its row's first start
    begin = starts[pieces]
    end = starts[pieces + 1]
    at = row_start[pieces] + begin
    piece_lengths = end - begin
    segment = pieces - first_of_row[pieces] + 1
    number_pieces(
        at,
        piece_lengths.astype(np.int64),
        segment,
        arrays[POSITION_IDS],
        arrays[SEGMENT_IDS],
        arrays[LOSS_MASK],
    )
    n_filled = starts[stop - 1]
    _clear_ends(
        n_filled.astype(np.int64),
        rows,
        arrays,
    )


def _clear_ends(
    n_filled: I64,
    rows: I64,
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write zeros after the filled positions. To zero whole arrays takes longer than to number them."""
    length = arrays[POSITION_IDS].shape[1]
    n_empty = length - n_filled
    first_empty = rows * length + n_filled
    n_before = np.cumsum(n_empty) - n_empty  # [n]: empty positions of the sequences before
    n_all = int(n_empty.sum())
    number = np.arange(n_all, dtype=np.int64)
    shift = np.repeat(first_empty - n_before, n_empty)
    empty = shift + number
    for array in arrays.values():
        flat = array.reshape(-1)
        flat[empty] = 0
