import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from assets.media.clips.canonical import MIN_PSNR_DB, psnr_db
from assets.media.clips.cut import cut_video
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unusable
from assets.media.video.frame_filter import FrameFilter
from tests.refusals import refusal

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
POLICY = CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=1.0, max_clips=2))


def planes(path: str, policy: CutPolicy | None = None) -> dict[Fraction, np.ndarray]:
    """Seconds -> all samples of Y, U and V; brought to the policy's size where one is given."""
    found = {}
    with av.open(path) as container:
        stream = container.streams.video[0]
        shrink = FrameFilter(stream, policy.video) if policy else None
        for frame in container.decode(stream):
            assert frame.pts is not None
            assert stream.time_base is not None
            picture = shrink.apply(frame) if shrink else frame
            found[frame.pts * stream.time_base] = picture.to_ndarray().astype(float)
    return found


@pytest.mark.parametrize("size", [(64, 96), (128, 192)])
def test_what_the_encoder_tells_is_what_a_decoder_sees(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames, size: tuple[int, int]
) -> None:
    path = encode_video(noise_frames(50, *size))
    source = planes(path, POLICY)
    units = cut_video(path, tmp_path, POLICY)
    assert len(units) == 2
    for unit in units:
        start_s = Fraction(unit.fields["json"]["pts"][0], 1000)
        clip = planes(str(unit.fields["mp4"]))
        errors = [((picture - source[start_s + at]) ** 2).mean() for at, picture in clip.items()]
        assert len(errors) == 25
        assert unit.metadata["psnr_db"] == pytest.approx(10 * math.log10(255**2 / np.mean(errors)), abs=0.002)
        assert unit.metadata["worst_psnr_db"] == pytest.approx(
            10 * math.log10(255**2 / max(errors)), abs=0.002
        )
        assert unit.metadata["worst_psnr_db"] >= MIN_PSNR_DB  # no frame of this can be predicted from another


def test_pure_noise_is_kept_near_too(tmp_path: Path, encode_video: EncodeVideo) -> None:
    rng = np.random.default_rng(1)
    frames = [rng.integers(0, 256, (64, 96, 3), np.uint8) for _ in range(25)]
    (unit,) = cut_video(encode_video(frames), tmp_path, POLICY)
    assert unit.metadata["worst_psnr_db"] >= MIN_PSNR_DB


def test_clip_that_is_too_far_off_is_refused(
    tmp_path: Path,
    encode_video: EncodeVideo,
    noise_frames: MakeFrames,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worse = ({"crf": "45"}, {"crf": "40"})
    monkeypatch.setattr("assets.media.clips.canonical.QUALITIES", worse)
    with refusal(Unusable, what="psnr", accepted=35.0) as refused:
        cut_video(encode_video(noise_frames(25)), tmp_path, POLICY)
    assert refused.value.code == "psnr"


def test_psnr() -> None:
    assert psnr_db(0, 100) == 99.0
    assert psnr_db(100 * 255**2, 100) == 0.0
    assert psnr_db(100, 100) == pytest.approx(48.13, abs=0.01)


PATCHES = ((200, 30, 30), (30, 200, 30), (30, 30, 200), (235, 235, 235), (16, 16, 16), (200, 200, 40))


@pytest.mark.parametrize(
    ("colour_range", "space", "tagged"),
    [(1, 1, True), (2, 1, True), (1, 6, True), (2, 6, True), (1, 6, False)],
    ids=["709 tv", "709 pc", "601 tv", "601 pc", "untagged"],
)
def test_colours_survive_encoding(
    tmp_path: Path, encode_video: EncodeVideo, colour_range: int, space: int, tagged: bool
) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    for number, colour in enumerate(PATCHES):
        picture[:, number * 16 : number * 16 + 16] = colour
    # By hand, so that the test does not lean on the converter under test: ITU-T H.273, equations 38 to 46.
    red, blue = {1: (0.2126, 0.0722), 6: (0.299, 0.114)}[space]
    rgb = picture.astype(float) / 255
    luma = red * rgb[..., 0] + (1 - red - blue) * rgb[..., 1] + blue * rgb[..., 2]
    chroma = [(rgb[..., 2] - luma) / (2 * (1 - blue)), (rgb[..., 0] - luma) / (2 * (1 - red))]
    scale, offset, chroma_scale = (255, 0, 255) if colour_range == 2 else (219, 16, 224)
    samples = [luma * scale + offset, *(128 + plane * chroma_scale for plane in chroma)]
    yuv = np.stack([np.rint(plane) for plane in samples]).astype(np.uint8)
    flat = np.concatenate([yuv[0], yuv[1][::2, ::2].reshape(16, 96), yuv[2][::2, ::2].reshape(16, 96)])
    path = encode_video(
        [flat] * 25,
        source_format="yuv420p",
        tags={"color_range": colour_range, "colorspace": space} if tagged else None,
        height_px=64,
    )
    (unit,) = cut_video(path, tmp_path, POLICY)
    with av.open(str(unit.fields["mp4"])) as clip:
        seen = next(clip.decode(video=0)).to_ndarray(format="rgb24").astype(int)
    for number, colour in enumerate(PATCHES):
        assert np.abs(seen[32, number * 16 + 8] - colour).max() <= 6, (number, seen[32, number * 16 + 8])
