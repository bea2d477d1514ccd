"""Reference photos: the source's bytes where the loader sees the right picture in them, and no trace of the place."""

import io
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from assets.media.audit import audit_image, audit_units
from assets.media.image import cut as reference_photo
from assets.media.image import to_srgb as icc
from assets.media.image.cut import cut_image, strip_metadata
from assets.media.image.file_parts import jpeg_parts, png_parts, upright, webp_parts
from assets.media.image.open import photo
from assets.media.image.to_srgb import to_srgb
from assets.media.policy import CutPolicy, ImagePolicy
from assets.media.unit import Unit
from loader.errors import InvalidSpec
from loader.modalities import find_decoder
from tests.refusals import refusal

Array = np.ndarray
SECRET = b"51.5007N 0.1246W, serial number 4711"
PIXELS = np.kron(
    np.random.default_rng(3).integers(20, 235, (6, 9, 3), np.uint8), np.ones((8, 8, 1), np.uint8)
)
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description exif:GPSLatitude="51,30.0N" tiff:Orientation="%d"/>'
XMP += SECRET + b"</x:xmpmeta>"


def encode_picture(picture: Array | Image.Image, kind: str, **options: object) -> bytes:
    sink = io.BytesIO()
    made = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    made.save(sink, kind, **options)
    return sink.getvalue()


def exif(orientation: int | None, gps: bool = True) -> Image.Exif:
    """A position, a serial number and a thumbnail."""
    made = Image.Exif()
    if orientation is not None:
        made[0x0112] = orientation
    made[0x013B] = SECRET.decode()
    made.get_ifd(0x8769)[0xA431] = SECRET.decode()
    if gps:
        made.get_ifd(0x8825).update({1: "N", 2: (51.0, 30.0, 0.0), 3: "W", 4: (0.0, 7.0, 0.0)})
    return made


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", 2 + len(body)) + body


def gossiping_jpeg(orientation: int = 6) -> bytes:
    """Everything that a phone writes: EXIF, XMP, its extension, IPTC, a comment, MPF, a thumbnail, a film behind."""
    plain = encode_picture(
        PIXELS, "JPEG", quality=90, comment=SECRET, exif=exif(orientation), xmp=XMP % 3, progressive=True
    )
    more = segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + bytes(40) + SECRET)
    more += segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x1c\x1c\x02\x5a\0\x14" + SECRET[:20])
    more += segment(0xE0, b"JFXX\0\x10" + encode_picture(PIXELS[:8, :8], "JPEG"))
    more += segment(0xE2, b"MPF\0" + SECRET) + segment(0xEB, SECRET)
    film = struct.pack(">I4s", 16, b"ftyp") + b"isom\0\0\0\0" + b"\xa9xyz\0\x12" + SECRET
    return plain[:2] + plain[2:20] + more + plain[20:] + film


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def gossiping_png(orientation: int = 6, **options: object) -> bytes:
    text = PngInfo()
    text.add_text("Author", SECRET.decode())
    text.add_itxt("XML:com.adobe.xmp", (XMP % 3).decode(), zip=True)
    data = encode_picture(PIXELS, "PNG", pnginfo=text, exif=exif(orientation), dpi=(72, 72), **options)
    return data[:33] + chunk(b"tIME", bytes(7)) + chunk(b"prVt", SECRET) + data[33:] + SECRET


def gossiping_webp(orientation: int = 6) -> bytes:
    data = encode_picture(PIXELS, "WEBP", lossless=True, exif=exif(orientation), xmp=XMP % 3)
    return data + SECRET


P3 = icc.display_profile(icc.space_of_code_points(12, 13) or icc.SRGB)

GOSSIP: dict[str, Callable[..., bytes]] = {
    "jpg": gossiping_jpeg,
    "png": gossiping_png,
    "webp": gossiping_webp,
}
KIND = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}


def cut(tmp_path: Path, data: bytes, **rules: object) -> Unit:
    path = tmp_path / "raw"
    path.write_bytes(data)
    policy = CutPolicy(image=ImagePolicy(mode="reference", **rules))  # type: ignore[arg-type]
    (unit,) = cut_image(str(path), tmp_path, policy)
    return unit


def unit_image(unit: Unit) -> tuple[str, bytes]:
    """(what is in it, its bytes)"""
    assert set(unit.fields) == {"img", "json"}
    data = unit.fields["img"].read_bytes()
    word = {b"\xff\xd8": "jpg", b"\x89P": "png", b"RI": "webp"}[data[:2]]
    assert unit.fields["json"]["stored"]["format"] == KIND[word]
    return word, data


def training_pixels(data: bytes) -> Array:
    pixels = find_decoder("jpg")(data, None)
    assert isinstance(pixels, np.ndarray)
    return pixels


@pytest.mark.parametrize("word", GOSSIP)
def test_reference_photo_is_the_source_without_its_metadata(tmp_path: Path, word: str) -> None:
    data = GOSSIP[word]()
    assert audit_image(str(_write_file(tmp_path, data)))["has_gps"] is True
    unit = cut(tmp_path, data)
    kept_word, kept = unit_image(unit)
    assert kept_word == word
    assert unit.metadata["photo_mode"] == unit.fields["json"]["stored"]["mode"] == "reference"
    assert (unit.metadata["has_gps"], unit.metadata["gps_stripped"]) == (False, True)
    assert (unit.metadata["width_px"], unit.metadata["height_px"]) == (48, 72)
    for trace in (SECRET, SECRET[:12], b"GPS", b"xmp", b"ftyp"):
        assert trace not in kept
    assert np.array_equal(training_pixels(kept), training_pixels(data))
    assert training_pixels(kept).shape == (72, 48, 3)
    assert audit_image(str(_write_file(tmp_path, kept)))["has_gps"] is False


@pytest.mark.filterwarnings("ignore:Image appears to be a malformed MPO file")
@pytest.mark.parametrize("word", GOSSIP)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_stripped_photo_stays_upright(tmp_path: Path, word: str, orientation: int) -> None:
    """For this loader, and for Pillow, whose `exif_transpose` stands for everybody else."""
    from PIL import ImageOps

    data = GOSSIP[word](orientation)
    bare = strip_metadata(data, KIND[word], orientation)
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(bare)) as after:
        exif_left = after.getexif()
        assert dict(exif_left) == ({0x0112: orientation} if orientation > 1 else {})
        assert np.array_equal(
            np.asarray(ImageOps.exif_transpose(before)), np.asarray(ImageOps.exif_transpose(after))
        )
        assert not set(after.info) & {"comment", "xmp", "photoshop", "mp", "Author", "XML:com.adobe.xmp"}
    assert np.array_equal(training_pixels(bare), training_pixels(data))
    assert strip_metadata(bare, KIND[word], orientation) == bare


def test_coded_pixels_are_copied(tmp_path: Path) -> None:
    """Scans, tables and frames of JPEG, data of PNG, bitstreams of WebP: byte for byte."""
    for word, parts, names in (
        ("jpg", jpeg_parts, {"c2", "c4", "db", "da", "d9"}),
        ("png", png_parts, {"IHDR", "IDAT", "IEND"}),
        ("webp", webp_parts, {"VP8L"}),
    ):
        data = GOSSIP[word](6)
        bare = strip_metadata(data, KIND[word], 6)
        found = [
            [part.whole for part in parts(one) if part.name in names]  # type: ignore[operator]
            for one in (data, bare)
        ]
        assert found[0] == found[1] != []


def test_webp_announces_only_what_it_has() -> None:
    alpha = np.dstack([PIXELS, PIXELS[..., 0]])
    for pixels, orientation, flags in ((PIXELS, 1, 0), (PIXELS, 6, 0x08), (alpha, 6, 0x18), (alpha, 1, 0x10)):
        data = encode_picture(
            pixels, "WEBP", lossless=True, exif=exif(orientation), xmp=XMP % 3, icc_profile=P3
        )
        (first, *_) = webp_parts(strip_metadata(data, "WEBP", orientation))
        assert (first.name, first.body[0]) == ("VP8X", flags)


FILM = struct.pack(">I4s", 16, b"ftyp") + b"isom\0\0\0\0"
APPLE = b"com.apple.quicktime.location.ISO6709"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode_picture(PIXELS, "JPEG", exif=exif(1)), True),
        (encode_picture(PIXELS, "JPEG", exif=exif(1, gps=False)), False),
        (encode_picture(PIXELS, "JPEG", xmp=XMP % 1), True),
        (encode_picture(PIXELS, "JPEG", xmp=(XMP % 1).replace(b"GPSLatitude", b"Latitude")), False),
        (encode_picture(PIXELS, "WEBP", xmp=XMP % 1), True),
        (encode_picture(PIXELS, "PNG", exif=exif(1)), True),
        (encode_picture(PIXELS, "AVIF", exif=exif(1)), True),
        (encode_picture(PIXELS, "TIFF", tiffinfo={700: XMP % 1}), True),
        (encode_picture(PIXELS, "JPEG") + FILM + b"\xa9xyz\0\x12+51.5-0.12/", True),
        (encode_picture(PIXELS, "JPEG") + FILM + APPLE, True),
        (encode_picture(PIXELS, "JPEG") + FILM, False),
        (encode_picture(PIXELS, "JPEG"), False),
    ],
)
def test_who_tells_a_place(tmp_path: Path, data: bytes, expected: bool) -> None:
    assert audit_image(str(_write_file(tmp_path, data)))["has_gps"] is expected


def test_place_in_a_compressed_text_is_found(tmp_path: Path) -> None:
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", (XMP % 3).decode(), zip=True)
    data = encode_picture(PIXELS, "PNG", pnginfo=text)
    assert b"GPSLatitude" not in data
    assert audit_image(str(_write_file(tmp_path, data)))["has_gps"] is True


def test_directory_of_nothing_but_a_version_tells_none(tmp_path: Path) -> None:
    made = Image.Exif()
    made.get_ifd(0x8825)[0] = b"\2\3\0\0"
    assert (
        audit_image(str(_write_file(tmp_path, encode_picture(PIXELS, "JPEG", exif=made))))["has_gps"] is False
    )


def test_jfif_thumbnail_goes_as_well() -> None:
    plain = encode_picture(PIXELS, "JPEG")
    head = b"JFIF\0\1\2\0\0\1\0\1\2\2" + bytes(range(12))  # 2 x 2 px
    data = plain[:2] + segment(0xE0, head) + plain[20:]
    bare = strip_metadata(data, "JPEG", 1)
    (jfif,) = [part for part in jpeg_parts(bare) if part.name == "e0"]
    assert jfif.body == b"JFIF\0\1\2\0\0\1\0\1\0\0"
    assert np.array_equal(training_pixels(bare), training_pixels(data))


@pytest.mark.parametrize("word", GOSSIP)
def test_on_request_the_bytes_are_the_source_s(tmp_path: Path, word: str) -> None:
    data = GOSSIP[word]()
    unit = cut(tmp_path, data, strip_gps=False)
    assert unit_image(unit) == (word, data)
    assert (unit.metadata["has_gps"], unit.metadata["gps_stripped"]) == (True, False)
    without = encode_picture(PIXELS, KIND[word])
    unit = cut(tmp_path, without, strip_gps=False)
    assert unit_image(unit) == (word, without)
    assert (unit.metadata["has_gps"], unit.metadata["gps_stripped"]) == (False, False)


RGBA = np.dstack([PIXELS, np.full(PIXELS.shape[:2], 128, np.uint8)])


@pytest.mark.parametrize(
    ("kind", "picture", "options", "because"),
    [
        ("JPEG", Image.fromarray(PIXELS), {"icc_profile": P3}, "not sRGB"),
        ("JPEG", Image.fromarray(PIXELS).convert("CMYK"), {}, "CMYK"),
        ("TIFF", Image.fromarray(PIXELS), {}, "TIFF is none of what"),
        ("AVIF", Image.fromarray(PIXELS), {}, "AVIF is none of what"),
        ("PNG", Image.fromarray(RGBA), {}, "alpha channel"),
        ("WEBP", Image.fromarray(RGBA), {"lossless": True, "exact": True}, "alpha channel"),
    ],
)
def test_what_a_loader_would_read_wrong_is_stored_without_loss(
    tmp_path: Path, kind: str, picture: Image.Image, options: dict[str, object], because: str
) -> None:
    data = encode_picture(picture, kind, **options)
    unit = cut(tmp_path, data)
    word, kept = unit_image(unit)
    assert (word, unit.metadata["photo_mode"]) == ("png", "lossless")
    assert because in unit.fields["json"]["stored"]["because"]
    with photo(str(tmp_path / "raw")) as found:
        shown = upright(to_srgb(found.image, found.colour), found.orientation.pending)
    ground = Image.new("RGBA", shown.size, "white")
    expected = Image.alpha_composite(ground, shown.convert("RGBA")).convert("RGB")
    assert np.abs(training_pixels(kept).astype(int) - np.asarray(expected)).max() <= 1
    assert [part.name for part in png_parts(kept) if part.name != "IDAT"] == ["IHDR", "IEND"]


def test_photo_whose_alpha_is_kept_stays_what_it_is(tmp_path: Path) -> None:
    for word, options in (("png", {}), ("webp", {"lossless": True, "exact": True})):
        data = encode_picture(RGBA, KIND[word], **options)
        unit = cut(tmp_path, data, alpha="keep")
        assert unit_image(unit)[0] == word
        assert unit.metadata["photo_mode"] == "reference"
        assert np.array_equal(training_pixels(unit_image(unit)[1]), RGBA)


def test_animation_s_first_frame_is_stored_without_loss(tmp_path: Path) -> None:
    frames = [Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)]
    for kind in ("PNG", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encode_picture(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        unit = cut(tmp_path, data, animated="first")
        assert unit.metadata["photo_mode"] == "lossless"
        assert np.array_equal(training_pixels(unit_image(unit)[1]), PIXELS)
        unit = cut(tmp_path, data, animated="first", strip_gps=False)
        assert unit.metadata["photo_mode"] == "lossless"


def test_what_was_stripped_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an orientation that gets lost, a pixel that changes."""
    real = strip_metadata
    monkeypatch.setattr(
        reference_photo, "strip_metadata", lambda data, kind, orientation: real(data, kind, 1)
    )
    unit = cut(tmp_path, gossiping_jpeg(6))
    assert (unit.metadata["photo_mode"], unit.metadata["width_px"]) == ("lossless", 48)
    assert "another picture" in unit.fields["json"]["stored"]["because"]
    other = PIXELS.copy()
    other[0, 0] += 1
    monkeypatch.setattr(reference_photo, "strip_metadata", lambda *rest: encode_picture(other, "PNG"))
    assert cut(tmp_path, encode_picture(PIXELS, "PNG")).metadata["photo_mode"] == "lossless"


def test_what_the_loader_sees_is_compared_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a loader that turns nothing."""
    monkeypatch.setattr("loader.modalities.image.decode.apply_turn", lambda pixels, turn: pixels)
    for strip in (True, False):
        unit = cut(tmp_path, gossiping_jpeg(3), strip_gps=strip)
        assert unit.metadata["photo_mode"] == "lossless"
        assert "another picture" in unit.fields["json"]["stored"]["because"]


def test_jpeg_that_the_loader_refuses_is_stored_without_loss(tmp_path: Path) -> None:
    """libjpeg skips bytes between segments and warns; the loader is strict."""
    plain = encode_picture(PIXELS, "JPEG", quality=95)
    tables = plain.index(b"\xff\xdb")
    unit = cut(tmp_path, plain[:tables] + bytes(5) + plain[tables:])
    assert unit.metadata["photo_mode"] == "lossless"
    assert "refuse" in unit.fields["json"]["stored"]["because"]
    assert np.array_equal(training_pixels(unit_image(unit)[1]), training_pixels(plain))


def test_deep_png_keeps_its_depth(tmp_path: Path) -> None:
    wide = np.arange(48 * 72, dtype=np.uint16).reshape(48, 72) * 18
    unit = cut(tmp_path, encode_picture(Image.fromarray(wide), "PNG"))
    assert unit.metadata["photo_mode"] == "reference"
    with Image.open(unit.fields["img"]) as made:
        assert np.array_equal(np.asarray(made), wide)


@pytest.mark.parametrize(
    ("wrong", "what", "given"),
    [
        ({"strip_gps": False}, "strip_gps", False),
        ({"mode": "ref"}, "mode", "ref"),
        ({"mode": "reference", "jpeg_quality": 80}, "short_side_px and jpeg_quality", (256, 80)),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    wrong: dict[str, object], what: str, given: object
) -> None:
    with refusal(InvalidSpec, what=what, given=given):
        ImagePolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rules",
    [
        {"mode": "reference"},
        {"mode": "reference", "alpha": "black"},
        {"mode": "reference", "alpha": "keep"},
        {"alpha": "#30a060"},
        {"alpha": "black"},
        {"alpha": "keep"},
    ],
)
def test_every_way_to_store_a_photo_is_true_to_its_source(tmp_path: Path, rules: dict[str, str]) -> None:
    """As the pipeline's own check sees it, which reads the source by FFmpeg."""
    path = tmp_path / "raw"
    sideways = encode_picture(RGBA, "PNG", exif=exif(6))
    for data in (gossiping_jpeg(), sideways, encode_picture(RGBA, "WEBP", lossless=True, exact=True)):
        path.write_bytes(data)
        (unit,) = cut_image(str(path), tmp_path, CutPolicy(image=ImagePolicy(**rules)))  # type: ignore[arg-type]
        audit_units(str(path), "image", [unit], {})


def test_tiny_photo_of_noise_is_true_to_its_source(tmp_path: Path) -> None:
    """Its colours are half as many in a JPEG as in its source."""
    path = tmp_path / "raw"
    path.write_bytes(encode_picture(np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8), "PNG"))
    audit_units(str(path), "image", cut_image(str(path), tmp_path, CutPolicy()), {})


def _write_file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "written"
    path.write_bytes(data)
    return path


# What exiftool (12.57) tells of a file's structure, beside names and dates of the file itself.
STRUCTURE = {
    *("FileType", "FileTypeExtension", "MIMEType", "ImageWidth", "ImageHeight", "ImageSize", "Megapixels"),
    *("BitDepth", "ColorType", "Compression", "Filter", "Interlace", "EncodingProcess", "BitsPerSample"),
    *("ColorComponents", "YCbCrSubSampling", "JFIFVersion", "ResolutionUnit", "XResolution", "YResolution"),
    *(
        "ExifByteOrder",
        "Orientation",
        "WebP_Flags",
        "AlphaIsUsed",
        "ImageSize",
        "VP8Version",
        "HorizontalScale",
    ),
    *("VerticalScale", "DCTEncodeVersion", "APP14Flags0", "APP14Flags1", "ColorTransform", "SRGBRendering"),
}


def exiftool_tags(path: Path) -> set[str]:
    command = ["exiftool", "-a", "-u", "-ee", "-s", "-s", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split(":")[0].strip() for line in said.splitlines()} - {
        *("ExifToolVersion", "FileName", "Directory", "FileSize", "FileModifyDate", "FileAccessDate"),
        *("FileInodeChangeDate", "FilePermissions"),
    }


@pytest.mark.server
@pytest.mark.parametrize("word", GOSSIP)
def test_exiftool_finds_nothing(tmp_path: Path, word: str) -> None:
    data = GOSSIP[word]()
    assert {"GPSLatitude", "SerialNumber"} <= exiftool_tags(_write_file(tmp_path, data))
    assert exiftool_tags(_write_file(tmp_path, unit_image(cut(tmp_path, data))[1])) <= STRUCTURE
    path = tmp_path / "raw"
    (unit,) = cut_image(str(path), tmp_path, CutPolicy())
    assert exiftool_tags(unit.fields["jpg"]) <= STRUCTURE - {"Orientation", "ExifByteOrder"}
