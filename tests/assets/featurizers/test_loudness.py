"""Loudness against the levels of known signals and an own computation by ITU-R BS.1770-4 with SciPy."""

import struct
from typing import Any

import numpy as np
import pytest
import scipy

from assets.featurizers import make as featurizer
from assets.media.unit import Unusable
from loader.errors import InvalidSpec
from loader.modalities.container_parts import riff_chunk
from tests.refusals import refusal


def loudness_columns(make: Any, samples: np.ndarray, rate_hz: int = 48_000, **options: Any) -> dict[str, Any]:
    bits = options.pop("bits", 24)
    data = make.flac(np.atleast_2d(samples), rate_hz, bits)
    return dict(featurizer("loudness", **options)("audio", {"flac": data}).columns)


def bs1770(samples: np.ndarray) -> float:
    """Integrated LUFS of [channels, samples] at 48 kHz, weight 1 each: BS.1770-4, annex 1, tables 1 and 2."""
    shelf = [1.53512485958697, -2.69169618940638, 1.19839281085285], [1, -1.69065929318241, 0.73248077421585]
    highpass = [1.0, -2.0, 1.0], [1, -1.99004745483398, 0.99007225036621]
    weighted = scipy.signal.lfilter(*highpass, scipy.signal.lfilter(*shelf, samples, axis=1), axis=1)
    blocks = np.array(
        [np.square(weighted[:, s : s + 19_200]).mean(axis=1).sum() for s in _starts(samples.shape[1])]
    )
    loud = blocks[-0.691 + 10 * np.log10(blocks) > -70]
    gate = -0.691 + 10 * np.log10(loud.mean()) - 10
    return float(-0.691 + 10 * np.log10(loud[-0.691 + 10 * np.log10(loud) > gate].mean()))


def _starts(n_samples: int) -> range:
    return range(0, n_samples - 19_200 + 1, 4_800)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000, 96_000])
def test_sine_of_1_khz_has_its_known_loudness(make: Any, rate_hz: int) -> None:
    # BS.1770-4: a 997 Hz sine at 0 dBFS in one channel reads -3.01 LKFS; on two channels 3.01 more.
    tone = make.sine(10 ** (-20 / 20), 3.0, rate_hz)
    mono, stereo = (
        loudness_columns(make, tone, rate_hz),
        loudness_columns(make, np.stack([tone, tone]), rate_hz),
    )
    assert mono["loudness_lufs"] == pytest.approx(-23.0, abs=0.1)
    assert stereo["loudness_lufs"] == pytest.approx(-20.0, abs=0.1)
    for columns in (mono, stereo):
        assert columns["true_peak_dbtp"] == pytest.approx(-20, abs=0.3)  # it begins and ends abruptly
        assert (columns["silence_ratio"], columns["clipped_ratio"]) == (0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_noise_in_bursts_is_as_loud_as_by_the_standard(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    level = np.repeat(10 ** rng.uniform(-4.5, -0.8, 10), 24_000)  # gates have to close on the quiet half
    noise = rng.normal(0, 0.3, (2, level.size)) * level
    noise = np.clip(scipy.signal.lfilter([0.2], [1, -0.8], noise), -1, 1)
    assert loudness_columns(make, noise)["loudness_lufs"] == pytest.approx(bs1770(noise), abs=0.1)


def test_true_peak_lies_between_the_samples(make: Any) -> None:
    n = np.arange(48_000)
    tone = (
        0.5 * np.sin(2 * np.pi * n / 4 + np.pi / 4) * np.hanning(n.size)
    )  # every sample 3 dB below the peak
    columns = loudness_columns(make, tone)
    oversampled = np.abs(scipy.signal.resample_poly(tone, 16, 1)).max()
    assert columns["true_peak_dbtp"] == pytest.approx(20 * np.log10(oversampled), abs=0.15)
    assert columns["true_peak_dbtp"] == pytest.approx(-6.02, abs=0.15)


@pytest.mark.parametrize("level_db", [0, -20, -50, -80])
def test_peak_of_a_quiet_sound_is_as_exact_as_that_of_a_loud_one(make: Any, level_db: int) -> None:
    tone = make.sine(1.0, 1.0, hz=997) * np.hanning(48_000) * 10 ** (level_db / 20)
    assert loudness_columns(make, tone)["true_peak_dbtp"] == pytest.approx(level_db, abs=0.1)


@pytest.mark.parametrize("place", [0, 30_000, -600, -1])
def test_click_is_found_wherever_it_is(make: Any, place: int) -> None:
    click = np.zeros(49_234)
    click[place] = 0.5
    assert loudness_columns(make, click)["true_peak_dbtp"] == pytest.approx(-6.02, abs=0.3)


def test_silence_and_what_is_too_short(make: Any) -> None:
    silent = loudness_columns(make, np.zeros(48_000))
    assert (silent["loudness_lufs"], silent["true_peak_dbtp"]) == (None, None)
    assert (silent["silence_ratio"], silent["clipped_ratio"]) == (1, 0)
    short = loudness_columns(make, make.sine(0.5, 0.05))
    assert short["loudness_lufs"] is None
    assert short["true_peak_dbtp"] == pytest.approx(-6.02, abs=0.3)


def test_silence_ratio(make: Any) -> None:
    half = np.concatenate([make.sine(0.1, 1.0), np.zeros(48_000)])
    assert loudness_columns(make, half)["silence_ratio"] == 0.5
    quiet = make.sine(10 ** (-50 / 20), 1.0)  # mean square at -53 dBFS
    assert loudness_columns(make, quiet)["silence_ratio"] == 0
    assert loudness_columns(make, quiet, silence_dbfs=-52.0)["silence_ratio"] == 1
    one_ear = np.stack([make.sine(0.1, 1.0), np.zeros(48_000)])
    assert loudness_columns(make, one_ear)["silence_ratio"] == 0


@pytest.mark.parametrize("bits", [16, 24])
def test_clipping(make: Any, bits: int) -> None:
    tone = make.sine(1.6, 1.0, hz=200)
    columns = loudness_columns(make, np.clip(tone, -1, 1), bits=bits)
    assert columns["clipped_ratio"] == pytest.approx((np.abs(tone) >= 1).mean(), abs=0.002)
    assert loudness_columns(make, make.sine(0.99, 1.0, hz=200), bits=bits)["clipped_ratio"] == 0
    single = np.zeros((2, 48_000))
    single[0, ::100] = single[1, 1::2] = 1  # full scale, never twice in a row
    assert loudness_columns(make, single, bits=bits)["clipped_ratio"] == 0
    single[0, 100:103] = 1
    assert loudness_columns(make, single, bits=bits)["clipped_ratio"] == pytest.approx(3 / 96_000, abs=1e-6)


def test_rear_channels_of_5_1_count_more_and_its_lfe_does_not(make: Any) -> None:
    tone = make.sine(0.1, 2.0)
    in_one = []
    for channel in range(6):
        samples = np.zeros((6, tone.size))
        samples[channel] = tone
        in_one.append(loudness_columns(make, samples)["loudness_lufs"])
    front, centre, lfe, rear = in_one[0], in_one[2], in_one[3], in_one[4]
    assert front == pytest.approx(-23, abs=0.1)
    assert centre == pytest.approx(-23, abs=0.1)
    assert lfe is None
    assert rear == pytest.approx(-21.5, abs=0.1)


def test_clip_with_and_without_sound(make: Any) -> None:
    loudness = featurizer("loudness", video="flac")
    assert loudness.kinds == {"audio", "video"}
    data = make.flac(make.sine(0.1, 1.0)[None])
    heard = loudness("video", {"mp4": b"", "flac": data}).columns
    mute = loudness("video", {"mp4": b""}).columns
    assert heard == loudness("audio", {"flac": data}).columns
    assert mute.keys() == heard.keys()
    assert set(mute.values()) == {None}


def float_wav(samples: np.ndarray, rate_hz: int) -> bytes:
    form = struct.pack("<HHIIHH", 3, 1, rate_hz, rate_hz * 4, 4, 32)
    data = riff_chunk(b"data", samples.astype("<f4").tobytes())
    return riff_chunk(b"RIFF", b"WAVE" + riff_chunk(b"fmt ", form) + data)


@pytest.mark.parametrize(
    ("value", "rate_hz", "code"),
    [(np.nan, 16_000, "not_finite"), (np.inf, 16_000, "not_finite"), (0.5, 5, "unmeasurable")],
)
def test_what_no_meter_can_read_is_rejected(value: float, rate_hz: int, code: str) -> None:
    samples = np.full(2_000, 0.1)
    samples[7] = value
    with pytest.raises(Unusable) as refused:
        featurizer("loudness", audio="wav")("audio", {"wav": float_wav(samples, rate_hz)})
    assert refused.value.code == code


@pytest.mark.parametrize("value", [3.0, 1e30, 1e-40])
def test_float_samples_of_any_size_are_measured(value: float) -> None:
    samples = np.full(20_000, 0.0)
    samples[9_000:9_100] = value
    columns = featurizer("loudness", audio="wav")("audio", {"wav": float_wav(samples, 16_000)}).columns
    assert columns["true_peak_dbtp"] >= 20 * np.log10(value) - 0.1
    assert columns["clipped_ratio"] == (100 / 20_000 if value > 1 else 0)


@pytest.mark.parametrize("silence_dbfs", [0, 3, -300])
def test_threshold_of_silence_that_is_none(silence_dbfs: float) -> None:
    with refusal(InvalidSpec, what="silence_dbfs", given=silence_dbfs):
        featurizer("loudness", silence_dbfs=silence_dbfs)
