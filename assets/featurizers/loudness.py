"""Measure loudness and true peak with FFmpeg's ebur128, silence and clipping from sample values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from assets import invalid_option

from ..media.audio.decode import LoudnessMeter, Unmeasurable
from ..media.unit import rejected
from .decoding import STAGE, Array, Sound, kind_field, sound
from .featurizer import Column, Features, Featurizer

WINDOW_S = 0.02
"""Seconds of a window of silence."""

FULL_SCALE = 32767 / 32768
"""Largest 16-bit sample. In 8-bit audio (largest 127/128) only negative peaks count as clipped."""

CLIPPED_RUN = 3
"""Consecutive full-scale samples that count as clipping."""

_AT_ONCE = 65_536  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Loudness(Featurizer):
    """Loudness, peak, silence and clipping of audio; None for a clip without audio.

    Columns:

    - loudness_lufs: integrated, ITU-R BS.1770-4 with EBU R128's gates; one channel is 3 LU less than two equal ones.
      None if no 400 ms block is louder than -70 LUFS
    - true_peak_dbtp: of the four times oversampled signal; None for digital silence
    - silence_ratio: share of silent 20 ms windows; clipped_ratio: share of samples in runs of 3 or more at full
      scale
    """

    audio: str | None = "flac"
    """Field of audio; None skips it."""
    video: str | None = None
    """Field with a clip's audio, such as `sound.flac`; None skips clips."""
    silence_dbfs: float = -60.0
    """A window is silent if its mean square over all channels is lower; a full-scale sine is at -3.01 dBFS."""
    name: ClassVar[str] = "loudness"
    """Name of the featurizer."""
    code: ClassVar[int] = 2
    output_columns: ClassVar[tuple[str, ...]] = (
        "loudness_lufs",
        "true_peak_dbtp",
        "silence_ratio",
        "clipped_ratio",
    )

    def __post_init__(self) -> None:
        if not -200 <= self.silence_dbfs < 0:
            raise invalid_option("silence_dbfs", self.silence_dbfs, "-200 up to, not including, 0")

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        if kind == "video" and field not in sample:
            return Features(fields={}, columns=dict.fromkeys(self.output_columns))
        audio = sound(sample, field)
        values = (*_loudness(audio), *_levels(audio, self.silence_dbfs))
        return Features(fields={}, columns=dict(zip(self.output_columns, values, strict=True)))


def _loudness(audio: Sound) -> tuple[Column, Column]:
    try:
        meter = LoudnessMeter(audio.rate_hz, audio.channels, audio.layout)
    except Unmeasurable as error:
        raise rejected(STAGE, "unmeasurable", error) from error
    for start in range(0, audio.samples.shape[1], _AT_ONCE):
        meter.add(audio.samples[:, start : start + _AT_ONCE])
    meter.finish()
    return meter.loudness_lufs, meter.true_peak_dbtp


def _levels(audio: Sound, silence_dbfs: float) -> tuple[Column, ...]:
    """Return (silence_ratio, clipped_ratio)."""
    n_samples = audio.samples.shape[1]
    window = max(1, round(WINDOW_S * audio.rate_hz))
    starts = np.arange(0, n_samples, window)
    power = np.add.reduceat(np.square(audio.samples, dtype=np.float64).mean(axis=0), starts)
    power /= np.diff(np.append(starts, n_samples))
    silent = power < 10 ** (silence_dbfs / 10)
    return round(float(silent.mean()), 6), round(clipping_ratio(audio.samples), 6)


def clipping_ratio(samples: Array) -> float:
    """Return the share of `samples`, [channels, samples], in runs of at least CLIPPED_RUN at full scale."""
    full = np.abs(samples) >= FULL_SCALE
    run = full[:, 2:] & full[:, 1:-1] & full[:, :-2]
    clipped = np.zeros_like(full)
    for shift in range(CLIPPED_RUN):
        clipped[:, shift : shift + run.shape[1]] |= run
    return float(clipped.mean())
