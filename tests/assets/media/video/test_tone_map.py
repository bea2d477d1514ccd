"""HDR to SDR: the ITU's formulas against published numbers, and pictures against the same arithmetic in float64."""

import math

import numpy as np
import pytest

from assets.media.video.colour import (
    HLG,
    PQ,
    SDR_WHITE_CD,
    VideoSignal,
    converter,
    eetf,
    hlg_light,
    hlg_scene,
    pq_light,
    pq_signal,
    to_sdr,
)


@pytest.mark.parametrize(
    ("signal", "light_cd"),
    [
        (0.0, 0.0),
        (0.38, 26.0),  # ITU-R BT.2408-7, table 1: grey card
        (0.58, 203.0),  # the same: diffuse white
        (0.5081, 100.0),  # SMPTE ST 2084: the signals of round numbers
        (0.7518, 1000.0),
        (0.9026, 4000.0),
        (1.0, 10_000.0),
    ],
)
def test_pq_is_what_is_published(signal: float, light_cd: float) -> None:
    assert float(pq_light(np.array(signal))) == pytest.approx(light_cd, rel=0.015, abs=1e-9)
    assert float(pq_signal(np.array(light_cd))) == pytest.approx(signal, abs=0.002)


def test_pq_forth_and_back() -> None:
    light = np.geomspace(0.001, 10_000, 200)
    assert pq_light(pq_signal(light)) == pytest.approx(light, rel=1e-9)
    # The formula at its own constants: signal 0.5 by hand, ITU-R BT.2100-2 table 4.
    power = 0.5 ** (1 / 78.84375)
    assert float(pq_light(np.array(0.5))) == pytest.approx(
        10_000 * ((power - 0.8359375) / (18.8515625 - 18.6875 * power)) ** (1 / 0.1593017578125), rel=1e-9
    )


@pytest.mark.parametrize(
    ("signal", "scene"),
    [(0.0, 0.0), (0.5, 1 / 12), (0.25, 1 / 48), (1.0, 1.0), (0.75, 0.26496)],  # BT.2100-2, table 5
)
def test_hlg_scene_light(signal: float, scene: float) -> None:
    assert float(hlg_scene(np.array(signal))) == pytest.approx(scene, abs=1e-5)


@pytest.mark.parametrize(("signal", "light_cd"), [(0.38, 26.0), (0.75, 203.0), (1.0, 1000.0)])
def test_hlg_on_a_display_of_1000_cd(signal: float, light_cd: float) -> None:
    """BT.2408-7, table 1: a grey card is at 38 %, diffuse white at 75 %."""
    grey = np.full((1, 3), signal)
    assert hlg_light(hlg_scene(grey))[0] == pytest.approx([light_cd] * 3, rel=0.02)


def test_hlg_keeps_colours_in_proportion() -> None:
    scene = np.array([[0.6, 0.3, 0.1]])
    light = hlg_light(scene)
    luminance = 0.2627 * 0.6 + 0.6780 * 0.3 + 0.0593 * 0.1
    assert light[0] == pytest.approx(1000 * luminance**0.2 * scene[0])


def test_primaries_are_those_of_bt_2407() -> None:
    """ITU-R BT.2407-0, equation 3."""
    published = [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
    assert converter(9) == pytest.approx(np.array(published), abs=1e-4)
    assert converter(9) @ np.ones(3) == pytest.approx(np.ones(3), abs=1e-5)  # white stays white
    assert converter(12) @ np.ones(3) == pytest.approx(np.ones(3), abs=1e-5)
    assert converter(1) == pytest.approx(np.eye(3), abs=1e-6)


def test_bend() -> None:
    """ITU-R BT.2390-11, 5.4.1, with black at 0: below the knee nothing changes, the peak becomes white."""
    peak = 4000.0
    light = np.linspace(0, peak, 2001)
    found = eetf(light, peak)
    assert found[-1] == pytest.approx(SDR_WHITE_CD, rel=1e-6)
    assert (np.diff(found) > 0).all()
    assert (found <= light + 1e-6).all()
    top, white = float(pq_signal(np.array(peak))), float(pq_signal(np.array(SDR_WHITE_CD)))
    knee_cd = float(pq_light(np.array((1.5 * white / top - 0.5) * top)))
    below = light < knee_cd
    assert below.sum() > 3
    assert found[below] == pytest.approx(light[below], rel=1e-6)
    # One place on the spline by hand: halfway from the knee to the peak.
    knee, high = 1.5 * white / top - 0.5, white / top
    middle = (knee + 1) / 2
    spline = 0.5 * knee + 0.125 * (1 - knee) + 0.5 * high
    assert float(eetf(pq_light(np.array(middle * top)), peak)) == pytest.approx(
        float(pq_light(np.array(spline * top))), rel=1e-6
    )


def test_display_as_bright_as_white_bends_nothing() -> None:
    assert eetf(np.array([10.0, 203.0, 900.0]), 100.0).tolist() == [10.0, 203.0, 203.0]


def encode_bt2020(rgb: np.ndarray, bits: int, full_range: bool) -> np.ndarray:
    """Y'CbCr of BT.2020 at 16 bits as a decoder of `bits` gives it. rgb: R'G'B', 0 to 1."""
    luma = rgb @ [0.2627, 0.6780, 0.0593]
    blue, red = (rgb[..., 2] - luma) / 1.8814, (rgb[..., 0] - luma) / 1.4746
    if full_range:
        top = 2**bits - 1
        planes = [luma * top, blue * top + 2 ** (bits - 1), red * top + 2 ** (bits - 1)]
    else:
        step = 2 ** (bits - 8)
        planes = [(219 * luma + 16) * step, (224 * blue + 128) * step, (224 * red + 128) * step]
    return (np.rint(np.stack(planes, axis=-1)).astype(np.uint16)) << (16 - bits)


def decode_bt2020(samples: np.ndarray, bits: int, full_range: bool) -> np.ndarray:
    """What `encode_bt2020` gave, as R'G'B' in float64: without what rounding to `bits` loses."""
    codes = (samples >> (16 - bits)).astype(float)
    if full_range:
        luma, half = codes[..., 0] / (2**bits - 1), 2 ** (bits - 1)
        blue, red = (codes[..., 1] - half) / (2**bits - 1), (codes[..., 2] - half) / (2**bits - 1)
    else:
        step = 2 ** (bits - 8)
        luma = (codes[..., 0] / step - 16) / 219
        blue, red = (codes[..., 1] / step - 128) / 224, (codes[..., 2] / step - 128) / 224
    first, third = luma + 1.4746 * red, luma + 1.8814 * blue
    second = (luma - 0.2627 * first - 0.0593 * third) / 0.6780
    rgb: np.ndarray = np.clip(np.stack([first, second, third], axis=-1), 0, 1)
    return rgb


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("bits", [10, 12])
@pytest.mark.parametrize("transfer", [PQ, HLG, 1])
def test_pictures_against_the_formulas(transfer: int, bits: int, full_range: bool) -> None:
    rng = np.random.default_rng(transfer + bits)
    rgb = rng.random((32, 32, 3)) * rng.random((32, 32, 1))
    rgb[0, 0], rgb[0, 1] = 0, 1
    samples = encode_bt2020(rgb, bits, full_range)
    signal = VideoSignal(
        matrix=9, primaries=9, transfer=transfer, full_range=full_range, bits=bits, peak_cd=1000
    )
    found = to_sdr(samples, signal) / 65535
    rgb = decode_bt2020(samples, bits, full_range)
    if transfer == PQ:
        light = pq_light(rgb)
    elif transfer == HLG:
        light = hlg_light(hlg_scene(rgb))
    else:
        light = rgb**2.4 * SDR_WHITE_CD
    if transfer in (PQ, HLG):
        brightest = np.maximum(light.max(axis=-1), 1e-9)
        light = light * (eetf(brightest, 1000) / brightest)[..., None]
    linear = np.clip(light / SDR_WHITE_CD @ converter(9).astype(float).T, 0, 1)
    exact = linear ** (1 / 2.4)
    assert np.abs(found - exact)[exact > 0.02].max() < 0.5 / 255
    assert np.abs(found - exact).max() < 4 / 255  # next to black the curve of SDR is steep
    assert found[0, 1] == pytest.approx([1, 1, 1], abs=0.01)


def test_grey_scale_stays_grey_and_keeps_its_order() -> None:
    steps = np.repeat(np.linspace(0, 1, 64)[:, None, None], 3, axis=2)
    for transfer in (PQ, HLG):
        signal = VideoSignal(matrix=9, primaries=9, transfer=transfer, full_range=False, bits=10)
        found = to_sdr(encode_bt2020(steps, 10, False), signal).astype(int)[:, 0]
        assert (np.diff(found[:, 1]) >= 0).all()
        assert np.ptp(found, axis=1).max() < 0.01 * 65535


def test_where_diffuse_white_comes_to_lie() -> None:
    """203 cd/m² is bent to 159: a little above 90 % of SDR's signal, and highlights have the rest."""
    signal = VideoSignal(matrix=9, primaries=9, transfer=PQ, full_range=False, bits=10)
    white = np.full((1, 1, 3), float(pq_signal(np.array(203.0))))
    (found,) = to_sdr(encode_bt2020(white, 10, False), signal)[0] / 65535
    assert found == pytest.approx([math.pow(159.04 / 203, 1 / 2.4)] * 3, abs=0.004)
