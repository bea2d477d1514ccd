"""Numbers of every depth brought to 8 bits, and transparency under every rule."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assets.media.audit import audit_image
from assets.media.image.cut import cut_image
from assets.media.image.open import photo
from assets.media.image.pixels import apply_alpha
from assets.media.image.to_srgb import to_srgb
from assets.media.policy import CutPolicy, ImagePolicy
from assets.media.unit import Unit, Unusable
from tests.refusals import refusal

Array = np.ndarray
RNG = np.random.default_rng(23)


def write_raw(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "raw"
    path.write_bytes(data)
    return path


def read_pixels(path: Path) -> Array:
    with photo(str(path)) as found:
        return np.asarray(to_srgb(found.image, found.colour)).astype(int)


def cut(path: Path | str, **rules: object) -> Unit:
    (unit,) = cut_image(str(path), Path(path).parent, CutPolicy(image=ImagePolicy(**rules)))  # type: ignore[arg-type]
    return unit


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(rows: Array, depth: int, colour_type: int, key: bytes = b"") -> bytes:
    """rows: uint8 [H, bytes of a row], as PNG stores them; Pillow writes few of these kinds."""
    width = {0: 8, 2: 24, 4: 16, 6: 32}[colour_type] * depth // 8
    head = struct.pack(">IIBBBBB", rows.shape[1] * 8 // width, rows.shape[0], depth, colour_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", head), *([(b"tRNS", key)] if key else []), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def big_endian(samples: Array) -> Array:
    return np.frombuffer(samples.astype(">u2").tobytes(), np.uint8).reshape(samples.shape[0], -1)


WIDE = RNG.integers(0, 65536, (9, 7, 4), dtype=np.uint16)
WIDE[0, :4, 0] = (0, 255, 256, 65535)


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bit_png_is_scaled_and_never_saturates(
    tmp_path: Path, colour_type: int, channels: int
) -> None:
    samples = WIDE[..., :channels]
    path = write_raw(tmp_path, png(big_endian(samples), 16, colour_type))
    found = read_pixels(path)
    expected = samples / 257
    if channels in (1, 2):
        expected = np.dstack([expected[..., 0]] * 3 + ([expected[..., 1]] if channels == 2 else []))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= (0.51 if channels == 1 else 1)
    assert audit_image(str(path))["bit_depth"] == 16


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_transparent_grey_is_found_at_every_depth(tmp_path: Path, depth: int) -> None:
    levels = RNG.integers(0, 2**depth, (6, 16), dtype=np.uint16)
    key = int(levels[3, 5])
    if depth == 16:
        rows = big_endian(levels)
    else:
        bits = (levels[..., None] >> np.arange(depth - 1, -1, -1)) & 1
        rows = np.packbits(bits.reshape(6, -1).astype(np.uint8), axis=1)
    found = read_pixels(write_raw(tmp_path, png(rows, depth, 0, struct.pack(">H", key))))
    assert np.array_equal(found[..., 3] == 0, levels == key)
    assert np.abs(found[..., 0] - levels * 255.0 / (2**depth - 1)).max() <= 0.51


def test_transparent_colour(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 2, (6, 8, 3), np.uint8) * 255
    key = struct.pack(">HHH", *(int(part) for part in pixels[2, 3]))
    found = read_pixels(write_raw(tmp_path, png(pixels.reshape(6, -1), 8, 2, key)))
    assert np.array_equal(found[..., 3] == 0, (pixels == pixels[2, 3]).all(axis=-1))
    assert np.array_equal(found[..., :3], pixels)
    deep = write_raw(tmp_path, png(big_endian(WIDE[..., :3]), 16, 2, struct.pack(">HHH", 1, 2, 3)))
    for look in (cut, audit_image):
        with refusal(Unusable, what="deep_colour_key", given=16) as refused:
            look(str(deep))
        assert (refused.value.outcome, refused.value.code) == ("dropped", "deep_colour_key")


def tiff(samples: bytes, size: tuple[int, int], tags: dict[int, tuple[int, ...]], order: str = "<") -> bytes:
    """An uncompressed TIFF of one strip (TIFF 6.0, section 2)."""
    width, height = size
    entries = {256: (width,), 257: (height,), 259: (1,), 277: (1,), 273: (0,), 278: (height,)}
    entries |= {279: (len(samples),)} | tags
    start = 8 + 2 + 12 * len(entries) + 4
    later, body = b"", b""
    for tag, values in sorted(entries.items()):
        values = (start + 64,) if tag == 273 else values
        kind, word = (4, "I") if tag in (273, 279) else (3, "H")
        packed = struct.pack(f"{order}{len(values)}{word}", *values)
        if len(packed) > 4:
            packed, later = struct.pack(order + "I", start + len(later)), later + packed
        body += struct.pack(order + "HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    mark = b"II*\0" if order == "<" else b"MM\0*"
    head = mark + struct.pack(order + "IH", 8, len(entries)) + body + bytes(4)
    return head + later.ljust(64, b"\0") + samples


@pytest.mark.parametrize(("order", "photometric"), [("<", 0), ("<", 1), (">", 1)])
def test_sixteen_bit_tiff_in_both_byte_orders_and_senses(
    tmp_path: Path, order: str, photometric: int
) -> None:
    levels = WIDE[..., 0]
    stored = levels.astype(order + "u2").tobytes()
    path = write_raw(tmp_path, tiff(stored, (7, 9), {258: (16,), 262: (photometric,)}, order))
    expected = levels / 257 if photometric else 255 - levels / 257
    assert np.abs(read_pixels(path) - expected[..., None]).max() <= 0.51
    assert audit_image(str(path))["bit_depth"] == 16


def test_twelve_bits_fill_the_scale(tmp_path: Path) -> None:
    levels = np.arange(0, 4096, 63, dtype=np.uint16)[:64].reshape(8, 8)
    levels[-1, -1] = 4095
    bits = (levels[..., None] >> np.arange(11, -1, -1)) & 1
    stored = np.packbits(bits.reshape(8, -1).astype(np.uint8), axis=1).tobytes()
    path = write_raw(tmp_path, tiff(stored, (8, 8), {258: (12,), 262: (1,)}))
    assert np.abs(read_pixels(path)[..., 0] - levels * 255.0 / 4095).max() <= 0.51
    assert audit_image(str(path))["bit_depth"] == 12


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("channels", [3, 4])
def test_sixteen_bit_colours_of_tiff(tmp_path: Path, order: str, channels: int) -> None:
    samples = WIDE[..., :channels]
    tags = {258: (16,) * channels, 262: (2,), 277: (channels,)} | ({338: (2,)} if channels == 4 else {})
    path = write_raw(tmp_path, tiff(samples.astype(order + "u2").tobytes(), (7, 9), tags, order))
    assert np.abs(read_pixels(path) - samples / 257).max() <= 1


@pytest.mark.parametrize(("bits", "kind"), [(32, 3), (16, 2), (32, 1), (32, 2)])
def test_numbers_without_a_white_are_dropped(tmp_path: Path, bits: int, kind: int) -> None:
    """Floats, signed numbers, 32 bits: 1.0 may be white, or 255.0, or the light of a lamp."""
    path = write_raw(tmp_path, tiff(bytes(64 * bits // 8), (8, 8), {258: (bits,), 262: (1,), 339: (kind,)}))
    for look in (cut, audit_image):
        with refusal(Unusable, what="no_white") as refused:
            look(str(path))
        assert (refused.value.outcome, refused.value.code) == ("dropped", "no_white")


RGBA = RNG.integers(0, 256, (9, 7, 4), np.uint8)


def test_premultiplied_alpha_is_divided_away(tmp_path: Path) -> None:
    alpha = RGBA[..., 3:].astype(float) / 255
    stored = np.dstack([np.rint(RGBA[..., :3] * alpha), RGBA[..., 3]]).astype(np.uint8)
    tags = {258: (8,) * 4, 262: (2,), 277: (4,)}
    found = read_pixels(write_raw(tmp_path, tiff(stored.tobytes(), (7, 9), tags | {338: (1,)})))
    visible = RGBA[..., 3] >= 16  # of what is all but clear, no colour is left
    coarse = 255 / RGBA[..., 3:].clip(1).astype(float)
    assert np.array_equal(found[..., 3], RGBA[..., 3])
    assert (np.abs(found[..., :3] - RGBA[..., :3]) <= coarse)[visible].all()
    assert np.array_equal(
        read_pixels(write_raw(tmp_path, tiff(RGBA.tobytes(), (7, 9), tags | {338: (2,)}))), RGBA
    )
    told_nothing = read_pixels(write_raw(tmp_path, tiff(RGBA.tobytes(), (7, 9), tags | {338: (0,)})))
    assert np.array_equal(told_nothing, RGBA[..., :3])  # a fourth channel, and not alpha


def test_premultiplied_avif(tmp_path: Path) -> None:
    solid = np.zeros((32, 32, 4), np.uint8)
    solid[:] = (200, 100, 60, 128)
    data = encode_picture(
        Image.fromarray(solid), "AVIF", quality=100, subsampling="4:4:4", alpha_premultiplied=True
    )
    assert b"prem" in data
    assert np.abs(read_pixels(write_raw(tmp_path, data)) - solid).max() <= 4


def test_premultiplied_grey(tmp_path: Path) -> None:
    stored = np.stack([np.full((8, 8), 60), np.full((8, 8), 128)], axis=-1).astype(np.uint8)
    tags = {258: (8, 8), 262: (1,), 277: (2,), 338: (1,)}
    found = read_pixels(write_raw(tmp_path, tiff(stored.tobytes(), (8, 8), tags)))
    assert np.abs(found - (120, 120, 120, 128)).max() <= 2


@pytest.mark.parametrize(
    ("rule", "ground"), [("white", (255, 255, 255)), ("black", (0, 0, 0)), ("#4080C0", (64, 128, 192))]
)
def test_transparency_is_laid_on_the_requested_colour(rule: str, ground: tuple[int, int, int]) -> None:
    made, what = apply_alpha(Image.fromarray(RGBA), rule)
    share = RGBA[..., 3:] / 255
    assert what == "flattened"
    assert np.abs(np.asarray(made) - (RGBA[..., :3] * share + np.array(ground) * (1 - share))).max() <= 0.51


def encode_picture(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, kind, **options)
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "AVIF"])
def test_rules_for_transparent_photos(tmp_path: Path, kind: str) -> None:
    half = np.zeros((32, 48, 4), np.uint8)
    half[:, :24] = (200, 40, 40, 255)  # the clear half is black underneath
    path = write_raw(tmp_path, encode_picture(Image.fromarray(half), kind))
    for rule, ground in (("white", 255), ("black", 0)):
        unit = cut(path, alpha=rule)
        with Image.open(unit.fields["jpg"]) as made:
            assert np.abs(np.asarray(made)[:, 32:].astype(int) - ground).max() <= 6
        assert unit.metadata["alpha"] == unit.fields["json"]["stored"]["alpha"] == "flattened"
    with pytest.raises(Unusable) as refused:
        cut(path, alpha="drop")
    assert (refused.value.outcome, refused.value.code) == ("dropped", "transparent")
    unit = cut(path, alpha="keep")
    assert set(unit.fields) == {"img", "json"}
    assert unit.metadata["alpha"] == "kept"
    with Image.open(unit.fields["img"]) as made:
        assert made.mode == "RGBA"
        assert np.array_equal(np.asarray(made)[..., 3], half[..., 3])


def test_kept_alpha_stays_straight_when_a_photo_shrinks(tmp_path: Path) -> None:
    """Clear pixels weigh nothing in a mean of colours: else every edge gets a dark rim."""
    checks = np.zeros((128, 128, 4), np.uint8)
    checks[::2, ::2] = checks[1::2, 1::2] = (240, 120, 60, 255)
    unit = cut(write_raw(tmp_path, encode_picture(Image.fromarray(checks))), alpha="keep", short_side_px=16)
    with Image.open(unit.fields["img"]) as made:
        pixels = np.asarray(made)[4:-4, 4:-4].astype(int)
    assert np.abs(pixels - (240, 120, 60, 128)).max() <= 3


def test_alpha_channel_that_hides_nothing_is_no_transparency(tmp_path: Path) -> None:
    solid = np.dstack([RGBA[..., :3], np.full(RGBA.shape[:2], 255, np.uint8)])
    for rule in ("white", "drop", "keep"):
        unit = cut(write_raw(tmp_path, encode_picture(Image.fromarray(solid))), alpha=rule)
        assert (unit.fields["json"]["stored"]["format"], unit.metadata["alpha"]) == ("JPEG", "opaque")
    unit = cut(write_raw(tmp_path, encode_picture(Image.fromarray(RGBA[..., :3].copy()))), alpha="drop")
    assert unit.metadata["alpha"] == "none"
