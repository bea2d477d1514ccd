"""Columns of packed documents: their types, their values, and the check that no value is missing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...errors import FieldMismatch, FieldNotFound, InvalidPlan
from ...order.sources.packing import COLUMN_TYPES, ORDINAL
from ...storage.threads import DaemonPool
from ..tables.parquet import READ_AHEAD
from .view_columns import Int64s, Map, SampleColumns, check_columns

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

_BLOCK_DOCUMENTS = 2**18
"""Documents whose values are in memory while they are checked."""


def column_types(version: "VersionData", names: Sequence[str]) -> dict[str, str]:
    """Return column of `pack(columns=)` -> its Arrow type. Raises: InvalidPlan."""
    stored = [name for name in names if name != ORDINAL]
    try:
        check_columns(version, stored, ())
    except (FieldNotFound, FieldMismatch) as error:
        raise InvalidPlan(f"pack(columns=): {error}") from None
    known = version.manifest["columns"]
    types: dict[str, str] = {}
    for name in names:
        types[name] = "int64"
        if name != ORDINAL:
            types[name] = known[name]["type"]
    return types


class DocumentColumns:
    """Reads columns of a version's documents; thread-safe. column_types: column -> its Arrow type."""

    def __init__(self, version: "VersionData", column_types: Mapping[str, str]) -> None:
        self._version = version
        self._types = dict(column_types)
        stored = [name for name in self._types if name != ORDINAL]
        self._read = SampleColumns(version, dict.fromkeys(stored))

    def __call__(self, documents: Int64s, parallel_map: Map = map) -> dict[str, np.ndarray]:
        """Return column -> its values [n], one per version ordinal (int64 [n]).

        Raises: InvalidPlan if a document has no value; Corrupt; StoreError.
        """
        stored = self._read.arrays(documents, parallel_map)
        values: dict[str, np.ndarray] = {}
        for name, kind in self._types.items():
            if name == ORDINAL:
                values[name] = documents.astype(np.int64)
                continue
            column = stored[name]
            self._check(name, column, documents)
            array = column.to_numpy(zero_copy_only=False)
            dtype = COLUMN_TYPES[kind]
            values[name] = array.astype(dtype)  # a copy, which can be written to
        return values

    def _check(
        self,
        name: str,
        values: pa.Array,
        documents: Int64s,
    ) -> None:
        """Raise InvalidPlan if a document has no value."""
        if not values.null_count:
            return
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        missing = documents[is_null]
        keys = ", ".join(map(repr, self._version.keys(missing[:3])))
        raise InvalidPlan(
            f"pack(columns=): {len(missing)} documents of {self._version.name} have no {name!r}: {keys} ...; leave "
            f'them out with where("{name} IS NOT NULL"), or annotate them (penstock annotate)'
        )


def check_documents(
    version: "VersionData",
    column_types: Mapping[str, str],
    documents: Int64s,
) -> None:
    """Raise InvalidPlan if a document (version ordinal) has no value in a column. Reads the columns' row groups."""
    read = DocumentColumns(version, column_types)
    with DaemonPool(READ_AHEAD, "penstock-columns") as pool:
        for first in range(0, len(documents), _BLOCK_DOCUMENTS):
            stop = first + _BLOCK_DOCUMENTS
            read(documents[first:stop], pool.map)
