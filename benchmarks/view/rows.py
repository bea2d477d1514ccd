"""What is measured: each function takes a root and gives rows of the page's table."""

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq

import loader
from penstock.view.open_items import FRESH_S

from ..latency_server import BUCKET, CREDENTIALS, latency_store
from ..meter import cpu_s, memory_bytes, process_s
from ..page import judged, shown
from .browser import WINDOW, Viewer, percentile
from .world import LONG_RUN, RUN, Sizes, longer_run, stored_photos

RECIPE = ("--recipe", "benchmarks.view.recipe:recipe")
FILTERS = (
    "width_px > 500 AND label = 'cat'",
    "height_px < 300 AND score > 0.5 AND language = 'en' AND width_px > 100 AND label != 'dog' AND caption LIKE 'a f%'",
)
EDGE_PX = 192
TURN_STEPS = 50
OF_FILES = "  - of them pages of files, libraries among them"
LOOKED_S = 4
"""Seconds that a person looks at a step before going on to the next."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the page; a detail begins with "-". goal: a number of `unit` for `values`; None for a fact beside.

    values: none where it could not be measured, which `what` explains.
    """

    what: str
    values: list[float]
    unit: str
    goal: float | None = None
    more_is_better: bool = False
    digits: int = 2

    def __str__(self) -> str:
        goal = ""
        if self.goal is not None:
            goal = f" ({'≥' if self.more_is_better else '≤'} {self.goal:g})"
        figure = f"{shown(self.values, self.digits)} {self.unit}".rstrip() if self.values else "not measured"
        return (
            f"{'  ' * self.is_detail}- {self.what.lstrip(' -')}: {judged(figure, not self.is_missed)}{goal}"
        )

    @property
    def is_missed(self) -> bool:
        """Whether the median misses the goal."""
        if self.goal is None:
            return False
        value = median(self.values)
        return value < self.goal if self.more_is_better else value > self.goal

    @property
    def is_detail(self) -> bool:
        """Whether the page has the row only if it misses its goal."""
        return self.what.lstrip().startswith("-")


def table_lines(head: str, rows: Iterable[Row], **words: object) -> list[str]:
    """Return the lines of a page: a head with these words in it, and the rows."""
    kept = (str(row) for row in rows if row.is_missed or not row.is_detail)
    return [*(line.rstrip() for line in head.format(**words).splitlines()), *kept]


def first_paint(root: Path, rounds: int) -> Iterator[Row]:
    """A fresh server's first page of a million samples, on disk and on a store of 20 ms; then another page."""
    yield from _painted(rounds, "on disk", 1.0, lambda: Viewer(str(root)))
    with latency_store(root.parent) as store:
        environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": str(store.options["endpoint_url"])}
        url = f"s3://{BUCKET}/{root.name}"
        asked: list[tuple[int, int]] = []
        yield from _painted(
            rounds, "store of 20 ms", 3.0, lambda: Viewer(url, environment=environment), store.served, asked
        )
        yield Row(what="- requests", values=[float(n) for n, _ in asked], unit="", digits=0)
        yield Row(what="- read", values=[n / 2**20 for _, n in asked], unit="MiB")


def _painted(
    rounds: int,
    where: str,
    goal: float,
    start: Callable[[], Viewer],
    served: Callable[[], tuple[int, int]] | None = None,
    asked: list[tuple[int, int]] | None = None,
) -> Iterator[Row]:
    first, html, another, starts = [], [], [], []
    for number in range(rounds):
        with start() as viewer:
            if served:
                served()
            look = viewer.look("/v/tiny/1")
            if served and asked is not None:
                asked.append(served())
            starts.append(viewer.start_s)
            first.append(look.whole_s)
            html.append(look.page_s)
            another.append(viewer.look(f"/v/tiny/1?from={600_000 + 60 * number}").whole_s)
    yield Row(
        what=f"first page of 1e6 samples, {where}",
        values=first,
        unit="s",
        goal=goal,
    )
    yield Row(what="- its HTML", values=html, unit="s")
    yield Row(what="- another page of it", values=another, unit="s")
    yield Row(what="- start of the server before it", values=starts, unit="s")


def batch(root: Path, rounds: int) -> Iterator[Row]:
    """A step of 256 photos as it was trained."""
    importing = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        importing.append(time.perf_counter() - start)
    yield Row(what="- `import torch` by itself, counted in the next two rows", values=importing, unit="s")
    own = median(importing)
    for told, options in (("as trained, with --recipe", RECIPE), ("without --recipe", ())):
        taken: dict[str, list[float]] = {
            name: [] for name in ("window", "whole", "warm", "slot", "slot again", "beside")
        }
        peaks, files = [], []
        for number in range(rounds):
            with Viewer(str(root), *options) as viewer:
                step = f"/r/{RUN}/{number}"
                start = time.perf_counter()
                viewer.look(step)
                taken["window"].append(time.perf_counter() - start)
                viewer.look(step, pictures=Sizes.batch)
                taken["whole"].append(time.perf_counter() - start)
                taken["warm"].append(viewer.look(f"/r/{RUN}/{2 + number}").whole_s)
                taken["slot"].append(viewer.look(f"/r/{RUN}/{2 + number}/7").whole_s)
                taken["slot again"].append(viewer.look(f"/r/{RUN}/{2 + number}/7").whole_s)
                peaks.append(viewer.peak_mib())
                files.append(viewer.files_mib())
                viewer.look(f"/r/{RUN}/{20 + number}")
                time.sleep(LOOKED_S)
                taken["beside"].append(viewer.look(f"/r/{RUN}/{21 + number}").whole_s)
        more = own if options else 0.0
        yield Row(
            what=f"{'' if options else '- '}first {WINDOW} slots of a batch {told}",
            values=taken["window"],
            unit="s",
            goal=5 + round(more, 1),
        )
        yield Row(
            what=f"- all {Sizes.batch} photos", values=taken["whole"], unit="s", goal=5 + round(more, 1)
        )
        yield Row(what=f"- another step, first {WINDOW} slots", values=taken["warm"], unit="s", goal=0.5)
        yield Row(
            what=f"- the step after one that was looked at for {LOOKED_S} s",
            values=taken["beside"],
            unit="s",
            goal=0.5,
        )
        yield Row(what="- a slot of it", values=taken["slot"], unit="s")
        yield Row(what="- the same slot again", values=taken["slot again"], unit="s")
        yield Row(
            what="- memory of the server", values=[one[0] for one in peaks], unit="MiB", goal=500, digits=0
        )
        yield Row(what=OF_FILES, values=[one[0] for one in files], unit="MiB", digits=0)
        if options:
            recipes = [max(one[1:]) for one in peaks]
            yield Row(what="- memory of the recipe's process", values=recipes, unit="MiB", digits=0)
            recipes = [max(one[1:]) for one in files]
            yield Row(what=OF_FILES, values=recipes, unit="MiB", digits=0)


def filtered(root: Path, rounds: int) -> Iterator[Row]:
    """Filters over a million rows, with the statistics of their columns."""
    at_once, first, again, sorted_s, peaks = [], [], [], [], []
    for number in range(rounds):
        for taken, looked_s in ((at_once, 0), (first, LOOKED_S)):
            with Viewer(str(root)) as viewer:
                viewer.look("/v/tiny/1")
                time.sleep(looked_s)
                where = {FILTERS[0]: taken, FILTERS[1]: again} if looked_s else {FILTERS[0]: taken}
                for one, seconds in where.items():
                    start = time.perf_counter()
                    viewer.get(_query("/v/tiny/1", where=f"{one} AND width_px != {number}"))
                    seconds.append(time.perf_counter() - start)
                start = time.perf_counter()
                viewer.get(_query("/v/tiny/1", where=f"score > 0.{number + 1}", sort="-score"))
                sorted_s.append(time.perf_counter() - start)
                peaks.append(viewer.peak_mib()[0])
    yield Row(what="- first filter and facets, 1e6 rows, asked at once", values=at_once, unit="s")
    yield Row(
        what=f"- 2 columns, after the page was looked at for {LOOKED_S} s", values=first, unit="s", goal=0.5
    )
    yield Row(what="- 6 columns", values=again, unit="s", goal=0.5)
    yield Row(what="- a column, sorted by it", values=sorted_s, unit="s")
    yield Row(what="- memory of the server", values=peaks, unit="MiB", goal=500, digits=0)


def _query(path: str, **query: str) -> str:
    return f"{path}?{urlencode(query)}"


def thumbnails(root: Path, rounds: int) -> Iterator[Row]:
    """Thumbnails by second, beside Pillow in this process by turns."""
    rates: dict[str, list[float]] = defaultdict(list)
    with loader.Root(root) as opened:
        stored = {name: stored_photos(opened, name, 100) for name in ("photos", "large")}
    with Viewer(str(root)) as viewer:
        for number in range(rounds):
            for name, n in (("photos", 400), ("large", 120)):
                paths = [f"/v/{name}/1/s/{number * n + i}/thumb/jpg" for i in range(n)]
                rates[name].append(_rate(viewer.get_all, paths))
                rates[f"{name}, Pillow"].append(_rate(_pillow, stored[name]))
            rates["again"].append(_rate(viewer.get_all, paths * 10))
            rates["static"].append(_rate(viewer.get_all, ["/static/icon.png"] * 1000))
    for what, name, goal in (
        ("- thumbnails of photos of 512 px", "photos", 200),
        ("- Pillow by itself, 2 threads", "photos, Pillow", None),
        ("- thumbnails of 1080p", "large", 60),
        ("- Pillow by itself, 2 threads", "large, Pillow", None),
        ("- thumbnails again", "again", 1000),
        ("- a static file from the same server", "static", None),
    ):
        yield Row(what=what, values=rates[name], unit="/s", goal=goal, more_is_better=True, digits=0)


def _rate(call: Callable[[Sequence[Any]], object], items: Sequence[Any]) -> float:
    start = time.perf_counter()
    call(items)
    return len(items) / (time.perf_counter() - start)


def _pillow(stored: Sequence[bytes]) -> None:
    """Thumbnails of JPEG bytes, decoded at a smaller size."""
    from PIL import Image

    def one(data: bytes) -> bytes:
        with Image.open(BytesIO(data)) as picture:
            picture.thumbnail((EDGE_PX, EDGE_PX), Image.Resampling.BILINEAR)
            sink = BytesIO()
            picture.save(sink, "JPEG", quality=85)
        return sink.getvalue()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, stored))


def people(root: Path, n: int, seconds: float) -> Iterator[Row]:
    """People who each look at a page, and after 10 s at another: nine times of ten a page of a grid, else a step."""
    pages, steps = list[float](), list[float]()
    failed = list[str]()

    def person(number: int) -> None:
        chance, ends = random.Random(number), time.perf_counter() + seconds
        time.sleep(chance.uniform(0, 10))
        while time.perf_counter() < ends:
            step = chance.random() < 0.1
            path = (
                f"/r/{RUN}/{chance.randrange(40)}"
                if step
                else f"/v/{chance.choice(('photos', 'tiny'))}/1?from={chance.randrange(40) * 60}"
            )
            try:
                look = viewer.look(path)
            except Exception as error:  # noqa: BLE001 - told on the page
                failed.append(f"{path}: {error}")
            else:
                (steps if step else pages).append(look.whole_s)
            time.sleep(chance.uniform(5, 15))

    with Viewer(str(root), *RECIPE) as viewer:
        viewer.look(f"/r/{RUN}/0")
        threads = [threading.Thread(target=person, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        peak = viewer.peak_mib()
    if failed:
        raise RuntimeError(f"{len(failed)} looks failed, such as {failed[0]}")
    yield Row(
        what=f"{n} people, a page in 10 s each, p95",
        values=[percentile([*pages, *steps], 0.95)],
        unit="s",
        goal=2,
    )
    for what, taken in (("pages of a grid", pages), ("steps", steps)):
        told = f"- {len(taken)} {what}: p50"
        yield Row(what=told, values=[percentile(taken, 0.5)], unit="s")
        yield Row(what=f"- {what}: p95", values=[percentile(taken, 0.95)], unit="s")
    yield Row(what="- memory of the server", values=[peak[0]], unit="MiB", goal=500, digits=0)
    yield Row(what="- memory of the recipe's process", values=[max(peak[1:])], unit="MiB", digits=0)


def long_run(root: Path, rounds: int) -> Iterator[Row]:
    """Rows of the pages of a run of a million steps, and of the answers to a page that follows it."""
    page: list[float] = []
    busy: list[float] = []
    chart: list[float] = []
    nbytes: list[float] = []
    live: list[float] = []
    step: list[float] = []
    again: list[float] = []
    peaks: list[float] = []
    memory: list[float] = []
    parsed: list[float] = []
    grown: list[float] = []
    path = f"/r/{LONG_RUN}"
    for number in range(rounds):
        parsed.append(_parse_s(root))
        with Viewer(str(root)) as viewer:
            begun = cpu_s(viewer.pid)
            start = time.perf_counter()
            html = viewer.get(path)
            page.append(time.perf_counter() - start)
            busy.append(cpu_s(viewer.pid) - begun)
            record = viewer.get(f"{path}.json")
            chart.append(time.perf_counter() - start)
            memory.append(memory_bytes(viewer.pid) / 2**20)
            nbytes.append((len(html) + len(record)) / 1000)
            step.append(viewer.look(f"{path}/{500_000 + number}").whole_s)
            again.append(viewer.look(path).whole_s)
            time.sleep(FRESH_S)  # then the viewer lists the run log again
            live.append(_live_ms(viewer, f"{path}.json?since=999980"))
            with longer_run(root, Sizes.long_steps):
                time.sleep(FRESH_S)
                grown.append(_live_ms(viewer, f"{path}.json?since=999980"))
            peaks.append(viewer.peak_mib()[0])
    yield Row(
        what="a run of 1e6 steps, 1,000 objects: page of a fresh server", values=page, unit="s", goal=0.8
    )
    yield Row(what="its processor time", values=busy, unit="s")
    yield Row(what="pyarrow's processor time for its objects, without all else", values=parsed, unit="s")
    yield Row(what="- with its charts' points", values=chart, unit="s")
    yield Row(what="its HTML and its charts' points", values=nbytes, unit="kB", goal=300, digits=0)
    yield Row(what="its live answer: processor", values=live, unit="ms", goal=20, digits=0)
    yield Row(what="the same after a minute's new object", values=grown, unit="ms", goal=20, digits=0)
    yield Row(what="- one of its steps", values=step, unit="s")
    yield Row(what="- its page again", values=again, unit="s")
    yield Row(what="anonymous memory of the server after it", values=memory, unit="MiB", goal=400, digits=0)
    yield Row(
        what="most memory of the server, files included, after a step's page too",
        values=peaks,
        unit="MiB",
        goal=500,
        digits=0,
    )


def _live_ms(viewer: Viewer, path: str) -> float:
    """Return the milliseconds of processor that the server takes for an answer."""
    begun = process_s(viewer.pid)
    viewer.get(path)
    return (process_s(viewer.pid) - begun) * 1000


def _parse_s(root: Path) -> float:
    """Return the processor time that pyarrow needs for the objects of the long run log, already in memory."""
    files = sorted((root / "trails" / LONG_RUN).rglob("*.parquet"))
    objects = [file.read_bytes() for file in files]
    begun = time.process_time()
    for data in objects:
        pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)
    return time.process_time() - begun


def trail(root: Path, steps: int) -> Iterator[Row]:
    """What a trail and a note take of the training's thread: two loops, by turns."""
    with loader.Root(root) as opened:
        view = opened.open("photos@latest").select("cls")
        plan = loader.plan({"photos": view}, seed=2, global_batch=8, allow_repeats=True)
    spent: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder, loader.Root(folder) as kept, ExitStack() as stack:
        record = loader.Trail(kept, "cost", tensors_every=0)
        loops = {
            noted: stack.enter_context(
                loader.Loader(plan, 0, 1, workers=0, framework="numpy", trail=record if noted else None)
            )
            for noted in spent
        }
        for turn in range(2 + steps // TURN_STEPS):
            for noted in sorted(spent, reverse=bool(turn % 2)):
                start = time.thread_time_ns()
                for _ in range(TURN_STEPS):
                    next(loops[noted])
                    if noted:
                        loops[noted].note(loss=1.5)
                if turn >= 2:
                    spent[noted].append((time.thread_time_ns() - start) / TURN_STEPS / 1000)
    more = sorted(b - a for a, b in zip(spent[False], spent[True], strict=True))
    quartiles = [more[len(more) * k // 4] for k in (1, 2, 3)]
    yield Row(
        what="a trail with a note, of the training's thread",
        values=quartiles,
        unit="us a step",
        goal=20,
        digits=1,
    )
    yield Row(what="- a step without", values=[median(spent[False])], unit="us", digits=1)
