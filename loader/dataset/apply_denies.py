"""Apply takedowns to a change before its commit: redact its denied samples, exclude its parent's.

A commit with `denies: 17` has applied every takedown up to log entry 17. Samples of earlier versions keep their bytes
until `penstock takedown run`.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..storage import Store
from .log.denies import DenyList, placeholder
from .log.state import Deny, State
from .names import hashes_of
from .shards.bitmap import unpack
from .shards.key_hashes import put_hashes
from .tables.manifest import Change
from .tables.parquet import TableFile, get_table, get_tables
from .versions.version import Version
from .writing.exclude import put_exclusions
from .writing.redact import redact_shards
from .writing.redact_tables import Redacted, redact_samples, redact_stats

Rows = dict[str, dict[int, int]]
"""Part id -> row -> number of the log entry that denies it."""
NewKeys = dict[str, dict[int, str]]
"""Part id -> row -> key after the redaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    before: Change | None
    """Change to apply to the parent first, which excludes its denied samples, or None."""
    change: Change
    """The change, redacted."""
    n_dropped: int = 0
    """Number of the change's own samples that were left out."""


def reason_of(entry: int) -> str:
    return f"taken down (log entry {entry})"


def apply_denies(
    store: Store,
    state: State,
    txn: str,
    dataset: str,
    parent: Version | None,
    change: Change,
) -> Applied:
    """Return the change with the log's takedowns applied, ready to commit.

    Reads keys and provenance of the change's new samples, and of the parent's samples if the parent lacks the newest
    takedown. Raises: Corrupt; StoreError.
    """
    # A prefix for this try: a rebase applies other takedowns, and its files must not replace these.
    prefix = f"data/{txn}/{secrets.token_hex(8)}"
    own = own_denied(store, state.denies, dataset, change)
    denied = parent_denied(parent, state.denies)

    # 1. Redact the bytes: of the change's denied samples, and of all that it adds to samples that are not live.
    to_redact: NewKeys = {}
    if own:
        to_redact |= new_keys(store, state.denies, own, change)
    if parent is not None:
        to_redact |= _keys_of_dead_rows(store, parent, denied, change)
    redacted = _redacted(store, prefix, change, to_redact)

    # 2. Exclude the change's denied samples: their rows stay, so that no later row moves.
    redacted, n_dropped = _leave_out(store, prefix, redacted, own)

    # 3. Exclude the parent's denied samples, unless the change excludes them for a reason of its own.
    before = None
    excluded = _remaining_rows(store, denied, change)
    if excluded:
        # The table's name is fixed: the change's own exclusions may be under `prefix`.
        exclusions = put_exclusions(
            store,
            f"{prefix}-parent",
            _by_reason(excluded),
            _part_sizes(parent),
        )
        before = Change(exclusions=exclusions, n_excluded=_n_rows(excluded))
    return Applied(before=before, change=redacted, n_dropped=n_dropped)


def parent_denied(parent: Version | None, denies: Sequence[Deny]) -> Rows:
    """Return the live samples of a version that newer takedowns deny."""
    if parent is None:
        return {}
    last_applied = parent.manifest["denies"]
    newer = [deny for deny in denies if deny.n > last_applied]
    if not newer:
        return {}

    live_denied: Rows = {}
    denied = denied_rows(parent, newer)
    for part, rows in denied.items():
        position = parent.parts.position(part)
        is_live = parent.parts.live_members(position)  # bool [rows of the part]
        for row, entry in rows.items():
            if is_live[row]:
                part_rows = live_denied.setdefault(part, {})
                part_rows[row] = entry
    return live_denied


def denied_rows(version: Version, denies: Sequence[Deny]) -> Rows:
    """Return all samples of a version, live or not, that these takedowns deny. Reads all key tables."""
    entries = version.manifest["samples"]
    key_files = [entry for entry in entries if entry["group"] == "keys"]
    return denied_files(
        version.store,
        denies,
        version.dataset,
        key_files,
    )


def own_denied(
    store: Store,
    denies: Sequence[Deny],
    dataset: str,
    change: Change,
) -> Rows:
    files: list[dict[str, Any]] = []
    for samples in change.samples:
        if samples.group == "keys":
            file = samples.file.to_json()
            file["columns"] = list(samples.columns)
            files.append(file)
    return denied_files(store, denies, dataset, files)


def denied_files(
    store: Store,
    denies: Sequence[Deny],
    dataset: str,
    files: Sequence[Mapping[str, Any]],
) -> Rows:
    """Return the denied rows of these key tables, given as a manifest lists them."""
    deny_list = DenyList(denies, dataset)
    denied: Rows = {}
    for file in files:
        tested = [name for name in deny_list.columns if name in file["columns"]]
        table_file = TableFile.from_json(dict(file))
        columns = [
            "part",
            "row",
            *tested,
        ]
        table = get_table(store, table_file, columns)
        entries = deny_list.denying_entries(table)  # int64 [rows], 0 if none denies the row

        is_denied = entries != 0
        places = table.select(["part", "row"])
        denied_places = places.filter(pa.array(is_denied))
        denied_entries = entries[is_denied]
        places_and_entries = zip(
            denied_places.to_pylist(),
            denied_entries.tolist(),
            strict=True,
        )
        for place, entry in places_and_entries:
            part_rows = denied.setdefault(place["part"], {})
            part_rows[place["row"]] = entry
    return denied


def new_keys(
    store: Store,
    denies: Sequence[Deny],
    rows: Rows,
    change: Change,
) -> NewKeys:
    """Return part id -> row -> placeholder for the key, for these rows of a change."""
    files = [samples.file for samples in change.samples if samples.group == "keys"]
    columns = [
        "part",
        "row",
        "key",
    ]
    tables = get_tables(store, files, columns)
    return renamed(denies, rows, tables)


def renamed(
    denies: Sequence[Deny],
    rows: Rows,
    tables: Iterable[pa.Table],
) -> NewKeys:
    """Return part id -> row -> placeholder for the key. tables: part, row and key columns of whole parts."""
    salts = {deny.n: deny.salt for deny in denies}
    placeholders: NewKeys = {}
    for table in tables:
        # Of whole parts, because a placeholder must differ from every key of its part.
        members = _rows_of_parts(table, rows)
        keys = set(members["key"].to_pylist())
        for member in members.to_pylist():
            part = member["part"]
            row = member["row"]
            entry = rows[part].get(row)
            if entry is None:
                continue
            key = placeholder(salts[entry], member["key"], keys)
            keys.add(key)
            part_keys = placeholders.setdefault(part, {})
            part_keys[row] = key
    return placeholders


def _rows_of_parts(
    table: pa.Table,
    parts: Iterable[str],
) -> pa.Table:
    part_ids = list(parts)
    ids = pa.array(part_ids, pa.string())
    is_of_parts = pc.is_in(table["part"], value_set=ids)
    return table.filter(is_of_parts)


def _keys_of_dead_rows(
    store: Store,
    parent: Version,
    denied: Rows,
    change: Change,
) -> NewKeys:
    """Return the stored keys of the parent's rows that are not live, in parts that the change extends.

    Their bytes are redacted, their keys stay.

    A group or annotation has values for all rows of a part: they must not bring back what a denied sample contained.
    """
    changed_parts = _parts_of(store, change)
    parent_parts = parent.parts.ids.to_pylist()
    extended_parts = changed_parts.intersection(parent_parts)
    rows: dict[str, set[int]] = {}
    for part in sorted(extended_parts):
        position = parent.parts.position(part)
        is_live = parent.parts.live_members(position)  # bool [rows of the part]
        excluded = np.flatnonzero(~is_live)
        dead = set(excluded.tolist())
        dead.update(denied.get(part, ()))
        if dead:
            rows[part] = dead
    if not rows:
        return {}

    files: list[TableFile] = []
    for entry in parent.manifest["samples"]:
        if entry["group"] == "keys":
            file = TableFile.from_json(entry)
            files.append(file)

    stored_keys: NewKeys = {}
    columns = [
        "part",
        "row",
        "key",
    ]
    for table in get_tables(store, files, columns):
        members = _rows_of_parts(table, rows)
        for member in members.to_pylist():
            part = member["part"]
            row = member["row"]
            if row in rows[part]:
                part_keys = stored_keys.setdefault(part, {})
                part_keys[row] = member["key"]
    return stored_keys


def _parts_of(store: Store, change: Change) -> set[str]:
    files = [samples.file for samples in change.samples]
    if change.shards is not None:
        files.append(change.shards)
    parts: set[str] = set()
    for table in get_tables(store, files, ["part"]):
        table_parts = pc.unique(table["part"])
        parts.update(table_parts.to_pylist())
    return parts


def _redacted(
    store: Store,
    prefix: str,
    change: Change,
    rows: Redacted,
) -> Change:
    if not rows:
        return change
    samples = redact_samples(store, prefix, change.samples, rows)
    stats = change.stats
    key_hashes = change.key_hashes
    if samples != change.samples:
        # Statistics and hashes still cover the denied values.
        if stats is not None:
            table_files = [file.file for file in samples]
            stats = redact_stats(store, prefix, table_files)
        if key_hashes is not None:
            key_files = [file.file for file in samples if file.group == "keys"]
            hashes = [hashes_of(table["key"]) for table in get_tables(store, key_files, ["key"])]
            all_hashes = np.concatenate(hashes)
            key_hashes = put_hashes(store, prefix, all_hashes)

    shards = None
    if change.shards is not None:
        shards = redact_shards(store, prefix, change.shards, rows)
    return replace(
        change,
        samples=samples,
        stats=stats,
        shards=shards,
        key_hashes=key_hashes,
    )


def _leave_out(
    store: Store,
    prefix: str,
    change: Change,
    own: Rows,
) -> tuple[Change, int]:
    """Return (the change with these rows of its own excluded, number of rows that it did not exclude before)."""
    excluded = _remaining_rows(store, own, change)
    n_dropped = _n_rows(excluded)
    if not n_dropped:
        return change, 0

    assert change.shards is not None, "a change that brings samples brings their shards"
    shards = get_table(store, change.shards, ["part", "n_rows"])
    sizes: dict[str, int] = {}
    for shard in shards.to_pylist():
        part = shard["part"]
        sizes[part] = shard["n_rows"]

    # One table for both: the takedowns' exclusions, and the change's own with their reasons.
    rows = _by_reason(excluded)
    for exclusion in _exclusions(store, change):
        part = exclusion["part"]
        reason = exclusion["reason"]
        members = rows.setdefault((part, reason), [])
        members += _excluded_rows(exclusion)
        sizes[part] = exclusion["n_rows"]
    exclusions = put_exclusions(
        store,
        prefix,
        rows,
        sizes,
    )
    changed = replace(
        change,
        exclusions=exclusions,
        n_excluded=change.n_excluded + n_dropped,
    )
    return changed, n_dropped


def _remaining_rows(
    store: Store,
    rows: Rows,
    change: Change,
) -> Rows:
    """Return the rows that the change does not exclude itself."""
    if not rows or change.exclusions is None:
        return rows
    others = {part: dict(members) for part, members in rows.items()}
    for exclusion in _exclusions(store, change):
        part = exclusion["part"]
        part_rows = others.get(part, {})
        for row in _excluded_rows(exclusion):
            part_rows.pop(row, None)

    # A part without rows would become an exclusion of nothing.
    return {part: members for part, members in others.items() if members}


def _exclusions(store: Store, change: Change) -> list[dict[str, Any]]:
    if change.exclusions is None:
        return []
    table = get_table(store, change.exclusions)
    return list(table.to_pylist())


def _excluded_rows(exclusion: Mapping[str, Any]) -> list[int]:
    is_excluded = unpack(exclusion["bitmap"], exclusion["n_rows"])
    rows: list[int] = np.flatnonzero(is_excluded).tolist()
    return rows


def _by_reason(rows: Rows) -> dict[tuple[str, str], list[int]]:
    """Return (part id, reason) -> rows, as `put_exclusions` takes them."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for part, members in rows.items():
        for row, entry in members.items():
            reason = reason_of(entry)
            part_rows = grouped.setdefault((part, reason), [])
            part_rows.append(row)
    return grouped


def _n_rows(rows: Rows) -> int:
    return sum(len(members) for members in rows.values())


def _part_sizes(parent: Version | None) -> dict[str, int]:
    if parent is None:
        return {}
    ids = parent.parts.ids.to_pylist()
    n_rows = parent.parts.n_rows.tolist()
    return dict(zip(ids, n_rows, strict=True))
