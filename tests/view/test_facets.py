"""Facets of random tables under random filters: every value and bin finds its count, compared with polars."""

import datetime
import itertools
import random

import numpy as np
import polars as pl
import pytest

import loader
from loader.errors import FieldNotFound
from penstock.view.facets import column_codes, spread_rows
from penstock.view.facets.version_columns import VersionColumns
from penstock.view.inspect import grid_rows
from tests.view.filtered_pages import read_page

TEXTS = [
    "cat",
    "it's",
    'say "hi"',
    "a\\b",
    "100%",
    "",
    " ",
    "two\nlines",
    "é",
    "TRUE",
    "' OR 1 = 1",
    "x" * 400,
]
NUMBERS = [0.0, -1.5, 2.25, 1e-12, 1e150, -1e150, float("nan"), float("inf"), float("-inf"), 5e-324]
DAYS = [
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=7 * i) for i in range(50)
]


def random_columns(rng, number):
    columns = {
        "label": rng.choice(TEXTS),
        "on": rng.choice([True, False, None]),
        "odd": rng.choice(NUMBERS),
        "size": rng.choice([rng.randrange(4000), None]),
        "small": rng.randrange(-3, 5),
        "huge": rng.choice([2**63 - 1, -(2**63), 0, rng.randrange(2**60)]),
        "share": rng.lognormvariate(0, 3),
        "day": rng.choice(DAYS),
        "always": 7,
        "name": f"sample {number}",
        "phash": f"{rng.randrange(3):016x}",
        "many": f"word {rng.randrange(400)}",
        "list": [1, number],
    }
    return {name: value for name, value in columns.items() if value is not None}


@pytest.fixture(scope="module", params=[1, 2, 3])
def version(request, tmp_path_factory):
    """Return a version of random columns, of which a quarter of the samples is excluded."""
    rng = random.Random(request.param)
    n = 900
    with loader.Root(tmp_path_factory.mktemp("facets") / "root") as root:
        with root.write("d", part_samples=400) as writer:
            for number in range(n):
                source = {"split": rng.choice(["train", "val"])}
                writer.add(
                    f"k{number:04}", {"cls": number}, metadata=random_columns(rng, number), source=source
                )
        excluded = [f"k{number:04}" for number in rng.sample(range(n), n // 4)]
        root.exclude("d@1", excluded, reason="blurred")
        yield root.open("d@2")


def matches(table, *terms):
    """Return how many rows satisfy SQL terms, by polars alone."""
    return passing(table, terms).height


def passing(table, terms):
    for term in terms:
        table = table.filter(pl.sql_expr(term).cast(pl.Boolean).fill_null(False))
    return table


def counts(table, terms):
    """Return how many rows satisfy each SQL term."""
    truths = [pl.sql_expr(term).cast(pl.Boolean).fill_null(False).sum() for term in terms]
    if not truths:
        return []
    columns = table.select(truth.alias(str(number)) for number, truth in enumerate(truths))
    return list(columns.row(0))


def random_filter(rng, record):
    """Return `where` and the terms of a few facets of an unfiltered page."""
    where = rng.choice(["", "", "size > 500 OR on", "odd > 0 OR odd IS NULL", "label IN ('cat', 'it''s')"])
    terms = []
    for facet in rng.sample(record.facets, 3):
        entries = [*facet.values, *facet.bins]
        if entries:
            terms.append(rng.choice(entries).where)
    return where, terms


def test_facets_count_what_their_terms_find(version):
    cache = VersionColumns()
    table = version.samples().collect()
    unfiltered = read_page(version, cache=cache, facet_names=("*",))
    rng = random.Random(5)
    for _ in range(6):
        where, terms = random_filter(rng, unfiltered)
        record = read_page(version, where=where, terms=terms, cache=cache, facet_names=("*",))
        everything = [text for text in (where, *terms) if text]
        assert record.n_found == matches(table, *everything)
        n_where = len(version.where(record.sql)) if record.sql else len(version)
        assert record.n_found == n_where
        wrong = []
        for facet in record.facets:
            others = [text for text in everything if text not in facet.terms]
            n_all = matches(table, *others)
            assert facet.n + facet.nulls == n_all
            assert facet.nulls == matches(table, *others, f'"{facet.column}" IS NULL')
            entries = [*facet.values, *facet.bins]
            kept = passing(table, others)
            terms_of_entries = [entry.where for entry in entries]
            expected = zip(counts(kept, terms_of_entries), counts(table, terms_of_entries), strict=True)
            for entry, pair in zip(entries, expected, strict=True):
                if (entry.n, entry.all) != pair:
                    wrong.append((facet.column, entry, pair))
        assert wrong == []


def test_values_and_bins_cover_the_samples(version):
    record = read_page(version, facet_names=("*",))
    table = version.samples().collect()
    for facet in record.facets:
        listed = sum(entry.n for entry in (*facet.values, *facet.bins))
        if facet.kind in ("number", "bool", "time"):
            assert listed == len(version), facet.column
        assert facet.n_values in (0, table[facet.column].drop_nulls().n_unique()), facet.column


def test_stored_statistics_count_what_codes_count(tmp_path):
    """An unfiltered page of a version without exclusions reads no table, and lists the same values."""
    rng = random.Random(4)
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for number in range(200):
                columns = random_columns(rng, number)
                columns["label"] = columns["label"][:20]
                writer.add(f"k{number:04}", {"cls": number}, metadata=columns)
        version = root.open("d@1")
        stored = read_page(version).facets
        coded = read_page(version, facet_names=("*",)).facets
    n_equal = 0
    for one, other in zip(stored, coded, strict=True):
        assert (one.column, one.kind, one.n, one.nulls) == (other.column, other.kind, other.n, other.nulls)
        if one.is_counted:
            n_equal += 1
            assert (one.values, one.n_values) == (other.values, other.n_values)
    assert n_equal == 5  # label, many, name, on and phash


def test_kinds_follow_the_content(version):
    facets = {one.column: one for one in read_page(version, facet_names=("*",)).facets}
    kinds = {name: one.kind for name, one in facets.items()}
    assert kinds == {
        "label": "category",
        "split": "category",
        "many": "category",
        "on": "bool",
        "odd": "number",
        "size": "number",
        "small": "number",
        "huge": "number",
        "share": "number",
        "always": "number",
        "day": "time",
        "name": "identifier",
        "phash": "identifier",
        "list": "other",
    }
    assert facets["share"].scale == "log"
    assert facets["size"].scale == "linear"
    assert len(facets["size"].bins) == 32
    assert [(one.low, one.n > 0) for one in facets["small"].bins] == [(k, True) for k in range(-3, 5)]
    assert [(one.low, one.high) for one in facets["always"].bins] == [(7, 7)]
    assert [
        one.value for one in facets["odd"].values if one.value is not None and one.value == one.value
    ] == [
        float("inf"),
        float("-inf"),
    ]
    assert facets["name"].values == facets["phash"].values == ()
    assert {one.value for one in facets["on"].values} == {True, False, None}
    assert len(facets["many"].values) == min(300, facets["many"].n_values)


def test_term_names_one_column(version):
    for term in ("size > small", "1 = 1"):
        with pytest.raises(FieldNotFound, match="one column"):
            read_page(version, terms=(term,))


def test_more_than_forty_terms_are_one_sentence(version):
    terms = [f"size > {number}" for number in range(41)]
    with pytest.raises(FieldNotFound, match="41 terms") as raised:
        read_page(version, terms=terms)
    assert "\n" not in str(raised.value)
    assert read_page(version, terms=terms[:40]).terms == tuple(terms[:40])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"where": "size >"}, "where"),
        ({"where": "nothing = 1"}, "nothing"),
        ({"where": "label > 3"}, "cannot be evaluated"),
        ({"terms": ("SELECT 1",)}, "SELECT"),
        ({"terms": ("label = 'cat'", "size > small")}, "one column"),
        ({"sort": "-nothing"}, "nothing"),
        ({"columns": ("nothing",)}, "nothing"),
        ({"within": ("cups",)}, "slice"),
    ],
)
def test_wrong_part_of_a_filter_stays_in_its_box(version, wrong, said):
    valid = {"where": "small > 0", "terms": ("size > 10",), "columns": ("label",)}
    expected = read_page(version, **{**valid, **dict.fromkeys(wrong, "")})
    if wrong.get("terms", ("",))[0] == "label = 'cat'":
        expected = read_page(version, **{**valid, "terms": wrong["terms"][:1]})
    record = read_page(version, **{**valid, **wrong}, keep_page=True)
    assert said in record.error
    assert record.where == wrong.get("where", "small > 0")
    assert (record.n_found, record.sql) == (expected.n_found, expected.sql)
    assert [row.ordinal for row in record.rows] == [row.ordinal for row in expected.rows]
    with pytest.raises(FieldNotFound, match=said):
        read_page(version, **{**valid, **wrong})


def test_filter_names_few_slices(version):
    names = [f"s{number}" for number in range(11)]
    with pytest.raises(FieldNotFound, match="11 slices"):
        read_page(version, within=names)


@pytest.mark.parametrize(
    "sort", ["size", "-size", "odd", "-odd", "label", "-label", "day", "-on", "-many", "small"]
)
def test_sorted_pages_follow_one_order(version, sort):
    table = version.samples().collect().filter(pl.col("small") > -3)
    name = sort.removeprefix("-")
    ordered = table.sort(name, descending=sort != name, nulls_last=True, maintain_order=True)[
        "ordinal"
    ].to_list()
    cache = VersionColumns()
    ordinals = []
    while len(ordinals) < len(ordered):
        record = read_page(version, where="small > -3", sort=sort, first=len(ordinals), cache=cache)
        assert len(record.rows) == min(60, len(ordered) - len(ordinals))
        ordinals += [row.ordinal for row in record.rows]
    assert ordinals == ordered


def test_slices_narrow_the_samples(tmp_path):
    """`in=` and `not=` apply to rows and all facets; a name without a slice stays in its box."""
    rng = random.Random(9)
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for number in range(100):
                writer.add(f"k{number:02}", {"cls": number}, metadata=random_columns(rng, number))
        root.save_slice("d@1", "cups", [f"k{number:02}" for number in range(40)], by="ann", why="handles")
        root.save_slice("d@1", "rims", [f"k{number:02}" for number in range(30, 60)], by="ann", why="rims")
        version = root.open("d@1")
        keys = {row.key for row in read_page(version, within=("cups",), without=("rims",)).rows}
        assert keys == {f"k{number:02}" for number in range(30)}
        record = read_page(version, within=("cups",), terms=("always = 7",), facet_names=("*",))
        assert (record.n_found, record.within) == (40, ("cups",))
        assert {one.n + one.nulls for one in record.facets} == {40}
        wrong = read_page(version, within=("cups", "none"), keep_page=True)
        assert (wrong.n_found, wrong.within) == (40, ("cups",))
        assert "d/none" in wrong.error
        both = read_page(version, within=("cups",), without=("cups",))
        assert both.n_found == 0
        assert not list(root.store.list("views/")), "viewing writes nothing but leases"


def test_rows_have_the_columns_that_the_address_names(version):
    table = version.samples().collect()
    record = read_page(version, columns=("label", "size", "day"), sort="-small", first=30)
    for row in record.rows:
        values = table.row(row.ordinal, named=True)
        shown = {name for name in ("label", "size", "day") if values[name] is not None}
        assert row.columns.keys() == shown
        assert row.score == values["small"]


def test_numbers_of_other_types_find_their_counts():
    """Types that imports and annotations write. Coded without a version: a writer stores 64 bits."""
    from penstock.view.facets.column_codes import code_column

    rng = np.random.default_rng(3)
    n = 500
    floats = rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n)
    columns = [
        pl.Series("f32", np.where(rng.random(n) < 0.1, np.nan, floats), dtype=pl.Float32),
        pl.Series("i8", rng.integers(-128, 128, n), dtype=pl.Int8),
        pl.Series("u64", [2**64 - 1, 0, *rng.integers(0, 2**62, n - 2).tolist()], dtype=pl.UInt64),
        pl.Series("date", [None, *rng.integers(-1000, 30000, n - 1).tolist()], dtype=pl.Int32).cast(pl.Date),
        pl.Series("far", [2**62, -(2**62), *range(n - 2)], dtype=pl.Int64).cast(pl.Datetime("us")),
        pl.Series("wide", [1.7e308, -1.7e308, *[0.0] * (n - 2)]),
        pl.Series("tiny", [5e-324, 1e-323, *[0.0] * (n - 2)]),
        pl.Series("none", [None] * n, dtype=pl.Float64),
        pl.Series("text", [None] * n, dtype=pl.String),
        pl.Series("null", [None] * n),
    ]
    for series in columns:
        coded = code_column(series.name, series)
        entries = (*coded.values, *coded.bins)
        frame = series.to_frame()
        counts = [matches(frame, entry.where) for entry in entries]
        assert counts == coded.all[: len(entries)].tolist(), series.name
        if coded.kind != "other":
            assert sum(counts) == n


@pytest.fixture
def spread(monkeypatch, tmp_path):
    """Return a version of two batches with exclusions, counted by a third of its rows in stretches of 30."""
    monkeypatch.setattr(spread_rows, "WHOLE_UP_TO", 100)
    monkeypatch.setattr(spread_rows, "SPREAD_ROWS", 300)
    monkeypatch.setattr(spread_rows, "ROW_GROUP_ROWS", 30)
    with loader.Root(tmp_path / "root") as root:
        for first in (0, 500):
            with root.write("d", part_samples=170) as writer:
                for number in range(first, first + 500):
                    columns = {"half": number % 2, "width": number, "label": TEXTS[number % 3]}
                    writer.add(f"k{number:04}", {"cls": number}, metadata=columns)
        root.exclude("d@latest", [f"k{number:04}" for number in range(0, 1000, 7)], reason="blurred")
        yield root.open("d@latest")


def test_large_version_is_counted_by_spread_rows(spread):
    cache = VersionColumns()
    ordinals = cache.ordinals(spread)
    table = spread.samples().collect()
    assert len(spread) / 5 < len(ordinals) < len(spread) / 2
    assert ordinals[0] < 100
    assert ordinals[-1] > len(spread) - 150
    counted = table[ordinals]
    values = cache.values(spread, ["width", "label"])
    assert values.equals(counted.select("width", "label"))
    record = read_page(spread, where="half = 1", sort="-width", cache=cache, facet_names=("*",))
    share = len(ordinals) / len(spread)
    n_counted = matches(counted, "half = 1")
    assert (record.about, record.n_found) == (share, round(n_counted / share))
    (label,) = [one for one in record.facets if one.column == "label"]
    assert label.is_about
    for value in label.values:
        assert value.n == round(matches(counted, "half = 1", value.where) / share)
    best = counted.filter(pl.col("half") == 1).sort("width", descending=True)["ordinal"].to_list()
    assert [row.ordinal for row in record.rows] == best[:60]
    exact = read_page(spread, where="half = 1", cache=cache, exact=True)
    assert (exact.about, exact.n_found) == (None, matches(table, "half = 1"))
    whole = read_page(spread, cache=cache)
    assert (whole.about, whole.n_found) == (None, len(spread))
    assert [row.ordinal for row in whole.rows] == list(range(60))


def test_columns_of_spread_rows_decode_their_places_once(spread, monkeypatch):
    decoded = []
    read = spread_rows.get_rows

    def get_rows(store, file, rows, columns):
        decoded.append(tuple(columns))
        return read(store, file, rows, columns)

    monkeypatch.setattr(spread_rows, "get_rows", get_rows)
    cache = VersionColumns()
    for names in (["width"], ["label"], ["key"]):
        cache.values(spread, names)
    places = ("part", "row")
    first, second = (
        [places, places],
        [places, places],
    )  # of two batches: of the keys, then of the other columns
    assert decoded == [
        *first,
        *second,
        *[("width",), ("width",)],
        *[("label",), ("label",)],
        *[("key",), ("key",)],
    ]


@pytest.mark.parametrize("batches", [("none", "old", "new"), ("old", "new", "old")])
def test_columns_of_spread_rows_are_those_of_the_table(monkeypatch, tmp_path, batches):
    """Columns that some batches lack, batches without any, annotations, and excluded samples."""
    monkeypatch.setattr(spread_rows, "WHOLE_UP_TO", 100)
    monkeypatch.setattr(spread_rows, "SPREAD_ROWS", 300)
    monkeypatch.setattr(spread_rows, "ROW_GROUP_ROWS", 30)
    numbers = itertools.count()
    with loader.Root(tmp_path / "root") as root:
        for batch in batches:
            with root.write("d", part_samples=170) as writer:
                for number in itertools.islice(numbers, 300):
                    columns = {"none": {}, "old": {"width": number}, "new": {"width": number, "late": "x"}}
                    writer.add(f"k{number:04}", {"cls": number}, metadata=columns[batch])
        edits = {f"k{number:04}": {"width": -number} for number in range(3, 900, 5)}
        root.annotate("d@latest", "review", edits, author="ann")
        root.exclude("d@latest", [f"k{number:04}" for number in range(0, 900, 7)], reason="blurred")
        version = root.open("d@latest")
        cache = VersionColumns()
        for names in (["late"], ["width", "key"], ["key"]):
            counted = version.samples().collect()[cache.ordinals(version)]
            assert cache.values(version, names).equals(counted.select(names))


def test_columns_in_another_order_than_the_keys_are_joined(spread, monkeypatch):
    read = spread_rows.get_rows
    keys_files = [entry["path"] for entry in spread.manifest["samples"] if entry["group"] == "keys"]

    def get_rows(store, file, rows, columns):
        table = read(store, file, rows, columns)
        if file.path in keys_files:
            return table
        return table.take(np.arange(len(rows))[::-1])

    monkeypatch.setattr(spread_rows, "get_rows", get_rows)
    cache = VersionColumns()
    counted = spread.samples().collect()[cache.ordinals(spread)]
    assert cache.values(spread, ["width"]).equals(counted.select("width"))


def test_page_of_a_filter_is_read_from_its_chunks(monkeypatch):
    monkeypatch.setattr(grid_rows, "MEMBERS_AT_ONCE", 7)
    rng = np.random.default_rng(3)
    for share in (0, 0.1, 0.9, 1):
        members = rng.random(100) < share
        every = np.flatnonzero(members)
        for start in range(0, len(every) + 1, 3):
            page = every[start : start + 10]
            positions = grid_rows.true_positions(members, start, start + len(page))
            assert positions.tolist() == page.tolist()


def test_codes_are_counted_in_chunks(monkeypatch):
    monkeypatch.setattr(column_codes, "CODES_AT_ONCE", 7)
    values = np.random.default_rng(4).integers(0, 5, 100)
    coded = column_codes.code_column("whole", pl.Series("whole", values))
    members = values != 2
    assert coded.counts(members).tolist()[:5] == [int((values[members] == one).sum()) for one in range(5)]
