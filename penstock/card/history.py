"""The provenance of a version: the stage records of the version and all its ancestors.

manifest -> producer -> stage_record (samples), audit_record (gate)
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from loader import Root, Version
from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import read_manifest
from loader.errors import ObjectNotFound
from loader.storage import Store
from loader.storage.threads import DaemonPool

from ..progress import progress
from ..stages import record_json
from .value import Check, History

READ_AHEAD = 16
_COUNTS = ("landed", "used", "rejected", "not_supported", "not_media", "dropped", "left_out")
_RARE = ("not_supported", "not_media")
_RUN = ("dagster_run_id", "run_id", "cut_by_run_id", "asset_key", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Records of the publication of one version; empty if unavailable."""

    record: VersionRecord
    """Its record in the log."""
    n_live: int = 0
    """Live samples."""
    created_us: int = 0
    """UTC microseconds of its manifest; 0 without one."""
    producer: Mapping[str, Any]
    """The manifest's `producer`."""
    samples: Mapping[str, Any]
    """The samples' stage record."""
    audit: Mapping[str, Any]
    """The gate's stage record."""


def history(root: Root, version: Version) -> History:
    """Return the provenance. Costs one manifest and two records per version.

    Raises: Corrupt; StoreError.
    """

    def n_versions() -> int:
        return sum(1 for _ in lineage(root, version))

    read = progress(publish_records(root, version), "provenance", total=n_versions)
    return summary(list(read), version)


def publish_records(root: Root, version: Version, most: int | None = None) -> Iterator[Publish]:
    """Yield the `Publish` of a version and of each ancestor, newest first. most: versions to read; None for all.

    Raises: Corrupt; StoreError.
    """
    records = list(islice(lineage(root, version), most))
    with DaemonPool(READ_AHEAD, "penstock-card") as pool:
        yield from pool.map(lambda record: _read_publish(root.store, record), records)


def summary(publishes: Sequence[Publish], version: Version) -> History:
    """Return the provenance of a version. publishes: the version's own and its ancestors', newest first."""
    known = [publish for publish in publishes if publish.producer]
    batches = [publish for publish in known if publish.samples]
    producer = version.manifest["producer"]
    return History(
        versions=len(publishes),
        publishes=len(known),
        batches=len(batches),
        **_accounts(batches),
        **_making(batches),
        checks=tuple(_checks(batches)),
        run={name: str(producer[name]) for name in _RUN if producer.get(name)},
    )


def lineage(root: Root, version: Version) -> Iterable[VersionRecord]:
    """Yield the log records of a version and its ancestors, newest first."""
    known = {record.id: record for record in root.versions(version.dataset)}
    at: str | None = version.id
    while at is not None and at in known:
        yield known[at]
        at = known[at].parent


def _read_publish(store: Store, record: VersionRecord) -> Publish:
    try:
        manifest = read_manifest(store, record.manifest, record.sha256)
    except ObjectNotFound:  # an earlier version that garbage collection deleted
        return Publish(record=record, producer={}, samples={}, audit={})
    producer = manifest["producer"]
    return Publish(
        record=record,
        n_live=manifest["n_live"],
        created_us=manifest["created_us"],
        producer=producer,
        samples=_record(store, producer.get("stage_record")),
        audit=_record(store, producer.get("audit_record")),
    )


def _record(store: Store, path: object) -> Mapping[str, Any]:
    try:
        if isinstance(path, str):
            return record_json(store, path, "body")
        return {}
    except ObjectNotFound:
        return {}


def _accounts(batches: Iterable[Publish]) -> dict[str, Any]:
    """Return the counts of batches, as fields of a `History`."""
    counts = Counter[str]()
    refused = Counter[tuple[str, str, str]]()
    accounted = 0  # batches whose record names the refused objects; older releases stored none
    for batch in batches:
        totals = batch.samples.get("counts", {})
        # Without zeros of rare outcomes: a card would have a row for each.
        totals = {name: n for name, n in totals.items() if n or name not in _RARE}
        counts.update({name: int(totals[name]) for name in _COUNTS if name in totals})
        provenance = _batch_provenance(batch)
        accounted += "refused" in provenance
        for outcome, stage, code, n in provenance.get("refused", ()):
            refused[str(outcome), str(stage), str(code)] += int(n)
    ordered = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return {
        "counts": dict(counts),
        "refused": tuple((*names, n) for names, n in ordered),
        "accounted": accounted,
    }


def _making(batches: Iterable[Publish]) -> dict[str, Any]:
    """Return how batches were made, with the number of batches of each way, as fields of a `History`."""
    policies = Counter[str]()
    filters = Counter[str]()
    featurizers: Counter[tuple[str, str, str]] = Counter()
    for batch in batches:
        provenance = _batch_provenance(batch)
        policies.update(
            f"{kind}: {_pairs(settings)}" for kind, settings in provenance.get("policy", {}).items()
        )
        filters.update(str(text) for text in provenance.get("filters", ()))
        for feature in provenance.get("features", ()):
            parameters = _pairs(feature.get("parameters", {}))
            featurizer = (str(feature["name"]), str(feature["version"]), parameters)
            featurizers[featurizer] += 1
    return {
        "policies": tuple(sorted(policies.items())),
        "filters": tuple(sorted(filters.items())),
        "featurizers": tuple((*names, n) for names, n in sorted(featurizers.items())),
    }


def _batch_provenance(batch: Publish) -> Mapping[str, Any]:
    provenance: Mapping[str, Any] = batch.samples["body"].get("made_of", {})
    return provenance


def _pairs(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))


def _checks(batches: Iterable[Publish]) -> Iterable[Check]:
    checks_by_stage: dict[str, list[Mapping[str, Any]]] = {}
    for batch in batches:
        body = batch.audit.get("body", {})
        approval = body.get("approval") or {}
        for check in body.get("checks", ()):
            explanation = str(check["explanation"])
            if check["name"] in approval.get("checks", ()):
                explanation = f"{explanation}. Approved by {approval['by']}: {approval['reason']}"
            checks_by_stage.setdefault(str(check["name"]), []).append({**check, "explanation": explanation})
    for name, results in sorted(checks_by_stage.items()):
        passed = sum(result["passed"] is True for result in results)
        yield Check(
            name=name, batches=passed, failed=len(results) - passed, newest=str(results[0]["explanation"])
        )
