"""Silero's detector against its own TorchScript model (values for a synthetic voice are below), and on real speech."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.featurizers import vad
from assets.featurizers.vad import RATE_HZ, VoiceActivity, probabilities
from assets.media.audio.cut import LevelMeter, audible_segments, union
from assets.media.policy import AudioPolicy
from loader.errors import InvalidSpec, MissingDependency
from loader.modalities import find_decoder
from loader.modalities.audio.resample import resample
from tests.refusals import refusal
from tests.servers.processes import python

VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))  # Hz


def voice(seconds: float) -> np.ndarray:
    """float32 [n] at 16 kHz: vowels, harmonics of some 120 Hz through three formants each."""
    n = round(seconds * RATE_HZ)
    times = np.arange(n) / RATE_HZ
    pitch_hz = 120 * (1 + 0.08 * np.sin(2 * np.pi * 2.3 * times) + 0.03 * np.sin(2 * np.pi * 5.1 * times))
    phase = 2 * np.pi * np.cumsum(pitch_hz) / RATE_HZ
    source = np.sum([np.cos(k * phase) / k**0.6 for k in range(1, 30)], axis=0)
    out, length = np.zeros(n), round(0.18 * RATE_HZ)
    for number, start in enumerate(range(0, n, length)):
        piece = source[start : start + length]
        hz = np.fft.rfftfreq(len(piece), 1 / RATE_HZ)
        formants = zip(VOWELS[number % 5], (60, 90, 140), strict=True)
        mouth = np.sum([1 / (1 + ((hz - centre) / width) ** 2) for centre, width in formants], axis=0)
        vowel = np.fft.irfft(np.fft.rfft(piece) * mouth, len(piece))
        out[start : start + length] = vowel * np.hanning(len(piece)) ** 0.4
    return (0.3 * out / np.abs(out).max()).astype(np.float32)


def speech_signal() -> np.ndarray:
    """3 s, of which the second is spoken."""
    sound = np.zeros(3 * RATE_HZ, np.float32)
    sound[RATE_HZ : 2 * RATE_HZ] = voice(1.0)
    return sound


# silero_vad.jit of silero-vad 6.2.3 over spoken(), frames 30 to 72.
JIT = [
    0.004, 0.248, 0.618, 0.881, 0.904, 0.877, 0.945, 0.989, 0.997, 0.995, 0.995, 0.999, 0.999, 0.999, 0.999, 0.999,
    0.997, 0.999, 0.998, 0.996, 0.991, 0.98, 0.937, 0.934, 0.935, 0.966, 0.939, 0.901, 0.885, 0.917, 0.874, 0.797,
    0.839, 0.671, 0.489, 0.262, 0.117, 0.061, 0.036, 0.024, 0.02, 0.017, 0.015,
]  # fmt: skip


def test_probabilities_are_those_of_the_original_model() -> None:
    found = probabilities(speech_signal())
    assert found.shape == (94,)
    assert np.abs(found[30:73] - JIT).max() < 0.002
    assert np.delete(found, slice(30, 73)).max() < 0.02


def test_long_sound_is_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """More frames than one call takes: the state goes on."""
    sound = np.tile(speech_signal(), 2)
    whole = probabilities(sound)
    monkeypatch.setattr(vad, "_AT_ONCE", 37)
    assert np.abs(probabilities(sound) - whole).max() < 1e-5


def features(make: Any, samples: np.ndarray, rate_hz: int = RATE_HZ, **parameters: Any) -> Any:
    return VoiceActivity(**parameters)("audio", {"flac": make.flac(np.atleast_2d(samples), rate_hz)})


def test_what_is_spoken_is_told(make: Any) -> None:
    found = features(make, speech_signal())
    ((start, end),) = found.fields["vad.npy"].tolist()
    assert start / RATE_HZ == pytest.approx(1.0, abs=0.1)
    assert end / RATE_HZ == pytest.approx(2.1, abs=0.15)
    assert found.columns == {"speech_ratio": round((end - start) / 48_000, 6), "n_speech_segments": 1}


def test_silence_noise_and_tones_are_no_speech(make: Any) -> None:
    for samples in (
        np.zeros(RATE_HZ),
        np.random.default_rng(0).normal(0, 0.05, 2 * RATE_HZ),
        make.sine(0.3, 2.0, RATE_HZ),
    ):
        found = features(make, samples)
        assert found.fields["vad.npy"].shape == (0, 2)
        assert found.columns == {"speech_ratio": 0.0, "n_speech_segments": 0}


def test_stereo_at_another_rate(make: Any) -> None:
    sound = resample(speech_signal()[None], RATE_HZ, 44_100)
    found = features(make, np.tile(sound, (2, 1)), 44_100)
    assert found.columns["n_speech_segments"] == 1
    assert found.columns["speech_ratio"] == pytest.approx(0.37, abs=0.04)


def test_clip_may_have_its_sound_beside_it(make: Any) -> None:
    one = VoiceActivity(audio=None, video="sound.flac")
    assert one("video", {"mp4": b""}).columns == {"speech_ratio": None, "n_speech_segments": None}
    assert (
        one("video", {"sound.flac": make.flac(speech_signal()[None], RATE_HZ)}).columns["n_speech_segments"]
        == 1
    )


def test_pauses_lengths_and_padding() -> None:
    speech = (
        [0.0] * 10 + [0.9] * 20 + [0.0] * 2 + [0.9] * 10 + [0.4] * 5 + [0.0] * 20 + [0.9] * 3 + [0.0] * 10
    )
    n = 512 * len(speech)
    plain = {"pad_s": 0.0, "min_silence_s": 0.1}
    assert VoiceActivity(**plain).segments(speech, n) == [(512 * 10, 512 * 47)]
    assert VoiceActivity(**plain, min_speech_s=0).segments(speech, n)[1:] == [(512 * 67, 512 * 70)]
    assert len(VoiceActivity(pad_s=0, min_silence_s=0).segments(speech, n)) == 2
    assert VoiceActivity(min_silence_s=0.1, pad_s=0.5).segments(speech, n) == [(0, 512 * 47 + 8000)]
    assert VoiceActivity(pad_s=0).segments([0.9] * 10, 5000) == [(0, 5000)]  # to its end


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1)), max_size=20),
    st.sampled_from([0.0, 0.03, 0.5]),
    st.sampled_from([0.0, 0.25]),
)
def test_segments_are_apart_and_inside(
    steps: list[tuple[int, float]], pad_s: float, min_speech_s: float
) -> None:
    speech = [probability for n, probability in steps for _ in range(n)]
    n = max(0, 512 * len(speech) - 100)
    found = VoiceActivity(pad_s=pad_s, min_speech_s=min_speech_s).segments(speech, n)
    edges = [edge for segment in found for edge in segment]
    assert edges == sorted(edges)
    assert all(0 <= edge <= n for edge in edges)
    assert all(start < end for start, end in found)


def test_without_the_package_the_pip_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vad, "find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=r"pip install 'penstock-data\[vad\]'"):
        _ = VoiceActivity().version


def test_torch_is_not_loaded() -> None:
    code = (
        "import sys, numpy as np\n"
        "from assets.featurizers.vad import probabilities\n"
        "probabilities(np.zeros(16_000, np.float32))\n"
        "print([name for name in ('torch', 'torchaudio', 'silero_vad') if name in sys.modules])\n"
    )
    done = python("-c", code, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "wrong", [{"threshold": 0.0}, {"threshold": 1.0}, {"pad_s": -1.0}, {"min_speech_s": 61.0}]
)
def test_wrong_parameters_are_refused(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with refusal(InvalidSpec, what=name, where="vad", given=value):
        VoiceActivity(**wrong)


REFERENCE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from silero_vad import get_speech_timestamps, load_silero_vad
model = load_silero_vad()
for path in sys.argv[1:]:
    found = get_speech_timestamps(torch.from_numpy(np.load(path)), model)
    print(json.dumps([[one["start"], one["end"]] for one in found]))
"""


def speech_of_the_corpus() -> list[Path]:
    folder = os.environ.get("PENSTOCK_MEDIA")
    names = ("audio/librispeech*.flac", "audio/librivox/*.wav", "audio/jfk.flac", "audio/asterisk/vm-*.wav")
    return sorted(path for name in names for path in Path(folder).glob(name)) if folder else []


@pytest.mark.server
def test_real_speech_is_where_the_original_finds_it_and_the_energy_too(tmp_path: Path) -> None:
    files: list[Path] = []
    sounds: list[np.ndarray] = []
    for path in speech_of_the_corpus():
        samples: np.ndarray = find_decoder("wav")(path.read_bytes(), None)  # type: ignore[assignment]
        rate_hz = 8_000 if "asterisk" in path.parts else 44_100 if path.stem == "jfk" else 16_000
        sounds.append(resample(samples.mean(axis=0, keepdims=True), rate_hz, RATE_HZ)[0])
        files.append(tmp_path / f"{len(files)}.npy")
        np.save(files[-1], sounds[-1])
    done = python("-c", REFERENCE, *files, check=True)
    policy = AudioPolicy(segments="energy", segment_s=60.0, pause_s=0.3)
    for sound, line in zip(sounds, done.stdout.splitlines(), strict=True):
        found = VoiceActivity().segments(probabilities(sound), len(sound))
        assert [list(segment) for segment in found] == json.loads(line)
        meter = LevelMeter(RATE_HZ)
        meter.add(sound[None])
        loud = np.zeros(len(sound), bool)
        for start, end in union(audible_segments(meter.finish(), meter.frame, len(sound), policy)):
            loud[start:end] = True
        heard = np.concatenate([loud[start:end] for start, end in found])
        assert heard.mean() > 0.97  # what is spoken is loud
