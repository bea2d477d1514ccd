"""Audible stretches of a sound: louder than its background, found by their energy.

- The level is the mean square over 20 ms.
- The background is the tenth percentile of the levels of 30 s around.
- A stretch begins where the level rises 10 dB above the background and ends where it falls below 6 dB above it.
- The loud parts are at the level reached for half a second in all. Levels within 12 dB of them are heard in any case,
  so of a steady sound, noise or a tone, nothing is left out.
- Pauses that are too short are bridged, stretches that are too short left out, the others padded. A stretch that is too
  long is divided at its quietest place.
- A background that grows louder of a sudden is taken for sound for some 13 s: rather too much is kept than too little.

Everything is O(frames), 50 per second: 1.4 MB for an hour.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from loader.modalities.audio.timeline import Floats

Levels = np.ndarray[Any, np.dtype[np.float32]]
Span = tuple[int, int]

FRAME_S = 0.02
AROUND_S = 30.0
ON_DB, OFF_DB = 10.0, 6.0
LOUD_DB = 12.0
FLOOR_DBFS = -70.0
"""Level in dBFS below which nothing is heard: the noise of 16 bits is 30 dB further down."""

_LOUD_FRAMES = 25
_BLOCK = 50  # frames: percentiles are taken of seconds


class Meter:
    """Levels of a sound that passes in blocks."""

    def __init__(self, rate_hz: int) -> None:
        self.frame = max(1, round(FRAME_S * rate_hz))
        self._levels: list[Levels] = []
        self._left = np.zeros(0, np.float32)

    def add(self, samples: Floats) -> None:
        """Add float32 [channels, samples]: the mean over the channels of their squares counts."""
        squares = np.square(samples, dtype=np.float64)  # a sample may be huge
        power = np.concatenate([self._left, squares.mean(axis=0)])
        n_whole = len(power) // self.frame
        self._levels.append(_db(power[: n_whole * self.frame].reshape(n_whole, self.frame).mean(axis=1)))
        self._left = power[n_whole * self.frame :]

    def finish(self) -> Levels:
        """Return float32 [frames], dBFS; the last frame may be a shorter one."""
        if len(self._left):
            self._levels.append(_db(self._left.mean(keepdims=True)))
        return np.concatenate(self._levels) if self._levels else np.zeros(0, np.float32)


def _db(power: np.ndarray[Any, Any]) -> Levels:
    levels: Levels = (10 * np.log10(np.maximum(power, 1e-12))).astype(np.float32)
    return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of stretches, in frames."""

    longest: int
    """Longest stretch."""
    pause: int
    """Shortest pause that ends a stretch."""
    padding: int
    """Padding before and behind a stretch."""
    shortest: int
    """Shortest stretch that counts, before padding."""
    tail: int
    """Shortest piece that a long stretch is divided into."""


def heard_spans(levels: Levels, limits: Limits) -> list[Span]:
    """Return [start, end) in frames, in order, apart from each other or touching where a stretch was divided."""
    on, off = thresholds(levels)
    spans = _bridged(_stretches(levels, on, off), limits.pause)
    spans = [(start, end) for start, end in spans if end - start >= limits.shortest]
    padded = [
        (max(0, start - limits.padding), min(len(levels), end + limits.padding)) for start, end in spans
    ]
    return [part for span in joined(padded) for part in divided(levels, span, limits)]


def thresholds(levels: Levels) -> tuple[Levels, Levels]:
    """Return float32 [frames] each: the levels at which a stretch begins, and at which it ends."""
    if not len(levels):
        return levels, levels
    n_blocks = -(-len(levels) // _BLOCK)
    padded = np.pad(
        levels, (0, n_blocks * _BLOCK - len(levels)), mode="reflect" if len(levels) > _BLOCK else "edge"
    )
    blocks = padded.reshape(n_blocks, _BLOCK)
    half = round(AROUND_S / FRAME_S / _BLOCK / 2)
    low = np.array([np.percentile(blocks[max(0, n - half) : n + half + 1], 10) for n in range(n_blocks)])
    n_loud = min(_LOUD_FRAMES, -(-len(levels) // 20))
    high = np.partition(levels, len(levels) - n_loud)[len(levels) - n_loud]
    on = np.maximum(np.minimum(low + ON_DB, high - LOUD_DB), FLOOR_DBFS)
    off = np.maximum(np.minimum(low + OFF_DB, high - LOUD_DB - (ON_DB - OFF_DB)), FLOOR_DBFS)
    each = np.arange(len(levels)) // _BLOCK
    return on[each].astype(np.float32), off[each].astype(np.float32)


def _stretches(levels: Levels, on: Levels, off: Levels) -> list[Span]:
    """Return stretches from the crossing of `off` before the first frame above `on` to the next crossing of `off`."""
    above = np.concatenate([[False], levels > off, [False]])
    edges = np.flatnonzero(above[1:] != above[:-1])
    starts, ends = edges[::2], edges[1::2]
    loud = np.concatenate([[0], np.cumsum(levels > on)])
    return [
        (int(start), int(end)) for start, end in zip(starts, ends, strict=True) if loud[end] > loud[start]
    ]


def _bridged(spans: list[Span], pause: int) -> list[Span]:
    """Join spans less than `pause` apart."""
    bridged: list[Span] = []
    for start, end in spans:
        if bridged and start - bridged[-1][1] < max(1, pause):
            bridged[-1] = (bridged[-1][0], max(end, bridged[-1][1]))
        else:
            bridged.append((start, end))
    return bridged


def joined(spans: list[Span]) -> list[Span]:
    """Return the union of the spans, which are in order of their starts."""
    return _bridged(spans, 0)


def divided(levels: Levels, span: Span, limits: Limits) -> list[Span]:
    """Return the span in pieces of at most `longest` frames: each ends at its quietest place behind its middle."""
    start, end = span
    pieces = []
    while end - start > limits.longest:
        high = min(start + limits.longest, end - limits.tail)
        low = min(start + max(limits.longest // 2, limits.tail), high)
        smooth = np.convolve(levels[low - 1 : high + 1], np.ones(3) / 3, mode="same")[1:-1]
        cut = low + int(smooth.argmin()) if len(smooth) else high
        pieces.append((start, cut))
        start = cut
    return [*pieces, (start, end)]


def complement(spans: list[Span], n: int) -> list[Span]:
    """Return the parts of [0, n) that are in no span."""
    edges = [0, *(edge for span in spans for edge in span), n]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
