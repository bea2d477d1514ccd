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

from ...errors import Conflict, Corrupt, DuplicateKey, ObjectNotFound
from ...json_text import parse_json_object
from ...storage import Store, is_there
from ..log.entries import DAMAGED, canonical
from ..log.rules import refuse_ungated, ungated_error
from ..log.state import State, Txn
from ..names import hashes_of
from ..shards.key_hashes import find_known, has_all_hashes, membership
from ..shards.part import Part
from ..tables.annotations import PLACE, TableEntry, cells, read_edits
from ..tables.columns import is_annotation
from ..tables.manifest import SamplesFile
from ..tables.parquet import TableFile, get_tables
from ..versions.version import Version
from ..writing.exclude import NO_ROWS, RowsToExclude, require_parts
from ..writing.run_samples import RunKeys

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
    state: State,
    txn: str,
    verdict: PassedVerdict | None,
    parent: Version | None,
    checks: Sequence[Check],
) -> None:
    """Refuse a change that may not become the version after `parent`.

    verdict: None for a transaction without a gate.

    Raises: StageNotPublished if the transaction is gated, without a passed verdict; Conflict if the verdict compared
    with another version than `parent`; as `checks`.
    """
    verdict_path = ""
    if verdict is not None:
        verdict_path = verdict.path
    refuse_ungated(state.txns[txn], verdict_path)
    if verdict is not None and verdict.against is not None:
        check_onto = Onto(verdict.against)
        check_onto(parent)
    for check in checks:
        check(parent)


def publish_digest(
    parts: Sequence[Part],
    exclude: Mapping[str, str],
    supersede: Mapping[str, str],
    foreign: Mapping[str, Any] | None = None,
) -> str:
    """Return the sha256 hex of a publish's parts and exclusions, which a verdict names."""
    bodies = [part.to_json() for part in parts]
    bodies.sort(key=lambda body: str(body["id"]))  # workers return parts in any order
    content = [
        bodies,
        dict(exclude),
        dict(supersede),
    ]
    if foreign:
        content.append(dict(foreign))
    canonical_content = canonical(content)
    return hashlib.sha256(canonical_content).hexdigest()


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
        message = f"{verdict!r} is not a record of a stage of {txn.dataset}"
        raise ungated_error(txn.txn, message, given=verdict, accepted=f"a record of a stage of {txn.dataset}")

    record = _record(store, txn, verdict)
    body = record["body"]
    if record["verdict"] != "published":
        stored_verdict = record["verdict"]
        reason = record.get("reason", "")
        message = f"{verdict} is {stored_verdict!r}: {reason}"
        raise ungated_error(txn.txn, message, where=verdict, given=stored_verdict, accepted="published")
    if body.get("publishes") != publish_digest(parts, exclude, supersede, foreign):
        message = f"{verdict} judged other parts, or excludes other samples"
        raise ungated_error(txn.txn, message, what="parts", where=verdict)

    # Records of a partition are numbered without gaps: if a later verdict exists, the next number does.
    folder = verdict.rpartition("/")[0]
    next_number = int(name["r"]) + 1
    later = f"{folder}/{next_number:012d}.json"
    if is_there(store, later):
        message = f"the verdict {verdict} is superseded: {later} follows it"
        raise Conflict(message, what="verdict", where=verdict, given=later)

    against = None
    compared_ids = body.get("against")
    if compared_ids:
        against = compared_ids[0]
    return PassedVerdict(path=verdict, against=against)


def _record(
    store: Store,
    txn: Txn,
    verdict: str,
) -> dict[str, Any]:
    """Return the stage record at the path `verdict`. Raises: StageNotPublished if there is none; Corrupt."""
    try:
        blob = store.get(verdict)
        record = parse_json_object(blob.data)
        # The caller reads both: a record without them raises here.
        record["verdict"], record["body"].get
    except ObjectNotFound:
        raise ungated_error(txn.txn, f"there is no {verdict}", given=verdict, accepted="a record") from None
    except DAMAGED as error:
        message = f"{store.url}/{verdict} is not a stage record ({error})"
        raise Corrupt(message, what="verdict", where=f"{store.url}/{verdict}") from error
    return dict(record)


class NewKeys:
    """Checks that none of a run's keys is live in the newest version: by hash, then by key if the hash exists.

    leaving: samples that the run replaces, whose keys it may reuse.
    """

    def __init__(
        self,
        store: Store,
        keys: RunKeys,
        leaving: RowsToExclude = NO_ROWS,
    ) -> None:
        self._store = store
        self._keys = keys
        self._leaving: set[tuple[str, int]] = set()
        for (part, _), rows in leaving.rows.items():
            self._leaving.update((part, row) for row in rows)
        # Tables never change, so a rebase reads only new ones.
        self._has_hash: dict[str, bool] = {}  # path of a hash table -> whether it has a hash of the run
        self._clashes: dict[str, pa.Table] = {}  # path of a keys table -> its rows with a key of the run

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Costs `find_known` for new tables. Raises: DuplicateKey."""
        if parent is None:
            return
        if has_all_hashes(parent.manifest) and not self._may_clash(parent):
            return  # nearly every publish ends here, without reading a key

        files: list[TableFile] = []
        for entry in parent.manifest["samples"]:
            if entry["group"] == "keys":
                file = TableFile.from_json(entry)
                files.append(file)
        self._read_clashes(files)

        # Live rows are looked up each time: a retirement may restore excluded samples.
        for file in files:
            clashes = self._clashes[file.path]
            _refuse_live(parent, clashes, self._leaving)

    def _read_clashes(self, files: Sequence[TableFile]) -> None:
        """Add the rows with a key of the run to `_clashes`, for each of these tables that it lacks."""
        unread = [file for file in files if file.path not in self._clashes]
        columns = [
            "part",
            "row",
            "key",
        ]
        tables = get_tables(self._store, unread, columns)
        for file, table in zip(unread, tables, strict=True):
            self._clashes[file.path] = self._matching(table)

    def _matching(self, table: pa.Table) -> pa.Table:
        """Return the table's rows whose key is one of the run's."""
        hashes = hashes_of(table["key"])
        has_hash = membership(hashes, self._keys.hashes)  # bool [rows]
        candidates = table.filter(pa.array(has_hash))

        # Keys may share a hash, so the keys decide.
        candidate_hashes = hashes[has_hash]
        ascending = np.sort(candidate_hashes)
        run_keys = self._keys.find_keys(ascending)
        is_run_key = pc.is_in(
            candidates["key"],
            value_set=pa.array(run_keys, pa.string()),
        )
        return candidates.filter(is_run_key)

    def _may_clash(self, parent: Version) -> bool:
        """Return whether a hash of the run is in a hash table of the version. Reads the tables that are new."""
        files = parent.manifest["key_hashes"]
        unread = [file for file in files if file["path"] not in self._has_hash]
        # One bool [hashes of the run] per table.
        results = find_known(
            self._store,
            unread,
            self._keys.hashes,
        )
        for file, is_known in zip(unread, results, strict=True):
            path = file["path"]
            self._has_hash[path] = bool(is_known.any())
        return any(self._has_hash[file["path"]] for file in files)


class Onto:
    """Checks that the newest version is the change's base. id: "" if the dataset has no version yet."""

    def __init__(self, id: str) -> None:
        self._id = id

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Raises: Conflict."""
        newest_id = ""
        newest = "none"
        if parent is not None:
            newest_id = parent.id
            newest = f"{parent.name} ({parent.id[:14]})"
        if newest_id != self._id:
            compared = self._id[:14] or "no version"
            message = (
                f"these parts were compared with {compared}, and the newest is now "
                f"{newest}; compare them with that and publish again"
            )
            raise Conflict(message, what="parts", given=compared, accepted=newest)


class FreeGroup:
    """Checks that no other writer added this group to these parts, or changed the parts.

    began: the version that the group was computed for. Its excluded samples have empty fields in the group.
    """

    def __init__(
        self,
        group: str,
        parts: list[str],
        began: Version,
    ) -> None:
        self._group = group
        self._parts = parts
        self._began = began

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Raises: Conflict."""
        parent = require_parts(parent, self._parts)
        has_group = parent.parts.has_group(self._group)  # bool [parts of the version]
        ids = parent.parts.ids.to_pylist()
        positions = {part: position for position, part in enumerate(ids)}
        for part in self._parts:
            position = positions[part]
            if has_group[position]:
                message = (
                    f"group {self._group!r} of part {part} was published by another writer, in {parent.name}; "
                    "open it and use theirs, or choose another group name"
                )
                raise Conflict(message, what="group", where=part, given=self._group, accepted=parent.name)
        if parent.id != self._began.id:
            self._check_restored_rows(parent, positions)

    def _check_restored_rows(
        self,
        parent: Version,
        positions: Mapping[str, int],
    ) -> None:
        """Refuse rows without values: a retirement in between may restore samples that were excluded at the start."""
        parts_before = self._began.parts
        own_parts = set(self._parts)
        for position in parts_before.with_exclusions:
            part = parts_before.id(position)
            if part not in own_parts:
                continue
            is_live_now = parent.parts.live_members(positions[part])  # bool [rows of the part]
            was_live = parts_before.live_members(position)
            is_restored = is_live_now & ~was_live
            if is_restored.any():
                row = int(np.argmax(is_restored))  # the first one
                message = (
                    f"row {row} of part {part} was excluded in {self._began.name}, so "
                    f"{self._group!r} was not computed for it, and {parent.name} has it again: begin again from that"
                )
                raise Conflict(message, what="row", where=part, given=row, accepted=self._began.name)


def _refuse_live(
    parent: Version,
    clashes: pa.Table,
    leaving: Container[tuple[str, int]],
) -> None:
    """Raise DuplicateKey if one of these rows of a keys table is live, and not about to leave the version."""
    live_members: dict[str, Any] = {}  # part id -> bool [rows of the part]
    for row in clashes.to_pylist():
        part = row["part"]
        number = row["row"]
        if part not in live_members:
            position = parent.parts.position(part)
            live_members[part] = parent.parts.live_members(position)
        is_live = live_members[part][number]
        if is_live and (part, number) not in leaving:
            message = (
                f"key {row['key']!r} is already in {parent.name} (one of {len(clashes)} keys that were there before); "
                "a version adds new samples to those there. Write under new keys, exclude the old ones first "
                "(root.exclude), or start another dataset"
            )
            raise DuplicateKey(message, what="key", where=parent.name, given=row["key"])


def annotated_columns(entries: Sequence[TableEntry]) -> list[str]:
    """Return the names of the annotated columns, each once, in the order of their first entry."""
    names: dict[str, None] = {}
    for entry in entries:
        for name in entry["columns"]:
            names[name] = None
    return list(names)


class SameCells:
    """Checks that an annotation's cells are unchanged since its base version."""

    def __init__(self, version: Version, files: Sequence[SamplesFile]) -> None:
        self._version = version
        self._files = [file.to_json() for file in files]

    def __call__(self, parent: Version | None) -> None:
        """Check the newest version. Costs nothing if it is the base; else it reads the annotations of these columns.

        Raises: Conflict.
        """
        if parent is not None and parent.id == self._version.id:
            return
        parent = require_parts(parent, self._parts())
        for name in annotated_columns(self._files):
            if self._has_new_annotation(parent, name):
                self._compare(parent, name)

    def _parts(self) -> list[str]:
        """Return the parts of the annotation's cells."""
        files = [TableFile.from_json(file) for file in self._files]
        parts: set[str] = set()
        for table in get_tables(self._version.store, files, ["part"]):
            table_parts = pc.unique(table["part"])
            parts.update(table_parts.to_pylist())
        return sorted(parts)

    def _has_new_annotation(self, parent: Version, name: str) -> bool:
        """Return whether a column's tables in the newest version differ from the base version's."""
        before = _column_entries(self._version, name)
        now = _column_entries(parent, name)
        for entry in now:
            if is_annotation(entry) and entry not in before:
                return True
        return any(entry not in now for entry in before)  # a retirement removed it

    def _compare(self, parent: Version, name: str) -> None:
        """Raise Conflict if one of the annotation's cells has another value now than in the base version."""
        import polars as pl

        # 1. Join the cells' values now and then: part, row, the column, and the column with " was".
        edits = read_edits(parent.store, self._files, name)
        ours = edits.select(PLACE)
        cells_now = cells(
            parent.store,
            parent.manifest["samples"],
            name,
        )
        now = ours.join(
            cells_now,
            on=PLACE,
            how="left",
        )
        was = cells(
            parent.store,
            self._version.manifest["samples"],
            name,
        )
        if now.schema[name] == pl.Null:  # a retirement removed the column
            now = now.cast({name: was.schema[name]})
        was = was.cast({name: now.schema[name]})
        both = now.join(
            was,
            on=PLACE,
            how="left",
            suffix=" was",
        )
        # 2. Compare them: two nulls are equal.
        value = pl.col(name)
        base_value = pl.col(f"{name} was")
        changed = both.filter(value.ne_missing(base_value))
        if changed.height:
            first = changed.row(0, named=True)
            value_now = first[name]
            value_before = first[f"{name} was"]
            message = (
                f"{name!r} of {changed.height} of these samples was annotated by another writer in {parent.name} (part "
                f"{first['part']} row {first['row']} is {value_now!r} now, and was {value_before!r} in "
                f"{self._version.name}); look at theirs and annotate {parent.name}"
            )
            raise Conflict(message, what=name, where=parent.name, given=value_before, accepted=value_now)


def _column_entries(version: Version, column: str) -> list[TableEntry]:
    entries = version.manifest["samples"]
    return [entry for entry in entries if column in entry["columns"]]
