"""Mix channels by position with the coefficients of ITU-R BS.775, without exceeding full scale."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...errors import PenstockError
from .timeline import Floats

Channels = Literal["mono", "stereo", "keep", "first"]
CHANNELS: tuple[Channels, ...] = ("mono", "stereo", "keep", "first")

MAX_CHANNELS = 8
"""Most channels that a FLAC can have."""

_HALF = 0.5**0.5  # -3 dB
# Left and right share per position. ITU-R BS.775-3, table 2: centre and surrounds at -3 dB, low-frequency
# effects left out; a single rear channel feeds both sides; positions next to the front pair count as it.
_STEREO = {
    "FL": (1.0, 0.0),
    "FR": (0.0, 1.0),
    "DL": (1.0, 0.0),  # already mixed down
    "DR": (0.0, 1.0),
    "FC": (_HALF, _HALF),
    "LFE": (0.0, 0.0),
    "BL": (_HALF, 0.0),
    "BR": (0.0, _HALF),
    "SL": (_HALF, 0.0),
    "SR": (0.0, _HALF),
    "BC": (0.5, 0.5),
    "FLC": (1.0, 0.0),
    "FRC": (0.0, 1.0),
}
_UNNAMED = {1: ("FC",), 2: ("FL", "FR")}
"""Positions of one or two channels in files that do not name them."""


class UnknownLayout(PenstockError, ValueError):
    """Channels without known positions or coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    matrix: tuple[tuple[float, ...], ...] | None
    """Coefficients [result channel][source channel]; None if nothing changes."""
    name: str
    """Source and result, such as "5.1 to mono"; "" if nothing changes."""
    gain_db: float
    """Reduction of the coefficients in dB, so that no input exceeds full scale."""

    def __call__(self, samples: Floats) -> Floats:
        if self.matrix is None:
            return samples
        out = np.zeros((len(self.matrix), samples.shape[1]), np.float32)
        for row, coefficients in zip(out, self.matrix, strict=True):
            for channel, coefficient in zip(samples, coefficients, strict=True):
                if coefficient:
                    row += np.float32(coefficient) * channel
        return out


def channel_mix(positions: tuple[str, ...], layout: str, channels: Channels) -> Mix:
    """Return the mix from these channels (FFmpeg's position and layout names) to the requested ones.

    "mono" and "stereo" mix by position; stereo from one channel has two equal channels. "first" keeps the first
    channel, "keep" all.

    Raises: UnknownLayout.
    """
    n = len(positions)
    if channels == "keep" or (n == 1 and channels in ("mono", "first")):
        return Mix(matrix=None, name="", gain_db=0.0)
    if channels == "first":
        return Mix(matrix=((1.0, *[0.0] * (n - 1)),), name=f"first of {layout}", gain_db=0.0)
    if set(positions) == {"NONE"}:
        places = _UNNAMED.get(n, positions)
    else:
        places = positions
    strange = sorted(set(places) - set(_STEREO))
    if strange:
        if strange == ["NONE"]:
            what = "do not say their places"
        else:
            what = f"lie at {', '.join(strange)}"
        raise UnknownLayout(
            f"{n} channels ({layout}) that {what} cannot be mixed to {channels}; accepted then: keep, first",
            what=layout,
            given=strange,
            accepted=["keep", "first"],
        )
    if places == ("FC",):
        return Mix(matrix=((1.0,), (1.0,)), name="mono to stereo", gain_db=0.0)
    to_left = [_STEREO[place][0] for place in places]
    right = [_STEREO[place][1] for place in places]
    if channels == "stereo":
        if places == ("FL", "FR"):
            return Mix(matrix=None, name="", gain_db=0.0)
        rows = [to_left, right]
    else:
        rows = [[_HALF * (one + other) for one, other in zip(to_left, right, strict=True)]]
    most = max(sum(row) for row in rows)
    if not most:
        raise UnknownLayout(
            f"{layout} is low frequency effects only; accepted then: keep, first",
            what=layout,
            given=sorted(set(places)),
            accepted=["keep", "first"],
        )
    scale = 1 / max(1.0, most)
    matrix = tuple(tuple(coefficient * scale for coefficient in row) for row in rows)
    return Mix(matrix=matrix, name=f"{layout} to {channels}", gain_db=float(20 * np.log10(scale)))
