"""Write FLAC files, whose bytes depend only on the samples."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from loader.modalities.audio.timeline import Floats

from ..container import check_machine
from ..unit import rejected

Integers = np.ndarray[Any, np.dtype[np.int32]]

_AT_ONCE = 65_536
"""Samples per channel of a frame."""

# Number of channels -> FLAC's layout (RFC 9639, section 9.1.3).
_LAYOUTS = {
    1: "mono",
    2: "stereo",
    3: "3.0",
    4: "quad",
    5: "5.0",
    6: "5.1",
    7: "6.1",
    8: "7.1",
}


def write_flac(
    path: Path,
    samples: np.ndarray[Any, Any],
    rate_hz: int,
    *,
    bits: int = 16,
    gain: float | None = None,
) -> float:
    """Write FLAC, rounded without dither, and return the applied gain in dB (at most 0).

    samples: float32 at full scale 1, or int16; [channels, n] or [n]. gain: factor; None lowers only audio beyond full
    scale. Equal samples give equal bytes. Raises: StoreError if the disk is full; Unusable.
    """
    import av

    if samples.ndim == 1:
        samples = samples[None, :]
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / np.float32(2**15)
    if gain is None:
        peak = float(np.abs(samples).max(initial=0))
        gain = safe_gain(peak)
    kind = "s32"
    if bits == 16:
        kind = "s16"
    layout = _LAYOUTS[len(samples)]
    try:
        with av.open(str(path), "w", format="flac") as output:
            stream = output.add_stream("flac", rate=rate_hz, layout=layout, format=kind)
            if bits == 24:
                stream.codec_context.options = {"bits_per_raw_sample": "24"}
            for start in range(0, samples.shape[1], _AT_ONCE):
                stop = start + _AT_ONCE
                whole = as_int(samples[:, start:stop], bits, gain)
                interleaved = _interleaved(whole, bits)
                frame = av.AudioFrame.from_ndarray(interleaved, format=kind, layout=layout)
                frame.sample_rate = rate_hz
                frame.pts = start
                frame.time_base = Fraction(1, rate_hz)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    except av.error.FFmpegError as error:
        check_machine(error, str(path))
        raise rejected("cut", "unwritable", error.strerror) from error
    return decibels(gain)


def _interleaved(whole: Integers, bits: int) -> np.ndarray[Any, Any]:
    """Return [1, n * channels] in the width that FFmpeg's encoder takes."""
    if bits == 16:
        packed = whole.T.astype(np.int16)
    else:
        packed = whole.T << 8  # FFmpeg expects 24 bits left-aligned
    return np.ascontiguousarray(packed).reshape(1, -1)


def as_int(samples: Floats, bits: int, gain: float = 1.0) -> Integers:
    """Return samples times `gain` as int32 of `bits` bits; exact at gain 1 and that depth."""
    full = 2 ** (bits - 1)
    wide = samples.astype(np.float64)
    wide *= full * gain
    np.rint(wide, out=wide)
    np.clip(wide, -full, full - 1, out=wide)
    whole: Integers = wide.astype(np.int32)
    return whole


def safe_gain(peak: float) -> float:
    """Return the factor, at most 1, that brings the largest sample `peak` to full scale."""
    return min(1.0, 1 / max(peak, 1e-9))


def decibels(gain: float) -> float:
    return round(20 * math.log10(gain), 4)
