"""Megatron's indexed datasets of made-up documents: an index by numpy, and tokens that take no room."""

import struct
from pathlib import Path

import numpy as np

STEP = 2**22
LONGEST = 2000
"""Tokens of a document, fewer than so many."""


def make(folder: Path, n: int) -> Path:
    """Write a dataset of n documents, and return the folder. Nothing is done where it is there."""
    if folder.exists():
        return folder
    making = folder.with_name(f"{folder.name}.making")
    making.mkdir(parents=True, exist_ok=True)
    lengths = np.random.default_rng(n).integers(0, LONGEST, n, np.int32)
    with open(making / "docs.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1))  # 8: uint16
        file.write(lengths.data)
        end = 0
        for first in range(0, n, STEP):
            ends = end + 2 * np.cumsum(lengths[first : first + STEP], dtype=np.int64)
            file.write((ends - 2 * lengths[first : first + STEP]).data)
            end = int(ends[-1])
        for first in range(0, n + 1, STEP):
            file.write(np.arange(first, min(first + STEP, n + 1)).data)
    with open(making / "docs.bin", "wb") as file:
        file.truncate(end)
    making.rename(folder)
    return folder
