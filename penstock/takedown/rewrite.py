"""The version without them: the newest one once more, its samples that are taken down redacted and excluded."""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from loader import Root, Version
from loader.dataset.apply_denies import Rows, denied_rows, parent_denied, reason_of, renamed
from loader.dataset.decide import CommitBody
from loader.dataset.entries import canonical
from loader.dataset.exclude import put_exclusions
from loader.dataset.history import Deny, State, VersionRecord
from loader.dataset.parquet import TableFile, get_table, get_tables, put_named_table, table_facts
from loader.dataset.publish import open_record
from loader.dataset.redact import Redacted, redact_rows, redact_shards, redact_stats, rows_of, shard_index
from loader.errors import Conflict

from .cells import scrub
from .marks import Marks


def transaction(root: Root, n: int, dataset: str, parent: str) -> str:
    """The takedown's open transaction on the version `parent`: the same one whenever it goes on, until that is settled
    or the parent another."""
    again = 0
    while True:
        named = f"takedown {n} {dataset} {parent} {again}"
        txn = hashlib.sha256(named.encode()).hexdigest()[:32]
        known = root.state.txns.get(txn)
        if known is None or known.status == "open":
            return root.begin(dataset, parent=parent, txn=txn)
        again += 1


def publish_redacted(root: Root, dataset: str, deny: Deny, marks: Marks) -> VersionRecord | None:
    """Commit the dataset's newest version without the samples of a takedown; None where it has none, or no others.

    Every shard of a part that has one is read and written once. When somebody publishes meanwhile, what is new is
    redacted too before the commit is allowed. Raises: Conflict; Corrupt; StoreError; Fenced when a collector took this
    takedown for dead: run it again.
    """
    newest = root.state.newest(dataset)
    if newest is None or not denied_rows(open_record(root.store, newest), [deny]):
        return None
    txn = transaction(root, deny.n, dataset, newest.id)
    made = _Redaction(root, txn, deny, marks)
    with root.heartbeat(txn):
        try:
            return root.log.commit(txn, made.build)
        except _NothingLeft:
            root.abort(txn, f"takedown {deny.n}: nothing is left of the dataset")
            return None


class _NothingLeft(Exception):
    """Every sample was taken down: there is no such version."""


class _Redaction:
    """Files are redacted once, whatever is published meanwhile: each is what it was, or is new."""

    def __init__(self, root: Root, txn: str, deny: Deny, marks: Marks) -> None:
        self._store = root.store
        self._txn, self._deny, self._marks = txn, deny, marks
        self._attempt = f"data/{txn}/{secrets.token_hex(8)}"
        self._shards: dict[str, TableFile] = {}
        self._runs: dict[tuple[str, ...], tuple[list[dict[str, Any]], TableFile | None]] = {}

    def build(self, state: State) -> CommitBody:
        """The manifest on the newest version. Raises: Conflict."""
        dataset = state.txns[self._txn].dataset
        newest = state.newest(dataset)
        if newest is None:
            raise Conflict(
                f"every version of {dataset} was retired meanwhile; there is nothing to take down from"
            )
        body = self._manifest(open_record(self._store, newest), state)
        if body["n_live"] <= 0:
            raise _NothingLeft
        data = canonical(body)
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"{self._attempt}/manifest-{sha256[:16]}.json"
        self._store.put_if_absent(path, data)
        return CommitBody(
            id=f"v-{sha256}", manifest=path, sha256=sha256, parent=newest.id, denies=state.last_deny
        )

    def _manifest(self, version: Version, state: State) -> dict[str, Any]:
        rows = denied_rows(version, [self._deny])
        keys = [TableFile.from_json(one) for one in version.manifest["samples"] if one["group"] == "keys"]
        gone = renamed([self._deny], rows, get_tables(self._store, keys, ["part", "row", "key"]))
        samples, stats = self._tables(version.manifest, gone)
        left_out = self._exclusions(version, rows, parent_denied(version, state.denies))
        made = {
            **version.manifest,
            "parent": version.id,
            "txn": self._txn,
            "denies": state.last_deny,
            "producer": {"takedown": self._deny.n},
            "shards": [
                self._redact(TableFile.from_json(one), gone).to_json() for one in version.manifest["shards"]
            ],
            "samples": samples,
            "stats": stats,
            "exclusions": [self._scrubbed(one) for one in version.manifest["exclusions"]],
        }
        if left_out:
            grouped: dict[tuple[str, str], list[int]] = {}
            for part, members in left_out.items():
                for row, entry in members.items():
                    grouped.setdefault((part, reason_of(entry)), []).append(row)
            sizes = dict(zip(version.parts.ids.to_pylist(), version.parts.n_rows.tolist(), strict=True))
            # Each manifest has a table of its own: they are made again on another parent.
            file = put_exclusions(self._store, f"{self._attempt}-{secrets.token_hex(4)}", grouped, sizes)
            made["exclusions"].append(file.to_json())
        made["n_live"] -= sum(map(len, left_out.values()))
        return made

    def _exclusions(self, version: Version, rows: Rows, parent: Rows) -> Rows:
        """What is live and shall not be: of this takedown, and of others that the parent had not applied."""
        out = {part: dict(members) for part, members in parent.items()}
        for part, members in rows.items():
            live = version.parts.live_members(version.parts.position(part))
            for row, entry in members.items():
                if live[row]:
                    out.setdefault(part, {}).setdefault(row, entry)
        return out

    def _redact(self, file: TableFile, gone: Redacted) -> TableFile:
        if file.path not in self._shards:
            self._shards[file.path] = redact_shards(self._store, self._attempt, file, gone)
        return self._shards[file.path]

    def _tables(self, manifest: Mapping[str, Any], gone: Redacted) -> tuple[list[Any], list[Any]]:
        """The lists of samples and stats files. A run's files lie in one folder, and go on to do so."""
        runs: dict[str, list[dict[str, Any]]] = {}
        for one in manifest["samples"]:
            runs.setdefault(one["path"].rpartition("/")[0], []).append(one)
        new: dict[str, dict[str, Any]] = {}
        for folder, files in runs.items():
            stats = next((one for one in manifest["stats"] if one["path"].rpartition("/")[0] == folder), None)
            made, counted = self._run(files, stats, gone)
            new |= {old["path"]: now for old, now in zip(files, made, strict=True)}
            if stats is not None and counted is not None:
                new[stats["path"]] = counted.to_json()
        return (
            [new[one["path"]] for one in manifest["samples"]],
            [new.get(one["path"], one) for one in manifest["stats"]],
        )

    def _run(
        self, files: list[dict[str, Any]], stats: Mapping[str, Any] | None, gone: Redacted
    ) -> tuple[list[dict[str, Any]], TableFile | None]:
        name = tuple(one["path"] for one in files)
        if name not in self._runs:
            old = [get_table(self._store, TableFile.from_json(one)) for one in files]
            now = [scrub(redact_rows(table, rows_of(table, gone)), self._marks) for table in old]
            if all(a is b for a, b in zip(old, now, strict=True)):
                self._runs[name] = files, None
            else:
                self._runs[name] = self._put_run(files, now, with_stats=stats is not None)
        return self._runs[name]

    def _put_run(
        self, files: list[dict[str, Any]], tables: list[pa.Table], with_stats: bool
    ) -> tuple[list[dict[str, Any]], TableFile | None]:
        prefix = f"{self._attempt}{len(self._runs):04x}"
        made = [put_named_table(self._store, prefix, table, table_facts(table)["table"]) for table in tables]
        stats = redact_stats(self._store, prefix, made) if with_stats else None
        return [{**old, **new.to_json()} for old, new in zip(files, made, strict=True)], stats

    def _scrubbed(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """An exclusions file whose reasons name no sample that is taken down."""
        table = get_table(self._store, TableFile.from_json(dict(entry)))
        now = scrub(table, self._marks)
        if now is table:
            return dict(entry)
        return put_named_table(self._store, f"{self._attempt}-e", now, "exclusions").to_json()


def zeroed(version: Version, gone: Rows) -> list[dict[str, Any]]:
    """Places whose bytes have to be zeros: of each redacted shard its ranges [offset, nbytes]."""
    places = []
    for shard in version.parts.shard_rows().to_pylist():
        rows = gone.get(shard["part"])
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
