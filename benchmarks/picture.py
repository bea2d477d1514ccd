"""The speeds of docs/benchmarks.md as bars, an SVG: a panel per row, a bar per contestant, the fastest full width."""

import statistics
from collections.abc import Mapping
from xml.sax.saxutils import escape

from .page import Turns, is_of, rate
from .rows import LIMIT, OURS

WIDTH_PX, NAME_PX, BAR_PX, LINE_PX, TITLE_PX = 900, 300, 460, 20, 40
OUR_COLOUR, THEIR_COLOUR = "#d9730d", "#7a8ca3"
STYLE = "text{font:13px sans-serif;fill:#24292f}.title{font-weight:bold}.n{text-anchor:end}"


def picture(panels: Mapping[str, Turns]) -> str:
    """Title -> what was measured; the limit is left out, since its bar would dwarf the others."""
    marks: list[str] = []
    y = 0
    for title, turns in panels.items():
        speeds = {
            name: statistics.median(map(rate, found))
            for name, found in turns.items()
            if not is_of(name, LIMIT)
        }
        if not speeds:
            continue
        y += TITLE_PX
        marks.append(f'<text class="title" x="8" y="{y - 10}">{escape(title)}, samples/s</text>')
        for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
            colour = OUR_COLOUR if is_of(name, OURS) else THEIR_COLOUR
            long = max(1, round(BAR_PX * speed / max(speeds.values())))
            marks.append(f'<text class="n" x="{NAME_PX}" y="{y + 14}">{escape(name)}</text>')
            marks.append(f'<rect x="{NAME_PX + 8}" y="{y + 3}" width="{long}" height="14" fill="{colour}"/>')
            marks.append(f'<text x="{NAME_PX + 14 + long}" y="{y + 14}">{speed:,.0f}</text>')
            y += LINE_PX
    size = f'width="{WIDTH_PX}" height="{y + 12}" viewBox="0 0 {WIDTH_PX} {y + 12}"'
    back = '<rect width="100%" height="100%" fill="#ffffff"/>'
    body = "\n".join(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n{back}\n{body}\n</svg>\n'
    )
