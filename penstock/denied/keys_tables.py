"""Read tables of keys and provenance: denied rows, names that remain, and names only of denied samples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.log.denies import DenyList
from loader.dataset.log.state import Deny
from loader.dataset.publishing.apply_denies import DenyEntries, find_denied_in_tables
from loader.dataset.tables.parquet import TableFile, get_table, parse_table
from loader.errors import ObjectNotFound
from loader.storage import Store

from .hashed_names import Marks, dataset_marks
from .sources import list_twice

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
        self.root = root
        self.deny = deny

    def denied(self, dataset: str, files: Sequence[KeysFile]) -> Iterator[DeniedRows]:
        for file in files:
            yield denied_rows(self.root.store, self.deny, self.root.state.denies, dataset, file)

    def shared(
        self, marks: Marks, files: Sequence[KeysFile], denied: Mapping[str, DeniedRows]
    ) -> Iterator[set[str]]:
        """Yield, per table, the marks of names that remaining rows share.

        marks: of all names in the denied rows. denied: path of a table -> its denied rows.
        """
        for file in files:
            yield shared_marks(self.root.store, marks, file, denied[file["path"]].every)


def denied_rows(store: Store, deny: Deny, denies: Sequence[Deny], dataset: str, file: KeysFile) -> DeniedRows:
    """Return a table's denied rows. denies: all takedowns."""
    own = find_denied_in_tables(store, [deny], dataset, [file])
    if len(denies) == 1:
        return DeniedRows(own=own, every=own)
    every = find_denied_in_tables(store, denies, dataset, [file])
    return DeniedRows(own=own, every=every)


def shared_marks(store: Store, marks: Marks, file: KeysFile, denied: DenyEntries) -> set[str]:
    """Return the marks of names that remaining rows share. denied: all denied rows."""
    table = read_names(store, file)
    remains = [not is_denied for is_denied in _are_denied(table, denied)]
    remaining_names = _different_names(table, remains)
    texts = match_names(marks, remaining_names)
    return {marks.mark(text) for text in texts}


def _are_denied(table: pa.Table, denied: DenyEntries) -> list[bool]:
    """Return per row of a keys table whether it is denied."""
    rows = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
    return [row in denied.get(part, ()) for part, row in rows]


def _different_names(table: pa.Table, chosen: Iterable[bool]) -> Iterator[pa.ChunkedArray]:
    """Yield the different names in each name column of the chosen rows. chosen: bool per row."""
    mask = pa.array(list(chosen), pa.bool_())
    for name in name_columns(table):
        values = table[name].filter(mask)
        yield pc.unique(values).drop_null()


def read_names(store: Store, file: KeysFile) -> pa.Table:
    """Return a table's name columns, with part and row."""
    names = [name for name in NAMES if name in file["columns"]]
    table_file = TableFile.from_json(dict(file))
    return get_table(store, table_file, ["part", "row", *names])


def name_columns(table: pa.Table) -> list[str]:
    """Return the text columns that name samples."""
    names = []
    for name in NAMES:
        if name not in table.column_names:
            continue
        kind = table.schema.field(name).type
        if pa.types.is_string(kind):  # a user's column may have one of these names and another type
            names.append(name)
    return names


def match_names(marks: Marks, columns: Iterable[pa.ChunkedArray]) -> set[str]:
    """Return the texts that are denied names. Costs three hashes per text if some are known only by hash."""
    texts: set[str] = set()
    if not marks.all_known:
        # Names of a deleted sample may be known only by hash: each text is hashed.
        for column in columns:
            texts.update(text for text in column.to_pylist() if marks.has(text))
        return texts
    names = pa.array(sorted(marks.plain), pa.string())
    for column in columns:
        is_name = pc.is_in(column, value_set=names)
        texts.update(column.filter(is_name).to_pylist())
    return texts


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
        if txn.dataset != dataset or txn.status != "open":
            continue
        for info in list_twice(root.store, f"data/{txn.txn}/"):
            if not info.key.endswith(".parquet") or info.key.endswith(".index.parquet"):
                continue
            try:
                data = root.store.get(info.key).data
            except ObjectNotFound:  # the transaction was aborted, and its table deleted
                continue
            yield info.key, parse_table(data, info.key)


def denied_names(
    tables: KeysTables,
    dataset: str,
    files: Mapping[str, KeysFile],
    denied: Mapping[str, DeniedRows],
    known: frozenset[str],
) -> Named:
    """Return the names that only a takedown's samples have in a dataset.

    files: path -> keys table, over all versions. denied: path -> its denied rows. known: recorded marks.
    """
    root = tables.root
    deny = tables.deny
    names: dict[str, set[str]] = {name: set() for name in NAMES}
    rows: dict[str, list[int]] = {}
    others: list[pa.ChunkedArray] = []

    def collect(path: str, table: pa.Table, are_denied: Sequence[bool]) -> None:
        rows[path] = [number for number, is_denied in enumerate(are_denied) if is_denied]
        numbers = pa.array(rows[path], pa.int64())
        denied_rows = table.select(name_columns(table)).take(numbers)
        for name in denied_rows.column_names:
            different = pc.unique(denied_rows[name]).drop_null()
            names[name].update(different.to_pylist())

    for path, file in files.items():
        own_rows = denied[path].own
        if own_rows:
            table = read_names(root.store, file)
            collect(path, table, _are_denied(table, own_rows))
    uris = names["raw_uri"] - {""}  # of versions only: before the names of open transactions
    own_list = DenyList([deny], dataset)
    whole_list = DenyList(root.state.denies, dataset)
    for path, table in _waiting(root, dataset):
        is_own = own_list.denying_entries(table) != 0  # bool [rows]
        collect(path, table, list(is_own))
        remains = whole_list.denying_entries(table) == 0  # bool [rows]
        others += _different_names(table, remains)

    all_names = set().union(*names.values())
    every = dataset_marks(deny, dataset, all_names, known)
    # A name that a remaining sample has too, such as a raw object of several clips, must stay.
    shared = {every.mark(text) for text in match_names(every, others)}
    shared = shared.union(*tables.shared(every, list(files.values()), denied))
    unshared: dict[str, set[str]] = {}
    for name, values in names.items():
        unshared[name] = set()
        for value in values:
            if value and every.mark(value) not in shared:
                unshared[name].add(value)
    if any(unshared.values()):
        columns = _names_of_other_rows(root.store, dataset, whole_list, unshared)
        shared |= {every.mark(text) for text in match_names(every, columns)}
    own_names = set().union(*unshared.values())
    return Named(marks=dataset_marks(deny, dataset, own_names, known, shared), uris=uris, rows=rows)


def _names_of_other_rows(
    store: Store, dataset: str, tests: DenyList, names: Mapping[str, set[str]]
) -> Iterator[pa.ChunkedArray]:
    """Yield names in the rows of lifecycle tables that are not denied and have none of `names`."""
    for kind, columns in _TABLES.items():
        for info in list_twice(store, f"tables/{dataset}/{kind}/"):
            if not info.key.endswith(".parquet"):
                continue
            try:
                data = store.get(info.key).data
            except ObjectNotFound:  # rewritten by another takedown
                continue
            table = parse_table(data, info.key)
            present = [name for name in columns if name in table.column_names]
            table = table.select(present).rename_columns([columns[name] for name in present])
            remains = tests.denying_entries(table) == 0  # bool [rows]
            # A row with one of the names is of a denied sample: its other names go with it.
            for name in table.column_names:
                values = pa.array(sorted(names[name]), pa.string())
                has_name = pc.is_in(table[name], value_set=values)
                remains &= ~has_name.to_numpy()
            mask = pa.array(remains)
            for name in table.column_names:
                others = table[name].filter(mask)
                yield pc.unique(others).drop_null()
