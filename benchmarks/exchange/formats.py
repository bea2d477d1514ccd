"""Imports of each format, measured: the same bytes as another format has them, copied into a root, synced."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import loader
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place

from ..latency_server import BUCKET, latency_store
from ..throughput import say
from ..view.rows import Row
from . import places
from .rows import Sizes, environment, nbytes_of, synced

MINUTES = "minutes a TB"


def formats(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Minutes that a TB takes, in the order in which samples come."""
    for format in places.MAKERS:
        try:
            place = places.place_of(format, folder, sizes.photos)
        except ImportError as error:
            yield Row(what=f"- import {format}: {error}", values=[], unit="")
            continue
        yield _measured(format, format, place, str(place), folder, sizes)
    place = places.place_of("webdataset", folder, sizes.photos)
    with latency_store(place) as server, environment(server.options["endpoint_url"]):
        yield _measured("webdataset at 20 ms", "webdataset", place, f"s3://{BUCKET}", folder, sizes)


def _measured(what: str, format: str, place: Path, url: str, folder: Path, sizes: Sizes) -> Row:
    """Return the row of a place on disk that a URL opens."""
    out, taken, nbytes = folder / "copies", [], nbytes_of(place)
    for _ in range(sizes.rounds):
        taken.append(synced(out, partial(_imported, out, format, url, sizes.photos)))
        say(f"{what}: {taken[-1]:.1f} s")
    minutes = [1e12 / (nbytes / one) / 60 for one in taken]
    return Row(what=what, values=minutes, unit=MINUTES, digits=0)


def _imported(out: Path, format: str, url: str, photos: int) -> None:
    options = ColumnarOptions(fields={"text": "txt"}) if format in places.TEXTS else ColumnarOptions()
    done = import_place(loader.Root(out), format, open_store(url), "d", options=options, shuffle=False)
    if done.samples != places.samples_in(format, photos):
        raise RuntimeError(f"{format}: {done.to_text()}")
