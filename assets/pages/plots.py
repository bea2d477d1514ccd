"""Plots for Dagster's pages, as Markdown images: PNGs of at most 44 kB, 60 kB as data URIs."""

import base64
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from loader.errors import MissingDependency
from penstock.units import byte_unit, short_number, time_unit

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLUMNS = 6
"""Most histograms in an image."""
MAX_BARS = 8
"""Most bars; the last bar sums the rest."""
MAX_VERSIONS = 30
MAX_PNG_BYTES = 44_000

_DPI = 100
_FONT = "DejaVu Sans"  # comes with matplotlib, so every machine draws the same
_BINS = 20
_COLOURS = 32
_FILL = "#2f7fd6"  # `--found`, `--all`, `--text` and `--line` of tokens.css, in light
_INK = "#161a21"
_FAINT = "#e1e4ea"
_OLD = "#cfd6e0"
_UNITS = {
    "ratio": "0 to 1",
    "lufs": "LUFS",
    "dbtp": "dBTP",
    "db": "dB",
    "s": "s",
    "px": "px",
    "hz": "Hz",
    "bytes": "bytes",
    "var": "variance",
}


def histograms(columns: Mapping[str, Sequence[Any]]) -> str:
    """Draw a histogram per numeric or boolean column, at most six; "" without any.

    Titles count values that are not finite. The end of a column's name gives its unit.
    """
    names = [name for name, values in columns.items() if numbers(values)]
    names = names[:MAX_COLUMNS]
    if not names:
        return ""
    figure, axes = _grid(len(names), width_in=2.6, height_in=1.95)
    for axis, name in zip(axes, names, strict=True):
        _histogram(axis, name, columns[name])
    listed = ", ".join(names)
    return _image(figure, f"histograms of {listed}")


def counts(groups: Mapping[str, Mapping[str, int]]) -> str:
    """Draw a bar per name, at most eight, with the groups side by side; "" without any."""
    shown = {title: _largest(named) for title, named in groups.items() if named}
    if not shown:
        return ""
    n_groups = len(shown)
    n_bars = max(len(named) for named in shown.values())
    figure, axes = _figure(n_groups, 1, width_in=3.1 * n_groups, height_in=0.85 + 0.24 * n_bars)
    for axis, (title, named) in zip(axes, shown.items(), strict=True):
        _bars(axis, f"samples per {title}", named, n_bars)
    titles = ", ".join(shown)
    return _image(figure, f"samples per {titles}")


def growth(samples: Mapping[int, int], nbytes: Mapping[str, int]) -> str:
    """Draw samples per version number (the newest 30) and bytes per group; "" if both are empty."""
    newest = dict(sorted(samples.items())[-MAX_VERSIONS:])
    largest = _largest(nbytes)
    if not newest or not largest:
        return ""
    n_bars = max(4, len(largest))
    figure, (samples_axis, bytes_axis) = _figure(2, 1, width_in=7.6, height_in=0.95 + 0.24 * n_bars)
    n_samples = list(newest.values())
    places, width = _version_axis(samples_axis, list(newest), "samples per version")
    samples_axis.bar(places, n_samples, width=width, color=_FILL)
    samples_axis.set_ylabel("samples")
    _count_axis(samples_axis, max(n_samples))

    unit, scale = byte_unit(max(largest.values()))
    scaled = {name: n / scale for name, n in largest.items()}
    digits = 2
    if scale == 1:
        digits = 0
    _bars(bytes_axis, f"{unit} per group", scaled, len(scaled), digits)
    return _image(figure, "samples per version, bytes per group")


def lags(seconds: Mapping[int, tuple[float, float]]) -> str:
    """Draw the median and 95th percentile of the lag per version number (the newest 30); "" without any."""
    newest = dict(sorted(seconds.items())[-MAX_VERSIONS:])
    if not newest:
        return ""
    unit, scale = time_unit(max(p95 for _, p95 in newest.values()))
    medians = [median / scale for median, _ in newest.values()]
    p95s = [p95 / scale for _, p95 in newest.values()]
    figure, (axis,) = _figure(1, 1, width_in=7.6, height_in=2.2)
    places, width = _version_axis(axis, list(newest), "from arrival to version")
    axis.bar(
        places,
        p95s,
        width=width,
        color=_FAINT,
        label="95 %",
    )
    axis.bar(
        places,
        medians,
        # Narrower, so that the 95 % bar stays visible behind it.
        width=width / 2,
        color=_FILL,
        label="median",
    )
    axis.set_ylabel(unit)
    axis.legend(frameon=False, fontsize=7)
    return _image(figure, "time from arrival to version")


def before_and_after(columns: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]) -> str:
    """Draw each column before and now, as shares, at most six; "" without any.

    Numbers become histograms over common bins; others bars of the eight most frequent values.
    """
    names = [name for name, (before, now) in columns.items() if before and now]
    names = names[:MAX_COLUMNS]
    if not names:
        return ""
    # One column is drawn wider than each of several, which share the page's width.
    figure, axes = _grid(len(names), width_in=2.8, height_in=2.1, least_width_in=3.4)
    for axis, name in zip(axes, names, strict=True):
        before, now = columns[name]
        _before_and_now(axis, name, before, now)
    listed = ", ".join(names)
    return _image(figure, f"before and after of {listed}")


def _before_and_now(
    axis: "Axes",
    name: str,
    before: Sequence[Any],
    now: Sequence[Any],
) -> None:
    is_text = any(isinstance(values[0], str | bool) for values in (before, now))
    numbers_before = numbers(before)
    numbers_now = numbers(now)
    if is_text or not numbers_before or not numbers_now:
        _draw_frequent_values(axis, before, now)
    else:
        _draw_two_histograms(axis, numbers_before, numbers_now)
    axis.set_title(_text(name, 34))
    axis.legend(frameon=False, fontsize=6.5, prop={"family": _FONT, "size": 6.5})


def _draw_frequent_values(axis: "Axes", before: Sequence[Any], now: Sequence[Any]) -> None:
    """Draw two bars for each of the `MAX_BARS` most frequent values: its share before, and now."""
    import numpy as np

    tally_before = Counter(str(value) for value in before)
    tally_now = Counter(str(value) for value in now)
    both = tally_before + tally_now
    values = [value for value, _ in both.most_common(MAX_BARS)]
    places = np.arange(len(values))
    for tally, shift, colour, label in (  # the two bars of a value have 0.8 of its row
        (tally_before, -0.2, _OLD, "before"),
        (tally_now, 0.2, _FILL, "now"),
    ):
        total = tally.total()
        shares = [tally[value] / total for value in values]
        axis.barh(places + shift, shares, height=0.38, color=colour, label=label)
    labels = [_text(value, 14) for value in values]
    axis.set_yticks(list(places), labels)
    axis.invert_yaxis()  # the most frequent value on top


def _draw_two_histograms(axis: "Axes", before: Sequence[float], now: Sequence[float]) -> None:
    import numpy as np

    # Of both together. Few outliers would leave all other values in one bin.
    low, high = np.quantile([*before, *now], (0.002, 0.998))
    if high <= low:
        high = low + 1
    edges = np.linspace(low, high, _BINS + 1)
    for values, colour, label in ((before, _OLD, "before"), (now, _FILL, "now")):
        clipped = np.clip(values, edges[0], edges[-1])
        heights, _ = np.histogram(clipped, bins=edges)
        axis.stairs(
            heights / len(values),
            edges,
            color=colour,
            fill=label == "before",
            lw=1.6,
            label=label,
        )
    axis.locator_params(axis="x", nbins=4)
    axis.set_ylabel("share")


def numbers(values: Sequence[Any]) -> list[float]:
    """Return the finite numbers below 1e150 in size, booleans as 0 and 1."""
    return [
        float(value)
        for value in values
        if isinstance(value, bool | int | float) and -1e150 < value < 1e150  # false for NaN
    ]


def _histogram(axis: "Axes", name: str, values: Sequence[Any]) -> None:
    import numpy as np

    finite = numbers(values)
    heights, edges = np.histogram(finite, bins=_edges(finite))
    axis.bar(
        edges[:-1],
        heights,
        width=np.diff(edges),
        align="edge",
        color=_FILL,
        edgecolor="white",
        lw=0.4,
    )
    title = _text(name, 28)
    n_missing = len(values) - len(finite)
    if n_missing:
        title += f"  ({n_missing} unknown)"
    axis.set_title(title)
    suffix = name.rpartition("_")[2]
    axis.set_xlabel(_UNITS.get(suffix, ""))
    axis.set_ylabel("samples")
    if all(isinstance(value, bool) for value in values if value is not None):
        axis.set_xlim(-0.6, 1.6)
        axis.set_xticks([0, 1], ["no", "yes"])
    else:
        axis.locator_params(axis="x", nbins=4)
    _count_axis(axis, int(heights.max()))


def _edges(finite: Sequence[float]) -> "np.ndarray[Any, Any]":
    """Return the edges of a histogram's bins: a bin per number if all are whole and few."""
    import numpy as np

    low = min(finite)
    high = max(finite)
    largest = max(abs(low), abs(high), 1e-9)
    if high - low <= 1e-9 * largest:  # all equal
        low -= 0.5
        high += 0.5
    are_whole = all(value.is_integer() for value in finite)
    if not are_whole or high - low >= _BINS:
        return np.linspace(low, high, _BINS + 1)
    # A bin's number is in its middle. `low` ends in .5 if all numbers are equal.
    first = math.floor(low) - 0.5 + (low % 1 > 0)
    last = math.ceil(high) + 0.5
    return np.arange(first, last + 0.25)


def _version_axis(
    axis: "Axes",
    numbers: Sequence[int],
    title: str,
) -> tuple[list[int], float]:
    """Label the axis with version numbers; return the places of bars and their width."""
    n = len(numbers)
    places = list(range(n))
    labels = [f"@{number}" for number in numbers]
    # More than ten labels overlap.
    every = math.ceil(n / 10)
    axis.set_xticks(places[::every], labels[::every])
    axis.set_xlim(-0.7, n - 0.3)
    axis.set_title(title)
    return places, min(0.7, 0.14 * n)


def _count_axis(axis: "Axes", most: int) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    top = 1.1 * max(1, most)
    axis.set_ylim(0, top)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _bars(
    axis: "Axes",
    title: str,
    named: Mapping[str, float],
    rows: int,
    digits: int = 0,
) -> None:
    """Draw horizontal bars. rows: bars of the tallest plot beside this one."""
    places = list(range(len(named)))
    lengths = list(named.values())
    axis.barh(places, lengths, height=0.65, color=_FILL)
    longest = max(lengths) or 1
    for place, n in zip(places, lengths, strict=True):
        axis.text(
            n + 0.03 * longest,
            place,
            short_number(n, digits),
            va="center",
            color=_INK,
            size=7.5,
            family=_FONT,
        )
    axis.set_yticks(places, [_text(name) for name in named])
    # From high to low: the first bar is on top, and bars of two plots align.
    axis.set_ylim(rows - 0.4, -0.6)
    axis.set_xlim(0, longest * 1.3)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.set_title(title)


def _largest(named: Mapping[str, int]) -> dict[str, int]:
    ordered = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) <= MAX_BARS:
        return dict(ordered)
    largest = dict(ordered[: MAX_BARS - 1])
    rest = ordered[MAX_BARS - 1 :]
    largest[f"{len(rest)} others"] = sum(n for _, n in rest)
    return largest


def _figure(
    wide: int,
    tall: int,
    *,
    width_in: float,
    height_in: float,
) -> "tuple[Figure, list[Axes]]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("plots need matplotlib: pip install 'penstock-data[pipeline]'") from error
    # Not pyplot: it keeps figures globally, and is not safe in the threads of Dagster.
    figure = Figure(figsize=(width_in, height_in), dpi=_DPI, layout="constrained", facecolor="white")
    axes = list(figure.subplots(tall, wide, squeeze=False).flat)
    for axis in axes:
        axis.set_facecolor("white")
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_FAINT)
        axis.set_axisbelow(True)
    return figure, axes


def _grid(
    n: int,
    *,
    width_in: float,
    height_in: float,
    least_width_in: float = 0.0,
) -> "tuple[Figure, list[Axes]]":
    """Return a figure with `n` plots, at most three in a row.

    width_in, height_in: of each plot. least_width_in: least width of the whole figure.
    """
    wide = min(3, n)
    tall = math.ceil(n / wide)
    figure, axes = _figure(
        wide,
        tall,
        width_in=max(least_width_in, width_in * wide),
        height_in=height_in * tall,
    )
    for axis in axes[n:]:
        axis.set_visible(False)
    return figure, axes[:n]


def _image(figure: "Figure", alt: str) -> str:
    png = _png(figure)
    body = base64.b64encode(png).decode()
    # Alt text is part of the Markdown: keep only characters that cannot end it.
    alt_text = "".join(c for c in alt if c.isalnum() or c in " ,_-.")
    return f"![{alt_text}](data:image/png;base64,{body})"


def _png(figure: "Figure") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    for axis in figure.axes:
        axis.title.set(fontsize=8.5, color=_INK, fontfamily=_FONT)
        axis.tick_params(labelsize=7, labelcolor=_INK, labelfontfamily=_FONT, length=2, color=_FAINT)
        texts = (
            axis.xaxis.label,
            axis.yaxis.label,
            axis.xaxis.get_offset_text(),
            axis.yaxis.get_offset_text(),
        )
        for text in texts:
            text.set(fontsize=7, color=_INK, fontfamily=_FONT)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = bytes(canvas.buffer_rgba())
    picture = Image.frombytes("RGBA", canvas.get_width_height(), pixels).convert("RGB")
    # A palette takes a third of the bytes of full colour, and the result is deterministic.
    few_colours = picture.quantize(_COLOURS, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    few_colours.save(buffer, "png", optimize=True)
    return buffer.getvalue()


@lru_cache(maxsize=1)
def _drawable() -> frozenset[int]:
    # Any other character would be drawn as a box, with a warning.
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont(_FONT))
    return frozenset(font.get_charmap())


def _text(name: str, longest: int = 22) -> str:
    text = " ".join(str(name).split()) or "(empty)"
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    drawable = _drawable()
    characters = list[str]()
    for character in text:
        if ord(character) not in drawable:
            character = "?"
        characters.append(character)
    # matplotlib would read text between two dollar signs as a formula.
    return "".join(characters).replace("$", r"\$")
