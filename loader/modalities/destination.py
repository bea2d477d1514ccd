"""Memory that a decoder may decode into: rows of a batch, so that nothing is copied once more."""

from collections.abc import Callable

import numpy as np

Place = Callable[[tuple[int, ...], np.dtype], np.ndarray | None]
"""(shape, dtype) of a result -> memory for just that, C-contiguous and writable, or None: the decoder makes its own."""


def nowhere(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Return None: the `Place` that offers no memory."""


class PlacingDecoder:
    """Base of decoders that are called with (data, rng, place)."""

    __slots__ = ()
