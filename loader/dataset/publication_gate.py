"""The gate that every change passes before it becomes a version: `check_publication`, again at each rebase.

It refuses a gated transaction without a passed verdict (`check_verdict`), and a change that does not fit the newest
version. Others decide too:

- `assets/release/gate_run.py`, `audit_batch`: runs the pipeline's checks on a batch, and writes the verdict.
- `log/rules.py`, `decide_commit`: appends no commit of a gated transaction that names no verdict. It also stops a
  takedown's rewrite, which only removes samples and does not come here.
- `log/fold.py`, `fold`: every reader rejects a log with such a commit.
"""

import hashlib
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Conflict, Corrupt, DuplicateKey, ObjectNotFound
from ..json_text import parse_json_object
from ..storage import Store, is_there
from .log.entries import DAMAGED, canonical
from .log.rules import refuse_ungated, ungated
from .log.state import State, Txn
from .names import hashes_of
from .shards.key_hashes import among, covered, known
from .shards.part import Part
from .tables.annotations import PLACE, Entry, cells, edits_of
from .tables.columns import is_annotation
from .tables.manifest import SamplesFile
from .tables.parquet import TableFile, get_tables
from .versions.version import Version
from .writing.exclude import NOTHING_SUPERSEDED, Superseded, still_there
from .writing.run_tables import RunKeys

Check = Callable[[Version | None], None]
"""Raises if a change does not fit the newest version, which is None for a new dataset."""
_RECORD = re.compile(r"stages/(?P<dataset>[^/]+)/[^/]+/[^/]+/(?P<r>[0-9]{12})\.json")
"""Path of a stage record, such as a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedVerdict:
    """A verdict that lets one change pass: made by `check_verdict` only."""

    path: str
    """Path of its stage record."""
    against: str | None
    """Id of the newest version that the batch was compared with, "" if there was none; None if with no version."""


def check_publication(
    state: State, txn: str, verdict: PassedVerdict | None, parent: Version | None, checks: Sequence[Check]
) -> None:
    """Refuse a change that may not become the version after `parent`.

    verdict: None for a transaction without a gate.

    Raises: StageNotPublished if the transaction is gated, without a passed verdict; Conflict if the verdict compared
    with another version than `parent`; as `checks`.
    """
    refuse_ungated(state.txns[txn], verdict.path if verdict else "")
    if verdict is not None and verdict.against is not None:
        Onto(verdict.against)(parent)
    for check in checks:
        check(parent)


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
) -> PassedVerdict:
    """Return a gated transaction's verdict ("" if there is none), checked.

    Costs two requests. Raises: StageNotPublished if the verdict is missing, not `published`, or for another change;
    Conflict if a later verdict exists; Corrupt.
    """
    refuse_ungated(txn, verdict)
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
    return PassedVerdict(path=verdict, against=(record["body"].get("against") or [None])[0])


def _record(store: Store, txn: Txn, verdict: str) -> dict[str, Any]:
    try:
        record = parse_json_object(store.get(verdict).data)
        record["verdict"], record["body"].get
    except ObjectNotFound:
        raise ungated(txn.txn, f"there is no {verdict}") from None
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{verdict} is not a stage record ({error})") from error
    return dict(record)


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


def annotated_columns(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in entry["columns"]))


class SameCells:
    """Checks that an annotation's cells are unchanged since its base version."""

    def __init__(self, version: Version, files: Sequence[SamplesFile]) -> None:
        self._version, self._files = version, [file.to_json() for file in files]

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Costs nothing if it is the base; else it reads the annotations of these columns.

        Raises: Conflict.
        """
        if parent is None or parent.id != self._version.id:
            parent = still_there(parent, self._parts())
            for name in annotated_columns(self._files):
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
