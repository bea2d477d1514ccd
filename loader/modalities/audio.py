"""Audio: the words wav, flac, mp3, ogg, opus and m4a. The bytes decide which of them it is.

Samples come at the stored rate and in the stored channels; nothing is resampled or mixed down. Silence that
an encoder put before and after the sound (MP3, AAC and Opus padding) is cut where the file says how long it
is. A WAV, FLAC or M4A that is shorter than its header says is refused; an MP3 or Ogg cut between two frames
cannot be told from a shorter one.
"""

import io
from typing import cast

import av
import numpy as np
from av.error import FFmpegError

from ..errors import DecodeFailed
from .fields import Buffer
from .mp4 import check_complete
from .riff import check_wav

# float32 samples above this are a mistake or an attack: 4 GiB is three hours of stereo at 48 kHz.
MAX_AUDIO_BYTES = 2**32

# Demuxers that may look at the bytes: playlists and the like, which open other files, are not among them.
_FORMATS = "wav,w64,flac,mp3,ogg,mov,mp4,m4a,3gp,3g2,mj2"


def decode(data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
    """The first audio stream as float32 [channels, samples] at its stored rate.

    Integer samples are divided by their full scale, so they lie in [-1, 1): exactly for up to 24 bits;
    32-bit ones are rounded to float32. Float samples are kept as they are and may exceed 1, as may what a
    lossy decoder computes.

    Raises: DecodeFailed (no audio, damaged, truncated, a change of channels or rate midway, too long).
    """
    try:
        check_wav(data)
        options = {"format_whitelist": _FORMATS, "protocol_whitelist": ""}
        with av.open(io.BytesIO(data), mode="r", options=options) as container:
            if not container.streams.audio:
                raise DecodeFailed(f"audio: no audio stream ({len(data)} bytes)")
            stream = container.streams.audio[0]
            samples = _read(container, stream)
            if container.format.name.startswith("mov"):
                check_complete(stream, len(data))
            return samples
    except DecodeFailed:
        raise
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        raise DecodeFailed(f"audio: {type(error).__name__}: {error} ({len(data)} bytes)") from error


def _read(container: av.container.InputContainer, stream: av.AudioStream) -> np.ndarray:
    codec = cast("av.AudioCodecContext | None", stream.codec_context)
    if codec is None:
        raise DecodeFailed("audio: the stream's codec is unknown or has no decoder here")
    codec.thread_count = 1
    if codec.name == "flac":
        codec.options = {"err_detect": "crccheck+explode"}
    # check_wav has seen to these. One written to a pipe has no size, and its last packet counts as damaged.
    may_be_damaged = container.format.name != "wav"
    pieces: list[np.ndarray] = []
    formats: set[tuple[int, int]] = set()
    nbytes = 0
    for packet in container.demux(stream):
        for frame in packet.decode():
            if may_be_damaged and (frame.is_corrupt or packet.is_corrupt):
                raise DecodeFailed(f"audio: the frame at timestamp {frame.pts} is damaged")
            formats.add((frame.layout.nb_channels, frame.sample_rate))
            piece = _samples(frame)
            nbytes += piece.nbytes
            if len(formats) > 1 or nbytes > MAX_AUDIO_BYTES:
                what = f"(channels, rate) changes: {sorted(formats)}" if len(formats) > 1 else "too long"
                raise DecodeFailed(f"audio: {what} at timestamp {frame.pts}")
            pieces.append(piece)
    if not pieces:
        raise DecodeFailed("audio: no samples")
    samples = np.concatenate(pieces, axis=1)
    if container.format.name == "flac" and stream.duration and stream.time_base:
        promised = round(stream.duration * stream.time_base * stream.sample_rate)
        if samples.shape[1] != promised:
            raise DecodeFailed(f"audio: {samples.shape[1]} samples, the FLAC header says {promised}")
    return samples


def _samples(frame: av.AudioFrame) -> np.ndarray:
    """float32 [channels, samples] of a decoded frame in any sample format."""
    raw = frame.to_ndarray()
    if not frame.format.is_planar:
        raw = raw.reshape(-1, frame.layout.nb_channels).T
    if raw.dtype == np.uint8:
        return (raw.astype(np.float32) - 128) / 128
    if raw.dtype.kind == "i":
        # FFmpeg shifts 20- and 24-bit samples up to fill 32. A power of two scales without rounding.
        return raw.astype(np.float32) * np.float32(2.0 ** (1 - 8 * raw.itemsize))
    return raw.astype(np.float32)
