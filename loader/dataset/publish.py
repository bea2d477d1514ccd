"""Publish a version from parts, from a registered or imported location, or as a change of an earlier version.

Each function uploads the files of its change under a prefix of the transaction, and then calls `commit`. A process that
dies before the commit leaves an open transaction. The collector aborts it once its heartbeat stands still, and deletes
its files.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import Conflict, InvalidSample, PenstockError
from ..storage.external_shards import FOREIGN
from .commit import Pending, check_facts, check_producer, commit, with_statistics
from .labels.annotate import Annotated, Annotating, write_annotation
from .log.refs import resolve
from .log.rules import not_aborted
from .log.state import State, Txn
from .publication_gate import Check, FreeGroup, NewKeys, Onto, PassedVerdict, SameCells, check_verdict
from .shards.part import Part
from .tables.manifest import Change
from .tables.parquet import TableFile, put_named, table_bytes
from .versions.samples_table import import_polars
from .versions.version import Version, open_record
from .writing.exclude import (
    NOTHING_STANDS,
    NOTHING_SUPERSEDED,
    Standing,
    Superseded,
    check_reason,
    exclusion_change,
    find_excluded,
    find_standing,
    find_superseded,
)
from .writing.group_computation import write_group
from .writing.run_tables import check_parts, write_group_run, write_run

if TYPE_CHECKING:
    from .root import Root

logger = logging.getLogger(__name__)

Producer = Mapping[str, Any] | None
Facts = Mapping[str, Mapping[str, Any]] | None


def publish_parts(
    root: "Root",
    dataset: str,
    parts: Sequence[Part],
    parent: str | None,
    exclude: Mapping[str, str],
    producer: Producer,
    supersede: Mapping[str, str],
    onto: str | None,
    verdict: str,
    facts: Facts = None,
    foreign: Mapping[str, Any] | None = None,
) -> Version:
    # 1. Check the arguments and the transaction, before anything is uploaded.
    txn = check_parts(parts)
    objects = _check_foreign(txn, parts, foreign)
    producer_facts = check_producer(producer)
    field_facts = check_facts(facts)
    state = root.log.state
    known = _transaction_of_parts(state, txn, dataset, parent)
    if known.number is not None:
        return root.open(f"{dataset}@{known.number}")  # an earlier attempt committed it
    for key, why in exclude.items():
        check_reason("exclude", repr(key), why)
    passed: PassedVerdict | None = None
    if verdict or known.gated:
        passed = check_verdict(root.store, known, verdict, parts, exclude, supersede, foreign)

    # 2. Write the samples table and the other tables of the change. They need the newest version only for the types of
    #    its columns: `commit` compares the change with the version that is then the newest.
    base: Version | None = None
    newest = state.newest(dataset)
    if newest is not None:
        base = open_record(root.store, newest)
    prefix = new_prefix(txn)
    with root.heartbeat(txn):
        superseded = NOTHING_SUPERSEDED
        if supersede:
            superseded = find_superseded(base, supersede)
        change, keys = write_run(root.store, prefix, parts, _column_types(base), exclude, superseded)
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


def _transaction_of_parts(state: State, txn: str, dataset: str, parent: str | None) -> Txn:
    if parent is not None and resolve(state, parent).dataset != dataset:
        raise Conflict(f"parent {parent} is not a version of {dataset!r}")
    known = not_aborted(state, txn)
    if known.dataset != dataset:
        raise Conflict(f"these parts were begun for dataset {known.dataset!r}, not {dataset!r}")
    return known


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
    """Return the table of the objects with the parts' bytes, None if the parts have their own bytes."""
    in_place = any(shard.path.startswith(FOREIGN) for part in parts for shard in part.shards)
    table: TableFile | None = None
    is_of_txn = True
    if foreign:
        table = TableFile.from_json(dict(foreign))
        is_of_txn = table.path.startswith(f"data/{txn}/")
    has_table = table is not None
    if in_place != has_table or not is_of_txn:
        raise InvalidSample(
            f"parts with bytes in other places: {in_place}, table of their objects: {table and table.path!r}; pass "
            "foreign=, the table that was written with them, and none otherwise"
        )
    return table


def publish_registered(
    root: "Root",
    dataset: str,
    txn: str,
    prefix: str,
    parts: Sequence[Part],
    samples: Sequence[pa.Table] | None,
    foreign: pa.Table | None,
    *,
    facts: Mapping[str, str],
    parent: Version | None,
    left_out: Superseded,
    producer: Mapping[str, Any],
    created_us: int,
    of_fields: Facts = None,
    chunk_rows: int = 0,
    standing: Standing = NOTHING_STANDS,
) -> Version:
    """Publish registered or imported parts, under names derived from their content.

        samples: One table per part, as for `write_run`; None reads the parts' tables.
        foreign: Table of the parts' objects, with its facts; None if the parts have their own bytes.
        left_out: Parent samples to leave out.
        of_fields: Facts about fields, as for `publish_parts`.
        chunk_rows: Average samples per decoded chunk of a registered table; 0 for other objects.
        standing: Exclusions that leave samples of the parts and of the parent out.

    Raises: Conflict if the parent is no longer the newest version; as `publish_parts`.
    """
    known = not_aborted(root.log.state, txn)
    if known.number is not None:
        return root.open(f"{dataset}@{known.number}")  # an earlier attempt committed it
    check_parts(parts)

    covered, covered_keys = find_standing(parent, standing)
    left_out = left_out.joined(covered)
    types = _column_types(parent)
    change, keys = write_run(root.store, prefix, parts, types, {}, left_out, samples, standing)
    if foreign is not None:
        data = table_bytes(foreign, "foreign", facts=facts)
        objects = put_named(root.store, prefix, "foreign", data, foreign.num_rows)
        change = replace(change, foreign=objects)
    if chunk_rows:
        change = replace(change, chunks=_chunks(change, chunk_rows))
    records = {one.record for key, one in standing.items() if key in covered_keys or key in keys.left_out}
    pending = Pending(
        dataset=dataset,
        txn=txn,
        prefix=prefix,
        change=change,
        producer=check_producer(_with_records(producer, records)),
        created_us=created_us,
        facts=check_facts(of_fields),
    )

    base = parent.id if parent else ""
    checks: list[Check] = [Onto(base), NewKeys(root.store, keys, left_out)]
    if left_out.n_samples:
        checks.append(left_out.still_live())
    return commit(root.store, root.log, pending, *checks)


def _chunks(change: Change, chunk_rows: int) -> dict[str, Any]:
    fields: set[str] = set()
    for group in change.groups.values():
        fields.update(group.field_nbytes)
    return {"chunk_rows": chunk_rows, "chunk_fields": sorted(fields)}


def _with_records(producer: Mapping[str, Any], records: Collection[str]) -> Mapping[str, Any]:
    """Return the producer's facts, with the records of the exclusions that left samples out."""
    if not records:
        return producer
    return {**producer, "exclusions": sorted(records)}


def publish_left_out(
    root: "Root",
    version: Version,
    left_out: Superseded = NOTHING_SUPERSEDED,
    producer: Producer = None,
    standing: Standing = NOTHING_STANDS,
) -> Version:
    """Publish the dataset's next version without these samples of a version and without its excluded samples.

    Returns `version` if it has no such sample, or only excluded ones.

    Raises: Conflict if another writer excluded one of them meanwhile; EmptyVersion.
    """
    covered, keys = find_standing(version, standing)
    if not left_out.n_samples and covered.n_samples in (0, len(version)):
        return version
    records = {standing[key].record for key in keys}
    producer_facts = check_producer(_with_records(producer or {}, records))
    return _publish_exclusions(root, version, left_out.joined(covered), producer_facts)


def publish_group(
    root: "Root",
    ref: str,
    group: str,
    compute: Mapping[str, Callable[[Mapping[str, Any]], Any]],
    inputs: Sequence[str] | None,
    producer: Producer,
    facts: Facts = None,
) -> Version:
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
    root: "Root",
    ref: str,
    rows: Any,
    how: Annotating,
    producer: Producer,
) -> Annotated:
    import_polars()  # before the rows are read
    version = root.open(ref)
    producer_facts = check_producer(producer)
    with _transaction(root, version) as txn:
        prefix = new_prefix(txn)
        files, joined = write_annotation(version, prefix, rows, how)
        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=Change(samples=tuple(files)),
            producer=producer_facts,
            complete=lambda parent, change: with_statistics(parent, prefix, change),
        )
        published = commit(root.store, root.log, pending, SameCells(version, files))
        return Annotated(version=published, join=joined)


def publish_exclusions(
    root: "Root",
    ref: str,
    keys: Sequence[str],
    reason: str,
    producer: Producer,
) -> Version:
    check_reason("exclude", "these keys", reason)
    version = root.open(ref)
    producer_facts = check_producer(producer)
    left_out = find_excluded(version, keys, reason)
    return _publish_exclusions(root, version, left_out, producer_facts)


def _publish_exclusions(
    root: "Root",
    version: Version,
    left_out: Superseded,
    producer: Mapping[str, Any],
) -> Version:
    with _transaction(root, version) as txn:
        prefix = new_prefix(txn)
        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=exclusion_change(root.store, prefix, left_out),
            producer=producer,
        )
        return commit(root.store, root.log, pending, left_out.still_live())


def abort_after(root: "Root", txn: str, error: BaseException) -> None:
    """Abort a transaction because of `error`. A failure to abort is only logged, so that the caller raises `error`."""
    try:
        root.abort(txn, f"{type(error).__name__}: the change was given up")
    except PenstockError as failure:
        # The collector finds open transactions without a heartbeat.
        logger.warning("transaction %s could not be aborted: %s", txn, failure)


@contextmanager
def _transaction(root: "Root", version: Version) -> Iterator[str]:
    txn = root.begin(version.dataset, parent=version.id)
    try:
        with root.heartbeat(txn):
            yield txn
    except BaseException as error:
        abort_after(root, txn, error)
        raise


def new_prefix(txn: str) -> str:
    """Return a new folder of the transaction: two attempts never write the same file."""
    return f"data/{txn}/{secrets.token_hex(8)}"
