"""A root to look at: a million small pictures, photos, large photos, and trainings on the photos."""

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import loader
from loader.run.trail.read_trail import read_starts
from loader.run.trail.step_rows import StepRow, rows_bytes
from loader.run.trail.trail import trail_folder
from penstock.progress import progress

from .recipe import recipe

RUN, LONG_RUN = "steps", "long"
ROWS_AN_OBJECT = 1_000
"""Steps of one object of the long trail: a minute of 17 steps a second."""
LABELS = ("cat", "dog", "owl", "fox", "hen", "bee", "ant", "elk")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of samples, of slots of a step, and of steps. Those of `docs/benchmarks-pipeline.md` are the defaults."""

    tiny: int = 1_000_000
    photos: int = 3_000
    large: int = 600
    batch: int = 256
    steps: int = 40
    long_steps: int = 1_000_000


def make(folder: Path, sizes: Sizes) -> Path:
    """The folder of the root, made where it is not there yet."""
    name = "-".join(map(str, vars(sizes).values()))
    made, making = folder / name, folder / f"{name}.making"
    if made.exists():
        return made
    with loader.Root(making) as root:
        _publish(root, "tiny", _tiny(sizes.tiny), sizes.tiny)
        _publish(root, "photos", _photos(sizes.photos, 512, 512), sizes.photos)
        _publish(root, "large", _photos(sizes.large, 1920, 1080), sizes.large)
        view = root.open("photos@latest").select("jpg", "cls")
        plan = loader.plan({"photos": view}, seed=1, global_batch=sizes.batch, allow_repeats=True)
        _train(root, plan, RUN, sizes.steps)
        _train(root, plan, LONG_RUN, 1)
        _lengthen(root, sizes.long_steps)
    making.rename(made)
    return made


def _publish(root: loader.Root, name: str, samples: Iterator[dict[str, Any]], n: int) -> None:
    with root.write(name) as writer:
        for i, fields in enumerate(progress(samples, f"samples of {name}", total=n)):
            metadata = {
                "width_px": 64 + i * 7919 % 1000,
                "height_px": 64 + i * 104_729 % 1000,
                "score": (i * 1_299_709 % 1_000_003) / 1_000_003,
                "label": LABELS[i % len(LABELS)],
                "language": ("en", "de", "fr")[i % 3],
                "caption": f"a {LABELS[i % len(LABELS)]} of {i % 1000}",
            }
            writer.add(f"{name}/{i:07d}", fields, metadata=metadata)


def _tiny(n: int) -> Iterator[dict[str, Any]]:
    pictures = [jpeg(picture(seed, 32, 32), 60) for seed in range(64)]
    return ({"jpg": pictures[i % 64], "cls": i % len(LABELS)} for i in range(n))


def _photos(n: int, width: int, height: int) -> Iterator[dict[str, Any]]:
    """Photo-like pictures. Few are drawn, and every sample has one of them with a corner of its own."""
    drawn = [picture(seed, width, height) for seed in range(min(n, 24))]
    rng = np.random.default_rng(0)
    for i in range(n):
        one = drawn[i % len(drawn)]
        one[:32, :32] = np.repeat(np.repeat(rng.integers(0, 256, (4, 4, 3)), 8, 0), 8, 1)
        yield {"jpg": jpeg(one, 88), "cls": i % len(LABELS)}


def picture(seed: int, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [height, width, 3]: noise at four scales."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    light = np.zeros((height, width, 3), np.float32)
    for cells, weight in ((4, 90), (16, 50), (64, 25), (256, 6)):
        coarse = (rng.random((cells, cells, 3)) * 255).astype(np.uint8)
        grown = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        light += np.asarray(grown, np.float32) * weight / 171
    return light.clip(0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray[Any, np.dtype[np.uint8]], quality: int) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "JPEG", quality=quality)
    return sink.getvalue()


def _train(root: loader.Root, plan: loader.Plan, run: str, steps: int) -> None:
    trail = loader.Trail(root, run, recipe="benchmarks.view.recipe:recipe", tensors_every=1)
    with loader.Loader(plan, 0, 1, steps=steps, trail=trail, framework="torch", **recipe()) as batches:
        for batch in progress(batches, f"steps of {run}", total=steps):
            losses = np.random.default_rng(batch.step).random(len(batch))
            batches.note(loss=float(losses.mean()), per_sample={"loss": losses})


def _lengthen(root: loader.Root, steps: int) -> None:
    """More steps of a run, whose digests are made up."""
    firsts = range(1, steps, ROWS_AN_OBJECT)
    for first in progress(firsts, "steps of the long trail"):
        _put_rows(root, range(first, min(first + ROWS_AN_OBJECT, steps)))


@contextmanager
def longer_run(folder: Path, steps: int) -> Iterator[None]:
    """Add an object to the log of the long run inside, as after another minute. steps: of the log."""
    with loader.Root(folder) as root:
        name = _put_rows(root, range(steps, steps + ROWS_AN_OBJECT))
        try:
            yield
        finally:
            root.store.delete_many([name])


def _put_rows(root: loader.Root, steps: range) -> str:
    """Store an object of the long run's log, and return its key."""
    (start,) = read_starts(root.store, LONG_RUN)
    rng = np.random.default_rng(steps.start)
    rows = [
        StepRow(
            step=step,
            at_us=start.at_us + step * 60_000,
            digest=int(digest),
            substituted=0,
            wait_us=int(digest % 1000),
            notes={"loss": 1 + float(digest % 1000) / 1e4, "grad_norm": float(digest % 77)},
        )
        for step, digest in zip(steps, rng.integers(0, 2**63, len(steps)), strict=True)
    ]
    name = f"{trail_folder(LONG_RUN)}0-of-1/{steps.start:019d}-{steps.start:016x}.parquet"
    root.store.put_if_absent(name, rows_bytes(rows, start.id))
    return name


def stored_photos(root: loader.Root, name: str, n: int) -> list[bytes]:
    """Stored bytes of the first samples."""
    from penstock.view.inspect.sample_record import read_field

    version = root.open(f"{name}@latest")
    return [read_field(version, ordinal, "jpg") for ordinal in itertools.islice(range(len(version)), n)]
