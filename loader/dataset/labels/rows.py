"""Read label rows as Arrow batches from Parquet, JSON Lines, CSV, TSV, Arrow, or Python mappings.

Every row carries its line or row number in the source, for errors.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from os.path import isfile, join
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
import pyarrow as pa

from ...errors import FieldNotFound, InvalidField, InvalidSample, StoreError
from ...json_text import is_text
from ...redaction import redact
from ...storage import open_store
from ...storage.disk.scratch import scratch_folder
from ...storage.files import download
from ..tables.columns import arrow_column, check_metadata
from .batch import (
    DELIMITERS,
    ColumnSelection,
    RowBatch,
    arrow_tables,
    csv_header,
    csv_tables,
    n_parquet_rows,
    parquet_names,
    parquet_tables,
)

BATCH_ROWS = 65_536
ROWS = "the rows given"
"""Name of rows that come from no file, in errors."""
_QUERY = re.compile(r"(?<=\S)\?[^\s'\"]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """A source of rows."""

    name: str
    """Source name, for messages."""
    word: str
    """Unit of its numbers: "line" or "row"."""
    batches: Callable[[], Iterator[RowBatch]]
    """Yields the rows; called once."""
    n_rows: Callable[[], int] = lambda: 0
    """Approximate number of rows, computed when called; 0 if unknown."""
    key: str = ""
    """Column of keys."""

    def at(self, number: int) -> str:
        return f"{self.word} {number} of {self.name}"


@contextmanager
def open_rows(
    rows: Any, key: str | Sequence[str], types: Mapping[str, str], columns: Collection[str] | None = None
) -> Iterator[RowSource]:
    """Yield one source of the given rows.

        key: the rows' key column; for a file also a list of names: the first one in the file counts.
        types: column -> Arrow type in the dataset, for parsing CSV text.
        columns: columns to read, None for all.

    Raises: InvalidSample if the value is not a source of rows; ObjectNotFound if a URL has no object. Reading raises
    InvalidSample, InvalidField and FieldNotFound, with file and line.
    """
    selected = None if columns is None else frozenset(columns)
    if isinstance(rows, str | PathLike):
        place, query = _address(fspath(rows))
        name = place.rpartition("/")[2]
        with _local_copy(place, query) as path:
            key_column = key if isinstance(key, str) else _first_key(path, name, key)
            source = _file(path, name, ColumnSelection(key_column, selected), types)
            yield replace(source, n_rows=partial(_count, path, name), key=key_column)
        return
    if not isinstance(key, str):
        raise InvalidSample(f"key={key!r}: name the one key column of rows that come from no file")
    selection = ColumnSelection(key, selected)
    if hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
        yield RowSource(
            name=ROWS, word="row", batches=lambda: arrow_tables(reader, ROWS, selection, BATCH_ROWS)
        )
    elif isinstance(rows, Mapping):
        yield _mappings(ROWS, "row", _by_key(rows, key), selection)
    elif isinstance(rows, Iterable) and not isinstance(rows, bytes):
        yield _mappings(ROWS, "row", enumerate(rows, 1), selection)
    else:
        raise InvalidSample(
            f"rows are of type {type(rows).__name__}; accepted: the path or URL of a .parquet, .jsonl, .csv or .tsv "
            "file, an Arrow table, a mapping key -> values, or mappings that have their key",
            what="rows",
            given=type(rows).__name__,
        )


def _address(place: str) -> tuple[str, str]:
    """Return (path or URL without its query, query). A local path may contain `?`."""
    scheme = place.partition("://")[0].lower() if "://" in place else "file"
    if scheme in ("file", "local"):
        return place, ""
    is_web = scheme in ("http", "https")
    if is_web:
        place, _, _ = place.partition("#")  # a fragment is never sent
    address, _, query = place.partition("?")
    if query and not is_web:
        raise InvalidSample(
            f"{redact(address)} has a query (?...), which signs only http:// and https:// URLs; name the object "
            "without it, and give credentials in the environment",
            what="rows",
            where=redact(address),
            given="a query",
        )
    return address, query


@contextmanager
def _local_copy(place: str, query: str) -> Iterator[str]:
    """Yield a local path; a remote file is first downloaded to scratch. query: sent with its requests."""
    if "://" not in place:
        if not isfile(place):
            raise InvalidSample(
                f"there is no file {place}; give the path or URL of the rows",
                what="rows",
                where=str(place),
                given="no file",
            )
        yield place
        return
    folder, _, name = place.rpartition("/")
    options = None
    if query:
        options = {"fsspec": {"params": parse_qsl(query, keep_blank_values=True)}}
    store = open_store(folder, options)
    try:
        with scratch_folder("rows") as scratch:
            copy = join(scratch, "rows")
            with _redact_query():
                download(store, name, copy)
            yield copy
    finally:
        store.close()


@contextmanager
def _redact_query() -> Iterator[None]:
    """Hide the query of each URL in an error: a signature in it lets anyone read the object."""
    try:
        yield
    except StoreError as error:
        error.args = (_QUERY.sub("?***", str(error)),)
        raise


def _file(path: str, name: str, selection: ColumnSelection, types: Mapping[str, str]) -> RowSource:
    kind = PurePosixPath(name).suffix.lower()
    if kind == ".parquet":
        return RowSource(
            name=name, word="row", batches=lambda: parquet_tables(path, name, selection, BATCH_ROWS)
        )
    if kind == ".jsonl":
        return _mappings(name, "line", _json_lines(path, name), selection)
    if kind in DELIMITERS:
        return RowSource(
            name=name,
            word="line",
            batches=lambda: csv_tables(path, name, selection, types, BATCH_ROWS, DELIMITERS[kind]),
        )
    raise _unreadable(name)


def _unreadable(name: str) -> InvalidSample:
    return InvalidSample(
        f"{name!r} is not a kind of file that rows are read from; accepted: .parquet, .jsonl, .csv, .tsv",
        what="rows",
        where=name,
        given=PurePosixPath(name).suffix,
        accepted=[".parquet", ".jsonl", ".csv", ".tsv"],
    )


def _first_key(path: str, name: str, keys: Sequence[str]) -> str:
    """Return the first of these names, in any case, that a file's columns have. Raises: FieldNotFound."""
    kind = PurePosixPath(name).suffix.lower()
    if kind == ".parquet":
        names = parquet_names(path, name)
    elif kind == ".jsonl":
        _, row = next(_json_lines(path, name), (0, {}))
        names = list(row) if isinstance(row, Mapping) else []
    elif kind in DELIMITERS:
        names = csv_header(path, name, DELIMITERS[kind])
    else:
        raise _unreadable(name)
    # Reversed: of names that differ only in case, the first one remains.
    lower = {column.lower(): column for column in reversed(names)}
    for key in keys:
        if key in lower:
            return lower[key]
    raise FieldNotFound(
        f"{name} has the columns {', '.join(names) or 'none'}, and none is called {', '.join(keys[:-1])} or "
        f"{keys[-1]}: name the one with the keys (--key)",
        what="key column",
        where=name,
        given=names,
        accepted=keys,
    )


def _count(path: str, name: str) -> int:
    if name.lower().endswith(".parquet"):
        return n_parquet_rows(path)
    n_lines = 0
    with open(path, "rb") as file:
        while block := file.read(2**20):
            n_lines += block.count(b"\n")
    return n_lines


def _json_lines(path: str, name: str) -> Iterator[tuple[int, Any]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidSample(
                    f"line {number} of {name} is not JSON: {error}",
                    what="line",
                    where=f"line {number} of {name}",
                    given=repr(line),
                    accepted="JSON",
                ) from error


def _by_key(rows: Mapping[Any, Any], key: str) -> Iterator[tuple[int, Any]]:
    for number, (name, row) in enumerate(rows.items(), 1):
        try:
            values = {**row, key: name}
        except TypeError as error:
            raise InvalidSample(
                f"row {number} of {ROWS} is {repr(row)[:60]} for key {name!r}; a mapping of columns to values is "
                f"needed for each key, such as {{{name!r}: {{'label': {repr(row)[:60]}}}}}",
                what="row",
                where=f"row {number} of {ROWS}",
                given=row,
                accepted="a mapping of columns to values",
            ) from error
        yield number, values


def _mappings(name: str, word: str, rows: Iterable[tuple[int, Any]], selection: ColumnSelection) -> RowSource:
    def batches() -> Iterator[RowBatch]:
        block: list[_Row] = []
        for number, row in rows:
            block.append(_mapping(row, number, selection, f"{word} {number} of {name}"))
            if len(block) == BATCH_ROWS:
                yield _map_rows(block, selection.key, name, word)
                block = []
        if block:
            yield _map_rows(block, selection.key, name, word)

    return RowSource(name=name, word=word, batches=batches)


class _Row(NamedTuple):
    number: int
    key: str
    values: dict[str, Any]
    skipped: frozenset[str]


def _mapping(row: Any, number: int, selection: ColumnSelection, where: str) -> _Row:
    if not isinstance(row, Mapping):
        raise InvalidSample(
            f"{where} is {str(row)[:60]!r}; an object with its key under {selection.key!r} is needed",
            what="row",
            where=where,
            given=str(row),
            accepted="an object",
        )
    key = row.get(selection.key)
    if not isinstance(key, str | int) or isinstance(key, bool) or not is_text(str(key)):
        raise InvalidSample(
            f"{where} has {key!r} for its key, under {selection.key!r}; a string (of UTF-8) or whole number is needed",
            what=selection.key,
            where=where,
            given=key,
            accepted="a string or whole number",
        )
    try:
        values = check_metadata(str(key), {name: row[name] for name in selection.of(row)})
    except InvalidField as error:
        error.add_note(f"in {where}")
        raise
    return _Row(number, str(key), values, selection.skipped(row))


def _map_rows(rows: Sequence[_Row], key: str, name: str, word: str) -> RowBatch:
    keys = [row.key for row in rows]
    columns = {key: pa.array(keys, pa.string())}
    # Each row may have other columns. A dict keeps the order in which they first appear.
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row.values))
    for column in names:
        try:
            columns[column] = arrow_column(column, [row.values.get(column) for row in rows], keys)
        except InvalidSample as error:
            error.add_note(f"in {word} {rows[0].number} to {rows[-1].number} of {name}")
            raise
    return RowBatch(
        table=pa.table(columns),
        numbers=np.array([row.number for row in rows], np.int64),
        nulls=[[column for column, value in row.values.items() if value is None] for row in rows],
        skipped=frozenset().union(*(row.skipped for row in rows)),
    )
