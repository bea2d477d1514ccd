"""The lineage of a version: the versions before it, the runs that made them, and its gate's checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import loader
from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt

from ...card.history import Publish, lineage, publish_records, summary
from ...card.value import History
from ...text import clean
from ..board.dataset_cards import gate_result
from ..json_record import JsonRecord

MOST_VERSIONS = 20
"""Newest versions whose records are read."""
MOST_COUNTED = 10_000
"""Ancestors that are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOrigin(JsonRecord):
    """A version and the run that published it."""

    number: int
    version_id: str
    n_samples: int | None
    """Live samples; None if the collector has deleted its manifest."""
    created_us: int
    """UTC microseconds; 0 without a manifest."""
    batch: str
    """Batch that it added, or ""."""
    run_id: str
    """Dagster run that published it, or ""."""
    gate: str
    """passed, failed (published by approval), or "" without a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck(JsonRecord):
    """A check of the gate that let this version pass."""

    name: str
    passed: bool
    explanation: str
    approved_by: str
    """Person who approved it although it failed, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLineage(JsonRecord):
    dataset: str
    number: int
    version_id: str
    n_versions: int
    """Versions up to and including this one, at most `MOST_COUNTED`."""
    versions: tuple[VersionOrigin, ...]
    """The newest of them, newest first."""
    checks: tuple[GateCheck, ...]
    """Checks of this version's own gate."""
    report: str
    """Path of the gate's page in the root, or ""."""
    made_by: History
    """Raw objects, policies, filters and featurizers of `versions`."""
    producer: Mapping[str, str]
    """Property -> value, from the manifest."""


def version_lineage(root: loader.Root, version: "loader.Version") -> VersionLineage:
    """Return a version's lineage, from a manifest and two records of each of its newest ancestors.

    Raises: Corrupt; StoreError.
    """
    records = list(publish_records(root, version, MOST_VERSIONS))
    try:
        made_by = summary(records, version)
        checks = _checks(records)
    except DAMAGED as error:
        raise Corrupt(
            f"the stage records of {version.name} are damaged ({error}); restore them from a mirror",
            what="stage records",
            where=version.name,
            given=str(error),
        ) from error
    producer = version.manifest["producer"]
    properties = {key: value for key, value in producer.items() if isinstance(value, str | int)}
    return VersionLineage(
        dataset=version.dataset,
        number=version.number,
        version_id=version.id,
        n_versions=sum(1 for _ in islice(lineage(root, version), MOST_COUNTED)),
        versions=tuple(_origin(record) for record in records),
        checks=checks,
        report=_report(producer),
        made_by=made_by,
        producer={clean(key, 80): clean(value, 200) for key, value in properties.items()},
    )


def _origin(publish: Publish) -> VersionOrigin:
    n_samples = None
    if publish.created_us:
        n_samples = publish.n_live
    return VersionOrigin(
        number=publish.record.number,
        version_id=publish.record.id,
        n_samples=n_samples,
        created_us=publish.created_us,
        batch=clean(publish.producer.get("batch", ""), 80),
        run_id=clean(publish.producer.get("dagster_run_id", ""), 80),
        gate=gate_result(publish.producer),
    )


def _checks(records: Sequence[Publish]) -> tuple[GateCheck, ...]:
    """Return the checks of the newest version."""
    body = records[0].audit.get("body", {})
    approval = body.get("approval") or {}
    approved = approval.get("checks", ())
    checks = []
    for check in body.get("checks", ()):
        name = str(check["name"])
        approved_by = ""
        if name in approved:
            approved_by = clean(f"{approval['by']}: {approval['reason']}", 200)
        checks.append(
            GateCheck(
                name=clean(name, 80),
                passed=check["passed"] is True,
                explanation=clean(check["explanation"], 400),
                approved_by=approved_by,
            )
        )
    return tuple(checks)


def _report(producer: Mapping[str, Any]) -> str:
    gate = producer.get("gate")
    if not isinstance(gate, dict):
        return ""
    return clean(gate.get("report", ""), 300)
