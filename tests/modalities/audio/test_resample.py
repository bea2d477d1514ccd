"""The resampler: how flat it passes, how well it stops, and that nothing drifts or depends on the blocks."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.modalities.audio.resample import Resampler, resample, source_range
from tests.servers.processes import python

PAIRS = [(44_100, 16_000), (48_000, 16_000), (192_000, 16_000), (44_100, 48_000), (8_000, 16_000)]


def tone(hz: float, rate_hz: int, seconds: float = 1.0, phase: float = 0.4) -> np.ndarray:
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * hz * times + phase)).astype(np.float32)[None]


def middle_db(samples: np.ndarray) -> float:
    """Level of the middle half against a sine of amplitude 0.5."""
    n = samples.shape[1]
    power = np.square(samples[0, n // 4 : 3 * n // 4].astype(float)).mean()
    return float(10 * np.log10(max(power, 1e-20) / 0.125))


@pytest.mark.parametrize(("source_hz", "target_hz"), PAIRS)
def test_what_fits_passes_and_what_does_not_is_stopped(source_hz: int, target_hz: int) -> None:
    nyquist = min(source_hz, target_hz) / 2
    for share in (0.05, 0.5, 0.8, 0.93):
        found = resample(tone(share * nyquist, source_hz), source_hz, target_hz)
        assert middle_db(found) == pytest.approx(0, abs=0.2), share
    if target_hz < source_hz:
        for share, at_most in ((1.0, -58), (1.02, -100), (1.2, -100), (1.9, -100)):
            if share * nyquist < source_hz / 2:
                found = resample(tone(share * nyquist, source_hz), source_hz, target_hz)
                assert middle_db(found) < at_most, share


@pytest.mark.parametrize(("source_hz", "target_hz"), PAIRS)
def test_every_sample_is_where_it_belongs(source_hz: int, target_hz: int) -> None:
    """Against the tone itself at the new rate, at the beginning of the sound and after 20 s."""
    hz = 0.31 * min(source_hz, target_hz)
    found = resample(tone(hz, source_hz, 20.0), source_hz, target_hz)[0]
    exact = tone(hz, target_hz, 20.0)[0]
    assert found.shape == exact.shape
    for start in (0.1, 19.8):
        part = slice(round(start * target_hz), round((start + 0.1) * target_hz))
        assert np.abs(found[part] - exact[part]).max() < 2e-5


@pytest.mark.parametrize(("source_hz", "target_hz"), PAIRS)
def test_outside_the_sound_there_is_silence(source_hz: int, target_hz: int) -> None:
    """A click at either end is what it would be in the midst of silence."""
    for place in (0, source_hz // 10 - 1):
        click = np.zeros((1, source_hz // 10), np.float32)
        click[0, place] = 0.5
        period = source_hz // 100
        wide = np.pad(click, ((0, 0), (period * 10, period * 10)))
        found, around = resample(click, source_hz, target_hz), resample(wide, source_hz, target_hz)
        begin = target_hz // 10
        assert np.array_equal(found, around[:, begin : begin + found.shape[1]])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.sampled_from([8_000, 11_025, 22_050, 44_056, 44_100, 48_000]),
    st.sampled_from([8_000, 16_000, 22_050, 44_100]),
    st.integers(1, 12_000),
    st.integers(1, 2),
    st.data(),
)
def test_blocks_and_windows_change_nothing(
    source_hz: int, target_hz: int, n: int, n_channels: int, data: st.DataObject
) -> None:
    noise = np.random.default_rng(n).uniform(-1, 1, (n_channels, n)).astype(np.float32)
    whole = resample(noise, source_hz, target_hz)
    assert whole.shape == (n_channels, round(Fraction(n * target_hz, source_hz)))
    resampler = Resampler(source_hz, target_hz, n_channels)
    size = max(data.draw(st.integers(1, n)), n // 50)
    blocks = [noise[:, at : at + size] for at in range(0, n, size)]
    pieces = [piece for block in blocks for piece in resampler.add(block)]
    found = np.concatenate([whole[:, :0], *pieces, *resampler.finish()], axis=1)
    assert np.array_equal(found, whole)
    assert resampler.n_out == whole.shape[1]
    first = data.draw(st.integers(0, whole.shape[1]))
    stop = data.draw(st.integers(first, whole.shape[1]))
    low, high = source_range(first, stop, source_hz, target_hz, n)
    assert low * target_hz % source_hz == 0
    begin = first - low * target_hz // source_hz
    part = resample(noise[:, low:high], source_hz, target_hz)
    assert np.array_equal(part[:, begin : begin + stop - first], whole[:, first:stop])


def test_window_is_as_long_as_what_is_asked_for_and_no_longer() -> None:
    hour = 3600 * 44_100
    low, high = source_range(16_000 * 1800, 16_000 * 1801, 44_100, 16_000, hour)
    assert high - low < 44_100 + 3_000


def test_another_process_makes_the_same_bytes() -> None:
    code = (
        "import hashlib, numpy as np\n"
        "from loader.modalities.audio.resample import resample\n"
        "noise = np.random.default_rng(1).uniform(-1, 1, (2, 50_000)).astype(np.float32)\n"
        "print(hashlib.sha256(resample(noise, 44_100, 16_000).tobytes()).hexdigest())\n"
    )
    told = {python("-c", code, check=True).stdout for _ in range(2)}
    assert len(told) == 1
