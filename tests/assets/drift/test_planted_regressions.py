"""Regressions that nobody announces, each planted in an honest batch, and honest batches that must pass.

The table of docs/gates.md is made of the same (`python -m benchmarks.gates`).
"""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from assets.drift import Thresholds
from assets.drift.compare import DRIFT_CHECKS, Baseline, GateInputs
from assets.drift.yields import size_findings
from benchmarks.gates.__main__ import HONEST, PLANTED_SEED
from benchmarks.gates.regressions import REGRESSIONS
from benchmarks.gates.trial import judged, published, seen
from benchmarks.gates.world import Feed, delivery
from loader.errors import InvalidSpec
from tests.refusals import refusal

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def honest() -> Feed:
    return delivery(PLANTED_SEED)


def test_batch_that_they_are_planted_in_is_honest(honest: Feed) -> None:
    assert all(result.passed for result in judged(honest).values())


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression_is_seen_as_what_it_is(name: str, honest: Feed) -> None:
    one = REGRESSIONS[name]
    found = judged(one.plant(honest), names=[one.check])[one.check]
    assert seen(found, one.finding, one.by), found.explanation
    assert found.approvable


@pytest.mark.parametrize("seed", HONEST)
def test_honest_batch_passes(seed: int) -> None:
    stopped = [one.explanation for one in judged(delivery(seed, HONEST[seed])).values() if not one.passed]
    assert stopped == []


def test_every_regression_stands_in_the_docs() -> None:
    page = (REPOSITORY / "docs/gates.md").read_text()
    assert [name for name in REGRESSIONS if f"| {name} |" not in page] == []
    assert f"{len(REGRESSIONS)} of {len(REGRESSIONS)} regressions are seen" in page
    assert f"0 of {len(HONEST)} honest batches are stopped" in page


def _gate_inputs(feed: Feed, baseline: Baseline | None, thresholds: Thresholds = Thresholds()) -> GateInputs:  # noqa: B008
    return GateInputs(now=feed.facts(), baseline=baseline, newest=None, protected=(), thresholds=thresholds)


def test_with_too_few_batches_a_difference_is_shown_and_stops_nothing(honest: Feed) -> None:
    young = replace(published(), batches=published().batches[:2])
    scaled = REGRESSIONS["a feature scaled by 1.03"].plant(honest)
    found = DRIFT_CHECKS["drift"](_gate_inputs(scaled, young))
    assert (found.passed, found.stops, found.severity) == (False, False, "warn")
    assert "too few batches" in found.explanation
    patient = DRIFT_CHECKS["drift"](_gate_inputs(scaled, young, Thresholds(min_batches=2)))
    assert patient.stops
    certain = REGRESSIONS["a column of numbers that became text"].plant(honest)
    assert DRIFT_CHECKS["drift"](_gate_inputs(certain, young)).stops  # that needs no batches
    assert DRIFT_CHECKS["drift"](_gate_inputs(honest, None)).passed


def test_feed_that_varies_by_itself_is_given_more_room(honest: Feed) -> None:
    """The same scale is unusual of a steady column and usual of one whose every batch has another one."""

    def scale_feed(feed: Feed, factor: float) -> Feed:
        def change(i: int, row: dict[str, object]) -> dict[str, object]:
            norm = row.get("embedding_norm")
            return row | ({"embedding_norm": norm * factor} if isinstance(norm, float) else {})

        return feed.with_samples(change)

    drifting = [
        scale_feed(delivery(1_000 + i, 600), factor).facts()
        for i, factor in enumerate((0.94, 1.05, 1.0, 0.97))
    ]
    steady = [delivery(1_000 + i, 600).facts() for i in range(4)]
    batch = scale_feed(delivery(5, 600), 1.06)
    names = [
        [
            one["column"]
            for one in DRIFT_CHECKS["drift"](
                _gate_inputs(batch, replace(published(), batches=tuple(some)))
            ).findings
        ]
        for some in (drifting, steady)
    ]
    assert "embedding_norm" not in names[0]
    assert "embedding_norm" in names[1]


def test_thresholds_are_the_datasets_own(honest: Feed) -> None:
    one = REGRESSIONS["1 % zeros in a column"]
    planted = one.plant(honest)
    assert not judged(planted, Thresholds(zeros=0.05), ["drift"])["drift"].findings
    ignored = Thresholds(ignore=frozenset({one.by}))
    assert not judged(planted, ignored, ["drift"])["drift"].findings
    assert judged(planted, Thresholds(), ["drift"])["drift"].findings


def test_smaller_delivery_of_a_feed_whose_deliveries_are_of_one_size() -> None:
    def table(n: int) -> pl.DataFrame:
        return pl.DataFrame({"kind": ["image"] * n, "split": ["train"] * n})

    batches = [table(n) for n in (1_000, 1_004, 997, 1_001)]
    regular = Thresholds(batch_ratio=0.95)
    assert size_findings(table(900), batches, Thresholds()) == []  # nobody said that they are
    found = size_findings(table(900), batches, regular)
    assert {(one.what, one.now) for one in found} == {("samples per delivery", "900")}
    assert [one.column for one in found] == ["all samples", "kind = 'image'", "split = 'train'"]
    assert size_findings(table(980), batches, regular) == []
    uneven = [table(n) for n in (1_000, 300, 700, 1_400)]
    assert size_findings(table(900), uneven, regular) == []


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ({"what": "alpha", "given": 0.0}, {"alpha": 0.0}),
        ({"what": "share", "given": 1.5}, {"share": 1.5}),
        ({"what": "units_ratio", "given": 1.0}, {"units_ratio": 1.0}),
        ({"what": "min_batches and near_bits", "given": (0, 8)}, {"min_batches": 0}),
    ],
)
def test_thresholds_that_cannot_be_meant(fault: dict[str, object], options: dict[str, float]) -> None:
    with refusal(InvalidSpec, **fault):
        Thresholds(**options)  # type: ignore[arg-type]
