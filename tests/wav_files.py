"""WAV files of 16-bit samples, written without a codec."""

import struct

import numpy as np

from loader.modalities.container_parts import riff_chunk


def pcm_wav(samples: np.ndarray, rate_hz: int) -> bytes:
    """Return a WAV. samples: int16 [n] or [n, channels]."""
    body = samples.astype("<i2").tobytes()
    channels = samples.shape[1] if samples.ndim == 2 else 1
    form = struct.pack("<HHIIHH", 1, channels, rate_hz, rate_hz * channels * 2, channels * 2, 16)
    return riff_chunk(b"RIFF", b"WAVE" + riff_chunk(b"fmt ", form) + riff_chunk(b"data", body))
