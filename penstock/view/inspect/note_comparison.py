"""Compare the metrics (notes) of two runs, step by step: identical bits, different bits, or not finite in either."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.run.trail.read_trail import RunTrail
from loader.run.trail.step_rows import NOTE

from ..json_record import JsonRecord

if TYPE_CHECKING:
    import polars as pl

MOST_NOTES = 20
"""Most differences listed."""
_KEY = ("step", "world_size", "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteDifference(JsonRecord):
    """A metric of a step that differs between two runs."""

    step: int
    """Number of the step."""
    rank: int
    """Data-parallel rank that noted it."""
    note: str
    """Name of the metric."""
    values: tuple[str, str]
    """The first and the second run's number, as text: "nan" and "inf" too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNotes(JsonRecord):
    """Metrics of two runs side by side."""

    compared: int
    """Number of metrics that both runs noted for a step."""
    n_differing: int
    """Number of them that differ."""
    differing: tuple[NoteDifference, ...]
    """The first 20 of these, by step."""
    not_finite: int
    """First step at which both runs noted no finite number, or -1."""


def compared_notes(first: RunTrail, second: RunTrail) -> ComparedNotes:
    """Compare the metrics that both runs noted, at equal step, rank and world size; the last repeat counts."""
    names = sorted(set(first.notes) & set(second.notes))
    columns = [f"{NOTE}{name}" for name in names]
    both = _last(first, columns).join(_last(second, columns), on=_KEY, suffix="_two").sort(*_KEY)
    differing, compared, not_finite = list[NoteDifference](), 0, list[int]()
    for row in both.iter_rows(named=True):
        for name in names:
            values = row[f"{NOTE}{name}"], row[f"{NOTE}{name}_two"]
            if None in values:
                continue
            compared += 1
            if not any(map(math.isfinite, values)):
                not_finite.append(row["step"])
            elif values[0] != values[1]:
                texts = repr(values[0]), repr(values[1])
                differing.append(NoteDifference(step=row["step"], rank=row["rank"], note=name, values=texts))
    return ComparedNotes(
        compared=compared,
        n_differing=len(differing),
        differing=tuple(differing[:MOST_NOTES]),
        not_finite=not_finite[0] if not_finite else -1,
    )


def _last(trail: RunTrail, columns: list[str]) -> "pl.DataFrame":
    rows = trail.steps.sort("at_us").select(*_KEY, *columns)
    return rows.unique(_KEY, keep="last", maintain_order=True)
