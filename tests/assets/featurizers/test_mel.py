"""Mel spectrograms against librosa 0.11 (its values are stored in golden_mel.npz) and against Whisper's definition."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assets.featurizers.mel import Mel, mel_filters
from assets.media.unit import Unusable
from loader.errors import InvalidSpec
from loader.modalities.audio.resample import resample
from tests.refusals import refusal

GOLDEN = np.load(Path(__file__).parent / "golden_mel.npz")
SAMPLES = GOLDEN["samples"] / np.float32(2**15)

SETS: Mapping[str, dict[str, Any]] = {
    "whisper": {"fmax_hz": 8000.0},
    "htk_ln": {
        "sample_rate_hz": 22_050, "n_fft": 1024, "hop": 256, "n_mels": 40, "fmin_hz": 20.0, "fmax_hz": 7600.0,
        "scale": "htk", "norm": "none", "power": 1,
    },
    "db_constant": {"n_fft": 512, "hop": 200, "n_mels": 64, "fmin_hz": 50.0, "pad": "constant"},
    "odd_window": {
        "sample_rate_hz": 8000, "n_fft": 201, "hop": 80, "n_mels": 20, "scale": "htk", "pad": "constant",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_bands_are_those_of_librosa(name: str) -> None:
    found, wanted = Mel(**SETS[name], log="none").of(SAMPLES), GOLDEN[name]
    assert found.dtype == np.float32
    assert found.shape == wanted.shape
    # librosa computes in float32: 2e-6 of a band's largest value is its own error.
    assert np.abs(found - wanted).max() <= 2e-6 * wanted.max()
    assert np.allclose(found, wanted, rtol=2e-3, atol=1e-7 * wanted.max())


def test_logarithms() -> None:
    plain = GOLDEN["htk_ln"].astype(np.float64)
    for log, wanted in (("ln", np.log(plain)), ("log10", np.log10(plain)), ("db", 20 * np.log10(plain))):
        found = Mel(**SETS["htk_ln"], log=log).of(SAMPLES)  # type: ignore[arg-type]
        assert np.allclose(found, wanted, atol=2e-4)
    power = Mel(**SETS["db_constant"], log="db").of(SAMPLES)
    assert np.allclose(power, 10 * np.log10(GOLDEN["db_constant"].astype(float)), atol=2e-2)
    assert Mel(log="ln", floor=1e-3).of(np.zeros(1000, np.float32)).max() == pytest.approx(np.log(1e-3))


def test_default_is_what_whisper_is_fed() -> None:
    """log_mel_spectrogram of openai/whisper: the last frame is left out, log10 of at least 1e-10, at most 8 below
    the largest, plus 4, over 4."""
    decades = np.log10(np.maximum(GOLDEN["whisper"][:, :-1].astype(float), 1e-10))
    wanted = (np.maximum(decades, decades.max() - 8) + 4) / 4
    found = Mel().of(SAMPLES)
    assert found.shape == (80, len(SAMPLES) // 160)
    assert np.abs(found - wanted).max() < 1e-4


def test_filters_are_triangles_of_the_requested_area() -> None:
    for scale in ("slaney", "htk"):
        flat = mel_filters(16_000, 4096, 40, 0.0, 8000.0, scale, "none")
        assert flat.max(axis=1) == pytest.approx(np.ones(40), abs=0.2)
        assert np.allclose(flat.sum(axis=0)[200:1850], 1)  # between the centres neighbours add up to one
        area = mel_filters(16_000, 4096, 40, 0.0, 8000.0, scale, "slaney").sum(axis=1) * 16_000 / 4096
        assert np.allclose(area, 1, atol=0.02)
    # Slaney's scale is linear to 1 kHz: 15 mels of 200/3 Hz.
    assert mel_filters(16_000, 4096, 14, 0.0, 1000.0, "slaney", "none").argmax(
        axis=1
    ) * 16_000 / 4096 == pytest.approx(np.arange(1, 15) * 200 / 3, abs=2.1)


def test_stereo_at_another_rate_is_mixed_and_resampled(make: Any) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 22_050))
    features = Mel()("audio", {"flac": make.flac(noise, 44_100)})
    mono = np.rint(noise * 2**23) / 2**23
    wanted = Mel().of(resample(mono.mean(axis=0, keepdims=True).astype(np.float32), 44_100, 16_000)[0])
    found = features.fields["mel.npy"]
    assert isinstance(found, np.ndarray)
    assert found.shape == (80, 50)
    assert np.abs(found - wanted).max() < 1e-3


def test_clip_may_have_its_sound_beside_it(make: Any) -> None:
    mel = Mel(audio=None, video="sound.flac")
    assert mel.kinds == {"video"}
    without = mel("video", {"mp4": b""}).fields["mel.npy"]
    assert (without.shape, without.dtype) == ((80, 0), np.float32)  # type: ignore[union-attr]
    sound = make.flac(make.sine(0.1, 1.0, 16_000)[None], 16_000)
    assert mel("video", {"sound.flac": sound}).fields["mel.npy"].shape == (80, 100)  # type: ignore[union-attr]


def test_tone_lies_in_its_band(make: Any) -> None:
    found = Mel(log="db").of(make.sine(0.5, 1.0, 16_000, hz=1000.0).astype(np.float32))
    centres = mel_filters(16_000, 400, 80, 0.0, 8000.0, "slaney", "none").argmax(axis=1) * 40
    assert abs(centres[int(found[:, 50].argmax())] - 1000) <= 60


@pytest.mark.parametrize("n", [0, 1, 2, 100, 159, 160, 161, 401, 160_000])
def test_any_length_has_frames_from_end_to_end(n: int) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, n).astype(np.float32)
    for log in ("whisper", "ln"):
        found = Mel(log=log).of(noise)  # type: ignore[arg-type]
        if not n:
            assert found.shape == (80, 0)
        elif log == "ln":
            assert found.shape == (80, 1 + n // 160)
        else:
            assert found.shape == (80, max(1, n // 160))
        assert np.isfinite(found).all()


def test_frames_are_the_same_however_many_there_are() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 400_000).astype(np.float32)
    long, short = Mel(log="ln").of(noise), Mel(log="ln").of(noise[:100_000])
    assert np.array_equal(long[:, :600], short[:, :600])


@pytest.mark.parametrize(
    "wrong",
    [
        {"hop": 500}, {"n_mels": 0}, {"n_mels": 201}, {"fmin_hz": 9000.0}, {"fmax_hz": 9000.0}, {"scale": "bark"},
        {"norm": "l2"}, {"power": 3}, {"log": "e"}, {"floor": 0.0}, {"n_fft": 8}, {"sample_rate_hz": 10}, {"pad": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_parameters_are_refused(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with refusal(InvalidSpec, what=name, where="mel", given=value):
        Mel(**wrong)


def test_channels_without_places_are_rejected(make: Any) -> None:
    import io

    import av

    sink = io.BytesIO()
    with av.open(sink, "w", format="wav") as out:
        stream = out.add_stream("pcm_s16le", rate=16_000, layout="4 channels")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4000), np.int16), format="s16", layout="4 channels")
        frame.sample_rate, frame.pts = 16_000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with pytest.raises(Unusable) as refused:
        Mel(audio="wav")("audio", {"wav": sink.getvalue()})
    assert refused.value.code == "unknown_layout"
