"""Keep a manifest's lists short: merge small neighbouring tables when a publish adds one more.

A log-structured merge tree: up to 7 tables of each of four sizes remain, and larger ones never merge. That is a few
dozen after ten thousand publishes, and a publish usually merges nothing. Merged tables stand where their originals
stood, so the order of the parts stays.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import Corrupt
from ...storage import Store
from ..names import hashes_of
from ..shards.key_hashes import has_all_hashes, put_hashes
from ..shards.part import SHARDS_ROW_GROUP_ROWS
from ..tables.columns import concat, is_annotation, with_dataset_types
from ..tables.parquet import TableFile, get_tables, integers, put_named_table
from ..tables.stats import STATS_SCHEMA, merge_to_rows

FAN_IN = 8
SIZES = tuple(32 * 2**10 * FAN_IN**level for level in range(4))
"""Upper size limits of levels 0 to 3, in bytes. Larger tables never merge."""
MOST_BYTES = 4 * SIZES[-1]
"""Upper limit of the tables of one merge together, in bytes: they are in memory at once."""
RUN_GROUPS = ("keys", "metadata")
"""Column groups of the samples table that every publish of parts writes."""

File = Mapping[str, Any]
"""A table's entry in a manifest."""
Merge = Callable[[Store, str, Sequence[File], Mapping[str, Any]], dict[str, Any]]
"""Writes one table for several: (store, prefix, files, manifest) -> its entry."""
MergeCache = dict[tuple[str, ...], dict[str, Any]]
"""SHA-256s of the originals -> the table that replaces them. Merges add to it."""


def compact_lists(
    store: Store,
    prefix: str,
    manifest: Mapping[str, Any],
    merges: MergeCache,
) -> dict[str, Any]:
    """Return the manifest with short lists. Merged tables are written under `prefix`.

    Usually reads and writes nothing; amortised, about one table per list and publish. Raises: Corrupt; ObjectNotFound.
    """
    compact = dict(manifest)
    # First: the list may grow here, and is shortened with the others below.
    compact["key_hashes"] = _hash_tables(store, prefix, manifest)
    list_merges: dict[str, Merge] = {
        "shards": _merge_shards,
        "exclusions": _merge_exclusions,
        "key_hashes": _merge_hashes,
    }
    for name, merge in list_merges.items():
        compact[name] = _shorten_list(
            store,
            prefix,
            compact[name],
            merge,
            compact,
            merges,
        )
    run_lists = _shorten_runs(
        store,
        prefix,
        compact,
        merges,
    )
    compact.update(run_lists)
    return compact


def choose_merge(nbytes: Sequence[int]) -> slice:
    """Return the neighbouring tables to merge; an empty slice if there are none. nbytes: their sizes, in list order."""
    n_tables = len(nbytes)
    for level, size_limit in enumerate(SIZES):
        # Only the newest tables count: a merge across a larger one would rewrite it with every few publishes.
        start = n_tables
        while start > 0 and nbytes[start - 1] < size_limit:
            start -= 1
        most_tables = (FAN_IN - 1) * (level + 1)  # 7 of this level, and 7 of each lower one
        if n_tables - start <= most_tables:
            continue

        # The oldest of them merge. Newer ones wait for a later publish if all together are more than the limit.
        stop = start
        total = 0
        while stop < n_tables and total + nbytes[stop] <= MOST_BYTES:
            total += nbytes[stop]
            stop += 1
        return slice(start, stop)
    return slice(n_tables, n_tables)


def _shorten_list(
    store: Store,
    prefix: str,
    files: Sequence[File],
    merge: Merge,
    manifest: Mapping[str, Any],
    merges: MergeCache,
) -> list[File]:
    """Return a manifest's list with its newest tables merged, if there are too many."""
    merge_range = choose_merge([file["nbytes"] for file in files])
    originals = files[merge_range]
    if not originals:
        return list(files)
    merged = _merge_once(
        store,
        prefix,
        originals,
        merge,
        manifest,
        merges,
    )
    short = list(files)
    short[merge_range] = [merged]
    return short


def _merge_once(
    store: Store,
    prefix: str,
    files: Sequence[File],
    merge: Merge,
    manifest: Mapping[str, Any],
    merges: MergeCache,
) -> dict[str, Any]:
    """Return the entry of the merged table; a rebase that merges the same tables reuses it."""
    key = tuple(file["sha256"] for file in files)
    if key not in merges:
        merges[key] = merge(
            store,
            prefix,
            files,
            manifest,
        )
    return merges[key]


def _shorten_runs(
    store: Store,
    prefix: str,
    manifest: Mapping[str, Any],
    merges: MergeCache,
) -> dict[str, list[File]]:
    """Return the lists of samples and stats with neighbouring runs merged; later column groups stay."""
    samples = list(manifest["samples"])
    stats = list(manifest["stats"])
    runs = _mergeable_runs(samples)
    sizes = _add_statistics(runs, stats)
    merged_runs = runs[choose_merge(sizes)]

    # 1. Merge the tables of these runs by kind: a column group, or "stats".
    files_by_kind: dict[str, list[File]] = {}
    for run in merged_runs:
        for kind, file in run.items():
            files_by_kind.setdefault(kind, []).append(file)

    merged: dict[str, File] = {}
    for kind, files in files_by_kind.items():
        merge = _merge_samples
        if kind == "stats":
            merge = _merge_stats
        # In a folder apart from the publisher's own run: `_add_statistics` finds a run's statistics by its folder.
        merged[kind] = _merge_once(
            store,
            f"{prefix}-merged",
            files,
            merge,
            manifest,
            merges,
        )

    # 2. Put the merged tables where the first of their originals stood.
    replaced_paths = {file["path"] for files in files_by_kind.values() for file in files}
    merged_samples = [merged[group] for group in RUN_GROUPS if group in merged]
    short_samples = _replace_tables(samples, replaced_paths, merged_samples)
    merged_stats = []
    if "stats" in merged:
        merged_stats = [merged["stats"]]
    short_stats = _replace_tables(stats, replaced_paths, merged_stats)

    # 3. Check the result: readers find the rows of a part by the order of the keys tables.
    stands_for: dict[str, list[str]] = {}
    if "keys" in merged:
        merged_path = merged["keys"]["path"]
        stands_for[merged_path] = [file["path"] for file in files_by_kind["keys"]]
    _check_part_order(samples, short_samples, stands_for)
    return {"samples": short_samples, "stats": short_stats}


def _mergeable_runs(samples: Sequence[File]) -> list[dict[str, File]]:
    """Return the newest runs, oldest first: column group -> its table.

    Runs before a file that changes an earlier column stay as they are. The file's statistics replace all earlier ones
    of the column: a merge across it would move a later run before it, whose statistics would be lost.
    """
    runs: list[dict[str, File]] = []
    earlier_columns: set[str] = set()
    for file in samples:
        group = file["group"]
        if group in RUN_GROUPS and not is_annotation(file):
            begins_run = not runs or group in runs[-1]
            if begins_run:
                runs.append({})
            runs[-1][group] = file
        elif not earlier_columns.isdisjoint(file["columns"]):
            runs.clear()
        earlier_columns.update(file["columns"])
    return runs


def _add_statistics(runs: Sequence[dict[str, File]], stats: Sequence[File]) -> list[int]:
    """Add each run's statistics table to it, as kind "stats"; return the size of each run, in bytes."""
    stats_by_folder: dict[str, list[File]] = {}
    for file in stats:
        stats_by_folder.setdefault(_folder(file), []).append(file)

    sizes = []
    for run in runs:
        first_table = next(iter(run.values()))
        run_stats = stats_by_folder.get(_folder(first_table), [])
        if run_stats:
            run["stats"] = run_stats[0]
        nbytes = sum(file["nbytes"] for file in run.values())
        if len(run_stats) > 1:
            # Earlier releases merged into the publisher's own folder, so that two runs share it, and nothing
            # records which statistics belong to which run. These runs stay unmerged, like large tables.
            nbytes = max(nbytes, SIZES[-1])
        sizes.append(nbytes)
    return sizes


def _folder(file: File) -> str:
    folder, _, _ = file["path"].rpartition("/")
    return str(folder)


def _replace_tables(
    files: Sequence[File],
    replaced_paths: Collection[str],
    merged: Sequence[File],
) -> list[File]:
    """Return the list with the merged tables where the first of the replaced ones stood."""
    out: list[File] = []
    is_placed = False
    for file in files:
        if file["path"] not in replaced_paths:
            out.append(file)
            continue
        if not is_placed:
            out.extend(merged)
            is_placed = True
    return out


def _check_part_order(
    before: Sequence[File],
    after: Sequence[File],
    stands_for: Mapping[str, Sequence[str]],
) -> None:
    """Check that merged tables keep the order of the parts. stands_for: merged path -> paths that it replaces.

    Raises: Corrupt.
    """
    paths_before = [file["path"] for file in before if file["group"] == "keys"]
    paths_after: list[str] = []
    for file in after:
        if file["group"] == "keys":
            paths_after.extend(stands_for.get(file["path"], [file["path"]]))
    if paths_after != paths_before:
        raise Corrupt(
            f"{stands_for} would put the keys tables {paths_before} out of the order of the parts; nothing was "
            "published. This is a defect of penstock: report it with the manifest of the newest version",
            what="part order",
            given=paths_before,
        )


def _read_tables(store: Store, files: Sequence[File]) -> list[pa.Table]:
    table_files = [TableFile.from_json(dict(file)) for file in files]
    return list(get_tables(store, table_files))  # all at once: `MOST_BYTES` bounds them


def _merge_shards(
    store: Store,
    prefix: str,
    files: Sequence[File],
    manifest: Mapping[str, Any],
) -> dict[str, Any]:
    # Columns that an earlier release's table lacks are null for its shards.
    table = pa.concat_tables(_read_tables(store, files), promote_options="default")
    return put_named_table(
        store,
        prefix,
        table,
        "shards",
        SHARDS_ROW_GROUP_ROWS,
    ).to_json()


def _merge_exclusions(
    store: Store,
    prefix: str,
    files: Sequence[File],
    manifest: Mapping[str, Any],
) -> dict[str, Any]:
    table = pa.concat_tables(_read_tables(store, files))
    return put_named_table(
        store,
        prefix,
        table,
        "exclusions",
    ).to_json()


def _merge_stats(
    store: Store,
    prefix: str,
    files: Sequence[File],
    manifest: Mapping[str, Any],
) -> dict[str, Any]:
    run_rows: list[dict[str, Any]] = []
    for table in _read_tables(store, files):
        run_rows.extend(table.to_pylist())
    merged = pa.Table.from_pylist(merge_to_rows(run_rows), schema=STATS_SCHEMA)
    return put_named_table(
        store,
        prefix,
        merged,
        "stats",
    ).to_json()


def _merge_hashes(
    store: Store,
    prefix: str,
    files: Sequence[File],
    manifest: Mapping[str, Any],
) -> dict[str, Any]:
    tables = _read_tables(store, files)
    hashes = np.concatenate([integers(table["hash"]) for table in tables])
    return put_hashes(store, prefix, hashes)


def _merge_samples(
    store: Store,
    prefix: str,
    files: Sequence[File],
    manifest: Mapping[str, Any],
) -> dict[str, Any]:
    # A column that was all null in one run has its type from a run that has values.
    column_types = {}
    for name, column in manifest["columns"].items():
        if column["type"] != "null":
            column_types[name] = column["type"]
    tables = [with_dataset_types(table, column_types) for table in _read_tables(store, files)]
    table = concat(tables, "the samples table")

    group = files[0]["group"]
    entry = put_named_table(
        store,
        prefix,
        table,
        f"samples-{group}",
    ).to_json()
    entry["group"] = group
    entry["columns"] = sorted(set(table.column_names) - {"part", "row"})
    return entry


def _hash_tables(
    store: Store,
    prefix: str,
    manifest: Mapping[str, Any],
) -> list[File]:
    """Return the manifest's list `key_hashes`, complete: it may lack tables after an upgrade."""
    if has_all_hashes(manifest):
        return list(manifest["key_hashes"])
    # Earlier releases wrote no hashes: this publish writes them once, for the keys of all runs.
    entries = [entry for entry in manifest["samples"] if entry["group"] == "keys"]
    files = [TableFile.from_json(entry) for entry in entries]
    key_tables = get_tables(store, files, ["key"])
    return [put_hashes(store, prefix, hashes_of(table["key"])) for table in key_tables]
