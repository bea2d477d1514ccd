"""The datasets that all contestants serve: torch's map-style datasets, as users write them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..data import Data
from ..photos import random_box

SIDE_PX = 224


class Photos(torch.utils.data.Dataset[Any]):
    """JPEG files, each decoded and cropped at random as torchvision's RandomResizedCrop and ToTensor do, by Pillow."""

    def __init__(self, folder: Path, n: int) -> None:
        self.paths = sorted(str(path) for path in folder.glob("*.jpg"))[:n]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[i]) as image:
            photo = image.convert("RGB")
        top, left, tall, wide = random_box(photo.height, photo.width, _draw)
        corners = (left, top, left + wide, top + tall)
        sized = photo.resize((SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR, corners)
        pixels = torch.from_numpy(np.array(sized))
        planes = pixels.permute(2, 0, 1).contiguous()
        return planes.float().div(255), i % 1000


def _draw() -> float:
    return float(torch.rand(()))


class Small(torch.utils.data.Dataset[Any]):
    """A list of small arrays: an item takes less than 1 us."""

    def __init__(self, n: int) -> None:
        self.rows = list(np.random.default_rng(1).random((n, 8), np.float32))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


class Arrays(torch.utils.data.Dataset[Any]):
    """One array in memory, with an item for each row."""

    def __init__(self, mib: int) -> None:
        self.rows = np.random.default_rng(1).integers(0, 255, (mib * 64, 2**14), np.uint8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


class Strings(torch.utils.data.Dataset[Any]):
    """A list of Python strings, such as the paths of a folder of images."""

    def __init__(self, n: int) -> None:
        self.paths = [f"/data/train/n{number % 1000:08d}/image_{number:010d}.jpg" for number in range(n)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> int:
        return len(self.paths[i])


class Counted(torch.utils.data.Dataset[Any]):
    """A dataset without bytes, which counts the items that are made."""

    n_made = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        Counted.n_made += 1
        return i


def write_photos(data: Data, folder: Path) -> None:
    """Write each JPEG as a file of its own."""
    folder.mkdir()
    for number in range(len(data)):
        path = folder / f"{number:07d}.jpg"
        path.write_bytes(data[number])
