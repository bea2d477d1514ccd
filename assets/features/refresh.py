"""Features of published batches, computed again where the featurizer is another by now, or was not there at first.

The parts stay as they are. New features wait, as a batch does, in one open transaction of the dataset. The next release
publishes all of them as one version (`refresh_release`). A batch is done when its stage record says so, so that a
refresh that was killed goes on where it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import loader
from loader.dataset.extension import published_part
from loader.dataset.log.state import State
from loader.dataset.tables.manifest import read_manifest
from loader.dataset.tables.parquet import get_table
from loader.errors import ObjectNotFound
from penstock.compute.pool import Compute, Progress
from penstock.stages import KnownRecords, StageRecord, Upstream, current_record, fingerprint, partitions

from ..featurizers import Featurizer
from ..featurizers.featurizer import check_new_names
from ..featurizers.models import ModelFeaturizer, pinned
from ..spec import DatasetSpec, stage_name
from ..stages import open_transaction
from ..tables import read_table, write_wide_table
from .compute import inputs_of
from .many_parts import BatchFeatures, FeaturesOf, Taken
from .names import described, names_of

UNITS = "units"
CODE_VERSION = "1"
REFRESHED = "refreshed"
"""In a version's producer: stage -> partition -> number of the record whose features it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A published batch whose features are not those of the dataset's featurizer."""

    stage: str
    """Stage of the featurizer."""
    partition: str
    """Key of the batch."""
    was: str
    """Featurizer version that the features are of; "" for none at all."""
    wanted: str
    """Featurizer version of the dataset."""


def is_published(state: State, units: StageRecord) -> bool:
    """Return whether a version has the batch's parts."""
    known = state.txns.get(units.body["txn"])
    return known is not None and known.status == "committed"


def published_parts(version: loader.Version, units: StageRecord) -> list[tuple[str, str]]:
    """Return (kind, part id) of a batch's parts, of those that the version has."""
    return _parts_in(frozenset(version.parts.ids.to_pylist()), units)


def _parts_in(there: frozenset[str], units: StageRecord) -> list[tuple[str, str]]:
    parts = [(entry["kind"], entry["part"]["id"]) for entry in units.body["parts"]]
    return [(kind, part) for kind, part in parts if part in there]


class Looked:
    """Everything that a look of `stale` has read and the next one need not.

    Records of the stages, lists of published refreshes, and paths of records that came with their batch.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        self.records = KnownRecords(spec.name, [UNITS, *(feature.stage for feature in spec.features)])
        self.lists: dict[str, Mapping[str, Mapping[str, int]] | None] = {}
        self.came: set[str] = set()


def stale(root: loader.Root, spec: DatasetSpec, before: Looked | None = None) -> list[Stale]:
    """Return the stale features of published batches, batch by batch, the oldest first.

    A batch that the gate refused after this very featurizer is not among them: it waits for a person. before: of an
    earlier look by this process.

    Costs the opening of the newest version, and one listing of the dataset's stages (a request per 1,000 records).
    Since the earlier look it costs a GET per new record of units and features, sixteen at a time, and a manifest per
    published refresh. Weights whose sha256 is not stated are read.

    Raises: Corrupt; InvalidWeights; StoreError.
    """
    state = root.state
    newest = state.newest(spec.name)
    if newest is None or not spec.features:
        return []
    looked = before or Looked(spec)
    version, included = root.open(newest.id), Included(root, looked)
    there = frozenset(version.parts.ids.to_pylist())
    published = {
        name: records
        for name, records in looked.records.newest(root.store).items()
        if (units := records.get(UNITS)) is not None
        and units.verdict == "published"
        and is_published(state, units)
        and _parts_in(there, units)
    }
    found: list[Stale] = []
    for feature in spec.features:
        featurizer = settled(feature.made())
        stage, wanted = stage_name(featurizer.name), featurizer.version
        for name, records in published.items():
            record = records.get(stage)
            if record is None or not (record.body["version"] == wanted and _is_done(included, record)):
                was = str(record.body["version"]) if record else ""
                found.append(Stale(stage=stage, partition=name, was=was, wanted=wanted))
    return sorted(found, key=lambda one: (one.partition, one.stage))


def settled(featurizer: Featurizer) -> Featurizer:
    """Return the featurizer, its version known for certain. Raises: InvalidWeights; StoreError."""
    return pinned(featurizer) if isinstance(featurizer, ModelFeaturizer) else featurizer


def _is_done(included: "Included", record: StageRecord) -> bool:
    """Return whether nothing is to be computed: refused by the gate, waiting for it, or in a version."""
    return record.verdict == "failed" or included(record)


class Included:
    """Tells whether a version has, or can still get, the features of a published batch's record.

    By the history as it was when this was made.
    """

    def __init__(self, root: loader.Root, looked: Looked | None = None) -> None:
        self._store, self._state = root.store, root.state
        self._lists = looked.lists if looked else {}
        self._came = looked.came if looked else set[str]()

    def __call__(self, record: StageRecord) -> bool:
        txn = record.body.get("refresh")
        if txn is None:
            return self._came_with_its_batch(record)
        known = self._state.txns.get(txn)
        if known is None or known.status != "committed":
            return known is not None and known.status == "open"
        if txn not in self._lists:
            self._lists[txn] = self._list_of(txn)
        listed = self._lists[txn]
        # A version that was collected names nothing any more: those after it have what it had.
        return listed is None or listed.get(record.stage, {}).get(record.partition) == record.r

    def _came_with_its_batch(self, record: StageRecord) -> bool:
        """Return whether the record came with its batch.

        A first record did. Of later ones the record of the samples tells which was read.
        """
        if record.r == 1 or record.path in self._came:
            return True
        samples = current_record(self._store, record.dataset, "samples", record.partition)
        if samples is None or not any(
            (one.stage, one.r) == (record.stage, record.r) for one in samples.upstream
        ):
            return False
        self._came.add(record.path)
        return True

    def _list_of(self, txn: str) -> Mapping[str, Mapping[str, int]] | None:
        version = self._state.committed(txn)
        if version is None:
            return {}
        try:
            producer = read_manifest(self._store, version.manifest, version.sha256)["producer"]
        except ObjectNotFound:
            return None
        listed: Mapping[str, Mapping[str, int]] = producer.get(REFRESHED, {})
        return listed


def transaction(root: loader.Root, dataset: str) -> str:
    """Return the open transaction that refreshed features wait in, begun where there is none. One per publish."""
    return open_transaction(root, dataset, "refresh")


def refresh_stage(
    root: loader.Root,
    compute: Compute,
    spec: DatasetSpec,
    featurizer: Featurizer,
    units: StageRecord,
    *,
    run_id: str,
    progress: Progress | None = None,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Compute one featurizer for the live samples of a published batch; return the record, and its rows.

    It takes the batch's parts as the newest version has them, and publishes nothing yet. A batch that has the features
    already, in a version or waiting, is not computed again. When more samples are refused than the dataset's
    `max_reject_rate`, the record says "failed".

    Raises: InvalidWeights; ModelFailed; Conflict, before anything is computed, when the parts have such a field or
    column of something else; VersionNotFound; StoreError.
    """
    featurizer = settled(featurizer)
    stage, store = stage_name(featurizer.name), root.store
    wanted = fingerprint(CODE_VERSION, featurizer.version, units.fingerprint, units.body["txn"])
    newest = current_record(store, spec.name, stage, units.partition)
    if newest is not None and _can_stand(root, newest, featurizer.version):
        return newest, read_table(store, newest.files[stage])
    version = root.open(f"{spec.name}@latest")
    parts = [(kind, published_part(version, part)) for kind, part in published_parts(version, units)]
    taken = [(kind, part) for kind, part in parts if inputs_of(featurizer, kind, part)]
    names = names_of(root, spec.name, stage, featurizer, units.partition)
    owned = _own_columns(root, newest, featurizer, spec.name)
    for kind, part in taken:
        others = [shard for shard in part.shards if shard.group != names.group]
        check_new_names(
            featurizer,
            kind,
            groups=(),
            fields={name for shard in others for name in shard.field_nbytes} & set(names.fields.values()),
            columns=set(version.manifest["columns"]) - owned,
        )
    txn = transaction(root, spec.name)
    body = described(featurizer, names)
    of = FeaturesOf(
        store=store,
        reader=version.placed or store,
        featurizer=featurizer,
        names=names,
        about=f"{spec.name}/{stage}/{units.partition}",
        fingerprint=fingerprint(wanted, txn, version.id, newest.r if newest else 0),
        timeout_s=spec.work_timeout_s,
        txn=txn,
    )
    features = BatchFeatures(compute, of, progress)
    with root.heartbeat(txn):
        stored = features.store(
            [Taken(kind=kind, part=part, gone=_gone(version, part.id)) for kind, part in taken]
        )
    reason = refused_reason(stored.refused, len(stored.table), spec.max_reject_rate)
    record = StageRecord(
        dataset=spec.name,
        stage=stage,
        partition=units.partition,
        verdict="failed" if reason else "published",
        reason=reason,
        run_id=run_id,
        code_version=f"{CODE_VERSION}/{featurizer.version}",
        fingerprint=wanted,
        files={stage: write_wide_table(store, spec.name, stage, units.partition, stored.table)},
        upstream=(Upstream(stage=UNITS, partition=units.partition, r=units.r),),
        counts=stored.counts,
        body=body
        | stored.model
        | {"shards": stored.shards, "taken": stored.taken, "group": names.group, "refresh": txn},
    )
    return features.recorded(record), stored.table


def _can_stand(root: loader.Root, record: StageRecord, version: str) -> bool:
    return record.verdict == "published" and record.body["version"] == version and Included(root)(record)


def _gone(version: loader.Version, part: str) -> frozenset[int]:
    live = version.parts.live_members(version.parts.position(part))
    return frozenset(np.flatnonzero(~live).tolist())


def _own_columns(
    root: loader.Root, newest: StageRecord | None, featurizer: Featurizer, dataset: str
) -> set[str]:
    """Return the columns that versions have from this featurizer.

    Where the batch that came last has them of it, that is all that it declares, since they were held against its units.
    Otherwise its record of this batch, or of that one, names them. Costs a listing of the stage and a table.
    """
    stage = stage_name(featurizer.name)
    names = partitions(root.store, dataset, stage)
    last = current_record(root.store, dataset, stage, names[-1]) if names else None
    if last is not None and last.body["version"] == featurizer.version:
        return {name for columns in featurizer.columns.values() for name in columns}
    known = newest or last
    return set(get_table(root.store, known.files[stage]).column_names) if known else set()


def refused_reason(refused: int, samples: int, max_reject_rate: float) -> str:
    """Return why a batch's features may not be published, or ""."""
    if refused <= max_reject_rate * samples:
        return ""
    return (
        f"the featurizer refuses {refused} of {samples} published samples, and {max_reject_rate:.0%} is allowed; the "
        "table of the record names them"
    )
