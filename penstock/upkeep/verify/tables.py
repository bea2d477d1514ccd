"""Check a version's tables against the manifest and each other: hashes, counts, order, statistics."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from loader import Version
from loader.dataset.names import hashes_of
from loader.dataset.shards.key_hashes import has_all_hashes
from loader.dataset.tables.annotations import EDIT_COLUMNS, cells
from loader.dataset.tables.columns import fits, is_annotation, type_named
from loader.dataset.tables.manifest import table_references
from loader.dataset.tables.parquet import TableFile, get_table, get_tables, integers
from loader.dataset.tables.stats import column_stats, merge
from loader.errors import PenstockError
from loader.storage import Store

from .shard import Problem

Int64s = np.ndarray[Any, np.dtype[np.int64]]

TOLERANCE = 1e-9
"""Relative and absolute tolerance for sums of floats."""


def compare_tables(version: Version, bad: Collection[str]) -> Iterator[Problem]:
    """Check a version's tables against each other and the manifest.

    - Their counts are equal to the manifest's.
    - Samples tables name every row of every part once and in order, which defines ordinals.
    - The manifest names their columns and groups.

    bad: paths from `bad_tables`. Checks that need one are skipped: all, if it is a shards or exclusions table.
    """
    if contains_bad(bad, version.manifest["shards"]) or contains_bad(bad, version.manifest["exclusions"]):
        return
    try:
        yield from _counts(version)
        yield from _groups(version)
        yield from _samples(version, bad)
        yield from _exclusions(version)
    except PenstockError as error:
        yield Problem(address=version.name, what=str(error))


def check_statistics(version: Version, bad: Collection[str] = ()) -> Iterator[Problem]:
    """Recompute all columns' statistics and the key hashes from the samples tables, and compare them.

    bad: as for `compare_tables`.
    """
    entries = version.manifest["samples"]
    columns = version.manifest["columns"]
    if contains_bad(bad, entries):
        return
    own_entries = [entry for entry in entries if not is_annotation(entry)]
    samples = [get_table(version.store, TableFile.from_json(entry)) for entry in own_entries]
    if not contains_bad(bad, version.manifest["stats"]):
        yield from _statistics(version, samples, entries, columns)
    if has_all_hashes(version.manifest) and not contains_bad(bad, version.manifest["key_hashes"]):
        yield from _hashes(version, samples)


def keys_of_parts(store: Store, files: Sequence[TableFile]) -> dict[str, list[str]]:
    """Return part -> its keys. All rows of a part are in one samples file."""
    keys: dict[str, list[str]] = {}
    for table in get_tables(store, files, ["part", "key"]):
        for part, key in zip(table["part"].to_pylist(), table["key"].to_pylist(), strict=True):
            keys.setdefault(part, []).append(key)
    return keys


def contains_bad(bad: Collection[str], files: Collection[Mapping[str, Any]]) -> bool:
    """Return whether one of these tables is bad."""
    return any(file["path"] in bad for file in files)


def _statistics(
    version: Version, samples: list[pa.Table], entries: list[dict[str, Any]], columns: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a problem per column whose stored statistics differ from its values.

    samples: the samples tables without annotations. entries: all of them in the manifest, in order.
    """
    computed_rows = []
    for table in samples:
        computed_rows += column_stats(table).to_pylist()
    computed = merge(computed_rows)
    annotated = set[str]()
    for entry in entries:
        if is_annotation(entry):
            annotated.update(entry["columns"])
    for name in annotated:
        # All of the column's cells: an annotation may replace values of the samples tables.
        annotations = cells(version.store, entries, name)[name]
        values = annotations.to_arrow().cast(type_named(columns[name]["type"]))
        annotated_rows = column_stats(pa.table({name: values})).to_pylist()
        computed |= merge(annotated_rows)
    stored_rows = []
    for entry in version.manifest["stats"]:
        stored_rows += get_table(version.store, TableFile.from_json(entry)).to_pylist()
    stored = merge(stored_rows)
    paths = ", ".join(entry["path"] for entry in version.manifest["stats"][:3])
    for column in sorted(computed.keys() | stored.keys()):
        for what in _different(stored.get(column), computed.get(column)):
            yield Problem(address=f"{version.name} statistics of {column!r} ({paths})", what=what)


def bad_tables(version: Version, seen: set[str]) -> dict[str, Problem]:
    """Return path -> problem, for tables that lack the manifest's SHA-256 or number of rows.

    seen: tables found undamaged with other versions; this version's are added.
    """
    bad: dict[str, Problem] = {}
    rows = {}
    for files in version.manifest.values():
        for entry in _entries(files):
            rows[entry["path"]] = entry["n_rows"]
    for reference in table_references(version.manifest):
        n_rows = rows[reference.path]
        # With size, hash and rows: another version may state others for the same path.
        named = f"{reference.path} {reference.nbytes} {reference.sha256} {n_rows}"
        if named in seen:
            continue
        file = TableFile(
            path=reference.path, nbytes=reference.nbytes, sha256=reference.sha256 or "", n_rows=n_rows
        )
        try:
            n_read = get_table(version.store, file).num_rows
            what = ""
            if n_read != n_rows:
                what = f"{n_read} rows, the manifest states {n_rows}"
        except (PenstockError, OSError) as error:
            what = str(error)
        if what and reference.kind == "shards":
            what += f"; the {n_rows} shards that it names were not checked"
        if what:
            bad[reference.path] = Problem(address=f"{version.name} {reference.path}", what=what)
        else:
            seen.add(named)
    return bad


def _entries(files: object) -> list[Mapping[str, Any]]:
    if not isinstance(files, list):
        return []
    return [one for one in files if isinstance(one, dict) and "path" in one]


def _counts(version: Version) -> Iterator[Problem]:
    parts = version.parts
    counts = {
        "n_parts": len(parts),
        "n_rows": int(parts.n_rows.sum()),
        "n_live": int(parts.n_live.sum()),
    }
    for name, n in counts.items():
        stated = version.manifest[name]
        if stated != n:
            yield Problem(
                address=f"{version.name} manifest {name}", what=f"it is {stated}, the tables have {n}"
            )


def _groups(version: Version) -> Iterator[Problem]:
    rows = version.parts.shard_rows().select(["part", "group", "path", "n_rows", "nbytes"])
    sums = rows.group_by("group").aggregate([("part", "count"), ("n_rows", "sum")])
    tables = {row["group"]: row for row in sums.to_pylist()}
    # Registered parts may share an object, whose bytes count once.
    objects = rows.group_by(["group", "path"]).aggregate([("nbytes", "max")])
    object_sums = objects.group_by("group").aggregate([("nbytes_max", "sum")])
    for row in object_sums.to_pylist():
        tables[row["group"]]["nbytes_sum"] = row["nbytes_max_sum"]
    groups = version.manifest["groups"]
    for group in sorted(tables.keys() | groups.keys()):
        counted = tables.get(group, {"part_count": 0, "n_rows_sum": 0, "nbytes_sum": 0})
        stated = groups.get(group, {"n_parts": 0, "n_rows": 0, "nbytes": 0})
        for name, column in (("n_parts", "part_count"), ("n_rows", "n_rows_sum"), ("nbytes", "nbytes_sum")):
            if counted[column] != stated[name]:
                yield Problem(
                    address=f"{version.name} manifest group {group!r} {name}",
                    what=f"it is {stated[name]}, the shards tables have {counted[column]}",
                )
    shards = rows.group_by(["part", "group"]).aggregate([("n_rows", "count")])
    for row in shards.to_pylist():
        if row["n_rows_count"] > 1:
            yield Problem(
                address=f"{version.name}/{row['part']} {row['group']}",
                what=f"the shards tables name {row['n_rows_count']} shards of it",
            )


def _samples(version: Version, bad: Collection[str]) -> Iterator[Problem]:
    parts = version.parts
    # int64 [parts + 1]: ordinal of each part's first row.
    part_start = np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)])
    n_keys = 0
    for entry in version.manifest["samples"]:
        address = f"{version.name} {entry['path']}"
        if entry["path"] in bad:
            if entry["group"] == "keys":
                # By the manifest, so that rows of later tables are compared with their own ordinals.
                n_keys += entry["n_rows"]
            continue
        table = get_table(version.store, TableFile.from_json(entry))
        # int64 [rows]: its part; likewise the row in it, and the ordinal.
        position = parts.positions(table["part"])
        row = integers(table["row"])
        ordinal = part_start[position] + row
        outside = np.flatnonzero((row < 0) | (row >= parts.n_rows[position]))
        if len(outside):
            yield Problem(
                address=f"{address} row {outside[0]}", what="it names a row that its part does not have"
            )
        elif entry["group"] == "keys":
            unordered = np.flatnonzero(ordinal != n_keys + np.arange(len(ordinal)))
            if len(unordered):
                first = int(unordered[0])
                yield Problem(
                    address=f"{address} row {first}",
                    what=f"it is row {row[first]} of part {table['part'][first]}, out of the order of parts."
                    " This release puts it in order as it reads; an earlier one reads other samples, and stored them "
                    "as views: delete views/, they are made again",
                )
            n_keys += len(ordinal)
        elif is_annotation(entry):
            yield from _repetition_problems(ordinal, address)
        yield from _columns(version.manifest["columns"], entry, table, address)
    n_rows = int(part_start[-1])
    if n_keys != n_rows:
        yield Problem(address=f"{version.name} samples-keys", what=f"{n_keys} rows, the parts have {n_rows}")


def _repetition_problems(ordinal: Int64s, address: str) -> Iterator[Problem]:
    """Yield a problem if a table annotates a sample twice. ordinal: int64 [rows], its samples."""
    samples, first_row, n_rows = np.unique(ordinal, return_index=True, return_counts=True)
    repeated = np.flatnonzero(n_rows > 1)
    if not len(repeated):
        return
    first = repeated[0]
    yield Problem(
        address=f"{address} row {first_row[first]}",
        what=f"{n_rows[first]} rows are of its sample, and {len(repeated)} of {len(samples)} samples have several; "
        "retire the version, and annotate the one before it again",
    )


def _columns(
    named: Mapping[str, Any], entry: Mapping[str, Any], table: pa.Table, address: str
) -> Iterator[Problem]:
    types = {field.name: str(field.type) for field in table.schema}
    own_columns = ["part", "row"]
    if is_annotation(entry):
        own_columns += EDIT_COLUMNS
    for name in own_columns:
        types.pop(name, None)
    if sorted(types) != sorted(entry["columns"]):
        yield Problem(
            address=address,
            what=f"it has columns {sorted(types)}, the manifest states {sorted(entry['columns'])}",
        )
    for name, kind in types.items():
        stated = named.get(name, {}).get("type", "nothing")
        # The version's type is double once a later table has floats.
        is_widened = kind == "int64" and stated == "double"
        if not is_widened and not fits(kind, stated):
            yield Problem(
                address=f"{address} column {name!r}", what=f"it is {kind}, the manifest states {stated}"
            )


def _exclusions(version: Version) -> Iterator[Problem]:
    parts = version.parts
    for entry in version.manifest["exclusions"]:
        for row in get_table(version.store, TableFile.from_json(entry)).to_pylist():
            n_rows = int(parts.n_rows[parts.position(row["part"])])
            if row["n_rows"] != n_rows:
                yield Problem(
                    address=f"{version.name} {entry['path']} part {row['part']}",
                    what=f"its bitmap is of {row['n_rows']} rows, the part has {n_rows}",
                )


def _hashes(version: Version, samples: list[pa.Table]) -> Iterator[Problem]:
    tables_with_keys = [table for table in samples if "key" in table.column_names]
    computed = [np.empty(0, np.int64)]
    computed += [hashes_of(table["key"]) for table in tables_with_keys]
    stored = [np.empty(0, np.int64)]
    for entry in version.manifest["key_hashes"]:
        table = get_table(version.store, TableFile.from_json(entry))
        stored.append(integers(table["hash"]))
    are_equal = np.array_equal(np.sort(np.concatenate(stored)), np.sort(np.concatenate(computed)))
    if not are_equal:
        yield Problem(
            address=f"{version.name} key_hashes ({version.manifest['key_hashes'][0]['path']} ...)",
            what="they are not the hashes of the keys in the samples tables",
        )


def _different(stored: Mapping[str, Any] | None, computed: Mapping[str, Any] | None) -> Iterator[str]:
    if stored is None:
        yield "none are stored"
        return
    if computed is None:
        yield "they are of a column that no samples table has"
        return
    # Nulls are subtracted, because rows written without the column are not counted as nulls.
    n_stored = stored["n"] - stored["nulls"]
    n_computed = computed["n"] - computed["nulls"]
    if n_stored != n_computed:
        yield f"they are of {n_stored} values, there are {n_computed}"
    for name in ("nans", "zeros", "min", "max", "sum", "sum_squares", "histogram", "bottom_k"):
        a = stored[name]
        b = computed[name]
        if name in ("sum", "sum_squares") and a is not None and b is not None:
            if not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                yield f"{name} is {a}, computed again it is {b}"
        # An empty list and null both mean none.
        elif (a or None) != (b or None):
            yield f"{name} is {_short(a)}, computed again it is {_short(b)}"
    a = stored["categories"]
    b = computed["categories"]
    if a is not None and b is not None and a != b:
        yield f"categories are {_short(a)}, computed again {_short(b)}"


def _short(value: object) -> str:
    text = str(value)
    if len(text) < 120:
        return text
    return f"{text[:117]}..."
