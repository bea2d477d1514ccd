"""Refresh: recompute features of published batches for a new or changed featurizer.

New features wait in the dataset's open transaction. The next release publishes them (`refresh_release`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import loader
from loader.dataset.log.state import State
from loader.dataset.publishing.extension import open_published_part
from loader.dataset.shards.part import Part
from loader.dataset.tables.manifest import read_manifest
from loader.dataset.tables.parquet import get_table
from loader.errors import ObjectNotFound
from penstock.compute.pool import Compute
from penstock.stages import KnownRecords, StageRecord, current_record, fingerprint, partitions

from ..featurizers import Featurizer
from ..featurizers.featurizer import check_new_names
from ..featurizers.models import ModelFeaturizer, pin_featurizer
from ..ingest.stored_faults import has_feature_faults
from ..pipeline.stages import open_transaction
from ..pipeline.tables import read_table
from ..spec import DatasetSpec, stage_name
from .compute import feature_kind, part_inputs
from .names import batch_feature_names
from .part_work import CODE_VERSION, BatchFeatures, FeatureInput, FeaturesOf

UNITS = "units"
REFRESHED = "refreshed"
"""Key in a version's producer: stage -> partition -> number of the record with its features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A published batch whose features are not the current featurizer's."""

    stage: str
    """Stage of the current featurizer."""
    partition: str
    """Key of the batch."""
    was: str
    """Featurizer version that computed its features or ""."""
    version: str
    """Current featurizer version."""


def is_published(state: State, units: StageRecord) -> bool:
    known = state.txns.get(units.body["txn"])
    return known is not None and known.status == "committed"


def published_parts(version: loader.Version, units: StageRecord) -> list[tuple[str, str]]:
    """Return (kind, part id) of the batch's parts in the version."""
    return _select_parts(frozenset(version.parts.ids.to_pylist()), units)


def _select_parts(published: frozenset[str], units: StageRecord) -> list[tuple[str, str]]:
    parts = []
    for entry in units.body["parts"]:
        part = entry["part"]["id"]
        if part in published:
            parts.append((entry["kind"], part))
    return parts


class StaleCache:
    """Cache for `stale`."""

    def __init__(self, spec: DatasetSpec) -> None:
        stages = [feature.stage for feature in spec.features]
        self.records = KnownRecords(spec.name, [UNITS, *stages])
        self.lists: dict[str, Mapping[str, Mapping[str, int]] | None] = {}
        """Committed refresh transaction -> `REFRESHED` of its version; None if the version was collected."""
        self.published_paths: set[str] = set()
        """Paths of the records whose features a batch published with its samples."""


def stale(root: loader.Root, spec: DatasetSpec, before: StaleCache | None = None) -> list[Stale]:
    """Return the stale features of published batches, oldest batch first, without batches that the gate refused.

    before: cache of an earlier call. Costs opening the newest version, a listing of the stages, and a GET per new
    record and published refresh. Reads weights whose sha256 is not stated.

    Raises: Corrupt; InvalidWeights; StoreError.
    """
    state = root.state
    newest = state.newest(spec.name)
    if newest is None or not spec.features:
        return []
    cache = before or StaleCache(spec)
    version = root.open(newest.id)
    included = Included(root, cache)
    # One set for all batches: `published_parts` builds it once per batch.
    part_ids = frozenset(version.parts.ids.to_pylist())
    published = {}
    for name, records in cache.records.newest(root.store).items():
        units = records.get(UNITS)
        if units is None or units.verdict != "published":
            continue
        if is_published(state, units) and _select_parts(part_ids, units):
            published[name] = records
    stale_features: list[Stale] = []
    for feature in spec.features:
        featurizer = pin_weights(feature.build())
        stage = stage_name(featurizer.name)
        current = featurizer.version
        for name, records in published.items():
            record = records.get(stage)
            was = ""
            if record is not None:
                was = record.body["version"]
                if was == current and _is_done(included, record):
                    continue
            item = Stale(stage=stage, partition=name, was=str(was), version=current)
            stale_features.append(item)
    return sorted(stale_features, key=lambda item: (item.partition, item.stage))


def pin_weights(featurizer: Featurizer) -> Featurizer:
    """Return the featurizer, with a model's weights pinned. Raises: InvalidWeights; StoreError."""
    if isinstance(featurizer, ModelFeaturizer):
        return pin_featurizer(featurizer)
    return featurizer


def _is_done(included: "Included", record: StageRecord) -> bool:
    # A failed verdict is final for this featurizer version: a sensor would otherwise repeat it for ever.
    return record.verdict == "failed" or included(record)


class Included:
    """Predicate on a record: a version has its features, or can still get them, by the root's state at construction."""

    def __init__(self, root: loader.Root, earlier: StaleCache | None = None) -> None:
        self._store = root.store
        self._state = root.state
        self._lists: dict[str, Mapping[str, Mapping[str, int]] | None] = {}
        self._published_paths = set[str]()
        if earlier:
            self._lists = earlier.lists
            self._published_paths = earlier.published_paths

    def __call__(self, record: StageRecord) -> bool:
        txn = record.body.get("refresh")
        if txn is None:
            return self._is_in_batch(record)
        known = self._state.txns.get(txn)
        if known is None:  # lost
            return False
        if known.status == "open":
            return True
        # An aborted transaction never gets its features into a version.
        if known.status != "committed":
            return False
        if txn not in self._lists:
            self._lists[txn] = self._batch_list(txn)
        listed = self._lists[txn]
        if listed is None:  # that version was garbage-collected, and later versions have its features
            return True
        published_numbers = listed.get(
            record.stage, {}
        )  # partition -> number of the record (`StageRecord.r`)
        return published_numbers.get(record.partition) == record.r

    def _is_in_batch(self, record: StageRecord) -> bool:
        """Return whether the batch has, or will have, these features with its samples."""
        # The first record of a batch is made before its samples, so the batch has published it.
        if record.r == 1 or record.path in self._published_paths:
            return True
        samples = current_record(self._store, record.dataset, "samples", record.partition)
        if samples is None:
            return False
        upstream = [(one.stage, one.r) for one in samples.upstream]
        if (record.stage, record.r) not in upstream:
            return False
        self._published_paths.add(record.path)
        return True

    def _batch_list(self, txn: str) -> Mapping[str, Mapping[str, int]] | None:
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
    """Return the open transaction for refreshed features; begins one if needed."""
    return open_transaction(root, dataset, "refresh")


def refresh_stage(
    root: loader.Root,
    compute: Compute,
    spec: DatasetSpec,
    featurizer: Featurizer,
    units: StageRecord,
    *,
    run_id: str,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Compute one featurizer for the live samples of a published batch; return the record and its rows.

    Publishes nothing yet. Published or waiting features are kept. The verdict is "failed" above `max_reject_rate`.

    Raises: InvalidWeights; ModelFailed; Conflict if something else has this field or column; VersionNotFound;
    StoreError.
    """
    featurizer = pin_weights(featurizer)
    stage = stage_name(featurizer.name)
    store = root.store
    # The units' transaction names the parts: units that are cut again are other parts, even if their bytes are equal.
    digest = fingerprint(CODE_VERSION, featurizer.version, units.fingerprint, units.body["txn"])
    newest = current_record(store, spec.name, stage, units.partition)
    if newest is not None and _is_current(root, newest, featurizer.version):
        stored_rows = read_table(store, newest.files[stage])
        # A crash or a missing package may be gone by now; a refusal of the bytes will not.
        if not has_feature_faults(stored_rows):
            return newest, stored_rows
    version = root.open(f"{spec.name}@latest")
    featurizer = featurizer.of_fields(version.facts)
    inputs = _inputs(version, featurizer, units)
    names = batch_feature_names(root, spec.name, stage, featurizer, units.partition)
    owned = _own_columns(root, newest, featurizer, spec.name)
    columns = set(version.manifest["columns"]) - owned
    for kind, part in inputs:
        # The group's own fields are there already if a refresh was published and repeated.
        fields = _other_fields(part, names.group) & set(names.fields.values())
        check_new_names(featurizer, kind, groups=(), fields=fields, columns=columns)
    txn = transaction(root, spec.name)
    of = FeaturesOf(
        store=store,
        reader=version.placed or store,
        featurizer=featurizer,
        names=names,
        stage=stage,
        units=units,
        digest=digest,
        # The version decides which rows are removed, so a job on an older one is not resumed.
        attempt=(txn, version.id, newest.r if newest else 0),
        timeout_s=spec.work_timeout_s,
        txn=txn,
    )
    features = []
    for kind, part in inputs:
        removed = _removed_rows(version, part.id)
        features.append(FeatureInput(kind=kind, part=part, removed=removed))
    return BatchFeatures(compute, of).publish(root, features, run_id, spec.max_reject_rate)


def _inputs(
    version: loader.Version,
    featurizer: Featurizer,
    units: StageRecord,
) -> list[tuple[str, Part]]:
    """Return (kind, part) of the batch's published parts that the featurizer reads."""
    inputs = []
    for kind, part_id in published_parts(version, units):
        part = open_published_part(version, part_id)
        kind = feature_kind(featurizer, kind, part)
        if part_inputs(featurizer, kind, part):
            inputs.append((kind, part))
    return inputs


def _other_fields(part: Part, group: str) -> set[str]:
    """Return the fields of all groups but one."""
    fields = set[str]()
    for shard in part.shards:
        if shard.group != group:
            fields.update(shard.field_nbytes)
    return fields


def _is_current(root: loader.Root, record: StageRecord, version: str) -> bool:
    """Return whether a record's features are this featurizer version's, and published or waiting."""
    if record.verdict != "published" or record.body["version"] != version:
        return False
    return Included(root)(record)


def _removed_rows(version: loader.Version, part: str) -> frozenset[int]:
    live = version.parts.live_members(version.parts.position(part))
    return frozenset(np.flatnonzero(~live).tolist())


def _own_columns(
    root: loader.Root,
    newest: StageRecord | None,
    featurizer: Featurizer,
    dataset: str,
) -> set[str]:
    """Return the version's columns that the featurizer may write: its own, from an earlier version of it too."""
    # If this version computed the last batch, its declared columns passed the check against the units. Otherwise the
    # columns are in its record of this batch, or of the last one.
    stage = stage_name(featurizer.name)
    names = partitions(root.store, dataset, stage)
    last = None
    if names:
        last = current_record(root.store, dataset, stage, names[-1])
    if last is not None and last.body["version"] == featurizer.version:
        return set().union(*featurizer.columns.values())
    known = newest or last
    if known:
        return set(get_table(root.store, known.files[stage]).column_names)
    return set()
