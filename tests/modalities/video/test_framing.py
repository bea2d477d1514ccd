"""Crop and size: exactly these pixels of the upright picture, in one conversion."""

import io
from fractions import Fraction
from itertools import product

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import DecodeFailed, InvalidRuntime
from loader.modalities.image.crop import Framing, PixelTurn, apply_turn, covering
from loader.modalities.video.request import video
from tests.refusals import refusal

TURNS = [PixelTurn(*flags) for flags in product((False, True), repeat=3)]
sides = st.integers(1, 60)


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.data(), sides, sides, st.sampled_from(TURNS))
def test_box_of_the_upright_picture_whatever_its_turn(data, height, width, turn):
    stored = np.arange(height * width * 3, dtype=np.uint32).astype(np.uint8).reshape(height, width, 3)
    stored[..., 0], stored[..., 1] = np.arange(height)[:, None], np.arange(width)
    upright = apply_turn(stored, turn)
    top = data.draw(st.integers(0, upright.shape[0] - 1))
    left = data.draw(st.integers(0, upright.shape[1] - 1))
    high = data.draw(st.integers(1, upright.shape[0] - top))
    wide = data.draw(st.integers(1, upright.shape[1] - left))
    wanted = upright[top : top + high, left : left + wide]
    for size in (None, (7, 5)):
        layout = Framing(crop=(top, left, high, wide), size=size).layout((height, width), turn)
        y, x, h, w = layout.kept if size is None else layout.source
        assert np.array_equal(apply_turn(np.ascontiguousarray(stored[y : y + h, x : x + w]), turn), wanted)
        if size is not None:
            assert layout.kept == (0, 0, *layout.scaled)
            assert layout.scaled == ((5, 7) if turn.transpose else (7, 5))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(sides, sides, sides, sides)
def test_covering_keeps_the_shape(height, width, to_height, to_width):
    scaled = covering((height, width), (to_height, to_width))
    scale = max(Fraction(to_height, height), Fraction(to_width, width))
    assert scaled[0] >= to_height
    assert scaled[1] >= to_width
    assert scaled[0] == to_height or scaled[1] == to_width
    for got, side, least in ((scaled[0], height, to_height), (scaled[1], width, to_width)):
        assert abs(got - side * scale) <= Fraction(1, 2) or got == least


@settings(derandomize=True, max_examples=200, deadline=None)
@given(sides, sides, sides, sides, st.sampled_from(TURNS), st.floats(0, 1, exclude_max=True))
def test_covering_crops_lie_inside(height, width, to_height, to_width, turn, at):
    for framing in (
        Framing(size=(to_height, to_width), crop="center"),
        Framing(size=(to_height, to_width), crop="random", place=(at, at)),
    ):
        layout = framing.layout((height, width), turn)
        top, left, high, wide = layout.kept
        assert layout.source == (0, 0, height, width)
        assert (wide, high) if turn.transpose else (high, wide) == (to_height, to_width)
        assert 0 <= top <= layout.scaled[0] - high
        assert 0 <= left <= layout.scaled[1] - wide


def test_center_is_the_middle_of_the_scaled_picture(videos):
    """96 x 64 px (width x height) to 32 x 32: scaled to 48 x 32, 8 columns cut on each side."""
    data = videos["gop12"][0]
    scaled = video(3, start=20, size=(32, 48))(data)
    assert np.array_equal(video(3, start=20, size=(32, 32), crop="center")(data), scaled[:, :, 8:40])
    tall = video(3, start=20, size=(80, 120))(data)
    assert np.array_equal(video(3, start=20, size=(80, 40), crop="center")(data), tall[:, :, 40:80])


def test_random_place_is_one_for_the_clip_and_covers_all(videos):
    data = videos["gop12"][0]
    scaled = video(2, start=20, size=(32, 48))(data)
    decoder = video(2, start=20, size=(32, 32), crop="random")
    places = set()
    for seed in range(120):
        got = decoder(data, rng(seed))
        found = [x for x in range(17) if np.array_equal(got, scaled[:, :, x : x + 32])]
        assert found
        places.update(found)
        assert np.array_equal(got, decoder(data, rng(seed)))
    assert places == set(range(17))
    assert np.array_equal(decoder(data), scaled[:, :, 8:40])  # without a generator


def test_crop_does_not_change_the_drawn_place(videos):
    data = videos["gop12"][0]
    for seed in range(5):
        plain = video(4, size=(32, 48))(data, rng(seed))
        cut = video(4, size=(32, 32), crop="center")(data, rng(seed))
        drawn = video(4, size=(32, 32), crop="random")(data, rng(seed))
        assert np.array_equal(cut, plain[:, :, 8:40])
        assert any(np.array_equal(drawn, plain[:, :, x : x + 32]) for x in range(17))


def test_box_as_it_is(videos):
    data = videos["gop12"][0]
    whole = video(2, start=7)(data)
    for box in ((0, 0, 64, 96), (3, 5, 21, 33), (63, 95, 1, 1)):
        top, left, high, wide = box
        got = video(2, start=7, crop=box)(data)
        assert np.array_equal(got, whole[:, top : top + high, left : left + wide])
        assert got.flags.c_contiguous


def lossless(pixels, format="yuv444p"):
    """A video of one frame whose samples of Y, U and V are these, uint8 [3, H, W]; colour halved for 4:2:0."""
    height, width = pixels.shape[1:]
    frame = av.VideoFrame(width, height, format)
    for plane, values in zip(frame.planes, pixels, strict=True):
        step = width // plane.width
        rows = np.zeros((plane.height, plane.line_size), np.uint8)
        rows[:, : plane.width] = values[::step, ::step]
        plane.update(rows.tobytes())
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = width, height, format
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def test_box_that_is_resized_is_cut_first():
    """The box alone as a video gives the same, and no pixel from outside of it has a part in it."""
    generator = rng(5)
    for format, (top, left, high, wide) in product(
        ("yuv420p", "yuv444p"), [(10, 20, 30, 40), (0, 0, 64, 96), (2, 94, 62, 2), (0, 0, 40, 64)]
    ):
        inside = generator.integers(16, 235, (3, 64, 96)).astype(np.uint8)
        box = (slice(None), slice(top, top + high), slice(left, left + wide))
        outside = generator.integers(16, 235, (3, 64, 96)).astype(np.uint8)
        outside[box] = inside[box]
        for size in ((16, 24), (80, 50)):
            decoder = video(1, start=0, crop=(top, left, high, wide), size=size)
            got = decoder(lossless(inside, format))
            assert np.array_equal(got, decoder(lossless(outside, format)))
            alone = video(1, start=0, size=size)(lossless(inside[box], format))
            assert np.array_equal(got, alone), (format, top, left, size)


@pytest.mark.parametrize("codec", ["yuv420p10le", "yuv444p", "gbrp", "gray", "yuvj420p"])
def test_planes_put_together_are_what_swscale_packs(codec):
    """Pictures are made smaller as three planes: the same values as its rgb24, for every kind of source. Made larger,
    where its rgb24 is less exact, one in 400 differs by 1."""
    file = io.BytesIO()
    encoder = "libx264rgb" if codec == "gbrp" else "libx264"
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(encoder, rate=25, options={"qp": "0"})
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "rgb24" if codec == "gbrp" else codec
        pixels = rng(1).integers(0, 256, (48, 64, 3)).astype(np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    data = file.getvalue()
    flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
    flags |= Interpolation.FULL_CHR_H_INT
    with av.open(io.BytesIO(data)) as container:
        frame = next(container.decode(video=0))
    assert frame.format.name == codec or codec in ("gray", "yuvj420p")
    space = {"src_colorspace": 5} if frame.colorspace == 2 else {}
    ranged = {"src_color_range": 1} if frame.color_range == 0 and frame.format.name.startswith("yuv") else {}
    for size in ((24, 32), (50, 31)):
        wanted = frame.reformat(size[1], size[0], "rgb24", interpolation=flags, **space, **ranged)
        difference = np.abs(video(1, start=0, size=size)(data)[0].astype(int) - wanted.to_ndarray())
        assert difference.max() <= (size[0] > 48)
        assert difference.mean() < 1 / 200


class TestRefusals:
    @pytest.mark.parametrize(
        ("wrong", "what", "value"),
        [
            ("centre", "crop", "centre"),
            ("center", "size", None),
            ("random", "size", None),
            ((0, 0, 4), "video()", (None, 1, None, None, None, (0, 0, 4), None)),
            ((-1, 0, 4, 4), "crop", (-1, 0, 4, 4)),
            ((0, 0, 0, 4), "crop", (0, 0, 0, 4)),
            ((0, 0.5, 4, 4), "video()", (None, 1, None, None, None, (0, 0.5, 4, 4), None)),
            (3, "video()", (None, 1, None, None, None, 3, None)),
        ],
    )
    def test_what_crop_takes(self, wrong, what, value):
        with refusal(InvalidRuntime, what=what, given=value):
            video(crop=wrong)

    @pytest.mark.parametrize("box", [(0, 0, 65, 10), (60, 0, 5, 10), (0, 90, 10, 7)])
    def test_box_that_reaches_out(self, videos, box):
        for size in (None, (8, 8)):
            with refusal(DecodeFailed, what="crop", given=box, accepted=(64, 96)):
                video(1, crop=box, size=size)(videos["gop12"][0])

    @pytest.mark.parametrize("box", [(1, 0, 10, 10), (0, 3, 10, 10)])
    def test_resized_box_that_splits_samples_of_colour(self, videos, box):
        with refusal(DecodeFailed, what="crop", given=list(box[:2]), accepted=[2, 2]):
            video(1, crop=box, size=(8, 8))(videos["gop12"][0])
