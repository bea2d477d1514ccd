"""Turn a change into a version: check it against the newest version, write a manifest, append to the log.

`publication_gate.py` refuses what may not be published. The log calls `build` with the newest state, again if another
writer commits first (a rebase).

A manifest's lists stay short: a publish merges small neighbouring tables, like a log-structured merge tree. Up to 7
tables of each of four sizes remain, and larger ones never merge: a few dozen after ten thousand publishes.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import Corrupt, Denied, EmptyVersion, InvalidSample
from ..storage import Store
from .apply_denies import Applied, apply_denies
from .log.entries import canonical
from .log.log import Log
from .log.rules import CommitBody
from .log.state import State
from .names import hashes_of
from .publication_gate import Check, PassedVerdict, annotated_columns, check_publication
from .shards.key_hashes import covered, put_hashes
from .shards.part import SHARDS_ROW_GROUP_ROWS
from .tables.annotations import Entry, cells
from .tables.columns import concat, fit_types, is_annotation, type_named
from .tables.manifest import Change, child, merged_columns
from .tables.parquet import TableFile, get_tables, integers, put_named_table
from .tables.stats import STATS_SCHEMA, WHOLE, WHOLE_SCHEMA, column_stats, merge_to_rows
from .versions.version import Version, open_record

logger = logging.getLogger(__name__)


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
    producer: Mapping[str, Any]
    """Facts about the run that made it."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Field -> facts about it."""
    complete: Callable[[Version | None, Change], Change] = lambda _, change: change
    """Returns the change to commit on a version."""
    verdict: PassedVerdict | None = None
    """Verdict that lets it pass; None without a gate."""
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

    Raises: Fenced; StageNotPublished if the transaction is gated, without a passed verdict; Conflict, DuplicateKey,
    FieldMismatch if the change does not fit the newest version; as `apply_denies`.
    """
    applied: dict[tuple[str, int], Applied] = {}
    done: Done = {}
    written: dict[str, bytes] = {}  # manifests by SHA-256: the committed one need not be read back

    def build(state: State) -> CommitBody:
        newest = state.newest(pending.dataset)
        parent = open_record(store, newest) if newest else None
        check_publication(state, pending.txn, pending.verdict, parent, checks)
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
            verdict=pending.verdict.path if pending.verdict else "",
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


def with_statistics(parent: Version | None, prefix: str, change: Change) -> Change:
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
    for name in annotated_columns(ours):
        there = any(name in entry["columns"] for entry in before)
        cell_frame = cells(store, [*before, *ours], name)
        table = pa.table({name: cell_frame[name].to_arrow().cast(type_named(columns[name]["type"]))})
        rows.append({**column_stats(table).to_pylist()[0], WHOLE: there})
    return pa.Table.from_pylist(rows, schema=WHOLE_SCHEMA)


FAN_IN = 8
SIZES = tuple(32 * 2**10 * FAN_IN**level for level in range(4))
"""Upper size limits of levels 0 to 3, in bytes. Larger tables never merge."""
RUN_GROUPS = ("keys", "metadata")
"""Column groups of the samples table that every publish of parts writes."""
MOST_BYTES = 4 * SIZES[-1]

File = Mapping[str, Any]
Merge = Callable[[Store, str, Sequence[File], Mapping[str, Any]], dict[str, Any]]
Done = dict[tuple[str, ...], dict[str, Any]]
"""SHA-256 of the merged tables -> the table that replaces them."""


def compacted(store: Store, prefix: str, manifest: Mapping[str, Any], done: Done) -> dict[str, Any]:
    """Return the manifest with short lists. Merged tables are written under `prefix`.

    Usually reads and writes nothing; amortised, about one table per list and publish. Raises: Corrupt; ObjectNotFound.
    """
    out = {**manifest, "key_hashes": _all_hashes(store, prefix, manifest)}
    for name, merge in (
        ("shards", _merge_shards),
        ("exclusions", _merge_exclusions),
        ("key_hashes", _merge_hashes),
    ):
        out[name] = _shortened(store, prefix, out[name], merge, out, done)
    return {**out, **_shortened_runs(store, prefix, out, done)}


def to_merge(nbytes: Sequence[int]) -> slice:
    """Return the neighbouring tables to merge; an empty slice if there are none."""
    n = len(nbytes)
    for level, below in enumerate(SIZES):
        start = n
        while start and nbytes[start - 1] < below:
            start -= 1
        if n - start > (FAN_IN - 1) * (level + 1):
            end = start
            while end < n and sum(nbytes[start : end + 1]) <= MOST_BYTES:
                end += 1
            return slice(start, end)
    return slice(n, n)


def _shortened(
    store: Store, prefix: str, files: Sequence[File], merge: Merge, manifest: Mapping[str, Any], done: Done
) -> list[File]:
    which = to_merge([file["nbytes"] for file in files])
    old = files[which]
    if not old:
        return list(files)
    key = tuple(file["sha256"] for file in old)
    if key not in done:
        done[key] = merge(store, prefix, old, manifest)
    return [*files[: which.start], done[key], *files[which.stop :]]


def _shortened_runs(
    store: Store, prefix: str, manifest: Mapping[str, Any], done: Done
) -> dict[str, list[File]]:
    """Return the lists of samples and stats with neighbouring runs merged; later column groups stay."""
    samples, stats = list(manifest["samples"]), list(manifest["stats"])
    counted: dict[str, list[File]] = {}
    for file in stats:
        counted.setdefault(_folder(file), []).append(file)
    runs, sizes = _runs(samples), []
    for run in runs:
        own = counted.get(_folder(next(iter(run.values()))), [])
        if own:
            run["stats"] = own[0]
        nbytes = sum(file["nbytes"] for file in run.values())
        # Earlier releases merged into the publisher's own folder. It does not record whose statistics
        # are whose, so these runs stay unmerged, like large tables.
        sizes.append(nbytes if len(own) < 2 else max(nbytes, SIZES[-1]))
    old = runs[to_merge(sizes)]
    merged: dict[str, File] = {}
    for kind in dict.fromkeys(kind for run in old for kind in run):
        of_kind = [run[kind] for run in old if kind in run]
        key = tuple(file["sha256"] for file in of_kind)
        if key not in done:
            merge = _merge_stats if kind == "stats" else _merge_samples
            done[key] = merge(store, f"{prefix}-merged", of_kind, manifest)
        merged[kind] = done[key]
    removed = [file["path"] for run in old for file in run.values()]
    short = _replaced(samples, removed, [merged[group] for group in RUN_GROUPS if group in merged])
    _check_order(samples, short, [run["keys"]["path"] for run in old if "keys" in run], merged)
    return {
        "samples": short,
        "stats": _replaced(stats, removed, [merged["stats"]] if "stats" in merged else []),
    }


def _runs(samples: Sequence[File]) -> list[dict[str, File]]:
    runs: list[dict[str, File]] = []
    seen: set[str] = set()
    for file in samples:
        if file["group"] in RUN_GROUPS and not is_annotation(file):
            if not runs or file["group"] in runs[-1]:
                runs.append({})
            runs[-1][file["group"]] = file
        elif not seen.isdisjoint(file["columns"]):
            runs.clear()
        seen.update(file["columns"])
    return runs


def _folder(file: File) -> str:
    return str(file["path"].rpartition("/")[0])


def _replaced(files: Sequence[File], removed: Sequence[str], merged: Sequence[File]) -> list[File]:
    at = next((number for number, file in enumerate(files) if file["path"] in removed), len(files))
    return [*files[:at], *merged, *(file for file in files[at:] if file["path"] not in removed)]


def _check_order(
    before: Sequence[File], after: Sequence[File], removed: Sequence[str], merged: Mapping[str, File]
) -> None:
    was, now = ([file["path"] for file in files if file["group"] == "keys"] for files in (before, after))
    stands_for = {merged["keys"]["path"]: removed} if "keys" in merged else {}
    paths = [path for one in now for path in stands_for.get(one, (one,))]
    if paths != was:
        raise Corrupt(
            f"{stands_for} would put the keys tables {was} out of the order of the parts; nothing was published. This "
            "is a defect of penstock: report it with the manifest of the newest version"
        )


def _tables(store: Store, files: Sequence[File]) -> list[pa.Table]:
    return list(get_tables(store, [TableFile.from_json(dict(file)) for file in files]))


def _merge_shards(store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]) -> dict[str, Any]:
    # Columns that an earlier release's table lacks are null for its shards.
    table = pa.concat_tables(_tables(store, files), promote_options="default")
    return put_named_table(store, prefix, table, "shards", SHARDS_ROW_GROUP_ROWS).to_json()


def _merge_exclusions(
    store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]
) -> dict[str, Any]:
    table = pa.concat_tables(_tables(store, files))
    return put_named_table(store, prefix, table, "exclusions").to_json()


def _merge_stats(store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]) -> dict[str, Any]:
    rows = merge_to_rows(row for table in _tables(store, files) for row in table.to_pylist())
    table = pa.Table.from_pylist(rows, schema=STATS_SCHEMA)
    return put_named_table(store, prefix, table, "stats").to_json()


def _merge_hashes(store: Store, prefix: str, files: Sequence[File], _: Mapping[str, Any]) -> dict[str, Any]:
    return put_hashes(store, prefix, np.concatenate([integers(t["hash"]) for t in _tables(store, files)]))


def _merge_samples(
    store: Store, prefix: str, files: Sequence[File], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    kinds = {name: body["type"] for name, body in manifest["columns"].items() if body["type"] != "null"}
    kind = f"samples-{files[0]['group']}"
    table = concat([fit_types(table, kinds) for table in _tables(store, files)], "the samples table")
    file = put_named_table(store, prefix, table, kind)
    columns = sorted(set(table.column_names) - {"part", "row"})
    return {**file.to_json(), "group": files[0]["group"], "columns": columns}


def _all_hashes(store: Store, prefix: str, manifest: Mapping[str, Any]) -> list[File]:
    if covered(manifest):
        return list(manifest["key_hashes"])
    files = [TableFile.from_json(file) for file in manifest["samples"] if file["group"] == "keys"]
    return [put_hashes(store, prefix, hashes_of(table["key"])) for table in get_tables(store, files, ["key"])]
