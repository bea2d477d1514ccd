"""Read what takedowns name documents by: their subject and their raw object."""

import numpy as np

from loader import Version
from loader.dataset.log.denies import COMPARED_COLUMNS
from loader.dataset.versions.sample_rows import columns_of_rows
from loader.order.random.keyed_permutation import I64

KEYS = "keys"
"""Group of the columns that takedowns compare."""


class DocumentSources:
    """Sources of some documents of a version.

    documents: int64 [n], version ordinals, in any order and repeated.
    """

    def __init__(
        self,
        version: Version,
        documents: I64,
    ) -> None:
        self._ordinals = np.unique(documents)  # int64 [distinct documents], ascending
        self._columns: dict[str, list[str | None]] = {}  # name -> value of each of them
        names = _source_columns(version)
        if not names:
            return
        positions, rows = version.parts.locate(self._ordinals)
        table = columns_of_rows(
            version,
            positions,
            rows,
            names,
        )
        for name in names:
            column = table[name]
            self._columns[name] = column.to_pylist()

    def values(self, documents: I64) -> dict[str, list[str | None]]:
        """Return column -> value of each document, None for a missing one. Empty if the version has no such column.

        documents: int64 [n], version ordinals; each is one of the documents that were read at the start.
        """
        rows = np.searchsorted(self._ordinals, documents).tolist()  # of each document in the columns
        values: dict[str, list[str | None]] = {}
        for name, column in self._columns.items():
            own_values = [column[row] for row in rows]
            values[name] = own_values
        return values


def _source_columns(version: Version) -> list[str]:
    """Return the columns that takedowns compare, except the key, which members have themselves."""
    names: list[str] = []
    for kind_columns in COMPARED_COLUMNS.values():
        names.extend(kind_columns)
    columns = version.manifest["columns"]
    present: list[str] = []
    for name in names:
        column = columns.get(name)
        if column is None:
            continue
        # Other groups are not searched for denied samples.
        group = column["group"]
        if group == KEYS:
            present.append(name)
    return present
