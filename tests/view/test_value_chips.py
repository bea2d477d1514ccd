"""A version's page: the number on each value chip is the number of samples that its click finds."""

import datetime
import html
import re
from urllib.parse import urlencode, urljoin

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
    """Yield (address, count) of each value that is not chosen: a click on a chosen one takes it out of the filter."""
    for address, count in re.findall(
        r'<li><a href="([?][^"]*)" role="checkbox" aria-checked="false">.*?<b>(\d+)</b>', page
    ):
        yield html.unescape(address), int(count)


@pytest.fixture
def site(root):
    served = Served(root, recipe=None)
    yield served
    served.close()


def test_chip_of_an_empty_text_shows_quotes(site):
    texts = re.findall(r'<li><a href="[?].*?<span>(.*?)</span>', site.get("/v/d/1").text)
    shown = [html.unescape(text) for text in texts]
    assert shown.count("''") == 1
    assert shown.count("' '") == 1
    assert all(text.strip() for text in shown)


@pytest.mark.parametrize("filtered", ["", "?where=width+%3E+20", "?t=%22on%22+%3D+FALSE&t=%22width%22+%3E+3"])
@pytest.mark.parametrize("number", [1, 2])
def test_chip_counts_what_its_click_finds(site, number, filtered):
    path = f"/v/d/{number}{filtered}"
    wrong = []
    n_chips = 0
    for address, count in chips(site.get(path).text):
        answer = site.get(urljoin(path, address))
        assert answer.status_code == 200, address
        n_found = int(re.search(r'class="count">([\d,]+) found', answer.text)[1].replace(",", ""))
        n_chips += 1
        if n_found != count:
            wrong.append((address, count, n_found))
    assert wrong == []
    assert n_chips > 12  # values of note, on, order and split, and of day


def test_form_of_an_open_facet_finds_its_range(site):
    """Without a script: it keeps the rest of the filter, and replaces the column's own term by the range."""
    page = site.get("/v/d/1?facet=width&where=width+%3E+3&t=%22on%22+%3D+TRUE&t=%22width%22+%3E%3D+20").text
    form = re.search(r'<form action="[^"]*/v/d/1">(.*?)</form>', page, re.DOTALL)[1]
    fields = {
        name: html.unescape(value) for name, value in re.findall(r'name="(\w+)".*?value="([^"]*)"', form)
    }
    assert fields["low"] == "20"
    answer = site.get("/v/d/1?" + urlencode({**fields, "low": 10, "high": 30})).text
    inside = [number for number in range(10, 31) if number % 3 == 0 and number % 7]
    assert f">{len(inside)} found<" in answer
    assert len(re.findall('aria-label="Remove ', answer)) == 2


@pytest.mark.parametrize("low", ["", "ten", "1) OR (TRUE", "share"])
def test_range_of_no_number_keeps_the_page_and_says_so(site, low):
    answer = site.get("/v/d/1?" + urlencode({"range": "width", "low": low, "high": 3}))
    assert answer.status_code == 200
    assert ">60 found<" in answer.text
    assert 'role="alert"' in answer.text


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
    assert [(one.value, one.n) for one in facets["on"].values] == [(True, 0), (False, 20), (None, 20)]
    assert facets["on"].nulls == 20
