"""Depth in video: the fact `depth` of a field is the meaning of its codes; LeRobot's formula gives distances."""

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from ...errors import InvalidSample
from ...keywords import is_whole_number

FACT = "depth"
"""Name of the fact, and ending of the field of windows with its numbers."""
MM_PER_M = 1000.0
_MAX_MM = 65_535.0
"""Largest distance in mm that LeRobot gives: its recordings are uint16."""
_DISTANCES = ("min_m", "max_m", "shift_m")
_MOST_CODE = 65_535
_MOST_M = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthScale:
    """Scale of the codes of a depth video: code 0 is `min_m`, code `max_code` is `max_m`."""

    max_code: int
    """Largest code, 1 to 65,535; LeRobot's is 4,095."""
    min_m: float
    """Distance of code 0 in m, from 0."""
    max_m: float
    """Distance of `max_code` in m, above `min_m`."""
    shift_m: float
    """Added to distances before the logarithm, in m."""
    is_log: bool
    """True if codes are even steps of the logarithm, False if of the distance."""

    @classmethod
    def parse(cls, fact: Any, where: str) -> "DepthScale":
        """Return the scale in the fact `depth`, checked. Raises: InvalidSample."""
        try:
            scale = cls(
                max_code=fact["max_code"],
                min_m=float(fact["min_m"]),
                max_m=float(fact["max_m"]),
                shift_m=float(fact["shift_m"]),
                is_log=fact["is_log"],
            )
            scale.check()
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidSample(
                f"{where}: depth = {fact!r:.200}: {type(error).__name__}: {error}. Needed are max_code, a whole number "
                f"from 1 to {_MOST_CODE:,}; {', '.join(_DISTANCES)}, metres as decimal texts; is_log, true or false",
                what="depth",
                where=where,
                given=fact,
            ) from error
        return scale

    def check(self) -> None:
        """Raise ValueError for a scale that gives no distances."""
        if not is_whole_number(self.max_code, 1, _MOST_CODE):
            raise ValueError(f"max_code = {self.max_code!r}")
        if not isinstance(self.is_log, bool):
            raise ValueError(f"is_log = {self.is_log!r}")
        if not 0 <= self.min_m < self.max_m <= _MOST_M:  # also rejects NaN
            raise ValueError(f"{self.min_m} to {self.max_m} m is not a range within 0 to {_MOST_M:,.0f} m")
        if not abs(self.shift_m) <= _MOST_M or (self.is_log and self.min_m + self.shift_m <= 0):
            raise ValueError(f"the logarithm of {self.min_m} + {self.shift_m} m is not a number")

    def to_json(self) -> dict[str, Any]:
        """Return the fact. Distances are texts: canonical JSON has no floats."""
        distances = {name: repr(getattr(self, name)) for name in _DISTANCES}
        return {"max_code": self.max_code, **distances, "is_log": self.is_log}

    def numbers(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return float64 [5]: max_code, min_m, max_m, shift_m, and 1 for a logarithm, else 0."""
        return np.array([self.max_code, self.min_m, self.max_m, self.shift_m, self.is_log], np.float64)

    def distances(self, codes: Any, unit: str) -> Any:
        """Return the distances of a torch tensor of codes, float32 of its shape: m, or whole mm.

        These are LeRobot's operations in its order, so an item of its dataset has the same bits.
        """
        import torch

        low = self.min_m
        high = self.max_m
        if self.is_log:
            low = log(self.min_m + self.shift_m)
            high = log(self.max_m + self.shift_m)
        out = codes.to(torch.float32)
        out.mul_((high - low) / self.max_code).add_(low)
        if self.is_log:
            out.exp_().sub_(self.shift_m)
        out.clamp_(self.min_m, self.max_m)
        if unit == "mm":
            out.mul_(MM_PER_M).round_().clamp_(0.0, _MAX_MM)
        return out
