"""Datasets as users write them, which worker processes import by name."""

import random
from pathlib import Path

import numpy as np
import torch

N = 120


class Pictures(torch.utils.data.Dataset):
    """Arrays in memory, without a draw."""

    def __init__(self, n=N):
        self.pixels = np.arange(n * 12, dtype=np.uint16).reshape(n, 2, 2, 3)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, i):
        return self.pixels[i], i % 10


class Augmented(Pictures):
    """Draws from all three global generators, as torchvision's transforms and users' code do."""

    def __getitem__(self, i):
        pixels, label = super().__getitem__(i)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        noise = torch.rand(()) + float(np.random.rand())
        return {"image": torch.from_numpy(pixels.astype(np.float64)) + noise, "label": label}


class LateAugmented(Augmented):
    """Draws from items 100 on only."""

    def __getitem__(self, i):
        if i < 100:
            return {"image": torch.from_numpy(self.pixels[i].astype(np.float64)), "label": i % 10}
        return super().__getitem__(i)


class OwnGenerator(Pictures):
    """Draws from a generator that nobody else knows."""

    def __init__(self, n=N):
        super().__init__(n)
        self.rng = np.random.default_rng()

    def __getitem__(self, i):
        return {"image": self.pixels[i] + self.rng.integers(0, 2**40), "label": i}


def seed_own(dataset, rng):
    dataset.rng = rng


class Bulk(Pictures):
    """Gets several items by one call, as datasets of Hugging Face do."""

    calls = 0
    single_calls = 0

    def __getitems__(self, numbers):
        self.calls += 1
        return [super(Bulk, self).__getitem__(i) for i in numbers]

    def __getitem__(self, i):
        self.single_calls += 1
        return super().__getitem__(i)


class Damaged(Pictures):
    """Some items are truncated images."""

    def __getitem__(self, i):
        if i % 40 == 7:
            raise OSError("image file is truncated (3 bytes not processed)")
        return super().__getitem__(i)


class Broken(Pictures):
    """More items became truncated images since the run."""

    def __getitem__(self, i):
        if i % 40 == 7 or i % 6 == 0:
            raise OSError("image file is truncated (3 bytes not processed)")
        return super().__getitem__(i)


class OpenFile:
    """Reads rows of a file that it holds open, so it cannot be pickled; opened by a function in each process."""

    def __init__(self, path):
        self.file = Path(path).open("rb")  # noqa: SIM115 - as users' datasets do

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.file.seek(8 * i)
        return int.from_bytes(self.file.read(8), "little")

    def close(self):
        self.file.close()
