"""loader.audio: exactly the samples of the whole sound, drawn from the sample's generator."""

import io
import pickle
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

import loader
from loader.errors import DecodeFailed, InvalidRuntime
from loader.modalities import find_decoder
from loader.modalities.audio.resample import resample
from tests.refusals import refusal

decode = find_decoder("wav")
RATE_HZ = 44_100
N = 3 * RATE_HZ + 77


def encode_audio(
    codec: str, container: str, layout: str = "stereo", rate_hz: int = RATE_HZ, n: int = N
) -> bytes:
    n_channels = {"mono": 1, "stereo": 2, "5.1": 6, "4 channels": 4}[layout]
    noise = np.random.default_rng(2).normal(0, 0.1, (n, n_channels)).astype(np.float32)
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate_hz, layout=layout)
        frame = av.AudioFrame.from_ndarray(noise.reshape(1, -1), format="flt", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
        resampler = av.AudioResampler(format=stream.codec_context.format.name, layout=layout, rate=rate_hz)
        fifo = av.AudioFifo()
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            fifo.write(piece)
        while (piece := fifo.read(stream.codec_context.frame_size or 1000, partial=True)) is not None:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return sink.getvalue()


@pytest.fixture(scope="module")
def sounds() -> dict[str, bytes]:
    return {
        "flac": encode_audio("flac", "flac"),
        "wav": encode_audio("pcm_s16le", "wav"),
        "wav24": encode_audio("pcm_s24le", "wav", "mono"),
        "mp3": encode_audio("libmp3lame", "mp3"),
        "m4a": encode_audio("aac", "ipod"),
        "opus": encode_audio("libopus", "ogg", rate_hz=48_000),
    }


@pytest.mark.parametrize("name", ["flac", "wav", "wav24", "mp3", "m4a", "opus"])
@pytest.mark.parametrize("rate_hz", [None, 16_000, 44_099])
def test_excerpt_is_the_slice_of_the_whole(sounds: dict[str, bytes], name: str, rate_hz: int | None) -> None:
    data = sounds[name]
    stored_hz = 48_000 if name == "opus" else RATE_HZ
    whole = decode(data, None)
    whole = whole if rate_hz is None else resample(whole, stored_hz, rate_hz)
    rng = np.random.default_rng(4)
    for seed in range(8):
        n = int(rng.integers(1, whole.shape[1] // 2))
        first = int(np.random.default_rng(seed).integers(whole.shape[1] - n + 1))
        found = loader.audio(n, rate_hz=rate_hz)(data, np.random.default_rng(seed))
        assert found.dtype == np.float32
        assert np.array_equal(found, whole[:, first : first + n])
    last = loader.audio(100, rate_hz=rate_hz, at=(whole.shape[1] - 100) / (rate_hz or stored_hz))(data)
    assert np.array_equal(last, whole[:, -100:])


def test_all_of_it(sounds: dict[str, bytes]) -> None:
    for data in sounds.values():
        assert np.array_equal(loader.audio()(data), decode(data, None))
    assert np.array_equal(loader.audio(at=1)(sounds["flac"]), decode(sounds["flac"], None)[:, RATE_HZ:])


def test_places_are_drawn_evenly_and_the_first_without_a_generator() -> None:
    data = encode_audio("pcm_s16le", "wav", n=1000)
    whole, one = decode(data, None), loader.audio(997)
    assert np.array_equal(one(data), whole[:, :997])
    found = {one(data, np.random.default_rng(seed))[0, :3].tobytes() for seed in range(40)}
    assert found == {whole[0, start : start + 3].tobytes() for start in range(4)}


def test_channels_are_mixed(sounds: dict[str, bytes]) -> None:
    whole = decode(sounds["flac"], None)
    for channels, wanted in (("mono", whole.mean(axis=0, keepdims=True)), ("first", whole[:1])):
        found = loader.audio(500, at=0.5, channels=channels)(sounds["flac"])  # type: ignore[arg-type]
        assert np.allclose(found, wanted[:, 22_050:22_550], atol=1e-7)
    assert loader.audio(500, channels="stereo")(sounds["wav24"]).shape == (2, 500)
    surround = encode_audio("flac", "flac", "5.1")
    assert loader.audio(500, channels="stereo")(surround).shape == (2, 500)
    with refusal(DecodeFailed, what="channels", accepted=["keep", "first"]):
        loader.audio(500, channels="mono")(encode_audio("pcm_s16le", "wav", "4 channels"))


def test_what_is_too_short_is_refused_or_padded(sounds: dict[str, bytes]) -> None:
    data, whole = sounds["flac"], decode(sounds["flac"], None)
    with refusal(DecodeFailed, what="samples", given=132377, accepted=132378):
        loader.audio(N + 1)(data)
    with refusal(DecodeFailed, what="samples", given=132377, accepted=441001):
        loader.audio(at=10)(data)
    found = loader.audio(N + 50, pad=True)(data, np.random.default_rng(0))
    assert np.array_equal(found[:, :N], whole)
    assert not found[:, N:].any()
    found = loader.audio(seconds=2, at=2, pad=True)(data)
    assert found.shape == (2, 2 * RATE_HZ)
    assert np.array_equal(found[:, : RATE_HZ + 77], whole[:, 2 * RATE_HZ :])


def test_seconds_count_at_the_output_rate(sounds: dict[str, bytes]) -> None:
    assert loader.audio(seconds=0.5)(sounds["flac"]).shape == (2, 22_050)
    assert loader.audio(seconds=0.5, rate_hz=16_000)(sounds["flac"]).shape == (2, 8_000)


def test_header_that_promises_more_is_refused(sounds: dict[str, bytes]) -> None:
    for name in ("wav", "flac"):
        with pytest.raises(DecodeFailed):
            loader.audio(100, at=2.9)(sounds[name][: len(sounds[name]) // 2])
    flac = bytearray(sounds["flac"])
    flac[22:26] = (2 * N).to_bytes(4, "big")
    with pytest.raises(DecodeFailed):
        loader.audio(100, at=4)(bytes(flac))


def test_rate_that_no_sound_has_is_refused(sounds: dict[str, bytes]) -> None:
    for rate_hz in (3, 2**31 - 1):
        data = bytearray(sounds["wav"])
        data[24:28] = rate_hz.to_bytes(4, "little")
        with pytest.raises(DecodeFailed):
            loader.audio(10, rate_hz=16_000)(bytes(data))


def test_damaged_bytes_are_refused_or_decoded() -> None:
    rng = np.random.default_rng(6)
    kinds = {"flac": "flac", "wav": "pcm_s16le", "mp3": "libmp3lame", "ipod": "aac"}
    for container, codec in kinds.items():
        good = encode_audio(codec, container, n=9_000)
        for _ in range(25):
            data = bytearray(good)
            for place in rng.integers(0, min(len(data), 3000), 3):
                data[place] = rng.integers(256)
            try:
                found = loader.audio(200, rate_hz=16_000, pad=True)(bytes(data), np.random.default_rng(1))
            except DecodeFailed:
                continue
            assert (found.dtype, found.shape[1]) == (np.float32, 200)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"samples": 0}, {"what": "samples and seconds", "given": [0, None], "accepted": "above 0, or None"}),
        (
            {"seconds": -1},
            {
                "what": "samples and seconds",
                "given": [None, "Fraction(-1, 1)"],
                "accepted": "above 0, or None",
            },
        ),
        (
            {"samples": 5, "seconds": 1},
            {"what": "samples and seconds", "given": [5, "Fraction(1, 1)"], "accepted": "one of them"},
        ),
        ({"seconds": float("nan")}, {"what": "seconds"}),
        ({"seconds": "2"}, {"what": "seconds", "given": "2"}),
        ({"samples": 1.5}, {"what": "audio()", "given": [1.5, None, None, None]}),
        ({"rate_hz": 10}, {"what": "rate_hz", "given": 10, "accepted": [1000, 384000]}),
        (
            {"channels": "left"},
            {"what": "channels", "given": "left", "accepted": ["mono", "stereo", "keep", "first"]},
        ),
        ({"at": -0.1}, {"what": "at", "given": "Fraction(-1, 10)"}),
        ({"pad": True}, {"what": "pad", "given": True}),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], fault) -> None:
    with refusal(InvalidRuntime, **fault):
        loader.audio(**arguments)


def test_it_pickles() -> None:
    one = loader.audio(seconds=1.5, rate_hz=16_000, channels="mono")
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes
