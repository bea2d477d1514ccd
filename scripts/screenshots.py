"""Write the pictures of the documentation: pages of the demo in Chromium, and the viewer in a terminal.

    python -m scripts.screenshots [--into /tmp/penstock] [NAME ...]

Runs the demo and the planted training first, unless they are in `--into`. Look at every picture before you commit it.
"""

import argparse
import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

import loader
from assets.checks import CheckResult
from assets.drift.compare import DRIFT_CHECKS, GateInputs
from assets.pages.gate_page import plot_findings, render
from benchmarks.gates.regressions import REGRESSIONS
from benchmarks.gates.trial import DEFAULTS, published
from benchmarks.gates.world import delivery
from penstock.view.open_data import OpenData
from penstock.view.terminal.addresses import StepPage
from penstock.view.terminal.viewer_app import ViewerApp
from tests.servers.chromium import Page, chromium
from tests.servers.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGES = REPOSITORY / "docs" / "images"
RECIPE = "examples.planted:recipe"
PLANTED = (
    "a camera gone black in a third of its clips",
    "half of the speech at half the sample rate",
    "rotation ignored by the cutter",
)
"""Regressions on the picture of a gate's page."""
PLOT = """[...document.querySelectorAll('tr')].filter((row) => row.innerText.trim().split('\\n')[0] === 'plot')
    .flatMap((row) => [...row.querySelectorAll('*')])
    .find((one) => one.innerText === '[Show Markdown]' && !one.children.length)"""

STACK = """(() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (texts.nextNode()) {
        const at = texts.currentNode.data.indexOf('Stack Trace:');
        if (at < 0) continue;
        range.setStart(texts.currentNode, at);
        range.setEnd(texts.currentNode, at + 1);
        return range.getBoundingClientRect().y;
    }
})()"""
"""Distance of a failure's stack from the top of the window, in px."""


def main() -> int:
    """Write the named pictures, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path("/tmp/penstock"), help="folder of the demo")
    parser.add_argument("names", nargs="*", help="pictures, such as lineage; default: all")
    options = parser.parse_args()
    into: Path = options.into.resolve()
    if not (into / "planted" / "root").is_dir():
        run(["examples.demo", "--into", str(into)])
        run(["examples.planted", "--demo", str(into), "--into", str(into / "planted")])
    with TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as page:
        shots = Shots(page, Path(folder), into, options.names)
        shots.files()
        shots.terminal()
        shots.viewer()
        shots.episode()
        shots.dagster()
    return 0


class Shots:
    """Pictures of one browser. names: those to write; all if empty."""

    def __init__(self, page: Page, scratch: Path, into: Path, names: list[str]) -> None:
        self._page, self._scratch, self._into, self._names = page, scratch, into, names
        page.ask("Emulation.setScrollbarsHidden", hidden=True)

    def _wanted(self, *names: str) -> bool:
        return not self._names or bool({*names} & {*self._names})

    def _size(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._page.ask("Emulation.setDeviceMetricsOverride", **size)

    def _shot(self, name: str, height: float = 0) -> None:
        """Write the window, or its upper part, once two frames are equal. Without photos 256 colours suffice."""
        before = ""
        while (data := self._page.ask("Page.captureScreenshot", format="png")["data"]) != before:
            before = data
            self._page.value_of("new Promise((done) => setTimeout(done, 500))")
        if self._wanted(name):
            picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
            picture = picture.crop((0, 0, picture.width, round(height) or picture.height))
            if name not in ("view-step", "view-home", "view-version"):
                picture = picture.quantize(256, dither=Image.Dither.NONE)
            picture.save(IMAGES / f"{name}.png", optimize=True)

    def files(self) -> None:
        """A dataset card, and a gate's page over the feed of benchmarks/gates."""
        if self._wanted("card"):
            path = self._scratch / "card.html"
            card = ["card", "demo", "--root", self._into / "root", "--html", path]
            run(["penstock", *map(str, card)])
            self._size(1200, 1330)
            self._page.open(path.as_uri(), "Distributions")
            self._shot("card")
        if self._wanted("gate"):
            path = self._scratch / "gate.html"
            path.write_text(gate_page())
            self._size(1000, 1210)
            self._page.open(path.as_uri(), "Before and after")
            self._shot("gate")

    def terminal(self) -> None:
        """The step with the black photo, as `penstock tui` shows it."""
        if self._wanted("view-terminal"):
            path = self._scratch / "terminal.svg"
            path.write_text(asyncio.run(terminal_svg(self._into / "planted" / "root")))
            self._page.ask("Page.navigate", url=path.as_uri())
            self._page.wait_until("it is drawn", lambda: self._page.value_of("Boolean(document.rootElement)"))
            box = "(() => {const b = document.rootElement.viewBox.baseVal; return [b.width, b.height]})()"
            width, height = self._page.value_of(box)
            self._size(round(width * 0.75), round(height * 0.75))
            self._shot("view-terminal")

    def viewer(self) -> None:
        """The first page, a version, and the run, a step and a slot of the planted training."""
        if not self._wanted("view-home", "view-version", "view-run", "view-step", "view-exclude"):
            return
        root = self._into / "planted" / "root"
        run(["penstock", "index", "demo@1", "--map", "--root", str(root)])
        command = ["view", "planted", "--root", root, "--recipe", RECIPE, "--allow-writes", "--port", 0]
        with server(["penstock", *map(str, command)], {}) as lines:
            url = next(word for line in lines for word in line.split() if word.startswith("http"))
            self._size(1280, 800)
            self._page.open(url, "planted", "Unusual steps")
            self._shot("view-run")
            base = self._page.value_of("location.origin")
            self._size(1280, 520)
            self._page.open(base, "Needs attention", "gate passed")
            self._shot("view-home")
            self._size(1280, 760)
            wide = urllib.parse.quote('"width_px" > 300')
            self._page.open(f"{base}/v/demo/1?t={wide}", "10 found")
            self._shot("view-version")
            self._size(1280, 770)
            self._page.open(f"{base}/r/planted/3", "tensors", "slot 2")
            self._shot("view-step")
            self._size(1280, 800)
            self._page.open(f"{base}/r/planted/3/2", "Raw object", "Exclude…")
            ready = "document.body.dataset.keys === 'ready'"
            self._page.wait_until("buttons are heard", lambda: self._page.value_of(ready))
            for kind in ("keyDown", "keyUp"):
                self._page.ask(
                    "Input.dispatchKeyEvent", type=kind, key="x", text="x" if kind == "keyDown" else ""
                )
            self._page.wait_for("Exclude 1 sample")
            for field, text in (("reason", "paper: one colour"), ("by", "ada")):
                self._page.value_of(f"document.querySelector('#exclude [name={field}]').focus()")
                self._page.ask("Input.insertText", text=text)
            self._page.value_of("document.activeElement.blur()")
            self._shot("view-exclude")

    def episode(self) -> None:
        """A robot's episode of the corpus of real media, with the windows of a training."""
        if not self._wanted("view-episode"):
            return
        media = os.environ.get("PENSTOCK_MEDIA")
        if not media:
            raise SystemExit("view-episode: set PENSTOCK_MEDIA to the corpus of real media")
        root = self._scratch / "robot"
        place = Path(media) / "robot" / "g1_lerobot_v21"
        run(["penstock", "import", "lerobot", "--root", str(root), "--episodes", "10-12", str(place), "g1"])
        train_windows(root)
        with server(["penstock", "view", "--root", str(root), "--port", "0"], {}) as lines:
            url = next(word for line in lines for word in line.split() if word.startswith("http"))
            self._size(1440, 1080)
            self._page.open(url, "penstock")
            base = self._page.value_of("location.origin")
            self._page.open(f"{base}/v/g1/1/s/0?row=137&run=big-7", "windows, steps")
            self._shot("view-episode")

    def dagster(self) -> None:
        """The demo's assets, checks and runs in Dagster."""
        if not self._wanted("lineage", "blocked", "plot", "run"):
            return
        port = free_port()
        command = ["examples.demo.ui", "--into", str(self._into), "--port", str(port)]
        with server(command, {"DAGSTER_DISABLE_TELEMETRY": "yes"}):
            url = f"http://127.0.0.1:{port}"
            self._page.wait_until("Dagster answers", lambda: answers(url))
            asset = f"{url}/assets/demo"
            self._size(1400, 665)
            self._page.open(url, "Hide navigation")
            self._page.click("Hide navigation")
            upstream = "view=lineage&lineageScope=upstream&lineageDepth=4"
            self._page.open(f"{asset}/version?{upstream}", "units", "raw_objects")
            self._shot("lineage")
            self._size(1300, 670)
            self._page.open(
                f"{asset}/version?view=checks&checkDetail=audio_rate", "audio_rate", "Latest execution"
            )
            self._shot("blocked")
            self._size(1300, 740)
            first = first_batch(url)
            self._page.open(
                f"{asset}/feature_picture?view=partitions&partition={first}", "Latest materialization"
            )
            self._page.wait_until("there is a plot", lambda: self._page.value_of(f"Boolean({PLOT})"))
            self._page.value_of(f"{PLOT}.click()")
            self._shot("plot")
            self._size(1300, 950)
            self._page.open(
                f"{url}/runs/{failed_release(url)}?logFileKey=&logs=type%3ARUN_FAILURE",
                "RUN_FAILURE",
                "was published",
            )
            self._page.wait_until("its end is in the window", lambda: self._page.value_of(STACK))
            self._shot("run", self._page.value_of(STACK) - 8)


def train_windows(root: Path) -> None:
    """Record the run big-7 over windows of g1@1."""
    with loader.Root(root) as opened:
        episodes = opened.open("g1@1").select("action.npy", "observation.state.npy")
        windows = loader.windows(
            episodes,
            anchor="action.npy",
            at={"observation.state.npy": [0], "action.npy": loader.rows(0, 50)},
        )
        plan = loader.plan({"g1": windows}, seed=7, global_batch=8)
        trail = loader.Trail(opened, "big-7", ranks="all")
        with loader.Loader(plan, steps=12, framework="numpy", trail=trail) as batches:
            for batch in batches:
                loss = np.abs(batch["action.npy"][:, -1] - batch["observation.state.npy"][:, 0]).mean(axis=1)
                batches.note(loss=float(loss.mean()), per_sample={"loss": loss})


def gate_page() -> str:
    """Return the page of a batch with planted regressions."""
    feed = delivery(77)
    for name in PLANTED:
        feed = REGRESSIONS[name].plant(feed)
    compared = GateInputs(
        now=feed.facts(), baseline=published(), newest=None, protected=(), thresholds=DEFAULTS
    )
    results: list[CheckResult] = [check(compared) for check in DRIFT_CHECKS.values()]
    stopping = ", ".join(one.name for one in results if one.stops)
    facts = {
        "batch": "000007-4be1c09a",
        "verdict": f"stopped by {stopping}",
        "samples": f"{len(feed.samples)} of {len(feed.objects)} objects",
        "compared with": "feed@6",
    }
    return render("feed 000007-4be1c09a", facts, results, plot_findings(compared, results))


async def terminal_svg(root: Path) -> str:
    """Return the viewer's page of step 2, with the cursor at the black photo, as an SVG image."""
    data = OpenData(loader.Root(root), RECIPE, quiet=True)
    try:
        app = ViewerApp(data, StepPage(run="planted", step=2, slot=3), "halves")
        async with app.run_test(size=(100, 26)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause(2)
            return app.export_screenshot(title="penstock tui planted --step 2")
    finally:
        data.close()


def run(command: list[str]) -> None:
    """Run a module to its end."""
    subprocess.run([sys.executable, "-m", *command], check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)


@contextmanager
def server(command: list[str], environment: Mapping[str, str]) -> Iterator[Iterator[str]]:
    """Run a module in a session of its own; yield the lines that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield iter(process.stdout)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def answers(url: str) -> bool:
    """Return whether Dagster has loaded the demo."""
    try:
        return bool(ask(url, "{ assetNodes { id } }")["assetNodes"])
    except (OSError, KeyError):
        return False


def first_batch(url: str) -> str:
    """Return the partition of the demo's first batch."""
    key = '{path: ["demo", "feature_picture"]}'
    query = f"{{ assetNodeOrError(assetKey: {key}) {{ ... on AssetNode {{ partitionKeys }} }} }}"
    return str(min(ask(url, query)["assetNodeOrError"]["partitionKeys"]))


def failed_release(url: str) -> str:
    """Return the id of the release that the gate stopped."""
    failed = '{pipelineName: "demo_release", statuses: [FAILURE]}'
    query = f"{{ runsOrError(filter: {failed}) {{ ... on Runs {{ results {{ runId }} }} }} }}"
    return str(ask(url, query)["runsOrError"]["results"][0]["runId"])


def ask(url: str, query: str) -> dict[str, Any]:
    """Return an answer of Dagster's GraphQL."""
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        data: dict[str, Any] = json.load(answer)["data"]
        return data


if __name__ == "__main__":
    raise SystemExit(main())
