"""Canonical clips against Debian's ffmpeg and ffprobe, another build of another version: what a viewer would see.

Over the corpus of real files, where PENSTOCK_MEDIA names it, and over what is encoded here.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from assets.media.clips.cut import cut_video
from assets.media.cutters import Known
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unit, Unusable
from assets.media.video.colour import pq_light

pytestmark = pytest.mark.server

FFMPEG, FFPROBE = "/usr/bin/ffmpeg", "/usr/bin/ffprobe"
EncodeVideo = Callable[..., str]
POLICY = CutPolicy(video=VideoPolicy(clip_s=1.0, max_clips=1))


def corpus() -> Iterator[Path]:
    folder = os.environ.get("PENSTOCK_MEDIA")
    yield from sorted((Path(folder) / "video").iterdir()) if folder else ()


def ffmpeg_frame(path: str, at_s: float, size_px: tuple[int, int]) -> np.ndarray:
    """RGB uint8 [H, W, 3] of the first frame shown at `at_s` or later, turned as ffmpeg turns it."""
    width, height = size_px
    wanted = f"select='gte(t,{at_s - 1e-4:.6f})'"
    scaled = f"{wanted},scale={width}:{height}:flags=area+accurate_rnd+full_chroma_int"
    command = [FFMPEG, "-v", "error", "-i", path, "-map", "0:v:0", "-copyts", "-vf", scaled]
    command += ["-vframes", "1", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(height, width, 3)


def first_frame(unit: Unit) -> np.ndarray:
    """float RGB of limited BT.601 by arithmetic, not by a converter that may be wrong the same way."""
    with av.open(str(unit.fields["mp4"])) as clip:
        planes = next(clip.decode(video=0)).to_ndarray().astype(float)
    height, width = unit.metadata["height_px"], unit.metadata["width_px"]
    assert isinstance(height, int)
    assert isinstance(width, int)
    luma = (planes[:height] - 16) / 219
    small = planes[height:].reshape(2, height // 2, width // 2)
    blue, red = (np.kron(plane, np.ones((2, 2))) / 224 - 128 / 224 for plane in small)
    first, third = luma + 1.402 * red, luma + 1.772 * blue
    rgb: np.ndarray = np.stack([first, (luma - 0.299 * first - 0.114 * third) / 0.587, third], axis=-1)
    return np.clip(255 * rgb, 0, 255)


def coarse(picture: np.ndarray) -> np.ndarray:
    """Means of 8 x 8 px: what is left when scalers and codecs differ."""
    height, width = (side // 8 * 8 for side in picture.shape[:2])
    blocks = picture[:height, :width].astype(float).reshape(height // 8, 8, width // 8, 8, 3)
    means: np.ndarray = blocks.mean(axis=(1, 3))
    return means


def test_clips_look_as_ffmpeg_shows_their_source(tmp_path: Path) -> None:
    """Turned the same way, the same frame, the same colours: half of all 8 x 8 px to 2.5 levels, no cast above 2.

    At edges of saturated test patterns the two differ by how chroma is interpolated.
    """
    n_seen = 0
    for number, path in enumerate(corpus()):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        try:
            (unit, *_) = cut_video(str(path), scratch, POLICY, Known(audit={"seek_ok": False}))
        except Unusable:
            continue
        told = unit.fields["json"]
        at_s = told["pts"][0] * told["time_base"][0] / told["time_base"][1]
        mine = first_frame(unit)
        theirs = ffmpeg_frame(str(path), at_s, (mine.shape[1], mine.shape[0]))
        apart = coarse(mine) - coarse(theirs)
        assert np.median(np.abs(apart)) <= 2.5, path.name
        assert np.abs(apart.mean(axis=(0, 1))).max() <= 2, path.name
        assert np.quantile(np.abs(apart), 0.9) <= 20, path.name
        n_seen += 1
    assert n_seen == 0 or n_seen > 50


PATCHES = ((200, 30, 30), (30, 200, 30), (30, 30, 200), (235, 235, 235), (16, 16, 16), (200, 200, 40))


@pytest.mark.parametrize("colours", ["bt709", "smpte170m", "smpte240m"])
@pytest.mark.parametrize("full_range", [False, True])
def test_hd_colours_survive(tmp_path: Path, colours: str, full_range: bool) -> None:
    """ffmpeg makes the source and turns it back into RGB; the clip has the same colours to two levels."""
    picture = np.zeros((720, 1280, 3), np.uint8)
    for number, colour in enumerate(PATCHES):
        picture[:, number * 213 : number * 213 + 213] = colour
    (tmp_path / "picture").write_bytes(picture.tobytes())
    told = "pc" if full_range else "tv"
    source = str(tmp_path / "source.mp4")
    command = [FFMPEG, "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "1280x720", "-r", "25"]
    command += ["-stream_loop", "24", "-i", str(tmp_path / "picture")]
    command += [
        "-vf",
        f"scale=out_color_matrix={colours}:out_range={told},format=yuv420p",
        "-color_range",
        told,
    ]
    command += ["-colorspace", colours, "-color_primaries", "bt709", "-color_trc", "bt709"]
    subprocess.run([*command, "-c:v", "libx264", "-qp", "2", source], check=True)
    (unit,) = cut_video(source, tmp_path, POLICY)
    theirs = ffmpeg_frame(source, 0, (456, 256))
    mine = first_frame(unit)
    for number, colour in enumerate(PATCHES):
        place = (128, number * 76 + 38)
        assert np.abs(mine[place] - theirs[place]).max() <= 2, colour
        assert np.abs(mine[place] - colour).max() <= 3, colour  # 8-bit Y, Cb, Cr, twice


def probe_stream(unit: Unit) -> dict[str, Any]:
    command = [FFPROBE, "-v", "error", "-of", "json", "-show_streams", str(unit.fields["mp4"])]
    (stream,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["streams"]
    found: dict[str, Any] = stream
    return found


@pytest.mark.parametrize("hdr", [False, True])
def test_ffprobe_reads_the_tags(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: Any, hdr: bool
) -> None:
    tags = {"color_range": 1, "colorspace": 9 if hdr else 1, "color_primaries": 9 if hdr else 1}
    path = encode_video(
        numbered_frames(20, 64, 96),
        pix_fmt="yuv420p10le" if hdr else "yuv420p",
        tags={**tags, "color_trc": 16 if hdr else 1},
    )
    (unit,) = cut_video(path, tmp_path, CutPolicy(video=VideoPolicy(hdr="tonemap")))
    stream = probe_stream(unit)
    names = ("color_range", "color_space", "color_transfer", "color_primaries", "pix_fmt", "has_b_frames")
    assert [stream[name] for name in names] == ["tv", "smpte170m", "bt709", "bt709", "yuv420p", 0]
    assert stream.get("sample_aspect_ratio", "1:1") == "1:1"
    assert stream["field_order"] == "progressive"


def test_pq_light_is_zimgs(tmp_path: Path, encode_video: EncodeVideo) -> None:
    """The light of a PQ signal against zimg, the library behind ffmpeg's zscale."""
    steps = np.linspace(0, 1, 64)
    frame = np.repeat(np.repeat(np.rint(65535 * steps)[None, :, None], 64, axis=0), 3, axis=2).astype("<u2")
    (tmp_path / "steps").write_bytes(frame.tobytes())
    command = [FFMPEG, "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb48le", "-s", "64x64"]
    command += ["-i", str(tmp_path / "steps"), "-f", "rawvideo", "-pix_fmt", "gbrpf32le", "-vf"]
    light = (
        "zscale=tin=smpte2084:pin=bt2020:min=gbr:rin=full:t=linear:p=bt2020:m=gbr:npl=100,format=gbrpf32le"
    )
    raw = subprocess.run([*command, light, "-"], capture_output=True, check=True).stdout
    theirs = np.frombuffer(raw, "<f4").reshape(3, 64, 64)[0, 0] * 100
    assert theirs == pytest.approx(pq_light(frame[0, :, 0] / 65535), rel=0.01, abs=0.01)
