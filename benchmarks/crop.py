"""Random resized crops of JPEGs: `loader.random_resized_crop` against the same boxes with cv2 and with Pillow.

    python -m benchmarks.crop [--rounds N] [--crops N] [--media FOLDER]

Needs `pip install opencv-python-headless`. One thread in one process; contestants take turns. A time is the least
processor time of a crop over all rounds: decoding, the cut, the filter to 224 x 224 px, half of the crops flipped, and
the result in a batch's row. All get the same boxes. penstock draws its boxes itself, within its time.
"""

import argparse
import io
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

import loader
from loader.errors import DecodeFailed
from loader.modalities.image.crop import UPRIGHT
from loader.modalities.image.jpeg_header import read_header
from loader.modalities.image.request import draw_box, draw_flip

SIZE, AREA, RATIO, FLIP = (224, 224), (0.08, 1.0), (3 / 4, 4 / 3), 0.5
SIDES = ((256, 256), (500, 375), (640, 480), (1024, 768), (1800, 1200))
OURS, CV2, PILLOW, LIMIT = (
    "penstock",
    "simplejpeg + cv2 INTER_AREA",
    "simplejpeg + Pillow BILINEAR",
    "decoding only",
)

Row = np.ndarray[Any, np.dtype[np.uint8]]
Cropped = Callable[[bytes, np.random.Generator, Row], None]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.crop", description=__doc__)
    media = os.environ.get("PENSTOCK_MEDIA")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--crops", type=int, default=32, help="per round, contestant and image")
    options.add_argument("--media", type=Path, default=Path(media, "image") if media else None)
    given = options.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}; us of processor time a crop\n")
    print(
        f"| image | {OURS} | {CV2} | {PILLOW} | {LIMIT} | {OURS} / cv2 |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name, data in {**made(), **found(given.media)}.items():
        us = timed(data, given.rounds, given.crops)
        cells = " | ".join(f"{us[one]:,.0f}" for one in (OURS, CV2, PILLOW, LIMIT))
        print(f"| {name} | {cells} | {us[OURS] / us[CV2]:.2f} |", flush=True)
    return 0


def made() -> Mapping[str, bytes]:
    """Name -> JPEG with detail at every scale."""
    rng, images = np.random.default_rng(0), {}
    for width, height in SIDES:
        pixels = np.zeros((height, width, 3))
        for px, weight in ((64, 90), (16, 50), (4, 25), (2, 11)):
            coarse = rng.integers(0, 256, (height // px + 1, width // px + 1, 3), np.uint8)
            grown = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            pixels += np.asarray(grown) * (weight / 176)
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        images[f"{width} x {height} px, made"] = file.getvalue()
    return images


def found(folder: Path | None) -> Mapping[str, bytes]:
    """Name -> JPEG of a folder that is upright and not damaged."""
    images = {}
    for path in sorted(folder.glob("*.jp*g")) if folder else []:
        data = path.read_bytes()
        try:
            height, width, _ = loader.image()(data).shape
            if read_header(data).turn == UPRIGHT and min(height, width) >= 256:
                images[f"{width} x {height} px, {path.name}"] = data
        except DecodeFailed:
            continue
    return images


def timed(data: bytes, rounds: int, crops: int) -> Mapping[str, float]:
    """Contestant -> us of processor time a crop."""
    rows = np.empty((crops, *SIZE, 3), np.uint8)
    best = dict.fromkeys(CONTESTANTS, float("inf"))
    for _ in range(rounds):
        for name, cropped in CONTESTANTS.items():
            rng = np.random.default_rng(1)
            start = time.process_time()
            for row in rows:
                cropped(data, rng, row)
            best[name] = min(best[name], (time.process_time() - start) / crops * 1e6)
    return best


_ours = loader.random_resized_crop(SIZE, AREA, RATIO, FLIP)


def ours(data: bytes, rng: np.random.Generator, row: Row) -> None:
    _ours(data, rng, lambda shape, dtype: row)


def cut(data: bytes, rng: np.random.Generator) -> tuple[Row, bool]:
    """Return the box's pixels, and whether the result is flipped."""
    pixels = simplejpeg.decode_jpeg(data, "RGB")
    flip = draw_flip(FLIP, rng)
    top, left, height, width = draw_box(pixels.shape[:2], AREA, RATIO, rng)
    return pixels[top : top + height, left : left + width], flip


def by_cv2(data: bytes, rng: np.random.Generator, row: Row) -> None:
    part, flip = cut(data, rng)
    small = cv2.resize(part, SIZE[::-1], interpolation=cv2.INTER_AREA)
    row[:] = small[:, ::-1] if flip else small


def by_pillow(data: bytes, rng: np.random.Generator, row: Row) -> None:
    part, flip = cut(data, rng)
    small = np.asarray(Image.fromarray(part).resize(SIZE[::-1], Image.Resampling.BILINEAR))
    row[:] = small[:, ::-1] if flip else small


def decoded(data: bytes, rng: np.random.Generator, row: Row) -> None:
    simplejpeg.decode_jpeg(data, "RGB")


CONTESTANTS: Mapping[str, Cropped] = {OURS: ours, CV2: by_cv2, PILLOW: by_pillow, LIMIT: decoded}

if __name__ == "__main__":
    try:
        import cv2
    except ImportError:
        sys.exit("benchmarks.crop compares with cv2: pip install opencv-python-headless")
    cv2.setNumThreads(0)
    sys.exit(main())
