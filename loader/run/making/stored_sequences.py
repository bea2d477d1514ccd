"""Lay out the stored sequences of a batch together: a call per sequence took ten times as long."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidSample
from ...modalities.array import rows_head
from ...native import RIGHT, copy_pieces
from ...order.random.keyed_permutation import I64
from ...order.sources.packing import STARTS
from ..batch.columns import Columns
from ..batch.slot_ids import Keys
from ..recipe.decode import SequenceLayout
from ..recipe.recipe import Recipe
from ..recipe.sequence_layout import LAYOUT_DTYPES, STARTS_DTYPE, fits, number_rows, split_sequence

if TYPE_CHECKING:
    from .each_sample import TakeSample


class StoredSequences:
    """Adds what `loader.laid_out` adds to the columns of a batch."""

    def __init__(self, recipe: Recipe) -> None:
        transform = recipe.transform
        assert isinstance(transform, SequenceLayout)
        self._field = transform.field
        self._head = rows_head(STARTS, STARTS_DTYPE)
        self._names = tuple(f"{transform.field}.{suffix}" for suffix in LAYOUT_DTYPES)

    def __call__(self, columns: Columns, keys: Keys) -> None:
        """Add the layout of each sequence. keys: of each row. Raises: InvalidSample."""
        rows = np.flatnonzero(columns.mask())
        if len(rows):
            tokens = columns.whole(self._field)
            starts = self._read_starts(columns, rows)
            is_laid_out = False
            if isinstance(tokens, np.ndarray) and tokens.ndim == 2 and starts is not None:
                is_laid_out = self._lay_out_rows(columns, rows, *starts, tokens.shape[1])
            if not is_laid_out:
                self._lay_out_each(columns, rows, keys)
        columns.replace(STARTS, self._names)

    def before(self, take: "TakeSample") -> "TakeSample":
        """Return a function that lays out a sample and passes it to `take`."""

        def take_stored(row: int, sample: dict[str, Any]) -> object:
            return take(row, split_sequence(sample, self._field))

        return take_stored

    def _read_starts(self, columns: Columns, rows: I64) -> tuple[np.ndarray, I64] | None:
        """Return (starts of the rows' sequences, int32, one after the other; int64 [rows], their numbers).

        None if one of the files is not as `penstock pack` writes it.
        """
        stored = columns.whole(STARTS)
        if stored is None or isinstance(stored, np.ndarray):
            return None
        memory, begin, sizes = stored.parts()
        sizes = sizes[rows]
        head_nbytes = self._head[2]
        n_starts = (sizes - head_nbytes) // STARTS_DTYPE.itemsize
        if (n_starts < 1).any():
            return None
        starts = np.empty(int(n_starts.sum()), STARTS_DTYPE)
        status = np.empty(len(rows), np.uint8)
        copy_pieces(
            memory,
            np.ascontiguousarray(begin[rows]),
            np.ascontiguousarray(sizes),
            n_starts,
            np.zeros(len(rows), np.int64),
            n_starts,
            np.cumsum(n_starts) - n_starts,
            self._head,
            STARTS_DTYPE.itemsize,
            starts,
            status,
        )
        if (status != RIGHT).any():
            return None
        return starts, n_starts

    def _lay_out_rows(
        self,
        columns: Columns,
        rows: I64,
        starts: np.ndarray,
        n_starts: I64,
        length: int,
    ) -> bool:
        """Lay out all sequences by one call; return False if the starts of one do not fit."""
        if not fits(starts, n_starts, length).all():
            return False
        arrays: dict[str, np.ndarray] = {}
        for suffix, dtype in LAYOUT_DTYPES.items():
            array = columns.rows(f"{self._field}.{suffix}", (length,), dtype)
            if array is None:
                return False
            arrays[suffix] = array
        number_rows(starts, n_starts, rows, arrays)
        for name in self._names:
            columns.put_rows(name, rows)
        return True

    def _lay_out_each(self, columns: Columns, rows: I64, keys: Keys) -> None:
        """Lay out the sequences one by one: their lengths differ, or one is damaged."""
        tokens = columns.values(self._field)
        starts = columns.values(STARTS)
        for row in rows.tolist():
            sample = {self._field: tokens[row], STARTS: starts[row]}
            try:
                fields = split_sequence(sample, self._field)
            except InvalidSample as error:
                sample_name = f"sample {keys()[row]!r}"
                raise error.with_message(f"{sample_name}: {error}", where=sample_name) from error
            for name in self._names:
                columns.put(row, name, fields[name])
