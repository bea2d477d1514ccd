"""Publish to a root: `with root.write(...) as writer`, and changes to a version."""

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import Conflict, EmptyVersion, InvalidSample, PenstockError, RootError
from ..storage.external_shards import FOREIGN
from .commit import Pending, check_facts, check_producer, commit, with_statistics
from .labels.annotate import Annotated, Annotating, write_annotation
from .log.refs import resolve
from .log.rules import not_aborted
from .publication_gate import Check, FreeGroup, NewKeys, Onto, PassedVerdict, SameCells, check_verdict
from .shards.part import Part
from .shards.shard import DEFAULT_SHARD_BYTES
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
from .writing.part_extension import write_group
from .writing.part_writer import PartWriter, group_chooser, make_sample, mismatch
from .writing.run_tables import check_parts, write_group_run, write_run
from .writing.spill import Spill

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
    txn = check_parts(parts)
    objects = _check_foreign(txn, parts, foreign)
    who, field_facts = check_producer(producer), check_facts(facts)
    state = root.log.state
    if parent is not None and resolve(state, parent).dataset != dataset:
        raise Conflict(f"parent {parent} is not a version of {dataset!r}")
    known = not_aborted(state, txn)
    if known.dataset != dataset:
        raise Conflict(f"these parts were begun for dataset {known.dataset!r}, not {dataset!r}")
    if known.number is not None:
        return root.open(f"{dataset}@{known.number}")
    for key, why in exclude.items():
        check_reason("exclude", repr(key), why)
    checks: list[Check] = [] if onto is None else [Onto(onto)]
    passed: PassedVerdict | None = None
    if verdict or known.gated:
        passed = check_verdict(root.store, known, verdict, parts, exclude, supersede, foreign)
    newest = state.newest(dataset)
    base = open_record(root.store, newest) if newest else None
    columns = base.manifest["columns"] if base else {}
    earlier = {name: column["type"] for name, column in columns.items() if column["type"] != "null"}
    prefix = _prefix(txn)
    with root.heartbeat(txn):
        superseded = find_superseded(base, supersede) if supersede else NOTHING_SUPERSEDED
        change, keys = write_run(root.store, prefix, parts, earlier, exclude, superseded)
        change = replace(change, foreign=objects)
        pending = Pending(
            dataset=dataset,
            txn=txn,
            prefix=prefix,
            change=change,
            producer=who,
            facts=field_facts,
            verdict=passed,
        )
        checks += [superseded.still_live()] if supersede else []
        return commit(root.store, root.log, pending, *checks, NewKeys(root.store, keys))


def _check_foreign(txn: str, parts: Sequence[Part], foreign: Mapping[str, Any] | None) -> TableFile | None:
    in_place = any(shard.path.startswith(FOREIGN) for part in parts for shard in part.shards)
    table = TableFile.from_json(dict(foreign)) if foreign else None
    if in_place != (table is not None) or (table is not None and not table.path.startswith(f"data/{txn}/")):
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
    state = root.log.state
    known = not_aborted(state, txn)
    if known.number is not None:
        return root.open(f"{dataset}@{known.number}")
    check_parts(parts)
    columns = parent.manifest["columns"] if parent else {}
    earlier = {name: column["type"] for name, column in columns.items() if column["type"] != "null"}
    covered, keys_covered = find_standing(parent, standing)
    left_out = left_out.joined(covered)
    change, keys = write_run(root.store, prefix, parts, earlier, {}, left_out, samples, standing)
    records = {one.record for key, one in standing.items() if key in keys_covered or key in keys.left_out}
    if foreign is not None:
        data = table_bytes(foreign, "foreign", facts=facts)
        change = replace(change, foreign=put_named(root.store, prefix, "foreign", data, foreign.num_rows))
    if chunk_rows:
        fields = sorted({name for group in change.groups.values() for name in group.field_nbytes})
        change = replace(change, chunks={"chunk_rows": chunk_rows, "chunk_fields": fields})
    pending = Pending(
        dataset=dataset,
        txn=txn,
        prefix=prefix,
        change=change,
        producer=check_producer(_with_records(producer, records)),
        created_us=created_us,
        facts=check_facts(of_fields),
    )
    checks: list[Check] = [Onto(parent.id if parent else ""), NewKeys(root.store, keys, left_out)]
    checks += [left_out.still_live()] if left_out.n_samples else []
    return commit(root.store, root.log, pending, *checks)


def _with_records(producer: Mapping[str, Any], records: Collection[str]) -> Mapping[str, Any]:
    return {**producer, "exclusions": sorted(records)} if records else producer


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
    facts = check_producer(_with_records(producer or {}, records))
    return _publish_exclusions(root, version, left_out.joined(covered), facts)


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
    who, field_facts = check_producer(producer), check_facts(facts)
    with _transaction(root, version) as txn:
        parts = write_group(version, txn, group, compute, inputs)
        prefix = _prefix(txn)
        change = write_group_run(root.store, prefix, parts)
        pending = Pending(
            dataset=version.dataset, txn=txn, prefix=prefix, change=change, producer=who, facts=field_facts
        )
        return commit(root.store, root.log, pending, FreeGroup(group, [part.id for part in parts], version))


def publish_annotation(root: "Root", ref: str, rows: Any, how: Annotating, producer: Producer) -> Annotated:
    import_polars()  # before the rows are read
    version = root.open(ref)
    facts = check_producer(producer)
    with _transaction(root, version) as txn:
        prefix = _prefix(txn)
        files, joined = write_annotation(version, prefix, rows, how)
        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=Change(samples=tuple(files)),
            producer=facts,
            complete=lambda parent, change: with_statistics(parent, prefix, change),
        )
        return Annotated(
            version=commit(root.store, root.log, pending, SameCells(version, files)), join=joined
        )


def publish_exclusions(
    root: "Root", ref: str, keys: Sequence[str], reason: str, producer: Producer
) -> Version:
    check_reason("exclude", "these keys", reason)
    version = root.open(ref)
    facts = check_producer(producer)
    return _publish_exclusions(root, version, find_excluded(version, keys, reason), facts)


def _publish_exclusions(
    root: "Root", version: Version, left_out: Superseded, producer: Mapping[str, Any]
) -> Version:
    with _transaction(root, version) as txn:
        prefix = _prefix(txn)
        change = exclusion_change(root.store, prefix, left_out)
        pending = Pending(dataset=version.dataset, txn=txn, prefix=prefix, change=change, producer=producer)
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


def _prefix(txn: str) -> str:
    return f"data/{txn}/{secrets.token_hex(8)}"


MAX_SHARD_BYTES = 8 * 2**30


class Writer:
    """Collects samples (spilling to disk), cuts them into parts in hash order, and publishes on a clean exit.

    An exception inside the `with` publishes nothing and aborts the transaction. `version` is set afterwards.
    """

    dataset: str
    """Dataset name."""

    def __init__(
        self,
        root: "Root",
        dataset: str,
        *,
        group: str = "media",
        groups: Mapping[str, str] | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        part_samples: int | None = None,
        producer: Mapping[str, Any] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if not 1 <= shard_bytes <= MAX_SHARD_BYTES:
            raise InvalidSample(
                f"shard_bytes={shard_bytes}; accepted: 1 to {MAX_SHARD_BYTES}, usually 64 MiB to 1 GiB"
            )
        if part_samples is not None and part_samples < 1:
            raise InvalidSample(f"part_samples={part_samples}; accepted: at least 1, or None for no limit")
        self._root, self.dataset = root, dataset
        self._group_of = group_chooser(group, groups)
        self._shard_bytes, self._part_samples = shard_bytes, part_samples
        self._producer, self._facts = check_producer(producer), check_facts(facts)
        self._spill: Spill | None = None
        self._txn = ""
        self._first: tuple[str, frozenset[str]] | None = None
        self._version: Version | None = None

    @property
    def version(self) -> Version:
        """The published version. Raises: RootError before a clean exit."""
        if self._version is None:
            raise RootError(
                f"nothing of {self.dataset!r} was published by this writer (yet): the `with` block must end cleanly"
            )
        return self._version

    def __enter__(self) -> "Writer":
        self._txn = self._root.begin(self.dataset)
        self._heartbeat = self._root.heartbeat(self._txn).start()
        self._spill = Spill()
        return self

    def add(
        self,
        key: str,
        fields: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one sample.

        Args:
            key: Key of the sample.
            fields: Name -> bytes, or a value encoded according to the extension: cls int, txt str, json object, npy
                array.
            metadata: Column -> value to filter on.
            source: Provenance (`columns.SOURCE_COLUMNS`).

        Raises: InvalidKey, InvalidField, DuplicateKey, FieldMismatch, FieldTooLarge.
        """
        if self._spill is None:
            raise RootError("writer.add outside its `with` block; use: with root.write(...) as writer")
        sample = make_sample(key, fields, metadata, source)
        names = frozenset(sample.fields)
        if self._first is None:
            self._first = (key, names)
        elif names != self._first[1]:
            raise mismatch(
                key, {"": sorted(names)}, {"": sorted(self._first[1])}, f"sample {self._first[0]!r}"
            )
        self._spill.add(sample)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._spill is not None
        spill, self._spill = self._spill, None
        try:
            if error is None:
                self._version = self._publish(spill)
        except BaseException as failure:
            error = failure
            raise
        finally:
            spill.close()
            self._heartbeat.close()
            if error is not None:
                abort_after(self._root, self._txn, error)

    def _publish(self, spill: Spill) -> Version:
        if not spill.n_samples:
            raise EmptyVersion(f"no sample was added to {self.dataset!r}; a version needs at least one")
        parts = list(self._parts(spill))
        return self._root.publish(self.dataset, parts, producer=self._producer, facts=self._facts)

    def _parts(self, spill: Spill) -> Iterator[Part]:
        attempt, k = secrets.token_hex(8), 0
        writer: PartWriter | None = None
        try:
            for sample in spill.drain():
                if writer is None:
                    writer = self._part_writer(attempt, k)
                    k += 1
                writer.add(sample)
                if writer.nbytes >= self._shard_bytes or writer.n_rows == self._part_samples:
                    yield writer.finish()
                    writer = None
            if writer is not None:
                yield writer.finish()
        finally:
            if writer is not None:
                writer.close()

    def _part_writer(self, attempt: str, k: int) -> PartWriter:
        return PartWriter(
            self._root.store, txn=self._txn, attempt=attempt, name=f"{k:05d}", group_of=self._group_of
        )
