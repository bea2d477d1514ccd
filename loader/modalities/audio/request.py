"""Audio requests: the samples, channels and rate to decode."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import SupportsIndex

import numpy as np

from ...errors import DecodeFailed, InvalidRuntime
from ..fields import Buffer, load
from .downmix import CHANNELS, Channels

_RATES_HZ = (1_000, 384_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioDecoder:
    """Decodes a stretch of audio to float32 [channels, samples]. Create one by `loader.audio`."""

    samples: int | None = None
    """Length in samples at the resulting rate; None for `seconds` or all."""
    seconds: Fraction | None = None
    """Length in seconds; None for `samples` or all."""
    rate_hz: int | None = None
    """Resulting sample rate; None for the stored rate."""
    channels: Channels = "keep"
    """"keep", "first", "mono" or "stereo"."""
    at: Fraction | None = None
    """Start in seconds; None for a random draw."""
    pad: bool = False
    """True appends silence to audio that is too short; False rejects it."""

    def __post_init__(self) -> None:
        if self.samples is not None and self.seconds is not None:
            raise InvalidRuntime(
                f"audio(samples={self.samples}, seconds={float(self.seconds)}): give one of them",
                what="samples and seconds",
                given=[self.samples, self.seconds],
                accepted="one of them",
            )
        if (self.samples is not None and self.samples < 1) or (
            self.seconds is not None and self.seconds <= 0
        ):
            raise InvalidRuntime(
                f"audio(samples={self.samples}, seconds={self.seconds}): above 0, or None",
                what="samples and seconds",
                given=[self.samples, self.seconds],
                accepted="above 0, or None",
            )
        if self.rate_hz is not None and not _RATES_HZ[0] <= self.rate_hz <= _RATES_HZ[1]:
            raise InvalidRuntime(
                f"audio(rate_hz={self.rate_hz}): {_RATES_HZ[0]} to {_RATES_HZ[1]}, or None",
                what="rate_hz",
                given=self.rate_hz,
                accepted=list(_RATES_HZ),
            )
        if self.channels not in CHANNELS:
            raise InvalidRuntime(
                f"audio(channels={self.channels!r}): {', '.join(map(repr, CHANNELS))}",
                what="channels",
                given=self.channels,
                accepted=list(CHANNELS),
            )
        if self.at is not None and self.at < 0:
            raise InvalidRuntime(
                f"audio(at={float(self.at)}): seconds from 0, or None for a drawn place",
                what="at",
                given=self.at,
            )
        # Any rate: the audio's own is known once it is open.
        if self.pad and self.length(1) is None:
            raise InvalidRuntime(
                "audio(pad=True) needs samples or seconds: how long to make it", what="pad", given=self.pad
            )

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return the stretch.

        Raises: DecodeFailed if the bytes are damaged or not audio, the audio is too short, or its channels cannot be
        mixed; MissingDependency (av).
        """
        sound: np.ndarray = load("audio.decode:read_sound")(data, self, rng)
        return sound

    def length(self, rate_hz: int) -> int | None:
        if self.seconds is None:
            return self.samples
        return max(1, round(self.seconds * rate_hz))

    def place(self, n_samples: int, rate_hz: int, rng: np.random.Generator | None) -> tuple[int, int, int]:
        """Return (first sample, end, silent samples to append) for audio with `n_samples` at `rate_hz`.

        Raises: DecodeFailed if the audio is too short and `pad` is False.
        """
        length = self.length(rate_hz)
        if self.at is None:
            first = 0
        else:
            first = round(self.at * rate_hz)
        if length is None:
            length = n_samples - first
        missing = first + length - n_samples
        if (missing > 0 and not self.pad) or first >= n_samples:
            raise DecodeFailed(
                f"audio: {n_samples} samples at {rate_hz} Hz, but {max(length, 1)} from sample {first} on take "
                f"{first + max(length, 1)}. Filter by length, ask for fewer with loader.audio, or for pad=True",
                what="samples",
                given=n_samples,
                accepted=first + max(length, 1),
            )
        if self.at is None and rng is not None and missing < 0:
            first = int(rng.integers(1 - missing))
        return first, min(first + length, n_samples), max(0, missing)


def audio(
    samples: SupportsIndex | None = None,
    *,
    seconds: float | None = None,
    rate_hz: SupportsIndex | None = None,
    channels: Channels = "keep",
    at: float | None = None,
    pad: bool = False,
) -> AudioDecoder:
    """Return a decoder for an audio field: `Loader(plan, decode={"flac": loader.audio(seconds=2, rate_hz=16_000)})`.

        samples, seconds: length of the stretch, samples at the resulting rate; give neither for the whole audio.
        rate_hz: the resulting rate (`audio.resample`); None for the stored rate.
        channels: "keep", "first", "mono" or "stereo"; mixed by ITU-R BS.775 without exceeding full scale.
        at: start in seconds; None draws uniformly from every sample at which the stretch fits (without a generator: the
            beginning).
        pad: append silence to audio that is too short; otherwise it is rejected.

    Raises: InvalidRuntime.
    """
    for name, value in (("seconds", seconds), ("at", at)):
        try:
            known = value is None or isfinite(value)
        except TypeError:
            known = False
        if not known:
            raise InvalidRuntime(
                f"audio({name}={value!r}): a number of seconds, or None", what=name, given=value
            )
    # Fractions of a small denominator: 0.1 becomes 1/10, and a number of samples rounds alike on every machine.
    try:
        return AudioDecoder(
            samples=None if samples is None else operator.index(samples),
            seconds=None if seconds is None else Fraction(seconds).limit_denominator(10**9),
            rate_hz=None if rate_hz is None else operator.index(rate_hz),
            channels=channels,
            at=None if at is None else Fraction(at).limit_denominator(10**9),
            pad=pad,
        )
    except TypeError as error:
        raise InvalidRuntime(
            f"audio({samples!r}, rate_hz={rate_hz!r}): {error}",
            what="audio()",
            given=[samples, seconds, rate_hz, at],
        ) from error
