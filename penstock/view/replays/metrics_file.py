"""A run's metrics from another tool's CSV, JSON lines or Parquet file with a `step` column."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.errors import InvalidRuntime, MissingDependency
from loader.run.trail.trail_outline import median_of

from ...text import clean

if TYPE_CHECKING:
    import polars as pl

_MAD_PER_SIGMA = 0.6745
"""Median absolute deviation of a normal distribution, in standard deviations (Rousseeuw and Croux 1993)."""
MOST_COLUMNS = 100
"""Most numeric columns."""
_ACCEPTED = "accepted: .csv, .jsonl, .ndjson or .parquet with a column `step` of whole numbers from 0"


class Spread(NamedTuple):
    """Median and width of a metric's finite values; single spikes do not affect the width."""

    n: int
    """Finite values."""
    median: float
    """Median, or NaN."""
    sigma: float
    """1.4826 * median absolute deviation, the standard deviation if normal, or NaN."""


def value_spread(values: NDArray[Any]) -> Spread:
    known = np.array(values, np.float64)  # a copy, which the medians reorder
    is_finite = np.isfinite(known)
    if not is_finite.all():
        known = known[is_finite]
    if not len(known):
        return Spread(0, np.nan, np.nan)
    median = median_of(known)
    known -= median
    np.abs(known, out=known)
    return Spread(len(known), median, median_of(known) / _MAD_PER_SIGMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFile:
    """Metrics and digests by step."""

    name: str
    frame: "pl.DataFrame" = field(repr=False)
    """By ascending step (Int64): one Float64 column per metric, null if missing."""
    digests: Mapping[int, str] = field(repr=False)
    """Step -> `digest` as text."""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(name for name in self.frame.columns if name != "step")

    def with_file_names(self, notes: Collection[str]) -> "MetricsFile":
        """Return a copy with the file's name appended to the metrics in `notes`."""
        same = {name: f"{name} ({self.name})" for name in self.notes if name in notes}
        return replace(self, frame=self.frame.rename(same))

    def at(self, step: int) -> dict[str, float]:
        """Return a step's metrics."""
        place = self.frame["step"].search_sorted(step)
        if place == len(self.frame) or self.frame["step"][place] != step:
            return {}
        row = self.frame.row(place, named=True)
        return {name: float(value) for name, value in row.items() if name != "step" and value is not None}

    def has_digest(self, step: int, digest: int) -> bool:
        """Return whether a step has this digest, in decimal or hex."""
        forms = (f"{digest}", f"{digest - 2**64}", f"{digest:016x}", f"0x{digest:016x}", f"{digest:#x}")
        return self.digests.get(step) in forms


def read_metrics(path: Path) -> MetricsFile:
    """Return a file's metrics, the last value per step and column. Raises: InvalidRuntime; MissingDependency."""
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependency(
            "--metrics is read with polars: pip install 'penstock-data[tables]'"
        ) from error
    try:
        frame = _read(path)
    except (OSError, ValueError, RecursionError, pl.exceptions.PolarsError) as error:
        message = f"--metrics {path} cannot be read: {error}; {_ACCEPTED}"
        raise InvalidRuntime(message, what="file", where=path, given=str(error)) from error
    if "step" not in frame.columns or not frame["step"].dtype.is_numeric():
        columns = frame.columns[:20]
        message = f"--metrics {path} has the columns {columns}; {_ACCEPTED}"
        raise InvalidRuntime(message, what="columns", where=path, given=columns)
    frame = frame.filter(frame["step"].is_not_null())
    steps = frame["step"].cast(pl.Int64, strict=False)
    if not len(steps) or steps.null_count() or not (steps == frame["step"]).all() or (steps < 0).any():
        raise InvalidRuntime(
            f"--metrics {path} has no steps, or steps that are not whole numbers from 0; {_ACCEPTED}",
            what="steps",
            where=path,
        )
    numbers = [
        name for name in frame.columns if name not in ("step", "digest") and frame[name].dtype.is_numeric()
    ]
    if len(numbers) > MOST_COLUMNS:
        raise InvalidRuntime(
            f"--metrics {path} has {len(numbers)} numeric columns; up to {MOST_COLUMNS} are shown: leave some out",
            what="numeric columns",
            where=path,
            given=len(numbers),
            accepted=MOST_COLUMNS,
        )
    labels = [clean(name, 80) for name in numbers]
    if len({*labels, "step", "digest"}) < len(labels) + 2:
        names = sorted(labels)[:20]
        message = f"--metrics {path} has two columns of one name: {names}"
        raise InvalidRuntime(message, what="column names", where=path, given=names)
    digests = ["digest"] if "digest" in frame.columns else []
    values = frame.select(
        steps,
        *(frame[name].cast(pl.Float64).alias(label) for name, label in zip(numbers, labels, strict=True)),
        *(pl.col(one).cast(pl.String) for one in digests),
    )
    last = values.group_by("step").agg(pl.all().drop_nulls().last()).sort("step")
    return MetricsFile(
        name=path.name,
        frame=last.select("step", *labels),
        digests={
            step: digest.strip().lower()
            for step, digest in (last.select("step", *digests).iter_rows() if digests else ())
            if digest is not None
        },
    )


def _read(path: Path) -> "pl.DataFrame":
    import polars as pl

    if path.suffix == ".csv":
        # Read digests as text, because one beyond int64 would lose its last digits.
        return pl.read_csv(path, infer_schema_length=None, schema_overrides={"digest": pl.String})
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        raise ValueError(f"its name ends in {path.suffix!r}")
    # Training tools write NaN, which the strict parser rejects although it is often the value of interest.
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line is not a JSON object")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pl.DataFrame({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> "pl.Series":
    import polars as pl

    if name == "digest":
        return pl.Series(name, [None if one is None else str(one) for one in values], pl.String)
    if all(one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in values):
        return pl.Series(name, [None if one is None else float(one) for one in values], pl.Float64)
    return pl.Series(name, [None] * len(values), pl.Null)
