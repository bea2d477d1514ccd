"""Pictures with code values below black or above white, or of colours that no screen shows: they are clipped pixel by
pixel, and pass; what was planted does not."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from assets.media.clips import canonical as clip_encoder
from assets.media.cut_audit import findings
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.video import spans
from assets.media.video.timestamps import time_frames as really_shown

EncodeVideo = Callable[..., str]
RefusedAs = Callable[..., str]


def spots(
    number: int, shape: tuple[int, int], share: float, values: tuple[int, int], side: int
) -> np.ndarray:
    """uint8 of that shape: squares of `side` px, `share` of them with the second value."""
    height, width = shape
    rng = np.random.default_rng(number)
    second = rng.random((-(-height // side), -(-width // side))) < share
    return np.where(np.kron(second, np.ones((side, side), bool)), values[1], values[0])[:height, :width]


def frames(
    luma: tuple[int, int], chroma: tuple[int, int], *, share: float, height: int, width: int, side: int
) -> list[np.ndarray]:
    """30 of them, in yuv420p as one array."""
    found = []
    for number in range(30):
        luma_plane = spots(number, (height, width), share, luma, side)
        chroma_planes = [
            spots(number + seed, (height // 2, width // 2), 0.5, chroma, side) for seed in (100, 200)
        ]
        parts = [plane.reshape(-1) for plane in (luma_plane, *chroma_planes)]
        found.append(np.concatenate(parts).reshape(-1, width).astype(np.uint8))
    return found


GREY = (128, 128)
BEYOND: dict[str, dict[str, Any]] = {
    "above white": {"luma": (16, 255), "chroma": GREY, "share": 0.6},
    "below black": {"luma": (0, 180), "chroma": GREY, "share": 0.4},
    "colours that are none": {"luma": (30, 200), "chroma": (20, 235), "share": 0.5},
}


@pytest.fixture
def write_beyond_white(encode_video: EncodeVideo) -> Callable[..., str]:
    def make(name: str, *, side: int = 4, height: int = 64, width: int = 96) -> str:
        pictures = frames(**BEYOND[name], height=height, width=width, side=side)
        return encode_video(pictures, source_format="yuv420p", height_px=height)

    return make


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize(("side", "height", "width"), [(4, 64, 96), (4, 192, 288), (16, 256, 192)])
def test_they_pass(
    write_beyond_white: Callable[..., str],
    refusal_code: RefusedAs,
    name: str,
    side: int,
    height: int,
    width: int,
) -> None:
    """As large as the clip is stored, and larger: there they are averaged before they are clipped."""
    assert refusal_code(write_beyond_white(name, side=side, height=height, width=width)) == ""


@pytest.mark.parametrize("name", BEYOND)
def test_range_that_is_wrong_is_found(
    write_beyond_white: Callable[..., str],
    refusal_code: RefusedAs,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    really = clip_encoder.ClipEncoder._open

    def open_wrong_range(self: Any, picture: Any, rendering: Any) -> None:
        really(self, picture, rendering)
        self._encoder.codec_context.color_range = 2

    monkeypatch.setattr(clip_encoder.ClipEncoder, "_open", open_wrong_range)
    assert refusal_code(write_beyond_white(name)) in (findings.COLOUR_RANGE, findings.PIXELS)


@pytest.mark.parametrize("name", BEYOND)
def test_frame_beside_it_is_found(
    write_beyond_white: Callable[..., str],
    refusal_code: RefusedAs,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    def late(*arguments: Any, **options: Any) -> Any:
        before = None
        for now in really_shown(*arguments, **options):
            yield now._replace(frame=before.frame) if before is not None else now
            before = now

    monkeypatch.setattr(spans, "time_frames", late)
    assert refusal_code(write_beyond_white(name)) == findings.WRONG_FRAME


def write_metadata_track(path: Path, pictures: list[np.ndarray], height: int) -> str:
    """H.265 at a frame per second, and a track of timed metadata, in an MP4. pictures: as `frames` gives them."""
    with av.open(str(path), "w", format="mp4") as out:
        video = out.add_stream("libx265", rate=1, options={"x265-params": "log-level=none:crf=5"})
        video.width, video.height, video.pix_fmt = pictures[0].shape[1], height, "yuv420p"
        beside = out.add_data_stream("bin_data")
        packets = []
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1)
            packets += video.encode(frame)
        packets += video.encode(None)
        for number in range(len(pictures)):
            told = av.Packet(bytes(range(32)))
            told.stream, told.time_base, told.duration = beside, Fraction(1, 1000), 1000
            told.pts = told.dts = 1000 * number
            packets.append(told)
        for packet in sorted(packets, key=lambda one: float(one.dts * one.time_base)):
            out.mux(packet)
    return str(path)


def test_frame_that_is_taken_for_the_one_beside_it(tmp_path: Path, refusal_code: RefusedAs) -> None:
    """The frames around it have the colour that its own would have had, averaged before they are clipped."""
    striped, around = np.full((96, 96), 128, np.uint8), np.full((96, 96), 128, np.uint8)
    striped[:64] = np.where(np.arange(64)[:, None] % 4 < 2, 0, 180)
    around[:64] = round((16 + 180) / 2)  # the mean light of the stripes
    path = write_metadata_track(tmp_path / "in.mp4", [around, striped, around], 64)
    assert refusal_code(path, CutPolicy(video=VideoPolicy(short_side_px=64))) == ""
