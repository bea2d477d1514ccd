"""Read tables of keys and provenance: denied rows, names that remain, and names only of denied samples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.apply_denies import DenyEntries, find_denied_in_tables
from loader.dataset.log.denies import DenyList
from loader.dataset.log.state import Deny
from loader.dataset.tables.parquet import TableFile, get_table, parse_table
from loader.errors import ObjectNotFound
from loader.storage import Store

from .hashed_names import Marks, marks_of
from .sources import listed_twice

NAMES = ("key", "source_key", "unit_id", "raw_key", "raw_uri", "raw_sha256", "subject")
"""Columns whose values name a sample."""
KeysFile = Mapping[str, Any]
"""Keys table's entry in a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedRows:
    """Denied rows in a keys table."""

    own: DenyEntries
    """Rows that one takedown denies."""
    every: DenyEntries
    """Rows that any takedown denies."""


class KeysTables:
    """Keys tables of a root, read by this process."""

    def __init__(self, root: Root, deny: Deny) -> None:
        self.root, self.deny = root, deny

    def denied(self, dataset: str, files: Sequence[KeysFile]) -> Iterator[DeniedRows]:
        for file in files:
            yield denied_in(self.root.store, self.deny, self.root.state.denies, dataset, file)

    def shared(
        self, marks: Marks, files: Sequence[KeysFile], denied: Mapping[str, DeniedRows]
    ) -> Iterator[set[str]]:
        """Yield, per table, the marks of names that remaining rows share.

        marks: of all names in the denied rows. denied: path of a table -> its denied rows.
        """
        for file in files:
            yield shared_in(self.root.store, marks, file, denied[file["path"]].every)


def denied_in(store: Store, deny: Deny, denies: Sequence[Deny], dataset: str, file: KeysFile) -> DeniedRows:
    """Return a table's denied rows. denies: all takedowns."""
    own = find_denied_in_tables(store, [deny], dataset, [file])
    every = own if len(denies) == 1 else find_denied_in_tables(store, denies, dataset, [file])
    return DeniedRows(own=own, every=every)


def shared_in(store: Store, marks: Marks, file: KeysFile, denied: DenyEntries) -> set[str]:
    """Return the marks of names that remaining rows share. denied: all denied rows."""
    table = names_in(store, file)
    at = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
    stays = pa.array([row not in denied.get(part, ()) for part, row in at], pa.bool_())
    columns = (pc.unique(table[name].filter(stays)).drop_null() for name in name_columns(table))
    return {marks.mark(text) for text in named(marks, columns)}


def names_in(store: Store, file: KeysFile) -> pa.Table:
    """Return a table's name columns, with part and row."""
    names = [name for name in NAMES if name in file["columns"]]
    return get_table(store, TableFile.from_json(dict(file)), ["part", "row", *names])


def name_columns(table: pa.Table) -> list[str]:
    """Return the text columns that name samples."""
    there = (name for name in NAMES if name in table.column_names)
    return [name for name in there if pa.types.is_string(table.schema.field(name).type)]


def named(marks: Marks, columns: Iterable[pa.ChunkedArray]) -> set[str]:
    """Return the texts that are denied names. Costs three hashes per text if some are known only by hash."""
    if not marks.all_known:
        return {text for column in columns for text in column.to_pylist() if marks.has(text)}
    names = pa.array(sorted(marks.plain), pa.string())
    return {text for one in columns for text in one.filter(pc.is_in(one, value_set=names)).to_pylist()}


_TABLES: Mapping[str, Mapping[str, str]] = {
    "units": {name: name for name in NAMES},
    "raw_objects": {"key": "raw_key", "uri": "raw_uri", "sha256": "raw_sha256"},
}
"""Lifecycle table -> its column -> the samples table's column with the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Names of denied samples."""

    marks: Marks
    """Names that only these samples have."""
    uris: set[str]
    """URIs of the samples' raw objects, even shared ones."""
    rows: Mapping[str, list[int]]
    """Path of a table -> numbers of the rows with these names."""


def keys_files(version: Version) -> list[dict[str, Any]]:
    """Return a manifest's entries for keys tables."""
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
                except ObjectNotFound:  # the transaction was aborted, and its table deleted
                    continue


def names_of(
    tables: KeysTables,
    dataset: str,
    files: Mapping[str, KeysFile],
    denied: Mapping[str, DeniedRows],
    known: frozenset[str],
) -> Named:
    """Return the names that only a takedown's samples have in a dataset.

    files: path -> keys table, over all versions. denied: path -> its denied rows. known: recorded marks.
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
        take(path, table, list(own_tests.denying_entries(table) != 0))
        stays = pa.array(list(all_.denying_entries(table) == 0), pa.bool_())
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
    for kind, columns in _TABLES.items():
        for info in listed_twice(store, f"tables/{dataset}/{kind}/"):
            if not info.key.endswith(".parquet"):
                continue
            try:
                table = parse_table(store.get(info.key).data, info.key)
            except ObjectNotFound:  # rewritten by another takedown
                continue
            there = {name: of for name, of in columns.items() if name in table.column_names}
            table = table.select(list(there)).rename_columns(list(there.values()))
            stays = tests.denying_entries(table) == 0
            for name in table.column_names:
                known = pc.is_in(table[name], value_set=pa.array(sorted(names[name]), pa.string()))
                stays &= ~known.to_numpy()
            for name in table.column_names:
                yield pc.unique(table[name].filter(pa.array(stays))).drop_null()
