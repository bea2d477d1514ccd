"""Republish the newest version with its denied samples redacted and excluded."""

import hashlib
import secrets
import time
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from loader import Root, Version
from loader.dataset.log.entries import canonical
from loader.dataset.log.rules import CommitBody
from loader.dataset.log.state import Deny, State, VersionRecord
from loader.dataset.publishing.apply_denies import (
    DenyEntries,
    find_denied_rows,
    find_parent_denied,
    placeholder_keys,
    takedown_reason,
)
from loader.dataset.publishing.commit import annotation_stats
from loader.dataset.tables.annotations import REMOVED
from loader.dataset.tables.columns import is_annotation
from loader.dataset.tables.parquet import TableFile, get_table, get_tables, put_named_table, table_facts
from loader.dataset.writing.exclude import put_exclusions
from loader.dataset.writing.redact import redact_shards, shard_index
from loader.dataset.writing.redact_tables import (
    KeysAfterRedaction,
    positions_to_redact,
    redact_rows,
    redact_stats,
)
from loader.errors import Conflict, Denied
from loader.storage.external_shards import PlacedStore

from ...class_names import class_names
from ...denied.cells import LABELS, scrub, scrub_class_names
from ...denied.denied_bytes import DeniedBytes
from ...denied.find import find_denied_path, folders, recount_folders
from ...denied.hashed_names import Marks


def transaction(root: Root, n: int, dataset: str, parent: str) -> str:
    """Return the takedown's open transaction on version `parent`; the same one if the takedown resumes."""
    again = 0
    while True:
        # Derived from the takedown, so that a run after a kill finds its own transaction.
        named = f"takedown {n} {dataset} {parent} {again}"
        txn = hashlib.sha256(named.encode()).hexdigest()[:32]
        known = root.state.txns.get(txn)
        if known is None or known.status == "open":
            return root.begin(dataset, parent=parent, txn=txn)
        # The earlier one was committed, or a collector aborted it: neither takes another commit.
        again += 1


def publish_redacted(
    root: Root, dataset: str, deny: Deny, marks: Marks, rewritten: VersionRecord | None = None
) -> VersionRecord | None:
    """Commit the dataset's newest version without a takedown's samples and names; return None if it has none.

    Each shard of an affected part is read and written once. rewritten: the previous version that this takedown
    published.

    Raises: NothingLeft if no sample remains; Denied if `rewritten` is still the newest version and has the samples;
    Conflict; Fenced if a collector considered this takedown dead: run it again.
    """
    newest = root.state.newest(dataset)
    if newest is None:
        return None
    where = _remaining(root, Version.of_record(root.store, newest), deny, marks)
    if not where:
        return None
    # This takedown's own version: a second rewrite would change nothing.
    if rewritten is not None and newest.id == rewritten.id:
        raise not_removed(root, newest, deny, where)
    txn = transaction(root, deny.n, dataset, newest.id)
    redaction = _Redaction(root, txn, deny, marks)
    with root.heartbeat(txn):
        try:
            return root.log.commit(txn, redaction.build)
        except NothingLeft:
            root.abort(txn, f"takedown {deny.n}: nothing is left of the dataset")
            raise


def _remaining(root: Root, version: Version, deny: Deny, marks: Marks) -> str:
    """Return where a version has or names denied samples; empty if it does not."""
    if rows := find_denied_rows(version, [deny]):
        return f"in part {min(rows)}, rows {sorted(rows[min(rows)])[:3]}"
    if path := find_denied_path(version, marks):
        return f"as names in {path}"
    names = class_names(root.store, root.state.versions(version.dataset)) or []
    if scrub_class_names(names, marks) != names:
        return "as names of classes"
    adopted = DeniedBytes(root.store, root.state.denies).adopted(version)
    if adopted:
        return f"in the adopted object {min(adopted[min(adopted)])}"
    return ""


def not_removed(root: Root, record: VersionRecord, deny: Deny, where: str) -> Denied:
    """Return the error for a newest version that the rewrite leaves as it is. where: "in part ..."."""
    return Denied(
        f"takedown {deny.n}: after its rewrite, {record.name} ({record.manifest}) still has what was to be removed, "
        f"{where}. It was not retired, and these samples are still readable. Run penstock verify {record.name} --full "
        f"--root {root.url}: repair what it names, and run the takedown again. If it names nothing, the rewrite has a "
        "fault: report this message, and run the takedown again with a release that corrects it",
        what=f"rewrite of takedown {deny.n}",
        where=f"{record.name} ({record.manifest})",
        given=where,
    )


class NothingLeft(Exception):
    """Raised if every sample of the newest version is denied. version: its id."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.version = version


class _Redaction:
    """Redacts each shard once, even if others publish meanwhile."""

    def __init__(self, root: Root, txn: str, deny: Deny, marks: Marks) -> None:
        self._store = root.store
        self._txn = txn
        self._deny = deny
        self._marks = marks
        self._attempt = ""
        self._shards: dict[str, TableFile] = {}
        self._denied = DeniedBytes(root.store, root.state.denies)

    def build(self, state: State) -> CommitBody:
        # A new folder each time: a part that another takedown redacted meanwhile is redacted again, to other bytes.
        self._attempt = f"data/{self._txn}/{secrets.token_hex(8)}"
        dataset = state.txns[self._txn].dataset
        newest = state.newest(dataset)
        if newest is None:
            raise Conflict(
                f"every version of {dataset} was retired meanwhile; there is nothing to take down from"
            )
        body = self._manifest(Version.of_record(self._store, newest), state)
        if body["n_live"] <= 0:
            raise NothingLeft(newest.id)
        data = canonical(body)
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"{self._attempt}/manifest-{sha256[:16]}.json"
        self._store.put_if_absent(path, data)
        return CommitBody(
            id=f"v-{sha256}", manifest=path, sha256=sha256, parent=newest.id, denies=state.last_deny
        )

    def _manifest(self, version: Version, state: State) -> dict[str, Any]:
        rows = find_denied_rows(version, [self._deny])
        keys = [TableFile.from_json(one) for one in version.manifest["samples"] if one["group"] == "keys"]
        denied = placeholder_keys([self._deny], rows, get_tables(self._store, keys, ["part", "row", "key"]))
        samples, stats = self._tables(version.manifest, denied)
        own = self._denied.adopted(version)
        left_out = self._exclusions(version, rows, find_parent_denied(version, state.denies))
        body = {
            **version.manifest,
            "parent": version.id,
            "txn": self._txn,
            "created_us": time.time_ns() // 1000,
            "denies": state.last_deny,
            "producer": {"takedown": self._deny.n} | self._producer_facts(version) | self._labels(state),
            "shards": [
                self._redact(TableFile.from_json(one), denied, version.placed, own).to_json()
                for one in version.manifest["shards"]
            ],
            "samples": samples,
            "stats": stats,
            "key_hashes": [],  # the next publisher computes them from the current keys
            "exclusions": [self._scrub(one) for one in version.manifest["exclusions"]],
        }
        if version.placed is not None:
            body["groups"] = self._groups(version.manifest["groups"], body["shards"])
        if left_out:
            grouped: dict[tuple[str, str], list[int]] = {}
            for part, members in left_out.items():
                for row, entry in members.items():
                    grouped.setdefault((part, takedown_reason(entry)), []).append(row)
            sizes = dict(zip(version.parts.ids.to_pylist(), version.parts.n_rows.tolist(), strict=True))
            file = put_exclusions(self._store, self._attempt, grouped, sizes)
            body["exclusions"].append(file.to_json())
        body["n_live"] -= sum(map(len, left_out.values()))
        return body

    def _producer_facts(self, version: Version) -> dict[str, Any]:
        producer = version.manifest["producer"]
        return {name: producer[name] for name in ("owner",) if name in producer}

    def _labels(self, state: State) -> dict[str, list[str]]:
        names = class_names(self._store, state.versions(state.txns[self._txn].dataset))
        if names is None:
            return {}
        return {LABELS: scrub_class_names(names, self._marks)}

    def _exclusions(self, version: Version, rows: DenyEntries, parent: DenyEntries) -> DenyEntries:
        out = {part: dict(members) for part, members in parent.items()}
        for part, members in rows.items():
            live = version.parts.live_members(version.parts.position(part))
            for row, entry in members.items():
                # Rows that were excluded before are not part of `n_live`.
                if live[row]:
                    out.setdefault(part, {}).setdefault(row, entry)
        return out

    def _redact(
        self, file: TableFile, denied: KeysAfterRedaction, placed: PlacedStore | None, own: Collection[str]
    ) -> TableFile:
        if file.path not in self._shards:
            self._shards[file.path] = redact_shards(self._store, self._attempt, file, denied, placed, own)
        return self._shards[file.path]

    def _groups(self, groups: Mapping[str, Any], files: list[dict[str, Any]]) -> dict[str, Any]:
        nbytes = dict.fromkeys(groups, 0)
        tables = [TableFile.from_json(one) for one in files]
        for table in get_tables(self._store, tables, ["group", "nbytes"]):
            for row in table.to_pylist():
                nbytes[row["group"]] += row["nbytes"]
        return {name: {**body, "nbytes": nbytes[name]} for name, body in groups.items()}

    def _tables(self, manifest: Mapping[str, Any], denied: KeysAfterRedaction) -> tuple[list[Any], list[Any]]:
        entries = manifest["samples"]
        now = {entry["path"]: self._redact_table(entry, denied) for entry in entries}
        changed = {path for path, table in now.items() if table is not None}
        counted = recount_folders(manifest, changed)
        folder_of = folders(manifest)
        new = {entry["path"]: entry for entry in (*entries, *manifest["stats"])}
        numbers = count()
        for folder in dict.fromkeys(folder_of[one["path"]] for one in entries):
            if folder not in counted:
                continue
            stats_here = [one for one in manifest["stats"] if folder_of[one["path"]] == folder]
            here = [one for one in entries if folder_of[one["path"]] == folder]
            for at, run in enumerate(_runs(here, len(stats_here))):
                prefix = f"{self._attempt}{next(numbers):04x}"
                for entry in run:
                    # Write every table of the run: readers look for its statistics beside its samples.
                    table = now[entry["path"]]
                    table = get_table(self._store, TableFile.from_json(entry)) if table is None else table
                    file = put_named_table(self._store, prefix, table, table_facts(table)["table"])
                    new[entry["path"]] = {**entry, **file.to_json()}
                for stats in stats_here[at : at + 1]:
                    before = entries[: entries.index(run[0])]
                    new[stats["path"]] = self._statistics(
                        prefix, before, run, new, manifest["columns"]
                    ).to_json()
        return ([new[one["path"]] for one in entries], [new[one["path"]] for one in manifest["stats"]])

    def _statistics(
        self,
        prefix: str,
        before: list[Any],
        run: list[Any],
        new: Mapping[str, Any],
        columns: Mapping[str, Any],
    ) -> TableFile:
        ours = [new[one["path"]] for one in run]
        if not is_annotation(ours[0]):
            return redact_stats(self._store, prefix, [TableFile.from_json(one) for one in ours])
        table = annotation_stats(self._store, [new[one["path"]] for one in before], ours, columns)
        return put_named_table(self._store, prefix, table, "stats")

    def _redact_table(self, entry: Mapping[str, Any], denied: KeysAfterRedaction) -> pa.Table | None:
        table = get_table(self._store, TableFile.from_json(dict(entry)))
        redacted = redact_rows(table, positions_to_redact(table, denied))
        now = scrub(redacted, self._marks)
        if now is not redacted and is_annotation(entry):
            now = with_removed(redacted, now)
        if now is table:
            return None
        return now

    def _scrub(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        table = get_table(self._store, TableFile.from_json(dict(entry)))
        now = scrub(table, self._marks)
        if now is table:
            return dict(entry)
        return put_named_table(self._store, f"{self._attempt}-e", now, "exclusions").to_json()


def with_removed(was: pa.Table, now: pa.Table) -> pa.Table:
    """Return an annotation table in which a cell that became null removes the earlier value."""
    former: list[list[str] | None] = [None] * was.num_rows  # names of removed cells, by row
    if REMOVED in was.column_names:
        former = was[REMOVED].to_pylist()
    removed = [list(names or ()) for names in former]
    for name in was.column_names:
        is_null = now[name].is_null().to_numpy()
        was_valid = was[name].is_valid().to_numpy()
        for row in np.flatnonzero(is_null & was_valid):
            removed[row].append(name)
    # A row without removed cells keeps its null or empty list.
    names_removed = [names or before for names, before in zip(removed, former, strict=True)]
    cells = pa.array(names_removed, pa.list_(pa.field("element", pa.string())))
    if REMOVED in now.column_names:
        now = now.drop_columns([REMOVED])
    return now.append_column(REMOVED, cells)


def _runs(entries: list[Any], n: int) -> list[list[Any]]:
    """Return a folder's entries in runs, each with one table of statistics. n: number of these tables."""
    runs: list[list[Any]] = []
    for entry in entries:
        if not runs:
            begins = True
        elif n <= 1:
            begins = False
        else:
            begins = entry["group"] == "keys" or is_annotation(entry) != is_annotation(runs[-1][0])
        if begins:
            runs.append([])
        runs[-1].append(entry)
    return runs


def zeroed_ranges(version: Version, denied: DenyEntries) -> list[dict[str, Any]]:
    """Return record entries for redacted shards, with the ranges [offset, nbytes] that must be zeros."""
    places = []
    for shard in version.parts.shard_rows().to_pylist():
        rows = denied.get(shard["part"])
        if not rows:
            continue
        _, table = shard_index(version.store, shard)
        ranges = sorted([int(t[row, 0]), int(t[row, 1])] for t in table.values() for row in rows)
        places.append(
            {
                "check": "zeros",
                "what": f"shard of part {shard['part']} {shard['group']}, redacted",
                "of": version.dataset,
                "path": shard["path"],
                "sha256": shard["sha256"],
                "ranges": ranges,
            }
        )
    return places
