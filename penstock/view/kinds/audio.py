"""Audio: samples [n] or [channels, n]. Full scale is 1 for floats, and the largest value for integers."""

import struct
from typing import Any

import numpy as np

from loader.modalities.container_parts import riff_chunk

from ...card.pictures import envelope, spectrogram
from ...units import length
from .array_values import Array, array_lines, array_marks, array_range, as_array, number_text
from .image import Pixels, png
from .kind import EDGE_PX, Facts, Kind, Mark, Media, mark

MAX_CHANNELS = 16
MAX_SAMPLES = 2**24
"""Most samples played and drawn, over all channels."""
RATE_HZ = 16_000
"""Rate assumed if not recorded."""
SILENT = 10 ** (-60 / 20)
"""Peak below which audio is silent: -60 dB of full scale."""
CLIPPED_RUN = 3
"""Consecutive peak samples that count as clipped."""
CLIPPED_SAMPLES = 10
"""Fewest such samples for a mark."""
CLIPPED_FROM = 0.98
"""Smallest peak for a mark, as a share of full scale."""
MAX_SCALED = 20
"""Largest plausible normalised sample, exceeded without division by full scale."""
DETAIL_PX = (1024, 384)

_WORDS = frozenset({"wav", "flac", "mp3", "ogg", "opus", "m4a", "audio", "sound", "waveform", "speech"})

Floats = np.ndarray[Any, np.dtype[np.float32]]


def fits(value: Any, facts: Facts) -> bool:
    """Return whether a value is audio, by shape, and by name or rate."""
    words = facts.field.lower().replace("_", ".").split(".")
    if not _WORDS.intersection(words) and not facts.rate:
        return False
    array = as_array(value)
    if array is None or array.dtype.kind not in "iuf" or not array.size:
        return False
    if array.ndim == 1:
        return True
    # More channels than samples is [n, channels], or no audio.
    return array.ndim == 2 and array.shape[0] <= min(MAX_CHANNELS, array.shape[1])


def _samples(value: object) -> Array:
    array = as_array(value)
    assert array is not None  # guaranteed by `fits`
    if array.ndim == 1:
        return array[None]
    return array


def _scale_start(samples: Array) -> Floats:
    """Return float32 [channels, n] with full scale 1; non-finite samples become 0."""
    start = samples[:, : MAX_SAMPLES // samples.shape[0]]
    if start.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.nan_to_num(start.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    bits = 8 * start.dtype.itemsize
    full_scale = float(2 ** (bits - 1))
    # float64 holds every int32 exactly.
    centred = start.astype(np.float64)
    if start.dtype.kind == "u":  # silence is 128 for uint8
        centred -= full_scale
    return (centred / full_scale).astype(np.float32)


def _rate(facts: Facts) -> int:
    if facts.rate is None or not 1 <= facts.rate < 2**31:
        return RATE_HZ
    return round(facts.rate)


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media:
    return png(_draw(_scale_start(_samples(value)), edge, max(3, edge // 2)))


def _draw(samples: Floats, width: int, height: int) -> Pixels:
    # Unscaled floats may be so large that their mean overflows.
    mean: Any = np.clip(samples, -1e6, 1e6).mean(axis=0)
    top = height // 3
    return np.concatenate([envelope(mean, width, top), spectrogram(mean, width, height - top)])


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    start = _scale_start(_samples(value))
    return Media(type="audio/wav", data=wav(start, _rate(facts))), png(_draw(start, *DETAIL_PX))


def wav(samples: Floats, rate_hz: int) -> bytes:
    """Return a WAV file (WAVE_FORMAT_IEEE_FLOAT). samples: float32 [channels, n]."""
    channels, n = samples.shape
    data = np.ascontiguousarray(samples.T, "<f4").tobytes()
    frame_nbytes = channels * 4
    form = struct.pack("<HHIIHHH", 3, channels, rate_hz, rate_hz * frame_nbytes, frame_nbytes, 32, 0)
    fact = struct.pack("<I", n)
    chunks = riff_chunk(b"fmt ", form) + riff_chunk(b"fact", fact) + riff_chunk(b"data", data)
    return riff_chunk(b"RIFF", b"WAVE" + chunks)


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    samples = _samples(value)
    channels, n = samples.shape
    rate = _rate(facts)
    at = f"{rate:,} Hz"
    if facts.rate != rate:
        at += " (assumed: no rate is on record)"
    count = f"{channels} channels"
    if channels == 1:
        count = "1 channel"
    start = _scale_start(samples)
    peak = float(np.abs(start).max())
    mean_square = np.mean(np.square(start, dtype=np.float64))
    level = float(np.sqrt(mean_square))
    out = [
        f"{count}, {length(n / rate)} at {at}",
        *array_lines(value, samples),
        f"peak {_decibels(peak)}, level {_decibels(level)} of full scale",
    ]
    if start.shape[1] < n:
        out.append(f"the first {length(start.shape[1] / rate)} are played and drawn")
    return tuple(out)


def _decibels(amplitude: float) -> str:
    if amplitude <= 0:
        return "-inf dB"
    return f"{20 * np.log10(amplitude):.1f} dB"


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    samples = _samples(value)
    values = array_range(samples)
    out = list(array_marks(samples, values))
    start = _scale_start(samples)
    peak = float(np.abs(start).max())
    if peak < SILENT:
        # Silence is constant too; one mark is enough.
        out = [one for one in out if one.name != "constant"]
        out.append(mark("silent", f"the loudest sample is {_decibels(peak)} of full scale"))
    n_clipped = _n_clipped(start, peak)
    if peak >= CLIPPED_FROM and n_clipped >= CLIPPED_SAMPLES:
        out.append(mark("clipped", f"{n_clipped:,} samples stand in runs at the largest value"))
    if samples.dtype.kind == "f" and max(-values.low, values.high) > MAX_SCALED:
        low = number_text(values.low)
        high = number_text(values.high)
        out.append(mark("not_scaled", f"floats from {low} to {high}: were they scaled to 1?"))
    return tuple(out)


def _n_clipped(samples: Floats, peak: float) -> int:
    """Return how many samples stand in runs of `CLIPPED_RUN` or more at the peak, above and below zero."""
    count = 0
    for sign in (1, -1):
        # Samples within 1 in 10,000 of the peak are at the peak.
        at_peak = sign * samples >= peak * (1 - 1e-4)
        n_starts = at_peak.shape[1] - CLIPPED_RUN + 1
        # [channels, starts]: a run of at least CLIPPED_RUN covers the samples from here on.
        covers = at_peak[:, :n_starts].copy()
        for shift in range(1, CLIPPED_RUN):
            covers &= at_peak[:, shift : shift + n_starts]
        before = np.pad(covers, ((0, 0), (1, 0)))[:, :-1]
        n_runs = np.count_nonzero(covers & ~before)
        # A run of n samples covers from n - CLIPPED_RUN + 1 of them.
        count += int(np.count_nonzero(covers)) + (CLIPPED_RUN - 1) * int(n_runs)
    return count


AUDIO = Kind(name="audio", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)
