"""Resample audio: FFmpeg's polyphase windowed sinc, with a longer filter than its default.

The filter spans 128 samples of the lower rate: a sinc cut off at 0.96 of the lower Nyquist frequency under a Kaiser
window of beta 10. Measured (tests/modalities/audio/test_resample.py): up to 0.93 of the lower Nyquist frequency, a tone
keeps its level within 0.2 dB. Above Nyquist it is attenuated by 58 dB, from 1.02 on by 100 dB. Sample n is heard at n /
target_hz: positions are exact rationals. The audio is extended by silence (FFmpeg would mirror it).
"""

from collections.abc import Iterator
from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np

from .timeline import Floats

_FILTER_SAMPLES = 128
_FILTER = f"filter_size={_FILTER_SAMPLES}:cutoff=0.96:kaiser_beta=10"
_SHORT_FILTER = "filter_size=32:cutoff=0.97:kaiser_beta=9"
_EXACT = "exact_rational=1:linear_interp=1:internal_sample_fmt=fltp"


MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000


class StrangeRate(ValueError):
    """A rate, from a damaged header, whose filter would exceed memory."""


class Resampler:
    """Resamples float32 [channels, samples] to another rate; equal rates pass through.

    Any number of add() calls, then finish(), yield round(n * target_hz / source_hz) samples. short: use FFmpeg's
    default filter, for measurements. n_out: samples yielded so far. O(samples). Raises: StrangeRate.
    """

    def __init__(self, source_hz: int, target_hz: int, n_channels: int, *, short: bool = False) -> None:
        if not MIN_RATE_HZ <= source_hz <= MAX_RATE_HZ:
            raise StrangeRate(f"{source_hz} Hz; from {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz can be resampled")
        self.n_out = self._n_in = self._n_pushed = 0
        self._lead = 0  # input samples of silence before and after the audio
        self._n_early = 0  # output samples of the leading silence that are not dropped yet
        self._options = f"{target_hz}:{_SHORT_FILTER if short else _FILTER}:{_EXACT}"
        self._source_hz = source_hz
        self._target_hz = target_hz
        self._n_channels = n_channels
        self._graph: Any = None

    def add(self, samples: Floats) -> Iterator[Floats]:
        self._n_in += samples.shape[1]
        if self._source_hz == self._target_hz:
            self.n_out += samples.shape[1]
            yield samples
            return
        if self._graph is None:
            self._graph = self._resampler()
            self._lead = _reach(self._source_hz, self._target_hz)
            self._n_early = self._lead * self._target_hz // self._source_hz
            self._push(np.zeros((self._n_channels, self._lead), np.float32))
        self._push(samples)
        for piece in self._pull():
            self.n_out += piece.shape[1]
            yield piece

    def finish(self) -> Iterator[Floats]:
        if self._graph is None:
            return
        self._push(np.zeros((self._n_channels, self._lead), np.float32))
        n_out = round(Fraction(self._n_in * self._target_hz, self._source_hz))
        for piece in self._pull():
            last = piece[:, : n_out - self.n_out]
            self.n_out += last.shape[1]
            if last.shape[1]:
                yield last

    def _resampler(self) -> Any:
        """Return the filter graph; it takes and gives interleaved float32."""
        import av.filter

        graph = av.filter.Graph()
        source = graph.add_abuffer(sample_rate=self._source_hz, format="flt", layout=self._layout())
        resampled = graph.add("aresample", self._options)
        packed = graph.add("aformat", "sample_fmts=flt")
        sink = graph.add("abuffersink")
        source.link_to(resampled)
        resampled.link_to(packed)
        packed.link_to(sink)
        graph.configure()
        return graph

    def _layout(self) -> str:
        return {1: "mono", 2: "stereo"}.get(self._n_channels, f"{self._n_channels} channels")

    def _push(self, samples: Floats) -> None:
        """Put samples [channels, samples] into the graph."""
        import av

        packed = np.ascontiguousarray(samples.T, dtype=np.float32).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=self._layout())
        frame.sample_rate = self._source_hz
        frame.pts = self._n_pushed
        frame.time_base = Fraction(1, self._source_hz)
        self._n_pushed += samples.shape[1]
        self._graph.push(frame)

    def _pull(self) -> Iterator[Floats]:
        """Yield what the graph has ready, [channels, samples], without the leading silence."""
        import av

        while True:
            try:
                packed: Floats = self._graph.pull().to_ndarray()  # [1, samples * channels]
            except (av.error.BlockingIOError, av.error.EOFError):  # it needs more input, or has ended
                return
            piece = packed.reshape(-1, self._n_channels).T[:, self._n_early :]
            self._n_early -= min(self._n_early, packed.shape[1] // self._n_channels)
            if piece.shape[1]:
                yield np.ascontiguousarray(piece)


def resample(samples: Floats, source_hz: int, target_hz: int) -> Floats:
    """Return the whole resampled audio: float32 [channels, round(n * target_hz / source_hz)]. Raises: StrangeRate."""
    if source_hz == target_hz:
        return samples
    resampler = Resampler(source_hz, target_hz, samples.shape[0])
    if samples.shape[1]:
        pieces = [*resampler.add(samples), *resampler.finish()]
    else:
        pieces = []
    if pieces:
        return np.concatenate(pieces, axis=1)
    return samples[:, :0]


def source_range(first: int, stop: int, source_hz: int, target_hz: int, n_source: int) -> tuple[int, int]:
    """Return the range [low, high) of the n_source samples that determine resampled samples [first, stop).

    Resampled separately, they give the same samples. The first output is number low * target_hz / source_hz, a whole
    number.
    """
    if source_hz == target_hz:
        return first, stop
    reach = _reach(source_hz, target_hz)
    low = max(0, (first * source_hz // target_hz - reach) // _period(source_hz, target_hz))
    return low * _period(source_hz, target_hz), min(n_source, -(-stop * source_hz // target_hz) + reach)


def _period(source_hz: int, target_hz: int) -> int:
    """Return the fewest source samples after which a target sample again falls on a source sample."""
    return source_hz // gcd(source_hz, target_hz)


def _reach(source_hz: int, target_hz: int) -> int:
    """Return source samples that cover twice the filter, in whole periods, so that a cut moves no position."""
    period = _period(source_hz, target_hz)
    length = 2 * _FILTER_SAMPLES * -(-source_hz // min(source_hz, target_hz))
    return -(-length // period) * period
