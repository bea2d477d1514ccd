"""PNG of 16 bits: gray keeps its numbers, colour keeps them on request, and nothing becomes 8 bits unasked."""

import io
import struct
import zlib
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

import loader
from loader.errors import DecodeFailed
from loader.modalities import find_decoder
from tests.refusals import refusal

GRAY, RGB, GRAY_ALPHA, RGB_ALPHA = 0, 2, 4, 6
WIDE = np.random.default_rng(11).integers(0, 65536, (24, 40, 4), dtype=np.uint16)


def png16(samples, colour_type, extra=()):
    """A PNG of 16 bits. samples: uint16 [H, W, C]. extra: chunks (name, body) before the data."""
    height, width = samples.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    head = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    parts = [(b"IHDR", head), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


GRAY_PNG, RGB_PNG = png16(WIDE[..., :1], GRAY), png16(WIDE[..., :3], RGB)


@pytest.mark.parametrize("word", ["png", "img", "jpg"])
def test_gray_of_16_bits_keeps_its_numbers(word):
    for decode in (find_decoder(word), loader.image(), loader.image(bits=16)):
        got = decode(GRAY_PNG, None)
        assert got.dtype == np.uint16
        assert got.flags.c_contiguous
        assert np.array_equal(got, WIDE[..., :1])


def test_colour_of_16_bits_is_refused_until_bits_are_named():
    for decode in (find_decoder("png"), loader.image(), loader.random_resized_crop((8, 8))):
        with refusal(DecodeFailed, what="png", given="colour of 16 bits"):
            decode(RGB_PNG, None)
    assert np.array_equal(loader.image(bits=16)(RGB_PNG), WIDE[..., :3])
    assert np.array_equal(loader.image(bits=8)(RGB_PNG), WIDE[..., :3] >> 8)


@pytest.mark.parametrize("prediction", ["none", "sub", "up", "avg", "paeth", "mixed"])
@pytest.mark.parametrize(("pix_fmt", "channels"), [("rgb48be", 3), ("gray16be", 1)])
def test_every_filter_of_png_is_undone(prediction, pix_fmt, channels):
    codec = av.CodecContext.create("png", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = 40, 24, pix_fmt, Fraction(1)
    codec.options = {"pred": prediction}
    smooth = np.cumsum(WIDE[..., :channels] // 300, axis=1, dtype=np.uint16)
    frame = av.VideoFrame(40, 24, pix_fmt)
    stored = np.zeros((24, frame.planes[0].line_size), np.uint8)
    stored[:, : 80 * channels] = smooth.astype(">u2").reshape(24, -1).view(np.uint8)
    frame.planes[0].update(stored.tobytes())
    data = b"".join(map(bytes, [*codec.encode(frame), *codec.encode(None)]))
    assert np.array_equal(loader.image(bits=16)(data), smooth)


@pytest.mark.parametrize("colour_type", [GRAY_ALPHA, RGB_ALPHA])
def test_alpha_of_16_bits_is_refused_unless_8_bits_are_requested(colour_type):
    data = png16(WIDE[..., : 2 if colour_type == GRAY_ALPHA else 4], colour_type)
    for bits in (None, 16):
        with refusal(DecodeFailed, what="png", given="an alpha channel"):
            loader.image(bits=bits)(data)
    assert loader.image(bits=8, alpha="keep")(data).shape == (24, 40, 4)


@pytest.mark.parametrize(("channels", "key"), [(1, b"\0\7"), (3, bytes(6))])
def test_transparent_value_of_16_bits_is_refused(channels, key):
    data = png16(WIDE[..., :channels], GRAY if channels == 1 else RGB, [(b"tRNS", key)])
    with refusal(DecodeFailed, what="png", given="a transparent value"):
        loader.image(bits=16)(data)


def test_16_bits_are_not_invented():
    eight = io.BytesIO()
    Image.fromarray((WIDE[..., :3] >> 8).astype(np.uint8)).save(eight, "PNG")
    with refusal(
        DecodeFailed,
        what="bits",
        given="b'\\x89PNG\\r\\n\\x1a\\n\\x00\\x00\\x00\\r'",
        accepted="a PNG of 16 bits",
    ):
        loader.image(bits=16)(eight.getvalue())
    with refusal(
        DecodeFailed,
        what="bits",
        given="b'\\x89PNG\\r\\n\\x1a\\n\\x00\\x00\\x00\\r'",
        accepted="a PNG of 16 bits",
    ):
        loader.random_resized_crop((8, 8), bits=16)(eight.getvalue())


def test_scaled_gray_has_no_new_numbers():
    half = loader.image(size=(12, 20))(GRAY_PNG)
    assert np.array_equal(half, WIDE[1::2, 1::2, :1])
    middle = loader.image(size=(24, 24), crop="center")(GRAY_PNG)
    assert np.array_equal(middle, WIDE[:, 8:32, :1])
    colours = loader.image(size=(12, 20), bits=16)(RGB_PNG)
    assert np.array_equal(colours, WIDE[1::2, 1::2, :3])


def test_random_crop_of_gray_is_a_box_of_it():
    crop = loader.random_resized_crop((16, 16), area=(0.3, 0.9), flip=0.5)
    for seed in range(20):
        got = crop(GRAY_PNG, np.random.default_rng(seed))
        assert got.dtype == np.uint16
        assert got.shape == (16, 16, 1)
        assert np.isin(got, WIDE[..., :1]).all()
    whole = loader.random_resized_crop((24, 40), ratio=(40 / 24, 40 / 24), area=(1, 1), flip=1.0)
    assert np.array_equal(whole(GRAY_PNG, np.random.default_rng(0)), WIDE[:, ::-1, :1])


def test_deep_gray_comes_upright():
    exif = b"II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + bytes(4)
    data = png16(WIDE[..., :1], GRAY, [(b"eXIf", exif)])
    assert np.array_equal(loader.image()(data), np.rot90(WIDE[..., :1], -1))


def test_damaged_deep_png_is_refused():
    for data in (GRAY_PNG, RGB_PNG):
        for end in (20, 26, len(data) // 2, 3 * len(data) // 4):
            with pytest.raises(DecodeFailed):
                loader.image(bits=16)(data[:end])
        broken = bytearray(data)
        broken[len(data) // 2] ^= 0x55
        with pytest.raises(DecodeFailed):
            loader.image(bits=16)(bytes(broken))


def test_deep_images_are_one_array_in_a_batch():
    with loader.Root("memory://deep-png") as root:
        with root.write("depth") as writer:
            for n in range(6):
                writer.add(f"{n}", {"png": png16(WIDE[..., :1] + np.uint16(n), GRAY)})
        plan = loader.plan({"depth": root.open("depth")}, seed=1, global_batch=6)
        with loader.Loader(plan, workers=0, steps=1, framework="numpy") as batches:
            (batch,) = batches
        assert batch["png"].dtype == np.uint16
        for slot, (_, key) in zip(batch["png"], batch.ids, strict=True):
            assert np.array_equal(slot, WIDE[..., :1] + np.uint16(int(key)))
