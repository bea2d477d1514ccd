"""Read tables of keys and provenance one by one: denied rows, and names that remain."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root
from loader.dataset.log.state import Deny
from loader.dataset.publishing.apply_denies import Rows, denied_files
from loader.dataset.tables.parquet import TableFile, get_table
from loader.storage import Store

from .hashed_names import Marks

NAMES = ("key", "source_key", "unit_id", "raw_key", "raw_uri", "raw_sha256", "subject")
"""Columns whose values name a sample."""
KeysFile = Mapping[str, Any]
"""A keys table's entry in a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedRows:
    """Denied rows of a keys table."""

    own: Rows
    """Rows that one takedown denies."""
    every: Rows
    """Rows that any takedown denies."""


class KeysTables:
    """Keys tables of a root, read by this process."""

    def __init__(self, root: Root, deny: Deny) -> None:
        self.root, self.deny = root, deny

    def denied(self, dataset: str, files: Sequence[KeysFile]) -> Iterator[DeniedRows]:
        """Yield the denied rows of each table. Raises: Corrupt; StoreError."""
        for file in files:
            yield denied_in(self.root.store, self.deny, self.root.state.denies, dataset, file)

    def shared(
        self, marks: Marks, files: Sequence[KeysFile], denied: Mapping[str, DeniedRows]
    ) -> Iterator[set[str]]:
        """Yield for each table the marks of names that remaining rows share.

        marks: of all names of the denied rows. denied: path of a table -> its denied rows. Raises: Corrupt;
        StoreError.
        """
        for file in files:
            yield shared_in(self.root.store, marks, file, denied[file["path"]].every)


def denied_in(store: Store, deny: Deny, denies: Sequence[Deny], dataset: str, file: KeysFile) -> DeniedRows:
    """Return the denied rows of a table. denies: all takedowns. Raises: Corrupt; StoreError."""
    own = denied_files(store, [deny], dataset, [file])
    every = own if len(denies) == 1 else denied_files(store, denies, dataset, [file])
    return DeniedRows(own=own, every=every)


def shared_in(store: Store, marks: Marks, file: KeysFile, denied: Rows) -> set[str]:
    """Return the marks of names that remaining rows share. denied: all denied rows. Raises: Corrupt; StoreError."""
    table = names_in(store, file)
    at = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
    stays = pa.array([row not in denied.get(part, ()) for part, row in at], pa.bool_())
    columns = (pc.unique(table[name].filter(stays)).drop_null() for name in name_columns(table))
    return {marks.mark(text) for text in named(marks, columns)}


def names_in(store: Store, file: KeysFile) -> pa.Table:
    """Return a table's columns of names, with part and row. Raises: Corrupt; StoreError."""
    names = [name for name in NAMES if name in file["columns"]]
    return get_table(store, TableFile.from_json(dict(file)), ["part", "row", *names])


def name_columns(table: pa.Table) -> list[str]:
    """Return the text columns that name samples."""
    there = (name for name in NAMES if name in table.column_names)
    return [name for name in there if pa.types.is_string(table.schema.field(name).type)]


def named(marks: Marks, columns: Iterable[pa.ChunkedArray]) -> set[str]:
    """Return the texts that are among the names.

    Costs three hashes per text if some names are known only by hash.
    """
    if not marks.all_known:
        return {text for column in columns for text in column.to_pylist() if marks.has(text)}
    names = pa.array(sorted(marks.plain), pa.string())
    return {text for one in columns for text in one.filter(pc.is_in(one, value_set=names)).to_pylist()}
