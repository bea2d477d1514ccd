"""Clicks stay with their flashes: in every clip, whatever the container and the codec, to a millisecond."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from assets.media.audit import audit
from assets.media.clips.cut import cut_video
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unit

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
POLICY = CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=1.0, max_clips=None))

FLASHES = (9, 31, 62, 84)  # numbers of frames, of 40 ms
CLICK_S = 0.02  # after the frame begins: in its middle
VPX = {"deadline": "realtime", "cpu-used": "8", "crf": "20", "b": "1M"}

# container, codec of the picture, its options, codec of the sound, rate
KINDS: list[tuple[str, str, dict[str, str] | None, str, int]] = [
    ("mp4", "libx264", None, "aac", 44_100),
    ("mp4", "libx264", None, "libmp3lame", 44_100),
    ("mp4", "libx264", {"crf": "10", "bf": "3", "g": "50"}, "libopus", 48_000),
    ("mov", "libx264", None, "pcm_s16le", 48_000),
    ("mov", "libx264", None, "alac", 44_100),
    ("matroska", "libx264", None, "libopus", 48_000),
    ("matroska", "libx264", None, "aac", 48_000),
    ("matroska", "libx264", None, "flac", 44_100),
    ("webm", "libvpx", VPX, "libopus", 48_000),
    ("mpegts", "libx264", None, "mp2", 48_000),
    ("mpegts", "libx264", None, "aac", 48_000),
]


def clicking(seconds: float, rate_hz: int, later_s: float = 0.0) -> np.ndarray:
    """int16 [n]: a short burst in the middle of every flash, of a sound that begins `later_s` after the picture."""
    n = round(seconds * rate_hz)
    samples = np.random.default_rng(0).normal(0, 3, n)  # lossy coders need something to hold on to
    burst = np.arange(-240 * rate_hz // 48_000, 240 * rate_hz // 48_000)
    shape = 20_000 * np.hanning(len(burst)) * np.sin(2 * np.pi * 3000 * burst / rate_hz)
    for flash in FLASHES:
        middle = round((flash * 0.04 + CLICK_S - later_s) * rate_hz)
        if len(burst) < middle < n - len(burst):
            samples[middle + burst] += shape
    return samples.astype(np.int16)


def flashing(numbered_frames: MakeFrames) -> list[np.ndarray]:
    frames = [picture // 4 for picture in numbered_frames(104)]
    for flash in FLASHES:
        frames[flash][:] = 255
    return frames


def moments(unit: Unit) -> tuple[list[float], list[float]]:
    """(when frames flash, when clicks are heard), in s after the clip's first frame."""
    with av.open(str(unit.fields["mp4"])) as clip:
        shown = [(f.time, f.to_ndarray(format="gray").mean()) for f in clip.decode(video=0)]
    flashes = [float(time) for time, level in shown if level > 150]
    with av.open(str(unit.fields["sound.flac"])) as sound:
        assert sound.streams.audio[0].rate == 16_000
        heard = np.concatenate([frame.to_ndarray()[0] for frame in sound.decode(audio=0)]).astype(float)
    power = np.convolve(np.square(heard), np.ones(80), mode="same")
    clicks = []
    while power.max() > 80 * 1000**2:
        peak = int(power.argmax())
        near = slice(max(0, peak - 160), peak + 160)
        weight = np.square(np.where(np.abs(heard[near]) > 500, heard[near], 0))
        clicks.append((near.start + float((np.arange(len(weight)) * weight).sum() / weight.sum())) / 16_000)
        power[max(0, peak - 400) : peak + 400] = 0
    return flashes, sorted(clicks)


@pytest.mark.parametrize(("container", "codec", "options", "sound_codec", "rate_hz"), KINDS)
def test_every_click_is_in_its_flash(
    tmp_path: Path,
    encode_video: EncodeVideo,
    numbered_frames: MakeFrames,
    container: str,
    codec: str,
    options: dict[str, str] | None,
    sound_codec: str,
    rate_hz: int,
) -> None:
    sound = (clicking(4.0, rate_hz), rate_hz, sound_codec)
    path = encode_video(
        flashing(numbered_frames), container=container, codec=codec, options=options, sound=sound
    )
    found = 0
    for unit in cut_video(path, tmp_path, POLICY):
        flashes, clicks = moments(unit)
        assert len(flashes) == len(clicks)
        found += len(clicks)
        for flash, click in zip(flashes, clicks, strict=True):
            assert abs(click - CLICK_S - flash) < 0.001
    assert found == len(FLASHES)


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize("later_s", [0.5, 1.25])
def test_sound_that_begins_later_stays_in_time_and_is_told(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames, container: str, later_s: float
) -> None:
    sound = (clicking(2.0, 48_000, later_s), 48_000, "aac")
    path = encode_video(flashing(numbered_frames), container=container, sound=sound, sound_start_s=later_s)
    row: dict[str, Any] = audit(path, "video/mp4")
    assert row["audio_offset_s"] == pytest.approx(
        later_s, abs=0.024
    )  # a frame of AAC: what primes it may count
    first, second, third, fourth = cut_video(path, tmp_path, POLICY)
    assert first.metadata["has_sound"] is (later_s < 1)
    missing = [unit.metadata["sound_missing_s"] for unit in (second, third, fourth)]
    if later_s < 1:
        assert first.metadata["sound_missing_s"] == pytest.approx(later_s, abs=0.024)
        assert missing == pytest.approx([0, later_s, None], abs=0.024)
    else:
        assert missing == pytest.approx([later_s - 1, 0, 2 - later_s], abs=0.024)
    for unit in (first, second, third):
        if unit.metadata["has_sound"]:
            flashes, clicks = moments(unit)
            for click in clicks:
                assert min(abs(click - CLICK_S - flash) for flash in flashes) < 0.001


def test_longer_sound_ends_with_the_picture(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    path = encode_video(numbered_frames(50), sound=(clicking(6.0, 16_000), 16_000, "flac"))
    units = cut_video(path, tmp_path, POLICY)
    assert [unit.metadata["sound_missing_s"] for unit in units] == [0, 0]
    row = audit(path, "video/mp4")
    assert (row["duration_s"], row["audio_duration_s"]) == (2.0, 6.0)
