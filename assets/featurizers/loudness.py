"""Loudness and true peak of a sound by FFmpeg's ebur128 filter; silence and clipping by its samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..media.audio.meter import Meter, Unmeasurable
from ..media.unit import rejected
from .decoding import STAGE, Array, Sound, field_of, sound
from .featurizer import Column, Features, Featurizer

WINDOW_S = 0.02
"""Window over which the level is taken that is called silent or not."""

FULL_SCALE = 32767 / 32768
"""The largest 16-bit sample. 8-bit sound, whose largest is 127/128, is only seen to clip downwards."""

CLIPPED_RUN = 3
"""Consecutive samples at full scale; a single one is the peak of a normalised sound."""

_AT_ONCE = 65_536  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Loudness(Featurizer):
    """Loudness, peak, silence and clipping of sounds.

    Columns:

    - loudness_lufs: integrated, of ITU-R BS.1770-4 with EBU R128's gates; one channel is measured as one (3 LU less
      than the same on two). None when no block of 400 ms is louder than -70 LUFS
    - true_peak_dbtp: of the four times oversampled signal; None for digital silence
    - silence_ratio: share of the windows of 20 ms; clipped_ratio: share of the samples that stand in runs of 3 or
      more at full scale

    Facts of the unit (its rate, length and channels) are not repeated. A clip without sound has None in all
    columns.
    """

    audio: str | None = "flac"
    """Field that holds the sound of sounds; None to leave sounds out."""
    video: str | None = None
    """Field that holds the sound of clips, may lie beside the clip; None to leave clips out."""
    silence_dbfs: float = -60.0
    """Mean square over all channels below which a window is silent. A sine of amplitude 1 is at -3.01 dBFS in this
    count."""
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
            raise ValueError(f"silence_dbfs={self.silence_dbfs}; accepted: -200 up to, not including, 0")

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = field_of(self.inputs, kind)
        if kind == "video" and field not in sample:
            return Features(fields={}, columns=dict.fromkeys(self.output_columns))
        heard = sound(sample, field)
        values = (*_loudness(heard), *_levels(heard, self.silence_dbfs))
        return Features(fields={}, columns=dict(zip(self.output_columns, values, strict=True)))


def _loudness(heard: Sound) -> tuple[Column, Column]:
    """Return (LUFS, dBTP). Raises: Unusable."""
    try:
        meter = Meter(heard.rate_hz, heard.channels, heard.layout)
    except Unmeasurable as error:
        raise rejected(STAGE, "unmeasurable", error) from error
    for start in range(0, heard.samples.shape[1], _AT_ONCE):
        meter.add(heard.samples[:, start : start + _AT_ONCE])
    meter.finish()
    return meter.loudness_lufs, meter.true_peak_dbtp


def _levels(heard: Sound, silence_dbfs: float) -> tuple[Column, ...]:
    """Return (silence_ratio, clipped_ratio)."""
    n_samples = heard.samples.shape[1]
    window = max(1, round(WINDOW_S * heard.rate_hz))
    starts = np.arange(0, n_samples, window)
    power = np.add.reduceat(np.square(heard.samples, dtype=np.float64).mean(axis=0), starts)
    power /= np.diff(np.append(starts, n_samples))
    silent = power < 10 ** (silence_dbfs / 10)
    return round(float(silent.mean()), 6), round(clipped_ratio(heard.samples), 6)


def clipped_ratio(samples: Array) -> float:
    """Return the share of the samples [channels, samples] in runs of CLIPPED_RUN or more at full scale."""
    full = np.abs(samples) >= FULL_SCALE
    run = full[:, 2:] & full[:, 1:-1] & full[:, :-2]
    clipped = np.zeros_like(full)
    for shift in range(CLIPPED_RUN):
        clipped[:, shift : shift + run.shape[1]] |= run
    return float(clipped.mean())
