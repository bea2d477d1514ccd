"""Compute mel spectrograms: short-time Fourier transforms summed in triangular bands, on a log scale."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from loader.errors import InvalidSpec

from ..media.unit import rejected
from .decoding import STAGE, Array, kind_field, one_channel
from .featurizer import Features, Featurizer

MAX_SECONDS = 3600
"""Longest accepted audio in seconds."""

_AT_ONCE = 1000  # frames

Scale = Literal["slaney", "htk"]
Log = Literal["none", "ln", "log10", "db", "whisper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mel(Featurizer):
    """Mel spectrogram of audio; the defaults produce the input of OpenAI's Whisper.

    Audio is mixed to one channel (ITU-R BS.775), resampled to sample_rate_hz and padded by half a window at each end.
    Frame t holds n_fft samples around sample t * hop under a periodic Hann window. Magnitudes to the power of `power`
    are summed in n_mels triangles from fmin_hz to fmax_hz, evenly spaced on `scale`. `log` applies above `floor`.

    Field mel.npy: float32 [n_mels, frames], frames = 1 + samples // hop, 0 without audio. Computed in float64,
    O(samples), about 600 times real time.
    """

    audio: str | None = "flac"
    """Field of audio; None skips it."""
    video: str | None = None
    """Field with a clip's audio; None skips clips."""
    sample_rate_hz: int = 16_000
    """Sample rate before the transform."""
    n_fft: int = 400
    """Samples per window."""
    hop: int = 160
    """Samples from one frame to the next."""
    n_mels: int = 80
    """Number of triangles."""
    fmin_hz: float = 0.0
    """Lower edge of the triangles."""
    fmax_hz: float | None = None
    """Upper edge of the triangles; None: half the sample rate."""
    scale: Scale = "slaney"
    """"slaney" (Auditory Toolbox) or "htk" (2595 log10(1 + f/700))."""
    norm: Literal["slaney", "none"] = "slaney"
    """"slaney" scales each triangle to an area of 1; "none" does not."""
    power: int = 2
    """Power to which magnitudes are raised, 1 or 2."""
    log: Log = "whisper"
    """"none", "ln", "log10", "db" (10 log10 of a power, 20 log10 of a magnitude) or "whisper".
    "whisper" is (log10 + 4) / 4, clamped to at most 2 below the largest value, without the last frame.
    """
    floor: float = 1e-10
    """Smallest argument of `log`."""
    pad: Literal["reflect", "constant"] = "reflect"
    """"reflect" mirrors at the ends; "constant" pads with zeros."""
    name: ClassVar[str] = "mel"
    """Name of the featurizer."""
    output_fields: ClassVar[tuple[str, ...]] = ("mel.npy",)

    def __post_init__(self) -> None:
        highest = self.sample_rate_hz / 2
        is_accepted = {
            "sample_rate_hz": 1_000 <= self.sample_rate_hz <= 384_000,
            "n_fft": 16 <= self.n_fft <= 65_536,
            "hop": 1 <= self.hop <= self.n_fft,
            "n_mels": 1 <= self.n_mels <= self.n_fft // 2,
            "fmin_hz": 0 <= self.fmin_hz < (self.fmax_hz or highest),
            "fmax_hz": self.fmax_hz is None or 0 < self.fmax_hz <= highest,
            "scale": self.scale in ("slaney", "htk"),
            "norm": self.norm in ("slaney", "none"),
            "power": self.power in (1, 2),
            "log": self.log in ("none", "ln", "log10", "db", "whisper"),
            "floor": 0 < self.floor < 1,
            "pad": self.pad in ("reflect", "constant"),
        }
        for name, accepted in is_accepted.items():
            if not accepted:
                value = getattr(self, name)
                raise InvalidSpec(
                    f"mel({name}={value!r}): see the class for accepted values",
                    what=name,
                    where="mel",
                    given=value,
                )

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        summed = "magnitude"
        if self.power == 2:
            summed = "power"
        units = {
            "none": summed,
            "ln": f"ln of {summed}",
            "log10": f"log10 of {summed}",
            "db": "dB",
            "whisper": f"(log10 of {summed} + 4) / 4",
        }
        shared = {"dims": ["band", "frame"], "unit": units[self.log]}
        return {"mel.npy": {**shared, "sample_rate_hz": self.sample_rate_hz, "hop_samples": self.hop}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        if kind == "video" and field not in sample:
            return Features(fields={"mel.npy": np.zeros((self.n_mels, 0), np.float32)}, columns={})
        samples = one_channel(sample, field, self.sample_rate_hz)
        if len(samples) > MAX_SECONDS * self.sample_rate_hz:
            raise rejected(
                STAGE, "too_long", f"longer than {MAX_SECONDS} s", accepted=f"at most {MAX_SECONDS} s"
            )
        return Features(fields={"mel.npy": self.of(samples)}, columns={})

    def of(self, samples: Array) -> Array:
        """Return the spectrogram of `samples`, float [n] at sample_rate_hz: float32 [n_mels, frames]."""
        if not samples.size:
            return np.zeros((self.n_mels, 0), np.float32)
        bands = [self._bands(frames) for frames in self._frames(samples)]
        return _logarithm(np.concatenate(bands, axis=1), self).astype(np.float32)

    def _frames(self, samples: Array) -> Iterator[Array]:
        """Yield the frames, some at a time, float64 [frames, n_fft]: one around each `hop`-th sample."""
        half = self.n_fft // 2
        padded = np.pad(samples.astype(np.float64), half, mode=self.pad)
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.n_fft)[:: self.hop]
        n_frames = len(windows)
        if self.log == "whisper" and n_frames > 1:  # Whisper drops the last frame
            n_frames -= 1
        for start in range(0, n_frames, _AT_ONCE):
            stop = min(start + _AT_ONCE, n_frames)
            yield windows[start:stop]

    def _bands(self, frames: Array) -> Array:
        """Return the sums of each band, float64 [n_mels, frames]. frames: float64 [frames, n_fft]."""
        phase = 2 * np.pi * np.arange(self.n_fft) / self.n_fft
        hann = 0.5 - 0.5 * np.cos(phase)
        spectrum = np.fft.rfft(frames * hann, axis=1)
        magnitudes = spectrum.real**2 + spectrum.imag**2
        if self.power == 1:
            magnitudes = np.sqrt(magnitudes)
        fmax_hz = self.fmax_hz or self.sample_rate_hz / 2
        filters = mel_filters(
            self.sample_rate_hz,
            self.n_fft,
            self.n_mels,
            self.fmin_hz,
            fmax_hz,
            self.scale,
            self.norm,
        )
        bands = []
        for weights in filters:  # float64 [1 + n_fft // 2]: the triangle of a band
            nonzero = np.flatnonzero(weights)
            low = high = 0
            if nonzero.size:
                low = int(nonzero[0])
                high = int(nonzero[-1]) + 1
            # BLAS is avoided because its sums depend on the number of threads.
            band = np.einsum("tf,f->t", magnitudes[:, low:high], weights[low:high])
            bands.append(band)
        return np.stack(bands)


def _logarithm(bands: Array, mel: Mel) -> Array:
    """Return bands [n_mels, frames] on the scale `mel.log`."""
    if mel.log == "none":
        return bands
    raised = np.maximum(bands, mel.floor)
    if mel.log == "ln":
        return np.log(raised)
    decades: Array = np.log10(raised)
    if mel.log == "log10":
        return decades
    if mel.log == "db":
        decibels = 20  # per decade of magnitudes
        if mel.power == 2:
            decibels = 10
        return decades * decibels
    # "whisper": 8 decades below the largest value are 2 units of the result.
    lifted: Array = np.maximum(decades, decades.max() - 8)
    return (lifted + 4) / 4


@cache
def mel_filters(
    sample_rate_hz: int,
    n_fft: int,
    n_mels: int,
    fmin_hz: float,
    fmax_hz: float,
    scale: str,
    norm: str,
) -> Array:
    """Return each frequency's weight in each band: float64 [n_mels, 1 + n_fft // 2]."""
    to_mel, to_hz = _SCALES[scale]
    hz = np.arange(1 + n_fft // 2) * sample_rate_hz / n_fft
    lowest_mel = to_mel(np.array(fmin_hz))
    highest_mel = to_mel(np.array(fmax_hz))
    edges = to_hz(np.linspace(lowest_mel, highest_mel, n_mels + 2))
    # [n_mels, 1]: each triangle rises from `low` to `peak`, and falls to `high`.
    low = edges[:-2, None]
    peak = edges[1:-1, None]
    high = edges[2:, None]
    rising = (hz - low) / (peak - low)
    falling = (high - hz) / (high - peak)
    weights: Array = np.maximum(0, np.minimum(rising, falling))
    if norm == "slaney":
        weights = weights * (2 / (high - low))
    return weights


# Slaney, Auditory Toolbox (1998): 200/3 Hz per mel up to 1 kHz, above it 27 mels for a factor of 6.4.
_LINEAR_HZ = 200 / 3
_CORNER_HZ = 1000.0
_CORNER_MEL = _CORNER_HZ / _LINEAR_HZ
_LOG_STEP = np.log(6.4) / 27


def _slaney_mel(hz: Array) -> Array:
    octaves = np.log(np.maximum(hz, _CORNER_HZ) / _CORNER_HZ)
    above = _CORNER_MEL + octaves / _LOG_STEP
    return np.where(hz < _CORNER_HZ, hz / _LINEAR_HZ, above)


def _slaney_hz(mel: Array) -> Array:
    above = _CORNER_HZ * np.exp(_LOG_STEP * (mel - _CORNER_MEL))
    return np.where(mel < _CORNER_MEL, mel * _LINEAR_HZ, above)


def _htk_mel(hz: Array) -> Array:
    return np.asarray(2595 * np.log10(1 + hz / 700))


def _htk_hz(mel: Array) -> Array:
    return np.asarray(700 * (10 ** (mel / 2595) - 1))


_SCALES: Mapping[str, Any] = {"slaney": (_slaney_mel, _slaney_hz), "htk": (_htk_mel, _htk_hz)}
