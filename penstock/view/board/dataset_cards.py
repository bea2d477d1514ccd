"""One card per dataset: size, growth over its versions, the newest version's gate, and batches that were stopped."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import loader
from loader.dataset.log.state import newest_live
from loader.dataset.tables.manifest import read_manifest
from loader.errors import Corrupt
from loader.run.trail.trail_outline import evenly_spread
from loader.storage import Store
from loader.storage.store import ObjectInfo

from ...stages import VERDICTS, find_record, newest_listed
from ...text import clean
from ..json_record import JsonRecord
from ..polyline import polyline_points

MOST_VERSIONS = 8
"""Points of the growth line."""
MOST_BATCHES = 4
"""Newest batches whose version stage is looked at."""
GROWTH_WIDTH = 220
GROWTH_HEIGHT = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltedBatch(JsonRecord):
    batch: str
    """Batch key."""
    reason: str
    """Why its gate stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCard(JsonRecord):
    dataset: str
    """Name."""
    number: int
    """Newest version that is not retired; the newest one if all are."""
    n_samples: int
    """Live samples of that version."""
    nbytes: int
    """Bytes of its groups, excluded samples included."""
    created_us: int
    """UTC microseconds."""
    n_versions: int
    growth: str
    """SVG points of the samples over the versions; "" for one version."""
    gate: str
    """passed, failed (published by approval), or "" without a gate."""
    batch: str = ""
    """Batch that made the version, or ""."""
    stopped: tuple[HaltedBatch, ...] = ()
    """Batches that the gate stopped since, the newest first."""
    error: str = ""
    """Why the version cannot be read; "" if it can."""

    @classmethod
    def unreadable(cls, dataset: str, number: int, error: str) -> "DatasetCard":
        return cls(
            dataset=dataset,
            number=number,
            n_samples=0,
            nbytes=0,
            created_us=0,
            n_versions=0,
            growth="",
            gate="",
            error=clean(error, 400),
        )

    def with_batches(self, root: loader.Root) -> "DatasetCard":
        """Return the card with the batches that are stopped now. Costs a listing and up to `MOST_BATCHES` requests."""
        # Not part of the cached card: batches stop without a new version.
        return replace(self, stopped=_halted_batches(root, self.dataset, self.batch))


def dataset_card(root: loader.Root, dataset: str) -> DatasetCard:
    """Return a dataset's card, from up to `MOST_VERSIONS` manifests. Raises: Corrupt; StoreError."""
    versions = root.state.versions(dataset)
    newest = newest_live(versions) or versions[-1]
    live = [one for one in versions if one.retired is None]
    if not live:  # a collector may have deleted their manifests
        return DatasetCard.unreadable(dataset, newest.number, "every version is retired")
    # A bounded number of manifests, however many versions a streaming dataset has.
    chosen = evenly_spread(live, MOST_VERSIONS)
    manifests = dict[int, Mapping[str, Any]]()
    for version in chosen:
        manifests[version.number] = read_manifest(root.store, version.manifest, version.sha256)
    manifest = manifests[newest.number]
    producer = manifest["producer"]
    counts = [body["n_live"] for body in manifests.values()]
    growth = polyline_points(
        list(manifests),
        counts,
        width=GROWTH_WIDTH,
        height=GROWTH_HEIGHT,
        low=0,
    )
    return DatasetCard(
        dataset=dataset,
        number=newest.number,
        n_samples=manifest["n_live"],
        nbytes=sum(group["nbytes"] for group in manifest["groups"].values()),
        created_us=manifest["created_us"],
        n_versions=len(versions),
        growth=growth,
        gate=gate_result(producer),
        batch=str(producer.get("batch", "")),
    )


def gate_result(producer: Mapping[str, Any]) -> str:
    """Return passed, failed, or "" without a gate. producer: a manifest's."""
    gate = producer.get("gate")
    checks = None
    if isinstance(gate, dict):
        checks = gate.get("checks")
    if not isinstance(checks, dict) or not checks:
        return ""
    if set(checks.values()) == {"passed"}:
        return "passed"
    return "failed"


def _halted_batches(root: loader.Root, dataset: str, published: str) -> tuple[HaltedBatch, ...]:
    """Return the newest batches after the published one whose version stage failed."""
    # Batches are compared with the published one; a version that no pipeline made has none.
    if not published:
        return ()
    listed = newest_listed(root.store, dataset, VERDICTS)
    later = {batch: info for batch, info in listed.items() if batch > published}
    return halted_batches(root.store, later)


def halted_batches(store: Store, listed: Mapping[str, ObjectInfo]) -> tuple[HaltedBatch, ...]:
    """Return the newest batches whose version stage failed. listed: batch -> its newest record."""
    stopped = []
    for batch in sorted(listed, reverse=True)[:MOST_BATCHES]:
        path = listed[batch].key
        name = clean(batch, 80)
        try:
            record = find_record(store, path)
        except Corrupt as error:
            stopped.append(HaltedBatch(batch=name, reason=clean(error, 300)))
            continue
        if record is not None and record.verdict == "failed":
            stopped.append(HaltedBatch(batch=name, reason=clean(record.reason, 300)))
    return tuple(stopped)
