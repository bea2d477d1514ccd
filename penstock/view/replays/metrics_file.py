"""Metrics of a training from a file of another tool: CSV, JSON lines or Parquet with a `step` column."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.errors import InvalidRuntime, MissingDependency

from ...text import clean

if TYPE_CHECKING:
    import polars as pl

MOST_COLUMNS = 100
"""Columns of numbers of a file."""
_ACCEPTED = "accepted: .csv, .jsonl, .ndjson or .parquet with a column `step` of whole numbers from 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFile:
    """Numbers by step, and digests."""

    name: str
    """Name of the file."""
    frame: "pl.DataFrame" = field(repr=False)
    """A row per step, ascending: step (Int64), and a Float64 column per metric; null where a step has none."""
    digests: Mapping[int, str] = field(repr=False)
    """Step -> digest as text; empty without such a column."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(name for name in self.frame.columns if name != "step")

    def beside(self, notes: Collection[str]) -> "MetricsFile":
        """Return the file with its name added to metrics that a trail has as well."""
        same = {name: f"{name} ({self.name})" for name in self.notes if name in notes}
        return replace(self, frame=self.frame.rename(same))

    def at(self, step: int) -> dict[str, float]:
        """Return the metrics of a step."""
        place = self.frame["step"].search_sorted(step)
        if place == len(self.frame) or self.frame["step"][place] != step:
            return {}
        row = self.frame.row(place, named=True)
        return {name: float(value) for name, value in row.items() if name != "step" and value is not None}

    def has_digest(self, step: int, digest: int) -> bool:
        """Return whether the file has this digest of a step, in decimal, with or without a sign, or in hex."""
        forms = (f"{digest}", f"{digest - 2**64}", f"{digest:016x}", f"0x{digest:016x}", f"{digest:#x}")
        return self.digests.get(step) in forms


def read_metrics(path: Path) -> MetricsFile:
    """Read a file. Of a step's several rows the last value of each column counts; columns of text are left out.

    Raises: InvalidRuntime for a file that cannot be read as one; MissingDependency without polars.
    """
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependency(
            "--metrics is read with polars: pip install 'penstock-data[tables]'"
        ) from error
    try:
        found = _read(path)
    except (OSError, ValueError, RecursionError, pl.exceptions.PolarsError) as error:
        raise InvalidRuntime(f"--metrics {path} cannot be read: {error}; {_ACCEPTED}") from error
    if "step" not in found.columns or not found["step"].dtype.is_numeric():
        raise InvalidRuntime(f"--metrics {path} has the columns {found.columns[:20]}; {_ACCEPTED}")
    found = found.filter(found["step"].is_not_null())
    steps = found["step"].cast(pl.Int64, strict=False)
    if not len(steps) or steps.null_count() or not (steps == found["step"]).all() or (steps < 0).any():
        raise InvalidRuntime(
            f"--metrics {path} has no steps, or some that are no whole numbers from 0; {_ACCEPTED}"
        )
    numbers = [
        name for name in found.columns if name not in ("step", "digest") and found[name].dtype.is_numeric()
    ]
    if len(numbers) > MOST_COLUMNS:
        raise InvalidRuntime(
            f"--metrics {path} has {len(numbers)} columns of numbers; up to {MOST_COLUMNS} are shown: leave some out"
        )
    labels = [clean(name, 80) for name in numbers]
    if len({*labels, "step", "digest"}) < len(labels) + 2:
        raise InvalidRuntime(f"--metrics {path} has two columns of one name: {sorted(labels)[:20]}")
    digests = ["digest"] if "digest" in found.columns else []
    values = found.select(
        steps,
        *(found[name].cast(pl.Float64).alias(label) for name, label in zip(numbers, labels, strict=True)),
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
        # A digest beyond int64 is text, or its last figures are lost.
        return pl.read_csv(path, infer_schema_length=None, schema_overrides={"digest": pl.String})
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        raise ValueError(f"its name ends in {path.suffix!r}")
    # NaN, which Python and training tools write, is no JSON to the strict reader; it is often the value looked for.
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line is no JSON object")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pl.DataFrame({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> "pl.Series":
    """Return a column of numbers, of digests as text, or of nulls where it is of anything else."""
    import polars as pl

    if name == "digest":
        return pl.Series(name, [None if one is None else str(one) for one in values], pl.String)
    if all(one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in values):
        return pl.Series(name, [None if one is None else float(one) for one in values], pl.Float64)
    return pl.Series(name, [None] * len(values), pl.Null)
