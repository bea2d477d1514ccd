"""Find the names that only the samples of a takedown have."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.log.denies import DenyList
from loader.dataset.tables.parquet import parse_table
from loader.errors import ObjectNotFound
from loader.storage import Store

from ..confirmed_listing import listed_twice
from .hashed_names import Marks, marks_of
from .keys_tables import NAMES, DeniedRows, KeysFile, KeysTables, name_columns, named, names_in

_TABLES: Mapping[str, Mapping[str, str]] = {
    "units": {name: name for name in NAMES},
    "raw_objects": {"key": "raw_key", "uri": "raw_uri", "sha256": "raw_sha256"},
}
"""Lifecycle tables of units and raw objects: their column -> the sample's column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The names of samples."""

    marks: Marks
    """Names that only these samples have."""
    uris: set[str]
    """URIs of their raw objects, shared with others or not."""
    rows: Mapping[str, list[int]]
    """Path of a table -> numbers of its rows with the names."""


def keys_files(version: Version) -> list[dict[str, Any]]:
    """Return a manifest's entries for keys and provenance."""
    return [entry for entry in version.manifest["samples"] if entry["group"] == "keys"]


def waiting_tables(root: Root, dataset: str) -> Iterator[pa.Table]:
    """Yield the samples tables of a dataset's open transactions."""
    return (table for _, table in _waiting(root, dataset))


def _waiting(root: Root, dataset: str) -> Iterator[tuple[str, pa.Table]]:
    for txn in root.state.txns.values():
        waits = txn.dataset == dataset and txn.status == "open"
        for info in listed_twice(root.store, f"data/{txn.txn}/") if waits else ():
            if info.key.endswith(".parquet") and not info.key.endswith(".index.parquet"):
                try:
                    yield info.key, parse_table(root.store.get(info.key).data, info.key)
                except ObjectNotFound:  # the transaction was aborted, and this collected
                    continue


def names_of(
    tables: KeysTables,
    dataset: str,
    files: Mapping[str, KeysFile],
    denied: Mapping[str, DeniedRows],
    known: frozenset[str],
) -> Named:
    """Return the names of a takedown's samples in a dataset.

    A name that anything remaining shares, in any column, is not only theirs.

    files: path -> keys table, of all versions. denied: path -> its denied rows. known: marks on record.

    Raises: Corrupt; StoreError.
    """
    root, deny = tables.root, tables.deny
    names: dict[str, set[str]] = {name: set() for name in NAMES}
    rows: dict[str, list[int]] = {}
    others: list[pa.ChunkedArray] = []

    def take(path: str, table: pa.Table, denied_rows: Sequence[bool]) -> None:
        rows[path] = [number for number, is_gone in enumerate(denied_rows) if is_gone]
        for name in name_columns(table):
            names[name] |= set(
                pc.unique(table[name].take(pa.array(rows[path], pa.int64()))).drop_null().to_pylist()
            )

    for path, file in files.items():
        if denied[path].own:
            table = names_in(root.store, file)
            at = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
            take(path, table, [row in denied[path].own.get(part, ()) for part, row in at])
    uris = names["raw_uri"] - {""}
    own_tests, all_ = DenyList([deny], dataset), DenyList(root.state.denies, dataset)
    for path, table in _waiting(root, dataset):
        take(path, table, list(own_tests.entries(table) != 0))
        stays = pa.array(list(all_.entries(table) == 0), pa.bool_())
        others += [pc.unique(table[name].filter(stays)).drop_null() for name in name_columns(table)]

    every = marks_of(deny, dataset, {value for values in names.values() for value in values}, known)
    shared = {every.mark(text) for text in named(every, others)}
    shared = shared.union(*tables.shared(every, list(files.values()), denied))
    alone = {
        name: {value for value in values if value and every.mark(value) not in shared}
        for name, values in names.items()
    }
    if any(alone.values()):
        shared |= {
            every.mark(text) for text in named(every, _of_other_rows(root.store, dataset, all_, alone))
        }
    only = {value for values in alone.values() for value in values}
    return Named(marks=marks_of(deny, dataset, only, known, shared), uris=uris, rows=rows)


def _of_other_rows(
    store: Store, dataset: str, tests: DenyList, names: Mapping[str, set[str]]
) -> Iterator[pa.ChunkedArray]:
    """Yield the names of units and raw objects without denied samples. names: column -> denied names."""
    for kind, columns in _TABLES.items():
        for info in listed_twice(store, f"tables/{dataset}/{kind}/"):
            if not info.key.endswith(".parquet"):
                continue
            try:
                table = parse_table(store.get(info.key).data, info.key)
            except ObjectNotFound:  # written again by another takedown
                continue
            there = {name: of for name, of in columns.items() if name in table.column_names}
            table = table.select(list(there)).rename_columns(list(there.values()))
            stays = tests.entries(table) == 0
            for name in table.column_names:
                known = pc.is_in(table[name], value_set=pa.array(sorted(names[name]), pa.string()))
                stays &= ~known.to_numpy()
            for name in table.column_names:
                yield pc.unique(table[name].filter(pa.array(stays))).drop_null()
