"""Compare the metrics (notes) of two runs step by step."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .read_trail import RunTrail
from .step_rows import NOTE

if TYPE_CHECKING:
    import polars as pl

_KEY = ("step", "world_size", "rank")
MOST_NOTES = 20
"""Most differences listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteDifference:
    """A metric that differs."""

    step: int
    """Global step."""
    rank: int
    """Data-parallel rank."""
    note: str
    """Metric name."""
    values: tuple[str, str]
    """Both runs' numbers as text: "nan" and "inf" too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNotes:
    """Metrics of two runs."""

    compared: int
    """Metrics that both noted for a step."""
    n_differing: int
    """Metrics that differ."""
    differing: tuple[NoteDifference, ...]
    """First 20, by step."""
    not_finite: int
    """First step at which both noted no finite number, or -1."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def compare_notes(
    first: RunTrail,
    second: RunTrail,
) -> ComparedNotes:
    """Compare metrics at equal step, rank and world size; the last repeat counts."""
    names = sorted(set(first.notes) & set(second.notes))
    columns = [f"{NOTE}{name}" for name in names]
    rows = _last(first, columns)
    others = _last(second, columns)
    both = rows.join(others, on=_KEY, suffix="_two")
    both = both.sort(*_KEY)
    differing = list[NoteDifference]()
    compared = 0
    not_finite = list[int]()
    for row in both.iter_rows(named=True):
        for name in names:
            column = f"{NOTE}{name}"
            values = (row[column], row[f"{column}_two"])
            if None in values:
                continue
            compared += 1
            if not any(map(math.isfinite, values)):
                not_finite.append(row["step"])
            elif values[0] != values[1]:
                difference = NoteDifference(
                    step=row["step"],
                    rank=row["rank"],
                    note=name,
                    values=(repr(values[0]), repr(values[1])),
                )
                differing.append(difference)
    return ComparedNotes(
        compared=compared,
        n_differing=len(differing),
        differing=tuple(differing[:MOST_NOTES]),
        not_finite=not_finite[0] if not_finite else -1,
    )


def _last(trail: RunTrail, columns: list[str]) -> "pl.DataFrame":
    rows = trail.steps.sort("at_us").select(*_KEY, *columns)
    return rows.unique(_KEY, keep="last", maintain_order=True)
