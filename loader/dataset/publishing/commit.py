"""Turn a change into a version: check it against the newest version, write a manifest, append to the log.

The entry of the log is the commit. A crash before it leaves only files that no version names; `penstock gc sweep`
removes them. A crash after it leaves the version; a retry of the transaction returns that version. If another writer
appends first, the log calls `_CommitAttempts.build` again with its newest state (a rebase).

`publication_gate.py` refuses what may not be published. `compaction.py` keeps a manifest's lists short.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from ...errors import Denied, EmptyVersion, InvalidSample
from ...storage import Store
from ..log.entries import canonical
from ..log.log import Log
from ..log.rules import CommitBody
from ..log.state import State, VersionRecord
from ..tables.annotations import TableEntry, cells
from ..tables.columns import type_named
from ..tables.manifest import Change, child, merge_columns
from ..tables.parquet import put_named_table
from ..tables.stats import WHOLE, WHOLE_SCHEMA, column_stats
from ..versions.version import Version
from .apply_denies import Redaction, apply_denies
from .compaction import MergeCache, compact_lists
from .publication_gate import Check, PassedVerdict, annotated_columns, check_publication


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A change with uploaded files, ready for its log entry."""

    dataset: str
    txn: str
    """Transaction name."""
    prefix: str
    """Folder of its files in the root."""
    change: Change
    producer: Mapping[str, Any]
    """Facts about the run that made it."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Field -> facts about it."""
    complete: Callable[[Version | None, Change], Change] = lambda _, change: change
    """(parent, change) -> the change to commit on this parent: adds what depends on it, such as statistics."""
    verdict: PassedVerdict | None = None
    """Verdict that lets it pass; None without a gate."""
    created_us: int | None = None
    """Creation time in the manifest, UTC microseconds; None for the time of the commit."""


def commit(
    store: Store,
    log: Log,
    pending: Pending,
    *checks: Check,
) -> Version:
    """Publish a change that passes every check, without samples that a takedown denies.

    Raises: Fenced; StageNotPublished if the transaction is gated, without a passed verdict; Conflict, DuplicateKey,
    FieldMismatch if the change does not fit the newest version; Denied if takedowns deny every sample of the next
    version; EmptyVersion if it has no live sample for another reason; as `apply_denies`.
    """
    attempts = _CommitAttempts(store, pending, checks)
    record = log.commit(pending.txn, attempts.build)
    data = attempts.manifests.get(record.sha256)
    if data is None:
        # An earlier call committed this transaction: this call built no such manifest.
        return Version.of_record(store, record)
    return Version.of_record(store, record, json.loads(data))


class _CommitAttempts:
    """Builds the commit of one transaction, once for each state of the log that it meets.

    Uploads of one attempt serve the next: a rebase repeats only what depends on the new parent.
    """

    def __init__(
        self,
        store: Store,
        pending: Pending,
        checks: Sequence[Check],
    ) -> None:
        self._store = store
        self._pending = pending
        self._checks = checks
        self._redactions: dict[tuple[str, int], Redaction] = {}
        """(parent id or "", last takedown) -> the change for them."""
        self._merges: MergeCache = {}
        self.manifests: dict[str, bytes] = {}
        """SHA-256 -> uploaded manifest. The committed one need not be read back."""

    def build(self, state: State) -> CommitBody:
        """Return the commit on the newest version of a state, with its files uploaded."""
        pending = self._pending
        newest = state.newest(pending.dataset)
        parent = None
        if newest is not None:
            parent = Version.of_record(self._store, newest)

        # 1. Refuse. A crash here leaves the files that the caller uploaded before the commit.
        check_publication(
            state,
            pending.txn,
            pending.verdict,
            parent,
            self._checks,
        )

        # 2. Fit the change to the parent and the takedowns. A crash from here on may leave redacted tables and
        #    statistics too.
        redaction = self._fit_change(state, newest, parent)

        # 3. Write the manifest in memory; a version without samples is refused before anything else is uploaded.
        manifest = _next_manifest(
            parent,
            redaction,
            pending,
            state.last_deny,
        )
        if manifest["n_live"] <= 0:
            raise self._no_live_samples(state, redaction)

        # 4. Upload merged tables, then the manifest that names them. Both have names of their own content, so
        #    another attempt overwrites nothing. No version names them before step 5.
        manifest = compact_lists(
            self._store,
            pending.prefix,
            manifest,
            self._merges,
        )
        data = canonical(manifest)
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"{pending.prefix}/manifest-{sha256[:16]}.json"
        self._store.put_if_absent(path, data)
        self.manifests[sha256] = data

        # 5. The log appends this body by one conditional request: the version exists, or it does not.
        verdict_path = ""
        if pending.verdict is not None:
            verdict_path = pending.verdict.path
        return CommitBody(
            id=f"v-{sha256}",
            manifest=path,
            sha256=sha256,
            parent=manifest["parent"],
            denies=manifest["denies"],
            verdict=verdict_path,
        )

    def _fit_change(
        self,
        state: State,
        newest: VersionRecord | None,
        parent: Version | None,
    ) -> Redaction:
        """Return the change with the log's takedowns applied, completed for its parent (`Pending.complete`)."""
        parent_id = ""
        if newest is not None:
            parent_id = newest.id
        cache_key = (parent_id, state.last_deny)
        if cache_key in self._redactions:
            return self._redactions[cache_key]

        pending = self._pending
        redaction = Redaction(before=None, change=pending.change)
        if state.denies:
            redaction = apply_denies(
                self._store,
                state,
                pending.txn,
                pending.dataset,
                parent,
                pending.change,
            )
        complete_change = pending.complete(parent, redaction.change)
        self._redactions[cache_key] = replace(redaction, change=complete_change)
        return self._redactions[cache_key]

    def _no_live_samples(self, state: State, redaction: Redaction) -> Denied | EmptyVersion:
        """Return the error for a next version without live samples: Denied if takedowns dropped some."""
        dataset = self._pending.dataset
        if not redaction.n_dropped:
            message = f"the next version of {dataset} would have no live samples; keep at least one"
            return EmptyVersion(message, what="samples", where=dataset, given=0)
        entries = [deny.n for deny in state.denies]
        return Denied(
            f"takedowns cover every sample of {dataset}: the next version is empty. "
            f"Log entries {entries} of {self._store.url} name them",
            what="takedowns",
            where=dataset,
            given=entries,
        )


def _next_manifest(
    parent: Version | None,
    redaction: Redaction,
    pending: Pending,
    last_deny: int,
) -> dict[str, Any]:
    """Return the manifest of a change on its parent. Its lists are not compacted yet."""
    base_manifest: Mapping[str, Any] | None = None
    parent_id = None
    if parent is not None:
        base_manifest = parent.manifest
        parent_id = parent.id
    producer = dict(pending.producer)
    if redaction.n_dropped:
        producer["taken_down"] = redaction.n_dropped

    changes = [redaction.change]
    if redaction.before is not None:
        # A change has one table of exclusions: the parent's denied samples need a change of their own.
        changes = [redaction.before, redaction.change]
    manifest: dict[str, Any] = {}
    for change in changes:
        manifest = child(
            base_manifest,
            change,
            dataset=pending.dataset,
            parent_id=parent_id,
            txn=pending.txn,
            denies=last_deny,
            producer=producer,
            facts=pending.facts,
            created_us=pending.created_us,
        )
        base_manifest = manifest
    return manifest


def with_statistics(
    parent: Version | None,
    prefix: str,
    change: Change,
) -> Change:
    """Return the annotation with statistics over all cells of `parent` and itself, uploaded under `prefix`.

    Serves as `Pending.complete`. Raises: FieldMismatch.
    """
    assert parent is not None, "an annotation needs an earlier version"
    columns = merge_columns(parent.manifest["columns"], change.samples)
    stats = annotation_stats(
        parent.store,
        parent.manifest["samples"],
        [file.to_json() for file in change.samples],
        columns,
    )
    return replace(
        change,
        stats=put_named_table(
            parent.store,
            prefix,
            stats,
            "stats",
        ),
    )


def annotation_stats(
    store: Store,
    before: Sequence[TableEntry],
    annotation: Sequence[TableEntry],
    columns: Mapping[str, Any],
) -> pa.Table:
    """Return statistics of the annotated columns over all cells, one row per column.

    before: the parent's tables of samples, whose cells the annotation covers. columns: the manifest's columns,
    annotation included.
    """
    rows = []
    for name in annotated_columns(annotation):
        column_type = type_named(columns[name]["type"])
        cell_frame = cells(store, [*before, *annotation], name)
        # Polars returns other types than the stored ones, such as large_string for string.
        column = cell_frame[name].to_arrow().cast(column_type)
        (row,) = column_stats(pa.table({name: column})).to_pylist()
        # `whole`: these statistics replace the earlier ones, because they also count cells that the annotation leaves
        # unchanged.
        row[WHOLE] = any(name in entry["columns"] for entry in before)
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=WHOLE_SCHEMA)


# Names of field facts that docs/format.md defines; writers may add others.
TEXT_FACTS = ("tokenizer", "tokenizer_sha256", "unit")
LIST_FACTS = ("dims", "labels")


def check_producer(producer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the producer, checked. Raises: InvalidSample if canonical JSON cannot hold a value."""
    checked = dict(producer or {})
    _check_canonical("producer", checked)
    return checked


def check_facts(facts: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return facts about fields, checked. Raises: InvalidSample unless `Root.publish` accepts them."""
    facts_by_field: dict[str, dict[str, Any]] = {}
    for field_name, field_facts in (facts or {}).items():
        facts_by_field[field_name] = dict(field_facts)
    _check_canonical("facts", facts_by_field)
    for field_name, checked_facts in facts_by_field.items():
        for fact, value in checked_facts.items():
            _check_fact(field_name, fact, value)
    return facts_by_field


def _check_canonical(name: str, value: Mapping[str, Any]) -> None:
    try:
        canonical(value)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidSample(
            f"{name}={value!r}: {error}; use strings, integers, booleans, lists and objects",
            what=name,
            given=value,
        ) from error


def _check_fact(
    field_name: str,
    fact: str,
    value: object,
) -> None:
    if fact in LIST_FACTS:
        kind = "a list of strings"
        is_valid = isinstance(value, list) and all(isinstance(item, str) for item in value)
    elif fact in TEXT_FACTS:
        kind = "a string"
        is_valid = isinstance(value, str)
    else:
        return
    if not is_valid:
        raise InvalidSample(f"facts of {field_name!r}: {fact} = {value!r:.200}; accepted: {kind}")
