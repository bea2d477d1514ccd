"""Find stretches of audio that are louder than their background, by energy.

- A level is the mean square over 20 ms; the background is the tenth percentile of the levels within 30 s.
- A stretch starts 10 dB above the background and ends 6 dB above it.
- Levels within 12 dB of the loudest half second always count, so steady noise or a tone stays whole.
- Short pauses are bridged, short stretches dropped, and long ones split at their quietest point.
- A background that suddenly grows louder counts for about 13 s, which errs on the side of keeping audio.


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
"""Quieter levels in dBFS are inaudible; 16-bit noise is 30 dB lower."""

_LOUD_FRAMES = 25
_BLOCK = 50  # frames; there is one percentile per second


class LevelMeter:
    """Levels of audio, block by block."""

    def __init__(self, rate_hz: int) -> None:
        self.frame = max(1, round(FRAME_S * rate_hz))
        self._levels: list[Levels] = []
        self._rest = np.zeros(0, np.float32)

    def add(self, samples: Floats) -> None:
        """Add float32 [channels, samples], averaging the channels' squares."""
        squares = np.square(samples, dtype=np.float64)  # samples may be huge
        power = np.concatenate([self._rest, squares.mean(axis=0)])
        n_whole = len(power) // self.frame
        self._levels.append(_db(power[: n_whole * self.frame].reshape(n_whole, self.frame).mean(axis=1)))
        self._rest = power[n_whole * self.frame :]

    def finish(self) -> Levels:
        """Return the levels in dBFS, float32 [frames]; the last frame may be shorter."""
        if len(self._rest):
            self._levels.append(_db(self._rest.mean(keepdims=True)))
        return np.concatenate(self._levels) if self._levels else np.zeros(0, np.float32)


def _db(power: np.ndarray[Any, Any]) -> Levels:
    levels: Levels = (10 * np.log10(np.maximum(power, 1e-12))).astype(np.float32)
    return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """Limits for stretches, in frames."""

    longest: int
    """Longest stretch."""
    pause: int
    """Shortest pause that ends a stretch."""
    padding: int
    """Padding before and after a stretch."""
    shortest: int
    """Shortest stretch, before padding."""
    tail: int
    """Shortest piece of a split stretch."""


def heard_spans(levels: Levels, limits: SegmentLimits) -> list[Span]:
    """Return the audible stretches, [start, end) in frames, in order."""
    on, off = thresholds(levels)
    spans = _bridged(_stretches(levels, on, off), limits.pause)
    spans = [(start, end) for start, end in spans if end - start >= limits.shortest]
    padded = [
        (max(0, start - limits.padding), min(len(levels), end + limits.padding)) for start, end in spans
    ]
    return [part for span in union_of(padded) for part in split_span(levels, span, limits)]


def thresholds(levels: Levels) -> tuple[Levels, Levels]:
    """Return the levels at which a stretch starts and ends, float32 [frames] each."""
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
    above = np.concatenate([[False], levels > off, [False]])
    edges = np.flatnonzero(above[1:] != above[:-1])
    starts, ends = edges[::2], edges[1::2]
    loud = np.concatenate([[0], np.cumsum(levels > on)])
    return [
        (int(start), int(end)) for start, end in zip(starts, ends, strict=True) if loud[end] > loud[start]
    ]


def _bridged(spans: list[Span], pause: int) -> list[Span]:
    bridged: list[Span] = []
    for start, end in spans:
        if bridged and start - bridged[-1][1] < max(1, pause):
            bridged[-1] = (bridged[-1][0], max(end, bridged[-1][1]))
        else:
            bridged.append((start, end))
    return bridged


def union_of(spans: list[Span]) -> list[Span]:
    """Return the union of spans that are sorted by start."""
    return _bridged(spans, 0)


def split_span(levels: Levels, span: Span, limits: SegmentLimits) -> list[Span]:
    """Split the span into pieces of at most `longest` frames, at the quietest points."""
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
    """Return the parts of [0, n) outside all spans."""
    edges = [0, *(edge for span in spans for edge in span), n]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
