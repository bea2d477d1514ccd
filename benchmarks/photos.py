"""Photos as a training's own code makes them: decoded, or a random box of one, resized and known again by a mark.

A random crop looks like no written sample. So each crop begins with a mark in place of its first pixels: a checksum of
the JPEG's head, and the box. `Crops` makes the same crop of the same sample again, and compares all other bytes.
"""

import math
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from .data import Data

Photo = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[int, int, int, int]
"""Top, left, height and width in px."""

SIDE_PX = 224
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
MARK = struct.Struct("<I4H")
HEAD_BYTES = 2048


def decoded(jpeg: bytes) -> Photo:
    import simplejpeg

    out: Photo = simplejpeg.decode_jpeg(jpeg)
    return out


def random_box(height: int, width: int, draw: Callable[[], float]) -> Box:
    """The box of torchvision's RandomResizedCrop: a share of the area and a ratio of the sides."""
    low, high = map(math.log, RATIO)
    for _ in range(10):
        area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draw())
        ratio = math.exp(low + (high - low) * draw())
        tall, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < tall <= height and 0 < wide <= width:
            return int(draw() * (height - tall + 1)), int(draw() * (width - wide + 1)), tall, wide
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def resize_by_cv2(photo: Photo, box: Box) -> Photo:
    import cv2

    cv2.setNumThreads(0)
    top, left, tall, wide = box
    cut = photo[top : top + tall, left : left + wide]
    out: Photo = cv2.resize(cut, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_LINEAR)
    return out


def resize_by_pillow(photo: Photo, box: Box) -> Photo:
    from PIL import Image

    top, left, tall, wide = box
    corners = (left, top, left + wide, top + tall)
    sized = Image.fromarray(photo).resize((SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR, corners)
    return np.array(sized)


RESIZES: dict[str, Callable[[Photo, Box], Photo]] = {"cv2": resize_by_cv2, "Pillow": resize_by_pillow}


def resizer() -> str:
    """The library that all contestants resize with: each sees the project's packages."""
    return "cv2" if find_spec("cv2") else "Pillow"


def crop(jpeg: bytes, by: str, draw: Callable[[], float]) -> Photo:
    photo = decoded(jpeg)
    box = random_box(photo.shape[0], photo.shape[1], draw)
    out = RESIZES[by](photo, box)
    out.reshape(-1)[: MARK.size] = np.frombuffer(MARK.pack(zlib.crc32(jpeg[:HEAD_BYTES]), *box), np.uint8)
    return out


def crop_by_cv2(jpeg: bytes, rng: Any = random) -> Photo:
    """A decoder by name, as worker processes import it."""
    return crop(jpeg, "cv2", rng.random)


def crop_by_pillow(jpeg: bytes, rng: Any = random) -> Photo:
    return crop(jpeg, "Pillow", rng.random)


CROPS: dict[str, Callable[..., Photo]] = {"cv2": crop_by_cv2, "Pillow": crop_by_pillow}


class Crops:
    """Finds the samples that crops were made of."""

    def __init__(self, data: Data, by: str) -> None:
        self._data, self._by = data, by
        heads = (data.bytes[begin : begin + HEAD_BYTES] for begin in data.offsets[:-1].tolist())
        self._samples = {zlib.crc32(head): i for i, head in enumerate(heads)}
        if len(self._samples) < len(data):  # a head is shorter than any of these JPEGs
            raise ValueError("two JPEGs have the same head; crops of them could not be told apart")

    def __call__(self, batch: Sequence[Any]) -> list[int | None]:
        if getattr(batch, "is_cuda", False):  # a tensor on the device
            batch = batch.cpu()
        return [self._sample(np.asarray(one)) for one in batch]

    def _sample(self, made: Photo) -> int | None:
        """The sample, if this is the crop that its mark says."""
        head, *box = MARK.unpack(made.reshape(-1)[: MARK.size].tobytes())
        sample = self._samples.get(head)
        if sample is None:
            return None
        photo = decoded(self._data[sample])
        top, left, tall, wide = box
        if not (0 < tall <= photo.shape[0] - top and 0 < wide <= photo.shape[1] - left):
            return None
        same = RESIZES[self._by](photo, (top, left, tall, wide))
        equal = np.array_equal(same.reshape(-1)[MARK.size :], made.reshape(-1)[MARK.size :])
        return sample if equal else None
