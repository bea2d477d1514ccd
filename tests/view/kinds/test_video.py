"""Clips: a PNG a frame with the tensor's pixels; frames that stand still are marked."""

import numpy as np
import pytest
import torch

from penstock.view.kinds import Facts, find_kind
from penstock.view.kinds.video import VIDEO

FACTS = Facts(field="mp4", rate=25)


def clip(frames=8, height=20, width=30):
    return np.random.default_rng(5).integers(0, 256, (frames, height, width, 3), np.uint8)


LAYOUTS = {"T H W C": (0, 1, 2, 3), "T C H W": (0, 3, 1, 2), "C T H W": (3, 0, 1, 2)}


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_pixels_of_each_frame_are_the_tensors(read_pixels, axes, make) -> None:
    frames = clip()
    value = make(np.ascontiguousarray(frames.transpose(axes)))
    assert find_kind(value, FACTS) is VIDEO
    shown = VIDEO.detail(value, FACTS)
    assert len(shown) == 8
    for media, frame in zip(shown, frames, strict=True):
        assert np.array_equal(read_pixels(media), frame)
    assert np.array_equal(read_pixels(VIDEO.thumbnail(value, FACTS)), frames[4])


def test_frames_of_a_clip_share_one_scale(read_pixels) -> None:
    value = np.stack([np.full((16, 16, 1), level, np.float32) for level in (-2.0, 0.0, 2.0)])
    assert [int(read_pixels(one)[0, 0, 0]) for one in VIDEO.detail(value, FACTS)] == [0, 128, 255]
    assert VIDEO.lines(value, FACTS) == (
        "3 frames of 16 x 16 px, gray, 0.1 s at 25 a second",
        "float32 [3, 16, 16, 1]",
        "from -2 to 2, mean 0, deviation 1.633",
        "shown from -2 to 2",
    )


def test_long_clip_is_shown_at_equal_distances(read_pixels) -> None:
    value = np.arange(190, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 1), np.uint8)
    shown = [int(read_pixels(one)[0, 0, 0]) for one in VIDEO.detail(value, FACTS)]
    assert (len(shown), shown[:2], shown[-1]) == (64, [0, 3], 189)
    assert VIDEO.lines(value, FACTS)[-1] == "64 of these frames are shown"


def still(frames, start, stop):
    value = clip(frames)
    value[start:stop] = value[start]
    return value


PLANTED = {
    "all frames equal": (still(16, 0, 16), "frozen"),
    "two equal frames": (still(2, 0, 2), "frozen"),
    "frozen in the middle": (still(16, 5, 13), "frozen"),
    "black": (np.zeros((1, 16, 16, 3), np.uint8), "black"),
    "saturated": (np.full((1, 3, 16, 16), 255, np.uint8), "saturated"),
    "NaN": (np.where(clip() == 0, np.nan, 0.5), "nan"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_marked(name) -> None:
    value, mark = PLANTED[name]
    assert [one.name for one in VIDEO.marks(value, FACTS)] == [mark]


def test_frozen_frames_are_named() -> None:
    (found,) = VIDEO.marks(still(16, 5, 13), FACTS)
    assert found.text == "8 of 16 frames in a row are equal, from frame 5 on"


CLEAN = {
    "noise": clip(),
    "drawn on threes": clip(6).repeat(3, axis=0),
    "a short stop": still(16, 3, 10),
    "one frame": clip(1),
}


@pytest.mark.parametrize("name", CLEAN)
def test_sound_clip_has_no_mark(name) -> None:
    assert VIDEO.marks(CLEAN[name], FACTS) == ()
