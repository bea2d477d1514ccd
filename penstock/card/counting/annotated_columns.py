"""Values of annotations, laid over the files of a version's samples table while they are read batch by batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader import Version
from loader.dataset.tables.annotations import files_of, last_said
from loader.dataset.tables.columns import type_named

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Edited:
    """Values of cells that were annotated: 8 bytes per annotated sample, and its values.

    start: int64 [parts], the number of each part's first row among all rows of the version. live: bool [rows].
    """

    def __init__(self, version: Version, start: Int64s, live: Bools) -> None:
        files = files_of(version.manifest["samples"], None, annotations=True)
        self.names = sorted({name for file in files for name in file["columns"]})
        self._rows = np.zeros(0, np.int64)
        self._values: dict[str, pa.Array] = {}
        self._remaining: dict[str, Bools] = {}
        if not files:
            return
        table = last_said(version.store, files, self.names).to_arrow()
        rows = start[version.parts.positions(table["part"].cast(pa.string()))] + table["row"].to_numpy()
        order = np.argsort(rows)
        order = order[live[rows[order]]]
        self._rows = rows[order]
        for name in self.names:
            kind = type_named(version.manifest["columns"][name]["type"])
            self._values[name] = table[name].combine_chunks().take(pa.array(order)).cast(kind)
            annotated = table[f"{name} said"].fill_null(False).to_numpy()
            self._remaining[name] = annotated[order].astype(bool)
        self._annotated = {name: column.copy() for name, column in self._remaining.items()}

    def laid_over(self, rows: Int64s, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of these rows with the values that annotations give to the columns that it has."""
        names = [name for name in batch.schema.names if name in self._values]
        if not names or not len(self._rows):
            return batch
        at = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        for name in names:
            changed = (self._rows[at] == rows) & self._annotated[name][at]
            if changed.any():
                self._remaining[name][at[changed]] = False
                values = self._values[name]
                there = batch.column(name).cast(values.type)
                laid = pc.if_else(pa.array(changed), values.take(pa.array(at)), there)
                batch = batch.set_column(batch.schema.get_field_index(name), name, laid)
        return batch

    def annotated_rows(self, name: str) -> tuple[Int64s, pa.Array]:
        """Return (rows, values) of a column's cells that were annotated; no rows where none was."""
        if name not in self._values:
            return np.zeros(0, np.int64), pa.nulls(0, pa.string())
        at = np.flatnonzero(self._annotated[name])
        return self._rows[at], self._values[name].take(pa.array(at))

    def rest(self) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """Yield (rows, a column of them) for annotated cells that no batch had."""
        for name, column in self._remaining.items():
            if column.any():
                at = np.flatnonzero(column)
                yield self._rows[at], pa.record_batch({name: self._values[name].take(pa.array(at))})
