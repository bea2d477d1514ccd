"""Facets of a version in a terminal: each line finds the samples that it counts, and keys add and remove terms."""

import numpy as np
import pytest

from penstock.view.facets.version_filter import VersionFilter
from penstock.view.inspect.version_record import version_record
from penstock.view.sections.characters.section_lines import section_lines
from penstock.view.sections.facets import facet_sections, filter_sections
from penstock.view.terminal.addresses import VersionPage, parse_page
from penstock.view.terminal.section_screen import SectionList
from tests.view.conftest import write_photos

FILTERS = [
    VersionFilter(),
    VersionFilter(where="width < 45"),
    VersionFilter(terms=("\"note\" = 'n1'",)),
    VersionFilter(terms=("width > 41", "\"note\" = 'n0'"), within=("wide",)),
    VersionFilter(without=("wide",), sort="-width"),
]


def make_record(version, page, facet_names=("*",)):
    return version_record(version, page.filter, facet_names=facet_names)


@pytest.mark.parametrize("asked", FILTERS, ids=range(len(FILTERS)))
def test_each_line_of_a_facet_finds_the_samples_that_it_counts(root, asked):
    version = write_photos(root)
    root.save_slice("photos@1", "wide", "width > 42", by="ada", why="wide")
    record = make_record(version, VersionPage(dataset="photos", number=1, filter=asked))
    assert record.error == ""
    n_rows = 0
    for column in ("note", "width", "split"):
        (facet,) = [one for one in facet_sections(record, [column]) if one.column == column]
        for row in facet.rows:
            clicked = parse_page(facet.version + row.query)
            assert clicked.facet == column
            found = make_record(version, clicked)
            others = [term for term in asked.terms if column not in term]
            assert len(clicked.filter.terms) == len(others) + (not row.is_on)
            if not row.is_on:
                assert found.n_found == row.n
            n_rows += 1
            assert (found.where, found.sort, found.within, found.without) == (
                asked.where,
                asked.sort,
                asked.within,
                asked.without,
            )
    assert n_rows >= 9


def test_each_part_of_a_filter_has_a_line_that_removes_it(root):
    version = write_photos(root)
    root.save_slice("photos@1", "wide", "width > 42", by="ada", why="wide")
    record = make_record(version, VersionPage(dataset="photos", number=1, filter=FILTERS[3]))
    lines = [line for one in filter_sections(record) for line in section_lines(one, 80)]
    assert [line.text[2:] for line in lines] == ["width > 41", "\"note\" = 'n0'", "in wide"]
    pages = [parse_page(line.page) for line in lines]
    assert [len(page.filter.terms) for page in pages] == [1, 1, 2]
    assert [page.filter.within for page in pages] == [("wide",), ("wide",), ()]


def test_values_are_chosen_and_removed_by_keys(look, root, tmp_path):
    write_photos(root)

    async def test(terminal):
        await terminal.press("f")
        facets = terminal.app.screen.query(SectionList).last()
        assert (terminal.app.focused, facets.highlighted) == (facets, 0)
        texts = [str(option.prompt) for option in facets.options]
        facets.highlighted = next(i for i, text in enumerate(texts) if " n1 " in text)
        await terminal.press("enter")
        assert "7 found" in terminal.text
        assert "\"note\" = 'n1'" in terminal.text
        facets = terminal.app.screen.query(SectionList).last()
        assert terminal.app.focused is facets
        texts = [str(option.prompt) for option in facets.options]
        assert texts[facets.highlighted].startswith("note")
        (other,) = [text for text in texts if " n0 " in text]
        assert " 7 " in other
        assert any(text.startswith("  ● n1") for text in texts)
        terms = terminal.app.screen.query(SectionList).first()
        terms.focus()
        await terminal.press("enter")
        assert "14 found" in terminal.text

    look(
        test, VersionPage(dataset="photos", number=1), root=tmp_path / "root", size=(100, 60), pictures="none"
    )


def test_names_of_a_facet_stay_in_their_line(root):
    with root.write("odd") as writer:
        for i, label in enumerate(["a\nb", "\x1b[31m", " ", "‮x"]):
            writer.add(f"k{i}", {"txt": "a"}, metadata={"label": label})
    record = make_record(root.open("odd@1"), VersionPage(dataset="odd", number=1))
    (facet,) = [one for one in facet_sections(record, ["label"]) if one.column == "label"]
    assert sorted(row.label for row in facet.rows) == sorted(["a b", "[31m", "' '", "x"])


def test_words_and_likeness_rank_the_cards_of_a_terminal(look, root, tmp_path):
    """`/` takes words and a key; `m` ranks by the card under the cursor, and keeps the filter."""
    with root.write("cups") as writer:
        for number, caption in enumerate(["a red cup", "a red plate", "a blue cup", "red"]):
            vector = np.array([1, number / 10], np.float16)
            writer.add(
                f"c{number}", {"appearance.npy": vector, "caption.txt": caption}, metadata={"w": number}
            )

    async def test(terminal):
        await terminal.press("/", "tab")
        await terminal.type("red -plate")
        await terminal.press("enter")
        await terminal.type("c3")
        await terminal.press("enter", "enter")
        assert "2 found" in terminal.text
        assert "words red -plate" in terminal.text
        assert "like c3" in terminal.text
        cards = list(terminal.app.screen.query("GridCard"))
        assert [card.key for card in cards] == ["c3", "c0"]
        assert "  0.9578" in terminal.text
        cards[1].focus()
        await terminal.press("m")
        assert [card.key for card in terminal.app.screen.query("GridCard")] == ["c0", "c3"]
        await terminal.press("enter", "m")
        assert [card.key for card in terminal.app.screen.query("GridCard")] == ["c0", "c1", "c2", "c3"]
        await terminal.press("/", "tab")
        await terminal.type("..")
        await terminal.press("enter", "enter", "enter")
        assert "has no word" in terminal.text
        assert "4 found" in terminal.text

    look(test, VersionPage(dataset="cups", number=1), root=tmp_path / "root", size=(100, 60), pictures="none")
