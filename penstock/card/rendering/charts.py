"""Distributions as HTML: bars that are rows of a table, and small histograms as SVG. Every text is escaped."""

from ...units import number, share
from ..counting.tally import Numbers
from .escape import html_text
from .sections import Bars

SPARK_PX = (150, 30)


def bar_table(one: Bars) -> str:
    """A table that reads aloud as one; the bars are decoration."""
    most = max([n for _, n in one.rows] + [one.unknown, 1])
    rows = [_bar_row(name, n, one.total, most) for name, n in one.rows]
    if one.unknown:
        rows.append(_bar_row("unknown", one.unknown, one.total, most, " class=missing"))
    head = "<thead hidden><tr><th>value</th><th>bar</th><th>samples</th><th>share</th></tr></thead>"
    return f"<table class=bars>{head}<tbody>{''.join(rows)}</tbody></table>"


def _bar_row(name: str, n: int, total: int, most: int, mark: str = "") -> str:
    width = f"{100 * n / most:.1f}" if n else "0"
    bar = f'<div class=bar aria-hidden=true><i style="--w:{width}"></i></div>' if n else ""
    return (
        f'<tr{mark}><th scope=row><span title="{html_text(name, 200)}">{html_text(name, 60)}</span></th>'
        f"<td>{bar}</td>"
        f"<td class=n>{n:,}</td><td class='n s'>{share(n, total)}</td></tr>"
    )


def spark(name: str, told: Numbers) -> str:
    """A histogram of one column as a small picture with its numbers in words."""
    width, height = SPARK_PX
    most, n = max(told.counts), len(told.counts)
    step = width / n
    said = f"{name}: {number(told.minimum)} to {number(told.maximum)}, median {number(told.p50)}"
    boxes = []
    for place, count in enumerate(told.counts):
        if count:
            tall = max(1.0, (height - 2) * count / most)
            x, y = place * step, height - 1 - tall
            boxes.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(step - 0.6, 0.8):.1f}" height="{tall:.1f}"/>'
            )
    return (
        f'<svg class=spark viewBox="0 0 {width} {height}" role=img aria-label="{html_text(said)}">'
        f'<line x1="0" x2="{width}" y1="{height - 0.5}" y2="{height - 0.5}"/>{"".join(boxes)}</svg>'
    )
