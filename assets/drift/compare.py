"""The drift gate: every comparison of a batch with a baseline, as named checks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import loader

from ..checks.outcome import CheckResult
from .agreement import featurizer_findings, non_finite_findings, schema_findings, turned_findings
from .captions import caption_findings
from .columns import column_findings, with_source
from .facts import Baseline, BatchFacts
from .findings import CHECK_NAMES, Finding, Thresholds, as_check
from .leaks import contaminations, split_leaks
from .yields import outcome_findings, size_findings, units_findings

if TYPE_CHECKING:
    import polars as pl

_PARTS, _TESTS = 3, 64
"""Divisors of a batch's significance: a third each for the columns of its samples, for those of its media, and for
comparisons that are no column's (outcomes, units, captions). There are at most 64 of the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Everything that the drift gate looks at."""

    now: BatchFacts
    """The batch."""
    baseline: Baseline | None
    """Batches of the newest version; None before the first version."""
    newest: loader.Version | None
    """Version that the batch would be added to; None before the first."""
    protected: tuple[loader.Version, ...]
    """Versions whose samples must not come."""
    thresholds: Thresholds
    """Thresholds of the dataset."""


def drift(compared: Compared) -> CheckResult:
    """Check columns, media, outcomes and counts against the baseline's batches."""
    baseline, thresholds = compared.baseline, compared.thresholds
    if baseline is None or not baseline.batches:
        return CheckResult(name="drift", passed=True, explanation="there is no version to compare with")
    batches = [with_source(one.samples) for one in baseline.batches]
    now = with_source(compared.now.samples)
    share = thresholds.alpha / _PARTS
    found, n_compared = column_findings(now, batches, thresholds, baseline.categories, share)
    objects = [with_source(one.media, "key") for one in baseline.batches if len(one.media)]
    if len(compared.now.media) and objects:
        more, n_more = column_findings(with_source(compared.now.media, "key"), objects, thresholds, {}, share)
        found += [one for one in _of_media(more) if one.what != "source stopped delivering"]
        n_compared += n_more
    alpha = share / _TESTS
    outcomes = [one.outcomes for one in baseline.batches]
    found += outcome_findings(compared.now.outcomes, outcomes, thresholds, alpha)
    tables = [(one.samples, one.media) for one in baseline.batches]
    found += units_findings((now, compared.now.media), tables, thresholds, alpha)
    found += size_findings(now, batches, thresholds)
    found += schema_findings(_types(compared.now.samples), baseline.types)
    found += non_finite_findings(compared.now.samples, list(baseline.types))
    said = f"{len(now)} samples against {len(batches)} batches of {baseline.version.name}, {n_compared} comparisons"
    return as_check("drift", found, said, usual_known=len(batches) >= thresholds.min_batches)


def splits(compared: Compared) -> CheckResult:
    """Check for raw objects and subjects that are on two sides of a split."""
    found = split_leaks(compared.now.samples, compared.newest)
    against = compared.newest.name if compared.newest else "itself"
    return as_check("splits", found, f"{len(compared.now.samples)} samples against {against}")


def protected(compared: Compared) -> CheckResult:
    """Check for samples of evaluation sets that must stay unseen. Nobody may approve it: take the samples out."""
    found: list[Finding] = []
    for version in compared.protected:
        found += contaminations(compared.now.samples, version, compared.thresholds.near_bits)
    named = ", ".join(version.name for version in compared.protected) or "no protected version"
    return as_check(
        "protected", found, f"{len(compared.now.samples)} samples against {named}", approvable=False
    )


def agreement(compared: Compared) -> CheckResult:
    """Check samples against their media, texts against their objects, featurizers against those of the newest batch."""
    now, baseline, thresholds = compared.now, compared.baseline, compared.thresholds
    found = turned_findings(now.samples, now.media)
    batches = baseline.batches if baseline else ()
    if now.texts is not None and len(now.texts.keys):
        texts = [one.texts for one in batches if one.texts is not None and len(one.texts.keys)]
        found += caption_findings(now.texts, texts, thresholds, thresholds.alpha / _PARTS / _TESTS)
    if batches:
        found += featurizer_findings(now.features, batches[0].features, batches[0].features_now)
    known = len(batches) >= thresholds.min_batches
    return as_check(
        "agreement", found, f"{len(now.samples)} samples and what they were made of", usual_known=known
    )


DRIFT_CHECKS: Mapping[str, Callable[[Compared], CheckResult]] = dict(
    zip(CHECK_NAMES, (drift, agreement, splits, protected), strict=True)
)


def _of_media(found: list[Finding]) -> list[Finding]:
    """Mark findings of the table of objects, to tell them apart from those of samples."""
    return [replace(one, of=f"objects: {one.of}") for one in found]


def _types(table: "pl.DataFrame") -> dict[str, str]:
    """Return column -> Arrow type, "null" for one without values."""
    schema: Any = table.head(0).to_arrow().schema
    named = {"large_string": "string", "string_view": "string"}
    return {
        field.name: "null"
        if table[field.name].null_count() == len(table)
        else named.get(str(field.type), str(field.type))
        for field in schema
    }
