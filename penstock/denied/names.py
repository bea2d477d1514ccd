"""Names that only the samples of a takedown have."""

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
    """URIs of the raw objects that they were cut of, whether or not others were too."""
    rows: Mapping[str, list[int]]
    """Path of a table -> numbers of its rows that have the names."""


def keys_files(version: Version) -> list[dict[str, Any]]:
    """Return the entries of a version's manifest for the keys and the provenance of its samples."""
    return [entry for entry in version.manifest["samples"] if entry["group"] == "keys"]


def waiting_tables(root: Root, dataset: str) -> Iterator[pa.Table]:
    """Yield the tables that open transactions of a dataset have of samples."""
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
    """Return the names of the samples of a takedown in a dataset.

    A name that something else which stays has too, in any column, is not only theirs. A name that stands
    for a sample that was redacted already is no name of it.

    files: path -> keys table, of all versions.
    denied: path -> its denied rows.
    known: marks on record.

    Raises: Corrupt; StoreError.
    """
    root, deny = tables.root, tables.deny
    mine: dict[str, set[str]] = {name: set() for name in NAMES}
    rows: dict[str, list[int]] = {}
    others: list[pa.ChunkedArray] = []

    def take(path: str, table: pa.Table, gone: Sequence[bool]) -> None:
        rows[path] = [number for number, is_gone in enumerate(gone) if is_gone]
        for name in name_columns(table):
            mine[name] |= set(
                pc.unique(table[name].take(pa.array(rows[path], pa.int64()))).drop_null().to_pylist()
            )

    for path, file in files.items():
        if denied[path].mine:
            table = names_in(root.store, file)
            at = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
            take(path, table, [row in denied[path].mine.get(part, ()) for part, row in at])
    uris = mine["raw_uri"] - {""}
    one, all_ = DenyList([deny], dataset), DenyList(root.state.denies, dataset)
    for path, table in _waiting(root, dataset):
        take(path, table, list(one.entries(table) != 0))
        left = pa.array(list(all_.entries(table) == 0), pa.bool_())
        others += [pc.unique(table[name].filter(left)).drop_null() for name in name_columns(table)]

    every = marks_of(deny, dataset, {value for some in mine.values() for value in some}, known)
    shared = {every.mark(text) for text in named(every, others)}
    shared = shared.union(*tables.shared(every, list(files.values()), denied))
    alone = {
        name: {value for value in values if value and every.mark(value) not in shared}
        for name, values in mine.items()
    }
    if any(alone.values()):
        shared |= {
            every.mark(text) for text in named(every, _of_other_rows(root.store, dataset, all_, alone))
        }
    only = {value for some in alone.values() for value in some}
    return Named(marks=marks_of(deny, dataset, only, known, shared), uris=uris, rows=rows)


def _of_other_rows(
    store: Store, dataset: str, tests: DenyList, mine: Mapping[str, set[str]]
) -> Iterator[pa.ChunkedArray]:
    """Yield the names of units and raw objects without denied samples. mine: column -> names taken down."""
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
                known = pc.is_in(table[name], value_set=pa.array(sorted(mine[name]), pa.string()))
                stays &= ~known.to_numpy()
            for name in table.column_names:
                yield pc.unique(table[name].filter(pa.array(stays))).drop_null()
