"""Picture statistics against what is known of synthesised pictures, and against SciPy."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from assets.featurizers import make as featurizer
from assets.featurizers.picture import laplacian_variance, luma_of
from assets.media.unit import Unusable
from tests.refusals import refusal
from tests.servers.processes import python


def flat(*rgb: int, height: int = 72, width: int = 128) -> np.ndarray:
    return np.full((height, width, 3), rgb, np.uint8)


def image(make: Any, pixels: np.ndarray, quality: int = 95) -> dict[str, Any]:
    return dict(featurizer("picture")("image", {"jpg": make.jpeg(pixels, quality)}).columns)


def video(make: Any, pictures: list[np.ndarray], **options: Any) -> dict[str, Any]:
    return dict(featurizer("picture")("video", {"mp4": make.mp4(pictures, **options)}).columns)


@pytest.mark.parametrize("level", [0, 51, 128, 255])
def test_luma_of_gray(make: Any, level: int) -> None:
    columns = image(make, flat(level, level, level))
    assert columns["luma_mean_ratio"] == pytest.approx(level / 255, abs=0.003)
    assert columns["luma_std_ratio"] == columns["chroma_mean_ratio"] == 0
    assert columns["luma_contrast_ratio"] == columns["sharpness_laplacian_var"] == 0


LUMA_CRC = """
import zlib
import numpy as np
from assets.featurizers.picture import luma_of
from assets.media.video.colour import hlg_light

pixels = np.random.default_rng(1).integers(0, 256, (64, 65, 3), np.uint8)
scene = pixels / np.float32(255)
print(zlib.crc32(luma_of(pixels).tobytes()), zlib.crc32(hlg_light(scene).tobytes()))
"""


def test_luma_has_the_same_bits_with_the_kernels_of_every_processor() -> None:
    kernels = ["Nehalem", "SkylakeX" if "avx512bw" in Path("/proc/cpuinfo").read_text() else "Haswell"]
    crcs = [
        python("-c", LUMA_CRC, check=True, env={**os.environ, "OPENBLAS_CORETYPE": kernel}).stdout
        for kernel in kernels
    ]
    assert crcs[0] == crcs[1]


def test_luma_of_the_primaries() -> None:
    assert luma_of(np.eye(3, dtype=np.uint8) * 255).tolist() == pytest.approx([0.299, 0.587, 0.114])


@pytest.mark.parametrize("colour_range", ["tv", "pc"])
def test_black_and_white_of_a_clip_are_0_and_1_whatever_its_range(make: Any, colour_range: str) -> None:
    for level, expected in ((0, 0.0), (255, 1.0), (100, 100 / 255)):
        columns = video(make, [flat(level, level, level)] * 5, colour_range=colour_range)
        assert columns["luma_mean_ratio"] == pytest.approx(expected, abs=0.006)


def test_half_black_half_white(make: Any) -> None:
    pixels = flat(0, 0, 0)
    pixels[:, 64:] = 255
    for columns in (image(make, pixels), video(make, [pixels] * 3)):
        assert columns["luma_mean_ratio"] == pytest.approx(0.5, abs=0.01)
        assert columns["luma_std_ratio"] == pytest.approx(0.5, abs=0.01)
        assert columns["luma_contrast_ratio"] == pytest.approx(1, abs=0.01)


def test_chroma(make: Any) -> None:
    assert image(make, flat(255, 0, 0))["chroma_mean_ratio"] == pytest.approx(1, abs=0.02)
    assert image(make, flat(120, 60, 60))["chroma_mean_ratio"] == pytest.approx(60 / 255, abs=0.02)


def test_laplacian_is_scipys() -> None:
    luma = np.random.default_rng(0).random((40, 30), np.float32)
    expected = ndimage.laplace(luma.astype(np.float64) * 255)[1:-1, 1:-1].var()
    assert laplacian_variance(luma) == pytest.approx(expected, rel=1e-5)
    assert laplacian_variance(luma[:2]) is None


def test_blur_lowers_sharpness_and_nothing_else(make: Any) -> None:
    rng = np.random.default_rng(3)
    sharp = np.uint8(np.clip(make.scene(5, 240, 320) + rng.normal(0, 20, (240, 320, 1)), 0, 255))
    blurred = np.uint8(np.rint(ndimage.gaussian_filter(sharp.astype(float), (2, 2, 0))))
    one, other = image(make, sharp), image(make, blurred)
    assert other["sharpness_laplacian_var"] < one["sharpness_laplacian_var"] / 20
    assert other["luma_mean_ratio"] == pytest.approx(one["luma_mean_ratio"], abs=0.01)
    assert image(make, flat(9, 9, 9, height=2, width=2))["sharpness_laplacian_var"] is None


def test_sharpness_of_a_large_picture_is_that_of_its_256_px_copy(make: Any) -> None:
    noise = ndimage.gaussian_filter(np.random.default_rng(6).normal(0, 90, (768, 960, 1)), (1.5, 1.5, 0))
    large = np.uint8(np.clip(make.scene(6, 768, 960) + noise, 0, 255))
    small = np.asarray(Image.fromarray(large).resize((320, 256), Image.Resampling.LANCZOS))
    one, other = image(make, small), image(make, large)
    assert other["sharpness_laplacian_var"] == pytest.approx(one["sharpness_laplacian_var"], rel=0.1)
    stored = laplacian_variance(luma_of(large))
    assert stored is not None
    assert other["sharpness_laplacian_var"] > 1.5 * stored  # so the scale does matter


def test_motion_black_and_frozen(make: Any) -> None:
    black, scene = flat(0, 0, 0, height=120, width=160), make.scene(7)
    columns = video(make, [black] * 5 + [scene] * 15)
    assert columns["black_ratio"] == 5 / 20
    assert columns["frozen_ratio"] >= 14 / 19  # a new keyframe may change a still picture a little
    assert columns["frozen_ratio"] <= 18 / 19
    cut = np.abs(luma_of(scene)).mean()
    assert columns["motion_mean_ratio"] == pytest.approx(cut / 19, abs=0.002)
    moving = video(make, [make.scene(7, shift=6 * number) for number in range(15)])
    assert moving["frozen_ratio"] == moving["black_ratio"] == 0
    assert moving["motion_mean_ratio"] > 0.02


def test_motion_is_what_numpy_says_of_the_frames(make: Any) -> None:
    levels = [40, 90, 60, 200]
    columns = video(make, [flat(level, level, level) for level in levels], crf=1)
    expected = np.abs(np.diff(levels)).mean() / 255
    assert columns["motion_mean_ratio"] == pytest.approx(expected, abs=0.006)


def test_single_frame_does_not_move(make: Any) -> None:
    columns = video(make, [make.scene(1)])
    assert columns["motion_mean_ratio"] is None
    assert columns["frozen_ratio"] is None
    assert columns["black_ratio"] == 0


def test_transparency_is_seen_on_white(make: Any) -> None:
    sink = io.BytesIO()
    Image.fromarray(np.zeros((20, 20, 4), np.uint8)).save(sink, "PNG")
    columns = featurizer("picture", image="png")("image", {"png": sink.getvalue()}).columns
    assert columns["luma_mean_ratio"] == 1


def test_too_many_frames_are_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.featurizers.picture.MAX_FRAMES", 4)
    with refusal(Unusable, what="too_long", given=5, accepted=4):
        video(make, [flat(0, 0, 0)] * 5)
