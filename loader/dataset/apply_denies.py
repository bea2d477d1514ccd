"""Apply takedowns to a change before its commit: redact its denied samples, exclude its parent's.

A commit with `denies: 17` has applied every takedown up to log entry 17. Samples of earlier versions keep their bytes
until `penstock takedown run`.
"""

import secrets
from collections.abc import Mapping, Sequence
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
from .writing.redact import Redacted, redact_samples, redact_shards, redact_stats

Rows = dict[str, dict[int, int]]
"""Part id -> row -> number of the log entry that denies it."""


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
    store: Store, state: State, txn: str, dataset: str, parent: Version | None, change: Change
) -> Applied:
    """Return the change with the log's takedowns applied, ready to commit.

    Reads keys and provenance of the change's new samples, and of the parent's samples if the parent lacks the newest
    takedown. Raises: Corrupt; StoreError.
    """
    prefix = f"data/{txn}/{secrets.token_hex(8)}"
    own = own_denied(store, state.denies, dataset, change)
    denied = parent_denied(parent, state.denies)
    to_redact: dict[str, dict[int, str]] = {}
    if own:
        to_redact |= new_keys(store, state.denies, own, change)
    if parent is not None:
        to_redact |= _not_live(store, parent, denied, change)
    redacted = _redacted(store, prefix, change, to_redact)
    redacted, n_dropped = _leave_out(store, prefix, redacted, own)
    before = None
    if excluded := _without_own_exclusions(store, denied, change):
        before = Change(
            exclusions=_put(store, f"{prefix}-parent", excluded, _sizes(parent)),
            n_excluded=sum(map(len, excluded.values())),
        )
    return Applied(before=before, change=redacted, n_dropped=n_dropped)


def parent_denied(parent: Version | None, denies: Sequence[Deny]) -> Rows:
    """Return a version's live samples that takedowns deny which it has not applied."""
    newer = [deny for deny in denies if parent is not None and deny.n > parent.manifest["denies"]]
    out: Rows = {}
    if parent is None or not newer:
        return out
    for part, rows in denied_rows(parent, newer).items():
        live = parent.parts.live_members(parent.parts.position(part))
        if kept := {row: entry for row, entry in rows.items() if live[row]}:
            out[part] = kept
    return out


def denied_rows(version: Version, denies: Sequence[Deny]) -> Rows:
    """Return all samples of a version, live or not, that these takedowns deny. Reads all key tables."""
    files = [entry for entry in version.manifest["samples"] if entry["group"] == "keys"]
    return denied_files(version.store, denies, version.dataset, files)


def own_denied(store: Store, denies: Sequence[Deny], dataset: str, change: Change) -> Rows:
    files = [
        {**file.file.to_json(), "columns": list(file.columns)}
        for file in change.samples
        if file.group == "keys"
    ]
    return denied_files(store, denies, dataset, files)


def denied_files(
    store: Store, denies: Sequence[Deny], dataset: str, files: Sequence[Mapping[str, Any]]
) -> Rows:
    tests = DenyList(denies, dataset)
    out: Rows = {}
    for file in files:
        columns = ["part", "row", *(name for name in tests.columns if name in file["columns"])]
        table = get_table(store, TableFile.from_json(dict(file)), columns)
        entries = tests.entries(table)
        rows_denied = table.select(["part", "row"]).filter(pa.array(entries != 0)).to_pylist()
        for at, entry in zip(rows_denied, entries[entries != 0].tolist(), strict=True):
            out.setdefault(at["part"], {})[at["row"]] = entry
    return out


def new_keys(store: Store, denies: Sequence[Deny], rows: Rows, change: Change) -> dict[str, dict[int, str]]:
    """Return part id -> row -> placeholder for the key, for these rows of a change."""
    files = [file.file for file in change.samples if file.group == "keys"]
    return renamed(denies, rows, get_tables(store, files, ["part", "row", "key"]))


def renamed(denies: Sequence[Deny], rows: Rows, tables: Any) -> dict[str, dict[int, str]]:
    """Return part id -> row -> placeholder for the key. tables: part, row and key columns of whole parts."""
    salts = {deny.n: deny.salt for deny in denies}
    out: dict[str, dict[int, str]] = {}
    for table in tables:
        of_parts = table.filter(pc.is_in(table["part"], value_set=pa.array(list(rows), pa.string())))
        keys = set(of_parts["key"].to_pylist())
        for at in of_parts.to_pylist():
            if at["row"] in rows[at["part"]]:
                key = placeholder(salts[rows[at["part"]][at["row"]]], at["key"], keys)
                keys.add(key)
                out.setdefault(at["part"], {})[at["row"]] = key
    return out


def _not_live(store: Store, parent: Version, denied: Rows, change: Change) -> dict[str, dict[int, str]]:
    touched = _touched(store, change) & set(parent.parts.ids.to_pylist())
    rows: dict[str, set[int]] = {}
    for part in sorted(touched):
        live = parent.parts.live_members(parent.parts.position(part))
        dead = set(np.flatnonzero(~live).tolist()) | set(denied.get(part, ()))
        if dead:
            rows[part] = dead
    if not rows:
        return {}
    files = [TableFile.from_json(entry) for entry in parent.manifest["samples"] if entry["group"] == "keys"]
    out: dict[str, dict[int, str]] = {}
    for table in get_tables(store, files, ["part", "row", "key"]):
        of_parts = table.filter(pc.is_in(table["part"], value_set=pa.array(list(rows), pa.string())))
        for at in of_parts.to_pylist():
            if at["row"] in rows[at["part"]]:
                out.setdefault(at["part"], {})[at["row"]] = at["key"]
    return out


def _touched(store: Store, change: Change) -> set[str]:
    files = [file.file for file in change.samples] + ([change.shards] if change.shards else [])
    return {
        part for table in get_tables(store, files, ["part"]) for part in pc.unique(table["part"]).to_pylist()
    }


def _redacted(store: Store, prefix: str, change: Change, redacted: Redacted) -> Change:
    if not redacted:
        return change
    samples = redact_samples(store, prefix, change.samples, redacted)
    stats, key_hashes = change.stats, change.key_hashes
    if stats is not None and samples != change.samples:
        stats = redact_stats(store, prefix, [file.file for file in samples])
    if key_hashes is not None and samples != change.samples:
        files = [file.file for file in samples if file.group == "keys"]
        hashes = [hashes_of(table["key"]) for table in get_tables(store, files, ["key"])]
        key_hashes = put_hashes(store, prefix, np.concatenate(hashes))
    shards = redact_shards(store, prefix, change.shards, redacted) if change.shards else None
    return replace(change, samples=samples, stats=stats, shards=shards, key_hashes=key_hashes)


def _leave_out(store: Store, prefix: str, change: Change, own: Rows) -> tuple[Change, int]:
    excluded = _without_own_exclusions(store, own, change)
    n_dropped = sum(map(len, excluded.values()))
    if not n_dropped:
        return change, 0
    table = get_table(store, _shards_of(change), ["part", "n_rows"]).to_pylist()
    rows, sizes = _grouped(excluded), {row["part"]: row["n_rows"] for row in table}
    for row in get_table(store, change.exclusions).to_pylist() if change.exclusions else ():
        members = np.flatnonzero(unpack(row["bitmap"], row["n_rows"])).tolist()
        rows.setdefault((row["part"], row["reason"]), []).extend(members)
        sizes[row["part"]] = row["n_rows"]
    exclusions = put_exclusions(store, prefix, rows, sizes)
    return replace(change, exclusions=exclusions, n_excluded=change.n_excluded + n_dropped), n_dropped


def _shards_of(change: Change) -> TableFile:
    assert change.shards is not None, "a change that brings samples brings their shards"
    return change.shards


def _without_own_exclusions(store: Store, rows: Rows, change: Change) -> Rows:
    if not rows or change.exclusions is None:
        return rows
    out = {part: dict(members) for part, members in rows.items()}
    for row in get_table(store, change.exclusions).to_pylist():
        for at in np.flatnonzero(unpack(row["bitmap"], row["n_rows"])).tolist():
            out.get(row["part"], {}).pop(at, None)
    return {part: members for part, members in out.items() if members}


def _grouped(rows: Rows) -> dict[tuple[str, str], list[int]]:
    out: dict[tuple[str, str], list[int]] = {}
    for part, members in rows.items():
        for row, entry in members.items():
            out.setdefault((part, reason_of(entry)), []).append(row)
    return out


def _sizes(parent: Version | None) -> dict[str, int]:
    if parent is None:
        return {}
    return dict(zip(parent.parts.ids.to_pylist(), parent.parts.n_rows.tolist(), strict=True))


def _put(store: Store, prefix: str, rows: Rows, sizes: dict[str, int]) -> TableFile:
    return put_exclusions(store, prefix, _grouped(rows), sizes)
