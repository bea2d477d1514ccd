"""Portraits: photos only, upright, at least 200 px wide, split by the folder they landed in."""

import polars as pl

from assets.checks import CheckResult, nulls
from assets.gate_settings import SUITE, Gate
from assets.media.policy import CutPolicy, ImagePolicy
from assets.spec import DatasetSpec, Feature, Filter


def known_licences(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
    """Fail a batch with an unknown licence."""
    known = table.with_columns(pl.col("licence").replace("unknown", None))
    return nulls(known, {"licence": 0.0})


SPEC = DatasetSpec(
    name="portraits",
    policy=CutPolicy(image=ImagePolicy(short_side_px=512)),
    features=(Feature(name="picture"), Feature(name="phash")),
    filters=(Filter(column="width_px", minimum=200), Filter(column="luma_mean_ratio", minimum=0.05)),
    splits={"train": 0.95, "validation": 0.05},
    split_by="subject",
    max_reject_rate=0.02,
    gate=Gate(suite=SUITE, checks={"known_licences": known_licences}),
)
