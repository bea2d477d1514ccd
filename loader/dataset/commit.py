"""Turn a change into a version: check it against the newest version, write a manifest, append to the log.

The log calls `build` with the newest state, again if another writer commits first (a rebase).
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Conflict, Corrupt, Denied, DuplicateKey, EmptyVersion, InvalidSample, ObjectNotFound
from ..json_text import parse_json_object
from ..storage import Store, is_there
from .apply_denies import Applied, apply_denies
from .compact import Done, compacted
from .log.entries import DAMAGED, canonical
from .log.log import Log
from .log.rules import CommitBody, ungated
from .log.state import State, Txn
from .names import hashes_of
from .shards.key_hashes import among, covered, known
from .shards.part import Part
from .tables.annotations import PLACE, Entry, cells, edits_of
from .tables.columns import is_annotation, type_named
from .tables.manifest import Change, SamplesFile, child, merged_columns
from .tables.parquet import TableFile, get_tables, put_named_table
from .tables.stats import WHOLE, WHOLE_SCHEMA, column_stats
from .versions.version import Version, open_record
from .writing.exclude import NOTHING_SUPERSEDED, Superseded, still_there
from .writing.run_tables import RunKeys

logger = logging.getLogger(__name__)

Check = Callable[[Version | None], None]
"""Raises if a change does not fit the newest version, which is None for a new dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A change with uploaded files, ready for its log entry."""

    dataset: str
    """Dataset name."""
    txn: str
    """Transaction name."""
    prefix: str
    """Folder of its files in the root."""
    change: Change
    """The change."""
    producer: Mapping[str, Any]
    """Facts about the run that made it."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Field -> facts about it."""
    complete: Callable[[Version | None, Change], Change] = lambda _, change: change
    """Returns the change to commit on a version."""
    verdict: str = ""
    """Path of the verdict's stage record, or ""."""
    created_us: int | None = None
    """Creation time in the manifest, UTC microseconds; None: now."""


TEXT_FACTS, LIST_FACTS = ("tokenizer", "tokenizer_sha256", "unit"), ("dims", "labels")
"""Names of field facts that docs/format.md defines; writers may add others."""


def check_producer(producer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the producer, checked. Raises: InvalidSample if canonical JSON cannot hold a value."""
    try:
        canonical(dict(producer or {}))
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidSample(
            f"producer={producer!r}: {error}; use strings, integers, booleans, lists and objects"
        ) from error
    return dict(producer or {})


def check_facts(facts: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return facts about fields, checked. Raises: InvalidSample unless `Root.publish` accepts them."""
    by_field = {name: dict(field_facts) for name, field_facts in (facts or {}).items()}
    check_producer(by_field)
    for name, field_facts in by_field.items():
        for fact, value in field_facts.items():
            is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
            if (fact in LIST_FACTS and not is_list) or (fact in TEXT_FACTS and not isinstance(value, str)):
                kind = "a list of texts" if fact in LIST_FACTS else "a text"
                raise InvalidSample(f"facts of {name!r}: {fact} = {value!r:.200}; {kind} is needed")
    return by_field


def commit(store: Store, log: Log, pending: Pending, *checks: Check) -> Version:
    """Publish a change that passes every check, without samples that a takedown denies.

    Raises: Fenced; Conflict, DuplicateKey, FieldMismatch if the change does not fit the newest version; as
    `apply_denies`.
    """
    applied: dict[tuple[str, int], Applied] = {}
    done: Done = {}
    written: dict[str, bytes] = {}  # manifests by SHA-256: the committed one need not be read back

    def build(state: State) -> CommitBody:
        newest = state.newest(pending.dataset)
        parent = open_record(store, newest) if newest else None
        for check in checks:
            check(parent)
        base = (newest.id if newest else "", state.last_deny)
        if base not in applied:
            applied_denies = Applied(before=None, change=pending.change)
            if state.denies:
                applied_denies = apply_denies(
                    store, state, pending.txn, pending.dataset, parent, pending.change
                )
            applied[base] = replace(applied_denies, change=pending.complete(parent, applied_denies.change))
        body = _manifest(parent, applied[base], pending, state.last_deny)
        if body["n_live"] <= 0:
            if applied[base].n_dropped:
                raise Denied(
                    f"takedowns cover every sample of {pending.dataset}: the next version is empty. Log entries "
                    f"{[deny.n for deny in state.denies]} of {store.url} name them"
                )
            raise EmptyVersion(
                f"the next version of {pending.dataset} would have no live samples; keep at least one"
            )
        data = canonical(compacted(store, pending.prefix, body, done))
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"{pending.prefix}/manifest-{sha256[:16]}.json"
        store.put_if_absent(path, data)
        written[sha256] = data
        return CommitBody(
            id=f"v-{sha256}",
            manifest=path,
            sha256=sha256,
            parent=body["parent"],
            denies=body["denies"],
            verdict=pending.verdict,
        )

    record = log.commit(pending.txn, build)
    if record.sha256 not in written:  # an earlier attempt committed it
        return open_record(store, record)
    return open_record(store, record, json.loads(written[record.sha256]))


def _manifest(parent: Version | None, applied: Applied, pending: Pending, denies: int) -> dict[str, Any]:
    dropped = {"taken_down": applied.n_dropped} if applied.n_dropped else {}

    def on(under: Mapping[str, Any] | None, change: Change) -> dict[str, Any]:
        return child(
            under,
            change,
            dataset=pending.dataset,
            parent_id=parent.id if parent else None,
            txn=pending.txn,
            denies=denies,
            producer={**pending.producer, **dropped},
            facts=pending.facts,
            created_us=pending.created_us,
        )

    under = parent.manifest if parent else None
    return on(on(under, applied.before) if applied.before else under, applied.change)


class NewKeys:
    """Checks that none of a run's keys is live in the newest version: by hash, then by key if the hash exists.

    leaving: samples that the run replaces, whose keys it may reuse.
    """

    def __init__(self, store: Store, keys: RunKeys, leaving: Superseded = NOTHING_SUPERSEDED) -> None:
        self._store, self._keys = store, keys
        self._leaving = {(part, row) for (part, _), rows in leaving.rows.items() for row in rows}
        self._known: dict[str, bool] = {}  # hash tables already searched -> whether one has a key of the run
        self._clashes: dict[str, pa.Table] = {}

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Costs `key_hashes.known` for new tables. Raises: DuplicateKey."""
        if parent is None or (covered(parent.manifest) and not self._were_there(parent)):
            return
        runs = [
            TableFile.from_json(entry) for entry in parent.manifest["samples"] if entry["group"] == "keys"
        ]
        new = [file for file in runs if file.path not in self._clashes]
        for file, table in zip(new, get_tables(self._store, new, ["part", "row", "key"]), strict=True):
            self._clashes[file.path] = self._ours(table)
        # Live rows are looked up each time: a retirement may restore excluded samples.
        for file in runs:
            _refuse_live(parent, self._clashes[file.path], self._leaving)

    def _ours(self, table: pa.Table) -> pa.Table:
        hashes = hashes_of(table["key"])
        there = among(hashes, self._keys.hashes)
        keys = pa.array(self._keys.having(np.sort(hashes[there])), pa.string())
        matching = table.filter(pa.array(there))
        return matching.filter(pc.is_in(matching["key"], value_set=keys))

    def _were_there(self, parent: Version) -> bool:
        files = parent.manifest["key_hashes"]
        new = [file for file in files if file["path"] not in self._known]
        for file, matches in zip(new, known(self._store, new, self._keys.hashes), strict=True):
            self._known[file["path"]] = bool(matches.any())
        return any(self._known[file["path"]] for file in files)


class Onto:
    """Checks that the newest version is the change's base. id: "" if the dataset has no version yet."""

    def __init__(self, id: str) -> None:
        self._id = id

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Raises: Conflict."""
        newest_id = parent.id if parent else ""
        if newest_id != self._id:
            raise Conflict(
                f"these parts were compared with {self._id[:14] or 'no version'}, and the newest is now "
                f"{f'{parent.name} ({parent.id[:14]})' if parent else 'none'}; compare them with that and publish again"
            )


class FreeGroup:
    """Checks that no other writer added this group to these parts, or changed the parts.

    began: the version that the group was computed for. Its excluded samples have empty fields in the group.
    """

    def __init__(self, group: str, parts: list[str], began: Version) -> None:
        self._group, self._parts, self._began = group, parts, began

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Raises: Conflict."""
        parent = still_there(parent, self._parts)
        has_group = parent.parts.has_group(self._group)
        ids = {part: position for position, part in enumerate(parent.parts.ids.to_pylist())}
        twice = [part for part in self._parts if has_group[ids[part]]]
        if twice:
            raise Conflict(
                f"group {self._group!r} of part {twice[0]} was published by another writer, in {parent.name}; "
                "open it and use theirs, or choose another group name"
            )
        if parent.id != self._began.id:
            self._check_excluded(parent, ids)

    def _check_excluded(self, parent: Version, ids: Mapping[str, int]) -> None:
        before, ours = self._began.parts, set(self._parts)
        for position in before.with_exclusions:
            part = before.id(position)
            back = (
                parent.parts.live_members(ids[part]) & ~before.live_members(position) if part in ours else ()
            )
            if np.any(back):
                raise Conflict(
                    f"row {int(np.argmax(back))} of part {part} was excluded in {self._began.name}, so "
                    f"{self._group!r} was not computed for it, and {parent.name} has it again: begin again from that"
                )


def _refuse_live(parent: Version, clashes: pa.Table, leaving: Container[tuple[str, int]]) -> None:
    members: dict[str, Any] = {}
    for row in clashes.to_pylist():
        part = row["part"]
        if part not in members:
            members[part] = parent.parts.live_members(parent.parts.position(part))
        if members[part][row["row"]] and (part, row["row"]) not in leaving:
            raise DuplicateKey(
                f"key {row['key']!r} is already in {parent.name} (one of {len(clashes)} keys that were there before); "
                "a version adds new samples to those there. Write under new keys, exclude the old ones first "
                "(root.exclude), or start another dataset"
            )


_RECORD = re.compile(r"stages/(?P<dataset>[^/]+)/[^/]+/[^/]+/(?P<r>[0-9]{12})\.json")


def digest_of(
    parts: Sequence[Part],
    exclude: Mapping[str, str],
    supersede: Mapping[str, str],
    foreign: Mapping[str, Any] | None = None,
) -> str:
    """Return the sha256 hex of a publish's parts and exclusions, which a verdict names."""
    bodies = sorted((part.to_json() for part in parts), key=lambda body: str(body["id"]))
    content = [bodies, dict(exclude), dict(supersede), *([dict(foreign)] if foreign else [])]
    return hashlib.sha256(canonical(content)).hexdigest()


def check_verdict(
    store: Store,
    txn: Txn,
    verdict: str,
    parts: Sequence[Part],
    exclude: Mapping[str, str],
    supersede: Mapping[str, str],
    foreign: Mapping[str, Any] | None = None,
) -> list[Onto]:
    """Check a gated transaction's verdict ("" if there is none), and return further checks for its publish.

    Costs two requests. Raises: StageNotPublished if the verdict is missing, not `published`, or for another change;
    Conflict if a later verdict exists; Corrupt.
    """
    if not verdict:
        raise ungated(txn.txn, "no verdict was given")
    name = _RECORD.fullmatch(verdict)
    if name is None or name["dataset"] != txn.dataset:
        raise ungated(txn.txn, f"{verdict!r} is no record of a stage of {txn.dataset}")
    record = _record(store, txn, verdict)
    if record["verdict"] != "published":
        raise ungated(txn.txn, f"{verdict} is {record['verdict']!r}: {record.get('reason', '')}")
    if record["body"].get("publishes") != digest_of(parts, exclude, supersede, foreign):
        raise ungated(txn.txn, f"{verdict} is of other parts, or of other samples to leave out")
    later = f"{verdict.rpartition('/')[0]}/{int(name['r']) + 1:012d}.json"
    if is_there(store, later):
        raise Conflict(f"the verdict {verdict} holds no longer: {later} came after it")
    return [Onto(id) for id in (record["body"].get("against") or [])[:1]]


def _record(store: Store, txn: Txn, verdict: str) -> dict[str, Any]:
    try:
        record = parse_json_object(store.get(verdict).data)
        record["verdict"], record["body"].get
    except ObjectNotFound:
        raise ungated(txn.txn, f"there is no {verdict}") from None
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{verdict} is not a stage record ({error})") from error
    return dict(record)


class SameCells:
    """Checks that an annotation's cells are unchanged since its base version."""

    def __init__(self, version: Version, files: Sequence[SamplesFile]) -> None:
        self._version, self._files = version, [file.to_json() for file in files]

    def __call__(self, parent: "Version | None") -> None:
        """Check the newest version. Costs nothing if it is the base; else it reads the annotations of these columns.

        Raises: Conflict.
        """
        if parent is None or parent.id != self._version.id:
            parent = still_there(parent, self._parts())
            for name in _names(self._files):
                if self._annotated_since(parent, name):
                    self._compare(parent, name)

    def _parts(self) -> list[str]:
        tables = get_tables(
            self._version.store, [TableFile.from_json(file) for file in self._files], ["part"]
        )
        return sorted({part for table in tables for part in pc.unique(table["part"]).to_pylist()})

    def _annotated_since(self, parent: Version, name: str) -> bool:
        before, now = (
            [entry for entry in version.manifest["samples"] if name in entry["columns"]]
            for version in (self._version, parent)
        )
        new = [entry for entry in now if entry not in before]
        return any(is_annotation(entry) for entry in new) or any(entry not in now for entry in before)

    def _compare(self, parent: Version, name: str) -> None:
        import polars as pl

        ours = edits_of(parent.store, self._files, name).select(PLACE)
        now = ours.join(cells(parent.store, parent.manifest["samples"], name), on=PLACE, how="left")
        was = cells(parent.store, self._version.manifest["samples"], name)
        if now.schema[name] == pl.Null:  # a retirement removed the column
            now = now.cast({name: was.schema[name]})
        was = was.cast({name: now.schema[name]})
        both = now.join(was, on=PLACE, how="left", suffix=" was")
        other = both.filter(pl.col(name).ne_missing(pl.col(f"{name} was")))
        if other.height:
            first = other.row(0, named=True)
            raise Conflict(
                f"{name!r} of {other.height} of these samples was annotated by another writer in {parent.name} (part "
                f"{first['part']} row {first['row']} is {first[name]!r} now, and was {first[f'{name} was']!r} in "
                f"{self._version.name}); look at theirs and annotate {parent.name}"
            )


def with_statistics(parent: "Version | None", prefix: str, change: Change) -> Change:
    """Return an annotation with its columns' statistics after a rebase on `parent`, uploaded under `prefix`.

    Raises: FieldMismatch.
    """
    assert parent is not None, "an annotation is of samples that a version has"
    ours = [file.to_json() for file in change.samples]
    columns = merged_columns(parent.manifest["columns"], change.samples)
    stats = annotation_stats(parent.store, parent.manifest["samples"], ours, columns)
    return replace(change, stats=put_named_table(parent.store, prefix, stats, "stats"))


def annotation_stats(
    store: Store, before: Sequence[Entry], ours: Sequence[Entry], columns: Mapping[str, Any]
) -> pa.Table:
    rows = []
    for name in _names(ours):
        there = any(name in entry["columns"] for entry in before)
        cell_frame = cells(store, [*before, *ours], name)
        table = pa.table({name: cell_frame[name].to_arrow().cast(type_named(columns[name]["type"]))})
        rows.append({**column_stats(table).to_pylist()[0], WHOLE: there})
    return pa.Table.from_pylist(rows, schema=WHOLE_SCHEMA)


def _names(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in entry["columns"]))
