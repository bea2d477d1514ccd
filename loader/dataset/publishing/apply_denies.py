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

from ...storage import Store
from ..log.denies import DenyList, placeholder
from ..log.state import Deny, State
from ..names import hashes_of
from ..shards.bitmap import unpack
from ..shards.key_hashes import put_hashes
from ..tables.manifest import Change
from ..tables.parquet import TableFile, get_table, get_tables
from ..versions.version import Version
from ..writing.exclude import RowsByReason, put_exclusions
from ..writing.redact import redact_shards
from ..writing.redact_tables import KeysAfterRedaction, redact_samples, redact_stats

DenyEntries = dict[str, dict[int, int]]
"""Part id -> row -> number of the log entry that denies it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """A change after the log's takedowns, for one parent."""

    before: Change | None
    """Change to apply to the parent first, which excludes its denied samples; None if it has none."""
    change: Change
    """The change itself, redacted."""
    n_dropped: int = 0
    """Number of the change's own samples that were left out."""


def takedown_reason(entry: int) -> str:
    return f"taken down (log entry {entry})"


def apply_denies(
    store: Store,
    state: State,
    txn: str,
    dataset: str,
    parent: Version | None,
    change: Change,
) -> Redaction:
    """Return the change with the log's takedowns applied, ready to commit.

    Reads keys and provenance of the change's new samples, and of the parent's samples if the parent lacks the newest
    takedown. Raises: Corrupt; StoreError.
    """
    # A prefix for this try: a rebase applies other takedowns, and its files must not replace these.
    prefix = f"data/{txn}/{secrets.token_hex(8)}"
    own_denied = find_own_denied(store, state.denies, dataset, change)
    parent_denied = find_parent_denied(parent, state.denies)

    # 1. Redact the bytes: of the change's denied samples, and of all that it adds to samples that are not live.
    to_redact: KeysAfterRedaction = {}
    if own_denied:
        to_redact |= _own_placeholders(store, state.denies, own_denied, change)
    if parent is not None:
        # These parts are the parent's, those above are new: no part occurs in both.
        to_redact |= _keys_of_dead_rows(store, parent, parent_denied, change)
    redacted = _redact_change(store, prefix, change, to_redact)

    # 2. Exclude the change's denied samples: their rows stay, so that no later row moves.
    redacted, n_dropped = _exclude_own(store, prefix, redacted, own_denied)

    # 3. Exclude the parent's denied samples, unless the change excludes them for a reason of its own.
    before = None
    to_exclude = _missing_denies(store, parent_denied, change)
    if to_exclude:
        # The table's name is fixed: the change's own exclusions may be under `prefix`.
        exclusions = put_exclusions(
            store,
            f"{prefix}-parent",
            _by_reason(to_exclude),
            _sizes_of_parts(parent),
        )
        before = Change(exclusions=exclusions, n_excluded=_n_rows(to_exclude))
    return Redaction(before=before, change=redacted, n_dropped=n_dropped)


def find_parent_denied(parent: Version | None, denies: Sequence[Deny]) -> DenyEntries:
    """Return the live samples of a version that newer takedowns deny."""
    if parent is None:
        return {}
    last_applied = parent.manifest["denies"]
    newer = [deny for deny in denies if deny.n > last_applied]
    if not newer:
        return {}

    live_denied: DenyEntries = {}
    denied = find_denied_rows(parent, newer)
    for part, rows in denied.items():
        position = parent.parts.position(part)
        is_live = parent.parts.live_members(position)  # bool [rows of the part]
        for row, entry in rows.items():
            if is_live[row]:
                part_rows = live_denied.setdefault(part, {})
                part_rows[row] = entry
    return live_denied


def find_denied_rows(version: Version, denies: Sequence[Deny]) -> DenyEntries:
    """Return all samples of a version, live or not, that these takedowns deny. Reads all key tables."""
    entries = version.manifest["samples"]
    key_files = [entry for entry in entries if entry["group"] == "keys"]
    return find_denied_in_tables(
        version.store,
        denies,
        version.dataset,
        key_files,
    )


def find_own_denied(
    store: Store,
    denies: Sequence[Deny],
    dataset: str,
    change: Change,
) -> DenyEntries:
    """Return the denied samples of the change itself. Reads its key tables."""
    files: list[dict[str, Any]] = []
    for samples in change.samples:
        if samples.group == "keys":
            file = samples.file.to_json()
            file["columns"] = list(samples.columns)
            files.append(file)
    return find_denied_in_tables(store, denies, dataset, files)


def find_denied_in_tables(
    store: Store,
    denies: Sequence[Deny],
    dataset: str,
    files: Sequence[Mapping[str, Any]],
) -> DenyEntries:
    """Return the denied rows of these key tables. files: their entries in a manifest's list `samples`."""
    deny_list = DenyList(denies, dataset)
    denied: DenyEntries = {}
    for file in files:
        # The columns that takedowns name samples by: the key, and some of the provenance.
        name_columns = [name for name in deny_list.columns if name in file["columns"]]
        table_file = TableFile.from_json(dict(file))
        columns = [
            "part",
            "row",
            *name_columns,
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


def _own_placeholders(
    store: Store,
    denies: Sequence[Deny],
    rows: DenyEntries,
    change: Change,
) -> KeysAfterRedaction:
    """Return placeholders for the keys of these rows, which the change brings."""
    files = [samples.file for samples in change.samples if samples.group == "keys"]
    columns = [
        "part",
        "row",
        "key",
    ]
    tables = get_tables(store, files, columns)
    return placeholder_keys(denies, rows, tables)


def placeholder_keys(
    denies: Sequence[Deny],
    rows: DenyEntries,
    tables: Iterable[pa.Table],
) -> KeysAfterRedaction:
    """Return placeholders for the keys of these rows. tables: part, row and key columns of whole parts."""
    salts = {deny.n: deny.salt for deny in denies}
    placeholders: KeysAfterRedaction = {}
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
    parent_denied: DenyEntries,
    change: Change,
) -> KeysAfterRedaction:
    """Return the stored keys of the parent's rows that are not live, or denied, in parts that the change extends.

    A group or annotation has values for all rows of a part: they must not bring back what a denied sample contained.
    The caller redacts the values of these rows; their keys stay.
    """
    changed_parts = _find_parts(store, change)
    parent_parts = parent.parts.ids.to_pylist()
    extended_parts = changed_parts.intersection(parent_parts)
    dead_rows_by_part: dict[str, set[int]] = {}
    for part in sorted(extended_parts):
        position = parent.parts.position(part)
        is_live = parent.parts.live_members(position)  # bool [rows of the part]
        excluded = np.flatnonzero(~is_live)
        dead_rows = set(excluded.tolist())
        dead_rows.update(parent_denied.get(part, ()))
        if dead_rows:
            dead_rows_by_part[part] = dead_rows
    if not dead_rows_by_part:
        return {}

    files: list[TableFile] = []
    for entry in parent.manifest["samples"]:
        if entry["group"] == "keys":
            file = TableFile.from_json(entry)
            files.append(file)

    stored_keys: KeysAfterRedaction = {}
    columns = [
        "part",
        "row",
        "key",
    ]
    for table in get_tables(store, files, columns):
        members = _rows_of_parts(table, dead_rows_by_part)
        for member in members.to_pylist():
            part = member["part"]
            row = member["row"]
            if row in dead_rows_by_part[part]:
                part_keys = stored_keys.setdefault(part, {})
                part_keys[row] = member["key"]
    return stored_keys


def _find_parts(store: Store, change: Change) -> set[str]:
    """Return the ids of all parts that the change adds samples, fields or columns to."""
    files = [samples.file for samples in change.samples]
    if change.shards is not None:
        files.append(change.shards)
    parts: set[str] = set()
    for table in get_tables(store, files, ["part"]):
        table_parts = pc.unique(table["part"])
        parts.update(table_parts.to_pylist())
    return parts


def _redact_change(
    store: Store,
    prefix: str,
    change: Change,
    rows: KeysAfterRedaction,
) -> Change:
    """Return the change with redacted copies of its tables and shards; the same change if there are no rows."""
    if not rows:
        return change
    samples = redact_samples(store, prefix, change.samples, rows)
    stats = change.stats
    key_hashes = change.key_hashes
    if samples != change.samples:
        # The change's statistics and hashes still cover the denied values: compute them again.
        if stats is not None:
            table_files = [entry.file for entry in samples]
            stats = redact_stats(store, prefix, table_files)
        if key_hashes is not None:
            key_files = [entry.file for entry in samples if entry.group == "keys"]
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


def _exclude_own(
    store: Store,
    prefix: str,
    change: Change,
    own_denied: DenyEntries,
) -> tuple[Change, int]:
    """Return (the change with these rows of its own excluded, number of rows that it did not exclude before)."""
    to_exclude = _missing_denies(store, own_denied, change)
    n_dropped = _n_rows(to_exclude)
    if not n_dropped:
        return change, 0

    assert change.shards is not None, "a change that brings samples brings their shards"
    shards = get_table(store, change.shards, ["part", "n_rows"])
    part_sizes: dict[str, int] = {}
    for shard in shards.to_pylist():
        part = shard["part"]
        part_sizes[part] = shard["n_rows"]

    # One table for both: the takedowns' exclusions, and the change's own with their reasons.
    rows_by_reason = _by_reason(to_exclude)
    for exclusion in _exclusions(store, change):
        part = exclusion["part"]
        reason = exclusion["reason"]
        rows = rows_by_reason.setdefault((part, reason), [])
        rows += _exclusion_rows(exclusion)
        # The change may also exclude rows of earlier parts, which its shards table lacks.
        part_sizes[part] = exclusion["n_rows"]
    exclusions = put_exclusions(
        store,
        prefix,
        rows_by_reason,
        part_sizes,
    )
    smaller_change = replace(
        change,
        exclusions=exclusions,
        n_excluded=change.n_excluded + n_dropped,
    )
    return smaller_change, n_dropped


def _missing_denies(
    store: Store,
    denied: DenyEntries,
    change: Change,
) -> DenyEntries:
    """Return the denied rows that the change does not exclude itself."""
    if not denied or change.exclusions is None:
        return denied
    remaining = {part: dict(members) for part, members in denied.items()}
    for exclusion in _exclusions(store, change):
        part = exclusion["part"]
        part_rows = remaining.get(part, {})
        for row in _exclusion_rows(exclusion):
            part_rows.pop(row, None)

    # A part without rows would become an exclusion of nothing.
    return {part: members for part, members in remaining.items() if members}


def _exclusions(store: Store, change: Change) -> list[dict[str, Any]]:
    """Return the rows of the change's table of exclusions (`parts_table.EXCLUSIONS_SCHEMA`)."""
    if change.exclusions is None:
        return []
    table = get_table(store, change.exclusions)
    return list(table.to_pylist())


def _exclusion_rows(exclusion: Mapping[str, Any]) -> list[int]:
    is_excluded = unpack(exclusion["bitmap"], exclusion["n_rows"])
    rows: list[int] = np.flatnonzero(is_excluded).tolist()
    return rows


def _by_reason(rows: DenyEntries) -> RowsByReason:
    """Return the rows as `put_exclusions` takes them."""
    grouped: RowsByReason = {}
    for part, members in rows.items():
        for row, entry in members.items():
            reason = takedown_reason(entry)
            part_rows = grouped.setdefault((part, reason), [])
            part_rows.append(row)
    return grouped


def _n_rows(rows: DenyEntries) -> int:
    return sum(len(members) for members in rows.values())


def _sizes_of_parts(parent: Version | None) -> dict[str, int]:
    if parent is None:
        return {}
    ids = parent.parts.ids.to_pylist()
    n_rows = parent.parts.n_rows.tolist()
    return dict(zip(ids, n_rows, strict=True))
