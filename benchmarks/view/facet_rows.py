"""A version of 50 columns: its page, and clicks in its facets."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

import loader
from penstock.progress import progress

from ..meter import cpu_s, memory_bytes
from .browser import Viewer
from .rows import Row

LABELS = ("people", "places", "animals", "things", "textures", "plants", "science", "space")
PART_SAMPLES = 65_536
CLICKS = 20
"""Clicks of a round: processor time is counted in steps of 10 ms."""
GOALS = {10_000: (20, 15, 250), 1_000_000: (40, 60, 400)}
"""Samples -> processor ms of a warm page and of a click, and MiB of the server."""
IDLE_S = 5
"""Seconds between a page and a person's first click."""
_PAGE = "/v/wide/1"
_FIRST_CLICK = f"{_PAGE}?t=%22label%22+%3D+%27animals%27"


def facets(root: Path, rounds: int, sizes: Sequence[int] = tuple(GOALS)) -> Iterator[Row]:
    """Rows of each size; `root` is not read, but the versions are kept beside it."""
    for n in sizes:
        yield from _sized(make_wide(root.parent, n), n, rounds)


def make_wide(folder: Path, n: int) -> Path:
    """The root of a version of n samples, made where it is not there yet."""
    made, making = folder / f"wide-{n}", folder / f"wide-{n}.making"
    if made.exists():
        return made
    columns = {name: values.tolist() for name, values in _columns(n).items()}
    with loader.Root(making) as root, root.write("wide", part_samples=PART_SAMPLES) as writer:
        for i in progress(range(n), "samples of wide", total=n):
            metadata = {name: values[i] for name, values in columns.items()}
            metadata |= {"label": LABELS[i % len(LABELS)], "caption": f"a text of {i}"}
            writer.add(f"wide/{i:07d}", {"cls": i % len(LABELS)}, metadata=metadata)
    making.rename(made)
    return made


def _columns(n: int) -> dict[str, Any]:
    """48 columns: numbers, whole numbers, bools, texts."""
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {f"normal_{i}": rng.normal(size=n) for i in range(16)}
    columns |= {f"skewed_{i}": rng.lognormal(0, 2, size=n) for i in range(15)}
    columns |= {f"whole_{i}": rng.integers(0, 4000, n) for i in range(8)}
    columns |= {f"is_{i}": rng.random(n) < 0.3 for i in range(3)}
    columns |= {f"class_{i}": np.char.mod("class %d", rng.integers(0, 5 + 50 * i, n)) for i in range(6)}
    return columns


def _sized(root: Path, n: int, rounds: int) -> Iterator[Row]:
    cold: list[float] = []
    html: list[float] = []
    warm: list[float] = []
    clicks: list[float] = []
    plain: list[float] = []
    sent: list[float] = []
    first_click: list[float] = []
    memory: list[float] = []
    for _ in range(rounds):
        with Viewer(str(root)) as viewer:
            begun = cpu_s(viewer.pid)
            html.append(len(viewer.get(_PAGE)) / 1000)
            cold.append((cpu_s(viewer.pid) - begun) * 1000)
            time.sleep(IDLE_S)  # meanwhile the viewer codes the columns of the page
            first_click.append(processor_ms(viewer, [_FIRST_CLICK], fragment=True))
            warm.append(processor_ms(viewer, [_PAGE] * CLICKS))
            addresses = clicked_addresses(json.loads(viewer.get(f"{_PAGE}.json")), _PAGE)
            # The first click in a facet that was not in sight reads its column.
            plain.append(max(len(viewer.get(one, fragment=True)) for one in addresses) / 1000)
            sent.append(max(viewer.transferred_bytes(one, fragment=True) for one in addresses) / 1000)
            clicks.append(processor_ms(viewer, addresses, fragment=True))
            memory.append(memory_bytes(viewer.pid) / 2**20)
    page_ms, click_ms, most_mib = GOALS.get(n, (None, None, None))
    told = f"1e{round(np.log10(n))} samples, 50 columns"
    yield Row(what=f"page of {told}, warm: processor", values=warm, unit="ms", goal=page_ms, digits=0)
    yield Row(
        what="click in a facet of it: processor, 8 facets",
        values=clicks,
        unit="ms",
        goal=click_ms,
        digits=0,
    )
    yield Row(
        what="its answer with two terms, as a browser gets it", values=sent, unit="kB", goal=30, digits=0
    )
    yield Row(what="- before compression", values=plain, unit="kB", digits=0)
    yield Row(what="the page's HTML, before compression", values=html, unit="kB", goal=60, digits=0)
    yield Row(what=f"page of a fresh server, {told}: processor", values=cold, unit="ms", digits=0)
    yield Row(
        what=f"the first click, {IDLE_S} s after it: processor",
        values=first_click,
        unit="ms",
        digits=0,
    )
    yield Row(
        what=f"anonymous memory of the server, {told}",
        values=memory,
        unit="MiB",
        goal=most_mib,
        digits=0,
    )


def clicked_addresses(record: dict[str, Any], page: str) -> list[str]:
    """CLICKS addresses of a page, each with a term of one facet and a term of another."""
    entries = [
        [entry["where"] for entry in (*facet["values"], *facet["bins"])]
        for facet in record["facets"]
        if facet["is_counted"] and len(facet["values"]) + len(facet["bins"]) > 1
    ]
    addresses = []
    for number in range(CLICKS):
        first = entries[number % len(entries)]
        second = entries[(number + 1) % len(entries)]
        terms = [first[number % len(first)], second[number % len(second)]]
        addresses.append(f"{page}?{urlencode({'t': terms}, doseq=True)}")
    return addresses


def processor_ms(viewer: Viewer, paths: Sequence[str], *, fragment: bool = False) -> float:
    """Processor time of an answer."""
    begun = cpu_s(viewer.pid)
    for path in paths:
        viewer.get(path, fragment=fragment)
    return (cpu_s(viewer.pid) - begun) * 1000 / len(paths)
