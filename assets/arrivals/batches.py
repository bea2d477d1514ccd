"""States of a dataset's batches and outcomes of their objects, computed from the root."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import loader
from loader.dataset.log.state import State
from loader.storage import Store
from penstock.stages import KnownRecords, StageRecord

from ..pipeline.stages import MEDIA, RAW_OBJECTS, SAMPLES, UNITS
from ..pipeline.stages import VERSION as AUDIT
from ..pipeline.tables import read_table
from .batch_manifests import batch_number, batch_numbers, manifests

Standing = Literal["waiting", "in_progress", "stopped", "ready", "published", "nothing_new"]
STANDINGS: tuple[Standing, ...] = ("waiting", "in_progress", "stopped", "ready", "published", "nothing_new")
"""waiting: no stage has run. in_progress: some have. stopped: a check failed. ready: waits for a release. published: in
a version. nothing_new: no new sample.
"""

_STAGES = (RAW_OBJECTS, MEDIA, UNITS, SAMPLES, AUDIT)
Refused = tuple[str, str]
"""(outcome, code), such as ("rejected", "truncated")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestBatch:
    key: str
    standing: Standing
    """One of `STANDINGS`."""
    objects: int
    """Discovered objects."""
    nbytes: int
    """Bytes of discovered objects."""
    used: int = 0
    """Objects with a sample."""
    refused: Mapping[Refused, int] = field(default_factory=dict)
    """(outcome, code) -> objects without a sample."""
    landed_at_us: int = 0
    """Time of landing in microseconds since 1970; 0 before it."""
    samples_at_us: int = 0
    """Time of the samples record in microseconds since 1970; 0 before it."""
    stopped_by: str = ""
    """Stage and reason, if stopped; else ""."""


class IngestBatches:
    """The batches of one dataset. Each call reads only new records.

    features: stages of the dataset's features, any of which may stop a batch.
    """

    def __init__(self, dataset: str, features: Sequence[str] = ()) -> None:
        self.dataset = dataset
        self._features = features
        self._known = KnownRecords(dataset, [*_STAGES, *features])
        self._waiting: dict[int, IngestBatch] = {}
        self._refusals: dict[str, Mapping[str, Refused]] = {}

    def current(self, root: loader.Root) -> list[IngestBatch]:
        """Return all batches, oldest first. Raises: Corrupt; StoreError."""
        known = self._known.newest(root.store)
        state = root.state
        batches = list[IngestBatch]()
        begun = set[int]()
        for key, records in known.items():
            batches.append(self._batch(root.store, state, key, records))
            begun.add(batch_number(key))
        batches += self._not_begun(root.store, begun)
        batches.sort(key=lambda batch: batch_number(batch.key))
        return batches

    def _not_begun(self, store: Store, begun: set[int]) -> list[IngestBatch]:
        """Return the batches of which no stage has run. begun: numbers of the others."""
        numbers = set(batch_numbers(store, self.dataset)) - begun
        unread = numbers - self._waiting.keys()
        for manifest in manifests(store, self.dataset, unread):
            self._waiting[manifest.number] = IngestBatch(
                key=manifest.batch,
                standing="waiting",
                objects=len(manifest.objects),
                nbytes=manifest.nbytes,
            )
        # Those whose first stage ran since are dropped.
        self._waiting = {number: self._waiting[number] for number in numbers}
        return list(self._waiting.values())

    def _batch(
        self,
        store: Store,
        state: State,
        key: str,
        records: Mapping[str, StageRecord],
    ) -> IngestBatch:
        stages: dict[str, StageRecord] = {}
        of_features: dict[str, StageRecord] = {}
        for stage, record in records.items():
            if stage in self._features:
                of_features[stage] = record
            else:
                stages[stage] = record
        standing, stopped_by = _standing(state, stages, of_features)
        batch = IngestBatch(
            key=key,
            standing=standing,
            objects=0,
            nbytes=0,
            refused=self._refusal_counts(store, records),
            stopped_by=stopped_by,
        )
        landed = records.get(RAW_OBJECTS)
        if landed is not None:
            batch = replace(
                batch,
                objects=landed.counts["landed"],
                nbytes=landed.counts["nbytes"],
                landed_at_us=landed.at_us,
            )
        samples = records.get(SAMPLES)
        if samples is not None:
            batch = replace(
                batch,
                used=samples.counts["used"],
                samples_at_us=samples.at_us,
            )
        return batch

    def _refusal_counts(
        self,
        store: Store,
        records: Mapping[str, StageRecord],
    ) -> Mapping[Refused, int]:
        samples = records.get(SAMPLES)
        if samples is not None:
            # This record counts the refusals of all stages, so no table is read.
            provenance = samples.body.get("made_of", {})
            counts = Counter[Refused]()
            for outcome, _, code, n in provenance.get("refused", []):
                counts[outcome, code] += n
            return counts
        refusals: dict[str, Refused] = {}  # by object: both tables list duplicates of what units refuses
        for stage in (MEDIA, UNITS):
            record = records.get(stage)
            if record is not None:
                refusals.update(self._of_table(store, record))
        return Counter(refusals.values())

    def _of_table(self, store: Store, record: StageRecord) -> Mapping[str, Refused]:
        file = record.files.get("refusals")
        if file is None:
            return {}
        # A table under one path never changes.
        if file.path not in self._refusals:
            refusals: dict[str, Refused] = {}
            for row in read_table(store, file):
                refusals[row["key"]] = (row["outcome"], row["code"])
            self._refusals[file.path] = refusals
        return self._refusals[file.path]


def _standing(
    state: State,
    records: Mapping[str, StageRecord],
    of_features: Mapping[str, StageRecord],
) -> tuple[Standing, str]:
    """Return the standing, and the stage and reason if it is `stopped`."""
    samples = records.get(SAMPLES)
    if samples is not None and samples.verdict != "published":
        samples = None
    transaction = None
    if samples is not None:
        transaction = state.txns.get(samples.body["txn"])
    # Before the verdicts: a stage that fails afterwards takes no sample out of the version.
    if transaction is not None and transaction.status == "committed":
        return "published", ""

    newest = max(records.values(), key=lambda record: record.at_us)
    # A failed feature stops the batch until the feature, or a stage before it, is computed again.
    later = [record for record in of_features.values() if record.at_us > newest.at_us]
    for record in [newest, *later]:
        if record.verdict != "published":
            return "stopped", f"{record.stage}: {record.reason}"
    if samples is None or newest.stage not in (SAMPLES, AUDIT):
        return "in_progress", ""
    # Every object was refused, or a duplicate.
    if not samples.body["parts"]:
        return "nothing_new", ""
    if transaction is not None and transaction.status == "aborted":
        return "stopped", f"its parts were given up ({transaction.reason}): run the batch again"
    return "ready", ""


def backlog(batches: Sequence[IngestBatch]) -> list[IngestBatch]:
    """Return the batches that are not in a version yet and need no human action."""
    return [batch for batch in batches if batch.standing in ("waiting", "in_progress", "ready")]
