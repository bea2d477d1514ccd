"""Images: 256 px JPEGs decoded and batched by 64, shuffled, two workers, warm page cache.

L2 is the machine's own limit: a bare loop of the same decode on both cores, nothing batched.
"""

import io
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import loader

N_IMAGES, SIDE_PX, BATCH, WORKERS = 4096, 256, 64, 2


def make_jpegs(n: int = N_IMAGES, seed: int = 0) -> list[bytes]:
    """Photo-like pictures: noise at four scales, quality 90, about 30 KB each."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        picture = np.zeros((SIDE_PX, SIDE_PX, 3), np.float32)
        for cells, weight in ((4, 90), (16, 50), (64, 25), (SIDE_PX, 6)):
            coarse = (rng.random((cells, cells, 3)) * 255).astype(np.uint8)
            grown = Image.fromarray(coarse).resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC)
            picture += np.asarray(grown, np.float32) * weight / 171
        buffer = io.BytesIO()
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        out.append(buffer.getvalue())
    return out


class Files(Dataset[torch.Tensor]):
    """The peer: one file per image, the same decoder."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(simplejpeg.decode_jpeg(self.paths[index].read_bytes(), strict=True))


def contestants(folder: Path) -> dict[str, Callable[[int], float]]:
    """Name -> function of a number of images that gives images per second."""
    jpegs = make_jpegs()
    files = [folder / f"{i:05d}.jpg" for i in range(len(jpegs))]
    for path, data in zip(files, jpegs, strict=True):
        path.write_bytes(data)
    with loader.Root(folder / "root").write("photos") as writer:
        for i, data in enumerate(jpegs):
            writer.add(f"{i:05d}", {"jpg": data})
    plan = loader.plan({"photos": writer.version}, seed=1, global_batch=BATCH)
    paths = files

    def bare(n: int) -> float:
        def work(mine: list[bytes]) -> None:
            for data in mine:
                simplejpeg.decode_jpeg(data, strict=True)

        wanted = [jpegs[i % len(jpegs)] for i in range(n)]
        threads = [threading.Thread(target=work, args=(wanted[w::WORKERS],)) for w in range(WORKERS)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return n / (time.perf_counter() - start)

    def penstock(n: int) -> float:
        with loader.Loader(plan, 0, 1, workers=WORKERS) as batches:
            next(batches)
            start = time.perf_counter()
            for _ in range(n // BATCH):
                next(batches)
            return n // BATCH * BATCH / (time.perf_counter() - start)

    def torch_files(n: int) -> float:
        data = DataLoader(Files(paths), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
        batches = iter(data)
        next(batches)
        start, seen = time.perf_counter(), 0
        while seen < n:
            batch = next(batches, None)
            if batch is None:
                batches = iter(data)
                continue
            seen += len(batch)
        rate = seen / (time.perf_counter() - start)
        del batches, data
        return rate

    return {
        "L2 (bare decode, 2 threads)": bare,
        "penstock, 2 threads": penstock,
        "torch DataLoader over files": torch_files,
    }
