"""How a version's page draws facets: the bins that a term chose, and the bounds that a range writes into its term."""

import pytest

import loader
from penstock.view.sections.facets import facet_sections
from tests.view.filtered_pages import read_page

FIRST = 2**60 + 1


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    with loader.Root(tmp_path_factory.mktemp("drawn") / "root") as root:
        with root.write("d") as writer:
            for number in range(32):
                columns = {"small": number, "huge": FIRST + number, "share": number / 7}
                writer.add(f"k{number:02}", {"cls": number}, metadata=columns)
        yield root.open("d@1")


def draw_column(version, column, *terms):
    """Return the histogram and the bins of a column."""
    record = read_page(version, terms=terms, facet_names=("*",))
    (section,) = (one for one in facet_sections(record, ()) if one.column == column)
    (facet,) = (one for one in record.facets if one.column == column)
    return section.histogram, facet.bins


@pytest.mark.parametrize(
    ("column", "term", "chosen"),
    [
        ("small", '"small" >= 10 AND "small" < 12', (10, 12)),
        ("small", '"small" = 1', (1, 2)),
        ("small", '"small" >= 30 AND "small" <= 31', (30, 32)),
        ("huge", f'"huge" >= {FIRST + 3} AND "huge" < {FIRST + 5}', (3, 5)),
    ],
)
def test_term_marks_the_bins_that_it_finds(version, column, term, chosen):
    histogram, _ = draw_column(version, column, term)
    assert histogram.chosen == chosen


@pytest.mark.parametrize("column", ["small", "huge", "share"])
def test_bounds_of_a_range_are_the_numbers_of_its_terms(version, column):
    """A script writes them as they are: beyond 2^53 its numbers are not the column's."""
    histogram, bins = draw_column(version, column)
    edges = histogram.edges.split(" ")
    assert len(edges) - 1 == len(bins) > 2
    for low, high, part in zip(edges, edges[1:], bins, strict=False):
        assert f" {low}" in part.where
        assert low == high or f" {high}" in part.where
