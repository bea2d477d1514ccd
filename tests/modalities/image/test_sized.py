"""loader.image: one shape for all pictures, the right part of them, the same bits everywhere."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

import loader
from loader.errors import DecodeFailed, InvalidRuntime
from loader.modalities import find_decoder
from loader.modalities.image.decode import MAX_IMAGE_PX
from loader.modalities.image.request import MAX_SIZE_PX
from tests.refusals import refusal

decode = find_decoder("jpg")
Y, X = np.mgrid[:96, :160].astype(float)
WAVES = 128 + 60 * np.cos(X / 9 + Y / 14) + 50 * np.cos(Y / 5 - X / 31)
PIXELS = np.stack([WAVES, 255 - WAVES, X * 1.5], axis=-1).clip(0, 255).astype(np.uint8)
PIXELS[:24, :40] = (230, 30, 30)


def encode_picture(picture, kind="PNG", **options):
    file = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, kind, **options)
    return file.getvalue()


def exif(orientation):
    note = Image.Exif()
    note[0x0112] = orientation
    return note


def resize_pixels(pixels, height, width):
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


KINDS = {
    "JPEG": {"quality": 95},
    "PNG": {},
    "WEBP": {"lossless": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crop", [None, "center", "random"])
@pytest.mark.parametrize("size", [(64, 64), (33, 200), (300, 20), (1, 1), (96, 160)])
def test_shape_is_the_requested_one(kind, crop, size):
    for orientation in (1, 3, 6):
        data = encode_picture(PIXELS, kind, exif=exif(orientation), **KINDS[kind])
        got = loader.image(size=size, crop=crop)(data, np.random.default_rng(1))
        assert (got.shape, got.dtype) == ((*size, 3), np.uint8)
        assert got.flags.c_contiguous
        assert got.flags.writeable


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_without_a_size_it_is_the_picture_itself(kind, orientation):
    data = encode_picture(PIXELS, kind, exif=exif(orientation), **KINDS[kind])
    assert np.array_equal(loader.image()(data), decode(data, None))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_stretched_to_a_size(orientation):
    """What is asked for is upright, whatever lies in the file."""
    data = encode_picture(PIXELS, exif=exif(orientation))
    got = loader.image(size=(40, 50))(data).astype(int)
    assert np.abs(got - resize_pixels(decode(data, None), 40, 50)).max() <= 1


@pytest.mark.parametrize(
    ("size", "whole"), [((48, 48), (48, 80)), ((40, 80), (48, 80)), ((96, 96), (96, 160))]
)
@pytest.mark.parametrize("orientation", [1, 2, 4, 6, 7])
def test_centre_is_cut_from_a_picture_that_covers(size, whole, orientation):
    data = encode_picture(PIXELS, exif=exif(orientation))
    upright = decode(data, None)
    if orientation > 4:
        size, whole = size[::-1], whole[::-1]
    covering = resize_pixels(upright, *whole).astype(int)
    top, left = (whole[0] - size[0]) // 2, (whole[1] - size[1]) // 2
    expected = covering[top : top + size[0], left : left + size[1]]
    got = loader.image(size=size, crop="center")(data)
    assert (
        np.abs(got - expected)[2:-2, 2:-2].max() <= 1
    )  # at the cut edge nothing of what lies beyond is mixed in


def test_random_place_is_the_generators_and_reaches_every_edge():
    data = encode_picture(PIXELS)
    decoder = loader.image(size=(96, 96), crop="random")
    first = decoder(data, np.random.default_rng(5))
    assert np.array_equal(first, decoder(data, np.random.default_rng(5)))
    assert np.array_equal(decoder(data), loader.image(size=(96, 96), crop="center")(data))
    rng = np.random.default_rng(6)
    places = set()
    for _ in range(400):
        got = decoder(data, rng)
        (place,) = [left for left in range(65) if np.array_equal(got, PIXELS[:, left : left + 96])]
        places.add(place)
    assert {0, 64} <= places
    assert len(places) > 55


def test_crop_of_the_stored_size_is_not_resampled():
    for orientation in (1, 8):
        data = encode_picture(PIXELS, "JPEG", quality=90, exif=exif(orientation))
        whole = decode(data, None)
        size = whole.shape[0] - 10, whole.shape[1]
        assert np.array_equal(loader.image(size=size, crop="center")(data)[:, 3], whole[5:-5, 3])


def test_bucket_is_a_size_width_first():
    assert loader.image(size="w48h96").size == (96, 48)
    assert loader.image(size="w48h96")(encode_picture(PIXELS)).shape == (96, 48, 3)


def test_transparency_on_a_ground_or_kept():
    alpha = np.zeros(PIXELS.shape[:2], np.uint8)
    alpha[:, 80:] = 255
    data = encode_picture(np.dstack([PIXELS, alpha]))
    for ground, level in (("white", 255), ("black", 0)):
        got = loader.image(size=(96, 160), alpha=ground)(data)
        assert (got[:, :80] == level).all()
        assert np.array_equal(got[:, 80:], PIXELS[:, 80:])
    kept = loader.image(size=(48, 80), alpha="keep")
    assert kept(data).shape == (48, 80, 4)
    assert (kept(data)[:, :38, 3] == 0).all()
    opaque = kept(encode_picture(PIXELS, "JPEG"))
    assert opaque.shape == (48, 80, 4)
    assert (opaque[..., 3] == 255).all()
    assert np.abs(kept(data)[4:-4, 44:-4, :3].astype(int) - opaque[4:-4, 44:-4, :3]).mean() < 3  # no dark rim


def photo_like(height, width):
    """Detail at every scale, as in photos: noise whose amplitude falls with its frequency."""
    rng = np.random.default_rng(8)
    out = np.zeros((height, width, 3))
    for cells, weight in ((4, 60), (16, 40), (64, 20), (256, 10), (800, 4)):
        small = rng.normal(size=(cells, cells, 3)).clip(-3, 3) * 40 + 128
        grown = Image.fromarray(small.clip(0, 255).astype(np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        out += (np.asarray(grown) - 128.0) * weight / 40
    return (128 + out).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("size", "divisor"), [((150, 200), 2), ((75, 100), 4), ((30, 40), 8), ((10, 13), 8), ((151, 201), 1)]
)
@pytest.mark.parametrize("progressive", [False, True])
def test_what_the_decoder_shrinks_is_all_but_what_the_filter_would(size, divisor, progressive, monkeypatch):
    from loader.modalities.image import decode as image

    pixels = photo_like(607, 803)  # no multiple of any block
    data = encode_picture(pixels, "JPEG", quality=92, progressive=progressive)
    asked = []
    real = image._plain_jpeg
    monkeypatch.setattr(image, "_plain_jpeg", lambda d, h, n, out=None: asked.append(n) or real(d, h, n, out))
    got = loader.image(size=size)(data).astype(int)
    assert asked == [divisor]
    error = np.abs(got - resize_pixels(decode(data, None), *size))
    assert error.mean() <= 0.8
    assert np.percentile(error, 99.9) <= 5


def test_gray_jpegs_are_shrunk_too():
    data = encode_picture(photo_like(400, 400)[..., 0].copy(), "JPEG")
    got = loader.image(size=(50, 50))(data).astype(int)
    assert (got == got[..., :1]).all()
    assert np.abs(got - resize_pixels(decode(data, None), 50, 50)).mean() <= 0.8


def test_bits_are_the_same_on_every_machine():
    """Of a PNG: what a codec gives is its own affair, the filter is ours. Bicubic, fixed point."""
    steps = np.arange(90 * 130 * 3, dtype=np.uint32).reshape(90, 130, 3)
    pixels = (steps * 2654435761 >> 13 & 255).astype(np.uint8)
    told = {
        (size, crop): hashlib.sha256(
            loader.image(size=size, crop=crop)(encode_picture(pixels)).tobytes()
        ).hexdigest()[:12]
        for size, crop in (((31, 47), None), ((64, 64), "center"), ((200, 101), "center"))
    }
    assert told == {
        ((31, 47), None): "9df345c55571",
        ((64, 64), "center"): "e74de844f987",
        ((200, 101), "center"): "3f55201ebe9b",
    }


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damage_and_bombs_are_refused_as_ever(kind):
    data = encode_picture(PIXELS, kind)
    decoder = loader.image(size=(8, 8), crop="center")
    for n in (0, 1, 3, len(data) // 2, len(data) - 120):
        with pytest.raises(DecodeFailed):
            decoder(data[:n])
    assert MAX_IMAGE_PX == MAX_SIZE_PX


@pytest.mark.parametrize(
    ("wrong", "what", "value"),
    [
        ({"size": (0, 5)}, "size", (0, 5)),
        ({"size": 5}, "image()", [5, None, "white", None]),
        ({"size": (5,)}, "image()", [(5,), None, "white", None]),
        ({"size": (5.5, 5)}, "image()", [(5.5, 5), None, "white", None]),
        ({"size": (20000, 20000)}, "size", (20000, 20000)),
        ({"size": "896x1152"}, "image()", ["896x1152", None, "white", None]),
        ({"size": "w896h1152f16"}, "image()", ["w896h1152f16", None, "white", None]),
        ({"size": (5, 5), "crop": "middle"}, "crop", "middle"),
        ({"crop": "center"}, "size", None),
        ({"alpha": "red"}, "alpha", "red"),
    ],
)
def test_what_it_takes(wrong, what, value):
    with refusal(InvalidRuntime, what=what, given=value):
        loader.image(**wrong)


@pytest.mark.parametrize("make", [loader.image, loader.video])
@pytest.mark.parametrize("size", [224, (224,), (224.0, 224), (1, 2, 3)])
def test_size_that_is_no_pair_is_told_what_is_accepted(make, size):
    with pytest.raises(InvalidRuntime, match=r"\(height, width\) in whole px"):
        make(size=size)


@pytest.fixture(scope="module")
def six_pictures():
    """Six pictures of other shapes and formats, some with alpha."""
    shapes = [(40, 60), (90, 20), (16, 16), (300, 500), (96, 160), (64, 64)]
    with loader.Root("memory://image-sized") as root:
        with root.write("mixed") as writer:
            for i, (shape, kind) in enumerate(zip(shapes, ["JPEG", "PNG", "WEBP"] * 2, strict=True)):
                clear = np.full(PIXELS.shape[:2], 200, np.uint8)
                pixels = PIXELS if i % 2 or kind == "JPEG" else np.dstack([PIXELS, clear])
                writer.add(f"k{i}", {"img": encode_picture(resize_pixels(pixels, *shape), kind), "cls": i})
        yield root.open("mixed@1")


def test_pictures_of_any_shape_and_format_are_one_array(six_pictures):
    plan = loader.plan({"m": six_pictures}, seed=1, global_batch=6)
    seen = []
    for workers in (0, 2):
        decoder = {"img": loader.image(size=(24, 32), crop="random")}
        with loader.Loader(plan, decode=decoder, framework="numpy", workers=workers) as batches:
            seen.append(next(batches)["img"])
    assert seen[0].shape == (6, 24, 32, 3)
    assert np.array_equal(*seen)
