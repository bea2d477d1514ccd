"""Rows of an index, decoded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..tables.parquet import integers
from .address import FieldAddress

Int64s = NDArray[np.int64]
COLUMNS = ("offset", "nbytes", "crc32c")
"""Columns of each field, in the order of `IndexRows.places`."""


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Rows [first_row, first_row + len(keys)) of one index."""

    first_row: int
    """Number of the first row."""
    keys: list[str]
    places: Int64s
    """int64 [rows, fields, 3]: offset, nbytes and CRC-32C, fields by name."""
    offset: dict[str, Int64s]
    """Field -> int64 [rows], a column of `places`."""
    nbytes: dict[str, Int64s]
    """Field -> int64 [rows], a column of `places`."""
    crc32c: dict[str, Int64s]
    """Field -> int64 [rows], a column of `places`."""
    sealed: bool = True
    """False for registered bytes that are not sealed."""

    def address(
        self,
        field: str,
        group: str,
        path: str,
        local: int,
    ) -> FieldAddress:
        """Return a field's address for row `first_row + local` of the shard at `path`."""
        return FieldAddress(
            field=field,
            group=group,
            path=path,
            offset=int(self.offset[field][local]),
            nbytes=int(self.nbytes[field][local]),
            crc32c=int(self.crc32c[field][local]),
        )


def field_names(columns: Sequence[str]) -> list[str]:
    """Return the sorted fields in an index's column names."""
    fields = []
    for name in columns:
        if name.endswith("_offset"):
            field = name.removesuffix("_offset")
            fields.append(field)
    return sorted(fields)


def index_rows(table: pa.Table, first_row: int) -> IndexRows:
    """Return a decoded row group. first_row: its first row's number in the index. Raises: TypeError; KeyError."""
    fields = field_names(table.column_names)
    shape = (
        table.num_rows,
        len(fields),
        len(COLUMNS),
    )
    places = np.empty(shape, np.int64)
    for number, field in enumerate(fields):
        for position, what in enumerate(COLUMNS):
            name = f"{field}_{what}"
            places[:, number, position] = _int64_column(table, name)

    # Views of `places`, not copies.
    offset: dict[str, Int64s] = {}
    nbytes: dict[str, Int64s] = {}
    crcs: dict[str, Int64s] = {}
    for number, field in enumerate(fields):
        offset[field] = places[:, number, 0]
        nbytes[field] = places[:, number, 1]
        crcs[field] = places[:, number, 2]
    return IndexRows(
        first_row=first_row,
        keys=table["key"].to_pylist(),
        places=places,
        offset=offset,
        nbytes=nbytes,
        crc32c=crcs,
    )


def _int64_column(table: pa.Table, name: str) -> Int64s:
    values = table[name]
    if values.type != pa.int64() or values.null_count:
        raise TypeError(f"column {name} is not int64 without nulls")
    return integers(values)
