"""Stored audio against a source whose timestamps jitter: piece by piece, near their times."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float64]]

PIECE_S = 0.02
"""Seconds of a piece; most packets are at least as long."""

AROUND_S = 0.25
"""Longest jitter in seconds; a longer shift is a gap, or audio left out."""

ROUNDED_S = 0.004
"""Seconds. Two roundings of a time to ms, or one and the exact time, differ by less."""

SAME_CORRELATION = 0.8
HEARD_SHARE = 0.7
"""Share of pieces that must match; some hold a filled gap."""

QUIET_SHARE = 0.1
"""Share of the audio's level; quieter pieces are not compared."""


class Stretch(NamedTuple):
    """Decoded audio frame."""

    at_s: Fraction
    """Seconds at which it is heard."""
    samples: np.ndarray[Any, Any]
    """float32 [channels, n]."""


class FrameSequence(NamedTuple):
    """Audio frames end to end."""

    sound: list[Samples]
    """float64 [n] each: the sum of the channels, and every channel."""
    times_s: Samples
    """float64 [frames]: seconds of each frame by its timestamp."""
    edges: Any
    """int [frames + 1]: positions of the frames in `sound`, in samples."""


def laid_end_to_end(
    stretches: Sequence[Stretch], source_rate_hz: int, rate_hz: int, is_heard: Sequence[bool]
) -> FrameSequence:
    """Lay the frames' channels that a mix must hold end to end, at `rate_hz`."""
    whole = np.concatenate([one.samples for one in stretches], axis=1)[list(is_heard)].astype(np.float64)
    width = max(1, round(source_rate_hz / rate_hz))
    own = np.arange(whole.shape[1]) / source_rate_hz - (0.5 / source_rate_hz if width % 2 == 0 else 0)
    times = np.arange(whole.shape[1] * rate_hz // source_rate_hz) / rate_hz
    box = np.ones(width) / width
    channels = [np.interp(times, own, np.convolve(one, box, mode="same")) for one in whole]
    edges = np.cumsum([0, *(one.samples.shape[1] for one in stretches)]) * rate_hz // source_rate_hz
    times_s = np.array([float(one.at_s) for one in stretches])
    return FrameSequence([np.sum(channels, axis=0), *channels], times_s, edges)


def is_heard_in_place(mixed: Samples, rate_hz: int, start_s: Fraction, sequence: FrameSequence) -> bool:
    """Return whether most pieces of `mixed` [n], from start_s on, match frames near their times.

    Frames play end to end; each piece must correlate with frames within twice the timestamps' jitter.
    """
    slack_s = ROUNDED_S + 2 * _jitter_s(sequence, rate_hz)
    size = max(16, round(PIECE_S * rate_hz))
    loud = QUIET_SHARE * float(np.sqrt(np.square(mixed).mean()))
    n_pieces = 0
    n_matched = np.zeros(len(sequence.sound))
    for begin in range(0, len(mixed) - size + 1, size):
        piece = mixed[begin : begin + size]
        if float(np.sqrt(np.square(piece).mean())) < loud:
            continue
        n_pieces += 1
        at_s = float(start_s) + begin / rate_hz
        low, high = _around(sequence, rate_hz, at_s - slack_s, at_s + size / rate_hz + slack_s)
        n_matched += [_best(piece, one[low:high]) >= SAME_CORRELATION for one in sequence.sound]
    return bool(n_pieces) and bool(n_matched.max() >= HEARD_SHARE * n_pieces)


def _jitter_s(sequence: FrameSequence, rate_hz: int) -> float:
    """Return the most seconds by which a frame's time differs from its neighbours' median."""
    late = sequence.times_s - sequence.edges[:-1] / rate_hz
    reach = max(1, round(AROUND_S * rate_hz * len(late) / max(1, sequence.edges[-1])))
    padded = np.pad(late, reach, mode="edge")
    median = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return min(AROUND_S, float(np.abs(late - median).max()))


def _around(sequence: FrameSequence, rate_hz: int, at_s: float, until_s: float) -> tuple[int, int]:
    """Return the samples [first, stop) of the frames heard within [at_s, until_s)."""
    lengths = np.diff(sequence.edges)
    near = np.flatnonzero((sequence.times_s < until_s) & (sequence.times_s + lengths / rate_hz > at_s))
    if not len(near):
        return 0, 0
    first, last = int(near[0]), int(near[-1])
    low = sequence.edges[first] + max(0, int((at_s - sequence.times_s[first]) * rate_hz))
    high = sequence.edges[last] + min(
        int(lengths[last]), int((until_s - sequence.times_s[last]) * rate_hz) + 1
    )
    return int(low), int(high)


def _best(piece: Samples, around: Samples) -> float:
    """Return the highest normalised correlation of `piece` with a part of `around`."""
    if len(around) < len(piece):
        return 0.0
    products = np.correlate(around, piece, mode="valid")
    energy = np.concatenate([[0.0], np.cumsum(np.square(around))])
    windows = np.maximum(energy[len(piece) :] - energy[: len(products)], 1e-12)
    return float((products / np.sqrt(windows * max(float(np.square(piece).sum()), 1e-12))).max())
