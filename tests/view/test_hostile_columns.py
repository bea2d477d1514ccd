"""Columns of hostile texts and odd numbers: each facet's link finds its count, and every page shows text as text."""

import html
import re
from urllib.parse import unquote, urlencode

import numpy as np
import polars as pl
import pytest

import loader
from penstock.view.facets.column_codes import MOST_VALUES, code_column
from tests.view.test_web import Served

TEXTS = [
    "it's",
    'say "hi"',
    "two\nlines",
    "two  blanks ",
    "turned\u202eback",
    "line\u2028end",
    "\x1b[31mred\x7f",
    "<script>alert(1)</script>",
    "' OR 1 = 1 --",
    "a\\' OR TRUE",
    "a,b&t=size",
    "%41+%00",
    "😀é",
    "",
    "NULL",
    "x" * 280,
]
LONG = "<i>\u202e" + "long \n" * 200_000
NUMBERS = [float("nan"), float("inf"), float("-inf"), -0.0, 1e308, 5e-324, 2.5]


def columns(number):
    row = {
        "label": TEXTS[number % len(TEXTS)],
        "long": LONG + str(number % 2),
        "odd": NUMBERS[number % len(NUMBERS)],
        "always": "one value",
        "huge": 2**63 - 1 - number,
        "select": number % 3 == 0,
    }
    if number % 4 == 0:
        row["sparse"] = TEXTS[number % 3]
    return row


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "root"
    with loader.Root(folder) as root:
        with root.write("d") as writer:
            for number in range(64):
                writer.add(f"k{number:02}", {"caption.txt": LONG[:1000]}, metadata=columns(number))
        root.exclude("d@1", ["k00", "k01"], reason="bad")
        root.save_slice("d@2", "odd", "odd > 1", by="ada", why=LONG)
    served = Served(folder, recipe=None)
    yield served
    served.close()


PATHS = (
    "/",
    "/slices",
    "/slices/d/odd",
    "/v/d/2",
    "/v/d/2?as=table&cols=label,long,odd,huge,select",
    "/v/d/2?sort=-odd&cols=long",
    "/v/d/2?facet=label&in=odd",
    "/v/d/2/columns",
    "/v/d/2/lineage",
    "/v/d/2/s/3",
    "/v/d/1/diff/2",
)


@pytest.mark.parametrize("path", PATHS)
def test_page_shows_hostile_text_as_text(site, path):
    page = site.get(path)
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<i>\u202e" not in page.text
    assert not {"\u202e", "\u2028", "\x1b", "\x7f", "\x00"} & set(page.text)
    assert len(page.content) < 90_000


def test_links_of_facets_find_their_counts(site):
    """Of the page, in HTML: its address, its forms and the rule that it would save hold the term as it is."""
    page = site.get("/v/d/2?facet=label").text
    links = re.findall(r'<li><a href="([?][^"]*)".*?<b>([0-9,]+)</b>', page)
    assert len(links) > len(TEXTS)
    for link, count in links:
        query = html.unescape(link)
        record = site.get(f"/v/d/2.json{query}").json()
        assert record["n_found"] == int(count)
        chosen = site.get(f"/v/d/2{query}").text
        fields = re.findall(r'form="filter-form" name="(t|t-quoted)" value="([^"]*)"', chosen)
        form = [(name, html.unescape(value)) for name, value in fields]
        assert all(value.isprintable() for _, value in form)  # a browser sends line ends as two characters
        again = site.get(f"/v/d/2.json?{urlencode(form)}").json()
        assert (again["terms"], again["n_found"]) == (record["terms"], record["n_found"])
        rule = re.search(r'data-sql="([^"]*)"', chosen)
        assert unquote(rule[1]) == record["sql"]


def test_every_value_and_bin_finds_its_count(site):
    record = site.get("/v/d/2.json?facet=*").json()
    n_values = {facet["column"]: len(facet["values"]) for facet in record["facets"]}
    assert n_values["label"] == len(TEXTS)
    assert n_values["long"] == 0  # its terms would fit in no address
    entries = [entry for facet in record["facets"] for entry in (*facet["values"], *facet["bins"])]
    version = site.root.open("d@2")
    assert [len(version.where(entry["where"])) for entry in entries] == [entry["n"] for entry in entries]


@pytest.mark.parametrize(
    "query",
    [
        "where=%00",
        "where=%ED%A0%80",
        "t=%FF",
        "sort=%0A-huge",
        "sort=label%5B",
        "in=..%2F..%2Flog&not=%00",
        "cols=" + ",".join(f"c{number}" for number in range(2000)),
        "facet=" + ",".join(f"c{number}" for number in range(2000)),
        "from=999999999999999999",
        "as=" + "x" * 5000,
        "where=" + "(" * 9000,
        "t=read_csv(%27%2Fetc%2Fpasswd%27)%20%3D%201",
        "sort=(SELECT%20label)",
    ],
)
def test_odd_address_keeps_the_page(site, query):
    page = site.get(f"/v/d/2?{query}")
    assert page.status_code == 200
    assert "62" in page.text
    assert site.get(f"/v/d/2.json?{query}").status_code in (200, 400)


def test_column_of_a_million_values_lists_few():
    n = 1_000_000
    texts = pl.Series("many", np.arange(n) // 2).cast(pl.String)
    coded = code_column("many", texts)
    assert coded.kind == "identifier" or len(coded.values) == MOST_VALUES
    assert coded.nbytes < 3 * n
    numbers = code_column("number", pl.Series("number", np.random.default_rng(1).normal(size=n)))
    assert len(numbers.bins) == 32
    assert numbers.all.sum() == n
    assert numbers.nbytes < 1.1 * n


def test_pages_write_nothing_but_leases(site):
    def listing():
        stored = {info.key: (info.nbytes, info.etag) for info in site.root.store.list("")}
        return {key: facts for key, facts in stored.items() if not key.startswith("leases/")}

    before = listing()
    for path in PATHS:
        assert site.get(path).status_code == 200
    assert listing() == before
