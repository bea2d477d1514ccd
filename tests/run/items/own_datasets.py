"""Datasets as users write them, which worker processes import by name."""

import os
import random
import threading
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import pyarrow as pa
import torch

from loader.run.items import item_watch

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


class Padded(Pictures):
    """Pads items to the longest of a call, as a tokenizer does in a transform of Hugging Face's datasets."""

    def __getitem__(self, i):
        (item,) = self.__getitems__([i])
        return item

    def __getitems__(self, numbers):
        longest = max(numbers)
        return [{"ids": [i] * i + [0] * (longest - i)} for i in numbers]


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


class Slow(Pictures):
    """Items that cost a millisecond of a core."""

    def __getitem__(self, i):
        end = perf_counter() + 0.001
        while perf_counter() < end:
            pass
        return super().__getitem__(i)


def unpicklable_items(trainer, items):
    """Return what cannot be sent, unless this is the trainer's process."""
    if os.getpid() == trainer:
        return len(items)
    return threading.Lock()


class Hanging(Pictures):
    """One item never returns. Worker processes name it soon."""

    def __setstate__(self, state):
        item_watch.SLOW_S = 0.2
        vars(self).update(state)

    def __getitem__(self, i):
        while i == 7:
            sleep(0.05)
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


class Arrays(torch.utils.data.Dataset):
    """Values that hold arrays; an item describes one of them as the process has it."""

    def __init__(self, values):
        self.names = list(values)
        self.values = values

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        value = self.values[self.names[i]]
        return {"name": self.names[i], "description": comparable_value(value), "shared": is_shared(value)}


def comparable_value(value):
    """Return what must be equal in each process."""
    facts = [type(value).__name__]
    if isinstance(value, torch.Tensor):
        facts += [value.dtype, tuple(value.shape), value.requires_grad]
        plain = value.detach().resolve_conj()
        array = plain.view(torch.uint8) if value.dtype is torch.bfloat16 else plain.numpy()
        return repr([*facts, array.tolist()])
    if isinstance(value, np.ndarray):
        facts += [value.dtype, value.shape, value.flags.writeable, value.flags.fnc]
        return repr([*facts, value.tolist()])
    if isinstance(value, pa.Table):
        return repr([*facts, value.to_pylist()])
    return repr([*facts, *map(comparable_value, value)])


def is_shared(value):
    """Return whether an array lies in the memory that all workers map."""
    if not isinstance(value, np.ndarray | torch.Tensor):
        return False
    address = value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "penstock-recipe" in line:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if begin <= address < end:
                return True
    return False


class Counting(torch.utils.data.Dataset):
    """Counts the items that a process made, in an array and in a view of it."""

    def __init__(self, n=N, mib=1):
        self.n = n
        self.counts = np.zeros(mib * 2**17, np.int64)
        self.tail = self.counts[-1:]
        self.as_tensor = torch.from_numpy(self.counts)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.counts[-1] += 1
        return {"pid": os.getpid(), "count": self.tail[0], "seen": int(self.as_tensor[-1])}
