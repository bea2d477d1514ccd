"""Memory to decode into: rows of a batch, which saves a copy."""

from collections.abc import Callable

import numpy as np

Place = Callable[[tuple[int, ...], np.dtype], np.ndarray | None]
"""(shape, dtype) of a result -> C-contiguous, writable memory for it, or None."""


def nowhere(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Return None: the `Place` that offers no memory."""


class PlacingDecoder:
    """Base of decoders that are called with (data, rng, place)."""

    __slots__ = ()
