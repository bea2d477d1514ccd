import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile
from PIL.PngImagePlugin import PngInfo

from assets.media.audit import audit_image
from assets.media.image.cut import cut_image
from assets.media.image.file_parts import jpeg_parts, png_parts
from assets.media.policy import CutPolicy, ImagePolicy
from assets.media.unit import Unit, Unusable
from tests.refusals import refusal

MakePicture = Callable[[int, int], Image.Image]
POLICY = CutPolicy(image=ImagePolicy(short_side_px=64, jpeg_quality=95))


def cut(tmp_path: Path, picture: Image.Image | bytes, **options: object) -> tuple[Unit, np.ndarray]:
    path = tmp_path / "raw"
    if isinstance(picture, bytes):
        path.write_bytes(picture)
    else:
        picture.save(path, **{"format": "PNG"} | options)
    (unit,) = cut_image(str(path), tmp_path, POLICY)
    with Image.open(unit.fields["jpg"]) as made:
        assert (made.format, made.mode) == ("JPEG", "RGB")
        assert not made.getexif()
        return unit, np.asarray(made).astype(int)


def is_near_colour(pixel: np.ndarray, colour: tuple[int, int, int], by: int = 12) -> bool:
    return bool(np.abs(pixel - np.array(colour)).max() <= by)


def test_shorter_side_is_brought_to_size_and_never_enlarged(
    tmp_path: Path, half_red_blue: MakePicture
) -> None:
    assert cut(tmp_path, half_red_blue(256, 128))[1].shape == (64, 128, 3)
    assert cut(tmp_path, half_red_blue(30, 20))[1].shape == (20, 30, 3)
    unit, _ = cut(tmp_path, half_red_blue(1000, 4))
    assert (unit.metadata["width_px"], unit.metadata["height_px"]) == (1000, 4)


# The stored picture, turned by each EXIF orientation, and where its green corner is then seen.
@pytest.mark.parametrize(
    ("orientation", "corner"),
    [(1, "tl"), (2, "tr"), (3, "br"), (4, "bl"), (5, "tl"), (6, "tr"), (7, "br"), (8, "bl")],
)
def test_pictures_are_made_upright(
    tmp_path: Path, half_red_blue: MakePicture, orientation: int, corner: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    _, pixels = cut(tmp_path, half_red_blue(128, 64), format="JPEG", quality=95, exif=exif)
    assert pixels.shape[:2] == ((64, 128) if orientation < 5 else (128, 64))
    at = {"tl": (4, 4), "tr": (4, -5), "bl": (-5, 4), "br": (-5, -5)}
    assert is_near_colour(pixels[at[corner]], (30, 200, 30))
    assert not any(
        is_near_colour(pixels[place], (30, 200, 30)) for name, place in at.items() if name != corner
    )


DEEP_GRAY = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_deep_gray_is_dropped_and_never_reduced_unasked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "raw"
    Image.fromarray(DEEP_GRAY).save(path, kind)
    modes = ["canonical"] if kind == "PNG" else ["canonical", "reference"]  # a reference PNG keeps its bytes
    for mode in modes:
        with refusal(Unusable, what="bit_depth", given=16) as refused:
            cut_image(str(path), tmp_path, CutPolicy(image=ImagePolicy(mode=mode)))  # type: ignore[arg-type]
        assert (refused.value.outcome, refused.value.code) == ("dropped", "bit_depth")


def test_rule_for_deep_gray_leaves_the_ids_of_units_of_earlier_releases() -> None:
    assert "deep" not in CutPolicy().of("image")
    assert CutPolicy(image=ImagePolicy(deep="reduce")).of("image")["deep"] == "reduce"


def test_sixteen_bits_are_scaled_and_not_truncated(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    Image.fromarray(DEEP_GRAY).save(path, "PNG")
    policy = CutPolicy(image=ImagePolicy(short_side_px=64, jpeg_quality=95, deep="reduce"))
    (unit,) = cut_image(str(path), tmp_path, policy)
    with Image.open(unit.fields["jpg"]) as photo:
        pixels = np.asarray(photo).astype(int)
    assert abs(int(pixels.mean()) - 127) <= 2
    assert pixels[0, 0].max() <= 4
    assert pixels[-1, -1].min() >= 250


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    assert is_near_colour(cut(tmp_path, clear)[1][30, 30], (255, 255, 255))
    palette = Image.new("P", (64, 64), 0)
    assert is_near_colour(cut(tmp_path, palette, transparency=0)[1][30, 30], (255, 255, 255))


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path: Path, half_red_blue: MakePicture, mode: str) -> None:
    kind = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    unit, pixels = cut(tmp_path, half_red_blue(64, 64).convert(mode), format=kind)
    assert unit.metadata["raw_mode"] == mode
    assert pixels[:, :10].mean() != pixels[:, -10:].mean() or mode in ("L", "LA", "1")


def test_profile_is_applied(tmp_path: Path, half_red_blue: MakePicture) -> None:
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ"))
    unit, _ = cut(tmp_path, half_red_blue(64, 64), icc_profile=lab.tobytes())
    assert unit.metadata["colour"] in ("icc", "icc_unusable")
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    unit, pixels = cut(tmp_path, half_red_blue(64, 64), icc_profile=srgb)
    assert unit.metadata["colour"] == "icc"
    assert is_near_colour(pixels[40, 10], (200, 30, 30))
    assert (
        cut(tmp_path, half_red_blue(64, 64), icc_profile=b"no profile")[0].metadata["colour"]
        == "icc_unusable"
    )
    assert cut(tmp_path, half_red_blue(64, 64))[0].metadata["colour"] == "assumed"


def test_same_picture_gives_the_same_bytes(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    first = cut(tmp_path, make_jpeg())[0].fields["jpg"].read_bytes()
    assert cut(tmp_path, make_jpeg())[0].fields["jpg"].read_bytes() == first


def png() -> bytes:
    sink = io.BytesIO()
    Image.effect_noise((90, 90), 60).save(sink, "PNG")
    return sink.getvalue()


@pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF"])
@pytest.mark.parametrize("tolerant", [False, True])
def test_truncated_picture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, kind: str, tolerant: bool
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", tolerant)
    sink = io.BytesIO()
    Image.effect_noise((300, 200), 60).convert("RGB").save(sink, kind)
    whole = sink.getvalue()
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, whole[: int(len(whole) * share)])
    assert (refused.value.outcome, refused.value.code) in {
        ("rejected", "undecodable"),
        ("rejected", "unreadable"),
    }
    assert tolerant is ImageFile.LOAD_TRUNCATED_IMAGES


def test_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.media.image.open.MAX_RAW_IMAGE_PX", 1000)
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, Image.new("RGB", (40, 40)))
    assert refused.value.code == "too_large"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, Image.new("RGB", (12, 12)))
    assert refused.value.code == "too_large"


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF", "TIFF"])
def test_of_an_animation_nothing_or_the_first_frame_is_taken(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("RGB", (40, 40), colour) for colour in ((200, 30, 30), (30, 200, 30), (30, 30, 200))]
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, frames[0], format=kind, save_all=True, append_images=frames[1:])
    assert (refused.value.outcome, refused.value.code) == ("dropped", "animation")
    first = CutPolicy(image=ImagePolicy(animated="first"))
    (unit,) = cut_image(str(tmp_path / "raw"), tmp_path, first)
    assert unit.fields["json"]["raw"]["is_animated"] is True
    with Image.open(unit.fields["jpg"]) as made:
        assert is_near_colour(np.asarray(made)[20, 20].astype(int), (200, 30, 30))
    assert audit_image(str(tmp_path / "raw"))["is_animated"] is True


def test_smaller_copies_and_masks_are_no_pages(tmp_path: Path, half_red_blue: MakePicture) -> None:
    """A TIFF's thumbnail, marked as one (NewSubfileType 1), does not make it an album."""
    for kinds, is_album in (([1], False), ([1, 4], False), ([1, 0], True), ([2], True)):
        pages = [Image.new("RGB", (32, 32), "white") for _ in kinds]
        for page, kind in zip(pages, kinds, strict=True):
            page.encoderinfo = {"tiffinfo": {254: kind}}
        path = tmp_path / "raw"
        half_red_blue(64, 64).save(path, "TIFF", save_all=True, append_images=pages)
        assert audit_image(str(path))["is_animated"] is is_album
        (unit,) = cut_image(str(path), tmp_path, CutPolicy(image=ImagePolicy(animated="first")))
        with Image.open(unit.fields["jpg"]) as made:
            assert is_near_colour(np.asarray(made)[40, 10].astype(int), (200, 30, 30))


def test_rubbish_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, b"\x89PNG\r\n\x1a\nrubbish")
    assert refused.value.outcome == "rejected"


SECRET = b"51.5007N 0.1246W, camera 4711"


def gossip() -> dict[str, bytes]:
    """Pictures with a place in every corner that Pillow can write one into."""
    exif = Image.Exif()
    exif[0x010E] = SECRET.decode()
    exif.get_ifd(0x8825)[1] = "N"
    text = PngInfo()
    text.add_text("Comment", SECRET.decode())
    text.add_itxt("Location", SECRET.decode(), zip=True)
    everywhere: dict[str, dict[str, object]] = {
        "JPEG": {"comment": SECRET, "exif": exif, "xmp": SECRET},
        "GIF": {"comment": SECRET},
        "PNG": {"pnginfo": text, "exif": exif},
        "WEBP": {"exif": exif, "xmp": SECRET},
        "TIFF": {"tiffinfo": {270: SECRET.decode(), 700: SECRET}},
        "AVIF": {"exif": exif, "xmp": SECRET},
    }
    made = {}
    for kind, options in everywhere.items():
        sink = io.BytesIO()
        Image.effect_noise((64, 64), 60).convert("RGB").save(sink, kind, **options)
        made[kind] = sink.getvalue()
    return made


@pytest.mark.parametrize("kind", ["JPEG", "GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_stored_photo_says_nothing_but_its_pixels(tmp_path: Path, kind: str) -> None:
    data = gossip()[kind]
    assert SECRET in data
    unit, _ = cut(tmp_path, data)
    stored = unit.fields["jpg"].read_bytes()
    assert SECRET not in stored
    # SOI, JFIF, tables, baseline frame, scan, EOI: no other segment, so nothing to hide in.
    assert {part.name for part in jpeg_parts(stored)} == {"d8", "e0", "db", "c0", "c4", "da", "d9"}
    assert stored.endswith(b"\xff\xd9")


def test_kept_alpha_brings_no_text(tmp_path: Path) -> None:
    text = PngInfo()
    text.add_text("Comment", SECRET.decode())
    path = tmp_path / "raw"
    Image.new("RGBA", (64, 64), (1, 2, 3, 4)).save(path, "PNG", pnginfo=text, dpi=(72, 72))
    (unit,) = cut_image(str(path), tmp_path, CutPolicy(image=ImagePolicy(alpha="keep")))
    assert [part.name for part in png_parts(unit.fields["img"].read_bytes())] == ["IHDR", "IDAT", "IEND"]


def image_refusal(path: Path, data: bytes) -> tuple[str, str]:
    path.write_bytes(data)
    with pytest.raises(Unusable) as refused:
        audit_image(str(path))
    return refused.value.outcome, refused.value.code


def test_damage_that_decoders_pass_over_is_refused(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    """libjpeg fills up with grey and only warns; Pillow does not compare the checksums of PNG's data."""
    whole = make_jpeg(300, 200)
    scan = whole.index(b"\xff\xda")
    cut_out = whole[: (scan + len(whole)) // 2] + b"\xff\xd9"
    with Image.open(io.BytesIO(cut_out)) as opened:
        opened.load()  # nothing is said
    assert image_refusal(tmp_path / "raw", cut_out) == ("rejected", "undecodable")
    restarts = make_jpeg(300, 200, restart_marker_rows=1)
    place = restarts.index(b"\xff\xd0", restarts.index(b"\xff\xda"))
    assert image_refusal(tmp_path / "raw", restarts[:place] + b"\1\2\3" + restarts[place:])[0] == "rejected"
    flipped = bytearray(png())
    place = flipped.index(b"IDAT") + 30
    flipped[place] ^= 1
    assert image_refusal(tmp_path / "raw", bytes(flipped)) == ("rejected", "undecodable")


def test_warnings_of_harmless_things_are_only_told(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    whole = make_jpeg(64, 48)
    tables = whole.index(b"\xff\xdb")
    path = tmp_path / "raw"
    path.write_bytes(whole[:tables] + bytes(5) + whole[tables:])
    assert "extraneous bytes" in audit_image(str(path))["decode_warning"]
    path.write_bytes(whole)
    assert audit_image(str(path))["decode_warning"] is None


def test_scans_that_are_missing_are_told(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    """A progressive JPEG that was cut off and closed decodes to a blurred picture without a warning."""
    whole = make_jpeg(64, 48, progressive=True)
    path = tmp_path / "raw"
    path.write_bytes(whole[: whole.rindex(b"\xff\xda")] + b"\xff\xd9")
    assert "do not come to their last bit" in audit_image(str(path))["decode_warning"]
    path.write_bytes(whole)
    assert audit_image(str(path))["decode_warning"] is None


def test_jpeg_of_endless_scans_is_refused_before_it_is_decoded(
    tmp_path: Path, make_jpeg: Callable[..., bytes]
) -> None:
    whole = make_jpeg(64, 48, progressive=True)
    last = whole.rindex(b"\xff\xda")
    many = whole[:last] + whole[last:-2] * 200 + b"\xff\xd9"
    assert image_refusal(tmp_path / "raw", many) == ("rejected", "too_many_scans")


# CIE 15: the sRGB primaries, white and middle grey, in L*a*b* of the D50 that profiles use.
@pytest.mark.parametrize(
    ("lab", "rgb"),
    [
        ((54.29, 80.80, 69.89), (255, 0, 0)),
        ((87.82, -79.27, 80.99), (0, 255, 0)),
        ((29.57, 68.29, -112.03), (0, 0, 255)),
        ((100.0, 0.0, 0.0), (255, 255, 255)),
        ((53.39, 0.0, 0.0), (127, 127, 127)),
    ],
)
def test_lab_is_converted_by_its_own_formula(
    tmp_path: Path, lab: tuple[float, float, float], rgb: tuple[int, int, int]
) -> None:
    stored = (round(lab[0] * 2.55), round(lab[1]) + 128, round(lab[2]) + 128)
    unit, pixels = cut(tmp_path, Image.new("LAB", (64, 64), stored), format="TIFF")
    assert unit.metadata["colour"] == "lab"
    assert is_near_colour(pixels[30, 30], rgb, by=24)  # whole numbers of L*, a* and b* are that coarse


def test_wide_profile_changes_the_numbers(tmp_path: Path) -> None:
    """A matrix profile whose red and green change places: the simplest that cannot be overlooked."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {
        bytes(data[at : at + 4]): at for at in range(132, 132 + 12 * int.from_bytes(data[128:132], "big"), 12)
    }
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    data[red : red + 4], data[green : green + 4] = b"gXYZ", b"rXYZ"
    unit, pixels = cut(tmp_path, Image.new("RGB", (64, 64), (220, 20, 20)), icc_profile=bytes(data))
    assert unit.metadata["colour"] == "icc"
    assert is_near_colour(pixels[30, 30], (20, 220, 20))


def test_cmyk_and_damaged_metadata(tmp_path: Path) -> None:
    _, pixels = cut(tmp_path, Image.new("CMYK", (64, 64), (0, 255, 255, 0)), format="JPEG", quality=95)
    assert is_near_colour(pixels[30, 30], (255, 0, 0), by=20)
    _, pixels = cut(
        tmp_path, Image.new("RGB", (64, 64), (10, 200, 10)), format="JPEG", exif=b"Exif\0\0rubbish"
    )
    assert is_near_colour(pixels[30, 30], (10, 200, 10))


def test_picture_in_front_of_others_is_taken(tmp_path: Path, half_red_blue: MakePicture) -> None:
    """A phone's photo with a preview or a gain map behind it."""
    first, second = half_red_blue(64, 64), Image.new("RGB", (32, 32), "white")
    unit, pixels = cut(tmp_path, first, format="MPO", save_all=True, append_images=[second])
    assert unit.fields["json"]["raw"]["format"] == "MPO"
    assert 300 < unit.fields["json"]["raw"]["nbytes_behind"] < (tmp_path / "raw").stat().st_size / 2 + 100
    assert audit_image(str(tmp_path / "raw"))["is_animated"] is False
    assert is_near_colour(pixels[40, 10], (200, 30, 30))


def test_film_behind_a_photo_is_reported_and_dropped(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    film = b"\0\0\0\x10ftypisom\0\0\0\0" + bytes(5000)
    unit, _ = cut(tmp_path, make_jpeg(64, 48) + film)
    assert unit.fields["json"]["raw"]["nbytes_behind"] == len(film)
    assert b"ftyp" not in unit.fields["jpg"].read_bytes()
    assert cut(tmp_path, make_jpeg(64, 48))[0].fields["json"]["raw"]["nbytes_behind"] == 0


def test_damaged_avif_is_rejected(tmp_path: Path) -> None:
    sink = io.BytesIO()
    Image.effect_noise((64, 64), 60).convert("RGB").save(sink, "AVIF", speed=10)
    whole = bytearray(sink.getvalue())
    start = whole.index(b"mdat") + 4
    whole[start : start + 60] = bytes(60)
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, bytes(whole))
    assert (refused.value.outcome, refused.value.code) == ("rejected", "undecodable")
