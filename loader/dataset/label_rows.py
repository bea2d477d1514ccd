"""Rows of labels as Arrow batches: from a Parquet, JSON lines or CSV file, an Arrow table, or Python mappings.

Every row has the number by which its source knows it - of its line, or of its row - so that what is wrong is named.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from os.path import isfile, join
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pyarrow as pa

from ..errors import InvalidField, InvalidSample, StoreError
from ..storage import open_store
from ..storage.files import download
from ..storage.spec import redact
from .columns import check_metadata, column_of
from .label_arrow import arrow_tables, n_parquet_rows, parquet_tables
from .label_csv import csv_tables

Int64s = np.ndarray[Any, np.dtype[np.int64]]

BATCH_ROWS = 65_536
GIVEN = "the rows given"
"""What rows are called that no file has."""
_QUERY = re.compile(r"(?<=\S)\?[^\s'\"]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Rows of a source. table: the key column as text, and others; numbers: int64 [rows], of their lines; nulls: per
    row the names that it gives a null for, where the source tells a null from nothing at all."""

    table: pa.Table
    numbers: Int64s
    nulls: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Where rows come from; `batches` is called once. name: for messages; word: what it counts, "line" or "row";
    n_rows: about how many there are, 0 where nobody knows, found out when it is called."""

    name: str
    word: str
    batches: Callable[[], Iterator[RowBatch]]
    n_rows: Callable[[], int] = lambda: 0

    def at(self, number: int) -> str:
        """How a row is named to people: 'line 17 of labels.jsonl'."""
        return f"{self.word} {number} of {self.name}"


@contextmanager
def open_rows(rows: Any, key: str, types: Mapping[str, str]) -> Iterator[RowSource]:
    """The rows that somebody gave. key: their column of keys; types: column -> Arrow type in the dataset, by which the
    text of a CSV file is read.

    Raises: InvalidSample for what is no source of rows; ObjectNotFound for a URL. Reading raises InvalidSample,
    InvalidField and FieldNotFound, with file and line.
    """
    if isinstance(rows, str | PathLike):
        place, query = _address(fspath(rows))
        name = place.rpartition("/")[2]
        with _on_this_machine(place, query) as path:
            yield replace(_file(path, name, key, types), n_rows=partial(_count, path, name))
    elif hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
        yield _numbered(GIVEN, "row", arrow_tables(reader, GIVEN, key, BATCH_ROWS))
    elif isinstance(rows, Mapping):
        yield _mappings(GIVEN, "row", _by_key(rows, key), key)
    elif isinstance(rows, Iterable) and not isinstance(rows, bytes):
        yield _mappings(GIVEN, "row", enumerate(rows, 1), key)
    else:
        raise InvalidSample(
            f"rows are of type {type(rows).__name__}; accepted: the path or URL of a .parquet, .jsonl or .csv file, an "
            "Arrow table, a mapping key -> values, or mappings that have their key"
        )


def _address(place: str) -> tuple[str, str]:
    """A path or URL as messages may name it, and the query of a signed URL. Raises: InvalidSample for the query of a
    URL of anything else."""
    scheme = place.partition("://")[0].lower() if "://" in place else "file"
    if scheme in ("file", "local"):
        return place, ""
    of_web = scheme in ("http", "https")
    address, _, query = (place.partition("#")[0] if of_web else place).partition("?")
    if query and not of_web:
        raise InvalidSample(
            f"{redact(address)} has a query (?...), which signs http:// and https:// URLs alone; name the object "
            "without it, and give credentials in the environment"
        )
    return address, query


@contextmanager
def _on_this_machine(place: str, query: str) -> Iterator[str]:
    """The path of a file; a remote one is copied to scratch for the while. query: goes with its requests."""
    if "://" not in place:
        if not isfile(place):
            raise InvalidSample(f"there is no file {place}; give the path or URL of the rows")
        yield place
        return
    folder, _, name = place.rpartition("/")
    signed = {"params": parse_qsl(query, keep_blank_values=True)}
    store = open_store(folder, {"fsspec": signed} if query else None)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-rows-") as scratch:
            copy = join(scratch, "rows")
            with _unsigned():
                download(store, name, copy)
            yield copy
    finally:
        store.close()


@contextmanager
def _unsigned() -> Iterator[None]:
    """Errors without queries of URLs: a client names what it asked for, whatever a provider calls its signature."""
    try:
        yield
    except StoreError as error:
        error.args = (_QUERY.sub("?***", str(error)),)
        raise


def _file(path: str, name: str, key: str, types: Mapping[str, str]) -> RowSource:
    kind = PurePosixPath(name).suffix.lower()
    if kind == ".parquet":
        return _numbered(name, "row", parquet_tables(path, name, key, BATCH_ROWS))
    if kind == ".jsonl":
        return _mappings(name, "line", _json_lines(path, name), key)
    if kind == ".csv":
        return _numbered(name, "line", csv_tables(path, name, key, types, BATCH_ROWS))
    raise InvalidSample(
        f"{name!r} is no kind of file that rows are read from; accepted: .parquet, .jsonl, .csv"
    )


def _count(path: str, name: str) -> int:
    """The rows of a Parquet file; the lines of another. name: that it has where it came from."""
    if name.lower().endswith(".parquet"):
        return n_parquet_rows(path)
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(partial(file.read, 2**20), b""))


def _numbered(name: str, word: str, tables: Iterator[tuple[pa.Table, Int64s]]) -> RowSource:
    return RowSource(
        name=name, word=word, batches=lambda: (RowBatch(table=table, numbers=at) for table, at in tables)
    )


def _json_lines(path: str, name: str) -> Iterator[tuple[int, Any]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise InvalidSample(f"line {number} of {name} is not JSON: {error}") from error


def _by_key(rows: Mapping[Any, Any], key: str) -> Iterator[tuple[int, Any]]:
    """Rows of a mapping key -> values, each with its key."""
    for number, (name, row) in enumerate(rows.items(), 1):
        try:
            values = {**row, key: name}
        except TypeError as error:
            raise InvalidSample(
                f"row {number} of {GIVEN} is {repr(row)[:60]} for key {name!r}; a mapping of columns to values is "
                f"needed for each key, such as {{{name!r}: {{'label': {repr(row)[:60]}}}}}"
            ) from error
        yield number, values


def _mappings(name: str, word: str, rows: Iterable[tuple[int, Any]], key: str) -> RowSource:
    def batches() -> Iterator[RowBatch]:
        taken: list[tuple[int, str, dict[str, Any]]] = []
        for number, row in rows:
            taken.append((number, *_mapping(row, key, f"{word} {number} of {name}")))
            if len(taken) == BATCH_ROWS:
                yield _mapped(taken, key, name, word)
                taken = []
        if taken:
            yield _mapped(taken, key, name, word)

    return RowSource(name=name, word=word, batches=batches)


def _mapping(row: Any, key: str, where: str) -> tuple[str, dict[str, Any]]:
    """The key and the values of one row."""
    if not isinstance(row, Mapping):
        raise InvalidSample(f"{where} is {str(row)[:60]!r}; an object with its key under {key!r} is needed")
    found = row.get(key)
    if not isinstance(found, str | int) or isinstance(found, bool):
        raise InvalidSample(
            f"{where} has {found!r} for its key, under {key!r}; a string or whole number is needed"
        )
    try:
        return str(found), check_metadata(str(found), {name: one for name, one in row.items() if name != key})
    except InvalidField as error:
        error.add_note(f"in {where}")
        raise


def _mapped(rows: Sequence[tuple[int, str, dict[str, Any]]], key: str, name: str, word: str) -> RowBatch:
    keys = [one for _, one, _ in rows]
    columns = {key: pa.array(keys, pa.string())}
    for column in dict.fromkeys(column for _, _, values in rows for column in values):
        try:
            columns[column] = column_of(column, [values.get(column) for _, _, values in rows], keys)
        except InvalidSample as error:
            error.add_note(f"in {word} {rows[0][0]} to {rows[-1][0]} of {name}")
            raise
    return RowBatch(
        table=pa.table(columns),
        numbers=np.array([number for number, _, _ in rows], np.int64),
        nulls=[[column for column, value in values.items() if value is None] for _, _, values in rows],
    )
