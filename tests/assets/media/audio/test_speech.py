import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest

from assets.media.audio.cut import cut_audio
from assets.media.audio.flac import write_flac
from assets.media.cutters import file_kind
from assets.media.policy import AudioPolicy, CutPolicy
from assets.media.unit import Unit, Unusable
from loader.modalities import find_decoder
from loader.modalities.audio.downmix import Channels
from tests.refusals import refusal

MakeWav = Callable[..., bytes]
SoundFile = Callable[..., str]
POLICY = CutPolicy(audio=AudioPolicy(segment_s=2.0))


def cut(tmp_path: Path, data: bytes) -> list[Unit]:
    (tmp_path / "raw").write_bytes(data)
    return cut_audio(str(tmp_path / "raw"), tmp_path, POLICY)


def decode_segment(unit: Unit) -> tuple[int, str, np.ndarray]:
    with av.open(str(unit.fields["flac"])) as segment:
        stream = segment.streams.audio[0]
        pieces = [frame.to_ndarray()[0] for frame in segment.decode(stream)]
        return stream.rate, stream.layout.name, np.concatenate(pieces)


@pytest.mark.parametrize(
    ("seconds", "lengths"),
    [
        (0.1, [0.1]),
        (2.0, [2.0]),
        (2.4, [2.4]),
        (2.5, [2.0, 0.5]),
        (5.0, [2.0, 2.0, 1.0]),
        (6.2, [2.0, 2.0, 2.2]),
    ],
)
def test_segments_hold_every_sample_once(
    tmp_path: Path, make_wav: MakeWav, seconds: float, lengths: list[float]
) -> None:
    units = cut(tmp_path, make_wav(seconds))
    assert [unit.metadata["duration_s"] for unit in units] == pytest.approx(lengths)
    pieces = [decode_segment(unit) for unit in units]
    assert all((rate, layout) == (16000, "mono") for rate, layout, _ in pieces)
    joined = np.concatenate([samples for _, _, samples in pieces])
    expected = np.frombuffer(make_wav(seconds)[44:], "<i2")
    assert np.array_equal(joined, expected)  # 16 kHz mono needs no resampling: bit for bit
    assert units[-1].end == f"{len(expected)}@1/16000"


@pytest.mark.parametrize(("rate_hz", "channels"), [(8000, 1), (44100, 2), (48000, 2), (22050, 1)])
def test_other_rates_and_channels_are_brought_to_one(
    tmp_path: Path, make_wav: MakeWav, rate_hz: int, channels: int
) -> None:
    (unit,) = cut(tmp_path, make_wav(1.0, rate_hz, channels))
    rate, layout, samples = decode_segment(unit)
    assert (rate, layout) == (16000, "mono")
    assert abs(len(samples) - 16000) <= 32
    spectrum = np.abs(np.fft.rfft(samples[:16000].astype(float)))
    assert abs(int(spectrum.argmax()) * 16000 / min(len(samples), 16000) - 440) < 2
    assert np.abs(samples).max() < 9000  # the mean of equal channels, not their sum
    assert json.loads(json.dumps(unit.fields["json"]))["raw"]["rate_hz"] == rate_hz


def test_truncated_file_is_rejected(tmp_path: Path, make_wav: MakeWav) -> None:
    tone = np.frombuffer(make_wav(4.0)[44:], "<i2")
    write_flac(tmp_path / "whole", np.random.default_rng(1).integers(-9000, 9000, len(tone), np.int16), 16000)
    whole = (tmp_path / "whole").read_bytes()
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, whole[: len(whole) // 2])
    assert refused.value.outcome == "rejected"


def test_sound_that_ends_before_its_header_says_is_rejected(tmp_path: Path, make_wav: MakeWav) -> None:
    whole, path = make_wav(4.0), tmp_path / "raw"
    for shorter in (len(whole) // 2, len(whole) - 8):
        path.write_bytes(whole[:shorter])
        with refusal(Unusable, what="truncated", where="header", given=shorter, accepted=len(whole)):
            file_kind(str(path), "audio/wav")
    path.write_bytes(whole[:4] + b"\xff\xff\xff\xff" + whole[8:])  # written while it was being recorded
    assert file_kind(str(path), "audio/wav") == "audio"


def test_container_that_ends_early_is_rejected(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(-9000, 9000, 64000, np.int16)
    write_flac(tmp_path / "whole.flac", noise, 16000)
    options = {"movflags": "faststart"}
    with (
        av.open(str(tmp_path / "whole.flac")) as source,
        av.open(str(tmp_path / "whole.mp4"), "w", format="mp4", options=options) as target,
    ):
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    whole = (tmp_path / "whole.mp4").read_bytes()
    assert len(cut(tmp_path, whole)) == 2
    with av.open(str(tmp_path / "whole.mp4")) as container:
        packets = [packet for packet in container.demux() if packet.pos is not None]
        half = packets[len(packets) // 2]
        assert half.pos is not None
        end = half.pos + half.size
    with refusal(Unusable, what="truncated", where="bytes", given=62582) as refused:
        cut(tmp_path, whole[:end])
    assert refused.value.code == "truncated"


@pytest.mark.parametrize("data", [b"", b"RIFF\x00\x00\x00\x00WAVE", b"fLaC" + bytes(100)])
def test_rubbish_is_rejected(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, data)
    assert refused.value.outcome == "rejected"


def test_no_samples_at_all(tmp_path: Path, make_wav: MakeWav) -> None:
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, make_wav(0.0))
    assert refused.value.code in ("no_samples", "unreadable")


# --- channels, levels and bits

Cut = Callable[..., list[Unit]]


def read_samples(unit: Unit) -> np.ndarray:
    """float [channels, n]"""
    found: np.ndarray = find_decoder("flac")(Path(unit.fields["flac"]).read_bytes(), None)  # type: ignore[assignment]
    return found


@pytest.fixture
def cut_sound(tmp_path: Path, sound_file: SoundFile) -> Cut:
    def make(
        samples: np.ndarray, rate_hz: int = 16_000, policy: AudioPolicy | None = None, **options: Any
    ) -> list[Unit]:
        path = sound_file(samples, rate_hz, **options)
        return cut_audio(path, tmp_path, CutPolicy(audio=policy or AudioPolicy()))

    return make


def noise(n_channels: int, n: int = 16_000, level: float = 0.1) -> np.ndarray:
    return np.random.default_rng(7).normal(0, level, (n_channels, n)).astype(np.float32)


@pytest.mark.parametrize(("channels", "n_channels", "name"), [
    ("mono", 1, "5.1 to mono"), ("stereo", 2, "5.1 to stereo"), ("keep", 6, ""), ("first", 1, "first of 5.1"),
])  # fmt: skip
def test_surround_becomes_what_the_policy_says(
    cut_sound: Cut, channels: Channels, n_channels: int, name: str
) -> None:
    source = noise(6)
    (unit,) = cut_sound(source, policy=AudioPolicy(channels=channels))
    assert (unit.metadata["n_channels"], unit.metadata["downmix"]) == (n_channels, name)
    found, told = read_samples(unit), unit.fields["json"]["downmix"]
    matrix = np.eye(6) if told is None else np.array(told["matrix"])
    assert found.shape == (n_channels, 16_000)
    assert np.abs(found - matrix @ source).max() < 1 / 32768


def test_stereo_that_cancels_is_told(cut_sound: Cut) -> None:
    left = noise(1)
    (unit,) = cut_sound(np.concatenate([left, -left]))
    assert unit.metadata["mono_cancels"] is True
    assert not read_samples(unit).any()
    (unit,) = cut_sound(np.concatenate([left, left]))
    assert unit.metadata["mono_cancels"] is False
    (unit,) = cut_sound(np.concatenate([left, -left]), policy=AudioPolicy(channels="keep"))
    assert unit.metadata["mono_cancels"] is None


def test_channels_without_places_are_dropped_by_name(cut_sound: Cut) -> None:
    with refusal(Unusable, what="unknown_layout", given="4 channels") as refused:
        cut_sound(noise(4), layout="4 channels")
    assert (refused.value.outcome, refused.value.code) == ("dropped", "unknown_layout")
    (unit,) = cut_sound(noise(4), layout="4 channels", policy=AudioPolicy(channels="keep"))
    assert read_samples(unit).shape == (4, 16_000)
    with refusal(Unusable, what="channels", given=10) as refused:
        cut_sound(noise(10), layout="5.1.4", policy=AudioPolicy(channels="keep"))
    assert (refused.value.outcome, refused.value.code) == ("dropped", "channels")


def test_floats_beyond_full_scale_are_lowered_together_and_that_is_told(cut_sound: Cut) -> None:
    source = noise(1, 6 * 16_000, 0.3)
    source[0, 40_000] = 2.5
    units = cut_sound(source, policy=AudioPolicy(segment_s=1.0))
    gain_db = 20 * np.log10(1 / 2.5)
    assert [unit.metadata["gain_db"] for unit in units] == pytest.approx([gain_db] * 6, abs=1e-3)
    found = np.concatenate([read_samples(unit) for unit in units], axis=1)
    assert np.abs(found - source / 2.5).max() <= 1.01 / 32768
    (unit,) = cut_sound(noise(1, level=0.1))
    assert unit.metadata["gain_db"] == 0


def test_square_wave_does_not_clip_where_it_is_resampled(cut_sound: Cut) -> None:
    square = np.sign(np.sin(2 * np.pi * 110 * np.arange(48_000) / 48_000 + 0.1))
    (unit,) = cut_sound(square, 48_000, codec="pcm_s16le")
    assert -2 < unit.metadata["gain_db"] < -0.5  # type: ignore[operator]
    assert np.abs(read_samples(unit)).max() < 1
    assert (np.abs(read_samples(unit)) > 0.9999).sum() < 10


@pytest.mark.parametrize(("bits", "codec"), [(16, "pcm_s16le"), (24, "pcm_s24le"), (24, "pcm_s16le")])
def test_bits_are_kept_exactly(cut_sound: Cut, bits: Literal[16, 24], codec: str) -> None:
    depth = 16 if codec == "pcm_s16le" else 24
    whole = np.random.default_rng(1).integers(-(2 ** (depth - 1)), 2 ** (depth - 1), (2, 5000))
    source = (whole / 2 ** (depth - 1)).astype(np.float32)
    (unit,) = cut_sound(source, codec=codec, policy=AudioPolicy(channels="keep", bits=bits))
    assert np.array_equal(read_samples(unit), source)
    with av.open(str(unit.fields["flac"])) as container:
        assert container.streams.audio[0].format.name == {16: "s16", 24: "s32"}[bits]


def test_24_bits_in_16_are_rounded_to_the_nearest(cut_sound: Cut) -> None:
    source = noise(1)
    (unit,) = cut_sound(source, codec="pcm_s24le")
    assert np.abs(read_samples(unit) - source).max() <= 0.51 / 32768


@pytest.mark.parametrize("rate_hz", [8_000, 12_000, 192_000])
def test_odd_rates_keep_their_length_and_level(cut_sound: Cut, rate_hz: int) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate_hz + 5) / rate_hz)
    (unit,) = cut_sound(tone, rate_hz)
    assert read_samples(unit).shape == (1, round((rate_hz + 5) * 16_000 / rate_hz))
    assert np.sqrt(np.square(read_samples(unit)).mean() * 2) == pytest.approx(0.5, rel=0.01)


def test_rate_that_no_sound_has_is_rejected(tmp_path: Path, make_wav: MakeWav) -> None:
    data = bytearray(make_wav(1.0))
    data[24:28] = (3).to_bytes(4, "little")
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, bytes(data))
    assert (refused.value.outcome, refused.value.code) == ("rejected", "sample_rate")


def test_same_bytes_every_time(cut_sound: Cut) -> None:
    source = noise(2, 44_100)
    one, other = (
        [Path(unit.fields["flac"]).read_bytes() for unit in cut_sound(source, 44_100)] for _ in range(2)
    )
    assert one == other


def test_no_scratch_is_left_but_the_segments(tmp_path: Path, cut_sound: Cut) -> None:
    cut_sound(noise(1))
    assert {path.name for path in tmp_path.iterdir()} == {"sound", "segment-00000.flac"}
    with pytest.raises(Unusable):
        cut_sound(np.zeros((1, 16_000)), policy=AudioPolicy(segments="energy"))
    assert "sound.f32" not in {path.name for path in tmp_path.iterdir()}


def test_memory_does_not_grow_with_the_length(tmp_path: Path, sound_file: SoundFile) -> None:
    peaks = []
    for seconds in (8, 80):
        path = sound_file(noise(1, seconds * 16_000), 16_000, codec="pcm_s16le")
        tracemalloc.start()
        cut_audio(path, tmp_path, CutPolicy())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    longer = (80 - 8) * 16_000 * 4  # bytes of float32
    assert peaks[1] - peaks[0] < longer / 3
