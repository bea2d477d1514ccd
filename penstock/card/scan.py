"""Count everything that a card shows, raw objects included, in one pass over the samples table.

The stored statistics do not suffice: they include excluded samples, and are not broken down by kind or split. Memory:
the annotated values, one change's files, 10 bytes per row and 16 per raw object. Time: O(rows x columns), plus a
microsecond per key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loader import Version
from loader.dataset.tables.annotations import last_values, select_files
from loader.dataset.tables.columns import KEY_COLUMNS, type_named
from loader.dataset.tables.parquet import TableFile, check_schema_version, get_table_bytes
from loader.errors import Corrupt

from ..progress import progress
from .classes import Layouts, layouts
from .column_values import floats, licences
from .raw_objects import RawObjects
from .tally import LANGUAGES, SIDES, KindScan, NameCodes, NameTally, NumberSummary

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class AnnotatedCells:
    """Values, and 8 bytes per annotated sample.

    start: parts' first rows, int64 [parts]. live: bool [rows].
    """

    def __init__(self, version: Version, start: Int64s, live: Bools) -> None:
        files = select_files(version.manifest["samples"], None, annotations=True)
        names: set[str] = set()
        for file in files:
            names.update(file["columns"])
        self.names = sorted(names)
        self._rows = np.zeros(0, np.int64)
        self._values: dict[str, pa.Array] = {}
        self._remaining: dict[str, Bools] = {}
        if not files:
            return
        table = last_values(version.store, files, self.names).to_arrow()
        parts = table["part"].cast(pa.string())
        positions = version.parts.positions(parts)
        rows = start[positions] + table["row"].to_numpy()  # [annotated]: row numbers in the version
        order = np.argsort(rows)  # ascending: `overlay` searches them
        is_live = live[rows[order]]
        order = order[is_live]  # without excluded samples
        self._rows = rows[order]
        for name in self.names:
            kind = type_named(version.manifest["columns"][name]["type"])
            values = table[name].combine_chunks()
            ordered_values = values.take(pa.array(order))
            self._values[name] = ordered_values.cast(kind)
            # An annotation may cover only some columns of a sample.
            annotated = table[f"{name} said"].fill_null(False).to_numpy()
            self._remaining[name] = annotated[order].astype(bool)
        self._annotated = {name: column.copy() for name, column in self._remaining.items()}

    def overlay(self, rows: Int64s, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with annotated values. rows: numbers in the version.

        Notes these values as counted: `remaining_cells` yields the others at the end.
        """
        names = [name for name in batch.schema.names if name in self._values]
        if not names or not len(self._rows):
            return batch
        # [rows]: each row's index among the annotated ones, or any index if it is none of them.
        annotated_index = np.searchsorted(self._rows, rows)
        annotated_index = np.minimum(annotated_index, len(self._rows) - 1)
        is_annotated = self._rows[annotated_index] == rows
        for name in names:
            changed = is_annotated & self._annotated[name][annotated_index]  # [rows]
            if not changed.any():
                continue
            counted = annotated_index[changed]
            self._remaining[name][counted] = False
            values = self._values[name]
            annotated = values.take(pa.array(annotated_index))
            stored = batch.column(name).cast(values.type)
            current = pc.if_else(pa.array(changed), annotated, stored)
            column = batch.schema.get_field_index(name)
            batch = batch.set_column(column, name, current)
        return batch

    def column_rows(self, name: str) -> tuple[Int64s, pa.Array]:
        """Return (row numbers, values) of a column's annotated cells."""
        if name not in self._values:
            return np.zeros(0, np.int64), pa.nulls(0, pa.string())
        annotated_indices = np.flatnonzero(self._annotated[name])
        values = self._values[name].take(pa.array(annotated_indices))
        return self._rows[annotated_indices], values

    def remaining_cells(self) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """Yield (row numbers, one column) of the annotated cells that `overlay` put into no batch.

        The samples' own files lack their columns.
        """
        for name, remaining in self._remaining.items():
            if not remaining.any():
                continue
            annotated_indices = np.flatnonzero(remaining)
            rows = self._rows[annotated_indices]
            values = self._values[name].take(pa.array(annotated_indices))
            batch = pa.record_batch({name: values})
            yield rows, batch


BATCH_ROWS = 65_536
NO_SPLIT = "(no split)"
FACTS = ("key", "split", *SIDES, "duration_s", "n_chars", "label", *LANGUAGES, "licence", "raw_key")
"""An example's shown columns."""


@dataclass(slots=True)
class SampleScan:
    splits: list[str]
    """Names by code."""
    kinds: dict[str, KindScan]
    """Counts, largest kind first."""
    columns: dict[str, NumberSummary | NameTally]
    """By column."""
    spans: dict[str, tuple[Any, Any]]
    """Timestamp column -> (first, last) as stored."""
    licences: NameTally
    """Samples by licence."""
    raw: RawObjects
    layouts: Layouts
    """Parts' layouts."""
    facts: dict[int, dict[str, Any]]
    """Candidate's row number -> FACTS column -> value."""
    n_examples: int
    """Examples per kind."""


def scan(version: Version, *, n_examples: int) -> SampleScan:
    """Scan a version. Raises: Corrupt; ObjectNotFound; FormatTooNew."""
    return _SampleScanner(version, n_examples).run()


class _SampleScanner:
    """Row r of the part at position p has the number start[p] + r."""

    def __init__(self, version: Version, n_examples: int) -> None:
        self._version = version
        self._n_examples = n_examples
        parts = version.parts
        self._layouts = layouts(version)
        start = self._layouts.start
        self._live = np.ones(int(start[-1]), bool)
        has_exclusions = parts.n_live != parts.n_rows  # [parts]: few, so most need no read
        for position in np.flatnonzero(has_exclusions).tolist():
            first = start[position]
            end = start[position + 1]
            self._live[first:end] = parts.live_members(position)
        self._kind_names = NameCodes()
        self._split_names = NameCodes()
        # If a sample's `kind` cell is empty, its fields decide the kind.
        codes = [self._kind_names.code(name) for name in self._layouts.modalities]
        code_of_layout = np.array(codes, np.int16)
        code_of_part = code_of_layout[self._layouts.of_part]
        self._kind = np.repeat(code_of_part, parts.n_rows)  # [rows]
        self._no_split = self._split_names.code(NO_SPLIT)
        self._split = np.full(len(self._live), self._no_split, np.int16)
        self._columns: dict[str, NumberSummary | NameTally] = {}
        self._spans: dict[str, tuple[Any, Any]] = {}
        self._licences = NameTally()
        self._raw = RawObjects(version.manifest["columns"])
        self._kinds: dict[int, KindScan] = {}
        self._changes = _changes(version)
        self._edited = AnnotatedCells(version, start, self._live)

    def run(self) -> SampleScan:
        # Annotations also cover samples from files without a `kind` column.
        rows, kinds = self._edited.column_rows("kind")
        by_fields = self._kind[rows].astype(np.int64)
        self._kind[rows] = self._kind_names.codes(kinds, by_fields)

        def n_rows(numbered_change: tuple[int, list[dict[str, Any]]]) -> int:
            _, files = numbered_change
            return sum(file["n_rows"] for file in files)

        numbered = list(enumerate(self._changes))
        total = sum(map(n_rows, numbered))
        for change, files in progress(numbered, "samples table", n_rows, total):
            tables = [self._open(file) for file in files]
            # First the names: a row's `kind` and `split` may be in another file of the change.
            for table in tables:
                self._name_rows(table)
            for table in tables:
                for rows, batch in self._batches(table, self._columns_to_read(table)):
                    self._add(rows, batch, change)
        for rows, batch in self._edited.remaining_cells():
            # These batches have no column `key`, so that none of their rows becomes a candidate of a change.
            self._add(rows, batch, 0)
        by_kind = self._finish_kinds()
        # A page lists kinds by size; equal ones by name, so that the same version has the same page.
        largest_first = sorted(by_kind, key=lambda name: (-by_kind[name].samples, name))
        kinds_by_size = {name: by_kind[name] for name in largest_first}
        columns = dict(sorted(self._columns.items()))
        spans = dict(sorted(self._spans.items()))
        return SampleScan(
            splits=self._split_names.names,
            kinds=kinds_by_size,
            columns=columns,
            spans=spans,
            licences=self._licences,
            raw=self._raw,
            layouts=self._layouts,
            facts=self._facts(),
            n_examples=self._n_examples,
        )

    def _finish_kinds(self) -> dict[str, KindScan]:
        """Complete each kind's scan from the live rows, and return name -> scan."""
        finished = {}
        live_kinds = self._kind[self._live]
        for code in np.unique(live_kinds).tolist():
            is_of_kind = self._kind == code
            chosen = self._live & is_of_kind  # [rows]
            splits = self._split[chosen]
            n_splits = len(self._split_names.names)
            # A kind has no scan yet if its samples' files have no column to count.
            kind = self._kinds.setdefault(code, KindScan())
            kind.splits = np.bincount(splits, minlength=n_splits)
            # The fields of the first sample decide the modality.
            first_row = np.array([chosen.argmax()])  # the first True
            (layout,) = self._layouts.of_rows(first_row).tolist()
            kind.modality = self._layouts.modalities[layout]
            kind.raw_objects = self._raw.distinct(code)
            name = self._kind_names.names[code]
            finished[name] = kind
        return finished

    def _facts(self) -> dict[int, dict[str, Any]]:
        """Return candidate's row number -> FACTS column -> value."""
        rows_of_changes: dict[int, list[int]] = {}
        facts: dict[int, dict[str, Any]] = {}
        for kind in self._kinds.values():
            for _, row, change in kind.best:
                rows_of_change = rows_of_changes.setdefault(change, [])
                rows_of_change.append(row)
                facts[row] = {}
        for change, rows_of_change in sorted(rows_of_changes.items()):
            for file in self._changes[change]:
                table = self._open(file)
                names = [name for name in FACTS if name in table.schema_arrow.names]
                for rows, batch in self._batches(table, names):
                    is_chosen = np.isin(rows, rows_of_change)  # [rows]
                    for index in np.flatnonzero(is_chosen).tolist():
                        (cells,) = batch.slice(index, 1).to_pylist()
                        row = int(rows[index])
                        facts[row].update(cells)
        for rows, batch in self._edited.remaining_cells():
            name = batch.schema.names[0]
            if name not in FACTS:
                continue
            is_chosen = np.isin(rows, list(facts))  # [rows]
            for index in np.flatnonzero(is_chosen).tolist():
                value = batch.column(0)[index].as_py()
                row = int(rows[index])
                facts[row][name] = value
        return facts

    def _open(self, file: dict[str, Any]) -> pq.ParquetFile:
        """Read a file of the samples table, its entry in the manifest, into memory."""
        table_file = TableFile.from_json(file)
        data = get_table_bytes(self._version.store, table_file)
        name = f"{self._version.store.url}/{file['path']}"
        source = pa.BufferReader(data)
        try:
            table = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
        except pa.ArrowException as error:
            raise Corrupt(f"{name} is not a readable Parquet file: {error}") from error
        check_schema_version(table.schema_arrow, name)
        return table

    def _batches(
        self, table: pq.ParquetFile, columns: Sequence[str]
    ) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """Yield (row numbers in the version, `columns`) of a table's live rows, with annotated values."""
        if not columns:
            return
        read_columns = ["part", "row", *columns]
        for batch in table.iter_batches(BATCH_ROWS, columns=read_columns, use_threads=False):
            parts = pa.chunked_array([batch.column("part")])
            positions = self._version.parts.positions(parts)
            first_rows = self._layouts.start[positions]
            rows = first_rows + batch.column("row").to_numpy()
            alive = self._live[rows]
            if not alive.all():
                rows = rows[alive]
                batch = batch.filter(pa.array(alive))
            if len(rows):
                yield rows, self._edited.overlay(rows, batch)

    def _name_rows(self, table: pq.ParquetFile) -> None:
        """Set `_kind` and `_split` of the table's rows, where it has these columns."""
        names = [name for name in ("kind", "split") if name in table.schema_arrow.names]
        for rows, batch in self._batches(table, names):
            if "kind" in names:
                names_of_kinds = batch.column("kind")
                by_fields = self._kind[rows].astype(np.int64)
                self._kind[rows] = self._kind_names.codes(names_of_kinds, by_fields)
            if "split" in names:
                names_of_splits = batch.column("split")
                unknown = np.full(len(rows), self._no_split, np.int64)
                self._split[rows] = self._split_names.codes(names_of_splits, unknown)

    def _columns_to_read(self, table: pq.ParquetFile) -> list[str]:
        """Return the columns that a card counts, with `key` if it shows examples.

        Without `part` and `row`, which `_batches` adds.
        """
        # A card counts only those key columns that name raw objects or subjects.
        counted_key_columns = set(RawObjects.COLUMNS)
        if self._n_examples:
            counted_key_columns.add("key")
        skipped = set(KEY_COLUMNS) - counted_key_columns
        return [name for name in table.schema_arrow.names if name not in skipped]

    def _add(self, rows: Int64s, batch: pa.RecordBatch, change: int) -> None:
        """Count live rows. rows: numbers in the version. change: index in `_changes`."""
        names = set(batch.schema.names)
        kinds = self._kind[rows]
        splits = self._split[rows].astype(np.int64)
        has_sound = np.array(self._layouts.sounds)  # [layouts]
        layout = self._layouts.of_rows(rows)
        with_sound = has_sound[layout]  # [rows]
        own_columns = names.difference(KEY_COLUMNS)
        for name in sorted(own_columns):
            values = batch.column(name)
            self._add_column(name, values)
        if "licence" in names:
            self._licences.add(licences(batch.column("licence")))
        self._raw.add(kinds, batch)
        different_kinds = np.unique(kinds)
        for code in different_kinds.tolist():
            chosen = np.flatnonzero(kinds == code)
            batch_of_kind = batch
            if len(chosen) < len(rows):  # most batches have one kind, and need no copy
                batch_of_kind = batch.take(pa.array(chosen))
            splits_of_kind = splits[chosen]
            with_sound_of_kind = with_sound[chosen]
            kind = self._kinds.setdefault(code, KindScan())
            kind.add(batch_of_kind, splits_of_kind, with_sound_of_kind)
            if "key" in names and self._n_examples:
                keys = batch_of_kind.column("key")
                kind.choose(rows[chosen], keys, change, self._n_examples)

    def _add_column(self, name: str, values: pa.Array) -> None:
        """Count a column's values by its type; nested types and others have no summary."""
        kind = values.type
        if pa.types.is_boolean(kind):
            words = pc.if_else(values, "yes", "no")
            self._tally(name).add(words)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._tally(name).add(values)
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            # A column may be int in one change and double in another; the manifest has the type that fits both.
            stored_type = self._version.manifest["columns"][name]["type"]
            whole = "int" in stored_type
            spread = self._columns.setdefault(name, NumberSummary(whole=whole))
            if isinstance(spread, NumberSummary):
                spread.add(floats(values))
        elif pa.types.is_timestamp(kind) and values.null_count < len(values):
            extremes = pc.min_max(values)
            first = extremes["min"].value
            last = extremes["max"].value
            low, high = self._spans.get(name, (first, last))
            low = min(low, first)
            high = max(high, last)
            self._spans[name] = (low, high)

    def _tally(self, name: str) -> NameTally:
        """Return the tally of a column of names."""
        tally = self._columns.setdefault(name, NameTally())
        if isinstance(tally, NameTally):
            return tally
        return NameTally()  # a column that was numeric before: its names are not counted


def _changes(version: Version) -> list[list[dict[str, Any]]]:
    """Return the manifest's entries of the files of each change that wrote samples.

    A change's files share a folder, whatever their column group.
    """
    changes: dict[str, list[dict[str, Any]]] = {}
    for file in select_files(version.manifest["samples"], None, annotations=False):
        folder, _, _ = file["path"].rpartition("/")
        files = changes.setdefault(folder, [])
        files.append(dict(file))
    return list(changes.values())
