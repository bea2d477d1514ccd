"""Buckets: the published table, the nearest aspect, never more enlarged or cut than allowed, and decoding to them."""

import io
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import loader
from assets.media.clips.cut import cut_video
from assets.media.image.cut import cut_image
from assets.media.policy import (
    Buckets,
    CutPolicy,
    ImagePolicy,
    VideoPolicy,
    bucket_name,
    grid_px,
    image_bucket,
    sizes,
)
from loader.errors import InvalidSpec
from tests.refusals import refusal

# Podell et al. 2023, SDXL, appendix I: height, width.
SDXL = {
    *((512, 2048), (512, 1984), (512, 1920), (512, 1856), (576, 1792), (576, 1728), (576, 1664), (640, 1600)),
    *((640, 1536), (704, 1472), (704, 1408), (704, 1344), (768, 1344), (768, 1280), (832, 1216), (832, 1152)),
    *(
        (896, 1152),
        (896, 1088),
        (960, 1088),
        (960, 1024),
        (1024, 1024),
        (1024, 960),
        (1088, 960),
        (1088, 896),
    ),
    *((1152, 896), (1152, 832), (1216, 832), (1280, 768), (1344, 768), (1408, 704), (1472, 704), (1536, 640)),
    *((1600, 640), (1664, 576), (1728, 576), (1792, 576), (1856, 512), (1920, 512), (1984, 512), (2048, 512)),
}
DEFAULT = Buckets()
NAME = re.compile(r"w(\d+)h(\d+)(?:f(\d+))?")
SIDES = st.integers(1, 5000)
PLENTY = settings(max_examples=300, derandomize=True, deadline=None)


def parse_bucket(name: str) -> tuple[int, int, int | None]:
    found = NAME.fullmatch(name)
    assert found
    return int(found[1]), int(found[2]), int(found[3]) if found[3] else None


def test_default_sizes_at_1024_are_those_of_the_published_table() -> None:
    ours = {(height, width) for width, height in sizes(DEFAULT, 1024)}
    assert ours <= SDXL
    assert len(SDXL - ours) == 7
    for height, width in SDXL - ours:  # which have less area than another of ours with that width or height
        assert any(h >= height and w >= width for h, w in ours)


@pytest.mark.parametrize("base", [256, 512, 768, 1024, 96])
@pytest.mark.parametrize("max_aspect", [1, 2, 4])
def test_sizes_stay_within_the_area_and_the_aspect_and_on_the_grid(base: int, max_aspect: int) -> None:
    found = sizes(Buckets(bases_px=(base,), max_aspect=max_aspect), base)
    step = grid_px(base)
    assert (base, base) in found
    assert set(found) == {(height, width) for width, height in found}
    for width, height in found:
        assert width % step == height % step == 0
        assert width * height <= base * base
        assert max(width, height) <= max_aspect * min(width, height)
        assert (width + step) * height > base * base or width * (height + step) > base * base
    assert list(found) == sorted(found, key=lambda size: size[0] / size[1])


@pytest.mark.parametrize("base", [256, 512, 1024])
def test_given_aspects_become_the_nearest_sizes(base: int) -> None:
    aspects = ((1, 1), (4, 3), (3, 4), (16, 9), (9, 16), (3, 1))
    step = grid_px(base)
    expected = {
        tuple(
            math.floor(base * math.sqrt(one / other) / step + 0.5) * step for one, other in ((w, h), (h, w))
        )
        for w, h in aspects
    }
    assert set(sizes(Buckets(aspects=aspects), base)) == expected


@PLENTY
@given(width=SIDES, height=SIDES)
def test_nearest_aspect_of_the_largest_base_that_is_filled(width: int, height: int) -> None:
    """Found again in floating point, by looking at every size."""

    def covers(size: tuple[int, int]) -> bool:
        scale = max(size[0] / width, size[1] / height)
        kept = size[0] * size[1] / (width * height * scale * scale)
        return scale <= 1 + 1e-12 and 1 - kept <= 0.5 + 1e-12

    expected = None
    for base in (1024, 512, 256):
        away = {size: abs(math.log(width / height * size[1] / size[0])) for size in sizes(DEFAULT, base)}
        nearest = min(away.values())
        near = [size for size in away if away[size] <= nearest + 1e-12 and covers(size)]
        if near:
            expected = near
            break
    found = image_bucket(DEFAULT, width, height)
    if expected is None:
        assert found is None
    else:
        assert found in {bucket_name(size) for size in expected}


@PLENTY
@given(
    width=SIDES,
    height=SIDES,
    upscale=st.sampled_from([1.0, 1.25, 2.0]),
    crop=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_nothing_is_enlarged_or_cut_more_than_allowed(
    width: int, height: int, upscale: float, crop: float
) -> None:
    found = image_bucket(Buckets(max_upscale=upscale, max_crop=crop), width, height)
    if found is None:
        return
    to_width, to_height, _ = parse_bucket(found)
    scale = max(to_width / width, to_height / height)
    assert scale <= upscale + 1e-9
    assert 1 - to_width * to_height / (width * height * scale**2) <= crop + 1e-9


def test_picture_on_its_side_gets_the_bucket_on_its_side() -> None:
    for width, height in ((341, 256), (1920, 1080), (4000, 3000), (700, 511), (3000, 900)):
        there = image_bucket(DEFAULT, width, height)
        back = image_bucket(DEFAULT, height, width)
        assert there
        assert back
        assert parse_bucket(there)[:2] == parse_bucket(back)[1::-1]


@pytest.mark.parametrize(
    ("width", "height", "frames", "expected"),
    [
        (1024, 1024, None, "w1024h1024"),
        (1023, 1024, None, "w512h512"),
        (256, 341, None, "w224h288"),
        (3072, 4080, None, "w896h1152"),
        (1920, 1080, 60, "w1344h768f32"),
        (1920, 1080, 64, "w1344h768f64"),
        (1920, 1080, 1000, "w1344h768f64"),
        (1920, 1080, 15, None),
        (255, 255, None, None),
        (4000, 300, None, None),  # of 13:1 more than half would be cut off
    ],
)
def test_some_buckets(width: int, height: int, frames: int | None, expected: str | None) -> None:
    assert image_bucket(DEFAULT, width, height, frames) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"bases_px": ()},
        {"bases_px": (512, 256)},
        {"bases_px": (500,)},
        {"bases_px": (528,)},
        {"bases_px": (32,)},
        {"frames": ()},
        {"frames": (16, 16)},
        {"frames": (0,)},
        {"max_aspect": 0},
        {"aspects": ((0, 1),)},
        {"aspects": ((5, 1),)},
        {"max_upscale": 0.5},
        {"max_crop": 1.0},
    ],
)
def test_what_buckets_take(wrong: dict[str, object]) -> None:
    ((name, value),) = wrong.items()
    with refusal(InvalidSpec, what=name, given=value):
        Buckets(**wrong)  # type: ignore[arg-type]


SHAPES = [(300, 300), (640, 480), (480, 640), (1200, 400), (90, 400), (1100, 1030), (257, 1000), (20, 20)]


@pytest.mark.parametrize("mode", ["canonical", "reference"])
def test_every_photo_decodes_to_the_shape_of_its_bucket(tmp_path: Path, mode: str) -> None:
    options = {"short_side_px": 512} if mode == "canonical" else {"mode": "reference"}
    policy = CutPolicy(image=ImagePolicy(**options))  # type: ignore[arg-type]
    names = []
    for number, (width, height) in enumerate(SHAPES):
        exif = Image.Exif()
        exif[0x0112] = 1 + number
        path = tmp_path / "raw"
        noise = np.random.default_rng(number).integers(0, 256, (height // 10, width // 10, 3), np.uint8)
        Image.fromarray(noise).resize((width, height)).save(path, "JPEG", exif=exif)
        (unit,) = cut_image(str(path), tmp_path, policy)
        stored_px = unit.metadata["width_px"], unit.metadata["height_px"]
        assert unit.metadata["aspect_ratio"] == pytest.approx(stored_px[0] / stored_px[1], abs=1e-4)
        name = unit.metadata["bucket"]
        names.append(name)
        if name is None:
            assert min(stored_px) < 128
            continue
        (field,) = set(unit.fields) - {"json"}
        data = unit.fields[field].read_bytes()
        got = loader.image(size=str(name), crop="random")(data, np.random.default_rng(number))
        to_width, to_height, _ = parse_bucket(str(name))
        assert got.shape == (to_height, to_width, 3)
        with Image.open(io.BytesIO(data)) as stored:
            assert max(to_width / stored_px[0], to_height / stored_px[1]) <= 1
            assert stored.size in (stored_px, stored_px[::-1])
    assert len(set(names)) >= 6


def test_clips_have_their_length_in_their_bucket(
    tmp_path: Path, encode_video: Callable[..., str], numbered_frames: Callable[..., list[np.ndarray]]
) -> None:
    path = encode_video(numbered_frames(100, 288, 512))
    buckets = Buckets(frames=(8, 24, 48))
    policy = CutPolicy(video=VideoPolicy(clip_s=1.6, buckets=buckets))
    units = cut_video(path, tmp_path, policy)
    assert [unit.metadata["n_frames"] for unit in units] == [40, 40]
    for unit in units:
        width, height, frames = parse_bucket(str(unit.metadata["bucket"]))
        assert frames == 24
        clip = loader.video(frames=frames, size=(height, width), crop="center")
        assert clip(unit.fields["mp4"].read_bytes()).shape == (24, height, width, 3)


def test_other_buckets_are_another_policy(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    Image.new("RGB", (300, 300)).save(path, "PNG")
    policy = CutPolicy(image=ImagePolicy(buckets=Buckets(bases_px=(128,))))
    (unit,) = cut_image(str(path), tmp_path, policy)
    assert unit.metadata["bucket"] == "w128h128"
    assert policy.of("image") != CutPolicy().of("image")
