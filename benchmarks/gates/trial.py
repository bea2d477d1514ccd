"""One batch through the drift gate, against a baseline of honest batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from assets.checks import CheckResult
from assets.drift import Thresholds
from assets.drift.compare import DRIFT_CHECKS, Baseline, BatchFacts, GateInputs

from .world import Feed, delivery

BASELINE_SEEDS = tuple(range(1_000, 1_006))
TABLE_CHECKS = ("drift", "agreement")
DEFAULTS = Thresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a baseline says of its version; the tables come from elsewhere."""

    name: str = "feed@6"


@lru_cache(maxsize=2)
def published(seeds: tuple[int, ...] = BASELINE_SEEDS) -> Baseline:
    """The feed's version: batches of these seeds, newest first."""
    batches = tuple(delivery(seed).facts() for seed in reversed(seeds))
    version: Any = Named()
    return Baseline(
        version=version,
        batches=batches,
        types={"width_px": "int64", "luma_mean_ratio": "double", "embedding_norm": "double"},
        categories={"label": frozenset(label for one in batches for label in one.samples["label"])},
    )


def judged(
    feed: Feed,
    thresholds: Thresholds = DEFAULTS,
    names: Sequence[str] = TABLE_CHECKS,
) -> dict[str, CheckResult]:
    """check -> what it says of the batch."""
    facts: BatchFacts = feed.facts()
    compared = GateInputs(now=facts, baseline=published(), newest=None, protected=(), thresholds=thresholds)
    return {name: DRIFT_CHECKS[name](compared) for name in names}


def seen(found: CheckResult, finding: str, by: str) -> bool:
    """Whether a check stops the batch, and one of its findings is this one."""
    return found.stops and any(
        str(one["what"]).startswith(finding) and by in f"{one['column']} {one['of']}"
        for one in found.findings
    )
