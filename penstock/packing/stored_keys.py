"""The sequences that a dataset has stored, and the ones that a new table lacks."""

from collections.abc import Container
from typing import Any

import numpy as np
import pyarrow.compute as pc

from loader import Version
from loader.dataset.shards.bitmap import unpack
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.writing.exclude import RowsToExclude

from ..denied.keys_tables import keys_files

REPLACED = "packed again: "
"""Start of the reason why a sequence is excluded that a later table lacks."""


class StoredKeys:
    """The sequences of a version, without the ones that a later table replaced.

    A sequence that a person excluded is among them: it is not packed again.
    """

    def __init__(self, version: Version | None) -> None:
        self.keys: set[str] = set()
        self._rows: dict[str, dict[int, str]] = {}  # part id -> row -> key
        self._version = version
        if version is None:
            return
        replaced = _previous_rows(version)
        files = _files(keys_files(version))
        columns = ["part", "row", "key"]
        tables = get_tables(
            version.store,
            files,
            columns,
        )
        for table in tables:
            for sample in table.to_pylist():
                part = sample["part"]
                row = sample["row"]
                key = sample["key"]
                replaced_rows = replaced.get(part, ())
                if row in replaced_rows:
                    continue
                self.keys.add(key)
                part_rows = self._rows.setdefault(part, {})
                part_rows[row] = key

    def find_others(self, keys: Container[str], reason: str) -> RowsToExclude:
        """Return the live sequences whose key is none of `keys`, to exclude them. reason: why, for the record."""
        rows: dict[tuple[str, str], list[int]] = {}
        part_sizes: dict[str, int] = {}
        if self._version is None:
            return RowsToExclude()
        parts = self._version.parts
        for part, part_rows in self._rows.items():
            position = parts.position(part)
            is_live = parts.live_members(position)  # bool [rows of the part]
            others: list[int] = []
            for row, key in part_rows.items():
                # Excluded twice, a sequence would be counted twice.
                if is_live[row] and key not in keys:
                    others.append(row)
            if others:
                rows[part, reason] = others
                part_sizes[part] = len(is_live)
        return RowsToExclude(rows=rows, part_sizes=part_sizes)


def _previous_rows(version: Version) -> dict[str, set[int]]:
    """Return part id -> rows that an earlier `penstock pack` excluded: a later table may have them again."""
    rows: dict[str, set[int]] = {}
    files = _files(version.manifest["exclusions"])
    for table in get_tables(version.store, files):
        reasons = table["reason"]
        is_replaced = pc.starts_with(reasons, REPLACED)
        replaced = table.filter(is_replaced)
        for entry in replaced.to_pylist():
            members = unpack(
                entry["bitmap"],
                entry["n_rows"],
            )
            part = entry["part"]
            part_rows = rows.setdefault(part, set())
            numbers = np.flatnonzero(members)
            part_rows.update(numbers.tolist())
    return rows


def _files(entries: list[dict[str, Any]]) -> list[TableFile]:
    files: list[TableFile] = []
    for entry in entries:
        file = TableFile.from_json(entry)
        files.append(file)
    return files
