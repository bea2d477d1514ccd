"""Plots for Dagster's pages, as Markdown images: PNGs of at most 44 kB, 60 kB as data URIs."""

import base64
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from loader.errors import MissingDependency

if TYPE_CHECKING:
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
_FILL, _INK, _FAINT, _OLD = "#4f43dd", "#23252d", "#d9dbe3", "#c9c6ef"
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
    shown = list(islice(((name, values) for name, values in columns.items() if numbers(values)), MAX_COLUMNS))
    if not shown:
        return ""
    figure, axes = _grid(len(shown), width_in=2.6, height_in=1.95)
    for axis, (name, values) in zip(axes, shown, strict=True):
        _histogram(axis, name, values)
    return _image(figure, "histograms of " + ", ".join(name for name, _ in shown))


def counts(groups: Mapping[str, Mapping[str, int]]) -> str:
    """Draw a bar per name, at most eight, with the groups side by side; "" without any."""
    shown = {title: _largest(named) for title, named in groups.items() if named}
    if not shown:
        return ""
    rows = max(len(named) for named in shown.values())
    figure, axes = _figure(len(shown), 1, width_in=3.1 * len(shown), height_in=0.85 + 0.24 * rows)
    for axis, (title, named) in zip(axes, shown.items(), strict=True):
        _bars(axis, f"samples per {title}", named, rows)
    return _image(figure, "samples per " + ", ".join(shown))


def growth(samples: Mapping[int, int], nbytes: Mapping[str, int]) -> str:
    """Draw samples per version number (the newest 30) and bytes per group; "" if both are empty."""
    newest = dict(sorted(samples.items())[-MAX_VERSIONS:])
    largest = _largest(nbytes)
    if not newest or not largest:
        return ""
    figure, axes = _figure(2, 1, width_in=7.6, height_in=0.95 + 0.24 * max(4, len(largest)))
    samples_axis, bytes_axis = axes
    places, width = _version_axis(samples_axis, list(newest), "samples per version")
    samples_axis.bar(places, list(newest.values()), width=width, color=_FILL)
    samples_axis.set_ylabel("samples")
    _count_axis(samples_axis, max(newest.values()))
    unit, scale = _byte_unit(max(largest.values()))
    scaled = {name: n / scale for name, n in largest.items()}
    _bars(bytes_axis, f"{unit} per group", scaled, len(scaled), digits=0 if scale == 1 else 2)
    return _image(figure, "samples per version, bytes per group")


def lags(seconds: Mapping[int, tuple[float, float]]) -> str:
    """Draw the median and 95th percentile of the lag per version number (the newest 30); "" without any."""
    newest = dict(sorted(seconds.items())[-MAX_VERSIONS:])
    if not newest:
        return ""
    most = max(p95 for _, p95 in newest.values())
    unit, scale = next(
        (u, s) for u, s in (("h", 3600.0), ("min", 60.0), ("s", 1.0)) if most >= 2 * s or s == 1
    )
    figure, (axis,) = _figure(1, 1, width_in=7.6, height_in=2.2)
    places, width = _version_axis(axis, list(newest), "from arrival to version")
    axis.bar(places, [p95 / scale for _, p95 in newest.values()], width=width, color=_FAINT, label="95 %")
    axis.bar(
        places,
        [median / scale for median, _ in newest.values()],
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
    shown = list(islice(((n, pair) for n, pair in columns.items() if pair[0] and pair[1]), MAX_COLUMNS))
    if not shown:
        return ""
    figure, axes = _grid(len(shown), width_in=2.8, height_in=2.1, least_in=3.4)
    for axis, (name, (before, now)) in zip(axes, shown, strict=True):
        _two_sides(axis, name, before, now)
    return _image(figure, "before and after of " + ", ".join(name for name, _ in shown))


def _two_sides(axis: "Axes", name: str, before: Sequence[Any], now: Sequence[Any]) -> None:
    import numpy as np

    sides = [numbers(before), numbers(now)]
    texts = any(isinstance(value, str | bool) for value in (*before[:1], *now[:1]))
    if texts or not all(sides):
        tallies = [Counter(map(str, values)) for values in (before, now)]
        top = [name_of_bar for name_of_bar, _ in (tallies[0] + tallies[1]).most_common(MAX_BARS)]
        places = np.arange(len(top))
        for tally, shift, colour, label in zip(
            tallies, (-0.2, 0.2), (_OLD, _FILL), ("before", "now"), strict=True
        ):
            shares = [tally[name_of_bar] / tally.total() for name_of_bar in top]
            axis.barh(places + shift, shares, height=0.38, color=colour, label=label)
        axis.set_yticks(list(places), [_text(name_of_bar, 14) for name_of_bar in top])
        axis.invert_yaxis()
    else:
        low, high = np.quantile([*sides[0], *sides[1]], (0.002, 0.998))
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        for values, colour, label in zip(sides, (_OLD, _FILL), ("before", "now"), strict=True):
            heights, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)
            axis.stairs(
                heights / len(values), edges, color=colour, fill=label == "before", lw=1.6, label=label
            )
        axis.locator_params(axis="x", nbins=4)
        axis.set_ylabel("share")
    axis.set_title(_text(name, 34))
    axis.legend(frameon=False, fontsize=6.5, prop={"family": _FONT, "size": 6.5})


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
    low, high = min(finite), max(finite)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - 0.5, high + 0.5
    whole = all(value.is_integer() for value in finite)
    if whole and high - low < _BINS:
        edges = np.arange(math.floor(low) - 0.5 + (low % 1 > 0), math.ceil(high) + 0.5 + 0.25)
    else:
        edges = np.linspace(low, high, _BINS + 1)
    heights, edges = np.histogram(finite, bins=edges)
    axis.bar(edges[:-1], heights, width=np.diff(edges), align="edge", color=_FILL, edgecolor="white", lw=0.4)
    missing = len(values) - len(finite)
    axis.set_title(_text(name, 28) + (f"  ({missing} unknown)" if missing else ""))
    axis.set_xlabel(_UNITS.get(name.rpartition("_")[2], ""))
    axis.set_ylabel("samples")
    if all(isinstance(value, bool) for value in values if value is not None):
        axis.set_xlim(-0.6, 1.6)
        axis.set_xticks([0, 1], ["no", "yes"])
    else:
        axis.locator_params(axis="x", nbins=4)
    _count_axis(axis, int(heights.max()))


def _version_axis(axis: "Axes", numbers: Sequence[int], title: str) -> tuple[list[int], float]:
    places, every = list(range(len(numbers))), math.ceil(len(numbers) / 10)
    axis.set_xticks(places[::every], [f"@{number}" for number in numbers][::every])
    axis.set_xlim(-0.7, len(numbers) - 0.3)
    axis.set_title(title)
    return places, min(0.7, 0.14 * len(numbers))


def _count_axis(axis: "Axes", most: int) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_ylim(0, max(1, most) * 1.1)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _bars(axis: "Axes", title: str, named: Mapping[str, float], rows: int, digits: int = 0) -> None:
    places = range(len(named))
    axis.barh(places, list(named.values()), height=0.65, color=_FILL)
    most = max(named.values())
    for place, n in zip(places, named.values(), strict=True):
        axis.text(
            n + 0.03 * (most or 1), place, _short(n, digits), va="center", color=_INK, size=7.5, family=_FONT
        )
    axis.set_yticks(list(places), [_text(name) for name in named])
    axis.set_ylim(rows - 0.4, -0.6)
    axis.set_xlim(0, (most or 1) * 1.3)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.set_title(title)


def _short(n: float, digits: int) -> str:
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if n >= 10 * scale:
            return f"{n / scale:,.1f}{letter}"
    return f"{n:,.{digits}f}"


def _largest(named: Mapping[str, int]) -> dict[str, int]:
    ordered = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) <= MAX_BARS:
        return dict(ordered)
    rest = ordered[MAX_BARS - 1 :]
    return dict(ordered[: MAX_BARS - 1]) | {f"{len(rest)} others": sum(n for _, n in rest)}


def _byte_unit(nbytes: int) -> tuple[str, int]:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return unit, scale
    return "bytes", 1


def _figure(wide: int, tall: int, *, width_in: float, height_in: float) -> "tuple[Figure, list[Axes]]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("plots need matplotlib: pip install 'penstock-data[pipeline]'") from error
    figure = Figure(figsize=(width_in, height_in), dpi=_DPI, layout="constrained", facecolor="white")
    axes = list(figure.subplots(tall, wide, squeeze=False).flat)
    for axis in axes:
        axis.set_facecolor("white")
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_FAINT)
        axis.set_axisbelow(True)
    return figure, axes


def _grid(n: int, *, width_in: float, height_in: float, least_in: float = 0.0) -> "tuple[Figure, list[Axes]]":
    wide = min(3, n)
    tall = math.ceil(n / wide)
    figure, axes = _figure(wide, tall, width_in=max(least_in, width_in * wide), height_in=height_in * tall)
    for axis in axes[n:]:
        axis.set_visible(False)
    return figure, axes[:n]


def _image(figure: "Figure", alt: str) -> str:
    png = _png(figure)
    # Alt text is part of the Markdown: keep only characters that cannot end it.
    alt_text = "".join(c for c in alt if c.isalnum() or c in " ,_-.")
    return f"![{alt_text}](data:image/png;base64,{base64.b64encode(png).decode()})"


def _png(figure: "Figure") -> bytes:
    # A palette takes a third of the bytes of full colour, and the result is deterministic.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    for axis in figure.axes:
        axis.title.set(fontsize=8.5, color=_INK, fontfamily=_FONT)
        axis.tick_params(labelsize=7, labelcolor=_INK, labelfontfamily=_FONT, length=2, color=_FAINT)
        for label in (axis.xaxis.label, axis.yaxis.label):
            label.set(fontsize=7, color=_INK, fontfamily=_FONT)
        for offset in (axis.xaxis.get_offset_text(), axis.yaxis.get_offset_text()):
            offset.set(fontsize=7, color=_INK, fontfamily=_FONT)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba())).convert("RGB")
    buffer = io.BytesIO()
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return buffer.getvalue()


@lru_cache(maxsize=1)
def _drawable() -> frozenset[int]:
    # Any other character would be drawn as a box, with a warning.
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(_FONT)).get_charmap())


def _text(name: str, longest: int = 22) -> str:
    name = " ".join(str(name).split()) or "(empty)"
    if len(name) > longest:
        name = name[: longest - 1] + "…"
    return "".join(c if ord(c) in _drawable() else "?" for c in name).replace("$", r"\$")
