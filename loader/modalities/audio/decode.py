"""Decode audio: the words wav, flac, mp3, ogg, opus and m4a. The bytes determine the format.

Encoder padding is cut if the file states its length (MP3, AAC, Opus). Gaps in the timestamps become silence. A WAV,
FLAC, M4A or MP3 shorter than its header states is rejected, and so is an Ogg that ends within a page.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError

from ...errors import DecodeFailed
from ...limits import MAX_AUDIO_BYTES
from ..fields import Buffer, is_machine_fault
from ..video.container_checks import check_complete, check_tables
from .downmix import UnknownLayout, channel_mix
from .padding import announced_length, audio_ends, check_lengths, check_wav, flac_samples
from .resample import StrangeRate, resample, source_range
from .timeline import BadSound, Ends, Floats, Heard

if TYPE_CHECKING:
    from .request import AudioDecoder

# Demuxers that may read the bytes. Playlists and similar formats, which open other files, are excluded.
FORMATS = "wav,w64,flac,mp3,ogg,mov,mp4,m4a,3gp,3g2,mj2"

_PROBED_BYTES = 8_192
"""Bytes of a WAV to probe: FFmpeg would search 5 MB for a DTS stream, 44 ms for 20 s of audio."""


def decode(data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return the first audio stream as float32 [channels, samples] at its stored rate. O(samples).

    Integer samples are divided by their full scale, to [-1, 1): exact up to 24 bits, while 32-bit samples are rounded
    to float32. Float samples and lossy decoders' samples may exceed 1.

    Raises: DecodeFailed if there is no audio, or it is damaged, truncated, too long, or changes channels or rate
    midway.
    """
    with _open_audio(data) as (container, stream):
        samples, _ = _whole(container, stream, data)
    return samples


def read_sound(data: Buffer, request: AudioDecoder, rng: np.random.Generator | None) -> np.ndarray:
    """Return float32 [channels, samples]: the samples that `request` selects, with its channels and rate.

    Raises: DecodeFailed as `decode`, and if the audio is too short or its channels cannot be mixed.
    """
    with _open_audio(data) as (container, stream):
        n_source = _exact_sample_count(container, stream, data)
        whole: tuple[Floats, Heard] | None = None
        if n_source is None:
            whole = _whole(container, stream, data)
            n_source = whole[0].shape[1]
        if whole is None:
            source_hz = stream.rate
        else:
            source_hz = whole[1].rate_hz
        rate_hz = request.rate_hz or source_hz
        first, stop, n_pad = request.place(round(n_source * rate_hz / source_hz), rate_hz, rng)
        low, high = source_range(first, stop, source_hz, rate_hz, n_source)
        if whole is None:
            part, heard = _part(container, stream, low, high)
        else:
            part = whole[0][:, low:high]
            heard = whole[1]
    begin = first - low * rate_hz // source_hz
    try:
        mixed = channel_mix(heard.channels, heard.layout, request.channels)(part)
        chosen = resample(mixed, source_hz, rate_hz)[:, begin : begin + stop - first]
    except (UnknownLayout, StrangeRate) as error:
        raise DecodeFailed(f"audio: {error}", what="channels", accepted=["keep", "first"]) from error
    if n_pad:
        return np.pad(chosen, ((0, 0), (0, n_pad)))
    return np.ascontiguousarray(chosen)


def read_start(data: Buffer, most_bytes: int) -> tuple[Floats, int, bool]:
    """Return (float32 [channels, samples], Hz, whether that is all): the beginning of the audio, for previews.

    most_bytes: limit for the result, 4 bytes per sample. Raises: DecodeFailed, as `decode`.
    """
    with _open_audio(data) as (container, stream):
        samples, heard, whole = _read(container, stream, data, most_bytes)
    n = most_bytes // (4 * samples.shape[0])
    return samples[:, :n], heard.rate_hz, whole


@contextmanager
def _open_audio(data: Buffer) -> Iterator[tuple[InputContainer, av.AudioStream]]:
    try:
        check_lengths(data)
        check_tables(data)
        options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
        if bytes(data[:4]) in (b"RIFF", b"RF64"):
            options["probesize"] = str(_PROBED_BYTES)
        with av.open(io.BytesIO(data), mode="r", options=options) as container:
            if not container.streams.audio:
                raise DecodeFailed(
                    f"audio: no audio stream ({len(data)} bytes)", what="audio stream", given="none"
                )
            stream = container.streams.audio[0]
            codec = cast("av.AudioCodecContext | None", stream.codec_context)
            if codec is None:
                raise DecodeFailed("audio: the stream's codec is unknown or has no decoder here")
            codec.thread_count = 1
            if codec.name == "flac":
                codec.options = {"err_detect": "crccheck+explode"}
            yield container, stream
    except DecodeFailed:
        raise
    except BadSound as bad:
        raise DecodeFailed(f"audio: {bad.reason}") from bad
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        if is_machine_fault(error):
            raise
        raise DecodeFailed(f"audio: {type(error).__name__}: {error} ({len(data)} bytes)") from error


def _whole(container: InputContainer, stream: av.AudioStream, data: Buffer) -> tuple[Floats, Heard]:
    samples, heard, whole = _read(container, stream, data, MAX_AUDIO_BYTES)
    if not whole:
        raise DecodeFailed(f"audio: too long: above {MAX_AUDIO_BYTES} bytes of samples")
    return samples, heard


def _read(
    container: InputContainer, stream: av.AudioStream, data: Buffer, most_bytes: int
) -> tuple[Floats, Heard, bool]:
    """Return (samples, `Heard`, whether they are complete). Reading stops above `most_bytes`."""
    heard = Heard(audio_ends(container, stream, data))
    pieces: list[Floats] = []
    nbytes = 0
    for piece in _audible(heard, _frames(container, stream)):
        pieces.append(piece)
        nbytes += piece.nbytes
        if nbytes > most_bytes:
            return np.concatenate(pieces, axis=1), heard, False
    if not pieces:
        raise DecodeFailed("audio: no samples")
    if heard.n_filled > heard.n_source:
        raise DecodeFailed(
            f"audio: {heard.n_source} samples are decoded, and {heard.n_filled} missing between them"
        )
    promise = announced_length(container.format.name, data)
    if promise is not None and promise.n_samples - heard.n_source > promise.slack_s * heard.rate_hz:
        raise DecodeFailed(
            f"audio: {heard.n_source} samples, the {container.format.name} header states {promise.n_samples}",
            what="samples",
            given=heard.n_source,
            accepted=promise.n_samples,
        )
    if container.format.name.startswith("mov"):
        check_complete(stream, len(data))
    return np.concatenate(pieces, axis=1), heard, True


def _part(container: InputContainer, stream: av.AudioStream, low: int, high: int) -> tuple[Floats, Heard]:
    """Return samples [low, high) of audio that can be sought exactly, and the `Heard` that read them."""
    assert stream.time_base is not None  # a WAV or FLAC has one
    if low:
        container.seek(int(low / stream.rate / stream.time_base), stream=stream)
    heard = Heard(Ends())
    pieces: list[Floats] = []
    begin = 0
    for frame in _frames(container, stream):
        if frame.pts is None or frame.time_base is None:
            raise DecodeFailed("audio: a frame without a timestamp")
        if not heard.rate_hz:  # the first frame: a seek ends at or before `low`
            begin = round(frame.pts * frame.time_base * frame.sample_rate)
        pieces += heard.add(frame)
        if begin + heard.n_source >= high:
            break
    pieces += heard.finish()
    if begin > low or begin + heard.n_samples < high:
        raise DecodeFailed(
            f"audio: samples {low} to {high} are announced, {begin} to {begin + heard.n_samples} are there"
        )
    return np.concatenate(pieces, axis=1)[:, low - begin : high - begin], heard


def _exact_sample_count(container: InputContainer, stream: av.AudioStream, data: Buffer) -> int | None:
    """Return the sample count of exactly seekable audio; None if it must be decoded to the end."""
    name = container.format.name
    if name == "flac":
        return flac_samples(data)
    if name == "wav" and stream.codec_context.name.startswith("pcm_") and check_wav(data):
        return stream.duration  # in ticks of 1 / rate
    return None


def _audible(heard: Heard, frames: Iterable[Any]) -> Iterator[Floats]:
    for frame in frames:
        yield from heard.add(frame)
    yield from heard.finish()


def _frames(container: InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    # `check_lengths` has checked these. Written to a pipe, they state no size: the last packet seems damaged.
    may_be_damaged = container.format.name != "wav"
    for packet in container.demux(stream):
        for frame in packet.decode():
            if may_be_damaged and (frame.is_corrupt or packet.is_corrupt):
                raise DecodeFailed(f"audio: the frame at timestamp {frame.pts} is damaged")
            yield frame
