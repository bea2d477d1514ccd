"""Stored sound against a source whose timestamps jitter: piece by piece, each about where they put it.

A recorder's clock gives every frame a time that is some ms off. A reader that believes each of them tears the sound to
pieces; a reader that lays the frames end to end plays it. So the frames are laid end to end here. Every piece of the
stored sound has to be among those that are said to be heard at its time, give or take twice what their times jitter.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float64]]

PIECE_S = 0.02
"""Seconds of a piece; most packets are as long, or longer."""

AROUND_S = 0.25
"""Longest jitter in seconds; a longer shift is a gap, or sound that is left out."""

ROUNDED_S = 0.004
"""Seconds. Two ways to round a time to a tick of a ms, or to leave it as it was, are less apart."""

SAME_CORRELATION = 0.8
HEARD_SHARE = 0.7
"""Share of the pieces that must be found; some hold the place where a gap was filled."""

QUIET_SHARE = 0.1
"""Share of the sound's level; quieter pieces are not compared."""


class Stretch(NamedTuple):
    """A decoded frame of sound."""

    at_s: Fraction
    """Seconds at which it is heard."""
    samples: np.ndarray[Any, Any]
    """float32 [channels, n]."""


class Laid(NamedTuple):
    """Frames of sound end to end."""

    sound: list[Samples]
    """float64 [n] each: the sum of the channels, and every channel."""
    times_s: Samples
    """float64 [frames]: seconds at which each frame is said to be heard."""
    edges: Any
    """int [frames + 1]: places of the frames in `sound`, in samples."""


def laid_end_to_end(
    stretches: Sequence[Stretch], source_rate_hz: int, rate_hz: int, is_heard: Sequence[bool]
) -> Laid:
    """Lay the frames of the channels that a mix must hold end to end, at `rate_hz`."""
    whole = np.concatenate([one.samples for one in stretches], axis=1)[list(is_heard)].astype(np.float64)
    width = max(1, round(source_rate_hz / rate_hz))
    own = np.arange(whole.shape[1]) / source_rate_hz - (0.5 / source_rate_hz if width % 2 == 0 else 0)
    wanted = np.arange(whole.shape[1] * rate_hz // source_rate_hz) / rate_hz
    box = np.ones(width) / width
    channels = [np.interp(wanted, own, np.convolve(one, box, mode="same")) for one in whole]
    edges = np.cumsum([0, *(one.samples.shape[1] for one in stretches)]) * rate_hz // source_rate_hz
    times_s = np.array([float(one.at_s) for one in stretches])
    return Laid([np.sum(channels, axis=0), *channels], times_s, edges)


def is_heard_in_place(mixed: Samples, rate_hz: int, start_s: Fraction, laid: Laid) -> bool:
    """Return whether most of mixed [n] is heard where the source's timestamps put it.

    start_s: the time from which `mixed` is heard.
    """
    slack_s = ROUNDED_S + 2 * _jitter_s(laid, rate_hz)
    size = max(16, round(PIECE_S * rate_hz))
    loud = QUIET_SHARE * float(np.sqrt(np.square(mixed).mean()))
    n_pieces = 0
    found = np.zeros(len(laid.sound))
    for begin in range(0, len(mixed) - size + 1, size):
        piece = mixed[begin : begin + size]
        if float(np.sqrt(np.square(piece).mean())) < loud:
            continue
        n_pieces += 1
        at_s = float(start_s) + begin / rate_hz
        low, high = _around(laid, rate_hz, at_s - slack_s, at_s + size / rate_hz + slack_s)
        found += [_best(piece, one[low:high]) >= SAME_CORRELATION for one in laid.sound]
    return bool(n_pieces) and bool(found.max() >= HEARD_SHARE * n_pieces)


def _jitter_s(laid: Laid, rate_hz: int) -> float:
    """Return the most seconds by which a frame's time is off those of the frames around it."""
    late = laid.times_s - laid.edges[:-1] / rate_hz
    reach = max(1, round(AROUND_S * rate_hz * len(late) / max(1, laid.edges[-1])))
    padded = np.pad(late, reach, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return min(AROUND_S, float(np.abs(late - middle).max()))


def _around(laid: Laid, rate_hz: int, at_s: float, until_s: float) -> tuple[int, int]:
    """Return the samples [first, stop) of the frames that are heard within [at_s, until_s).

    Samples of the first and last frame that lie outside are left out.
    """
    lengths = np.diff(laid.edges)
    near = np.flatnonzero((laid.times_s < until_s) & (laid.times_s + lengths / rate_hz > at_s))
    if not len(near):
        return 0, 0
    first, last = int(near[0]), int(near[-1])
    low = laid.edges[first] + max(0, int((at_s - laid.times_s[first]) * rate_hz))
    high = laid.edges[last] + min(int(lengths[last]), int((until_s - laid.times_s[last]) * rate_hz) + 1)
    return int(low), int(high)


def _best(piece: Samples, around: Samples) -> float:
    """Return the highest normalised correlation of `piece` with a part of `around`."""
    if len(around) < len(piece):
        return 0.0
    products = np.correlate(around, piece, mode="valid")
    energy = np.concatenate([[0.0], np.cumsum(np.square(around))])
    windows = np.maximum(energy[len(piece) :] - energy[: len(products)], 1e-12)
    return float((products / np.sqrt(windows * max(float(np.square(piece).sum()), 1e-12))).max())
