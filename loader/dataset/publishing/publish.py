"""Publish a version from parts, from a registered or imported location, or as a change of an earlier version.

Each function uploads the files of its change under a prefix of the transaction, and then calls `commit`. A process that
dies before the commit leaves an open transaction. The collector aborts it once its heartbeat stands still, and deletes
its files.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import Conflict, InvalidSample, PenstockError
from ...storage.external_shards import FOREIGN
from ..labels.annotate import AnnotationOptions, AnnotationResult, write_annotation
from ..log.refs import resolve
from ..log.rules import require_not_aborted
from ..log.state import State, Txn
from ..shards.part import Part
from ..tables.manifest import Change
from ..tables.parquet import TableFile, put_named, table_bytes
from ..versions.samples_table import import_polars
from ..versions.version import Version
from ..writing.exclude import (
    NO_EXCLUSIONS,
    NO_ROWS,
    Exclusions,
    RowsToExclude,
    check_reason,
    exclusion_change,
    find_keys_to_exclude,
    find_samples_with_exclusion,
    find_superseded,
)
from ..writing.group_computation import write_group
from ..writing.run_samples import RunKeys
from ..writing.run_tables import check_parts, write_group_run, write_run
from .commit import Pending, check_facts, check_producer, commit, with_statistics
from .publication_gate import Check, FreeGroup, NewKeys, Onto, PassedVerdict, SameCells, check_verdict

if TYPE_CHECKING:
    from ..root_calls import RootCalls

logger = logging.getLogger(__name__)

Producer = Mapping[str, Any] | None
Facts = Mapping[str, Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsTable:
    """The registered objects that have the bytes of new parts."""

    table: pa.Table
    """Table of the objects (`foreign_objects.foreign_table`)."""
    facts: Mapping[str, str]
    """Facts about the table: the format and options of the registration."""
    chunk_rows: int = 0
    """Average samples per decoded chunk of a registered table; 0 for other objects."""


def publish_parts(
    root: "RootCalls",
    dataset: str,
    parts: Sequence[Part],
    parent: str | None,
    *,
    exclude: Mapping[str, str],
    producer: Producer,
    supersede: Mapping[str, str],
    onto: str | None,
    verdict: str,
    facts: Facts = None,
    foreign: Mapping[str, Any] | None = None,
) -> Version:
    """Publish parts as the dataset's next version (`Root.publish`). All arguments are as there."""
    # 1. Check the arguments and the transaction, before anything is uploaded.
    txn = check_parts(parts)
    objects = _check_foreign(txn, parts, foreign)
    producer_facts = check_producer(producer)
    field_facts = check_facts(facts)
    state = root.log.state
    transaction = _check_transaction(state, txn, dataset, parent)
    if transaction.number is not None:
        return root.open(f"{dataset}@{transaction.number}")  # an earlier call committed it
    for key, why in exclude.items():
        check_reason("exclude", repr(key), why)
    passed: PassedVerdict | None = None
    if verdict or transaction.gated:
        passed = check_verdict(root.store, transaction, verdict, parts, exclude, supersede, foreign)

    # 2. Write the tables of the change. The newest version gives column types and the samples to supersede. `commit`
    #    checks the change again, against the version that is newest then.
    newest_version = _newest_version(root, state, dataset)
    prefix = new_prefix(txn)
    with root.heartbeat(txn):
        superseded = NO_ROWS
        if supersede:
            superseded = find_superseded(newest_version, supersede)
        types = _column_types(newest_version)
        change, keys = write_run(root.store, prefix, parts, types, exclude, superseded)
        pending = Pending(
            dataset=dataset,
            txn=txn,
            prefix=prefix,
            change=replace(change, foreign=objects),
            producer=producer_facts,
            facts=field_facts,
            verdict=passed,
        )

        # 3. Commit. The cheapest checks come first: `NewKeys` may read tables of keys.
        checks: list[Check] = []
        if onto is not None:
            checks.append(Onto(onto))
        if supersede:
            checks.append(superseded.still_live())
        checks.append(NewKeys(root.store, keys))
        return commit(root.store, root.log, pending, *checks)


def _check_transaction(state: State, txn: str, dataset: str, parent: str | None) -> Txn:
    """Return the parts' transaction. Raises Conflict unless it and the version `parent`, if given, are `dataset`'s."""
    if parent is not None and resolve(state, parent).dataset != dataset:
        raise Conflict(
            f"parent {parent} is not a version of {dataset!r}", what="parent", given=parent, accepted=dataset
        )
    transaction = require_not_aborted(state, txn)
    if transaction.dataset != dataset:
        raise Conflict(
            f"these parts were begun for dataset {transaction.dataset!r}, not {dataset!r}",
            what="dataset",
            given=dataset,
            accepted=transaction.dataset,
        )
    return transaction


def _newest_version(root: "RootCalls", state: State, dataset: str) -> Version | None:
    """Return the newest version that is not retired; None if the dataset has none."""
    record = state.newest(dataset)
    if record is None:
        return None
    return Version.of_record(root.store, record)


def _column_types(version: Version | None) -> dict[str, str]:
    """Return column -> type of a version's metadata columns. A column of nulls only may still get any type."""
    if version is None:
        return {}
    types: dict[str, str] = {}
    for name, column in version.manifest["columns"].items():
        if column["type"] != "null":
            types[name] = column["type"]
    return types


def _check_foreign(
    txn: str,
    parts: Sequence[Part],
    foreign: Mapping[str, Any] | None,
) -> TableFile | None:
    """Return the table of the registered objects with the parts' bytes; None if the parts have their own bytes.

    foreign: entry of that table, which the pipeline uploaded with the parts.
    """
    is_registered = any(shard.path.startswith(FOREIGN) for part in parts for shard in part.shards)
    if not foreign:
        if is_registered:
            raise InvalidSample(
                "these parts have their bytes outside the root; pass foreign=, the table written with them",
                what="foreign",
                accepted="the table written with the parts",
            )
        return None

    if not is_registered:
        raise InvalidSample("foreign= is only for parts with bytes outside the root; omit it")
    table = TableFile.from_json(dict(foreign))
    if not table.path.startswith(f"data/{txn}/"):
        raise InvalidSample(
            f"foreign={table.path!r} belongs to another transaction than {txn}; pass the table written with these parts"
        )
    return table


def publish_registered(
    root: "RootCalls",
    dataset: str,
    txn: str,
    prefix: str,
    parts: Sequence[Part],
    samples: Sequence[pa.Table] | None,
    objects: ObjectsTable | None,
    *,
    parent: Version | None,
    to_exclude: RowsToExclude,
    producer: Mapping[str, Any],
    created_us: int,
    field_facts: Facts = None,
    exclusions: Exclusions = NO_EXCLUSIONS,
    more_checks: Sequence[Check] = (),
) -> Version:
    """Publish registered or imported parts, under names derived from their content.

    Args:
        samples: One table per part, as for `write_run`; None reads the parts' tables.
        objects: The registered objects; None for parts with their own bytes, such as imported ones.
        to_exclude: Parent samples to exclude.
        field_facts: Facts about fields, as for `publish_parts`.
        exclusions: Standing exclusions, applied to samples of the parts and of the parent.
        more_checks: Checks of the commit besides its own.

    Raises: Conflict if the parent is no longer the newest version; as `publish_parts`; as `more_checks`.
    """
    transaction = require_not_aborted(root.log.state, txn)
    if transaction.number is not None:
        return root.open(f"{dataset}@{transaction.number}")  # an earlier call committed it
    check_parts(parts)

    # 1. Write the tables of the change: samples, exclusions, and the objects with the bytes.
    standing_rows, standing_keys = find_samples_with_exclusion(parent, exclusions)
    parent_rows = to_exclude.union(standing_rows)
    types = _column_types(parent)
    change, keys = write_run(root.store, prefix, parts, types, {}, parent_rows, samples, exclusions)
    if objects is not None:
        data = table_bytes(objects.table, "foreign", facts=objects.facts)
        file = put_named(root.store, prefix, "foreign", data, objects.table.num_rows)
        change = replace(change, foreign=file, chunks=_chunks(change, objects.chunk_rows))

    # 2. Commit. The producer names the records of those exclusions that had an effect.
    records = _effective_records(exclusions, standing_keys, keys)
    pending = Pending(
        dataset=dataset,
        txn=txn,
        prefix=prefix,
        change=change,
        producer=check_producer(_with_records(producer, records)),
        created_us=created_us,
        facts=check_facts(field_facts),
    )

    checks = _registration_checks(root, parent, keys, parent_rows)
    return commit(root.store, root.log, pending, *checks, *more_checks)


def _registration_checks(
    root: "RootCalls",
    parent: Version | None,
    new_keys: RunKeys,
    parent_rows: RowsToExclude,
) -> list[Check]:
    """Return the checks of a registration. parent_rows: samples that it excludes; it may use their keys again."""
    parent_id = ""  # `Onto("")`: the dataset has no version
    if parent is not None:
        parent_id = parent.id
    checks: list[Check] = [Onto(parent_id), NewKeys(root.store, new_keys, parent_rows)]
    if parent_rows.n_samples:
        checks.append(parent_rows.still_live())
    return checks


def _effective_records(
    exclusions: Exclusions,
    parent_keys: Collection[str],
    new_keys: RunKeys,
) -> set[str]:
    """Return the records of exclusions that excluded a sample of the parent or of the new parts."""
    records: set[str] = set()
    for key, exclusion in exclusions.items():
        if key in parent_keys or key in new_keys.not_live:
            records.add(exclusion.record)
    return records


def _chunks(change: Change, chunk_rows: int) -> dict[str, Any]:
    """Return the manifest's facts about decoded chunks; empty for objects that are not decoded."""
    if not chunk_rows:
        return {}
    fields: set[str] = set()
    for group in change.groups.values():
        fields.update(group.field_nbytes)
    return {"chunk_rows": chunk_rows, "chunk_fields": sorted(fields)}


def _with_records(producer: Mapping[str, Any], records: Collection[str]) -> Mapping[str, Any]:
    """Return the producer's facts, with the records of the exclusions that were applied."""
    if not records:
        return producer
    return {**producer, "exclusions": sorted(records)}


def publish_without(
    root: "RootCalls",
    version: Version,
    to_exclude: RowsToExclude = NO_ROWS,
    producer: Producer = None,
    exclusions: Exclusions = NO_EXCLUSIONS,
) -> Version:
    """Publish the dataset's next version without these samples, and without all that have a standing exclusion.

    Returns `version` itself if there is nothing to exclude, or if the standing exclusions cover all its samples.

    Raises: Conflict if another writer excluded one of them meanwhile; EmptyVersion.
    """
    standing_rows, standing_keys = find_samples_with_exclusion(version, exclusions)
    if not to_exclude.n_samples:
        if not standing_rows.n_samples:
            return version
        # A version needs one live sample: if every sample has an exclusion, this version stays the newest.
        if standing_rows.n_samples == len(version):
            return version
    records = {exclusions[key].record for key in standing_keys}
    producer_facts = check_producer(_with_records(producer or {}, records))
    return _publish_exclusions(root, version, to_exclude.union(standing_rows), producer_facts)


def publish_group(
    root: "RootCalls",
    ref: str,
    group: str,
    compute: Mapping[str, Callable[[Mapping[str, Any]], Any]],
    inputs: Sequence[str] | None,
    producer: Producer,
    facts: Facts = None,
) -> Version:
    """Compute a new field group and publish it as the next version (`Root.add_group`)."""
    version = root.open(ref)
    producer_facts = check_producer(producer)
    field_facts = check_facts(facts)
    with _transaction(root, version) as txn:
        parts = write_group(version, txn, group, compute, inputs)
        prefix = new_prefix(txn)
        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=write_group_run(root.store, prefix, parts),
            producer=producer_facts,
            facts=field_facts,
        )
        check = FreeGroup(group, [part.id for part in parts], version)
        return commit(root.store, root.log, pending, check)


def publish_annotation(
    root: "RootCalls",
    ref: str,
    rows: Any,
    options: AnnotationOptions,
    producer: Producer,
) -> AnnotationResult:
    """Publish rows of labels as the next version (`Root.annotate`)."""
    import_polars()  # raises MissingDependency before the transaction begins and the rows are read
    version = root.open(ref)
    producer_facts = check_producer(producer)
    with _transaction(root, version) as txn:
        prefix = new_prefix(txn)
        files, joined = write_annotation(version, prefix, rows, options)
        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=Change(samples=tuple(files)),
            producer=producer_facts,
            complete=lambda parent, change: with_statistics(parent, prefix, change),
        )
        published = commit(root.store, root.log, pending, SameCells(version, files))
        return AnnotationResult(version=published, join=joined)


def publish_exclusions(
    root: "RootCalls",
    ref: str,
    keys: Sequence[str],
    reason: str,
    producer: Producer,
) -> Version:
    """Publish the next version without the samples with these keys (`Root.exclude`)."""
    check_reason("exclude", "these keys", reason)
    version = root.open(ref)
    producer_facts = check_producer(producer)
    to_exclude = find_keys_to_exclude(version, keys, reason)
    return _publish_exclusions(root, version, to_exclude, producer_facts)


def _publish_exclusions(
    root: "RootCalls",
    version: Version,
    to_exclude: RowsToExclude,
    producer: Mapping[str, Any],
) -> Version:
    with _transaction(root, version) as txn:
        prefix = new_prefix(txn)
        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=exclusion_change(root.store, prefix, to_exclude),
            producer=producer,
        )
        return commit(root.store, root.log, pending, to_exclude.still_live())


def abort_failed(root: "RootCalls", txn: str, error: BaseException) -> None:
    """Abort a transaction because of `error`. A failure to abort is only logged, so that the caller raises `error`."""
    try:
        root.abort(txn, f"{type(error).__name__}: the change was given up")
    except PenstockError as failure:
        # The collector finds open transactions without a heartbeat.
        logger.warning("transaction %s could not be aborted: %s", txn, failure)


@contextmanager
def _transaction(root: "RootCalls", version: Version) -> Iterator[str]:
    """Begin a transaction for a change of `version`, and keep it alive; abort it if the block raises."""
    txn = root.begin(version.dataset, parent=version.id)
    try:
        with root.heartbeat(txn):
            yield txn
    except BaseException as error:
        abort_failed(root, txn, error)
        raise


def new_prefix(txn: str) -> str:
    """Return a new folder of the transaction: two calls never write the same file."""
    return f"data/{txn}/{secrets.token_hex(8)}"
