"""Images: pixels, turns, alpha, depth, and every way in which bytes can be wrong."""

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from loader.errors import DecodeFailed
from loader.modalities import find_decoder
from loader.modalities.container_parts import riff_chunk
from loader.modalities.image import decode as image
from loader.modalities.image import jpeg_header
from loader.modalities.image.deep_png import needs_bits
from loader.modalities.image.request import ImageDecoder
from tests.refusals import refusal

decode = find_decoder("jpg")
RNG = np.random.default_rng(7)
SMOOTH = np.add.outer(np.arange(48) * 3, np.arange(64) * 2)[:, :, None] % 256 // np.array([1, 2, 3])
PIXELS = SMOOTH.astype(np.uint8)


def encode_picture(picture, kind, **options):
    file = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, kind, **options)
    return file.getvalue()


def exif(orientation, order="<", kind="H"):
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHI" + kind, 0x0112, 3 if kind == "H" else 4, 1, orientation).ljust(
        12, b"\0"
    )
    other = struct.pack(order + "HHIHH", 0x0100, 3, 1, 64, 0)
    return b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 2) + other + entry + b"\0" * 4


def with_app1(jpeg, payload):
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


JPEG = encode_picture(PIXELS, "JPEG", quality=95, subsampling=0)


def test_jpeg_is_what_turbojpeg_gives():
    got = decode(JPEG, None)
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert got.flags.writeable
    assert np.array_equal(got, simplejpeg.decode_jpeg(JPEG))
    assert np.abs(got.astype(int) - PIXELS).mean() < 2


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_buffer_is_read(kind):
    for data in (JPEG, encode_picture(PIXELS, "PNG")):
        assert np.array_equal(decode(kind(data), None), decode(data, None))


def test_progressive_and_gray_jpegs():
    assert (
        np.abs(
            decode(encode_picture(PIXELS, "JPEG", quality=95, progressive=True), None).astype(int) - PIXELS
        ).mean()
        < 4
    )
    gray = decode(encode_picture(PIXELS[:, :, 0].copy(), "JPEG"), None)
    assert gray.shape == (48, 64, 3)
    assert (gray == gray[:, :, :1]).all()


def test_cmyk_jpeg_becomes_rgb():
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[:, :8, 0] = 255  # cyan: no red
    ink[:, 8:, 3] = 128  # half black
    data = encode_picture(Image.frombytes("CMYK", (16, 16), ink.tobytes()), "JPEG", quality=95)
    got = decode(data, None).astype(int)
    assert got.shape == (16, 16, 3)
    assert np.abs(got[:, :7] - [0, 255, 255]).max() < 20
    assert np.abs(got[:, 9:] - [127, 127, 127]).max() < 20


def test_png_with_imagemagick_s_exif_comes_upright():
    profile = PngInfo()
    profile.add_text("Raw profile type exif", f"\nexif\n{len(exif(8)):8}\n{exif(8).hex()}\n", zip=True)
    assert np.array_equal(decode(encode_picture(PIXELS, "PNG", pnginfo=profile), None), np.rot90(PIXELS, 1))
    broken = PngInfo()
    broken.add_text("Raw profile type exif", "no hex")
    assert np.array_equal(decode(encode_picture(PIXELS, "PNG", pnginfo=broken), None), PIXELS)


TURNS = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a.swapaxes(0, 1), 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", "HI")
def test_every_exif_orientation_comes_upright(orientation, order, kind):
    note = exif(orientation, order, kind)
    plain = decode(JPEG, None)
    got = decode(with_app1(JPEG, note), None)
    assert got.flags.c_contiguous
    assert np.array_equal(got, TURNS[orientation](plain))
    for word in ("PNG", "WEBP"):
        got = decode(encode_picture(PIXELS, word, exif=note, lossless=True), None)
        assert np.array_equal(got, TURNS[orientation](PIXELS))


@pytest.mark.parametrize("orientation", TURNS)
def test_exif_turns_agree_with_pillow(orientation):
    from PIL import ImageOps

    data = encode_picture(PIXELS, "PNG", exif=exif(orientation))
    with Image.open(io.BytesIO(data)) as opened:
        assert np.array_equal(decode(data, None), np.asarray(ImageOps.exif_transpose(opened)))


XMP = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'


def test_xmp_speaks_where_exif_does_not():
    plain = decode(JPEG, None)
    assert np.array_equal(decode(with_app1(JPEG, XMP % 6), None), np.rot90(plain, -1))
    both = with_app1(with_app1(JPEG, XMP % 6), exif(3))
    assert np.array_equal(decode(both, None), np.rot90(plain, 2))
    element = b"http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>8</tiff:Orientation>"
    assert np.array_equal(decode(with_app1(JPEG, element), None), np.rot90(plain, 1))


@pytest.mark.parametrize("note", [exif(0), exif(9), b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"other"])
def test_metadata_that_say_nothing_leave_the_pixels(note):
    assert np.array_equal(decode(with_app1(JPEG, note), None), decode(JPEG, None))


def test_alpha_is_a_fourth_channel():
    rgba = np.dstack([PIXELS, PIXELS[:, :, 0]])
    for kind in ("PNG", "WEBP"):
        got = decode(encode_picture(rgba, kind, lossless=True, exact=True), None)
        assert np.array_equal(got, rgba)
    la = np.dstack([PIXELS[:, :, 0], PIXELS[:, :, 1]])
    got = decode(encode_picture(la, "PNG"), None)
    assert np.array_equal(got, np.dstack([la[:, :, 0]] * 3 + [la[:, :, 1]]))


def test_palettes_and_bits():
    flat = Image.fromarray(PIXELS).quantize(16)
    assert np.array_equal(decode(encode_picture(flat, "PNG"), None), np.asarray(flat.convert("RGB")))
    clear = decode(encode_picture(flat, "PNG", transparency=bytes([0] + [255] * 15)), None)
    assert clear.shape[2] == 4
    assert np.array_equal(clear[:, :, 3] == 0, np.asarray(flat) == 0)
    bits = Image.fromarray(PIXELS[:, :, 0] > 90)
    assert np.array_equal(
        decode(encode_picture(bits, "PNG"), None)[:, :, 1], np.asarray(bits) * np.uint8(255)
    )


def png16(samples, colour_type, trns=b""):
    """A 16-bit PNG written by hand: Pillow writes gray ones only."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    head = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], 16, colour_type, 0, 0, 0)
    parts = [
        (b"IHDR", head),
        *([(b"tRNS", trns)] if trns else []),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_16_bit_samples_keep_their_high_byte_on_request():
    decode = find_decoder("png", bits=8)
    wide = RNG.integers(0, 65536, (5, 7, 4), dtype=np.uint16)
    high = (wide >> 8).astype(np.uint8)
    assert np.array_equal(decode(png16(wide[:, :, 0], 0), None), np.dstack([high[:, :, 0]] * 3))
    assert np.array_equal(decode(png16(wide[:, :, :3], 2), None), high[:, :, :3])
    assert np.array_equal(decode(png16(wide, 6), None), high)
    key = struct.pack(">H", wide[2, 3, 0])
    got = decode(png16(wide[:, :, 0], 0, key), None)
    assert np.array_equal(got[:, :, 3] == 0, wide[:, :, 0] == wide[2, 3, 0])


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_transparent_grey_is_found_at_every_depth(depth):
    levels = RNG.integers(0, 2**depth, (6, 16), dtype=np.uint8)
    bits = np.packbits(levels[..., None] >> np.arange(depth - 1, -1, -1, dtype=np.uint8) & 1, axis=None)
    key = int(levels[3, 5])
    whole = png16(np.zeros((1, 1), np.uint16), 0, struct.pack(">H", key))
    head = struct.pack(">IIBBBBB", 16, 6, depth, 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in bits.reshape(6, -1))
    data, at = zlib.compress(rows), whole.index(b"IDAT") - 4
    chunks = [(b"IHDR", head), (b"IDAT", data)]
    head, body = (struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks)
    got = decode(whole[:8] + head + whole[33:at] + body + whole[-12:], None)
    assert np.array_equal(got[..., 3] == 0, levels == key)


def test_transparent_colour_of_16_bits_is_refused():
    with refusal(DecodeFailed, what="png", given="16-bit colours of which one is transparent"):
        find_decoder("png", bits=8)(png16(np.zeros((2, 2, 3), np.uint16), 2, bytes(6)), None)


def test_bytes_decide_not_the_suffix():
    data = encode_picture(PIXELS, "PNG")
    assert np.array_equal(find_decoder("photo.jpg")(data, None), PIXELS)


def test_truncated_jpeg_is_refused_wherever_it_ends():
    for n in [*range(2, 700, 23), len(JPEG) // 2, len(JPEG) - 100, len(JPEG) - 2]:
        with refusal(DecodeFailed, what="jpg"):
            decode(JPEG[:n], None)
    with refusal(DecodeFailed, what="jpg"):
        decode(JPEG[: len(JPEG) // 2] + b"\xff\xd9", None)


def test_bombs_are_refused_by_their_headers():
    frame = JPEG.index(b"\xff\xc0")
    huge = JPEG[: frame + 5] + struct.pack(">HH", 65500, 65500) + JPEG[frame + 9 :]
    with refusal(DecodeFailed, what="px", given=[65500, 65500], accepted=89478485):
        decode(huge, None)
    png = png16(np.zeros((1, 1), np.uint16), 0)
    head = struct.pack(">II", 40_000, 40_000) + png[24:29]
    huge = png[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + png[33:]
    with refusal(DecodeFailed, what="px", given=[40000, 40000], accepted=89478485):
        decode(huge, None)
    canvas = (99_999).to_bytes(3, "little") * 2
    chunk = riff_chunk(b"VP8X", b"\x02\0\0\0" + canvas)
    with refusal(DecodeFailed, what="webp", given="DecompressionBombError"):
        decode(riff_chunk(b"RIFF", b"WEBP" + chunk), None)
    assert image.MAX_IMAGE_PX == 89_478_485


def many_scans(progressive, n):
    """A 64 x 48 JPEG whose last scan comes `n` times more."""
    if progressive:
        whole = encode_picture(PIXELS, "JPEG", progressive=True)
    else:  # one scan per component: libjpeg reads them all, as those of a progressive file
        whole = in_three_scans(JPEG)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * n + b"\xff\xd9"


def in_three_scans(jpeg):
    """The frame header of a baseline JPEG, and one scan of grey data for each component."""
    scan = jpeg.index(b"\xff\xda")
    tables = bytes([0x00, 0x11, 0x11])
    data = bytes(200).replace(b"\0", b"\x28")
    scans = (b"\xff\xda\0\x08\x01" + bytes([i + 1, tables[i], 0, 63, 0]) + data for i in range(3))
    return jpeg[:scan] + b"".join(scans) + b"\xff\xd9"


@pytest.mark.parametrize("progressive", [True, False])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_jpeg_of_too_many_scans_is_refused(progressive, kind):
    """Each scan is a pass over all pixels, progressive or not: 66 KB of them decoded for 17 s."""
    data = kind(many_scans(progressive, 150))
    for read in (decode, find_decoder("img"), ImageDecoder(size=(24, 32))):
        with refusal(DecodeFailed, what="scans", accepted=100):
            read(data, None)


def test_large_jpeg_has_fewer_scans():
    """Of 81 million pixels 26 scans are 3 s of decoding, and 100 are 11 s."""
    data = bytearray(many_scans(True, 60))
    with pytest.raises(DecodeFailed, match="Inconsistent progression"):  # which is found by decoding
        decode(bytes(data), None)
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 9000, 9000)
    with refusal(DecodeFailed, what="scans", accepted=26):
        decode(bytes(data), None)


def test_jpeg_scans_are_counted_as_libjpeg_finds_them():
    """Bytes of a comment that look like scans are none; a scan behind stray bytes is one."""
    whole = encode_picture(PIXELS, "JPEG", progressive=True)
    comment = b"\xff\xda" * 300
    noted = whole[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + whole[2:]
    assert np.array_equal(decode(noted, None), decode(whole, None))
    last = whole.rindex(b"\xff\xda")
    stray = whole[:last] + b"".join([b"\xff\xff\xff" + whole[last:-2]] * 150) + b"\xff\xd9"
    with refusal(DecodeFailed, what="scans", accepted=100):
        decode(stray, None)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\xff\xd8", b"GIF89a" + b"\0" * 30, b"%PDF-1.4", b"RIFF\0\0\0\0WEBP"]
)
def test_other_bytes_are_refused(data):
    with pytest.raises(DecodeFailed):
        decode(data, None)


@pytest.mark.filterwarnings("ignore:Invalid APNG:UserWarning")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_flipped_and_cut_bytes_decode_or_are_refused(kind):
    rng = np.random.default_rng(3)
    good = encode_picture(PIXELS, kind, exif=exif(6))
    for _ in range(200):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.integers(256)
        cut = bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.4 else data)
        with contextlib.suppress(DecodeFailed):
            got = decode(cut, None)
            assert got.dtype == np.uint8
            assert got.ndim == 3


def test_header_that_is_known_is_the_one_that_is_walked():
    """Whatever is flipped in it, cut off it or put into it, and also the second time."""

    def outcome(read, data):
        try:
            return read(data)
        except DecodeFailed as error:
            return str(error)

    rng = np.random.default_rng(5)
    false_scan = with_app1(JPEG, b"a thumbnail" + b"\xff\xda" + bytes(40))
    plain = [
        JPEG,
        with_app1(JPEG, exif(6)),
        with_app1(JPEG, exif(1)),
        false_scan,
        with_app1(JPEG, bytes(3000)),
    ]
    seen = set()
    for turn in range(600):
        data = bytearray(plain[turn % len(plain)])
        for place in rng.integers(0, 700, rng.integers(0, 4)):
            data[place] = rng.choice([0, 1, 7, 0xC0, 0xC4, 0xD9, 0xDA, 0xE1, 0xFF])
        cut = bytes(data[: rng.integers(2, 800)] if turn % 3 == 0 else data)
        wanted = outcome(jpeg_header._walk_segments, cut)
        seen.add(type(wanted))
        for given in (cut, memoryview(cut), cut):
            assert outcome(jpeg_header.read_header, given) == wanted
    assert seen == {str, jpeg_header.JpegHeader}


def test_real_images_decode_or_are_refused_as_the_corpus_says():
    """The corpus (when there is one) names its broken files; every other JPEG, PNG and WebP decodes."""
    folder = os.environ.get("PENSTOCK_MEDIA")
    broken = ("broken", "truncated", "shortened", "decompression_bomb")
    for path in sorted(Path(folder, "image").iterdir()) if folder else ():
        if path.suffix not in (".jpg", ".png", ".webp"):
            continue
        if any(word in path.name for word in broken):
            with pytest.raises(DecodeFailed):
                decode(path.read_bytes(), None)
        elif needs_bits(path.read_bytes()):
            with refusal(DecodeFailed, what="png", given="colour of 16 bits"):
                decode(path.read_bytes(), None)
            assert ImageDecoder(bits=8)(path.read_bytes()).shape[2] in (3, 4), path.name
        else:
            assert decode(path.read_bytes(), None).shape[2] in (1, 3, 4), path.name


def test_same_scene_in_every_orientation_looks_the_same():
    """exif_Portrait_<n>.jpg of the corpus are one picture stored under several orientations."""
    folder = os.environ.get("PENSTOCK_MEDIA")
    paths = sorted(Path(folder, "image").glob("exif_Portrait_[1-8].jpg")) if folder else []
    small = [
        np.asarray(Image.fromarray(decode(path.read_bytes(), None)).resize((24, 36))).astype(float)[
            9:-9, 6:-6
        ]
        for path in paths
    ]
    for other in small[1:]:
        assert np.corrcoef(small[0].ravel(), other.ravel())[0, 1] > 0.9
