"""A version of 1e8 samples: documents of Megatron, registered where they lie, and nine columns of made-up values."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import loader
from penstock.formats.registration.register import register

from ..exchange import documents
from ..latency_server import BUCKET, CREDENTIALS, Served, latency_store
from ..meter import memory_bytes
from .browser import Viewer
from .facet_rows import clicked_addresses, processor_ms
from .rows import Row
from .spread_columns import add_columns

DATASET = "texts"
_PAGE = f"/v/{DATASET}/2"
_TERM = urlencode({"t": "\"label\" = 'animals'"})
_TEXT = urlencode({"where": "key LIKE '%7'"})
IDLE_S = 60
"""Seconds between a page and a person's first click."""


def spread(root: Path, n: int, rounds: int) -> Iterator[Row]:
    """Rows of a version of n samples; `root` is not read, but the version is kept beside it."""
    folder = make_texts(root.parent, n)
    values: dict[str, list[float]] = defaultdict(list)
    with latency_store(folder.parent) as store:
        environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": str(store.options["endpoint_url"])}
        url = f"s3://{BUCKET}/{folder.name}"
        for _ in range(rounds):
            with Viewer(url, environment=environment) as viewer:
                for name, value in _round(viewer, store):
                    values[name].append(value)
    samples = f"{n:,} samples"
    yield Row(what=f"page of {samples}, 11 columns, store of 20 ms", values=values["cold"], unit="s")
    yield Row(
        what="its requests, after the first page", values=values["requests"], unit="", goal=10, digits=0
    )
    yield Row(what="share of the samples that its facets count", values=values["about"], unit="%", digits=1)
    yield Row(
        what=f"the first click in a facet, {IDLE_S} s after it: processor",
        values=values["first"],
        unit="ms",
        digits=0,
    )
    yield Row(
        what=f"click in a facet of {samples}: processor, 8 facets",
        values=values["clicks"],
        unit="ms",
        goal=300,
        digits=0,
    )
    yield Row(
        what="its answer with two terms, before compression",
        values=values["answer"],
        unit="kB",
        goal=30,
        digits=0,
    )
    yield Row(what="the first filter by a text: processor", values=values["text"], unit="ms", digits=0)
    yield Row(
        what="the same filter again: processor", values=values["text again"], unit="ms", goal=300, digits=0
    )
    yield Row(
        what=f"anonymous memory of the server, {samples}",
        values=values["memory"],
        unit="MiB",
        goal=700,
        digits=0,
    )


def _round(viewer: Viewer, store: Served) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of a viewer that was just started."""
    viewer.get("/")
    store.served()
    begun = time.perf_counter()
    viewer.get(_PAGE)
    yield "cold", time.perf_counter() - begun
    yield "requests", float(store.served()[0])
    time.sleep(IDLE_S)  # meanwhile the viewer codes the columns of the page
    yield "first", processor_ms(viewer, [f"{_PAGE}?{_TERM}"], fragment=True)
    record = json.loads(viewer.get(f"{_PAGE}.json?{_TERM}"))
    yield "about", 100 * record["about"]
    addresses = clicked_addresses(record, _PAGE)
    # The first click in a facet that was not in sight reads its column.
    yield "answer", max(len(viewer.get(one, fragment=True)) for one in addresses) / 1000
    yield "clicks", processor_ms(viewer, addresses, fragment=True)
    yield "text", processor_ms(viewer, [f"{_PAGE}?{_TEXT}"], fragment=True)
    yield "text again", processor_ms(viewer, [f"{_PAGE}?{_TEXT}"], fragment=True)
    yield "memory", memory_bytes(viewer.pid) / 2**20


def make_texts(folder: Path, n: int) -> Path:
    """Return the root of a version of n documents, made where it is not there yet."""
    made = folder / f"texts-{n}"
    if made.exists():
        return made
    making = folder / f"texts-{n}.making"
    place = documents.make(folder / f"documents-{n}", n)
    with loader.Root(making) as root:
        register(root, "megatron", str(place), DATASET)
        add_columns(root, DATASET)
    making.rename(made)
    return made
