import base64
import gc
import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from assets.pages import plots
from tests.servers.processes import python

REPOSITORY = Path(__file__).resolve().parents[3]


def decode_picture(markdown: str) -> Image.Image:
    """The picture in a Markdown image, decoded to its last byte."""
    assert markdown.startswith("![")
    assert markdown.endswith(")")
    assert "\n" not in markdown
    head, _, body = markdown[:-1].partition("](data:image/png;base64,")
    assert not set(head[2:]) & set("[]()<>\\")
    png = base64.b64decode(body, validate=True)
    assert len(png) <= plots.MAX_PNG_BYTES
    assert len(markdown) <= 60_000
    picture = Image.open(io.BytesIO(png))
    picture.load()
    assert picture.format == "PNG"
    return picture


def columns(n: int = 20_000) -> dict[str, list[float]]:
    return {f"score_{i}_ratio": [(j * 7919 % (i + 997)) / (i + 997) for j in range(n)] for i in range(9)}


LARGEST: dict[str, Callable[[], str]] = {
    "histograms": lambda: plots.histograms(columns()),
    "counts": lambda: plots.counts(
        {
            title: {f"{title} {i}: {'Wm' * 40}": 10**12 + i for i in range(50)}
            for title in ("kind", "split", "licence")
        }
    ),
    "growth": lambda: plots.growth(
        {i: i * 10**9 for i in range(1, 400)}, {f"{'Wm' * 40} {i}": 2**50 + i for i in range(50)}
    ),
}


@pytest.mark.parametrize("name", LARGEST)
def test_largest_picture_is_small_and_always_the_same(name: str) -> None:
    first = LARGEST[name]()
    picture = decode_picture(first)
    assert 300 < picture.width <= 1000
    assert 100 < picture.height <= 500
    assert LARGEST[name]() == first


def test_at_most_six_columns_have_a_histogram() -> None:
    many, six = columns(50), dict(list(columns(50).items())[: plots.MAX_COLUMNS])
    assert plots.histograms(many) == plots.histograms(six)


@pytest.mark.parametrize(
    "values",
    [
        [2.5],
        [0],
        [True, False, None],
        [None, math.nan, math.inf, -math.inf, 1.5],
        [1e150 / 2, -1e150 / 2],
        [1e-320, 2e-320, 0.0],
        [10**400, 3],
        [1.0, 1.0 + 2**-52],
        list(range(100_000)),
        [-3, 16],
        ["text", 4],
    ],
    ids=lambda values: str(values[:3])[:30],
)
def test_histogram_of_odd_values(values: list[object]) -> None:
    decode_picture(plots.histograms({"score_db": values}))


@pytest.mark.parametrize("values", [[], [None], [math.nan, math.inf], ["text"]], ids=str)
def test_nothing_to_show_is_no_picture(values: list[object]) -> None:
    assert plots.histograms({"score_db": values}) == ""
    assert plots.histograms({}) == ""


def test_counts_and_growth_of_nothing() -> None:
    assert plots.counts({}) == plots.counts({"kind": {}}) == ""
    assert plots.growth({}, {"image": 5}) == plots.growth({1: 5}, {}) == ""
    decode_picture(plots.counts({"kind": {"image": 0}, "split": {}}))
    decode_picture(plots.growth({1: 0}, {"image": 0}))


def test_names_may_be_anything() -> None:
    names = ["$x^$", "\\frac{", "$$", "写真", "a\nb", "", "<b>", "](x)", "\x00", "🎧", "%s {0}"]
    decode_picture(plots.counts({"licence": dict.fromkeys(names, 3), "$\\bad{ ](x)": {"a": 1}}))
    decode_picture(plots.histograms({name: [1, 2] for name in names[:6]}))


def test_equal_counts_are_in_the_order_of_their_names() -> None:
    assert plots.counts({"kind": {"a": 1, "b": 1}}) == plots.counts({"kind": {"b": 1, "a": 1}})


def test_every_figure_is_closed() -> None:
    from matplotlib.figure import Figure

    for make in LARGEST.values():
        make()
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Figure]


def test_matplotlib_is_imported_only_for_a_picture() -> None:
    code = (
        "import sys; from assets.pages import plots; plots.histograms({'a': [None]});"
        "assert 'matplotlib' not in sys.modules;"
        "plots.histograms({'a': [1]}); assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = python("-c", code, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
