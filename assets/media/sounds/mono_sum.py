"""What happens to a stereo sound when its two channels are added: wired the wrong way round, it goes silent."""

import math

import numpy as np

from loader.modalities.heard import Floats

CANCELS_DB = -10.0
"""A sum that is weaker by more is said to cancel: the channels' correlation is then below -0.8."""


class MonoSum:
    """Add the blocks of a stereo sound. O(samples)."""

    def __init__(self) -> None:
        self._sum = self._mean = 0.0

    def add(self, samples: Floats) -> None:
        """float32 [2, samples]"""
        left, right = samples.astype(np.float64)
        self._sum += float(np.square((left + right) / 2).sum())
        self._mean += float((np.square(left).sum() + np.square(right).sum()) / 2)

    def db(self) -> float | None:
        """Power of (left + right) / 2 against the mean power of both: 0 for two equal channels, -3.01 for unlike
        ones, -infinity (as -200) for inverted ones. None for silence, or where there were not two channels."""
        if not self._mean:
            return None
        return max(-200.0, 10 * math.log10(max(self._sum / self._mean, 1e-20)))

    def cancels(self) -> bool | None:
        """None where `db` is."""
        db = self.db()
        return None if db is None else db < CANCELS_DB
