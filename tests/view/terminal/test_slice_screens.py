"""Slices in a terminal: listed, shown with their rule or their samples, and opened as a filter of a version."""

import pytest

from penstock.upkeep.exclusion import exclude
from penstock.view.terminal.addresses import RootPage, SlicePage, SlicesPage, parse_page
from tests.view.conftest import write_photos


def save_slices(root):
    """Save a rule and a list of photos@1; photos@2 lacks a sample of the list."""
    write_photos(root)
    root.save_slice("photos@1", "wide", "width > 42", by="ada", why="too wide")
    root.save_slice("photos@1", "blurred", ["p/1", "p/4"], by="bob", why="the lens was wet")
    exclude(root, "photos@1", ["p/4"], reason="blurred", by="bob")


def test_slices_are_listed_and_each_opens_its_page(look, root, tmp_path):
    save_slices(root)

    async def test(terminal):
        assert terminal.lines[0].startswith("2 slices")
        assert "ada" in terminal.text
        assert "width > 42" in terminal.text
        await terminal.press("down", "enter")
        assert terminal.lines[0].startswith("slice photos/wide: rule, number 1")
        await terminal.press("u")
        assert terminal.lines[0].startswith("2 slices")
        await terminal.press("y")
        assert "penstock slice ls" in terminal.lines[-1]

    look(test, SlicesPage(), root=tmp_path / "root", size=(140, 30))


@pytest.mark.parametrize(
    ("keys", "title", "text"),
    [
        (["right"], "photos@2", "in wide"),
        (["right", "right", "right"], "photos@1", "13"),
        (["right", "left", "left"], "slice photos/wide", "rule"),
    ],
    ids=["samples", "version", "slice"],
)
def test_keys_choose_among_the_links_of_a_row(look, root, tmp_path, keys, title, text):
    """A row of a slice has links to the slice, its samples, and the version it was chosen in."""
    save_slices(root)

    async def test(terminal):
        await terminal.press("down", *keys, "enter")
        assert terminal.lines[0].startswith(title)
        assert text in terminal.text

    look(test, SlicesPage(), root=tmp_path / "root", size=(140, 30))


def test_slice_names_its_rule_and_opens_the_version_filtered_by_it(look, root, tmp_path):
    save_slices(root)
    n = len(root.open("photos@2").where("width > 42"))

    async def test(terminal):
        assert "width > 42" in terminal.text
        assert "too wide" in terminal.text
        assert f"open the {n} samples of photos@2" in terminal.text
        await terminal.press("enter")
        assert terminal.lines[0].startswith("photos@2: 13 samples")
        assert f"{n} found" in terminal.text
        assert "in wide" in terminal.text

    look(test, SlicePage(dataset="photos", name="wide"), root=tmp_path / "root", size=(100, 40))


def test_slice_names_its_missing_samples_and_leads_to_the_others(look, root, tmp_path):
    save_slices(root)

    async def test(terminal):
        assert "the lens was wet" in terminal.text
        assert "1 no longer in photos@2" in terminal.text
        assert "Missing in photos@2 1" in terminal.text
        assert "p/4" in terminal.text
        await terminal.press("end", "enter")
        assert terminal.lines[0].rstrip().endswith(": p/1")

    look(test, SlicePage(dataset="photos", name="blurred"), root=tmp_path / "root", size=(100, 40))


def test_first_page_leads_to_the_slices(look):
    async def test(terminal):
        assert "Slices" in terminal.text
        await terminal.press("home", "enter")
        assert "No slice is saved" in terminal.text

    look(test, RootPage())


def test_damaged_slice_hides_no_other(look, root, tmp_path):
    save_slices(root)
    (tmp_path / "root/slices/photos/wide/000001.json").write_text("[")

    async def test(terminal):
        assert "slices/photos/wide/000001.json" in terminal.text
        assert "photos/blurred" in terminal.text

    look(test, SlicesPage(), root=tmp_path / "root", size=(140, 30))


def test_texts_of_a_slice_stay_in_their_line(look, root, tmp_path):
    write_photos(root)
    root.save_slice("photos@1", "odd", ["p/1"], by="a\x1b[31m", why="[bold]line\nline\u202e")

    async def test(terminal):
        assert "[bold]line line" in terminal.text
        assert "\x1b" not in terminal.text
        assert "\u202e" not in terminal.text

    look(test, SlicePage(dataset="photos", name="odd"), root=tmp_path / "root")


def test_pages_that_a_terminal_lacks_have_no_address():
    assert parse_page("v/photos/1/map") is None
    assert parse_page("v/photos/x") is None
    assert parse_page("slices/photos/a%20b") == SlicePage(dataset="photos", name="a b")
