"""The limit of filters that pages ask for: what would keep the server busy is refused, what people write is not."""

from urllib.parse import urlencode

import pytest

import loader
from loader.errors import FieldNotFound
from tests.view.filtered_pages import read_page
from tests.view.test_web import Served


def nest_filter(form, times, inner="width"):
    for _ in range(times):
        inner = form.format(inner)
    return inner


@pytest.fixture(scope="module")
def version(trained):
    with loader.Root(trained) as root:
        yield root.open("photos@1")


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (" OR ".join(f"width = {i}" for i in range(201)), "60[23] words and operators, up to 600"),
        (nest_filter("({} + 1)", 7), "7 nested brackets, up to 6"),
        ("width" + " BETWEEN 1 AND 2" * 9, "9 of BETWEEN"),
        (nest_filter("nullif({}, 1)", 4) + nest_filter(" between {}", 5), "9 of BETWEEN"),
        (nest_filter("case {} when 1 then 2 else 3 end", 2), "2 nested CASE, up to 1"),
        ("case width" + " when 1 then 2" * 41 + " end", "41 WHEN, up to 40"),
        ("length(lpad(note, 2000000000, 'x')) > 3", r"lpad\(\.\.\.\) may make"),
    ],
)
def test_filter_that_costs_by_powers_is_refused_before_polars_sees_it(version, where, told):
    for asked in ({"where": where}, {"sort": where}, {"sort": f"-{where}"}):
        with pytest.raises(FieldNotFound, match=told):
            read_page(version, **asked)


@pytest.mark.parametrize(
    ("where", "n"),
    [
        (" OR ".join(f"width = {i}" for i in range(200)), 14),
        (f"width IN ({', '.join(map(str, range(20_000)))})", 14),
        ("(width BETWEEN 40 AND 41 OR width BETWEEN 45 AND 99) AND (note = 'n0' OR note = 'n1')", 8),
        ("case when width > 44 then note = 'n0' else false end", 2),
        ("note = '" + "(case between " * 500 + "'", 0),
    ],
)
def test_what_people_write_is_taken(version, where, n):
    assert read_page(version, where=where).n_found == n


BRACKETS = "(" * 9_000
FILTERS = [
    {"where": BRACKETS},
    {"where": "()" * 5_000},
    {"where": f"note = '{BRACKETS}'"},
    {"where": f"width IN ({', '.join(map(str, range(4_000)))})"},
    {"t": BRACKETS},
    {"t": f"note = '{BRACKETS}'"},
    {"t": [f"note = '{number}{'(' * 400}'" for number in range(20)]},
    {"sort": BRACKETS},
    {"sort": f"note = '{BRACKETS}'"},
    {"in": BRACKETS},
    {"not": BRACKETS},
    {"cols": BRACKETS},
    {"as": BRACKETS},
    {"facet": BRACKETS},
    {"page": BRACKETS},
]


def test_page_does_not_repeat_a_long_filter(trained):
    with Served(trained, recipe=None) as served:
        plain_bytes = len(served.get("/v/photos/1").content)
        for parameters in FILTERS:
            query = urlencode(parameters, doseq=True)
            page = served.get(f"/v/photos/1?{query}")
            assert page.status_code == 200
            # In its box, and in the address of the JSON.
            assert len(page.content) < plain_bytes + 2 * len(query) + 10_000, parameters
            (name,) = parameters
            if name in ("where", "t", "sort") or name in ("in", "not"):
                assert 'class="filter-error' in page.text
                assert served.get(f"/v/photos/1.json?{query}").status_code == 400


def test_filter_of_ordinary_length_is_in_every_link(trained):
    with Served(trained, recipe=None) as served:
        where = " OR ".join(f"width = {number}" for number in range(100))
        page = served.get(f"/v/photos/1?{urlencode({'where': where})}").text
    assert 'class="filter-error' not in page
    assert page.count("width+=+42") > 3
