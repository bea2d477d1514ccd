"""Draw the counts of decisions over steps, in a view box of 1,000 by 100 units."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..json_record import JsonRecord
from .decisions import DecisionRow

WIDTH = 1000.0
HEIGHT = 100.0


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class DecisionDot(JsonRecord):
    """A decision in the drawing."""

    step: int
    x: float
    width: float
    """Width of its area, which a pointer hits."""
    text: str


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class DecisionLines(JsonRecord):
    most: int
    """Largest count."""
    first: int
    """First step."""
    last: int
    trained: str
    """SVG path."""
    stale: str
    small: str
    dots: tuple[DecisionDot, ...]
    damaged: tuple[DecisionDot, ...]
    """Decisions whose records are damaged."""


def decision_lines(rows: Sequence[DecisionRow]) -> DecisionLines | None:
    """Return the lines of decisions, which are in the order of steps; None without one."""
    if not rows:
        return None
    first = rows[0].step
    last = rows[-1].step
    counted = [row for row in rows if not row.error]
    most = 0
    for row in counted:
        most = max(
            most,
            row.trained,
            row.stale,
            row.small,
        )
    dots = []
    for place, row in enumerate(rows):
        dots.append(
            _dot(
                rows,
                place,
                row,
            )
        )
    x_of = {dot.step: dot.x + dot.width / 2 for dot in dots}
    x = [x_of[row.step] for row in counted]
    return DecisionLines(
        most=most,
        first=first,
        last=last,
        trained=_path(
            x,
            [row.trained for row in counted],
            most,
        ),
        stale=_path(
            x,
            [row.stale for row in counted],
            most,
        ),
        small=_path(
            x,
            [row.small for row in counted],
            most,
        ),
        dots=tuple(dots),
        damaged=tuple(
            dot
            for dot, row in zip(
                dots,
                rows,
                strict=True,
            )
            if row.error
        ),
    )


def _dot(
    rows: Sequence[DecisionRow],
    place: int,
    row: DecisionRow,
) -> DecisionDot:
    width = WIDTH / len(rows)
    text = f"step {row.step:,}: {row.trained:,} trained, {row.stale:,} stale, {row.small:,} in small groups"
    if row.error:
        text = f"step {row.step:,}: {row.error}"
    return DecisionDot(
        step=row.step,
        x=round(
            width * place,
            2,
        ),
        width=round(
            width,
            2,
        ),
        text=text,
    )


def _path(
    x: Sequence[float],
    values: Sequence[int],
    most: int,
) -> str:
    words = []
    for place, value in zip(
        x,
        values,
        strict=True,
    ):
        share = 0.0
        if most:
            share = value / most
        y = HEIGHT - 3 - share * (HEIGHT - 6)
        words.append(f"{place:.1f} {y:.1f}")
    if not words:
        return ""
    # A line of no length with round ends shows a run's only decision as a dot.
    return f"M{words[0]}h0 " + " ".join(f"L{word}" for word in words[1:])
