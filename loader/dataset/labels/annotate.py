"""Join rows to samples and write them as additional files of the samples table.

The rows are spooled to disk. Memory holds their keys, 24 bytes per matched sample, and at most FILE_ROWS rows.
"""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import FieldMismatch, FieldNotFound, InvalidField, InvalidKey, InvalidName, InvalidSample
from ...json_text import is_text
from ...storage.disk.scratch import on_scratch
from ..names import check_column
from ..progress import Watch, unwatched
from ..tables.annotations import AT_US, BY, EDIT_COLUMNS, REMOVED
from ..tables.columns import RESERVED_COLUMNS, concat, with_dataset_types
from ..tables.manifest import SamplesFile
from ..tables.parquet import put_table
from ..versions.version import Version
from .batch import RowBatch
from .join import NAMED, Matches, match_keys
from .rows import RowSource, open_rows

Int64s = np.ndarray[Any, np.dtype[np.int64]]

FILE_ROWS = 2**20
"""Rows per file, and in memory while it is sorted."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
STORED = ("keys", "metadata")
"""Column groups that every part has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationOptions:
    """Options for turning rows into an annotation."""

    name: str
    """Name of the column group."""
    author: str
    """Author of rows without `annotated_by`."""
    key: str = "key"
    """Column of the rows, matched with the samples' column `on`."""
    on: str = "key"
    """Column of the samples, matched with `key`."""
    columns: Sequence[str] | None = None
    """Columns to write; None for all."""
    nulls: str = "keep"
    """"keep" earlier values, or "remove" them."""
    strict: bool = False
    """True rejects keys that no sample has."""
    last_wins: bool = False
    """True takes the last row of each key; False rejects duplicates."""
    watch: Watch = unwatched
    """Reports progress: rows read, samples compared, rows written."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.match(self.name) or self.name in STORED:
            raise InvalidName(
                f"annotation {self.name!r} is not accepted; use lower-case letters, digits, '_' and '-', e.g. "
                f"'labels-v2' ({' and '.join(STORED)} are reserved)",
                what="name",
                given=self.name,
                accepted="lower-case letters, digits, _ and -",
            )
        if not is_text(self.author) or not self.author.strip():
            raise InvalidSample(
                f"author={self.author!r}: say who annotated, a person or a model with its version, in UTF-8 text",
                what="author",
                given=self.author,
                accepted="UTF-8 text",
            )
        if self.nulls not in ("keep", "remove"):
            raise InvalidSample(
                f"nulls={self.nulls!r}; accepted: 'keep' what is there, or 'remove' it",
                what="nulls",
                given=self.nulls,
                accepted=["keep", "remove"],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinCounts:
    """Counts from matching rows with samples."""

    n_rows: int
    """Number of input rows."""
    n_samples: int
    """Number of samples that a row matched."""
    n_unmatched: int
    """Number of keys that no sample has."""
    unmatched: tuple[tuple[str, str], ...]
    """(key, location of its row) for the first keys that no sample has."""
    n_overruled: int
    """Rows replaced by a later row of the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationResult:
    """The result of `root.annotate`."""

    version: Version
    """Version with the labels."""
    join: JoinCounts
    """Counts from matching rows with samples."""


def write_annotation(
    version: Version, prefix: str, rows: Any, options: AnnotationOptions, *, first: int = 0
) -> tuple[list[SamplesFile], JoinCounts]:
    """Join rows to a version's live samples and upload files under `prefix`. first: number of the first file.

    Raises: InvalidSample, InvalidField, FieldMismatch, FieldNotFound with file and line; DuplicateKey; InvalidKey if no
    key has a sample; with `strict`, if any key has none.
    """
    columns = version.manifest["columns"]
    types = {name: column["type"] for name, column in columns.items() if column["type"] != "null"}
    kinds = {**types, AT_US: "int64", BY: "string"}
    read_columns = None
    if options.columns is not None:
        read_columns = {*options.columns, BY, AT_US}
    with open_rows(rows, options.key, kinds, read_columns) as source, _Spool() as spool:
        keys, numbers = _read(source, options, spool, types)

        def at(row: int) -> str:
            return source.at(int(numbers[row]))

        matches = match_keys(version, keys, options.on, at, last_wins=options.last_wins, watch=options.watch)
        unmatched = tuple((keys[i].as_py(), at(i)) for i in matches.unmatched[:NAMED].tolist())
        if options.strict and unmatched:
            raise InvalidKey(
                f"{len(matches.unmatched)} of {len(keys)} keys have no live sample in {version.name}: "
                f"{', '.join(f'{key!r} ({where})' for key, where in unmatched)}. Correct them, or do without strict",
                what="keys",
                where=version.name,
                given=len(matches.unmatched),
                accepted="keys of live samples",
            )
        files = list(_write(version, prefix, options, spool, matches, types, first))
    if not files:
        raise InvalidSample(
            f"{source.name} has no value for any sample: all of its values are null",
            what="values",
            where=source.name,
            given=None,
        )
    return files, JoinCounts(
        n_rows=len(keys),
        n_samples=sum(one.file.n_rows for one in files),
        n_unmatched=len(matches.unmatched),
        unmatched=unmatched,
        n_overruled=matches.overruled,
    )


class _Spool:
    """Batches spooled to disk: values without their keys, each batch with its own types."""

    def __init__(self) -> None:
        with _scratch():
            self._file = tempfile.TemporaryFile(prefix="penstock-labels-")  # noqa: SIM115
        self._sizes: list[int] = []
        self.n_rows = 0
        self.schema = pa.schema([])

    def __enter__(self) -> "_Spool":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing reports a full disk again
            self._file.close()

    def add(self, table: pa.Table) -> None:
        self.schema = concat([self.schema.empty_table(), table.schema.empty_table()], "the rows").schema
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        with _scratch():
            self._file.write(data)
            self._file.flush()  # a full disk raises here
        self._sizes.append(data.size)
        self.n_rows += table.num_rows

    def tables(self) -> Iterator[pa.Table]:
        self._file.seek(0)
        for size in self._sizes:
            data = self._file.read(size)
            one_thread = pa.ipc.IpcReadOptions(use_threads=False)
            table = pa.ipc.open_stream(data, options=one_thread).read_all()
            yield concat([self.schema.empty_table(), table], "the rows")


def _scratch() -> AbstractContextManager[None]:
    meanwhile = "while rows were read; nothing was published"
    return on_scratch(None, meanwhile, room_for="the rows", again="annotate again")


def _read(
    source: RowSource, options: AnnotationOptions, spool: _Spool, types: Mapping[str, str]
) -> tuple[pa.ChunkedArray, Int64s]:
    keys: list[pa.ChunkedArray] = []
    numbers = [np.zeros(0, np.int64)]  # `concatenate` needs an array
    present: set[str] = set()
    batches = options.watch(
        source.batches(), f"read {source.name}", lambda row_batch: len(row_batch.numbers), source.n_rows
    )
    for batch in batches:
        # JSON rows have columns of their own: a column is missing only if no batch has it.
        present.update(batch.table.column_names, batch.skipped)
        values = _values(batch, options, source.name)
        _check_types(values, types, source, batch.numbers)
        try:
            spool.add(values)
        except FieldMismatch as error:
            error.add_note(f"in {source.word} {batch.numbers[0]} to {batch.numbers[-1]} of {source.name}")
            raise
        keys.append(batch.table[options.key])
        numbers.append(batch.numbers)
    missing = sorted(set(options.columns or ()) - present)
    # Without a row the columns are unknown; matching then refuses the rows.
    if keys and missing:
        accepted = sorted(present - {options.key})
        raise FieldNotFound(
            f"there is no column {missing[0]!r} in {source.name}, but {', '.join(accepted)}",
            what=missing[0],
            where=source.name,
            accepted=accepted,
        )
    chunks = [chunk for row_batch in keys for chunk in row_batch.chunks]
    return pa.chunked_array(chunks, pa.string()), np.concatenate(numbers)


def _values(batch: RowBatch, options: AnnotationOptions, name: str) -> pa.Table:
    """Return a batch's values to write: the selected columns, the names of removed ones, author and time."""
    present = [column for column in batch.table.column_names if column != options.key]
    if options.columns is None:
        selected = [column for column in present if column not in (BY, AT_US)]
    else:
        selected = list(options.columns)
    for column in selected:
        check_column(column, RESERVED_COLUMNS | EDIT_COLUMNS)
    table = batch.table.select([column for column in present if column in selected])
    if options.nulls == "remove":
        if batch.nulls is None:
            removed = _nulls(table)
        else:
            removed = [[column for column in row if column in selected] for row in batch.nulls]
        texts = pa.list_(pa.field("element", pa.string()))
        table = table.append_column(REMOVED, pa.array(removed, texts))
    for column, kind in ((BY, pa.string()), (AT_US, pa.int64())):
        if column in present:
            table = table.append_column(column, _own(batch.table[column], column, kind, name))
    return table


def _check_types(table: pa.Table, types: Mapping[str, str], source: RowSource, numbers: Int64s) -> None:
    for name in table.column_names:
        column = {name: types[name]} if name in types else {}
        try:
            with_dataset_types(table.select([name]), column)
        except FieldMismatch as error:
            # The whole column failed at once: look for the row that an author can correct.
            for row in np.flatnonzero(np.asarray(table[name].is_valid())).tolist():
                try:
                    with_dataset_types(table.select([name]).slice(row, 1), column)
                except FieldMismatch as mismatch:
                    value = table[name][row].as_py()
                    shown = repr(value)[:60]
                    at = source.at(int(numbers[row]))
                    raise FieldMismatch(
                        f"{at} has {shown} for {name!r}: {mismatch}",
                        what=name,
                        where=at,
                        given=value,
                        accepted=mismatch.accepted,
                    ) from error
            error.add_note(f"in {source.name}")
            raise


def _own(values: pa.ChunkedArray, column: str, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    if (
        values.type == kind
        or pa.types.is_null(values.type)
        or (column == AT_US and pa.types.is_timestamp(values.type))
    ):
        return values.cast(kind)
    meaning = "when annotated the row, as microseconds since 1970 (UTC) or a timestamp"
    if column == BY:
        meaning = "who annotated the row, as a string"
    raise InvalidField(
        f"{name}: column {column!r} is {values.type}; it holds {meaning}",
        what=column,
        where=name,
        given=str(values.type),
    )


def _nulls(table: pa.Table) -> list[list[str]]:
    """Return each row's columns that are null."""
    out: list[list[str]] = [[] for _ in range(table.num_rows)]
    for name in table.column_names:
        for row in np.flatnonzero(np.asarray(table[name].is_null())).tolist():
            out[row].append(name)
    return out


def _write(
    version: Version,
    prefix: str,
    options: AnnotationOptions,
    spool: _Spool,
    matches: Matches,
    types: Mapping[str, str],
    number: int,
) -> Iterator[SamplesFile]:
    at_us = time.time_ns() // 1000
    pending: list[pa.Table] = []
    n_pending = 0
    start = 0  # number of the batch's first given row

    def put() -> SamplesFile:
        table = pa.concat_tables(pending).sort_by([("part", "ascending"), ("row", "ascending")])
        parts = pa.chunked_array([version.parts.ids.take(table["part"].combine_chunks())])
        table = table.set_column(0, "part", parts)
        kinds = {f.name: str(f.type) for f in table.schema if f.name not in ("part", "row", *EDIT_COLUMNS)}
        path = f"{prefix}/samples-{options.name}-{number}.parquet"
        file = put_table(version.store, path, table, f"samples-{options.name}")
        return SamplesFile(file=file, group=options.name, columns=kinds, author=options.author, at_us=at_us)

    tables = options.watch(
        spool.tables(), f"write {options.name}", lambda spooled: spooled.num_rows, lambda: spool.n_rows
    )
    for table in tables:
        # The matches are sorted by given row, so a batch's samples lie together.
        low, high = np.searchsorted(matches.row_of, [start, start + table.num_rows])
        here = slice(int(low), int(high))
        row_in_batch = matches.row_of[here] - start
        values = with_dataset_types(table.take(pa.array(row_in_batch)), types)
        # Reserved names, which no input column can have. The part column holds positions until rows are sorted by it.
        columns: dict[str, Any] = {"part": matches.position[here], "row": matches.row[here]}
        columns.update(zip(values.column_names, values.columns, strict=True))
        rows = _rows_with_values(pa.table(columns))
        pending.append(rows)
        n_pending += rows.num_rows
        start += table.num_rows
        if n_pending >= FILE_ROWS:
            yield put()
            pending = []
            n_pending = 0
            number += 1
    if n_pending:
        yield put()


def _rows_with_values(table: pa.Table) -> pa.Table:
    """Return the rows that set or remove a value; an author and a time are no value."""
    has_value = pa.array(np.zeros(table.num_rows, bool))
    for name in table.column_names[2:]:  # after part and row
        if name == REMOVED:
            n_removed = pc.list_value_length(table[name])
            has_value = pc.or_(has_value, pc.greater(n_removed, 0))
        elif name not in (BY, AT_US):
            has_value = pc.or_(has_value, table[name].is_valid())
    return table.filter(has_value)
