"""Keeps a manifest's lists short: a publish writes one table in place of many small ones that came before it.

Tables are merged as a log-structured tree merges its runs, by size: up to 7 of each of four sizes stay, and those that
are larger for good. Ten thousand publishes leave some tens of tables to read, and each row was written again a few
times. Only neighbours in a list are merged, in their order: what a version holds, and its ordinals, stay as they are.
The old tables stay too, for the manifests that name them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..storage import Store
from .arrow import integers
from .columns import concat, fit_types
from .edits import is_annotation
from .key_hashes import covered, hashes_of, put_hashes
from .parquet import TableFile, get_tables, put_named_table
from .part import SHARDS_ROW_GROUP_ROWS
from .stats import STATS_SCHEMA, merge_to_rows

FAN_IN = 8
SIZES = tuple(32 * 2**10 * FAN_IN**level for level in range(4))
"""Bytes below which a table is of level 0, 1, 2, 3; from 16 MiB on it is never merged again."""
RUN_GROUPS = ("keys", "metadata")
"""Column groups of the samples table that every publish of parts writes."""
MOST_BYTES = 4 * SIZES[-1]
"""Of tables merged at once: bounds the memory of a publish."""

File = Mapping[str, Any]
Merge = Callable[[Store, str, Sequence[File], Mapping[str, Any]], dict[str, Any]]
Done = dict[tuple[str, ...], dict[str, Any]]
"""SHA-256 of merged tables -> the table in their place: a rebase does not write it again."""


def compacted(store: Store, prefix: str, manifest: Mapping[str, Any], done: Done) -> dict[str, Any]:
    """The manifest with short lists; tables in place of several are written under `prefix`.

    Reads and writes nothing most of the time; per publish about one table of each list, when shared out among many.
    Raises: Corrupt; ObjectNotFound.
    """
    out = {**manifest, "key_hashes": _all_hashes(store, prefix, manifest)}
    for name, merge in (
        ("shards", _merge_shards),
        ("exclusions", _merge_exclusions),
        ("key_hashes", _merge_hashes),
    ):
        out[name] = _shortened(store, prefix, out[name], merge, out, done)
    return {**out, **_shortened_runs(store, prefix, out, done)}


def to_merge(nbytes: Sequence[int]) -> slice:
    """Which neighbours of a list of tables are to become one; an empty slice where none are.

    Of the smallest level that the list ends with too many tables of, or of smaller ones: the oldest that go together.
    """
    n = len(nbytes)
    for level, below in enumerate(SIZES):
        start = n
        while start and nbytes[start - 1] < below:
            start -= 1
        if n - start > (FAN_IN - 1) * (level + 1):
            end = start
            while end < n and sum(nbytes[start : end + 1]) <= MOST_BYTES:
                end += 1
            return slice(start, end)
    return slice(n, n)


def _shortened(
    store: Store, prefix: str, files: Sequence[File], merge: Merge, manifest: Mapping[str, Any], done: Done
) -> list[File]:
    which = to_merge([file["nbytes"] for file in files])
    old = files[which]
    if not old:
        return list(files)
    key = tuple(file["sha256"] for file in old)
    if key not in done:
        done[key] = merge(store, prefix, old, manifest)
    return [*files[: which.start], done[key], *files[which.stop :]]


def _shortened_runs(
    store: Store, prefix: str, manifest: Mapping[str, Any], done: Done
) -> dict[str, list[File]]:
    """The lists of samples and stats. Keys, metadata and statistics of the same runs become tables of one folder, as a
    publish writes them. Column groups that came later, and theirs, stay as they are; where one has said something of a
    column that was there, its statistics stand for those before it, and nothing moves across."""
    samples, stats = list(manifest["samples"]), list(manifest["stats"])
    runs: dict[str, list[tuple[str, File]]] = {}
    seen: set[str] = set()
    for file in samples:
        if file["group"] in RUN_GROUPS and not is_annotation(file):
            runs.setdefault(_folder(file), []).append((file["group"], file))
        elif not seen.isdisjoint(file["columns"]):
            runs.clear()
        seen.update(file["columns"])
    for file in stats:
        if _folder(file) in runs:
            runs[_folder(file)].append(("stats", file))
    which = to_merge([sum(file["nbytes"] for _, file in run) for run in runs.values()])
    old = [one for run in list(runs.values())[which] for one in run]
    merged: dict[str, File] = {}
    for kind in dict.fromkeys(kind for kind, _ in old):
        mine = [file for found, file in old if found == kind]
        key = tuple(file["sha256"] for file in mine)
        if key not in done:
            merge = _merge_stats if kind == "stats" else _merge_samples
            done[key] = merge(store, prefix, mine, manifest)
        merged[kind] = done[key]
    gone = {file["path"] for _, file in old}
    return {
        "samples": _replaced(samples, gone, [merged[group] for group in RUN_GROUPS if group in merged]),
        "stats": _replaced(stats, gone, [merged["stats"]] if "stats" in merged else []),
    }


def _folder(file: File) -> str:
    return str(file["path"].rpartition("/")[0])


def _replaced(files: Sequence[File], gone: set[str], merged: Sequence[File]) -> list[File]:
    """The list with the merged files where the first of those that are gone stood."""
    at = next((number for number, file in enumerate(files) if file["path"] in gone), len(files))
    return [*files[:at], *merged, *(file for file in files[at:] if file["path"] not in gone)]


def _tables(store: Store, files: Sequence[File]) -> list[pa.Table]:
    return list(get_tables(store, [TableFile.from_json(dict(file)) for file in files]))


def _merge_shards(store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]) -> dict[str, Any]:
    table = pa.concat_tables(_tables(store, files))
    return put_named_table(store, prefix, table, "shards", SHARDS_ROW_GROUP_ROWS).to_json()


def _merge_exclusions(
    store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]
) -> dict[str, Any]:
    table = pa.concat_tables(_tables(store, files))
    return put_named_table(store, prefix, table, "exclusions").to_json()


def _merge_stats(store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]) -> dict[str, Any]:
    rows = merge_to_rows(row for table in _tables(store, files) for row in table.to_pylist())
    table = pa.Table.from_pylist(rows, schema=STATS_SCHEMA)
    return put_named_table(store, prefix, table, "stats").to_json()


def _merge_hashes(store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]) -> dict[str, Any]:
    return put_hashes(store, prefix, np.concatenate([integers(t["hash"]) for t in _tables(store, files)]))


def _merge_samples(
    store: Store, prefix: str, files: Sequence[File], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """Columns take the type that the manifest says, as they do for whoever reads them all."""
    kinds = {name: body["type"] for name, body in manifest["columns"].items() if body["type"] != "null"}
    kind = f"samples-{files[0]['group']}"
    table = concat([fit_types(table, kinds) for table in _tables(store, files)], "the samples table")
    file = put_named_table(store, prefix, table, kind)
    columns = sorted(set(table.column_names) - {"part", "row"})
    return {**file.to_json(), "group": files[0]["group"], "columns": columns}


def _all_hashes(store: Store, prefix: str, manifest: Mapping[str, Any]) -> list[File]:
    """The tables of hashes of all keys. A dataset of an older release has none: they are made once, from its keys."""
    if covered(manifest):
        return list(manifest["key_hashes"])
    files = [TableFile.from_json(file) for file in manifest["samples"] if file["group"] == "keys"]
    return [
        put_hashes(store, prefix, hashes_of(table["key"].to_pylist()))
        for table in get_tables(store, files, ["key"])
    ]
