"""Audio: exact samples from lossless files, the right length from lossy ones, and refusals."""

import contextlib
import io
import os
import struct
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from loader.errors import DecodeFailed
from loader.modalities import find_decoder
from tests.refusals import refusal

decode = find_decoder("wav")
RNG = np.random.default_rng(9)
RATE_HZ = 16_000
SINE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ) / RATE_HZ)


def wav(samples, width_bytes):
    """A RIFF file of int samples [n, channels], little-endian (8-bit ones unsigned, as WAV has them)."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(samples.shape[1])
        out.setsampwidth(width_bytes)
        out.setframerate(RATE_HZ)
        if width_bytes == 1:
            out.writeframes((samples + 128).astype(np.uint8).tobytes())
        else:
            wide = samples.astype("<i4").reshape(*samples.shape, 1).view(np.uint8)
            out.writeframes(wide[..., :width_bytes].tobytes())
    return file.getvalue()


def encode_audio(samples, codec, container_format, sample_format, bits=None):
    """float or int [channels, n] through one of FFmpeg's encoders."""
    file = io.BytesIO()
    layout = {1: "mono", 2: "stereo"}[len(samples)]
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=RATE_HZ, layout=layout)
        if bits:
            stream.codec_context.options = {"bits_per_raw_sample": str(bits)}
        stream.format = sample_format
        planar = sample_format.endswith("p")
        for at in range(0, samples.shape[1], 1024):
            piece = samples[:, at : at + 1024]
            data = piece if planar else piece.T.reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(data), sample_format, layout)
            frame.sample_rate, frame.pts = RATE_HZ, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize("width_bytes", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_wav_samples_are_exact(width_bytes, channels):
    half = 2 ** (8 * width_bytes - 1)
    samples = RNG.integers(-half, half, (1000, channels), dtype=np.int64)
    samples[0], samples[1] = -half, half - 1
    got = decode(wav(samples, width_bytes), None)
    assert got.dtype == np.float32
    assert got.shape == (channels, 1000)
    assert np.array_equal(got, (samples.T / half).astype(np.float32))
    assert got.min() == -1
    assert got.max() < 1 or width_bytes == 4  # 2^31 - 1 has no float32


@pytest.mark.parametrize(("sample_format", "bits"), [("s16", 16), ("s32", 24)])
def test_flac_samples_are_exact(sample_format, bits):
    samples = RNG.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (2, 5000)).astype(np.int32)
    stored = samples.astype(np.int16) if bits == 16 else samples << 8
    data = encode_audio(stored, "flac", "flac", sample_format)
    assert np.array_equal(decode(data, None), (samples / 2 ** (bits - 1)).astype(np.float32))


def test_float_samples_are_kept_as_they_are():
    samples = (RNG.standard_normal((2, 3000)) * 2).astype(np.float32)
    assert np.array_equal(decode(encode_audio(samples, "pcm_f32le", "wav", "flt"), None), samples)


@pytest.mark.parametrize(
    ("codec", "container_format", "sample_format", "exact_length"),
    [
        ("aac", "ipod", "fltp", False),
        ("libmp3lame", "mp3", "fltp", True),
        ("libopus", "ogg", "flt", False),
        ("alac", "ipod", "s16p", True),
    ],
)
def test_encoder_padding_is_cut(codec, container_format, sample_format, exact_length):
    stereo = np.stack([SINE, 0.5 * SINE])
    samples = (stereo * 32767).astype(np.int16) if sample_format == "s16p" else stereo.astype(np.float32)
    got = decode(encode_audio(samples, codec, container_format, sample_format), None)
    rate = 48_000 if codec == "libopus" else RATE_HZ
    n = got.shape[1] * RATE_HZ / rate
    assert got.shape[0] == 2
    assert n == RATE_HZ if exact_length else 0 <= n - RATE_HZ <= 1024
    if rate == RATE_HZ:  # the sound starts where it did: no shift by the encoder's delay
        middle = slice(2000, 10_000)
        assert np.corrcoef(got[0, middle], SINE[middle])[0, 1] > 0.99
        assert np.abs(got[1, middle] - 0.5 * got[0, middle]).max() < 0.1


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_wav_written_to_a_pipe_is_read_to_its_end(size):
    good = wav(RNG.integers(-9, 9, (500, 1)), 2)
    at = good.index(b"data") + 4
    got = decode(good[:at] + struct.pack("<I", size) + good[at + 4 :], None)
    assert got.shape == (1, 500)


def test_wav_with_a_long_comment_is_read():
    good = wav(RNG.integers(-9999, 9999, (500, 2)), 2)
    comment = b"LIST" + struct.pack("<I", 50_000) + b"INFOICMT" + struct.pack("<I", 49_988) + b"x" * 49_988
    size = struct.pack("<I", len(good) - 8 + len(comment))
    assert np.array_equal(
        decode(good[:4] + size + good[8:36] + comment + good[36:], None), decode(good, None)
    )


WAV = wav(RNG.integers(-9999, 9999, (4000, 2)), 2)
FLAC = encode_audio(RNG.integers(-9999, 9999, (2, 20_000)).astype(np.int16), "flac", "flac", "s16")
M4A = encode_audio(np.stack([SINE] * 2).astype(np.float32), "aac", "ipod", "fltp")
MP3 = encode_audio(np.stack([SINE] * 2).astype(np.float32), "libmp3lame", "mp3", "fltp")
OGG = encode_audio(np.stack([SINE] * 2).astype(np.float32), "libopus", "ogg", "flt")


@pytest.mark.parametrize("data", [WAV, FLAC, M4A], ids=["wav", "flac", "m4a"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_files_are_refused(data, share):
    with pytest.raises(DecodeFailed):
        decode(data[: int(len(data) * share)], None)


def test_flac_cut_between_two_frames_is_refused():
    """FLAC frames start with a sync code; FFmpeg takes the cut for the end."""
    at = FLAC.index(b"\xff\xf8", len(FLAC) // 2)
    with pytest.raises(DecodeFailed):
        decode(FLAC[:at], None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 64,
        b"RIFF",
        b"RIFF\x24\0\0\0WAVE",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
        wav(np.zeros((0, 1), np.int64), 2),
    ],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(DecodeFailed):
        decode(data, None)


def test_video_without_sound_is_refused(videos):
    with refusal(DecodeFailed, what="audio stream", given="none"):
        decode(videos["gop12"][0], None)


@pytest.mark.parametrize("good", [WAV, FLAC, M4A, MP3, OGG], ids=["wav", "flac", "m4a", "mp3", "ogg"])
def test_flipped_and_cut_bytes_decode_or_are_refused(good):
    rng = np.random.default_rng(13)
    for _ in range(100):
        data = bytearray(good)
        for place in rng.integers(0, min(len(data), 4000), rng.integers(1, 6)):
            data[place] = rng.integers(256)
        cut = bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data)
        with contextlib.suppress(DecodeFailed):
            got = decode(cut, None)
            assert got.dtype == np.float32
            assert got.ndim == 2


def test_flipped_bit_in_flac_is_found_by_its_checksum():
    rng = np.random.default_rng(17)
    for place in rng.integers(len(FLAC) // 2, len(FLAC) - 100, 20):
        data = bytearray(FLAC)
        data[place] ^= 1
        with pytest.raises(DecodeFailed):
            decode(bytes(data), None)


def test_real_audio_decodes():
    folder = os.environ.get("PENSTOCK_MEDIA")
    for path in sorted(Path(folder, "audio").rglob("*.*")) if folder else ():
        if path.suffix[1:] in ("wav", "flac", "mp3", "ogg", "opus"):
            got = decode(path.read_bytes(), None)
            assert got.shape[0] in (1, 2, 6), path.name
            assert np.isfinite(got).all()
            if path.suffix == ".wav":
                with contextlib.suppress(wave.Error), wave.open(str(path)) as opened:
                    assert got.shape == (opened.getnchannels(), opened.getnframes())
