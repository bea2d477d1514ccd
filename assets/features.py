"""feature_<name>: what one featurizer makes of each sample of a batch, as a group of its own and score columns.

The media are not written again: fields become one more shard per part. Samples are handed to workers in stretches,
which read them from the store themselves; a stretch that kills its worker is tried again sample by sample, so that
one poison sample costs itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import loader
from loader.dataset.part_extension import add_part_group, read_part
from loader.storage import Store
from resources.compute import Compute, Outcome

from .featurizers import Features, Featurizer
from .media.unit import Unusable
from .stages import StageRecord, Upstream, append_record, current_record, fingerprint, require_published
from .tables import read_table, write_wide_table

CODE_VERSION = "1"
STRETCH = 32
"""Samples that one unit of work takes: seconds of work, and little to do again."""

Progress = Callable[[int, int], None]


def stage_name(featurizer: str) -> str:
    """The stage, asset and table of a featurizer."""
    return f"feature_{featurizer.rpartition(':')[2].lower()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Rows [start, stop) of one part, for one featurizer."""

    store: Store
    part: loader.Part
    kind: str
    featurizer: Featurizer
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one sample: features, or a refusal."""

    key: str
    features: Features | None = None
    code: str = ""
    reason: str = ""


def featurize(stretch: Stretch) -> list[Row]:
    """The rows of a stretch, in order. Runs in a worker. Raises: StoreError, Corrupt when samples cannot be read."""
    inputs = stretch.featurizer.inputs[stretch.kind]
    rows = []
    for key, sample in read_part(stretch.store, stretch.part, inputs, range(stretch.start, stretch.stop)):
        try:
            rows.append(Row(key=key, features=stretch.featurizer(stretch.kind, sample)))
        except Unusable as unusable:
            rows.append(Row(key=key, code=unusable.code, reason=unusable.reason))
    return rows


def feature_stage(
    root: loader.Root,
    compute: Compute,
    featurizer: Featurizer,
    *,
    dataset: str,
    partition: str,
    run_id: str,
    timeout_s: float,
    progress: Progress | None = None,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Compute and publish one featurizer's groups and columns for a batch: the record, and its rows.

    A batch whose units and featurizer are those of the published record is not computed again. A sample that the
    featurizer refuses has empty fields; the samples stage leaves it out. Raises: StageNotPublished.
    """
    stage = stage_name(featurizer.name)
    upstream = require_published(root.store, dataset, "units", partition)
    wanted = fingerprint(CODE_VERSION, featurizer.version, upstream.fingerprint, upstream.body["txn"])
    newest = current_record(root.store, dataset, stage, partition)
    if newest is not None and (newest.verdict, newest.fingerprint) == ("published", wanted):
        return newest, read_table(root.store, newest.files[stage])
    taken = [entry for entry in upstream.body["parts"] if entry["kind"] in featurizer.kinds]
    shards, table = [], []
    with root.heartbeat(upstream.body["txn"]):
        for entry in taken:
            part = loader.Part.from_json(entry["part"])
            rows = compute_part(root.store, compute, featurizer, entry["kind"], part, timeout_s, progress)
            shards += _added_shard(root.store, featurizer.name, part, rows)
            table += [_table_row(row) for row in rows]
    refused = sum(1 for row in table if row["code"])
    record = StageRecord(
        dataset=dataset,
        stage=stage,
        partition=partition,
        verdict="published",
        run_id=run_id,
        code_version=f"{CODE_VERSION}/{featurizer.version}",
        fingerprint=wanted,
        files={stage: write_wide_table(root.store, dataset, stage, partition, table)},
        upstream=(Upstream(stage=upstream.stage, partition=partition, r=upstream.r),),
        counts={
            "samples": len(table),
            "refused": refused,
            "nbytes": sum(shard["nbytes"] for shard in shards),
        },
        body={"featurizer": featurizer.name, "version": featurizer.version, "shards": shards},
    )
    return append_record(root.store, record), table


def compute_part(
    store: Store,
    compute: Compute,
    featurizer: Featurizer,
    kind: str,
    part: loader.Part,
    timeout_s: float,
    progress: Progress | None = None,
) -> list[Row]:
    """The rows of all samples of a part, in its order; a sample that no worker survives is a refusal."""

    def stretches(bounds: Iterable[tuple[int, int]]) -> list[Stretch]:
        return [
            Stretch(store=store, part=part, kind=kind, featurizer=featurizer, start=start, stop=stop)
            for start, stop in bounds
        ]

    work = stretches((at, min(at + STRETCH, part.n_rows)) for at in range(0, part.n_rows, STRETCH))
    rows: list[Row] = []
    for stretch, outcome in zip(
        work, compute.map(featurize, work, timeout_s=timeout_s, progress=progress), strict=True
    ):
        if outcome.value is not None:
            rows += outcome.value
            continue
        alone = stretches((at, at + 1) for at in range(stretch.start, stretch.stop))
        keys = [key for key, _ in read_part(store, part, [], range(stretch.start, stretch.stop))]
        rows += _one_by_one(keys, compute.map(featurize, alone, timeout_s=timeout_s))
    return rows


def _one_by_one(keys: Sequence[str], outcomes: Iterable[Outcome[list[Row]]]) -> Iterator[Row]:
    for key, outcome in zip(keys, outcomes, strict=True):
        if outcome.value is not None:
            yield from outcome.value
        elif outcome.error is not None:
            yield Row(key=key, code=outcome.error.code, reason=outcome.error.summary[:500])


def _added_shard(store: Store, name: str, part: loader.Part, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The new shard of the part as JSON, none for a featurizer that gives columns only."""
    fields = next((list(row.features.fields) for row in rows if row.features and row.features.fields), None)
    if fields is None:
        return []
    empty: dict[str, Any] = dict.fromkeys(fields, b"")
    extended = add_part_group(
        store, part, name, (row.features.fields if row.features else empty for row in rows)
    )
    body: dict[str, Any] = extended.to_json()["shards"][-1]
    return [body]


def _table_row(row: Row) -> dict[str, Any]:
    columns = dict(row.features.columns) if row.features else {}
    return {"key": row.key, "code": row.code, "reason": row.reason, **columns}
