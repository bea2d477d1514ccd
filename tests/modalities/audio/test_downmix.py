"""Which channels come out, with which coefficients, and never too loud."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.modalities.audio.downmix import CHANNELS, UnknownLayout, channel_mix
from tests.refusals import refusal

LAYOUTS = {
    "mono": ("FC",),
    "stereo": ("FL", "FR"),
    "2.1": ("FL", "FR", "LFE"),
    "4.0": ("FL", "FR", "FC", "BC"),
    "quad": ("FL", "FR", "BL", "BR"),
    "5.1": ("FL", "FR", "FC", "LFE", "BL", "BR"),
    "5.1(side)": ("FL", "FR", "FC", "LFE", "SL", "SR"),
    "7.1": ("FL", "FR", "FC", "LFE", "BL", "BR", "SL", "SR"),
}
HALF = 0.5**0.5


def rows(layout: str, wanted: str) -> tuple[np.ndarray, float]:
    """(coefficients before they were lowered, gain in dB)"""
    mix = channel_mix(LAYOUTS[layout], layout, wanted)  # type: ignore[arg-type]
    return np.array(mix.matrix) / 10 ** (mix.gain_db / 20), mix.gain_db


def test_coefficients_are_those_of_bs_775() -> None:
    stereo, gain_db = rows("5.1(side)", "stereo")
    assert np.allclose(stereo, [[1, 0, HALF, 0, HALF, 0], [0, 1, HALF, 0, 0, HALF]])
    assert gain_db == pytest.approx(-20 * np.log10(1 + 2 * HALF))
    mono, gain_db = rows("5.1", "mono")
    assert np.allclose(mono, [[HALF, HALF, 1, 0, 0.5, 0.5]])
    assert gain_db == pytest.approx(-20 * np.log10(2 + 2 * HALF))
    assert np.allclose(rows("stereo", "mono")[0], [[HALF, HALF]])
    assert channel_mix(("FL", "FR"), "stereo", "mono").matrix == pytest.approx(np.full((1, 2), 0.5))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wanted", CHANNELS)
def test_no_input_comes_out_louder_than_full_scale(layout: str, wanted: str) -> None:
    mix = channel_mix(LAYOUTS[layout], layout, wanted)  # type: ignore[arg-type]
    n = len(LAYOUTS[layout])
    worst = np.array([[1.0 if sign >> channel & 1 else -1.0 for sign in range(2**n)] for channel in range(n)])
    found = mix(worst.astype(np.float32))
    assert np.abs(found).max() <= 1 + 1e-6
    assert len(found) == {"mono": 1, "first": 1, "stereo": 2, "keep": n}[wanted]
    if mix.gain_db and "LFE" not in LAYOUTS[layout]:  # and no more is taken away than that
        assert np.abs(found).max() > 0.999
    assert bool(mix.name) == (mix.matrix is not None)


def test_one_channel_becomes_two_equal_ones_and_the_first_is_the_first() -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (2, 100)).astype(np.float32)
    assert np.array_equal(channel_mix(("FC",), "mono", "stereo")(noise[:1]), np.tile(noise[:1], (2, 1)))
    assert np.array_equal(channel_mix(("FL", "FR"), "stereo", "first")(noise), noise[:1])
    assert channel_mix(("FL", "FR"), "stereo", "keep")(noise) is noise


def test_three_channels_without_names_are_a_guess() -> None:
    assert channel_mix(("NONE",), "1 channels", "mono").matrix is None
    assert channel_mix(("NONE", "NONE"), "2 channels", "mono").matrix is not None
    for wanted in ("mono", "stereo"):
        with refusal(UnknownLayout, what="4 channels", given=["NONE"], accepted=["keep", "first"]):
            channel_mix(("NONE",) * 4, "4 channels", wanted)
    assert channel_mix(("NONE",) * 4, "4 channels", "first").matrix is not None
    ambisonic = ("AMBI0", "AMBI1", "AMBI2", "AMBI3")
    with refusal(UnknownLayout, what="ambisonic 1", given=list(ambisonic)):
        channel_mix(ambisonic, "ambisonic 1", "mono")
    with refusal(UnknownLayout, what="2 channels", given=["LFE"]):
        channel_mix(("LFE", "LFE"), "2 channels", "mono")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(CHANNELS), st.integers(0, 50), st.integers(0, 9))
def test_mix_is_its_matrix(layout: str, wanted: str, n: int, seed: int) -> None:
    mix = channel_mix(LAYOUTS[layout], layout, wanted)  # type: ignore[arg-type]
    samples = np.random.default_rng(seed).uniform(-1, 1, (len(LAYOUTS[layout]), n)).astype(np.float32)
    matrix = np.eye(len(samples)) if mix.matrix is None else np.array(mix.matrix)
    assert np.allclose(mix(samples), matrix @ samples, atol=1e-6)
