"""What a spec refuses: limits that nothing can break, and values that no limit can be told of."""

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from assets.drift import Thresholds
from assets.media.policy import AudioPolicy, VideoPolicy
from assets.sources import BatchLimits, Source
from assets.spec import DatasetSpec, Filter, Limits, Upkeep
from loader.errors import InvalidSpec
from penstock.card.build import reason_class
from tests.refusals import refusal

NAN = math.nan
SPEC = DatasetSpec(name="demo")
FILTERS = (
    Filter(column="score", minimum=0.5),
    Filter(column="score", maximum=0.5),
    Filter(column="score", minimum=0, maximum=1, required=True),
    Filter(column="score", required=True),
    Filter(column="score", allowed=frozenset({"a"})),
)


@pytest.mark.parametrize("one", FILTERS)
@pytest.mark.parametrize(
    "value", [NAN, np.float32(NAN), np.float64(NAN), Decimal("NaN"), math.inf, -math.inf]
)
def test_what_is_no_finite_number_passes_no_filter(one: Filter, value: Any) -> None:
    assert one.reason(value) == "score is not a finite number"
    assert reason_class(one.reason(value)) == one.reason(value)


def test_what_is_unknown_passes_unless_it_is_required() -> None:
    assert [one.reason(None) for one in FILTERS] == ["", "", *["score is unknown"] * 2, ""]
    assert [Filter(column="x", minimum=0.5, maximum=1).reason(value) for value in (0.5, 1, True)] == [""] * 3
    assert Filter(column="x", minimum=0.5).reason(0.4) == "x = 0.4 is below 0.5"


@pytest.mark.parametrize(
    "options",
    [
        {"minimum": NAN},
        {"maximum": NAN},
        {"minimum": -math.inf},
        {"maximum": math.inf},
        {"minimum": 1, "maximum": 0},
        {"allowed": "cat"},
    ],
)
def test_filter_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with refusal(InvalidSpec, what=" and ".join(options), where="filter 'score'"):
        Filter(column="score", **options)


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("made", "name"),
    [
        *((SPEC, f"max_{name}_rate") for name in ("reject", "untrue", "quarantine")),
        (SPEC, "work_timeout_s"),
        *((Limits(), f"{name}_s") for name in ("backlog", "silence", "version")),
        *((Thresholds(), name) for name in ("alpha", "level", "units_ratio", "batch_ratio", "min_batches")),
        (BatchLimits(), "max_wait_s"),
        (BatchLimits(), "max_objects"),
        (BatchLimits(), "max_batches"),
        (Source(), "max_bytes"),
        (Source(), "objects_per_hour"),
        (VideoPolicy(), "clip_s"),
        (VideoPolicy(), "max_clips"),
        (AudioPolicy(), "pause_s"),
        (Upkeep(), "refresh_partitions"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_limit_is_a_finite_number(made: Any, name: str, value: float) -> None:
    with pytest.raises(InvalidSpec) as caught:
        replace(made, **{name: value})
    assert name in str(caught.value.what).split(" and ")


def test_share_of_a_split_is_a_number() -> None:
    with refusal(InvalidSpec, what="splits", given="{'train': nan}"):
        DatasetSpec(name="demo", splits={"train": NAN})
