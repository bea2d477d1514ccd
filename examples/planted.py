"""A training with three planted faults, to find in the viewer: a black picture, a wrong label, and a NaN.

    python -m examples.planted                  a copy of the demo's photos with faults, published, and trained on
    python -m examples.planted --train again    the same training over the newest version, as the run `again`
    python -m examples.planted --copies 20      with 20 copies of a blank picture with its date, to find all by one

docs/viewer.md follows each fault from the loss back to its raw file, and out of the next version.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

import loader
from dagster_project.datasets.demo import SPEC
from examples.demo.pipeline import DATASET, Pipeline, Places
from examples.demo.publishing import publish_source
from examples.demo.show import DemoFailed, Report, line
from examples.train import augment, build_model
from penstock.class_names import find_class_names

STEPS, GLOBAL_BATCH, SEED = 160, 4, 11


def measured(sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The crop of `augment`, with its mean and 1 / its deviation, float32: infinite for a picture of one colour."""
    crop = augment(sample, rng)
    with np.errstate(divide="ignore"):
        scale = 1 / crop["jpg"].std(dtype=np.float32)
    return {**crop, "mean": np.float32(crop["jpg"].mean()), "scale": scale}


def recipe() -> dict[str, Any]:
    """The decoders and the transform of this training, for it and for every look back at it."""
    return {"transform": measured}


def plant(photos: Path, copies: int = 0) -> None:
    """Put the faults among photos in folders of their labels. copies: of a blank picture with its date."""
    dark = np.random.default_rng(SEED).integers(
        0, 3, (256, 360, 3), np.uint8
    )  # a covered lens, with its noise
    Image.fromarray(dark).save(photos / "things" / "lens-cap.png")
    Image.new("RGB", (320, 256), (188, 188, 188)).save(photos / "textures" / "paper.png")
    gravel = Image.open(photos / "textures" / "gravel.png")
    wide, high = gravel.size
    for number, left in enumerate((0, wide // 3, wide * 2 // 3)):
        gravel.crop((left, 0, left + wide // 3, high * 2 // 3)).save(
            photos / "textures" / f"gravel-{number}.png"
        )
    gravel.crop((0, high * 2 // 3, wide, high)).save(
        photos / "people" / "portrait.png"
    )  # in the wrong folder
    for number in range(copies):
        dated_blank(number).save(photos / "things" / f"closed-{number}.jpg", quality=70 + number)


def dated_blank(number: int) -> Image.Image:
    """What a camera with a closed shutter delivers: gray, with the date that it prints; each a little different."""
    gray = 120 + 3 * number
    picture = Image.new("RGB", (320 + 2 * number, 256 + number % 4), (gray, gray, gray))
    left, top = picture.width - 110, picture.height - 40
    for place in range(8):
        if place not in (2, 5):  # 12 34 56
            picture.paste((255, 255, 255), (left + 12 * place, top, left + 12 * place + 8, top + 24))
    return picture


def train(root: loader.Root, run: str) -> None:
    """Train on the newest version, and leave a trail. A step whose loss is not a number changes no weight."""
    version = root.open(f"{DATASET}@latest")
    view = version.select("jpg", "cls", where_present=True)
    plan = loader.plan({"photos": view}, seed=SEED, global_batch=GLOBAL_BATCH, allow_repeats=True)
    torch.manual_seed(SEED)
    model = build_model(len(find_class_names(version) or ()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    trail = loader.Trail(root, run, recipe="examples.planted:recipe", tensors_every=1)
    with loader.Loader(plan, **recipe(), steps=STEPS, trail=trail) as batches:
        for batch in batches:
            optimizer.zero_grad()
            mean, scale = (batch[name][:, None, None, None] for name in ("mean", "scale"))
            pictures = (batch["jpg"].float() - mean) * scale  # 0 * infinity for a picture of one colour
            losses = functional.cross_entropy(model(pictures), batch["cls"], reduction="none")
            batches.note(loss=losses.mean(), per_sample={"loss": losses})
            if torch.isfinite(losses).all():
                losses.mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    line(f"run {run!r}: {STEPS} steps on {len(view)} photos of {version.name}")


def main() -> int:
    """0 when all was done, 1 when the demo is not there or a stage failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="folder of `make demo`")
    parser.add_argument("--into", type=Path, default=Path("demo/planted"))
    parser.add_argument("--train", default="", metavar="RUN", help="train again, on the newest version")
    parser.add_argument("--copies", type=int, default=0, metavar="N", help="of a blank picture with its date")
    options = parser.parse_args()
    into = options.into.resolve()
    source, root = into / "raw", into / "root"
    if not options.train:
        if not (options.demo / "raw" / "photos").is_dir():
            print(f"{options.demo} has no raw photos: run make demo first, or pass --demo", file=sys.stderr)
            return 1
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(options.demo / "raw" / "photos", source / "photos")
        plant(source / "photos", options.copies)
        # The demo drops near-duplicates, and with them all copies.
        spec = replace(SPEC, near_duplicates=None) if options.copies else SPEC
        places = Places(root=root, home=into / "dagster_home", source=str(source), spec=spec)
        pipeline = Pipeline(places)
        try:
            publish_source(places, pipeline, Report())
        except DemoFailed as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            pipeline.close()
    with loader.Root(root) as opened:
        train(opened, options.train or "planted")
    print(
        f"\n  penstock view {options.train or 'planted'} --root {root} --recipe examples.planted:recipe --allow-writes"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
