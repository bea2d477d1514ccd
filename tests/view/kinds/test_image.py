"""Pictures: the PNG holds the tensor's pixels, and what a person would not see is marked."""

import numpy as np
import pytest
import torch

from penstock.view.kinds import Facts, find_kind
from penstock.view.kinds.image import IMAGE
from tests.view.kinds.values import photo

FACTS = Facts(field="jpg")


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("first", [False, True], ids=["channels last", "channels first"])
@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_pixels_of_the_png_are_the_tensors(read_pixels, channels, first, make) -> None:
    pixels = photo(channels=channels)
    value = make(np.ascontiguousarray(pixels.transpose(2, 0, 1)) if first else pixels)
    assert find_kind(value, FACTS) is IMAGE
    (whole,) = IMAGE.detail(value, FACTS)
    assert whole.type == "image/png"
    assert np.array_equal(read_pixels(whole), pixels)
    assert np.array_equal(read_pixels(IMAGE.thumbnail(value, FACTS)), pixels)  # no larger than a thumbnail


def test_thumbnail_is_the_picture(read_pixels) -> None:
    """Its left half is dark, its right half bright, and so are the thumbnail's."""
    value = np.zeros((700, 1400, 3), np.uint8)
    value[:, 700:] = (200, 100, 50)
    small = read_pixels(IMAGE.thumbnail(value, FACTS, 100))
    assert small.shape == (50, 100, 3)
    assert np.abs(small[:, :45].astype(int)).max() <= 12
    assert np.abs(small[:, 55:].astype(int) - (200, 100, 50)).max() <= 12


def test_floats_from_0_to_1_are_shown_as_they_are(read_pixels) -> None:
    pixels = photo()
    value = (pixels / np.float32(255)).astype(np.float32)
    assert np.array_equal(read_pixels(*IMAGE.detail(value, FACTS)), pixels)
    assert not any("shown from" in line for line in IMAGE.lines(value, FACTS))


def test_normalised_floats_are_shown_from_their_least_to_their_largest(read_pixels) -> None:
    pixels = photo()
    pixels[0, 0], pixels[0, 1] = 0, 255
    value = torch.from_numpy((pixels / np.float32(255) - 0.45) / 0.225).permute(2, 0, 1)
    assert np.array_equal(read_pixels(*IMAGE.detail(value, FACTS)), pixels)
    assert "shown from -2 to 2.444" in IMAGE.lines(value, FACTS)


def test_values_that_are_not_finite_are_magenta(read_pixels) -> None:
    value = np.full((10, 10, 1), 0.5, np.float32)
    value[2, 3] = np.nan
    shown = read_pixels(*IMAGE.detail(value, FACTS))
    assert shown[2, 3].tolist() == [255, 0, 255]
    assert shown[0, 0].tolist() == [128, 128, 128]
    assert any("magenta" in line for line in IMAGE.lines(value, FACTS))


def test_picture_beyond_the_limit_is_thinned(read_pixels) -> None:
    value = np.broadcast_to(np.uint8(9), (5000, 5000, 3))
    assert read_pixels(*IMAGE.detail(value, FACTS)).shape == (2500, 2500, 3)
    assert any(line.startswith("every 2 px is shown") for line in IMAGE.lines(value, FACTS))


def test_size_and_channels_are_told() -> None:
    assert IMAGE.lines(photo().transpose(2, 0, 1), FACTS)[:2] == (
        "30 x 20 px, RGB, channels first",
        "uint8 [3, 20, 30]",
    )


PLANTED = {
    "nan": np.where(np.arange(300).reshape(10, 10, 3) == 7, np.nan, 0.5),
    "infinite": np.where(np.arange(300).reshape(10, 10, 3) == 7, -np.inf, 0.5),
    "constant": np.full((10, 10, 3), 77, np.uint8),
    "black": np.zeros((3, 10, 10), np.uint8),
    "saturated": np.full((10, 10, 3), 255, np.uint8),
    "not_scaled": photo().astype(np.float32),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_marked(name) -> None:
    (found,) = [one.name for one in IMAGE.marks(PLANTED[name], FACTS)]
    assert found == name


CLEAN = {
    "a photo": photo(),
    "a normalised photo": (photo() / 255 - 0.45) / 0.225,
    "a dark photo": photo() // 20,
    "a page of a book": np.where(photo() > 40, 255, 0).astype(np.uint8),
    "a photo whose alpha is full": np.concatenate([photo(), np.full((20, 30, 1), 255, np.uint8)], axis=2),
}


@pytest.mark.parametrize("name", CLEAN)
def test_sound_picture_has_no_mark(name) -> None:
    assert IMAGE.marks(CLEAN[name], FACTS) == ()


def test_mark_counts() -> None:
    (found,) = IMAGE.marks(PLANTED["nan"], FACTS)
    assert found.text == "1 of 300 values are NaN"
