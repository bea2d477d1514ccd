"""Chromium on a version that is searched: words, ranking and its slice, by keyboard and by mouse."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.dataset.slices import slice_keys
from tests.view.conftest import photo
from tests.view.served_browser import open_browser
from tests.view.test_browser import Viewer
from tests.view.test_map_browser import query, wait_count

pytestmark = pytest.mark.server
FIRST = "document.querySelector('.samples .card').innerText"
WORDS = "document.querySelector('#words').value"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "root"
    with loader.Root(folder) as root, root.write("cups") as writer:
        for i in range(12):
            caption = f"a {('red', 'blue')[i % 2]} {('cup', 'plate', 'fork')[i % 3]}"
            vector = np.array([1, i / 10], np.float16)
            fields = {"jpg": photo(i), "appearance.npy": vector, "caption.txt": caption}
            writer.add(f"c/{i:02d}", fields, metadata={"label": ("cat", "dog")[i % 2], "width": i})
    return folder


@pytest.fixture(scope="module")
def viewer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    with open_browser(folder, tmp_path_factory.mktemp("chromium") / "profile") as viewer:
        yield viewer


def test_words_ranking_and_slice_by_keyboard_and_mouse(viewer: Viewer, folder: Path) -> None:
    page = viewer.page
    viewer.open("/v/cups/1", "12 found")
    viewer.press("/", "Tab")
    viewer.type("red -fork")
    viewer.press("Enter")
    wait_count(viewer, 4)
    assert query(viewer) == {"words": ["red -fork"]}
    # The first card in version order is not the one that ranks first.
    viewer.press("Tab")
    page.value_of("document.activeElement.blur()")
    viewer.press("ArrowRight")
    key = page.value_of("document.activeElement.querySelector('code').innerText")
    viewer.press("m")
    page.wait_for(f"like {key}", "4 found", "1.0000")
    assert query(viewer) == {"words": ["red -fork"], "like": [key]}
    assert page.value_of(FIRST).split()[-1] == key
    page.wait_until("keys are heard", lambda: page.value_of("document.body.dataset.keys === 'ready'"))
    viewer.press("s")
    page.wait_for("Save as a slice", f"most similar to {key}", "How many")
    page.value_of("document.activeElement.select()")
    for value in ("2", "twins", "alike", "ada"):
        viewer.type(value)
        viewer.press("Tab")
    viewer.press("Enter")
    page.wait_for("saved: slice cups/twins")
    with loader.Root(folder) as root:
        version = root.open("cups@1")
        record, keys = slice_keys(version, "twins")
        expected = version.search("red -fork", like=key, k=2).keys()
    assert (record.kind, sorted(keys)) == ("list", sorted(expected))
    assert record.page.endswith(page.value_of("location.search"))
    page.click("words red -fork \N{MULTIPLICATION SIGN}")
    wait_count(viewer, 12)
    assert page.value_of(WORDS) == ""
    page.click("clear")
    wait_count(viewer, 12)
    page.wait_until("the filter is cleared", lambda: not query(viewer))
    assert page.problems == []


def test_wrong_words_stay_in_their_box(viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("/v/cups/1", "12 found")
    viewer.press("/", "Tab")
    viewer.type("...")
    viewer.press("Enter")
    page.wait_for("has no word: pass words", "12 found")
    assert page.value_of(WORDS) == "..."
    assert page.problems == []


def test_more_like_this_from_a_sample(viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("/v/cups/1/s/5", "More like this")
    key = page.value_of("document.querySelector('h1').innerText")
    viewer.press("m")
    page.wait_for(f"like {key}", "12 found", "1.0000")
    viewer.open("/v/cups/1/s/5", "More like this")
    page.click("More like this\nm")
    page.wait_for(f"like {key}", "12 found", "1.0000")
    assert page.value_of(FIRST).split()[-1] == key
    assert page.problems == []
