"""Real media as objects of three feeds, and the rows that the project's own stages make of them: derived once, kept.

    photos    every picture of the corpus, and frames of its videos: the frames of one video are a shoot
    clips     every short video, of the sources that they came from
    speech    pieces of 3 s of every sound: the pieces of one recording are a speaker

The first folder of an object's key is its shoot, source or speaker, which the gate takes for its source.
"""

import csv
import json
import pickle
import shutil
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import polars as pl

import loader
from assets.arrivals.make_batches import discover
from assets.drift.compare import BatchFacts, batch_facts
from assets.features.feature_asset import feature_stage
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.samples.assembly import candidate
from assets.samples.samples_asset import samples_stage
from assets.sources import BatchLimits
from assets.spec import DatasetSpec, Feature
from loader.storage import open_store
from penstock.compute.pool import InlineCompute

FAMILIES = ("photos", "clips", "speech")
FRAMES, PIECE_S, SIDE_PX = 10, 3.0, 640
"""Frames of a video; the length of a piece of sound; the longer side of a frame as it lands."""
LARGEST = 2_000_000
"""Bytes of a video that is taken."""
_FEATURES = {"photos": ("picture",), "clips": ("picture",), "speech": ("loudness",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A family's objects. facts: of all of them, as one batch; objects: rows of raw_objects, with their texts."""

    facts: BatchFacts
    objects: list[dict[str, Any]]


def pool(family: str, media: Path, rows: Path) -> Pool:
    """Of a family: read from the folder `rows`, or derived from the corpus `media` (minutes) and kept there."""
    kept = rows / f"{family}.pickle"
    if not kept.exists():
        rows.mkdir(parents=True, exist_ok=True)
        work = rows / f"{family}.work"
        shutil.rmtree(work, ignore_errors=True)
        made = _derived(family, media, work)
        kept.write_bytes(pickle.dumps(made))
        shutil.rmtree(work)
    found: Pool = pickle.loads(kept.read_bytes())  # noqa: S301 - of this program's own folder
    return found


def _derived(family: str, media: Path, work: Path) -> Pool:
    place, name = work / "landing", f"real-{family}"
    said = dict(_lay(family, media, place))
    (place / "_origins.json").write_text(
        json.dumps({key: {"text": text, "licence": "cc0-1.0"} for key, text in said.items()})
    )
    root, landing, compute = loader.Root(str(work / "root")), open_store(str(place)), InlineCompute()
    spec = DatasetSpec(
        name=name, features=tuple(Feature(name=one) for one in _FEATURES[family]), max_reject_rate=1.0
    )
    root.create()
    limits = BatchLimits(max_objects=100_000, max_wait_s=0)
    (batch,) = discover(root.store, landing, name, limits)
    told: Any = {"partition": batch, "run_id": "rows"}
    _, raws = land(root.store, landing, dataset=name, **told)
    media_stage(root, landing, compute, spec, **told)
    units_stage(root, landing, compute, spec, **told)
    for feature in spec.features:
        feature_stage(root, compute, feature.build(), dataset=name, timeout_s=600, **told)
    record, _ = samples_stage(root, spec, **told)
    facts = batch_facts(root.store, record, candidate(root, record))
    return Pool(facts=facts, objects=[dict(row) for row in raws])


def _lay(family: str, media: Path, place: Path) -> Iterator[tuple[str, str]]:
    """(key, text) of every object that is laid down."""
    with (media / "MANIFEST.csv").open() as file:
        listed = sorted(csv.DictReader(file), key=lambda row: row["file"])
    kind = {"photos": "image", "clips": "video", "speech": "audio"}[family]
    for row in listed:
        path = media / row["file"]
        if not row["file"].startswith((f"{kind}/", "video/")) or path.suffix in ("", ".txt"):
            continue
        if row["file"].startswith("video/"):
            if path.stat().st_size > LARGEST or float(row["duration_s"] or 0) > 60 or kind == "audio":
                continue
            if family == "photos":
                yield from _frames(path, place)
                continue
        if family == "speech":
            yield from _pieces(path, place)
            continue
        source = path.stem.split("_")[0] if family == "clips" else "files"
        key = f"{source}/{path.name}"
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place / key)
        yield key, row["why"] or path.stem


def _frames(path: Path, place: Path) -> Iterator[tuple[str, str]]:
    """Some frames of a video, as the photos of one shoot; none of what PyAV does not decode."""
    try:
        with av.open(str(path)) as container:
            frames = [frame.to_image() for frame in container.decode(video=0)]
    except (av.FFmpegError, IndexError):
        return
    for number in np.unique(np.linspace(0, len(frames) - 1, FRAMES).round().astype(int)) if frames else ():
        key = f"{path.stem}/{number:04d}.jpg"
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        frame = frames[number]
        frame.thumbnail((SIDE_PX, SIDE_PX))
        frame.save(place / key, quality=90)
        yield key, f"{path.stem.replace('_', ' ')} at frame {number}"


def _pieces(path: Path, place: Path) -> Iterator[tuple[str, str]]:
    """A recording in pieces of its own rate, 16 bits and mono, the last one of a second or more; with a text of about
    as many words as are spoken in that time."""
    try:
        with av.open(str(path)) as container:
            rate = container.streams.audio[0].rate
            resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
            decoded = [made for frame in container.decode(audio=0) for made in resampler.resample(frame)]
    except (av.FFmpegError, IndexError):
        return
    sound = (
        np.concatenate([one.to_ndarray().ravel() for one in decoded]) if decoded else np.zeros(0, np.int16)
    )
    step = round(PIECE_S * rate)
    speaker = path.parent.name if path.parent.name == "librivox" else path.stem.split("-")[0]
    for number in range(-(-len(sound) // step)):
        piece = sound[number * step :][:step]
        if len(piece) < rate:
            continue
        key = f"{speaker}/{path.stem}-{number:03d}.wav"
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(place / key), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(piece.tobytes())
        words = 2.5 * len(piece) / rate * (0.75 + 0.5 * ((number * 7919) % 11) / 10)
        yield key, "words " * max(1, round(words))


def sources_of(facts: BatchFacts) -> pl.Series:
    """The shoot, source or speaker of each object of the table of media."""
    return facts.media["key"].str.extract("^([^/]+)/", 1)
