"""Bugs planted into the cutting of photos: each is found, under its own name, and honest photos pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from assets.media.cut_audit import findings
from assets.media.image import cut as image

RefusedAs = Callable[..., str]
ORIENTATION = 0x0112


def scene(height: int = 96, width: int = 160) -> np.ndarray:
    """uint8 [H, W, 3]: no symmetry, strong colours, dark and light."""
    rows, columns = np.mgrid[0:height, 0:width]
    picture = np.stack([40 + columns, 20 + 2 * rows, 200 - columns], axis=-1).clip(0, 255)
    picture[: height // 4, : width // 3] = (230, 30, 30)
    picture[height // 2 :, width // 2 : width // 2 + 20] = (10, 10, 60)
    return picture.astype(np.uint8)


def save_picture(path: Path, picture: Image.Image, **options: Any) -> str:
    picture.save(path, **options)
    return str(path)


def photo(tmp_path: Path, suffix: str = "jpg", orientation: int = 1) -> str:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return save_picture(tmp_path / f"photo.{suffix}", Image.fromarray(scene()), exif=exif, quality=95)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_honest_photos_pass(tmp_path: Path, refusal_code: RefusedAs, suffix: str, orientation: int) -> None:
    assert refusal_code(photo(tmp_path, suffix, orientation)) == ""


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "RGBA", "LA", "I;16"])
def test_honest_modes_pass(tmp_path: Path, refusal_code: RefusedAs, mode: str) -> None:
    path = tmp_path / ("photo.tif" if mode == "CMYK" else "photo.png")
    assert refusal_code(save_picture(path, in_mode(mode))) == ""


def test_jpeg_strips_in_a_tiff_pass(tmp_path: Path, refusal_code: RefusedAs) -> None:
    """FFmpeg takes their RGB for something else."""
    path = save_picture(tmp_path / "photo.tiff", Image.fromarray(scene()), compression="jpeg")
    assert refusal_code(path) == ""


def in_mode(mode: str) -> Image.Image:
    picture = Image.fromarray(scene())
    if mode == "I;16":
        return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray(np.tile(np.linspace(0, 255, 160).astype(np.uint8), (96, 1)))
        picture = picture.convert(mode)
        picture.putalpha(alpha)
        return picture
    return picture.convert(mode)


@pytest.mark.parametrize("orientation", [2, 3, 4])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_orientation_ignored(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, orientation: int, suffix: str
) -> None:
    without_turning(monkeypatch)
    assert refusal_code(photo(tmp_path, suffix, orientation)) == findings.ROTATION


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_orientation_ignored_of_a_picture_on_its_side(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, orientation: int
) -> None:
    without_turning(monkeypatch)
    assert refusal_code(photo(tmp_path, "jpg", orientation)) == findings.ASPECT_RATIO


def test_orientation_in_xmp_ignored(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    path = save_picture(tmp_path / "photo.jpg", Image.fromarray(scene()), xmp=xmp, quality=95)
    assert refusal_code(path) == ""
    without_turning(monkeypatch)
    assert refusal_code(path) == findings.ROTATION


def without_turning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "upright", lambda picture, pending: picture)


def spoilt(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Image.Image]) -> None:
    monkeypatch.setattr(image, "to_srgb", lambda picture, colour: wrong(picture))


def test_transparency_on_black(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_black(picture: Image.Image) -> Image.Image:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "black"), layer).convert("RGB")

    spoilt(monkeypatch, on_black)
    assert refusal_code(save_picture(tmp_path / "photo.png", in_mode("RGBA"))) == findings.ALPHA


def test_sixteen_bits_saturated(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `convert` of some Pillow modes does: everything above 255 is white."""
    spoilt(
        monkeypatch,
        lambda picture: Image.fromarray(np.minimum(np.asarray(picture), 255).astype(np.uint8)).convert("RGB"),
    )
    assert refusal_code(save_picture(tmp_path / "photo.png", in_mode("I;16"))) == findings.SATURATED


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_colours_inverted(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Adobe writes CMYK the other way round."""
    spoilt(monkeypatch, lambda picture: ImageOps.invert(picture.convert("RGB")))
    path = tmp_path / ("photo.jpg" if mode == "RGB" else "photo.tif")
    assert refusal_code(save_picture(path, in_mode(mode))) == findings.INVERTED


def test_stretched(tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt(monkeypatch, lambda picture: picture.convert("RGB").resize((96, 96)))
    assert refusal_code(photo(tmp_path)) == findings.ASPECT_RATIO


def test_another_picture(tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch) -> None:
    other = np.random.default_rng(0).integers(0, 256, (6, 10, 3), np.uint8)
    spoilt(monkeypatch, lambda picture: Image.fromarray(np.kron(other, np.ones((16, 16, 1), np.uint8))))
    assert refusal_code(photo(tmp_path)) == findings.PIXELS
