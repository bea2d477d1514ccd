"""Chromium on the map of a version: lasso and zoom by mouse and by keyboard, and the slice of what is inside."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

import loader
from penstock.search.map.stored_map import make_map
from penstock.search.map.version_map import read_map
from tests.view.map_dataset import write_faces
from tests.view.served_browser import open_browser
from tests.view.test_browser import Viewer

pytestmark = pytest.mark.server
COUNT = "document.querySelector('.count').innerText"
PLANE = """(() => {
    const box = document.querySelector('.plane').getBoundingClientRect();
    return [box.x, box.y, box.width, box.height];
})()"""
CLICK_CAT = "[...document.querySelectorAll('.values a')].find((one) => one.innerText === 'cat\\n20').click()"
AROUND = ((0.01, 0.01), (0.5, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99), (0.01, 0.02))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "root"
    with loader.Root(folder) as root:
        write_faces(root)
        make_map(root, "faces@1")
    return folder


@pytest.fixture(scope="module")
def viewer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    with open_browser(folder, tmp_path_factory.mktemp("chromium") / "profile") as viewer:
        yield viewer


def mouse(viewer: Viewer, kind: str, right: float, down: float, **more: object) -> None:
    """Send an event of the mouse at these shares of the map's width and height."""
    x, y, width, height = viewer.page.value_of(PLANE)
    place = {"x": x + width * right, "y": y + height * down}
    viewer.page.ask("Input.dispatchMouseEvent", type=kind, **place, **more)


def drag(viewer: Viewer, *shares: tuple[float, float]) -> None:
    """Press the mouse on the map, move it over these shares of its width and height, and let go."""
    kinds = ["mousePressed", *["mouseMoved"] * (len(shares) - 2), "mouseReleased"]
    for kind, (right, down) in zip(kinds, shares, strict=True):
        mouse(viewer, kind, right, down, button="left", clickCount=1)


def wait_count(viewer: Viewer, n: int) -> None:
    viewer.page.wait_until(f"{n} are found", lambda: viewer.page.value_of(COUNT) == f"{n} found")


def query(viewer: Viewer) -> dict[str, list[str]]:
    return parse_qs(urlsplit(viewer.page.value_of("location.search")).query)


def save(viewer: Viewer, name: str) -> None:
    viewer.press("s")
    viewer.page.wait_for("Save as a slice", "a list: the")
    for value in (name, "odd ones", "ada"):
        viewer.type(value)
        viewer.press("Tab")
    viewer.press("Enter")
    viewer.page.wait_for(f"saved: slice faces/{name}")


def inside(folder: Path, lasso: str) -> list[str]:
    """Return the keys of the cats inside a lasso."""
    with loader.Root(folder) as root:
        version = root.open("faces@1")
        labels = version.samples().select("label").collect()["label"].to_numpy()
        members = read_map(version).lasso_members(lasso) & (labels == "cat")
        keys: list[str] = version.keys(np.flatnonzero(members))
    return keys


def test_lasso_right_after_a_facet_keeps_both_and_becomes_a_slice(viewer: Viewer, folder: Path) -> None:
    """A drag that begins before the facet's answer: the page has both, and the slice what the page counts."""
    viewer.page.problems.clear()
    for waits in (True, False):
        cats: list[str] = []
        for _ in range(10):
            viewer.open("/v/faces/1", "59 of 59 on the map")
            viewer.page.value_of(CLICK_CAT)
            if waits:
                wait_count(viewer, 20)
            drag(viewer, *AROUND)
            viewer.page.wait_for("inside the lasso")
            asked = query(viewer)
            assert asked["t"] == ["\"label\" = 'cat'"]
            # The page moves as its answer comes: the second lasso leaves some out, or all if it moves in between.
            cats = inside(folder, asked["lasso"][0])
            wait_count(viewer, len(cats))
            if cats:
                break
        assert cats
    save(viewer, "cats")
    with loader.Root(folder) as root:
        saved = root.open("faces@1").slice("cats")
        assert saved.keys(np.flatnonzero(saved.members())) == cats
    assert viewer.page.problems == []


def test_zoom_and_lasso_by_keyboard(viewer: Viewer, folder: Path) -> None:
    viewer.page.problems.clear()
    viewer.open("/v/faces/1", "59 of 59 on the map")
    viewer.press("+")
    viewer.page.wait_until("it is zoomed", lambda: query(viewer).get("box") == ["16384,16384,49152,49152"])
    viewer.press("l", "ArrowLeft", "ArrowUp")
    viewer.page.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", modifiers=8)
    viewer.press("Enter")
    viewer.page.wait_for("inside the lasso")
    asked = query(viewer)
    assert asked["lasso"] == ["27648,27648;36864,27648;36864,35840;27648,35840"]
    assert asked["box"] == ["16384,16384,49152,49152"]
    with loader.Root(folder) as root:
        members = read_map(root.open("faces@1")).lasso_members(asked["lasso"][0])
    wait_count(viewer, int(np.count_nonzero(members)))
    viewer.press("Escape")
    viewer.page.wait_until("the lasso is gone", lambda: "lasso" not in query(viewer))
    viewer.press("ArrowRight")
    viewer.page.wait_until("it is moved", lambda: query(viewer)["box"] == ["24576,16384,57344,49152"])
    viewer.press("0")
    viewer.page.wait_until("it is whole", lambda: "box" not in query(viewer))
    mouse(viewer, "mouseWheel", 0.25, 0.5, deltaX=0, deltaY=-100)
    viewer.page.wait_until("it is zoomed", lambda: "box" in query(viewer))
    x0, y0, x1, y1 = map(int, query(viewer)["box"][0].split(","))
    assert x1 - x0 == y1 - y0 == 52_429
    # What lay under the pointer lies there still.
    assert abs(x0 + (x1 - x0) / 4 - 16_384) < 300
    assert abs(y0 + (y1 - y0) / 2 - 32_768) < 300
    assert viewer.page.problems == []
