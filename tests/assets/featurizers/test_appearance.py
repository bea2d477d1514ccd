"""Appearance vectors against altered copies of generated and real photos."""

import hashlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from assets.featurizers import make as featurizer
from assets.featurizers.appearance import WIDTH, appearance

Array = np.ndarray[Any, np.dtype[Any]]

N_PHOTOS = 60


def photo(seed: int) -> Image.Image:
    """Return coloured discs and bars on a shaded ground, 200 x 150 px."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:150, :200]
    shade = rng.uniform(-0.4, 0.4, 2)
    pixels = rng.uniform(40, 200, 3) + (shade[0] * (y - 75) + shade[1] * (x - 100))[:, :, None]
    for _ in range(rng.integers(4, 9)):
        top = rng.uniform(10, 140)
        start = rng.uniform(10, 190)
        angle = rng.uniform(0, np.pi)
        along = (x - start) * np.cos(angle) + (y - top) * np.sin(angle)
        across = (y - top) * np.cos(angle) - (x - start) * np.sin(angle)
        inside = np.hypot(along / rng.uniform(10, 50), across / rng.uniform(8, 30)) < 1
        pixels[inside] = rng.uniform(0, 255, 3)
    pixels += rng.normal(0, 4, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def crop(image: Image.Image, share: float, seed: int) -> Image.Image:
    width = round(image.width * share)
    height = round(image.height * share)
    rng = np.random.default_rng(seed)
    start = int(rng.integers(image.width - width + 1))
    top = int(rng.integers(image.height - height + 1))
    return image.crop((start, top, start + width, top + height))


def recompress(image: Image.Image, seed: int) -> Image.Image:
    sink = io.BytesIO()
    image.resize((image.width // 2, image.height // 2)).save(sink, "JPEG", quality=40)
    return Image.open(sink).convert("RGB")


ALTERED = {
    "crop of 85 %": (lambda image, seed: crop(image, 0.85, seed), 0.95),
    "crop of 70 %": (lambda image, seed: crop(image, 0.7, seed), 0.7),
    "gray": (lambda image, seed: image.convert("L").convert("RGB"), 0.9),
    "mirrored": (lambda image, seed: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 0.85),
    "recompressed": (recompress, 0.98),
    "brighter": (lambda image, seed: ImageEnhance.Brightness(image).enhance(1.35), 0.98),
    "darker": (lambda image, seed: ImageEnhance.Brightness(image).enhance(0.6), 0.98),
}


@pytest.fixture(scope="module")
def originals() -> list[Image.Image]:
    return [photo(seed) for seed in range(N_PHOTOS)]


@pytest.mark.parametrize("change", ALTERED)
def test_altered_copy_finds_its_original_first(originals: list[Image.Image], change: str) -> None:
    alter, bound = ALTERED[change]
    stored = vectors(originals)
    queries = vectors([alter(image, seed) for seed, image in enumerate(originals)])
    unrelated = stored @ stored.T - np.eye(N_PHOTOS)
    assert abs(unrelated.mean()) < 0.4
    first = (queries @ stored.T).argmax(axis=1)
    assert np.mean(first == np.arange(N_PHOTOS)) >= bound, first


def vectors(images: list[Image.Image]) -> Array:
    return np.stack([appearance(np.asarray(image)) for image in images]).astype(np.float16).astype(np.float64)


def test_vector_has_length_1_even_of_one_colour(make: Any) -> None:
    for pixels in (
        np.zeros((3, 5, 3), np.uint8),
        np.full((64, 64, 3), 255, np.uint8),
        np.full((1, 400, 3), (200, 20, 20), np.uint8),
        make.scene(1),
    ):
        vector = appearance(pixels)
        assert vector.shape == (WIDTH,) == (320,)
        assert np.sqrt(np.square(vector).sum()) == pytest.approx(1, abs=1e-12)
    stored = featurizer("appearance")("image", {"jpg": make.jpeg(make.scene(1))}).fields["appearance.npy"]
    assert (stored.dtype, stored.shape) == (np.float16, (320,))


def test_clip_is_the_sum_of_its_first_middle_and_last_frame(make: Any) -> None:
    pictures = [make.scene(seed) for seed in range(5)]
    clip = featurizer("appearance")("video", {"mp4": make.mp4(pictures, crf=4)}).fields["appearance.npy"]
    expected = sum(appearance(pictures[number]) for number in (0, 2, 4))
    assert clip.astype(np.float64) @ expected / np.linalg.norm(expected) > 0.99
    still = featurizer("appearance")("video", {"mp4": make.mp4(pictures[:1], crf=4)}).fields["appearance.npy"]
    assert still.astype(np.float64) @ appearance(pictures[0]) > 0.99


def test_vector_is_the_same_on_every_machine() -> None:
    """Another digest here needs another `code`: stored vectors would no longer compare."""
    y, x = np.mgrid[:96, :96]
    pixels = np.stack([y * 5 % 256, x * 3 % 256, (x * y) % 256], axis=-1).astype(np.uint8)
    stored = appearance(pixels).astype("<f2").tobytes()
    assert (
        hashlib.sha256(stored).hexdigest()
        == "04d45a5a10859fdd730a61294b1260be5c178c1bf50bec3f53107a4522905c31"
    )
