"""Sound as FLAC: 16 or 24 bits, rounded to the nearest without dither, never clipped."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from loader.modalities.audio.timeline import Floats

from ..container import check_machine
from ..unit import rejected

_AT_ONCE = 65_536

_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
"""FLAC's layouts by number of channels (RFC 9639, section 9.1.3)."""


def write_flac(
    path: Path, samples: np.ndarray[Any, Any], rate_hz: int, *, bits: int = 16, gain: float | None = None
) -> float:
    """Write FLAC, rounded without dither, and return the applied gain in dB, at most 0.

    samples: float32 [channels, n], full scale = 1, or int16; [n] for one channel. gain: None lowers audio that
    would exceed full scale. The same samples give the same bytes. O(samples), in pieces of 65,536.

    Raises: StoreError for a full disk; Unusable.
    """
    import av

    if samples.ndim == 1:
        samples = samples[None, :]
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / np.float32(2**15)
    if gain is None:
        gain = safe_gain(float(np.abs(samples).max(initial=0)))
    kind, layout = ("s16" if bits == 16 else "s32"), _LAYOUTS[len(samples)]
    try:
        with av.open(str(path), "w", format="flac") as output:
            stream = output.add_stream("flac", rate=rate_hz, layout=layout, format=kind)
            if bits == 24:
                stream.codec_context.options = {"bits_per_raw_sample": "24"}
            for start in range(0, samples.shape[1], _AT_ONCE):
                whole = as_int(samples[:, start : start + _AT_ONCE], bits, gain)
                packed = (
                    whole.T.astype(np.int16) if bits == 16 else whole.T << 8
                )  # FFmpeg keeps 24 bits at the top
                frame = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(packed).reshape(1, -1), format=kind, layout=layout
                )
                frame.sample_rate, frame.pts, frame.time_base = rate_hz, start, Fraction(1, rate_hz)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    except av.error.FFmpegError as error:
        check_machine(error, str(path))
        raise rejected("cut", "unwritable", error.strerror) from error
    return db_of(gain)


def as_int(samples: Floats, bits: int, gain: float = 1.0) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return int32 in `bits` bits: exact with a gain of 1 for samples of that depth."""
    full = 2 ** (bits - 1)
    wide = np.rint(samples.astype(np.float64) * (full * gain))
    whole: np.ndarray[Any, np.dtype[np.int32]] = np.clip(wide, -full, full - 1).astype(np.int32)
    return whole


def safe_gain(peak: float) -> float:
    """Return the factor, at most 1, that brings the largest sample `peak` to full scale."""
    return min(1.0, 1 / max(peak, 1e-9))


def db_of(gain: float) -> float:
    return round(20 * math.log10(gain), 4)
