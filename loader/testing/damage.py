"""Damaged copies of good bytes, as disks, uploads and other programs leave them."""

from collections.abc import Iterator

import numpy as np


def damaged(data: bytes, seed: int, n: int = 100) -> Iterator[bytes]:
    """Yield `n` truncations, from nothing to all but the last byte, and `n` copies with 1 to 5 bytes changed.

    n: 2 or more.
    """
    for share in range(n):
        yield data[: (len(data) - 1) * share // (n - 1)]
    rng = np.random.default_rng(seed)
    for _ in range(n):
        copy = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 6)):
            copy[place] = rng.integers(256)
        yield bytes(copy)
