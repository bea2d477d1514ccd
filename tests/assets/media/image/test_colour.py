"""Colours against references that share no code with littleCMS: the matrices of CSS, formulas written down here."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from assets.media.audit import audit_image
from assets.media.image import to_srgb as icc
from assets.media.image.open import photo
from assets.media.image.to_srgb import to_srgb
from assets.media.unit import Unusable

Array = np.ndarray
RNG = np.random.default_rng(11)
# The corners of the cube, its greys, and colours between them.
COLOURS = np.concatenate(
    [
        np.array(np.meshgrid([0, 255], [0, 255], [0, 255])).reshape(3, 8).T,
        np.repeat(np.arange(0, 256, 17)[:, None], 3, axis=1),
        RNG.integers(0, 256, (72, 3)),
    ]
).astype(np.uint8)
PATCHES = np.kron(COLOURS.reshape(8, 12, 3), np.ones((8, 8, 1), np.uint8))

# CSS Color Module Level 4, sample code: linear light to XYZ at D65, and back to sRGB.
XYZ_OF = {
    "srgb": [
        [506752 / 1228815, 87881 / 245763, 12673 / 70218],
        [87098 / 409605, 175762 / 245763, 12673 / 175545],
        [7918 / 409605, 87881 / 737289, 1001167 / 1053270],
    ],
    "p3": [
        [608311 / 1250200, 189793 / 714400, 198249 / 1000160],
        [35783 / 156275, 247089 / 357200, 198249 / 2500400],
        [0, 32229 / 714400, 5220557 / 5000800],
    ],
    "adobe": [
        [573536 / 994567, 263643 / 1420810, 187206 / 994567],
        [591459 / 1989134, 6239551 / 9945670, 374412 / 4972835],
        [53769 / 1989134, 351524 / 4972835, 4929758 / 4972835],
    ],
    "rec2020": [
        [63426534 / 99577255, 20160776 / 139408157, 47086771 / 278816314],
        [26158966 / 99577255, 472592308 / 697040785, 8267143 / 139408157],
        [0, 19567812 / 697040785, 295819943 / 278816314],
    ],
}


def linear(levels: Array) -> Array:
    """IEC 61966-2-1: 0 to 255 to linear light."""
    level = levels / 255
    return np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)


def encode_srgb(light: Array) -> Array:
    light = np.clip(light, 0, 1)
    return 255 * np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)


def to_srgb_levels(levels: Array, primaries: str, curve: Callable[[Array], Array] = linear) -> Array:
    matrix = np.linalg.inv(XYZ_OF["srgb"]) @ np.array(XYZ_OF[primaries])
    return encode_srgb(curve(levels.astype(float)) @ matrix.T)


def gamma(exponent: float) -> Callable[[Array], Array]:
    return lambda levels: (levels / 255) ** exponent


def read_photo(data: bytes, tmp_path: Path) -> tuple[Array, str]:
    path = tmp_path / "raw"
    path.write_bytes(data)
    with photo(str(path)) as found:
        made = to_srgb(found.image, found.colour)
        assert not made.info
        by = found.colour.by
    assert audit_image(str(path))["colour_by"] == by
    return np.asarray(made), by


def encode_picture(picture: Array | Image.Image, kind: str = "PNG", **options: object) -> bytes:
    sink = io.BytesIO()
    made = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    made.save(sink, kind, **options)
    return sink.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def with_chunks(png: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """The chunks put behind IHDR."""
    return png[:33] + b"".join(chunk(*one) for one in chunks) + png[33:]


P3 = icc.display_profile(icc.RgbSpace(red=(0.68, 0.32), green=(0.265, 0.69), blue=(0.15, 0.06)))
ADOBE = icc.display_profile(icc.ADOBE_RGB)
SPACES = [(P3, "p3", linear), (ADOBE, "adobe", gamma(563 / 256))]


@pytest.mark.parametrize(("profile", "name", "curve"), SPACES)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "AVIF"])
def test_profile_gives_the_colours_of_its_matrix(
    tmp_path: Path, profile: bytes, name: str, curve: Callable[[Array], Array], kind: str
) -> None:
    options = {"WEBP": {"lossless": True}, "AVIF": {"quality": 100, "subsampling": "4:4:4"}}.get(kind, {})
    found, by = read_photo(encode_picture(PATCHES, kind, icc_profile=profile, **options), tmp_path)
    expected = to_srgb_levels(PATCHES, name, curve)
    assert by == "icc"
    error = np.abs(found - expected)[4::8, 4::8]  # the middle of each patch: AVIF blurs their edges
    assert error.mean() < (1 if kind == "AVIF" else 0.3)
    assert error.max() <= (8 if kind == "AVIF" else 1.6)
    assert np.abs(PATCHES - expected).mean() > 5  # without the profile


def test_profile_of_a_jpeg_is_used(tmp_path: Path) -> None:
    found, by = read_photo(
        encode_picture(PATCHES, "JPEG", quality=100, subsampling=0, icc_profile=P3), tmp_path
    )
    assert by == "icc"
    assert np.abs(found - to_srgb_levels(PATCHES, "p3")).mean() < 1


def test_profile_that_is_srgb_changes_nothing(tmp_path: Path) -> None:
    for profile in (
        ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        icc.display_profile(icc.SRGB),
    ):
        found, by = read_photo(encode_picture(PATCHES, icc_profile=profile), tmp_path)
        assert by == "icc"
        assert np.array_equal(found, PATCHES)


def gray_profile(exponent: float) -> bytes:
    """A version 2 profile of gray (ICC.1:2001-04, 6.3.1.1): white point and one curve."""
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061)
    curve = b"curv" + bytes(4) + struct.pack(">IHH", 1, round(exponent * 256), 0)
    tags = struct.pack(">I", 2) + b"wtpt" + struct.pack(">II", 156, 20) + b"kTRC"
    tags += struct.pack(">II", 176, 14) + white + curve
    head = struct.pack(">I4sI4s4s4s", 128 + len(tags), bytes(4), 0x02400000, b"mntr", b"GRAY", b"XYZ ")
    return (head.ljust(36, b"\0") + b"acsp").ljust(68, b"\0") + white[8:] + bytes(48) + tags


def test_gray_profiles(tmp_path: Path) -> None:
    levels = np.repeat(np.arange(256, dtype=np.uint8)[None], 16, axis=0)
    found, by = read_photo(encode_picture(levels, icc_profile=gray_profile(1.0)), tmp_path)
    assert by == "icc"
    expected = encode_srgb(levels / 255)
    assert np.abs(found - expected[..., None]).max() <= 1.6
    assert np.abs(levels - expected).max() > 50
    found, by = read_photo(
        encode_picture(levels, icc_profile=P3), tmp_path
    )  # gray with a profile for colours
    assert (by, np.abs(found - levels[..., None]).max() <= 1) == ("icc", True)
    found, by = read_photo(encode_picture(PATCHES, icc_profile=gray_profile(1.0)), tmp_path)
    assert by == "icc_unusable"
    assert np.array_equal(found, PATCHES)


def cmyk_profile() -> tuple[bytes, Callable[[Array], Array]]:
    """A press whose inks multiply each other and never get blacker than 2 %, tabulated in XYZ at 13 steps of each ink
    (lut16Type, ICC.1:2001-04, 6.5.8), and its formula: uint8 [..., 4] of ink to XYZ at D50."""
    passes = np.array([[0.15, 0.75, 0.9], [0.8, 0.15, 0.5], [0.95, 0.9, 0.25], [0.04, 0.04, 0.04]])
    paper = (0.80, 0.83, 0.60)  # yellowish, which relative colorimetry makes white
    to_xyz = np.array([[0.4361, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7141]])

    def light(ink: Array) -> Array:
        share = ink[..., None] / 255
        return (0.02 + 0.98 * np.prod(1 - share * (1 - passes), axis=-2)) @ to_xyz.T

    grid = np.stack(np.meshgrid(*[np.linspace(0, 255, 13)] * 4, indexing="ij"), axis=-1)
    table = np.rint(light(grid) / (1 + 32767 / 32768) * 65535).astype(">u2").tobytes()
    ramp = struct.pack(">HH", 0, 65535)
    identity = struct.pack(">9i", *(65536 * (n % 4 == 0) for n in range(9)))
    lut = b"mft2" + bytes(4) + bytes([4, 3, 13, 0]) + identity + struct.pack(">HH", 2, 2)
    lut += ramp * 4 + table + ramp * 3
    wtpt = b"XYZ " + bytes(4) + struct.pack(">3i", *(round(part * 65536) for part in paper))
    start = 128 + 4 + 12 * 3
    tags = struct.pack(">I", 3) + b"wtpt" + struct.pack(">II", start, 20)
    for name in (b"A2B0", b"A2B1"):
        tags += name + struct.pack(">II", start + 20, len(lut))
    body = tags + wtpt + lut
    head = struct.pack(">I4sI4s4s4s", 128 + len(body), bytes(4), 0x02400000, b"scnr", b"CMYK", b"XYZ ")
    d50 = struct.pack(">3i", 63190, 65536, 54061)
    head = (head.ljust(36, b"\0") + b"acsp").ljust(68, b"\0") + d50
    return head.ljust(128, b"\0") + body, light


def srgb_of_d50(xyz: Array, black: Array) -> Array:
    """sRGB of XYZ at D50 (ICC's matrix of sRGB, inverted), after scaling XYZ so that `black` goes to zero and
    D50 stays: black point compensation (ISO 18619, 5.4)."""
    white = np.array([0.9642, 1.0, 0.8249])
    scaled = (xyz - black) * (white / (white - black))
    matrix = [[0.4360, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7141]]
    return encode_srgb(scaled @ np.linalg.inv(matrix).T)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_goes_through_its_profile(tmp_path: Path, kind: str) -> None:
    profile, light = cmyk_profile()
    extremes = np.concatenate([np.eye(4) * 255, np.zeros((1, 4)), np.full((1, 4), 255)])
    ink = np.concatenate([extremes, RNG.integers(0, 160, (58, 4))]).astype(np.uint8).reshape(8, 8, 4)
    ink = np.kron(ink, np.ones((16, 16, 1), np.uint8))
    picture = Image.frombytes("CMYK", ink.shape[1::-1], ink.tobytes())
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    found, by = read_photo(encode_picture(picture, kind, icc_profile=profile, **options), tmp_path)
    assert by == "icc"
    black = np.array([0.9642, 1.0, 0.8249]) * light(np.full(4, 255))[1]
    expected = srgb_of_d50(light(ink), black)
    error = np.abs(found - expected)
    assert error.mean() < 1
    assert found[8, 72].min() >= 253  # the paper
    assert found[8, 88].max() <= 3  # the darkest ink
    plain = np.asarray(picture.convert("RGB"))
    assert error.mean() < np.abs(plain - expected).mean() / 4


def test_cmyk_without_a_profile_is_plain_arithmetic_and_never_a_negative(tmp_path: Path) -> None:
    ink = np.zeros((32, 32, 4), np.uint8)
    ink[:16, :16, 0], ink[:16, 16:, 1], ink[16:, :16, 2], ink[16:, 16:, 3] = 255, 255, 255, 255
    picture = Image.frombytes("CMYK", (32, 32), ink.tobytes())
    expected = {(4, 4): (0, 255, 255), (4, 28): (255, 0, 255), (28, 4): (255, 255, 0), (28, 28): (0, 0, 0)}
    adobe = encode_picture(picture, "JPEG", quality=100, subsampling=0)
    start = adobe.index(b"\xff\xee")
    plain = adobe[:start] + adobe[start + 2 + struct.unpack_from(">H", adobe, start + 2)[0] :]
    for data in (adobe, plain, encode_picture(picture, "TIFF"), ycck(ink)):
        found, by = read_photo(data, tmp_path)
        assert by == "assumed"
        for place, colour in expected.items():
            assert np.abs(found[place].astype(int) - colour).max() <= 6


def ycck(ink: Array) -> bytes:
    """A JPEG as Adobe writes it: inverted inks, of which the inverses of C, M, Y are stored as Y Cb Cr of R, G, B
    (libjpeg, jdcolor.c), and a marker that says so (transform 2)."""
    r, g, b = np.moveaxis(ink[..., :3].astype(float), -1, 0)
    ycc = [0.299 * r + 0.587 * g + 0.114 * b]
    ycc += [128 - 0.168736 * r - 0.331264 * g + 0.5 * b, 128 + 0.5 * r - 0.418688 * g - 0.081312 * b]
    stored = np.stack([*ycc, 255 - ink[..., 3]], axis=-1).round().clip(0, 255).astype(np.uint8)
    # Pillow inverts CMYK while it writes it: inverted here beforehand, the numbers arrive as they are.
    data = bytearray(
        encode_picture(
            Image.frombytes("CMYK", ink.shape[1::-1], (255 - stored).tobytes()), "JPEG", quality=100
        )
    )
    marker, frame, scan = data.index(b"\xff\xee"), data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    assert data[marker + 4 : marker + 9] == b"Adobe"
    data[marker + 15] = 2
    for number in range(4):  # the components are no longer called C, M, Y and K
        data[frame + 10 + 3 * number] = data[scan + 5 + 2 * number] = number + 1
    return bytes(data)


def test_ycck_is_not_read_as_cmyk(tmp_path: Path) -> None:
    ink = np.kron(RNG.integers(0, 256, (4, 4, 4), np.uint8), np.ones((16, 16, 1), np.uint8))
    found, _ = read_photo(ycck(ink), tmp_path)
    expected = (255.0 - ink[..., :3]) * (255.0 - ink[..., 3:]) / 255
    assert np.abs(found - expected).mean() < 3


@pytest.mark.parametrize(
    ("chunks", "by", "expected"),
    [
        ([], "assumed", lambda a: a),
        ([(b"gAMA", struct.pack(">I", 45455))], "assumed", lambda a: a),
        ([(b"sRGB", b"\0"), (b"gAMA", struct.pack(">I", 100000))], "srgb", lambda a: a),
        ([(b"gAMA", struct.pack(">I", 100000))], "gamma", lambda a: to_srgb_levels(a, "srgb", gamma(1))),
        ([(b"gAMA", struct.pack(">I", 55556))], "gamma", lambda a: to_srgb_levels(a, "srgb", gamma(1.8))),
        (
            [
                (b"gAMA", struct.pack(">I", 45455)),
                (b"cHRM", struct.pack(">8I", 31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)),
            ],
            "gamma",
            lambda a: to_srgb_levels(a, "p3"),
        ),
        ([(b"cICP", bytes([12, 13, 0, 1]))], "code_points", lambda a: to_srgb_levels(a, "p3")),
        ([(b"cICP", bytes([1, 13, 0, 1]))], "code_points", lambda a: a),
        ([(b"cICP", bytes([9, 8, 0, 1]))], "code_points", lambda a: to_srgb_levels(a, "rec2020", gamma(1))),
        ([(b"gAMA", bytes(4))], "assumed", lambda a: a),
        ([(b"cHRM", bytes(32))], "assumed", lambda a: a),
        ([(b"cHRM", bytes(range(32)))], "assumed", lambda a: a),
        # a triangle that its white lies outside of
        (
            [(b"cHRM", struct.pack(">8I", 31270, 32900, 64000, 33000, 60000, 35000, 55000, 30000))],
            "assumed",
            lambda a: a,
        ),
    ],
)
def test_what_a_png_says_of_its_colours(
    tmp_path: Path, chunks: list[tuple[bytes, bytes]], by: str, expected: Callable[[Array], Array]
) -> None:
    found, told = read_photo(with_chunks(encode_picture(PATCHES), *chunks), tmp_path)
    assert told == by
    assert np.abs(found - expected(PATCHES)).max() <= 2


def test_code_points_stand_above_a_profile_in_png(tmp_path: Path) -> None:
    data = with_chunks(encode_picture(PATCHES, icc_profile=ADOBE), (b"cICP", bytes([12, 13, 0, 1])))
    assert np.abs(read_photo(data, tmp_path)[0] - to_srgb_levels(PATCHES, "p3")).max() <= 2


def avif(primaries: int, transfer: int) -> bytes:
    data = bytearray(encode_picture(PATCHES, "AVIF", quality=100, subsampling="4:4:4"))
    place = data.index(b"colrnclx") + 8
    data[place : place + 4] = struct.pack(">HH", primaries, transfer)
    return bytes(data)


def test_code_points_of_avif(tmp_path: Path) -> None:
    """Pillow does not tell them: read as sRGB, Display P3 would look pale."""
    centres = PATCHES[4::8, 4::8]
    for primaries, name in ((1, "srgb"), (12, "p3")):
        found, by = read_photo(avif(primaries, 13), tmp_path)
        error = np.abs(found[4::8, 4::8] - to_srgb_levels(centres, name))
        assert (by, error.mean() < 4) == ("code_points", True)


@pytest.mark.parametrize("transfer", [16, 18])
def test_high_dynamic_range_is_dropped_and_not_squeezed(tmp_path: Path, transfer: int) -> None:
    tagged = bytearray(P3)
    tagged[: len(P3)] = P3.replace(b"cprt", b"cicp")
    place = struct.unpack_from(">I", tagged, bytes(tagged).index(b"cicp") + 4)[0]
    tagged[place : place + 12] = b"cicp" + bytes(4) + bytes([9, transfer, 0, 1])
    for data in (
        with_chunks(encode_picture(PATCHES), (b"cICP", bytes([9, transfer, 0, 1]))),
        avif(9, transfer),
        encode_picture(PATCHES, "JPEG", icc_profile=bytes(tagged)),
    ):
        path = tmp_path / "raw"
        path.write_bytes(data)
        with pytest.raises(Unusable) as refused, photo(str(path)):
            pass
        assert (refused.value.outcome, refused.value.code) == ("dropped", "hdr")


def test_adobe_rgb_that_only_exif_tells(tmp_path: Path) -> None:
    """Cameras that are set to Adobe RGB write no profile but "R03"."""
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA001] = 0xFFFF
    exif.get_ifd(0x8769)[0xA005] = {1: "R03", 2: b"0100"}
    data = encode_picture(PATCHES, "JPEG", quality=100, subsampling=0, exif=exif)
    found, by = read_photo(data, tmp_path)
    assert by == "exif"
    assert np.abs(found - to_srgb_levels(PATCHES, "adobe", gamma(563 / 256))).mean() < 1.5
    assert read_photo(data.replace(b"R03", b"R98"), tmp_path)[1] == "assumed"


@pytest.mark.parametrize("rubbish", [b"no profile", P3[:200], P3[:140] + bytes(len(P3) - 140)])
def test_broken_profile_is_named_and_the_picture_kept(tmp_path: Path, rubbish: bytes) -> None:
    found, by = read_photo(encode_picture(PATCHES, icc_profile=rubbish), tmp_path)
    assert by == "icc_unusable"
    assert np.array_equal(found, PATCHES)


def test_transparent_pictures_keep_their_alpha_through_a_profile(tmp_path: Path) -> None:
    alpha = RNG.integers(0, 256, PATCHES.shape[:2], np.uint8)
    found, _ = read_photo(encode_picture(np.dstack([PATCHES, alpha]), icc_profile=P3), tmp_path)
    assert np.array_equal(found[..., 3], alpha)
    assert np.abs(found[..., :3] - to_srgb_levels(PATCHES, "p3")).max() <= 1.6


def test_bands_leave_no_seams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_picture(np.dstack([PATCHES, PATCHES[..., 0]]), icc_profile=ADOBE)
    whole, _ = read_photo(data, tmp_path)
    monkeypatch.setattr("assets.media.image.to_srgb._BAND_PX", 100)
    assert np.array_equal(read_photo(data, tmp_path)[0], whole)
