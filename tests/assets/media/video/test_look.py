"""What is measured of a video's pictures, against the same computed frame by frame from its definition."""

import tracemalloc
from collections.abc import Callable
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.audit import audit
from assets.media.video.audit import (
    MAX_HASHES,
    FrameStatistics,
    KeyframeHashes,
    bars,
    image_hashes,
    sharpness,
)

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
HEIGHT, WIDTH = 36, 64


def grey_frame(luma: np.ndarray, number: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(luma, format="gray")
    frame.pts, frame.time_base = number, Fraction(1, 25)
    return frame


def natural(seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A picture with the spectrum of natural ones."""
    rng = np.random.default_rng(seed)
    down, right = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    amplitude = np.maximum(np.hypot(down, right), 1 / width) ** -1.5
    noise = rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape)
    picture = np.fft.irfft2(noise * amplitude, s=(height, width))
    return np.clip(128 + 45 * (picture - picture.mean()) / picture.std(), 0, 255).astype(np.uint8)


def pictures(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (n, HEIGHT, WIDTH), np.uint8)
    frames[rng.random(n) < 0.2] = 3
    for number in range(1, n):
        if rng.random() < 0.3:
            frames[number] = frames[number - 1]
    return frames


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 600])
def test_all_is_as_defined_however_long_the_video(n: int) -> None:
    frames = pictures(n)
    frames[min(n, 3) :, :5] = frames[:, :, -8:] = 7  # dark at the top from the fourth on, at the right in all
    look = FrameStatistics()
    for number, luma in enumerate(frames):
        look.add(grey_frame(luma, number), number)
    facts = look.facts()
    wide = frames.astype(float)
    changes = [float(np.abs(wide[i] - wide[i - 1]).mean()) for i in range(1, n)]
    assert facts["luma_mean"] == pytest.approx(wide.mean())
    assert facts["black_ratio"] == sum(bool((one < 25.5).mean() >= 0.98) for one in frames) / n
    assert facts["motion"] == pytest.approx(sum(changes) / max(1, n - 1))
    assert (facts["letterbox_ratio"], facts["pillarbox_ratio"]) == bars(frames.max(axis=0))
    assert facts["frozen_ratio"] == sum(change < 0.255 for change in changes) / n


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    luma = pictures(1, 3)[0]
    wide = luma.astype(float)
    laplacian = [
        wide[y - 1, x] + wide[y + 1, x] + wide[y, x - 1] + wide[y, x + 1] - 4 * wide[y, x]
        for y in range(1, HEIGHT - 1)
        for x in range(1, WIDTH - 1)
    ]
    assert sharpness(luma) == pytest.approx(np.var(laplacian))
    assert sharpness(np.full_like(luma, 200)) == 0


def test_blurred_video_is_less_sharp(encode_video: EncodeVideo, noise_frames: MakeFrames) -> None:
    sharp = noise_frames(13, 144, 256)
    blurred = [np.kron(frame[::16, ::16], np.ones((16, 16, 1), np.uint8)) for frame in sharp]
    smooth = [sum(np.roll(one, by, (0, 1)) / 16 for by in range(16)).astype(np.uint8) for one in blurred]  # type: ignore[attr-defined]
    values = [audit(encode_video(frames), "video/mp4")["sharpness"] for frames in (sharp, smooth)]
    assert values[0] > 2 * values[1] > 0


def test_black_bars() -> None:
    frames = pictures(3, 5)
    frames[:, :4] = frames[:, -5:] = 16
    frames[1, 10:20] = 0  # black for a while is not a bar
    assert bars(frames.max(axis=0)) == (9 / 36, 0)
    frames[:, :, :8] = 16
    assert bars(frames.max(axis=0)) == (9 / 36, 8 / 64)
    assert bars(np.zeros((HEIGHT, WIDTH), np.uint8)) == (1, 1)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(0, 5000))
def test_hashes_that_are_kept_are_few_and_evenly_spread(n: int) -> None:
    thinned = KeyframeHashes()
    for number in range(n):
        thinned.add(number, str(number))
    kept = [pts for pts, _ in thinned.items]
    assert [text for _, text in thinned.items] == [str(pts) for pts in kept]
    assert min(n, MAX_HASHES // 2) <= len(kept) <= MAX_HASHES
    every = 1 if len(kept) < 2 else kept[1]
    assert kept == list(range(0, n, every))


def test_copy_has_nearly_the_hashes_and_another_video_has_not(encode_video: EncodeVideo) -> None:
    rows = []
    for seed, crf in ((1, "18"), (1, "36"), (2, "18")):
        frames = [np.repeat(natural(10 * seed + n, 90, 160)[:, :, None], 3, 2) for n in range(6)]
        path = encode_video(frames, options={"crf": crf, "g": "1"})
        rows.append(audit(path, "video/mp4"))
    bits = [[int(text, 16) for text in row["keyframe_hashes"]] for row in rows]
    assert [len(one) for one in bits] == [6, 6, 6]
    assert rows[0]["keyframe_pts"] == [40 * number for number in range(6)]
    assert max((a ^ b).bit_count() for a, b in zip(bits[0], bits[1], strict=True)) <= 8
    assert min((a ^ b).bit_count() for a, b in zip(bits[0], bits[2], strict=True)) >= 12


def test_hash_is_64_bits_of_the_lowest_frequencies() -> None:
    picture = natural(1)
    one, mirrored, darker = image_hashes(np.stack([picture, picture[:, ::-1], picture // 2]))
    assert len(one) == len(mirrored) == 16
    assert (int(one, 16) ^ int(mirrored, 16)).bit_count() >= 12
    assert (int(one, 16) ^ int(darker, 16)).bit_count() <= 2
    assert image_hashes(np.zeros((0, HEIGHT, WIDTH), np.uint8)) == []


def test_memory_does_not_grow_with_the_length(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> None:
    peaks = []
    for n in (600, 1800):
        times = [40 * number + (number % 7) for number in range(n)]
        frames = [numbered_frames(100)[number % 100] for number in range(n)]
        path = encode_video(frames, pts=times, options={"preset": "ultrafast", "g": "2"})
        audit(path, "video/mp4")  # what is kept of a first time does not count
        tracemalloc.start()
        row = audit(path, "video/mp4")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert row["n_keyframes"] == n // 2
        assert len(row["keyframe_hashes"]) <= MAX_HASHES
    assert peaks[1] < 1.1 * peaks[0]
