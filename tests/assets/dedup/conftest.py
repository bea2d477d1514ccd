"""Photos and clips made here, copies of them, and a dataset that takes them in batch by batch."""

import io
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

import loader
from assets.arrivals.make_batches import discover
from assets.features import feature_asset as features
from assets.ingest import media as validation
from assets.ingest import raw_objects as landing_stage
from assets.ingest import units
from assets.pipeline.stages import require_published
from assets.pipeline.tables import read_table
from assets.release.version_asset import Release, publish_batches
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.stages import StageRecord
from tests.servers.patience import PATIENCE_S


def scene(seed: int, width: int = 320, height: int = 240) -> Image.Image:
    """A picture of things before a background, soft and with grain: another one for every seed."""
    draw = np.random.default_rng(seed)
    low = draw.integers(0, 255, (5, 6, 3), np.uint8)
    picture = Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    for _ in range(12):
        x, y = draw.uniform(0, width), draw.uniform(0, height)
        w, h = draw.uniform(0.05, 0.35, 2) * min(width, height)
        colour = tuple(draw.integers(0, 255, 3).tolist())
        shape = pen.ellipse if draw.random() < 0.5 else pen.rectangle
        shape((x - w, y - h, x + w, y + h), fill=colour)
    soft = np.asarray(picture.filter(ImageFilter.GaussianBlur(1.0)), np.float64)
    return Image.fromarray(np.uint8(np.clip(soft + draw.normal(0, 4, soft.shape), 0, 255)))


def jpeg(picture: Image.Image, quality: int = 92, **options: object) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=quality, **options)
    return sink.getvalue()


def scaled(picture: Image.Image, factor: float) -> Image.Image:
    return picture.resize((round(picture.width * factor), round(picture.height * factor)))


def cropped(picture: Image.Image, share: float) -> Image.Image:
    """Without this share of either side."""
    dx, dy = picture.width * share / 2, picture.height * share / 2
    return picture.crop((round(dx), round(dy), round(picture.width - dx), round(picture.height - dy)))


def mp4(path: Path, pictures: list[Image.Image], *, crf: int = 18) -> None:
    """x264 at 25 frames per second, ten frames of each picture."""
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as out:
        stream = out.add_stream("libx264", rate=25, options={"crf": str(crf)})
        stream.width, stream.height, stream.pix_fmt = *pictures[0].size, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 25)
        for number in range(10 * len(pictures)):
            frame = av.VideoFrame.from_image(pictures[number // 10])
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


class Dataset:
    """Files land in a place of their own; `ingest` makes a batch of them, `release` publishes what is ready."""

    def __init__(self, root: loader.Root, place: Path) -> None:
        self.root, self.place = root, place
        self._n_places = 0

    def batch(self, spec: DatasetSpec, files: Mapping[str, bytes | Path]) -> str:
        """The batch of new files, put together."""
        self._n_places += 1
        place = self.place / str(self._n_places)
        for name, data in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data if isinstance(data, bytes) else data.read_bytes())
        store = open_store(str(place))
        (batch,) = discover(self.root.store, store, spec.name)
        landing_stage.land(self.root.store, store, dataset=spec.name, partition=batch, run_id="r")
        self.ingest(spec, batch, place)
        return batch

    def ingest(self, spec: DatasetSpec, batch: str, place: Path | None = None) -> StageRecord:
        store, compute = open_store(str(place or self.place / str(self._n_places))), InlineCompute()
        validation.media_stage(self.root, store, compute, spec, partition=batch, run_id="r")
        units.units_stage(self.root, store, compute, spec, partition=batch, run_id="r")
        for feature in spec.features:
            features.feature_stage(
                self.root,
                compute,
                feature.build(),
                dataset=spec.name,
                partition=batch,
                run_id="r",
                timeout_s=PATIENCE_S,
            )
        record, _ = samples_stage(self.root, spec, partition=batch, run_id="r")
        return record

    def release(self, spec: DatasetSpec) -> Release:
        return publish_batches(self.root, spec.name, "r", spec.gate, spec)

    def record(self, spec: DatasetSpec, batch: str) -> StageRecord:
        return require_published(self.root.store, spec.name, "samples", batch)

    def accounts(self, spec: DatasetSpec, batch: str) -> dict[str, dict[str, str]]:
        """Name of a landed file -> its account."""
        rows = read_table(self.root.store, self.record(spec, batch).files["objects"])
        return {row["key"]: row for row in rows}

    def names(self, ref: str) -> set[str]:
        """The landed files whose samples a version has."""
        return set(self.root.open(ref).samples().collect()["raw_key"])


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    root = loader.Root(tmp_path / "root")
    root.create()
    return Dataset(root, tmp_path / "landing")


class Make:
    scene, jpeg, scaled, cropped, mp4 = map(staticmethod, (scene, jpeg, scaled, cropped, mp4))


@pytest.fixture(scope="session")
def make() -> type[Make]:
    """The functions of this file, for test modules that cannot import one another."""
    return Make


@pytest.fixture
def of_split(make: type[Make]) -> Callable[[DatasetSpec, Image.Image, str], bytes]:
    """A JPEG of a picture whose bytes fall into a split."""

    def find(spec: DatasetSpec, picture: Image.Image, split: str) -> bytes:
        import hashlib

        for quality in range(95, 50, -1):
            data = jpeg(picture, quality)
            if spec.split_of(hashlib.sha256(data).hexdigest()) == split:
                return data
        raise LookupError(split)

    return find
