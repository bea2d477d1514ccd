"""Sound decoded once to its end: how long, how much of it clipped, how much of it silent."""

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .container import check_duration, first_audio, opened
from .media_table import Row
from .probe import container_facts, sound_facts
from .sound import check_gaps
from .unit import rejected

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame

FULL_SCALE = 0.9999
"""A sample at or beyond this share of full scale counts as clipped: 32765 of 32768 in 16 bits."""

SILENCE_RMS = 0.001
"""-60 dBFS."""

WINDOW_S = 0.02

_Floats = np.ndarray[Any, np.dtype[np.float32]]


class Loudness:
    """Takes decoded frames in order."""

    def __init__(self) -> None:
        self.n_samples = self._n_values = self._n_clipped = self._n_windows = self._n_silent = 0
        self.start: Fraction | None = None
        self.end = Fraction(0)  # of the last frame, by its own timestamp
        self.rate_hz = 0
        self._left: _Floats = np.zeros((0,), np.float32)

    def add(self, frame: "AudioFrame") -> None:
        """Raises: Unusable when the rate changes in mid-stream."""
        if not frame.samples:
            return
        if not self.rate_hz:
            self.rate_hz = frame.sample_rate
            if frame.pts is not None and frame.time_base is not None:
                self.start = frame.pts * frame.time_base
        elif frame.sample_rate != self.rate_hz:
            raise rejected("decode", "rate_change", f"{self.rate_hz} Hz becomes {frame.sample_rate} Hz")
        if frame.pts is not None and frame.time_base is not None:
            self.end = frame.pts * frame.time_base
        self.end += Fraction(frame.samples, self.rate_hz)
        values = as_float(frame)
        self.n_samples += frame.samples
        self._n_values += values.size
        self._n_clipped += int((np.abs(values) >= FULL_SCALE).sum())
        power = np.concatenate([self._left, np.square(values).mean(axis=0)])
        window = max(1, round(WINDOW_S * self.rate_hz))
        n_windows = len(power) // window
        rms = np.sqrt(power[: n_windows * window].reshape(n_windows, window).mean(axis=1))
        self._n_windows += n_windows
        self._n_silent += int((rms < SILENCE_RMS).sum())
        self._left = power[n_windows * window :]

    def facts(self, picture_start_s: Fraction | None = None) -> Row:
        """Columns; a rest shorter than a window counts for the clipped and not for the silent."""
        offset_s = None
        if picture_start_s is not None and self.start is not None:
            offset_s = float(self.start - picture_start_s)
        return {
            "n_samples": self.n_samples,
            "audio_duration_s": self.n_samples / self.rate_hz if self.rate_hz else 0.0,
            "audio_offset_s": offset_s,
            "clipped_ratio": self._n_clipped / self._n_values if self._n_values else 0.0,
            "silence_ratio": self._n_silent / self._n_windows if self._n_windows else 0.0,
        }


def as_float(frame: "AudioFrame") -> _Floats:
    """float32 [channels, samples], full scale = 1."""
    samples: Any = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, len(frame.layout.channels)).T
    values: _Floats = samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (values - np.float32(128)) / np.float32(128)
    if samples.dtype.kind == "i":
        return values / np.float32(2 ** (8 * samples.dtype.itemsize - 1))
    return np.nan_to_num(values)


def audit_audio(path: str) -> Row:
    """Columns of the media table. Raises: Unusable for what cannot be decoded to its end."""
    import av

    with opened(path) as container:
        stream = first_audio(container)
        loudness = Loudness()
        try:
            for frame in container.decode(stream):
                loudness.add(frame)
        except av.error.FFmpegError as error:
            raise rejected(
                "decode", "undecodable", f"after {loudness.n_samples} samples: {error.strerror}"
            ) from error
        if not loudness.n_samples:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        found = loudness.facts()
        laid = round((loudness.end - (loudness.start or 0)) * loudness.rate_hz)
        check_gaps(loudness.n_samples, laid - loudness.n_samples)
        missing_s = check_duration(container, float(loudness.end))
        header = {"codec": stream.codec_context.name, "profile": stream.profile, "tail_missing_s": missing_s}
        facts: Row = container_facts(container) | sound_facts(stream) | header | found
        if stream.time_base is not None:
            facts |= {
                "time_base_num": stream.time_base.numerator,
                "time_base_den": stream.time_base.denominator,
            }
    return facts | {"duration_s": found["audio_duration_s"]}
