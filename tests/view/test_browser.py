"""Chromium over every page of the viewer: by keyboard and by mouse, in both themes, with a silent console."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.run.trail.step_rows import StepRow, rows_table
from penstock.card.build import build_card
from penstock.card.render import SHEETS, render_html
from penstock.cli import main
from penstock.search.map.stored_map import make_map
from tests.servers.axe import violations
from tests.servers.chromium import Page, chromium
from tests.servers.patience import PATIENCE_S
from tests.view.bad_sample import BAD_KEY, train_run, write_bad_sample
from tests.view.conftest import BATCH, shell_words, train, write_photos
from tests.view.episodes.rig import episode_fields
from tests.view.map_dataset import write_faces
from tests.view.recipes import plain
from tests.view.rollouts.rig import write_rollouts
from tests.view.rollouts.test_decision_pages import write_decisions

pytestmark = pytest.mark.server
PREFIX = "/proxy/view"
PAGES = {
    "/": "Datasets",
    "/r/one": "Starts",
    "/r/one?over=items": "remove",
    "/r/one/2": "digest",
    "/r/one/2/3": "Provenance",
    "/r/items/1": "no digest",
    "/r/items/1/2": "Raw object and Dagster run are not known",
    "/r/one/against/one": "equal",
    "/r/one/window?from=1&to=4": "Mixture",
    "/v/photos/1": "14 found",
    "/v/photos/1?where=width+%3E%3D+43&t=%22note%22+%3D+%27n1%27&as=table&cols=width,note": "4 found",
    "/v/photos/1?where=width+%3E&in=wide": "not an SQL expression",
    "/slices": "photos/wide",
    "/slices/photos/wide": "chosen in",
    "/v/rig/1/s/0": "At the cursor",
    "/v/photos/1/s/3": "Provenance",
    "/v/photos/1/diff/2": "samples only in",
    "/v/photos/1/columns": "commonest values",
    "/v/photos/1/lineage": "No record of a gate",
    "/v/faces/1": "59 of 59 on the map",
    "/v/faces/1/map?colour=label&lasso=0,0;40000,0;0,40000": "inside the lasso",
    "/v/faces/1/groups": "Clusters of the map",
    "/v/photos/1/map": "has no field embedding.npy",
    "/v/rl/1/s/2?from=1024&by=advantages.npy": "Policy versions",
    "/v/rl/1/s/2/group": "mean reward",
    "/r/on/decisions": "in small groups",
    "/r/on/1/decision": "Cursor",
    "/cost": "Cost of datasets",
    "/nowhere": "InvalidRuntime",
}
WITHOUT_SCRIPT = ("/", "/r/one", "/r/one/2", "/r/one/2/3", "/v/photos/1", "/v/photos/1/s/3", "/slices")
_CONTRAST = """(() => {
    const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((one) => one / 255)
        .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = light(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll('main *')]
        .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
        .filter((one) => !one.closest('.tokens, .masked, button, input'))
        .map((one) => {
            const text = light(getComputedStyle(one).color);
            return [(Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05), one.innerText];
        })
        .sort((a, b) => a[0] - b[0])[0];
})()"""
ODD_KEY = "--turned\u202e  's`id`"
_READ_ONLY = """(async () => {
    document.querySelector('meta[name=csrf]').remove();
    const script = document.querySelector('[src*="view.js"]').src;
    const { basket } = await import(`${script.replace('view.js', 'basket.js')}?again`);
    let told;
    basket.begin((text) => { told = text; });
    basket.toggle();
    basket.exclude();
    sessionStorage.clear();
    return told;
})()"""
_READY = "document.readyState === 'complete' && document.body.dataset.keys === 'ready'"
_FOCUS = "getComputedStyle(document.activeElement).outlineStyle"
_PICTURES_STAND = "[...document.images].every((one) => one.complete)"
_BROKEN_PICTURES = "[...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)"
_FOREIGN = """performance.getEntriesByType('resource').map((one) => one.name)
    .filter((one) => new URL(one).origin !== location.origin)"""
_OUTSIDE = f"""[...document.querySelectorAll('[href], [src], form')]
    .map((one) => new URL(one.href?.baseVal ?? one.href ?? one.src ?? one.action, location.href).href)
    .filter((one) => !one.startsWith(`${{location.origin}}{PREFIX}/`))"""
"""Links, files and forms that lead out of the prefix."""
_FITS = "document.documentElement.scrollWidth <= innerWidth"
_SIDEWAYS = """[...document.querySelectorAll('main table, .wide-table, .members')]
    .filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.innerText.slice(0, 80))"""
"""Tables that scroll sideways."""


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
        with root.write("rig") as writer:
            writer.add("ep", episode_fields(1, {}))
        root.save_slice("photos@1", "wide", "width >= 43", by="ann", why="cut off")
        write_bad_sample(root)
        write_faces(root)
        make_map(root, "faces@1")
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


def test_every_page_is_readable_accessible_and_silent(viewer: Viewer, folder: Path) -> None:
    """In both themes. A page is loaded once: its colours follow the theme, its layout the window."""
    grounds: dict[str, set[str]] = {"light": set(), "dark": set()}
    with loader.Root(folder) as root:
        plan = loader.read_trail(root, "one").starts[0].plan
    for path, shown in {**PAGES, f"/r/{plan}": plan[:12]}.items():
        viewer.page.problems.clear()
        viewer.open(path, shown)
        viewer.page.wait_until("pictures stand", lambda: viewer.page.value_of(_PICTURES_STAND))
        assert viewer.page.value_of(_BROKEN_PICTURES) == []
        assert viewer.page.value_of(_FOREIGN) == []
        assert viewer.page.value_of(_OUTSIDE) == [], path
        assert viewer.page.value_of(_FITS), path
        for theme in grounds:
            viewer.page.show_theme(theme)
            ratio, text = viewer.page.value_of(_CONTRAST)
            assert ratio >= 4.5, (path, theme, text)
            assert violations(viewer.page) == {}, (path, theme)
            ground = viewer.page.value_of("getComputedStyle(document.body).backgroundColor")
            grounds[theme].add(ground)
        viewer.press("Tab")
        assert viewer.page.value_of(_FOCUS) == "solid", path
        viewer.page.resize(390, 844)
        viewer.page.wait_until(f"{path} fits", lambda: viewer.page.value_of(_FITS))
        assert viewer.page.value_of(_SIDEWAYS) == [], path
        viewer.page.ask("Emulation.clearDeviceMetricsOverride")
        expected = [one for one in viewer.page.problems if "404" in one] if path == "/nowhere" else []
        assert viewer.page.problems == expected
    assert len(grounds["light"]) == len(grounds["dark"]) == 1
    assert grounds["light"] != grounds["dark"]


def test_axe_names_a_planted_fault(viewer: Viewer) -> None:
    viewer.open("/", "Datasets")
    viewer.page.value_of("document.querySelector('main').append(document.createElement('button')); null")
    assert violations(viewer.page) == {"button-name": ["<button></button>"]}


def test_every_page_fits_a_narrow_window(viewer: Viewer) -> None:
    viewer.page.resize(390, 844)
    try:
        # A narrow window shows no headers of tables.
        pages = {**PAGES, "/v/odd/1/s/0": "Provenance", "/v/photos/1/columns": "Columns of photos@1"}
        for path, shown in pages.items():
            viewer.open(path, shown)
            viewer.page.wait_until(f"{path} fits", lambda: viewer.page.value_of(_FITS))
    finally:
        viewer.page.ask("Emulation.clearDeviceMetricsOverride")


def test_pages_work_without_script(viewer: Viewer) -> None:
    """Facets and the filter are links and forms, and stay below the prefix."""
    viewer.page.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        for path in WITHOUT_SCRIPT:
            viewer.page.open(f"{viewer.base}{path}", PAGES[path])
            assert viewer.page.value_of("document.body.dataset.keys") is None
            assert not viewer.page.value_of("document.querySelector('.choice')?.getClientRects().length")
        viewer.page.open(f"{viewer.base}/v/photos/1", "14 found")
        viewer.page.click("n1\n7")
        viewer.page.wait_for("7 found")
        viewer.page.value_of("document.querySelector('#filter').focus()")
        viewer.type("width >= 43")
        viewer.press("Enter")
        viewer.page.wait_for("4 found")
        viewer.page.value_of("document.querySelector('[name=sort]').focus()")
        viewer.type("-width")
        viewer.page.click("Show")
        viewer.page.wait_until(
            "sorted", lambda: viewer.page.value_of("location.search").endswith("sort=-width")
        )
        viewer.page.wait_for("4 found")
        keys = "[...document.querySelectorAll('.card code')].map((one) => one.textContent)"
        assert viewer.page.value_of(keys) == ["p/13", "p/5", "p/11", "p/3"]
        assert viewer.page.value_of("location.pathname") == f"{PREFIX}/v/photos/1"
        viewer.page.value_of("document.querySelector('.histogram').click()")
        viewer.page.wait_until(
            "the facet is open", lambda: viewer.page.value_of("!!document.querySelector('[name=low]')")
        )
        viewer.page.value_of("document.querySelector('[name=high]').value = '43'")
        viewer.page.value_of("document.querySelector('[name=high]').form.requestSubmit()")
        viewer.page.wait_for("1 found", '"width" >= ')
        viewer.page.open(f"{viewer.base}/slices", "photos/wide")
        viewer.page.click("photos/wide")
        viewer.page.wait_for("chosen in", "width")
        viewer.page.click("open the other samples")
        viewer.page.wait_for("found", "not wide")
    finally:
        viewer.page.ask("Emulation.setScriptExecutionDisabled", value=False)


def test_server_that_only_reads_tells_the_command_of_a_basket(viewer: Viewer) -> None:
    viewer.open("/v/odd/1/s/0", "Provenance")
    told = viewer.page.value_of(_READ_ONLY)
    command = told.partition("run instead: ")[2]
    assert command.isprintable()
    assert shell_words(command) == ["exclude", "--reason", "R", "--by", "WHO", "--", "odd", ODD_KEY]


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


_LOSS = "document.querySelector('[data-metric=loss] .here').textContent"
_BOX = """(() => {
    const box = document.querySelector('[data-metric=loss] canvas').getBoundingClientRect();
    return [box.x, box.y, box.width, box.height];
})()"""


def _hover(viewer: Viewer, share: float) -> None:
    x, y, width, height = viewer.page.value_of(_BOX)
    viewer.page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x + width * share, y=y + height / 2)


def _drag(viewer: Viewer, *shares: float) -> None:
    """Press the mouse on the chart of the loss, move it over these shares of its width, and let go."""
    x, y, width, height = viewer.page.value_of(_BOX)
    kinds = ["mouseMoved", "mousePressed", *["mouseMoved"] * (len(shares) - 1), "mouseReleased"]
    places = [shares[0], *shares, shares[-1]]
    for kind, share in zip(kinds, places, strict=True):
        place = {"x": x + width * share, "y": y + height / 2, "button": "left", "clickCount": 1}
        viewer.page.ask("Input.dispatchMouseEvent", type=kind, **place)


def _open_charts(viewer: Viewer) -> None:
    viewer.open("/r/one", "Starts")
    viewer.page.wait_until("the chart is drawn", lambda: viewer.page.value_of(_LOSS) != "")


def test_bad_sample_is_found_named_and_excluded(
    viewer: Viewer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the first page to the next training, which lacks the sample; `explain` tells why."""
    viewer.page.problems.clear()
    viewer.open("/", "loss-not-finite")
    viewer.page.value_of("document.querySelector('.attention a').click()")
    viewer.page.wait_for("digest")
    step, slot = _place_of_the_bad_sample(folder)
    viewer.at(f"/r/old/{step}")
    viewer.page.value_of("document.querySelector('.card.bad').click()")
    viewer.at(f"/r/old/{step}/{slot}?world=1&rank=0")
    viewer.page.wait_for("black")
    viewer.press("b")
    viewer.page.wait_for("1 in the basket")
    viewer.press("s")
    viewer.page.wait_for("Save as a slice")
    for value in ("covers", "lens cap", "ada"):
        viewer.type(value)
        viewer.press("Tab")
    viewer.press("Enter")
    viewer.page.wait_for("saved: slice planted/covers")
    viewer.open("/slices", "lens cap")
    viewer.page.click("planted/covers")
    viewer.at("/slices/planted/covers")
    viewer.page.wait_for(BAD_KEY)
    viewer.page.value_of("document.querySelector('[data-press=\"slice/exclude\"]').click()")
    viewer.page.wait_for("Your name")
    for value in ("lens cap", "ada"):
        viewer.type(value)
        viewer.press("Tab")
    viewer.press("Enter")
    viewer.at("/v/planted/1/diff/2")
    assert viewer.page.problems == []

    root_option = ["--root", str(folder)]
    with loader.Root(folder) as root:
        version = root.open("planted@latest")
        assert version.name == "planted@2"
        view = version.select("jpg", "cls").without("covers")
        assert train_run(root, view, "new") == []
    capsys.readouterr()
    assert main(["explain", f"old@{step}", "--slot", str(slot), *root_option]) == 0
    assert 'excluded since planted@2: slice planted/covers, ada: "lens cap"' in capsys.readouterr().out
    assert main(["explain", "new@0", *root_option]) == 0
    assert "covers" in capsys.readouterr().out


def _place_of_the_bad_sample(folder: Path) -> tuple[int, int]:
    with loader.Root(folder) as root:
        plan = loader.open_plan(root, loader.read_trail(root, "old").starts[0].plan)
        place = next(iter(plan.steps_of("photos", BAD_KEY, before=5)))
    return place[0], place[1]


def test_click_on_the_chart_opens_its_step(viewer: Viewer) -> None:
    _open_charts(viewer)
    _drag(viewer, 0.6)
    viewer.at("/r/one/3")


def test_values_follow_the_pointer_and_a_drag_zooms_every_chart(viewer: Viewer) -> None:
    viewer.page.problems.clear()
    _open_charts(viewer)
    assert viewer.page.value_of(_LOSS).startswith("step 5: ")
    _drag(viewer, 0.2, 0.5, 0.8)
    range_text = "document.querySelector('#ruler').getAttribute('aria-label')"
    assert viewer.page.value_of(range_text) == "steps 1 to 4"
    _hover(viewer, 0.4)
    assert viewer.page.value_of(_LOSS).startswith("step 2: ")
    viewer.page.click("All steps")
    assert viewer.page.value_of(range_text) == "steps 0 to 5"
    _hover(viewer, 0.6)
    assert viewer.page.value_of(_LOSS).startswith("step 3: ")
    assert viewer.page.problems == []


def test_keys_move_the_cursor_of_a_focused_chart_and_open_its_step(viewer: Viewer) -> None:
    _open_charts(viewer)
    chart = "document.querySelector('[data-metric=loss] canvas')"
    viewer.page.value_of(f"{chart}.focus()")
    for key, step in (("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("End", 5), ("ArrowRight", 5)):
        viewer.press(key)
        assert viewer.page.value_of(f"{chart}.ariaValueText").startswith(f"step {step}: ")
        assert viewer.page.value_of(_LOSS).startswith(f"step {step}: ")
    viewer.press("ArrowLeft")
    viewer.press("Enter")
    viewer.at("/r/one/4")


def test_keys_walk_the_steps_between_the_drawn_ones_of_a_long_run(viewer: Viewer, folder: Path) -> None:
    """Of 3,001 steps about half are drawn. Page keys go from one drawn step to the next."""
    with loader.Root(folder) as root:
        items = loader.plan({"rows": loader.items(range(40))}, seed=3, global_batch=BATCH)
        train(root, items, "long", recipe=plain, steps=1)
        (start,) = loader.read_trail(root, "long").starts
        rows = [
            StepRow(
                step=step,
                at_us=start.at_us + step,
                digest=step,
                substituted=0,
                wait_us=step * 7919 % 3000,
                notes={"loss": float(step * 7919 % 3001)},
            )
            for step in range(1, 3001)
        ]
        data = table_bytes(rows_table(rows, start.id), "trail")
        root.store.put(f"trails/long/0-of-1/{1:019d}-{1:016x}.parquet", data)
    viewer.open("/r/long", "Starts")
    viewer.page.wait_until("the chart is drawn", lambda: viewer.page.value_of(_LOSS) != "")
    record = viewer.page.value_of("fetch('long.json').then((one) => one.json())")
    steps = record["chart"]["step"]
    missing = next(first + 1 for first, second in pairwise(steps) if second > first + 3)
    chart = "document.querySelector('[data-metric=loss] canvas')"
    viewer.page.value_of(f"{chart}.focus()")
    viewer.press("Home")
    while viewer.page.value_of(f"{chart}.ariaValueNow") != str(missing - 1):
        viewer.press("PageDown")
    viewer.press("ArrowRight")
    before = viewer.page.value_of(_LOSS)
    assert before.startswith(f"step {missing}, nearest drawn {missing - 1}: ")
    viewer.press("ArrowRight", "ArrowRight", "ArrowLeft")
    viewer.press("Enter")
    viewer.at(f"/r/long/{missing + 1}")


_PANELS = """[...document.querySelectorAll('[data-metric]')].map((one) => [
    one.dataset.metric, one.querySelector('b').textContent, one.getAttribute('aria-label'),
])"""


def test_each_metric_has_a_chart_with_an_axis_of_its_own(viewer: Viewer) -> None:
    _open_charts(viewer)
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


# The colour of a chart's foot at each of five steps, and of the two tokens.
_FEET = """(() => {
    const canvas = document.querySelector('[data-metric=loss] canvas'), c = canvas.getContext('2d');
    const [width, y] = [canvas.width - 1, Math.round(canvas.height * 0.96)];
    const pixel = (x) => `rgb(${[...c.getImageData(x, y, 1, 1).data].slice(0, 3).join(', ')})`;
    const token = (name) => {
        document.body.style.setProperty('outline-color', `var(--${name})`);
        return getComputedStyle(document.body).outlineColor;
    };
    const feet = [0, 1, 2, 3, 4].map((step) => pixel(Math.min(width - 1, Math.round(width * step / 4) + 1)));
    return feet.map((colour) => ({ [token('bad')]: 'bad', [token('quiet')]: 'quiet' })[colour] ?? '');
})()"""


def test_new_steps_appear_and_nan_differs_from_missing(viewer: Viewer, folder: Path) -> None:
    """Step 2 has no loss, step 3 a NaN, and step 4 a value."""
    losses: dict[int, dict[str, float]] = {2: {}, 3: {"loss": float("nan")}, 4: {"loss": 1.5}}
    with loader.Root(folder) as root:
        items = loader.plan({"rows": loader.items(range(40))}, seed=3, global_batch=BATCH)
        train(root, items, "live", recipe=plain, steps=2)
        viewer.open("/r/live", "Starts")
        viewer.page.wait_until("step 1 is shown", lambda: viewer.page.value_of(_LOSS).startswith("step 1: "))
        (start,) = loader.read_trail(root, "live").starts
        rows = [
            StepRow(step=step, at_us=start.at_us + step, digest=step, substituted=0, wait_us=5, notes=notes)
            for step, notes in losses.items()
        ]
        data = table_bytes(rows_table(rows, start.id), "trail")
        root.store.put(f"trails/live/0-of-1/{2:019d}-{2:016x}.parquet", data)
    viewer.page.wait_until("step 4 is shown", lambda: viewer.page.value_of(_LOSS).startswith("step 4: 1.500"))
    viewer.page.wait_until(
        "feet are drawn", lambda: viewer.page.value_of(_FEET) == ["", "", "quiet", "bad", ""]
    )


def test_filter_and_a_facet_by_mouse_and_key(viewer: Viewer) -> None:
    viewer.open("/v/photos/1", "14 found")
    viewer.page.value_of("window.mark = 'same page'")
    viewer.press("/")
    viewer.type("width >= 43")
    viewer.press("Enter")
    viewer.page.wait_for("8 found")
    viewer.page.value_of(
        "[...document.querySelectorAll('.values a')].find((one) => one.innerText.includes('n1')).click()"
    )
    count = "document.querySelector('.count').innerText"
    viewer.page.wait_until("four are found", lambda: viewer.page.value_of(count) == "4 found")
    assert viewer.page.value_of("window.mark") == "same page"
    assert "t=%22note%22" in viewer.page.value_of("location.search")
    record = viewer.page.value_of(
        "fetch(document.querySelector('a.json').href).then((answer) => answer.json())"
    )
    assert (record["n_found"], record["where"]) == (4, "width >= 43")


def test_cards_are_ticked_by_their_box_and_by_space(viewer: Viewer) -> None:
    viewer.open("/v/photos/1", "14 found")
    viewer.page.value_of("sessionStorage.clear()")
    viewer.open("/v/photos/1", "14 found")
    box = "document.querySelectorAll('.card')[1].getBoundingClientRect()"
    x, y = viewer.page.value_of(f"[{box}.x + 12, {box}.y + 12]")
    for kind in ("mousePressed", "mouseReleased"):
        viewer.page.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    viewer.page.wait_for("1 in the basket")
    viewer.press("ArrowRight", " ")
    viewer.page.wait_for("2 in the basket")
    picked = "[...document.querySelectorAll('.card')].map((one) => one.classList.contains('picked'))"
    assert viewer.page.value_of(picked)[:4] == [False, True, True, False]
    assert viewer.page.value_of("location.pathname") == f"{PREFIX}/v/photos/1"
    viewer.press(" ", "ArrowLeft", " ")
    viewer.page.wait_until(
        "it is empty", lambda: viewer.page.value_of("document.querySelector('#tray').hidden")
    )
    boxes = "[...document.querySelectorAll('.samples [type=checkbox]')]"
    named = f"{boxes}.map((one) => one.ariaLabel)"
    keys = "[...document.querySelectorAll('.samples [data-key] code')].map((one) => one.textContent)"
    for layout in ("", "?as=table"):
        viewer.open(f"/v/photos/1{layout}", "14 found")
        assert viewer.page.value_of(named) == viewer.page.value_of(keys)
        viewer.page.value_of(f"{boxes}[3].focus()")
        viewer.press(" ")
        viewer.page.wait_for("1 in the basket")
        viewer.press("ArrowRight", "b")
        viewer.page.wait_for("2 in the basket")
        assert viewer.page.value_of(f"{boxes}.map((one) => one.checked)")[2:6] == [False, True, True, False]
        viewer.press("b", "ArrowLeft", "Tab")
        viewer.page.value_of(f"{boxes}[3].click()")
        assert viewer.page.value_of("document.querySelector('#tray').hidden")
    viewer.open("/v/photos/1", "14 found")
    viewer.page.value_of(
        "(() => { const size = document.querySelector('#thumb-size'); size.value = '240';"
        " size.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )
    assert viewer.page.value_of(f"{box}.width") >= 240


def test_facet_values_are_checkboxes_that_space_ticks(viewer: Viewer) -> None:
    viewer.open("/v/photos/1", "14 found")
    value = "[...document.querySelectorAll('[role=checkbox]')].find((one) => one.innerText.includes('n1'))"
    for n_found, checked in (("7 found", "true"), ("14 found", "false")):
        viewer.page.value_of(f"{value}.focus()")
        viewer.press(" ")
        viewer.page.wait_for(n_found)
        assert viewer.page.value_of(f"{value}.getAttribute('aria-checked')") == checked


def test_range_of_a_histogram_finds_its_bins(viewer: Viewer) -> None:
    """By keyboard: the first two bins of width; then the whole range by the mouse."""
    viewer.open("/v/photos/1", "14 found")
    record = viewer.page.value_of("fetch('1.json?facet=width').then((answer) => answer.json())")
    bins = next(facet for facet in record["facets"] if facet["column"] == "width")["bins"]
    viewer.page.value_of("document.querySelector('.histogram').focus()")
    for key, modifiers in (("ArrowLeft", 0), ("ArrowRight", 8)):
        viewer.page.ask("Input.dispatchKeyEvent", type="keyDown", key=key, modifiers=modifiers)
    viewer.press("Enter")
    n_found = bins[0]["n"] + bins[1]["n"]
    count = "document.querySelector('.count').innerText"
    viewer.page.wait_until("two bins are found", lambda: viewer.page.value_of(count) == f"{n_found} found")
    box = "(() => { const box = document.querySelector('.histogram').getBoundingClientRect();"
    x, y, width = viewer.page.value_of(f"{box} return [box.x, box.y + box.height / 2, box.width]; }})()")
    for kind, share in (("mousePressed", 0.001), ("mouseMoved", 0.5), ("mouseReleased", 0.999)):
        place = {"x": x + share * width, "y": y, "button": "left", "clickCount": 1}
        viewer.page.ask("Input.dispatchMouseEvent", type=kind, **place)
    viewer.page.wait_until("all are found", lambda: viewer.page.value_of(count) == "14 found")


def test_filter_by_a_slice_is_saved_as_a_list(viewer: Viewer, folder: Path) -> None:
    """A rule has SQL alone: it would have more samples than the page finds."""
    viewer.open("/v/photos/1?in=wide&t=%22note%22+%3D+%27n1%27", "4 found", "Save as slice")
    viewer.press("s")
    viewer.page.wait_for("a list: the 4 samples of photos@1")
    for value in ("wide-n1", "cut off", "ada"):
        viewer.type(value)
        viewer.press("Tab")
    viewer.press("Enter")
    viewer.page.wait_for("saved: slice photos/wide-n1")
    with loader.Root(folder) as root:
        assert len(root.open("photos@1").slice("wide-n1")) == 4


def test_wrong_filter_stays_in_its_box(viewer: Viewer) -> None:
    viewer.open("/v/photos/1", "14 found")
    viewer.press("/")
    viewer.type("width >")
    viewer.press("Enter")
    viewer.page.wait_for("not an SQL expression", "14 found")
    assert viewer.page.value_of("document.querySelector('#filter').value") == "width >"


def test_slice_is_removed_by_a_button_and_a_reason(viewer: Viewer, folder: Path) -> None:
    with loader.Root(folder) as root:
        root.save_slice("photos@1", "cats", ["p/3"], by="ada", why="a mistake")
    viewer.page.problems.clear()
    viewer.open("/v/photos/1?in=cats", "1 found")
    viewer.page.value_of("document.querySelector('[data-press=\"slice/remove\"]').click()")
    viewer.page.wait_for("photos/cats ends")
    viewer.type("not needed")
    viewer.press("Tab")
    viewer.type("eve")
    viewer.press("Enter")
    viewer.at("/slices")
    with loader.Root(folder) as root:
        listed = root.store.list("slices/photos/cats/")
        assert [info.key[-11:] for info in listed if info.key.endswith(".json")] == [
            "000001.json",
            "000002.json",
        ]
    assert viewer.page.problems == []


def test_dataset_card_and_gate_page_have_the_viewer_s_look(
    viewer: Viewer, folder: Path, tmp_path: Path
) -> None:
    """Each is one file, readable and without faults of axe-core in both themes, wide and narrow."""
    from assets.checks.outcome import CheckResult
    from assets.pages.gate_page import render

    with loader.Root(folder) as root:
        card = render_html(build_card(root, root.open("photos@1")))
    outcomes = [
        CheckResult(name="drift", passed=False, explanation="half of it"),
        CheckResult(name="blank", passed=True, explanation="nothing stands out"),
    ]
    gate = render("photos 1", {"batch": "000001", "verdict": "stopped"}, outcomes, "")
    tokens = (SHEETS / "tokens.css").read_text().strip()
    for name, html in {"card": card, "gate": gate}.items():
        assert tokens in html
        file = tmp_path / f"{name}.html"
        file.write_text(html)
        viewer.page.problems.clear()
        viewer.page.open(file.as_uri(), "penstock")
        for theme in ("light", "dark"):
            viewer.page.show_theme(theme)
            assert violations(viewer.page) == {}, (name, theme)
        viewer.page.resize(390, 844)
        try:
            viewer.page.wait_until(f"{name} fits", lambda: viewer.page.value_of(_FITS))
            assert violations(viewer.page) == {}, name
        finally:
            viewer.page.ask("Emulation.clearDeviceMetricsOverride")
        assert viewer.page.problems == []
