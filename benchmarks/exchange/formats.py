"""Imports of each format, measured: the same bytes as another format has them, copied into a root, synced."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import loader
from loader.storage import open_store
from penstock.sources.importing.importer import Options
from penstock.sources.run_export import export
from penstock.sources.run_import import import_place

from ..throughput import say
from ..view.rows import Row
from .rows import PHOTO, Sizes, _nbytes, _synced
from .tars import make

DOCUMENT_BYTES = 30_000
"""Bytes of a document of text or tokens: as many as a photo's."""


def formats(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Minutes that a TB takes, in the order in which samples come."""
    for format, make_place in MAKERS.items():
        place, out, taken = make_place(folder, sizes.photos), folder / "copies", []
        for _ in range(sizes.rounds):
            taken.append(_synced(out, partial(_imported, out, format, place, sizes.photos)))
            say(f"import {format}: {taken[-1]:.1f} s")
        nbytes = _nbytes(place)
        minutes = [1e12 / (nbytes / one) / 60 for one in taken]
        yield Row(
            what=f"import {format}, {nbytes / 1e6:,.0f} MB, minutes a TB", values=minutes, unit="", digits=0
        )


def _imported(out: Path, format: str, place: Path, n: int) -> None:
    options = Options(fields={"text": "txt"}) if format == "jsonl" else Options()
    done = import_place(loader.Root(out), format, open_store(str(place)), "d", options=options, shuffle=False)
    if done.samples != n:
        raise RuntimeError(f"{format}: {done.to_text()}")


def _archives(folder: Path, n: int) -> Path:
    return make(folder / f"photos-{n}", n, 1000, PHOTO)


def _files(folder: Path, n: int) -> Path:
    rng, place = np.random.default_rng(1), folder / f"as-files-{n}"
    for number in range(0 if place.exists() else n):
        path = place / f"{number // 1000:03d}" / f"{number:09d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(PHOTO["jpg"]))
    return place


def _jsonl(folder: Path, n: int) -> Path:
    words = [f"word{number} " for number in range(1000)]
    rng, some, place = np.random.default_rng(1), DOCUMENT_BYTES // 8, folder / f"as-jsonl-{n}"
    for first in range(0, 0 if place.exists() else n, 1000):
        place.mkdir(exist_ok=True)
        with open(place / f"{first // 1000:05d}.jsonl", "w") as file:
            for _ in range(first, min(first + 1000, n)):
                text = "".join(words[i] for i in rng.integers(0, 1000, some))
                file.write(json.dumps({"text": text, "source": "made up"}) + "\n")
    return place


def _exported(format: str, dataset: str, folder: Path, n: int) -> Path:
    place = folder / f"as-{format}-{n}"
    if place.exists():
        return place
    root = loader.Root(folder / f"{dataset}-root-{n}")
    root.create()
    if dataset not in root.datasets():
        rng = np.random.default_rng(1)
        with root.write(dataset) as writer:
            for number in range(n):
                if dataset == "photos":
                    fields = {"jpg": rng.bytes(PHOTO["jpg"]), "cls": b"%d" % (number % 10)}
                else:
                    fields = {"tokens.u2": rng.bytes(DOCUMENT_BYTES)}
                writer.add(f"{number:09d}", fields)
    place.mkdir()
    done = export(root.open(f"{dataset}@latest"), format, open_store(str(place)), lossy=True)
    if done.failures:
        raise RuntimeError(f"{format}: {done.failures}")
    return place


MAKERS: dict[str, Callable[[Path, int], Path]] = {
    "webdataset": _archives,
    "files": _files,
    "mds": partial(_exported, "mds", "photos"),
    "megatron": partial(_exported, "megatron", "tokens"),
    "parquet": partial(_exported, "parquet", "photos"),
    "jsonl": _jsonl,
}
"""Format -> function that makes a place of so many samples below a folder, if it is not there, and gives it."""
