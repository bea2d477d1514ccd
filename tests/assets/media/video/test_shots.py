"""Cuts, fades, dissolves and flashes whose places are known, and what is none of them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.audit import audit
from assets.media.video.shifted_correlation import best_correlation, best_correlations
from assets.media.video.shots import SMALL_PX, ShotDetector

Frames = np.ndarray[Any, np.dtype[np.uint8]]
WIDTH, HEIGHT = SMALL_PX


def scene(n_frames: int, seed: int, speed: float = 0.3, size: tuple[int, int] = SMALL_PX) -> Frames:
    """uint8 [n, height, width]: a camera that moves `speed` pixels of 64 a frame over a picture with the spectrum
    of natural ones (amplitude 1/f)."""
    rng = np.random.default_rng(seed)
    width, height = size
    travel = speed * width / WIDTH
    room = int(travel * n_frames) + 2 * width
    down, right = np.fft.fftfreq(2 * height)[:, None], np.fft.rfftfreq(room)[None]
    amplitude = np.maximum(np.hypot(down, right), 0.5 / height) ** -1.6
    noise = rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape)
    wide = np.fft.irfft2(noise * amplitude, s=(2 * height, room))[:height]
    wide = 128 + 45 * (wide - wide.mean()) / wide.std()
    frames = []
    for number in range(n_frames):
        whole, part = divmod(travel * number, 1)
        left = wide[:, int(whole) : int(whole) + width]
        frames.append((1 - part) * left + part * wide[:, int(whole) + 1 : int(whole) + 1 + width])
    moving = np.stack(frames)
    return np.clip(moving + rng.normal(0, 1, moving.shape), 0, 255).astype(np.uint8)


def small(frame: Frames) -> Frames:
    return frame[:: len(frame) // HEIGHT, :: len(frame[0]) // WIDTH]


def scenes(
    lengths: list[int], seed: int, speed: float = 0.3, size: tuple[int, int] = SMALL_PX
) -> list[Frames]:
    """Scenes of which none has much in common with the one before."""
    made: list[Frames] = []
    while len(made) < len(lengths):
        one = scene(lengths[len(made)], seed, speed, size)
        seed += 1
        if not made or best_correlation(small(made[-1][-1]), small(one[0])) < 0.3:
            made.append(one)
    return made


def fade(frames: Frames, level: int, n: int, out: bool) -> Frames:
    """The first n frames come out of a flat colour, or the last go into it."""
    share = np.ones(len(frames))
    share[:n] = np.arange(n) / n
    mixed = frames * (share[::-1] if out else share)[:, None, None]
    return (mixed + (1 - (share[::-1] if out else share))[:, None, None] * level).astype(np.uint8)


def dissolve(one: Frames, other: Frames, n: int) -> Frames:
    """The last n frames of one mixed with the first n of the other."""
    share = ((np.arange(n) + 0.5) / n)[:, None, None]
    middle = one[-n:] * (1 - share) + other[:n] * share
    return np.concatenate([one[:-n], middle.astype(np.uint8), other[n:]])


def detect(frames: Frames, splits: tuple[int, ...] = ()) -> list[int]:
    detector = ShotDetector()
    pts = [100 * number for number in range(len(frames))]
    edges = [0, *splits, len(frames)]
    for begin, end in pairwise(edges):
        detector.feed(frames[begin:end], pts[begin:end])
    found = detector.finish()
    assert all(value % 100 == 0 for value in found)
    return [value // 100 for value in found]


SEEDS = st.integers(0, 10_000)
FEW = settings(derandomize=True, max_examples=15, deadline=None)


@FEW
@given(SEEDS, st.lists(st.integers(8, 90), min_size=1, max_size=6), st.floats(0, 1.5))
def test_hard_cuts_are_found_and_nothing_else(seed: int, lengths: list[int], speed: float) -> None:
    shots = scenes(lengths, seed, speed)
    starts = np.cumsum(lengths)[:-1].tolist()
    assert detect(np.concatenate(shots)) == starts


@FEW
@given(SEEDS, st.sampled_from([0, 16, 128, 255]), st.integers(2, 30), st.integers(1, 60))
def test_fade_is_one_boundary_where_the_next_picture_begins(
    seed: int, level: int, ramp: int, n_flat: int
) -> None:
    flat = np.full((n_flat, HEIGHT, WIDTH), level, np.uint8)
    one, other = scenes([50, 50], seed)
    one, other = fade(one, level, ramp, out=True), fade(other, level, ramp, out=False)
    found = detect(np.concatenate([one, flat, other]))
    assert len(found) == 1
    assert 50 + n_flat <= found[0] <= 50 + n_flat + ramp // 4 + 2


def test_dissolve_is_a_boundary_in_its_middle() -> None:
    """Nine of ten are found; what is found is one boundary, in the middle."""
    n_found = 0
    for seed in range(30):
        one, other = scenes([70, 70], 100 * seed, 0.05)
        n = 8 + seed
        found = detect(dissolve(one, other, n))
        n_found += bool(found)
        assert len(found) <= 1
        assert all(abs(place - (70 - n / 2)) <= max(3, n / 4) for place in found)
    assert n_found >= 27


@FEW
@given(SEEDS, st.integers(1, 6), st.integers(150, 255))
def test_flash_is_no_boundary(seed: int, n: int, level: int) -> None:
    frames = scene(80, seed)
    frames[40 : 40 + n] = np.maximum(frames[40 : 40 + n], level)
    assert detect(frames) == []
    frames[40 : 40 + n] = level  # nothing but white
    assert detect(frames) == []
    frames[40 : 40 + n] = scene(n, seed + 1)  # another picture, that short
    assert detect(frames) == []


@FEW
@given(SEEDS, st.floats(0.4, 0.8), st.integers(-60, 60))
def test_light_that_goes_on_is_no_boundary(seed: int, gain: float, offset: int) -> None:
    frames = scene(60, seed)
    frames[30:] = np.clip(frames[30:] * gain + offset, 0, 255).astype(np.uint8)
    assert detect(frames) == []


def test_fade_to_black_and_back_to_the_same_picture_is_none() -> None:
    still = scene(80, 7, speed=0)
    down, up = fade(still[:40], 0, 12, out=True), fade(still[40:], 0, 12, out=False)
    assert detect(np.concatenate([down, np.zeros((20, HEIGHT, WIDTH), np.uint8), up])) == []


def test_black_at_the_ends_is_none() -> None:
    black = np.zeros((30, HEIGHT, WIDTH), np.uint8)
    assert detect(np.concatenate([black, fade(scene(60, 1), 0, 15, out=False), black])) == []
    assert detect(black) == []
    assert detect(black[:0]) == []


@FEW
@given(SEEDS, st.floats(0.5, 4))
def test_pan_is_none(seed: int, speed: float) -> None:
    assert detect(scene(90, seed, speed)) == []


@FEW
@given(SEEDS, st.lists(st.integers(1, 219), max_size=8, unique=True))
def test_how_the_frames_are_split_has_no_influence(seed: int, splits: list[int]) -> None:
    mixed = dissolve(scene(70, seed), scene(60, seed + 1), 20)
    flat = np.full((10, HEIGHT, WIDTH), 16, np.uint8)
    frames = np.concatenate([mixed, scene(60, seed + 2), flat, scene(50, seed + 3)])
    assert detect(frames, tuple(sorted(splits))) == detect(frames)


def test_frame_by_frame_it_is_the_same() -> None:
    one, other = scenes([70, 60], 100, 0.05)
    frames = np.concatenate([dissolve(one, other, 24), *scenes([40, 50], 9)])
    found = detect(frames)
    assert len(found) == 3
    assert detect(frames, tuple(range(1, len(frames)))) == found


@FEW
@given(times=st.lists(st.integers(-100, 100), min_size=90, max_size=90))
def test_boundaries_ascend_whatever_the_timestamps_say(times: list[int]) -> None:
    """Damaged ones go back and stand still; a shot begins after all before it."""
    detector = ShotDetector()
    detector.feed(np.concatenate([scene(15, seed) for seed in range(6)]), times)
    found = detector.finish()
    assert all(one < other for one, other in pairwise([times[0], *found]))
    assert set(found) <= {times[number] for number in range(15, 90, 15)}


def test_pictures_that_all_differ_are_one_shot() -> None:
    """A slide show at one picture a frame has no place where it begins anew."""
    assert detect(np.concatenate(scenes([1] * 60, 5))) == []


def test_what_comes_into_the_picture_is_no_boundary() -> None:
    frames = scene(60, 11)
    frames[30:, 9:26, 20:44] = 165
    assert 0.6 < best_correlation(frames[29], frames[30]) < 0.85
    assert detect(frames) == []


def test_memory_holds_the_boundaries_and_a_few_frames() -> None:
    detector = ShotDetector()
    frames = scene(200, 3)
    for number in range(40):
        detector.feed(frames, list(range(200 * number, 200 * number + 200)))
    held = detector._frames.nbytes + sum(one.nbytes for one in detector._fades._contrasted)
    assert held < 300_000
    assert len(detector._pts) < 64


@pytest.mark.parametrize("shift", [(0, 2), (2, -4), (-1, 1)])
def test_moved_picture_is_the_same(shift: tuple[int, int]) -> None:
    picture = scene(1, 5)[0]
    assert best_correlation(picture, np.roll(picture, shift, (0, 1))) > 0.85


@FEW
@given(SEEDS, st.integers(1, 4), st.integers(1, 255))
def test_greatest_correlation_is_that_of_the_overlapping_parts(seed: int, n: int, contrast: int) -> None:
    """numpy's corrcoef of every shifted part, one by one; a flat one has no correlation."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, contrast, (n + 1, HEIGHT, WIDTH), dtype=np.uint8)
    frames[1:] = np.where(rng.random((n, 1, 1)) < 0.7, np.roll(frames[0], (1, 2), (0, 1)), frames[1:])
    one, others = frames[0], frames[1:]
    expected = np.full(n, -1.0)
    for down in range(-2, 3):
        for right in (-4, -2, -1, 0, 1, 2, 4):
            rows, columns = (
                slice(max(0, down), HEIGHT + min(0, down)),
                slice(max(0, right), WIDTH + min(0, right)),
            )
            behind = (
                slice(max(0, -down), HEIGHT + min(0, -down)),
                slice(max(0, -right), WIDTH + min(0, -right)),
            )
            for number, other in enumerate(others):
                a, b = one[rows, columns].ravel(), other[behind].ravel()
                flat = len(set(a.tolist())) == 1 or len(set(b.tolist())) == 1
                found = 0.0 if flat else float(np.corrcoef(a, b)[0, 1])
                expected[number] = max(expected[number], found)
    assert best_correlations(one, others) == pytest.approx(expected, abs=1e-12)


def test_cuts_of_an_encoded_video_are_told_as_pts(encode_video: Callable[..., str]) -> None:
    size = (160, 96)
    shots = scenes([30, 40, 45, 40], 1, 0.2, size)
    joined = np.concatenate([shots[0], shots[1], dissolve(shots[2], shots[3], 16)])
    coloured = [np.repeat(frame[:, :, None], 3, 2) for frame in joined]
    pts = [500 + 33 * number for number in range(len(joined))]
    row = audit(encode_video(coloured, pts=pts, options={"crf": "30", "g": "50"}), "video/mp4")
    cuts = row["scene_cuts"]
    assert cuts[:2] == [pts[30], pts[70]]
    assert len(cuts) == 3
    assert abs(cuts[2] - pts[70 + 45 - 8]) <= 4 * 33
