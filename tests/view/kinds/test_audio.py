"""Sound: the WAV holds the samples, and what a person would not hear is marked."""

import io

import numpy as np
import pytest
import soundfile
import torch

from penstock.view.kinds import Facts, find_kind
from penstock.view.kinds.audio import AUDIO

FACTS = Facts(field="flac", rate=8000)


def tone(n=4000, channels=1, level=0.5):
    return (level * np.sin(np.arange(n) * 0.3 + np.arange(channels)[:, None])).astype(np.float32)


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_wav_holds_the_samples(channels, make) -> None:
    value = tone(channels=channels)
    assert find_kind(make(value), FACTS) is AUDIO
    sound, _ = AUDIO.detail(make(value), FACTS)
    assert sound.type == "audio/wav"
    samples, rate = soundfile.read(io.BytesIO(sound.data), dtype="float32", always_2d=True)
    assert rate == 8000
    assert np.array_equal(samples.T, value)


@pytest.mark.parametrize(("dtype", "full", "silence"), [("i2", 2**15, 0), ("i4", 2**31, 0), ("u1", 128, 128)])
def test_whole_numbers_have_a_full_scale(dtype, full, silence) -> None:
    value = (np.array([0.0, 0.5, -0.5, -1.0] * 64) * full + silence).astype(dtype)
    samples, _ = soundfile.read(io.BytesIO(AUDIO.detail(value, FACTS)[0].data))
    assert samples.tolist()[:4] == [0.0, 0.5, -0.5, -1.0]


def test_length_rate_and_level_are_told() -> None:
    square = np.where(np.arange(8000) % 100 < 50, 0.1, -0.1).astype(np.float32)
    lines = AUDIO.lines(square, FACTS)
    assert lines[0] == "1 channel, 1.0 s at 8,000 Hz"
    assert lines[-1] == "peak -20.0 dB, level -20.0 dB of full scale"
    unknown = AUDIO.lines(square, Facts(field="audio"))
    assert unknown[0] == "1 channel, 0.5 s at 16,000 Hz (assumed: no rate is on record)"


def test_picture_shows_envelope_and_tone(read_pixels) -> None:
    value = np.concatenate([np.zeros(4000), tone()[0]])
    shown = read_pixels(AUDIO.thumbnail(value, FACTS)).astype(int).sum(axis=2)
    assert shown.shape == (96, 192)
    left, right = shown[:, :90], shown[:, 102:]
    assert right[:32].mean() > 2 * left[:32].mean()  # the envelope
    assert right[32:].mean() > left[32:].mean() + 20  # the spectrogram


def test_long_sound_says_how_much_of_it_is_played() -> None:
    value = np.broadcast_to(np.float32(0.5), (2, 10**9))
    assert AUDIO.lines(value, FACTS)[-1] == "the first 17:29 min are played and drawn"


PLANTED = {
    "nan": np.where(np.arange(4000) == 5, np.nan, tone()),
    "infinite": np.where(np.arange(4000) == 5, np.inf, tone()),
    "silent": np.zeros(4000, np.int16),
    "clipped": np.clip(tone(level=2.0), -1, 1),
    "constant": np.full((1, 4000), 0.5, np.float32),
    "not_scaled": tone(level=12_000.0),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_marked(name) -> None:
    assert [one.name for one in AUDIO.marks(PLANTED[name], FACTS)] == [name]


CLEAN = {
    "a tone": tone(),
    "a loud tone": tone(level=0.999),
    "a normalised tone": tone(level=1.5),
    "a faint tone": (tone(level=0.01) * 2**15).astype(np.int16),
}


@pytest.mark.parametrize("name", CLEAN)
def test_sound_one_has_no_mark(name) -> None:
    assert AUDIO.marks(CLEAN[name], FACTS) == ()


def test_samples_in_rows_at_the_top_are_counted() -> None:
    value = tone()
    value[0, 100:110] = 1.0
    value[0, 200:210] = -1.0
    (found,) = AUDIO.marks(value, FACTS)
    assert found.text == "20 samples stand in runs at the largest value"


@pytest.mark.parametrize("shape", [(80, 20), (3, 16, 16), (0,), (32, 4000)])
def test_other_shapes_are_no_sound(shape) -> None:
    assert not AUDIO.fits(np.zeros(shape, np.float32), FACTS)
