"""The checks of the drift gate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import loader

from ..checks.outcome import CheckResult
from .captions import caption_findings
from .columns import column_findings, with_source
from .exact_findings import (
    contaminations,
    featurizer_findings,
    non_finite_findings,
    schema_findings,
    split_leaks,
    turned_findings,
)
from .facts import Baseline, BatchFacts
from .findings import CHECK_NAMES, DriftFinding, Thresholds, as_check
from .yields import outcome_findings, size_findings, units_findings

if TYPE_CHECKING:
    import polars as pl

_PARTS, _TESTS = 3, 64
"""Divisors of alpha: a third each for sample columns, media columns, and at most 64 other comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInputs:
    """Inputs of the drift gate."""

    now: BatchFacts
    """Facts of the batch."""
    baseline: Baseline | None
    """Batches of the newest version; None before the first version."""
    newest: loader.Version | None
    """Version that the batch would join; None before the first."""
    protected: tuple[loader.Version, ...]
    """Versions whose samples must not appear."""
    thresholds: Thresholds
    """Thresholds of the dataset."""


def drift(compared: GateInputs) -> CheckResult:
    """Check columns, media, outcomes and counts against the baseline's batches."""
    baseline, thresholds = compared.baseline, compared.thresholds
    if baseline is None or not baseline.batches:
        return CheckResult(name="drift", passed=True, explanation="there is no version to compare with")
    batches = [with_source(one.samples) for one in baseline.batches]
    now = with_source(compared.now.samples)
    share = thresholds.alpha / _PARTS
    findings, n_compared = column_findings(now, batches, thresholds, baseline.categories, share)
    objects = [with_source(one.media, "key") for one in baseline.batches if len(one.media)]
    if len(compared.now.media) and objects:
        more, n_more = column_findings(with_source(compared.now.media, "key"), objects, thresholds, {}, share)
        findings += [one for one in _of_media(more) if one.what != "source stopped delivering"]
        n_compared += n_more
    alpha = share / _TESTS
    outcomes = [one.outcomes for one in baseline.batches]
    findings += outcome_findings(compared.now.outcomes, outcomes, thresholds, alpha)
    tables = [(one.samples, one.media) for one in baseline.batches]
    findings += units_findings((now, compared.now.media), tables, thresholds, alpha)
    findings += size_findings(now, batches, thresholds)
    findings += schema_findings(_types(compared.now.samples), baseline.types)
    findings += non_finite_findings(compared.now.samples, list(baseline.types))
    summary = f"{len(now)} samples against {len(batches)} batches of {baseline.version.name}, {n_compared} comparisons"
    return as_check("drift", findings, summary, usual_known=len(batches) >= thresholds.min_batches)


def splits(compared: GateInputs) -> CheckResult:
    """Check for raw objects and subjects in two splits."""
    findings = split_leaks(compared.now.samples, compared.newest)
    against = compared.newest.name if compared.newest else "each other"
    return as_check("splits", findings, f"{len(compared.now.samples)} samples against {against}")


def protected(compared: GateInputs) -> CheckResult:
    """Check for samples of protected evaluation sets. A failure cannot be approved: remove the samples."""
    findings: list[DriftFinding] = []
    for version in compared.protected:
        findings += contaminations(compared.now.samples, version, compared.thresholds.near_bits)
    named = ", ".join(version.name for version in compared.protected) or "no protected version"
    return as_check(
        "protected", findings, f"{len(compared.now.samples)} samples against {named}", approvable=False
    )


def agreement(compared: GateInputs) -> CheckResult:
    """Compare samples with their media, texts with their objects, and featurizers with the newest batch's."""
    now, baseline, thresholds = compared.now, compared.baseline, compared.thresholds
    findings = turned_findings(now.samples, now.media)
    batches = baseline.batches if baseline else ()
    if now.texts is not None and len(now.texts.keys):
        texts = [one.texts for one in batches if one.texts is not None and len(one.texts.keys)]
        findings += caption_findings(now.texts, texts, thresholds, thresholds.alpha / _PARTS / _TESTS)
    if batches:
        findings += featurizer_findings(now.features, batches[0].features, batches[0].features_now)
    known = len(batches) >= thresholds.min_batches
    return as_check("agreement", findings, f"{len(now.samples)} samples and their sources", usual_known=known)


DRIFT_CHECKS: Mapping[str, Callable[[GateInputs], CheckResult]] = dict(
    zip(CHECK_NAMES, (drift, agreement, splits, protected), strict=True)
)


def _of_media(findings: list[DriftFinding]) -> list[DriftFinding]:
    return [replace(one, of=f"objects: {one.of}") for one in findings]


def _types(table: "pl.DataFrame") -> dict[str, str]:
    schema: Any = table.head(0).to_arrow().schema
    named = {"large_string": "string", "string_view": "string"}
    return {
        field.name: "null"
        if table[field.name].null_count() == len(table)
        else named.get(str(field.type), str(field.type))
        for field in schema
    }
