"""Rebase an annotation onto the newest version, unless another change set its cells meanwhile.

Statistics of an existing column are recomputed, because a minimum cannot be subtracted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Conflict
from ...storage import Store
from ..tables.annotations import PLACE, Entry, cells, edits_of
from ..tables.columns import is_annotation, type_named
from ..tables.manifest import Change, SamplesFile, merged_columns
from ..tables.parquet import TableFile, get_tables, put_named_table
from ..tables.stats import WHOLE, WHOLE_SCHEMA, column_stats
from ..versions.version import Version
from ..writing.exclude import still_there


class SameCells:
    """Checks that an annotation's cells are unchanged since its base version."""

    def __init__(self, version: Version, files: Sequence[SamplesFile]) -> None:
        self._version, self._files = version, [file.to_json() for file in files]

    def __call__(self, parent: "Version | None") -> None:
        """Check the newest version. Costs nothing if it is the base; else it reads the annotations of these columns.

        Raises: Conflict.
        """
        if parent is None or parent.id != self._version.id:
            parent = still_there(parent, self._parts())
            for name in _names(self._files):
                if self._annotated_since(parent, name):
                    self._compare(parent, name)

    def _parts(self) -> list[str]:
        tables = get_tables(
            self._version.store, [TableFile.from_json(file) for file in self._files], ["part"]
        )
        return sorted({part for table in tables for part in pc.unique(table["part"]).to_pylist()})

    def _annotated_since(self, parent: Version, name: str) -> bool:
        before, now = (
            [entry for entry in version.manifest["samples"] if name in entry["columns"]]
            for version in (self._version, parent)
        )
        new = [entry for entry in now if entry not in before]
        return any(is_annotation(entry) for entry in new) or any(entry not in now for entry in before)

    def _compare(self, parent: Version, name: str) -> None:
        import polars as pl

        ours = edits_of(parent.store, self._files, name).select(PLACE)
        now = ours.join(cells(parent.store, parent.manifest["samples"], name), on=PLACE, how="left")
        was = cells(parent.store, self._version.manifest["samples"], name)
        if now.schema[name] == pl.Null:  # a retirement removed the column
            now = now.cast({name: was.schema[name]})
        was = was.cast({name: now.schema[name]})
        both = now.join(was, on=PLACE, how="left", suffix=" was")
        other = both.filter(pl.col(name).ne_missing(pl.col(f"{name} was")))
        if other.height:
            first = other.row(0, named=True)
            raise Conflict(
                f"{name!r} of {other.height} of these samples was annotated by another writer in {parent.name} (part "
                f"{first['part']} row {first['row']} is {first[name]!r} now, and was {first[f'{name} was']!r} in "
                f"{self._version.name}); look at theirs and annotate {parent.name}"
            )


def with_statistics(parent: "Version | None", prefix: str, change: Change) -> Change:
    """Return an annotation with its columns' statistics as rebased on `parent`, uploaded under `prefix`.

    Existing columns are recomputed whole, one in memory at a time. Raises: FieldMismatch.
    """
    assert parent is not None, "an annotation is of samples that a version has"
    ours = [file.to_json() for file in change.samples]
    columns = merged_columns(parent.manifest["columns"], change.samples)
    stats = annotation_stats(parent.store, parent.manifest["samples"], ours, columns)
    return replace(change, stats=put_named_table(parent.store, prefix, stats, "stats"))


def annotation_stats(
    store: Store, before: Sequence[Entry], ours: Sequence[Entry], columns: Mapping[str, Any]
) -> pa.Table:
    """Return statistics of an annotation's columns over these samples files. columns: the manifest's `columns`."""
    rows = []
    for name in _names(ours):
        there = any(name in entry["columns"] for entry in before)
        cell_frame = cells(store, [*before, *ours], name)
        table = pa.table({name: cell_frame[name].to_arrow().cast(type_named(columns[name]["type"]))})
        rows.append({**column_stats(table).to_pylist()[0], WHOLE: there})
    return pa.Table.from_pylist(rows, schema=WHOLE_SCHEMA)


def _names(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in entry["columns"]))
