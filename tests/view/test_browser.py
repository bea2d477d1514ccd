"""Chromium over every page of the viewer: by keyboard and by mouse, in both themes, with a silent console."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import loader
from tests.servers.chromium import Page, chromium
from tests.servers.patience import PATIENCE_S
from tests.view.conftest import BATCH, train, words_of, write_photos
from tests.view.recipes import plain
from tests.view.rollouts.rig import write_rollouts
from tests.view.rollouts.test_decision_pages import write_decisions

pytestmark = pytest.mark.server
PREFIX = "/proxy/view"
PAGES = {
    "/": "Datasets",
    "/r/one": "Starts",
    "/r/one/2": "digest",
    "/r/one/2/3": "Provenance",
    "/r/items/1": "no digest",
    "/r/items/1/2": "Raw object and Dagster run are not known",
    "/r/one/against/one": "equal",
    "/r/one/window?from=1&to=4": "Mixture",
    "/v/photos/1": "Columns",
    "/v/photos/1/s/3": "Provenance",
    "/v/photos/1/diff/2": "Samples",
    "/v/rl/1/s/2?from=1024&by=advantages.npy": "Policy versions",
    "/v/rl/1/s/2/group": "mean reward",
    "/r/on/decisions": "in small groups",
    "/r/on/1/decision": "Cursor",
    "/nowhere": "InvalidRuntime",
}
_CONTRAST = """(() => {
    const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((one) => one / 255)
        .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = light(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll('main *')]
        .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
        .filter((one) => !one.closest('.tokens, .masked, .u-off, button, input'))
        .map((one) => {
            const text = light(getComputedStyle(one).color);
            return [(Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05), one.innerText];
        })
        .sort((a, b) => a[0] - b[0])[0];
})()"""
ODD_KEY = "--turned\u202e  's`id`"
_READ_ONLY = """(async () => {
    document.querySelector('meta[name=csrf]').remove();
    const { basket } = await import(`${document.body.dataset.up}static/basket.js?again`);
    let told;
    basket.begin((text) => { told = text; });
    basket.toggle();
    basket.exclude();
    sessionStorage.clear();
    return told;
})()"""
_READY = "document.readyState === 'complete' && document.body.dataset.keys === 'ready'"
_FOCUS = "getComputedStyle(document.activeElement).outlineStyle"
_FOREIGN = """performance.getEntriesByType('resource').map((one) => one.name)
    .filter((one) => new URL(one).origin !== location.origin)"""


class Viewer:
    """A browser on the pages of a server of its own."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        parts = urlsplit(address)
        self.base = f"{parts.scheme}://{parts.netloc}{PREFIX}"
        page.open(address, "penstock")

    def open(self, path: str, *shown: str) -> None:
        self.page.open(f"{self.base}{path}", *shown)
        self.page.wait_until("keys are heard", lambda: self.page.value_of(_READY))

    def press(self, *keys: str) -> None:
        """Press keys: a letter, or a name such as Enter."""
        for key in keys:
            code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            more = {"key": key, "windowsVirtualKeyCode": code}
            self.page.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **more)
            self.page.ask("Input.dispatchKeyEvent", type="keyUp", **more)

    def type(self, text: str) -> None:
        self.page.ask("Input.insertText", text=text)

    def at(self, path: str) -> None:
        """Wait until the browser is at a path, and its page stands."""
        here = "location.pathname + location.search"
        there = f"{_READY} && ({here}) === {PREFIX + path!r}"
        self.page.wait_until(f"the browser is at {path}", lambda: self.page.value_of(there))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "root"
    with loader.Root(folder) as root:
        plan = loader.plan({"photos": write_photos(root).select("jpg", "cls")}, seed=3, global_batch=BATCH)
        train(root, plan, "one")
        items = loader.plan({"rows": loader.items(range(40))}, seed=3, global_batch=BATCH)
        train(root, items, "items", recipe=plain)
        write_photos(root, numbers=range(20, 23))
        write_rollouts(root, steps=1)
        write_decisions(root, range(3))
        with root.write("odd") as writer:
            writer.add(ODD_KEY, {"txt": "a"})
    return folder


@pytest.fixture(scope="module")
def viewer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    command = [sys.executable, "-m", "penstock", "view", "one", "--root", str(folder), "--port", "0"]
    metrics = tmp_path_factory.mktemp("metrics") / "metrics.csv"
    metrics.write_text("step,grad_norm\n" + "".join(f"{step},{40 + step}\n" for step in range(6)))
    command += [
        "--metrics",
        str(metrics),
        "--prefix",
        PREFIX,
        "--recipe",
        "tests.view.recipes:recipe",
        "--allow-writes",
    ]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()}
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with chromium(tmp_path_factory.mktemp("chromium") / "profile") as page:
            yield Viewer(page, address)
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_readable_and_silent(viewer: Viewer, theme: str) -> None:
    viewer.page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    grounds = {}  # whether the page has the colours of tokens.css -> its grounds
    for path, shown in PAGES.items():
        viewer.page.problems.clear()
        viewer.open(path, shown)
        viewer.page.wait_until(
            "pictures stand",
            lambda: viewer.page.value_of("[...document.images].every((one) => one.complete)"),
        )
        broken = viewer.page.value_of(
            "[...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)"
        )
        assert broken == []
        ratio, text = viewer.page.value_of(_CONTRAST)
        assert ratio >= 4.5, (path, text)
        assert viewer.page.value_of(_FOREIGN) == []
        assert viewer.page.value_of("document.documentElement.scrollWidth <= innerWidth"), path
        viewer.press("Tab")
        assert viewer.page.value_of(_FOCUS) == "solid", path
        has_tokens = viewer.page.value_of("document.querySelector('link[href$=\"tokens.css\"]') !== null")
        ground = viewer.page.value_of("getComputedStyle(document.body).backgroundColor")
        grounds.setdefault(has_tokens, set()).add(ground)
        expected = [one for one in viewer.page.problems if "404" in one] if path == "/nowhere" else []
        assert viewer.page.problems == expected
    assert [len(grounds[has_tokens]) for has_tokens in (False, True)] == [1, 1]
    assert viewer.page.problems == expected


def test_every_page_fits_a_narrow_window(viewer: Viewer) -> None:
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    viewer.page.ask("Emulation.setDeviceMetricsOverride", **size)
    try:
        for path, shown in {**PAGES, "/v/odd/1/s/0": "Provenance"}.items():
            viewer.open(path, shown)
            assert viewer.page.value_of("document.documentElement.scrollWidth <= innerWidth"), path
    finally:
        viewer.page.ask("Emulation.clearDeviceMetricsOverride")


def test_server_that_only_reads_tells_the_command_of_a_basket(viewer: Viewer) -> None:
    viewer.open("/v/odd/1/s/0", "Provenance")
    told = viewer.page.value_of(_READ_ONLY)
    command = told.partition("run instead: ")[2]
    assert command.isprintable()
    assert words_of(command) == ["exclude", "--reason", "R", "--by", "WHO", "--", "odd", ODD_KEY]


def test_step_is_found_walked_and_excluded_by_keyboard(viewer: Viewer, folder: Path) -> None:
    viewer.page.problems.clear()
    viewer.open("/r/one", "Starts")
    viewer.press("g")
    viewer.type("2")
    viewer.press("Enter")
    viewer.at("/r/one/2")
    viewer.press("]")
    viewer.at("/r/one/3?world=1&rank=0")
    viewer.press("[")
    viewer.at("/r/one/2?world=1&rank=0")
    viewer.press("ArrowRight", "ArrowRight")
    key = viewer.page.value_of("decodeURIComponent(document.activeElement.dataset.key)")
    with loader.Root(folder) as root:
        plan = loader.open_plan(root, loader.read_trail(root, "one").starts[0].plan)
        assert loader.explain(plan, 2, slot=1)[0].address.key == key
    viewer.press("Enter")
    viewer.at("/r/one/2/1?world=1&rank=0")
    shown = "[...document.querySelectorAll('.stage')].filter((one) => !one.hidden).map((one) => one.dataset.stage)"
    for stage in ("trained", "decoded", "stored", "raw"):
        viewer.press("t")
        assert set(viewer.page.value_of(shown)) == {stage}
    viewer.press("t")
    assert set(viewer.page.value_of(shown)) == {"trained", "decoded", "stored", "raw"}
    viewer.press("ArrowRight")
    viewer.at("/r/one/2/2?world=1&rank=0")
    viewer.press("ArrowLeft")
    viewer.at("/r/one/2/1?world=1&rank=0")
    viewer.press("y")
    viewer.page.wait_for("penstock explain p-")
    viewer.press("?")
    viewer.page.wait_for("add to or remove from the basket")
    viewer.press("Escape")
    viewer.press("b")
    viewer.page.wait_for("1 in the basket")
    viewer.press("u")
    viewer.at("/r/one/2?world=1&rank=0")
    viewer.page.wait_for("1 in the basket")
    viewer.press("x")
    viewer.page.wait_for("Exclude 1 sample")
    viewer.type("a black picture")
    viewer.press("Tab")
    viewer.type("ada")
    viewer.press("Enter")
    viewer.at("/v/photos/2/diff/3")
    assert key in viewer.page.text()
    with loader.Root(folder) as root:
        newest = root.open("photos@3")
        assert len(newest) == 16
        assert key not in newest.keys(range(16))
    assert viewer.page.problems == []


def test_click_on_the_chart_opens_its_step(viewer: Viewer) -> None:
    viewer.open("/r/one", "Starts")
    there = "document.querySelector('.u-over') !== null"
    viewer.page.wait_until("the chart is drawn", lambda: viewer.page.value_of(there))
    place = viewer.page.value_of(
        "(() => { const box = document.querySelector('.u-over').getBoundingClientRect(); "
        "return [box.x, box.y, box.width, box.height]; })()"
    )
    x, y = place[0] + place[2] * 0.6, place[1] + place[3] / 2
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        viewer.page.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    viewer.at("/r/one/3")


_PANELS = """[...document.querySelectorAll('.panel')].map((one) => [
    one.dataset.metric, one.querySelector('.u-title').textContent, one.getAttribute('aria-label'),
])"""


def test_each_metric_has_a_chart_with_an_axis_of_its_own(viewer: Viewer) -> None:
    viewer.open("/r/one", "Starts")
    viewer.page.wait_until("the charts are drawn", lambda: len(viewer.page.value_of(_PANELS)) >= 2)
    panels = {
        name: (title, *map(float, told.split(": ")[1].split(" to ")))
        for name, title, told in viewer.page.value_of(_PANELS)
    }
    assert list(panels)[:2] == ["loss", "grad_norm"]
    assert "substituted" not in panels  # nothing was
    assert all(title == name for name, (title, *_) in panels.items())
    loss, norm = panels["loss"][1:], panels["grad_norm"][1:]
    assert 0.9 < loss[0] <= 1.0 < 1.05 <= loss[1] < 1.2
    assert 30 < norm[0] <= 40 < 45 <= norm[1] < 60


def test_filter_and_a_facet_by_mouse_and_key(viewer: Viewer) -> None:
    viewer.open("/v/photos/1", "14 found")
    viewer.press("/")
    viewer.type("width >= 43")
    viewer.press("Enter")
    viewer.page.wait_for("8 found")
    viewer.page.click("n1 7")
    viewer.page.wait_for("7 found")
