"""A version's page: the number on each value chip is the number of samples that its click finds."""

import datetime
import html
import re
from urllib.parse import urljoin

import numpy as np
import pytest

import loader
from penstock.view.inspect.version_record import version_record
from tests.view.test_web import Served

TEXTS = [
    "it's",
    '"x"',
    "a\\b",
    "100%",
    "",
    " ",
    "two\nlines",
    "é",
    "a' OR 'a' = 'a",
    "TRUE",
    "{{ 7 * 7 }}",
    None,
]


@pytest.fixture
def root(tmp_path):
    """A root whose version d@1 has columns of all types, and d@2 excludes a third of it."""
    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=16) as writer:
            for number in range(60):
                columns = {
                    "note": TEXTS[number % len(TEXTS)],
                    "on": [True, False, None][number % 3],
                    "width": None if number % 7 == 0 else number,
                    "share": float("nan") if number == 1 else number / 60,
                    "day": datetime.datetime(2026, 1, 1 + number % 3, tzinfo=datetime.UTC),
                    "order": "ascending" if number < 30 else "descending",
                }
                columns = {name: value for name, value in columns.items() if value is not None}
                source = {"split": ["train", "val"][number % 5 == 0], "raw_uri": f"s3://raw/{number}"}
                writer.add(f"k{number:02}", {"cls": number}, metadata=columns, source=source)
        root.exclude("d@1", [f"k{number:02}" for number in range(0, 60, 3)], reason="blurred")
        yield root


def chips(page):
    """Yield (address, count) of each value chip."""
    for address, count in re.findall(r'<a class="chip" href="([^"]*)">[^<]*<b>(\d+)</b>', page):
        yield html.unescape(address), int(count)


@pytest.fixture
def served(root):
    served = Served(root, recipe=None)
    yield served
    served.close()


def test_chip_of_an_empty_text_shows_quotes(served):
    texts = re.findall(r'<a class="chip" href="[^"]*">([^<]*)<b>', served.get("/v/d/1").text)
    shown = [html.unescape(text) for text in texts]
    assert shown.count("'' ") == 1
    assert shown.count("' ' ") == 1
    assert all(text.strip() for text in shown)


@pytest.mark.parametrize(("number", "n_values"), [(1, 11 + 2 + 2 + 2), (2, 7 + 1 + 2 + 2)])
def test_chip_counts_what_its_click_finds(served, number, n_values):
    path = f"/v/d/{number}"
    wrong = []
    n_chips = 0
    for address, count in chips(served.get(path).text):
        answer = served.get(urljoin(path, address))
        assert answer.status_code == 200, address
        n_found = int(re.search(r"<span>([\d,]+) found", answer.text)[1].replace(",", ""))
        n_chips += 1
        if n_found != count:
            wrong.append((address, count, n_found))
    assert wrong == []
    assert n_chips == n_values  # of note, on, order and split


def test_facets_are_those_of_live_samples(root):
    facets = {one.column: one for one in version_record(root.open("d@2")).facets}
    live = [number for number in range(60) if number % 3]
    widths = [number for number in live if number % 7]
    assert (facets["width"].n, facets["width"].nulls) == (len(widths), len(live) - len(widths))
    assert (facets["width"].low, facets["width"].high) == (min(widths), max(widths))
    assert facets["width"].mean == pytest.approx(np.mean(widths))
    shares = [number / 60 for number in live if number != 1]
    assert (facets["share"].low, facets["share"].high) == (min(shares), max(shares))
    assert facets["share"].mean == pytest.approx(np.mean(shares))
    assert facets["on"].values == (("False", 20),)
    assert facets["on"].nulls == 20
