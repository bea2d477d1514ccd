"""The names of the samples of a takedown, which nobody else has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.log.denies import DenyList
from loader.dataset.log.state import Deny
from loader.dataset.publishing.apply_denies import Rows, denied_files
from loader.dataset.tables.parquet import TableFile, get_table, parse_table
from loader.errors import ObjectNotFound
from loader.storage import Store

from ...confirmed_listing import listed_twice
from .hashed_names import Marks, marks_of

NAMES = ("key", "source_key", "unit_id", "raw_key", "raw_uri", "raw_sha256", "subject")
"""Columns whose values name a sample."""
_TABLES: Mapping[str, Mapping[str, str]] = {
    "units": {name: name for name in NAMES},
    "raw_objects": {"key": "raw_key", "uri": "raw_uri", "sha256": "raw_sha256"},
}
"""Lifecycle tables of units and raw objects: their column -> that of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The names of samples."""

    marks: Marks
    """Names of these samples alone."""
    uris: set[str]
    """URIs of the raw objects that they were cut of, whether or not others were too."""


def keys_files(version: Version) -> list[dict[str, Any]]:
    """Return the entries of a version's manifest for the keys and the provenance of its samples."""
    return [entry for entry in version.manifest["samples"] if entry["group"] == "keys"]


def waiting_tables(root: Root, dataset: str) -> Iterator[pa.Table]:
    """Yield the tables that open transactions of a dataset have of samples."""
    for txn in root.state.txns.values():
        waits = txn.dataset == dataset and txn.status == "open"
        for info in listed_twice(root.store, f"data/{txn.txn}/") if waits else ():
            if info.key.endswith(".parquet") and not info.key.endswith(".index.parquet"):
                try:
                    yield parse_table(root.store.get(info.key).data, info.key)
                except ObjectNotFound:  # the transaction was aborted, and this collected
                    continue


def names_of(
    root: Root,
    dataset: str,
    deny: Deny,
    files: Mapping[str, Mapping[str, Any]],
    by_file: Mapping[str, Rows],
    known: frozenset[str],
) -> Named:
    """Return the names of the samples of a takedown in a dataset.

    A name that something else which stays has too, in whichever column, is no name of theirs alone. A name that stands
    for a sample that was redacted already is no name of it.

    files: path -> keys table, of all versions.
    by_file: path -> its denied rows.
    known: marks on record.

    Raises: Corrupt; StoreError.
    """
    mine: dict[str, set[str]] = {name: set() for name in NAMES}
    uris: set[str] = set()
    others: list[pa.ChunkedArray] = []
    denies = root.state.denies

    def sort(table: pa.Table, gone: Sequence[bool], left: Sequence[bool]) -> None:
        for name in NAMES:
            if name in table.column_names and pa.types.is_string(table.schema.field(name).type):
                mine[name] |= set(
                    pc.unique(table[name].filter(pa.array(gone, pa.bool_()))).drop_null().to_pylist()
                )
                others.append(pc.unique(table[name].filter(pa.array(left, pa.bool_()))).drop_null())

    for path, entry in files.items():
        names = [name for name in NAMES if name in entry["columns"]]
        denied = by_file[path] if len(denies) == 1 else denied_files(root.store, denies, dataset, [entry])
        table = get_table(root.store, TableFile.from_json(dict(entry)), ["part", "row", *names])
        at = list(zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True))
        gone = [row in by_file[path].get(part, ()) for part, row in at]
        sort(table, gone, [row not in denied.get(part, ()) for part, row in at])
    uris |= mine["raw_uri"] - {""}
    one, all_ = DenyList([deny], dataset), DenyList(denies, dataset)
    for table in waiting_tables(root, dataset):
        sort(table, list(one.entries(table) != 0), list(all_.entries(table) == 0))

    every = marks_of(deny, dataset, {value for some in mine.values() for value in some}, known)
    shared = _named(every, others)
    alone = {name: values - shared - {""} for name, values in mine.items()}
    if any(alone.values()):
        shared |= _named(every, _of_other_rows(root.store, dataset, all_, alone))
    only = {value for some in alone.values() for value in some}
    return Named(marks=marks_of(deny, dataset, only, known, shared), uris=uris)


def _named(marks: Marks, columns: Iterable[pa.ChunkedArray]) -> set[str]:
    """Return the texts that are among the names.

    Takes three hashes per text where some names are known by their hashes alone: of samples that were redacted before,
    or of another dataset.
    """
    if not marks.all_known:
        return {text for column in columns for text in column.to_pylist() if marks.has(text)}
    names = pa.array(sorted(marks.plain), pa.string())
    return {text for one in columns for text in one.filter(pc.is_in(one, value_set=names)).to_pylist()}


def _of_other_rows(
    store: Store, dataset: str, tests: DenyList, mine: Mapping[str, set[str]]
) -> Iterator[pa.ChunkedArray]:
    """Yield the names of units and raw objects of which nothing is taken down. mine: column -> names taken down."""
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
