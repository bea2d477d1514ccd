"""Perceptual hashes: copies lie near, other pictures far."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assets.featurizers import make as featurizer

NEAR, FAR = 8, 12


def hashes(kind: str, data: bytes) -> np.ndarray:
    return featurizer("phash")(kind, {"jpg": data, "mp4": data}).fields["phash.npy"]


def distances(one: np.ndarray, other: np.ndarray) -> list[int]:
    return [int(bits) for bits in np.bitwise_count(one ^ other)]


def test_its_shape_and_its_column(make: Any) -> None:
    for kind, data, n in (
        ("image", make.jpeg(make.scene(1)), 1),
        ("video", make.mp4([make.scene(seed) for seed in range(5)]), 3),
        ("video", make.mp4([make.scene(1), make.scene(2)]), 3),
        ("video", make.mp4([make.scene(1)]), 3),
    ):
        features = featurizer("phash")(kind, {"jpg": data, "mp4": data})
        values = features.fields["phash.npy"]
        assert (values.dtype, values.shape) == (np.uint64, (n,))
        assert features.columns["phash"] == "-".join(f"{int(value):016x}" for value in values)
        assert features.columns["phash_flat"] is False
        assert features.columns["phash_flat_mask"] == 0
        assert len(features.columns["phash_mirrored"]) == len(features.columns["phash"])


@pytest.mark.parametrize("quality", [20, 50, 85])
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7])
def test_recompressed_copy_has_a_small_distance(make: Any, quality: int, scale: float) -> None:
    for seed in range(12):
        pixels = make.scene(seed, 240, 320)
        copy = Image.fromarray(pixels).resize((round(320 * scale), round(240 * scale)))
        (bits,) = distances(
            hashes("image", make.jpeg(pixels, 95)), hashes("image", make.jpeg(np.asarray(copy), quality))
        )
        assert bits <= NEAR


def test_other_pictures_lie_far(make: Any) -> None:
    every = [hashes("image", make.jpeg(make.scene(seed))) for seed in range(24)]
    assert min(distances(one, other)[0] for one, other in combinations(every, 2)) >= FAR


def test_reencoded_clip_lies_near_and_its_frames_are_start_middle_and_end(make: Any) -> None:
    scenes = [make.scene(seed, 128, 192) for seed in (1, 1, 2, 2, 3)]
    fine, coarse = hashes("video", make.mp4(scenes, crf=12)), hashes("video", make.mp4(scenes, crf=36))
    assert max(distances(fine, coarse)) <= NEAR
    singles = np.concatenate([hashes("image", make.jpeg(make.scene(seed, 128, 192))) for seed in (1, 2, 3)])
    assert max(distances(fine, singles)) <= NEAR
    assert min(distances(fine, np.roll(singles, 1))) >= FAR


@pytest.mark.parametrize("level", [0, 16, 200])
def test_flat_picture_is_marked(make: Any, level: int) -> None:
    rng = np.random.default_rng(level)
    pixels = np.uint8(np.clip(rng.normal(level, 1, (96, 128, 3)), 0, 255))
    assert featurizer("phash")("image", {"jpg": make.jpeg(pixels)}).columns["phash_flat"] is True
    clip = make.mp4([pixels, pixels, make.scene(1, 96, 128)])
    assert featurizer("phash")("video", {"mp4": clip}).columns["phash_flat"] is False
    assert featurizer("phash")("video", {"mp4": clip}).columns["phash_flat_mask"] == 0b011


def test_mirrored_copy_is_found_by_its_other_hash(make: Any) -> None:
    for seed in range(12):
        pixels = make.scene(seed, 240, 320)
        copy = featurizer("phash")("image", {"jpg": make.jpeg(pixels[:, ::-1], 50)}).columns
        original = hashes("image", make.jpeg(pixels, 95))
        assert distances(original, as_hashes(copy["phash_mirrored"]))[0] <= NEAR
        assert distances(original, as_hashes(copy["phash"]))[0] >= FAR


def as_hashes(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split("-")], np.uint64)


@pytest.mark.parametrize(
    "pixels",
    [
        np.tile(np.linspace(20, 230, 128, dtype=np.uint8)[None, :, None], (96, 1, 3)),
        np.tile(np.linspace(20, 230, 96, dtype=np.uint8)[:, None, None], (1, 128, 3)),
        np.tile(np.repeat(np.uint8([30, 220]), 64)[None, :, None], (96, 1, 3)),
    ],
    ids=["gradient across", "gradient down", "two halves"],
)
def test_drawing_of_two_tones_has_a_hash_of_noise_and_is_marked(make: Any, pixels: np.ndarray) -> None:
    """Its standard deviation is that of a photo; all but a few of its frequencies are nought."""
    assert pixels.std() > 50
    assert featurizer("phash")("image", {"jpg": make.jpeg(pixels)}).columns["phash_flat"] is True
