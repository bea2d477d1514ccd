"""Audio: samples [n] or [channels, n]. Full scale is 1 for floats, and the largest value for integers."""

import struct
from typing import Any

import numpy as np

from ...card.pictures import envelope, spectrogram
from ...units import length
from .array_values import Array, array_lines, array_marks, as_array, number_text, range_of
from .image import Pixels, png
from .kind import EDGE_PX, Facts, Kind, Mark, Media, mark

MAX_CHANNELS = 16
MAX_SAMPLES = 2**24
"""Most samples played and drawn, over all channels."""
RATE_HZ = 16_000
"""Rate assumed if not recorded."""
SILENT = 10 ** (-60 / 20)
"""Peak below which audio is silent: -60 dB of full scale."""
CLIPPED_RUN, CLIPPED_SAMPLES, CLIPPED_FROM = 3, 10, 0.98
"""Consecutive peak samples, such samples in total, and share of full scale from which audio is clipped."""
MAX_SCALED = 20
"""Largest plausible normalised sample, exceeded without division by full scale."""
DETAIL_PX = (1024, 384)

_WORDS = frozenset({"wav", "flac", "mp3", "ogg", "opus", "m4a", "audio", "sound", "waveform", "speech"})

Floats = np.ndarray[Any, np.dtype[np.float32]]


def fits(value: Any, facts: Facts) -> bool:
    """Return whether a value is audio, by shape, and by name or rate."""
    if not (_WORDS.intersection(facts.field.lower().replace("_", ".").split(".")) or facts.rate):
        return False
    array = as_array(value)
    if array is None or array.dtype.kind not in "iuf" or not array.size:
        return False
    return array.ndim == 1 or (array.ndim == 2 and array.shape[0] <= min(MAX_CHANNELS, array.shape[1]))


def _samples(value: object) -> Array:
    array = as_array(value)
    assert array is not None  # guaranteed by `fits`
    return array[None] if array.ndim == 1 else array


def _scaled_start(samples: Array) -> Floats:
    """Return float32 [channels, n] with full scale 1; non-finite samples become 0."""
    start = samples[:, : MAX_SAMPLES // samples.shape[0]]
    if start.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.nan_to_num(start.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    full = _full_scale(start)
    offset = full if start.dtype.kind == "u" else 0.0
    return ((start.astype(np.float64) - offset) / full).astype(np.float32)


def _full_scale(samples: Array) -> float:
    """Return a sample's largest possible magnitude; 128 for uint8, where silence is 128."""
    if samples.dtype.kind == "f":
        return 1.0
    bits = 8 * samples.dtype.itemsize
    return float(2 ** (bits - 1))


def _rate(facts: Facts) -> int:
    known = facts.rate is not None and 1 <= facts.rate < 2**31
    return round(facts.rate) if known and facts.rate is not None else RATE_HZ


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media:
    return png(_drawn(_scaled_start(_samples(value)), edge, max(3, edge // 2)))


def _drawn(samples: Floats, width: int, height: int) -> Pixels:
    mean: Any = np.clip(samples, -1e6, 1e6).mean(axis=0)
    top = height // 3
    return np.concatenate([envelope(mean, width, top), spectrogram(mean, width, height - top)])


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    start = _scaled_start(_samples(value))
    return Media(type="audio/wav", data=wav(start, _rate(facts))), png(_drawn(start, *DETAIL_PX))


def wav(samples: Floats, rate_hz: int) -> bytes:
    """Return a WAV file (WAVE_FORMAT_IEEE_FLOAT). samples: float32 [channels, n]."""
    channels, n = samples.shape
    data = np.ascontiguousarray(samples.T, "<f4").tobytes()
    form = struct.pack("<HHIIHHH", 3, channels, rate_hz, rate_hz * channels * 4, channels * 4, 32, 0)
    fact = struct.pack("<I", n)
    body = b"".join(
        name + struct.pack("<I", len(part)) + part
        for name, part in ((b"fmt ", form), (b"fact", fact), (b"data", data))
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    samples = _samples(value)
    channels, n = samples.shape
    rate = _rate(facts)
    at = f"{rate:,} Hz" if facts.rate == rate else f"{rate:,} Hz (assumed: no rate is on record)"
    count = "1 channel" if channels == 1 else f"{channels} channels"
    start = _scaled_start(samples)
    peak, level = float(np.abs(start).max()), float(np.sqrt(np.mean(np.square(start, dtype=np.float64))))
    out = [
        f"{count}, {length(n / rate)} at {at}",
        *array_lines(value, samples),
        f"peak {_decibels(peak)}, level {_decibels(level)} of full scale",
    ]
    if start.shape[1] < n:
        out.append(f"the first {length(start.shape[1] / rate)} are played and drawn")
    return tuple(out)


def _decibels(amplitude: float) -> str:
    return f"{20 * np.log10(amplitude):.1f} dB" if amplitude > 0 else "-inf dB"


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    samples = _samples(value)
    values = range_of(samples)
    out = array_marks(samples, values)
    start = _scaled_start(samples)
    peak = float(np.abs(start).max())
    if peak < SILENT:
        others = (one for one in out if one.name != "constant")
        out = (*others, mark("silent", f"the loudest sample is {_decibels(peak)} of full scale"))
    n_clipped = _clipped(start, peak)
    if peak >= CLIPPED_FROM and n_clipped >= CLIPPED_SAMPLES:
        out = (*out, mark("clipped", f"{n_clipped:,} samples stand in runs at the largest value"))
    if samples.dtype.kind == "f" and max(-values.low, values.high) > MAX_SCALED:
        low, high = number_text(values.low), number_text(values.high)
        out = (
            *out,
            mark("not_scaled", f"floats from {low} to {high}: were they scaled to 1?"),
        )
    return out


def _clipped(samples: Floats, peak: float) -> int:
    # Samples within 1 in 10,000 of the peak are at the peak.
    count = 0
    for sign in (1, -1):
        at_top = sign * samples >= peak * (1 - 1e-4)
        inner = at_top[:, : -CLIPPED_RUN + 1].copy()
        for shift in range(1, CLIPPED_RUN):
            inner &= at_top[:, shift : at_top.shape[1] - CLIPPED_RUN + 1 + shift]
        rows = np.count_nonzero(inner & ~np.pad(inner, ((0, 0), (1, 0)))[:, :-1])
        count += int(np.count_nonzero(inner)) + (CLIPPED_RUN - 1) * int(rows)
    return count


AUDIO = Kind(name="audio", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)
