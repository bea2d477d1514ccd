"""Count everything that a card shows, raw objects included, in one pass over the samples table.

The stored statistics do not suffice: they include excluded samples, and are not broken down by kind or split. Memory:
the annotated values, one change's files, 10 bytes per row and 16 per raw object. Time: O(rows x columns), plus a
microsecond per key.
"""

import hashlib
import re
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
from .tally import LANGUAGES, SIDES, Counts, KindScan, NameCodes, NameTally, NumberSummary, floats, licences

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_HOST = r"^(?P<source>[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)"
_FOLDER = r"^(?P<folder>[^/]+)/"
_SECRETS = re.compile(r"//[^/@]*@")


class RawObjects:
    """Distinct raw objects by a 64-bit hash of their most specific name.

    Among ten million, the probability that two share a hash is 3 in a million.
    """

    COLUMNS = ("raw_sha256", "raw_uri", "raw_key", "subject")

    def __init__(self, columns: dict[str, Any]) -> None:
        self._name: str | None = None  # the most specific name that the version has
        for name in ("raw_key", "raw_uri", "raw_sha256"):
            if columns.get(name, {}).get("type") == "string":
                self._name = name
        self._hashes: dict[int, list[Hashes]] = {}
        self._subjects: set[int] = set()
        self._has_subjects = False
        self._sources = NameTally()
        self._folders = NameTally()

    def add(self, kinds: np.ndarray[Any, Any], batch: pa.RecordBatch) -> None:
        """Count rows. kinds: code per row."""
        names = set(batch.schema.names)
        if self._name in names:
            values = batch.column(self._name)
            for kind in np.unique(kinds).tolist():
                names_of_kind = values.filter(pa.array(kinds == kind)).drop_null()
                self._hashes.setdefault(kind, []).append(_hashes(pc.unique(names_of_kind)))
        if "subject" in names:
            subjects = _hashes(pc.unique(batch.column("subject").drop_null()))
            self._has_subjects = self._has_subjects or len(subjects) > 0
            self._subjects.update(subjects.tolist())
        if "raw_key" in names:
            matches = pc.extract_regex(batch.column("raw_key"), _FOLDER)
            self._folders.add(pc.struct_field(matches, "folder"))
        if "raw_uri" in names:
            keys = None
            if "raw_key" in names:
                keys = batch.column("raw_key")
            self._sources.add(_sources(batch.column("raw_uri"), keys))

    def distinct(self, kind: int | None = None) -> int | None:
        """Return the number in one kind or in all; None if no sample names one."""
        if kind is None:
            kinds = list(self._hashes)
        else:
            kinds = [kind]
        pieces_of_kinds = []
        for code in kinds:
            # The result replaces the pieces: half the memory, and the next call is fast.
            self._hashes[code] = [_different(self._hashes.get(code, []))]
            pieces_of_kinds += self._hashes[code]
        if len(pieces_of_kinds) == 1:
            return len(pieces_of_kinds[0]) or None
        return len(_different(pieces_of_kinds)) or None

    @property
    def subjects(self) -> int | None:
        if self._has_subjects:
            return len(self._subjects)
        return None

    def sources(self, n_rows: int) -> Counts:
        """Return raw location without credentials -> samples."""
        return self._sources.result(n_rows)

    def folders(self, n_rows: int) -> Counts:
        """Return first folder of the raw key -> samples."""
        return self._folders.result(n_rows)


def _different(pieces: Sequence[Hashes]) -> Hashes:
    # np.unique would need four times the memory.
    whole = np.concatenate([np.zeros(0, np.uint64), *pieces])
    whole.sort()
    first = np.ones(len(whole), bool)
    np.not_equal(whole[1:], whole[:-1], out=first[1:])
    return whole if first.all() else whole[first]


def _hashes(names: pa.Array) -> Hashes:
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names.to_pylist()]
    return np.frombuffer(b"".join(digests), np.uint64)


def _sources(uris: pa.Array, keys: pa.Array | None) -> pa.Array:
    """Return URIs without key, or scheme and host if there is no key."""
    hosts = pc.struct_field(pc.extract_regex(uris, _HOST), "source")
    local = pc.if_else(pc.is_valid(uris), "local files", None)
    sources = pc.if_else(pc.is_valid(hosts), hosts, local)
    if keys is not None:
        sources = _without_keys(uris, keys, sources)
    encoded = sources.dictionary_encode()
    words = [_public(word) for word in encoded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(encoded.indices)


def _without_keys(uris: pa.Array, keys: pa.Array, sources: pa.Array) -> pa.Array:
    """Return the sources, replaced by the URI without its key if the URI ends with the key."""
    lengths = pc.subtract(pc.utf8_length(uris), pc.utf8_length(keys))
    length = lengths.to_numpy(zero_copy_only=False)  # [rows]: characters before the key
    out = np.array(sources.to_pylist(), object)
    # Rows from one location share a length, so this loop runs over locations, not rows.
    for n in np.unique(length[length > 0]).tolist():
        rows = np.flatnonzero(length == n)
        uris_of_length = uris.take(pa.array(rows))
        fronts = pc.utf8_slice_codeunits(uris_of_length, 0, int(n))
        ends = pc.utf8_slice_codeunits(uris_of_length, int(n))
        is_key = pc.equal(ends, keys.take(pa.array(rows)))
        fits = is_key.to_numpy(zero_copy_only=False).astype(bool)
        out[rows[fits]] = np.array(fronts.to_pylist(), object)[fits]
    return pa.array(out.tolist(), pa.string())


def _public(place: str) -> str:
    path = place.partition("?")[0]  # a query may hold a signature
    return _SECRETS.sub("//", path).rstrip("/") or "/"


Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class AnnotatedCells:
    """Values, and 8 bytes per annotated sample.

    start: parts' first rows, int64 [parts]. live: bool [rows].
    """

    def __init__(self, version: Version, start: Int64s, live: Bools) -> None:
        files = select_files(version.manifest["samples"], None, annotations=True)
        self.names = sorted(set().union(*(file["columns"] for file in files)))
        self._rows = np.zeros(0, np.int64)
        self._values: dict[str, pa.Array] = {}
        self._remaining: dict[str, Bools] = {}
        if not files:
            return
        table = last_values(version.store, files, self.names).to_arrow()
        positions = version.parts.positions(table["part"].cast(pa.string()))
        rows = start[positions] + table["row"].to_numpy()
        order = np.argsort(rows)
        order = order[live[rows[order]]]  # without excluded samples
        self._rows = rows[order]
        for name in self.names:
            kind = type_named(version.manifest["columns"][name]["type"])
            values = table[name].combine_chunks()
            self._values[name] = values.take(pa.array(order)).cast(kind)
            annotated = table[f"{name} said"].fill_null(False).to_numpy()
            self._remaining[name] = annotated[order].astype(bool)
        self._annotated = {name: column.copy() for name, column in self._remaining.items()}

    def laid_over(self, rows: Int64s, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with annotated values. rows: numbers in the version."""
        names = [name for name in batch.schema.names if name in self._values]
        if not names or not len(self._rows):
            return batch
        # [rows]: each row's index among the annotated ones, or any index if it is none of them.
        at = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        is_annotated = self._rows[at] == rows
        for name in names:
            changed = is_annotated & self._annotated[name][at]
            if not changed.any():
                continue
            self._remaining[name][at[changed]] = False
            values = self._values[name]
            stored = batch.column(name).cast(values.type)
            current = pc.if_else(pa.array(changed), values.take(pa.array(at)), stored)
            batch = batch.set_column(batch.schema.get_field_index(name), name, current)
        return batch

    def annotated_rows(self, name: str) -> tuple[Int64s, pa.Array]:
        """Return (row numbers, values) of a column."""
        if name not in self._values:
            return np.zeros(0, np.int64), pa.nulls(0, pa.string())
        at = np.flatnonzero(self._annotated[name])
        return self._rows[at], self._values[name].take(pa.array(at))

    def rest(self) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """Yield (row numbers, one column) of the cells that were in no batch."""
        for name, column in self._remaining.items():
            if column.any():
                at = np.flatnonzero(column)
                values = self._values[name].take(pa.array(at))
                yield self._rows[at], pa.record_batch({name: values})


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
        for position in np.flatnonzero(parts.n_live != parts.n_rows).tolist():
            self._live[start[position] : start[position + 1]] = parts.live_members(position)
        self._kind_names = NameCodes()
        self._split_names = NameCodes()
        # If a sample's `kind` cell is empty, its fields decide the kind.
        by_layout = np.array([self._kind_names.code(name) for name in self._layouts.modalities], np.int16)
        self._kind = np.repeat(by_layout[self._layouts.of_part], parts.n_rows)
        self._no_split = self._split_names.code(NO_SPLIT)
        self._split = np.full(len(self._live), self._no_split, np.int16)
        self._columns: dict[str, NumberSummary | NameTally] = {}
        self._spans: dict[str, tuple[Any, Any]] = {}
        self._licences = NameTally()
        self._raw = RawObjects(version.manifest["columns"])
        self._kinds: dict[int, KindScan] = {}
        self._runs = _runs(version)
        self._edited = AnnotatedCells(version, start, self._live)

    def run(self) -> SampleScan:
        # Annotations also cover samples from files without a `kind` column.
        rows, kinds = self._edited.annotated_rows("kind")
        self._kind[rows] = self._kind_names.codes(kinds, self._kind[rows].astype(np.int64))

        def n_rows(numbered_run: tuple[int, list[dict[str, Any]]]) -> int:
            _, run = numbered_run
            return sum(file["n_rows"] for file in run)

        numbered = list(enumerate(self._runs))
        total = sum(map(n_rows, numbered))
        for number, run in progress(numbered, "samples table", n_rows, total):
            tables = [self._open(file) for file in run]
            # First the names: a row's `kind` and `split` may be in another file of the run.
            for table in tables:
                self._name_rows(table)
            for table in tables:
                for rows, batch in self._batches(table, self._columns_to_read(table)):
                    self._add(rows, batch, number)
        for rows, batch in self._edited.rest():
            self._add(rows, batch, 0)
        by_kind = self._finished_kinds()
        largest_first = sorted(by_kind.items(), key=lambda item: (-item[1].samples, item[0]))
        return SampleScan(
            splits=self._split_names.names,
            kinds=dict(largest_first),
            columns=dict(sorted(self._columns.items())),
            spans=dict(sorted(self._spans.items())),
            licences=self._licences,
            raw=self._raw,
            layouts=self._layouts,
            facts=self._facts(),
            n_examples=self._n_examples,
        )

    def _finished_kinds(self) -> dict[str, KindScan]:
        finished = {}
        for code in np.unique(self._kind[self._live]).tolist():
            chosen = self._live & (self._kind == code)
            kind = self._kinds.setdefault(code, KindScan())
            kind.splits = np.bincount(self._split[chosen], minlength=len(self._split_names.names))
            first_row = np.array([chosen.argmax()])
            layout = self._layouts.of_rows(first_row)[0]
            kind.modality = self._layouts.modalities[int(layout)]
            kind.raw_objects = self._raw.distinct(code)
            finished[self._kind_names.names[code]] = kind
        return finished

    def _facts(self) -> dict[int, dict[str, Any]]:
        rows_of_runs: dict[int, list[int]] = {}
        facts: dict[int, dict[str, Any]] = {}
        for kind in self._kinds.values():
            for _, row, run in kind.best:
                rows_of_runs.setdefault(run, []).append(row)
                facts[row] = {}
        for run, rows_of_run in sorted(rows_of_runs.items()):
            for file in self._runs[run]:
                table = self._open(file)
                names = [name for name in FACTS if name in table.schema_arrow.names]
                for rows, batch in self._batches(table, names):
                    for at in np.flatnonzero(np.isin(rows, rows_of_run)).tolist():
                        facts[int(rows[at])].update(batch.slice(at, 1).to_pylist()[0])
        for rows, batch in self._edited.rest():
            name = batch.schema.names[0]
            if name not in FACTS:
                continue
            for at in np.flatnonzero(np.isin(rows, list(facts))).tolist():
                facts[int(rows[at])][name] = batch.column(0)[at].as_py()
        return facts

    def _open(self, file: dict[str, Any]) -> pq.ParquetFile:
        data = get_table_bytes(self._version.store, TableFile.from_json(file))
        name = f"{self._version.store.url}/{file['path']}"
        try:
            table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, pre_buffer=False)
        except pa.ArrowException as error:
            raise Corrupt(f"{name} is not a readable Parquet file: {error}") from error
        check_schema_version(table.schema_arrow, name)
        return table

    def _batches(
        self, table: pq.ParquetFile, columns: Sequence[str]
    ) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        if not columns:
            return
        for batch in table.iter_batches(BATCH_ROWS, columns=["part", "row", *columns], use_threads=False):
            positions = self._version.parts.positions(pa.chunked_array([batch.column("part")]))
            rows = self._layouts.start[positions] + batch.column("row").to_numpy()
            alive = self._live[rows]
            if not alive.all():
                rows = rows[alive]
                batch = batch.filter(pa.array(alive))
            if len(rows):
                yield rows, self._edited.laid_over(rows, batch)

    def _name_rows(self, table: pq.ParquetFile) -> None:
        names = [name for name in ("kind", "split") if name in table.schema_arrow.names]
        for rows, batch in self._batches(table, names):
            if "kind" in names:
                by_fields = self._kind[rows].astype(np.int64)
                self._kind[rows] = self._kind_names.codes(batch.column("kind"), by_fields)
            if "split" in names:
                unknown = np.full(len(rows), self._no_split, np.int64)
                self._split[rows] = self._split_names.codes(batch.column("split"), unknown)

    def _columns_to_read(self, table: pq.ParquetFile) -> list[str]:
        skipped = set(KEY_COLUMNS) - set(RawObjects.COLUMNS)
        if self._n_examples:
            skipped -= {"key"}
        skipped |= {"part", "row"}  # `_batches` reads these
        return [name for name in table.schema_arrow.names if name not in skipped]

    def _add(self, rows: Int64s, batch: pa.RecordBatch, run: int) -> None:
        names = set(batch.schema.names)
        kinds = self._kind[rows]
        splits = self._split[rows].astype(np.int64)
        with_sound = np.array(self._layouts.sounds)[self._layouts.of_rows(rows)]
        for name in sorted(names - set(KEY_COLUMNS)):
            self._add_column(name, batch.column(name))
        if "licence" in names:
            self._licences.add(licences(batch.column("licence")))
        self._raw.add(kinds, batch)
        for code in np.unique(kinds).tolist():
            rows_of_kind = np.flatnonzero(kinds == code)
            of_kind = batch
            if len(rows_of_kind) < len(rows):
                of_kind = batch.take(pa.array(rows_of_kind))
            kind = self._kinds.setdefault(code, KindScan())
            kind.add(of_kind, splits[rows_of_kind], with_sound[rows_of_kind])
            if "key" in names and self._n_examples:
                kind.choose(rows[rows_of_kind], of_kind.column("key"), run, self._n_examples)

    def _add_column(self, name: str, values: pa.Array) -> None:
        kind = values.type
        if pa.types.is_boolean(kind):
            self._tally(name).add(pc.if_else(values, "yes", "no"))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._tally(name).add(values)
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            # A column may be int in one change and double in another; the manifest has the type that fits both.
            whole = "int" in self._version.manifest["columns"][name]["type"]
            spread = self._columns.setdefault(name, NumberSummary(whole=whole))
            if isinstance(spread, NumberSummary):
                spread.add(floats(values))
        elif pa.types.is_timestamp(kind) and values.null_count < len(values):
            extremes = pc.min_max(values)
            first = extremes["min"].value
            last = extremes["max"].value
            low, high = self._spans.get(name, (first, last))
            self._spans[name] = (min(low, first), max(high, last))

    def _tally(self, name: str) -> NameTally:
        tally = self._columns.setdefault(name, NameTally())
        if isinstance(tally, NameTally):
            return tally
        return NameTally()


def _runs(version: Version) -> list[list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for file in select_files(version.manifest["samples"], None, annotations=False):
        folder = file["path"].rpartition("/")[0]
        runs.setdefault(folder, []).append(dict(file))
    return list(runs.values())
