"""Meters of audio blocks: loudness and true peak (ITU-R BS.1770-4, EBU R128, by FFmpeg), and mono sum level."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from loader.modalities.audio.resample import Resampler
from loader.modalities.audio.timeline import Floats

CANCELS_DB = -10.0
"""Channels cancel in mono if their sum is below this level in dB: a correlation below -0.8."""


class MonoSum:
    """Meter of the sum of two channels, block by block."""

    def __init__(self) -> None:
        self._sum = self._mean = 0.0

    def add(self, samples: Floats) -> None:
        """Add float32 [2, samples]."""
        first, second = samples.astype(np.float64)
        self._sum += float(np.square((first + second) / 2).sum())
        self._mean += float((np.square(first).sum() + np.square(second).sum()) / 2)

    def db(self) -> float | None:
        """Return the power of (left + right) / 2 relative to the channels' mean power, in dB.

        0 for equal channels, -3.01 for unrelated, -200 for inverted ones; None for silence or if there are not two
        channels.
        """
        if not self._mean:
            return None
        return max(-200.0, 10 * math.log10(max(self._sum / self._mean, 1e-20)))

    def cancels(self) -> bool | None:
        """Return whether the channels cancel; None if `db` returns None."""
        db = self.db()
        return None if db is None else db < CANCELS_DB


MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 768_000
"""Accepted sample rates in Hz; the K-weighting filters are at 38 Hz and 1682 Hz."""

_GATE_LUFS = -70.0  # EBU Tech 3341: quieter blocks do not count. If all are quieter, the filter returns -70.


class Unmeasurable(ValueError):
    """Sample rate or channels for which the standard has no weights."""


class LoudnessMeter:
    """Loudness meter: add blocks, float32 [channels, samples] at full scale 1, call finish() once, then read results.

    loudness_lufs: integrated, gated; one channel is 3 LU less than two equal ones. None if no 400 ms block is louder
    than -70 LUFS.
    range_lu: loudness range of EBU Tech 3342, unreliable below a minute; None if loudness_lufs is None.
    true_peak_dbtp: true peak, oversampled to at least 192 kHz (BS.1770-4, annex 2). None for digital silence.

    About 300 times real time for stereo at 48 kHz. Raises: Unmeasurable.
    """

    def __init__(self, rate_hz: int, channels: tuple[str, ...], layout: str) -> None:
        self.loudness_lufs: float | None = None
        self.range_lu: float | None = None
        self.true_peak_dbtp: float | None = None
        if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
            raise Unmeasurable(f"{rate_hz} Hz; from {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz")
        if set(channels) == {"NONE"} and len(channels) <= 2:
            layout = ("mono", "stereo")[len(channels) - 1]
        self._rate_hz, self._layout, self._n_seen, self._peak = rate_hz, layout, 0, 0.0
        self._ebur128 = self._graph_of()
        factor = 4 if rate_hz <= 48_000 else 2 if rate_hz <= 96_000 else 1
        self._oversampler = Resampler(rate_hz, rate_hz * factor, len(channels), short=True)

    def add(self, samples: Floats) -> None:
        import av

        packed = np.ascontiguousarray(samples.T, dtype=np.float32).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=self._layout)
        frame.sample_rate, frame.pts = self._rate_hz, self._n_seen
        frame.time_base = Fraction(1, self._rate_hz)
        self._n_seen += samples.shape[1]
        self._ebur128.push(frame)
        self._read()
        self._peak = max(self._peak, _largest(iter([samples])), _largest(self._oversampler.add(samples)))

    def finish(self) -> None:
        if not self._n_seen:
            return
        self._ebur128.push(None)
        self._read()
        self._peak = max(self._peak, _largest(self._oversampler.finish()))
        if self._peak:
            self.true_peak_dbtp = round(20 * math.log10(self._peak), 2)
        if self.loudness_lufs is not None and self.loudness_lufs <= _GATE_LUFS:
            self.loudness_lufs = self.range_lu = None

    def _graph_of(self) -> Any:
        import av
        import av.filter

        graph = av.filter.Graph()
        try:
            source = graph.add_abuffer(sample_rate=self._rate_hz, format="flt", layout=self._layout)
            meter = graph.add("ebur128", "metadata=1:framelog=quiet")
            sink = graph.add("abuffersink")
            source.link_to(meter)
            meter.link_to(sink)
            graph.configure()
        except (av.error.FFmpegError, ValueError) as error:
            raise Unmeasurable(f"{self._layout} at {self._rate_hz} Hz: {error}") from error
        return graph

    def _read(self) -> None:
        import av

        last = None
        while True:
            try:
                last = self._ebur128.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                break
        metadata = {} if last is None else last.metadata
        if "lavfi.r128.I" in metadata:
            self.loudness_lufs = round(float(metadata["lavfi.r128.I"]), 2)
            self.range_lu = round(float(metadata["lavfi.r128.LRA"]), 2)


def _largest(pieces: Iterator[Floats]) -> float:
    return max((float(max(piece.max(), -piece.min())) for piece in pieces if piece.size), default=0.0)
