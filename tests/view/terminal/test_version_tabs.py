"""Tabs of a version: its columns and its lineage, in the browser and in a terminal."""

import pytest

import loader
from penstock.view.terminal.addresses import ContentsPage, GroupsPage, LineagePage, VersionPage, parse_page
from tests.view.conftest import write_photos
from tests.view.test_groups_page import write_copies
from tests.view.test_web import Served

MARKUP = "<b>bold</b> \u202egnat"


@pytest.fixture
def site(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
        with root.write("odd", producer={"note": MARKUP}) as writer:
            for row in range(4):
                writer.add(f"k{row}", {"cls": row}, metadata={"label": MARKUP, "empty": ""})
    served = Served(tmp_path / "root", recipe=None)
    yield served
    served.close()


def test_tabs_lead_to_each_other(site):
    for path in ("/v/photos/1", "/v/photos/1/columns", "/v/photos/1/lineage"):
        text = site.get(path).text
        assert "v/photos/1/columns" in text
        assert "v/photos/1/lineage" in text
        assert text.count('aria-current="page"') == 1


def test_columns_are_those_of_the_json(site):
    record = site.get("/v/photos/1/columns.json").json()
    text = site.get("/v/photos/1/columns").text
    for column in record["columns"]:
        assert f"facet={column['name']}" in text
    assert "&#x27;&#x27; (4)" in site.get("/v/odd/1/columns").text
    assert record["n_samples"] == len(site.opened.version("photos", 1))


@pytest.mark.parametrize("tab", ["columns", "lineage"])
def test_markup_in_names_and_values_stays_text(site, tab):
    text = site.get(f"/v/odd/1/{tab}").text
    assert "&lt;b&gt;bold" in text
    assert "<b>bold" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("tab", ["columns", "lineage", "groups"])
def test_tab_of_a_missing_version_is_not_found(site, tab):
    assert site.get(f"/v/photos/9/{tab}").status_code == 404


def test_terminal_lists_columns_and_opens_their_facet(look, root, tmp_path):
    write_photos(root)

    async def test(terminal):
        assert terminal.lines[0].startswith("photos@1: ")
        assert "width" in terminal.text
        await terminal.press("u")
        assert terminal.lines[0].startswith("photos@1: 14 samples")

    look(test, ContentsPage(dataset="photos", number=1), root=tmp_path / "root", size=(140, 40))


def test_terminal_tells_the_lineage(look, root, tmp_path):
    write_photos(root)
    write_photos(root, numbers=range(20, 23))

    async def test(terminal):
        assert terminal.lines[0].startswith("photos@2: lineage of 2 versions")
        assert "the pipeline did not publish this version" in terminal.text

    look(test, LineagePage(dataset="photos", number=2), root=tmp_path / "root", size=(140, 40))


def test_terminal_lists_groups(look, root, tmp_path):
    write_copies(root)

    async def test(terminal):
        assert terminal.lines[0].startswith("faces@1: 2 groups of near-duplicates, 0 clusters")
        assert "run penstock index faces@1 --map" in terminal.text
        assert all(f"f/{number}" in terminal.text for number in ("03", 30, 31, 32))

    look(test, GroupsPage(dataset="faces", number=1), root=tmp_path / "root", size=(140, 40))


def test_addresses_are_those_of_the_browser():
    assert parse_page("v/photos/2/groups?cosine=0.9") == GroupsPage(dataset="photos", number=2, cosine="0.9")
    assert parse_page("v/photos/2/columns") == ContentsPage(dataset="photos", number=2)
    assert parse_page("v/photos/2/lineage") == LineagePage(dataset="photos", number=2)
    assert LineagePage(dataset="photos", number=2).parent == VersionPage(dataset="photos", number=2)
