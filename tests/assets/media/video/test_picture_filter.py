"""Colours of clips, held against the formulas of ITU-T H.273 by hand; what is tagged; what is not taken."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from assets.media.clips.cut import cut_video
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unusable
from assets.media.video.colour import VideoSignal, frame_rendering, to_sdr
from assets.media.video.frame_filter import FrameFilter, matrix_filters
from tests.refusals import refusal

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
LUMA = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 6: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
TAKES_ALL = VideoPolicy(hdr="tonemap", deep="reduce", short_side_px=64)


def quantize_yuv(rgb: np.ndarray, matrix: int, bits: int, full_range: bool) -> np.ndarray:
    """Y, Cb, Cr of R'G'B' (0 to 1), rounded to `bits`."""
    kr, kb = LUMA[matrix]
    luma = kr * rgb[0] + (1 - kr - kb) * rgb[1] + kb * rgb[2]
    colour = np.array([luma, (rgb[2] - luma) / (2 - 2 * kb), (rgb[0] - luma) / (2 - 2 * kr)])
    step = 2 ** (bits - 8)
    if full_range:
        return np.rint(colour * (2**bits - 1) + np.array([0, 128, 128]) * step)
    return np.rint((colour * [219, 224, 224] + [16, 128, 128]) * step)


def source_colours(samples: np.ndarray, matrix: int, bits: int, full_range: bool) -> np.ndarray:
    """R'G'B' of what `quantize_yuv` gave: the colours that the source has."""
    kr, kb = LUMA[matrix]
    scaled = samples / 2 ** (bits - 8)
    if full_range:
        luma, blue, red = (scaled - [0, 128, 128]) / (255 + 1 - 2.0 ** (8 - bits))
    else:
        luma, blue, red = (scaled - [16, 128, 128]) / [219, 224, 224]
    first, third = luma + 2 * (1 - kr) * red, luma + 2 * (1 - kb) * blue
    return np.array([first, (luma - kr * first - kb * third) / (1 - kr - kb), third])


def plain(pix_fmt: str, values: np.ndarray, **tags: int) -> av.VideoFrame:
    """A frame of one colour. values: of its planes."""
    frame = av.VideoFrame(128, 96, pix_fmt)
    for plane, value in zip(frame.planes, values, strict=True):
        dtype = np.uint16 if "le" in pix_fmt else np.uint8
        plane.update(np.full(plane.buffer_size // dtype().itemsize, value, dtype).tobytes())
    for name, value in {"color_primaries": 1, "color_trc": 1, **tags}.items():
        setattr(frame, name, value)
    frame.pts, frame.time_base = 0, Fraction(1, 25)
    return frame


def means(picture: av.VideoFrame) -> np.ndarray:
    """Of Y, Cb, Cr."""
    samples, height = picture.to_ndarray().astype(float), picture.height
    blue, red = samples[height:].reshape(2, -1).mean(axis=1)
    return np.array([samples[:height].mean(), blue, red])


@pytest.fixture
def stream(encode_video: EncodeVideo, numbered_frames: MakeFrames) -> Any:
    with av.open(encode_video(numbered_frames(1, 96, 128))) as container:
        yield container.streams.video[0]


@pytest.mark.parametrize("matrix", LUMA)
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p12le"])
def test_every_colour_is_the_sources_to_a_level(
    stream: Any, matrix: int, full_range: bool, pix_fmt: str
) -> None:
    rng = np.random.default_rng(matrix)
    bits = 12 if "12" in pix_fmt else 10 if "10" in pix_fmt else 8
    shrink = FrameFilter(stream, TAKES_ALL)
    for colour in [*rng.random((8, 3)), np.zeros(3), np.ones(3)]:
        samples = quantize_yuv(colour, matrix, bits, full_range)
        frame = plain(pix_fmt, samples, colorspace=matrix, color_range=2 if full_range else 1)
        exact = quantize_yuv(source_colours(samples, matrix, bits, full_range), 6, 8, False)
        picture = shrink.apply(frame)
        assert (picture.format.name, picture.height) == ("yuv420p", 64)
        assert np.abs(means(picture) - exact).max() <= 1.01


@pytest.mark.parametrize("pix_fmt", ["gbrp", "gbrp10le"])
def test_rgb_becomes_bt601(stream: Any, pix_fmt: str) -> None:
    for colour in np.random.default_rng(0).random((8, 3)):
        top = 1023 if "10" in pix_fmt else 255
        frame = plain(pix_fmt, np.rint(top * colour)[[1, 2, 0]], colorspace=0, color_range=2)
        picture = FrameFilter(stream, TAKES_ALL).apply(frame)
        assert np.abs(means(picture) - quantize_yuv(np.rint(top * colour) / top, 6, 8, False)).max() <= 1.01


@pytest.mark.parametrize(("transfer", "primaries"), [(16, 9), (16, 12), (18, 9), (1, 9), (14, 9), (1, 12)])
@pytest.mark.parametrize("full_range", [False, True])
def test_hdr_and_wide_colours_are_those_of_the_formulas(
    stream: Any, transfer: int, primaries: int, full_range: bool
) -> None:
    shrink = FrameFilter(stream, TAKES_ALL)
    for colour in 0.7 * np.random.default_rng(transfer).random((6, 3)):
        samples = quantize_yuv(colour, 9, 10, full_range)
        tags = {"color_primaries": primaries, "color_trc": transfer, "color_range": 2 if full_range else 1}
        picture = shrink.apply(plain("yuv420p10le", samples, colorspace=9, **tags))
        signal = VideoSignal(matrix=9, primaries=primaries, transfer=transfer, full_range=full_range, bits=10)
        wide = (samples[None, None] * 64).astype(np.uint16)
        exact = quantize_yuv(to_sdr(wide, signal)[0, 0] / 65535, 6, 8, False)
        assert np.abs(means(picture) - exact).max() <= 1.5
    rendering = shrink.rendering
    assert rendering is not None
    assert (rendering.primaries, rendering.transfer) == (1, 1)
    assert rendering.treatment == {16: "pq", 18: "hlg"}.get(transfer, "gamut")


@pytest.mark.parametrize(
    ("policy", "pix_fmt", "tags", "code"),
    [
        ({}, "yuv420p10le", {}, "bit_depth"),
        ({}, "yuv420p10le", {"color_trc": 16}, "hdr"),
        ({}, "yuv420p", {"color_trc": 18}, "hdr"),
        ({"deep": "reduce"}, "yuv420p10le", {"color_trc": 16}, "hdr"),
        ({"hdr": "tonemap"}, "yuv420p10le", {}, "bit_depth"),
        # what contradicts itself is not taken at all
        ({"hdr": "tonemap"}, "yuv420p", {"color_trc": 16, "colorspace": 9, "color_primaries": 9}, "hdr_unclear"),
        ({"hdr": "tonemap"}, "yuv420p10le", {"color_trc": 16, "colorspace": 1}, "hdr_unclear"),
        ({"hdr": "tonemap"}, "yuv420p10le", {"color_trc": 18, "colorspace": 9, "color_primaries": 1}, "hdr_unclear"),
        ({"hdr": "tonemap"}, "yuv420p10le", {"color_trc": 18, "colorspace": 9, "color_primaries": 2}, "hdr_unclear"),
        ({"deep": "reduce"}, "yuv420p10le", {"color_trc": 2, "colorspace": 9}, "hdr_untagged"),
        ({"deep": "reduce"}, "yuv420p10le", {"color_trc": 2, "color_primaries": 9}, "hdr_untagged"),
        ({}, "yuv420p", {"colorspace": 8}, "matrix"),  # YCgCo
        ({}, "yuv420p", {"colorspace": 10}, "matrix"),  # constant luminance
        ({}, "yuv420p", {"colorspace": 14}, "matrix"),  # ICtCp
        ({}, "yuv420p", {"color_trc": 8}, "transfer"),  # linear light
        ({}, "yuv420p", {"color_trc": 9}, "transfer"),
        ({}, "yuv420p", {"color_primaries": 10}, "primaries"),  # XYZ
    ],
)  # fmt: skip
def test_what_is_not_taken(policy: dict[str, Any], pix_fmt: str, tags: dict[str, int], code: str) -> None:
    frame = plain(pix_fmt, np.array([100, 128, 128]), **{"colorspace": 6, **tags})
    with pytest.raises(Unusable) as refused:
        frame_rendering(frame, VideoPolicy(**policy))
    assert (refused.value.outcome, refused.value.code) == ("dropped", code)


@pytest.mark.parametrize(
    ("tags", "primaries", "transfer", "assumed"),
    [
        ({}, 1, 1, True),
        ({"color_range": 1, "colorspace": 1, "color_primaries": 1, "color_trc": 1}, 1, 1, False),
        ({"color_range": 1, "colorspace": 6, "color_primaries": 6, "color_trc": 6}, 6, 6, False),
        ({"color_range": 2, "colorspace": 5, "color_primaries": 5, "color_trc": 6}, 5, 6, False),
        ({"colorspace": 1}, 1, 1, True),
    ],
)
def test_tags_are_in_the_bitstream_and_in_the_container(
    tmp_path: Path,
    encode_video: EncodeVideo,
    numbered_frames: MakeFrames,
    tags: dict[str, int],
    primaries: int,
    transfer: int,
    assumed: bool,
) -> None:
    (unit,) = cut_video(encode_video(numbered_frames(20), tags=tags), tmp_path, CutPolicy())
    assert unit.metadata["colour_assumed"] is assumed
    data = unit.fields["mp4"].read_bytes()
    place = data.index(b"colrnclx")
    stored = [int.from_bytes(data[place + at : place + at + 2], "big") for at in (8, 10, 12)]
    assert stored == [primaries, transfer, 6]
    assert data[place + 14] >> 7 == 0  # limited
    with av.open(str(unit.fields["mp4"])) as clip:
        # A decoder that was told nothing by the container: only what stands in the packets and the extradata.
        stream = clip.streams.video[0]
        bare = av.CodecContext.create("h264", "r")
        bare.extradata = stream.codec_context.extradata
        packets = [av.Packet(bytes(packet)) for packet in clip.demux(stream) if packet.size]
    frame = next(frame for packet in [*packets, None] for frame in bare.decode(packet))
    found = (frame.color_range, frame.colorspace, frame.color_primaries, frame.color_trc)
    assert tuple(map(int, found)) == (1, 6, primaries, transfer)


@pytest.mark.parametrize(
    "matrix",
    [
        (0.7071, 0.7071, -0.7071, 0.7071),
        (1, 0.2, 0, 1),
        (0, 0, 0, 0),
        (2, 0, 0, 1),
        (1, 0, 0, 0),
        (0, 1, -2, 0),
    ],
)
def test_angle_that_is_no_quarter_turn_is_refused(matrix: tuple[float, ...]) -> None:
    a, b, c, d = (round(value * 65536) for value in matrix)
    with refusal(Unusable, what="rotation") as refused:
        matrix_filters((a, b, 0, c, d, 0, 0, 0, 1 << 30))
    assert (refused.value.outcome, refused.value.code) == ("dropped", "rotation")


def test_colours_that_change_in_mid_clip_are_refused(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = frame_rendering

    def changing(frame: av.VideoFrame, policy: VideoPolicy) -> Any:
        frame.color_primaries = 6 if (frame.pts or 0) >= 400 else 1
        return really(frame, policy)

    path = encode_video(numbered_frames(20))
    monkeypatch.setattr("assets.media.video.frame_filter.frame_rendering", changing)
    monkeypatch.setattr("assets.media.video.frame_filter._frame_form", lambda frame: frame.pts)
    with pytest.raises(Unusable) as refused:
        cut_video(path, tmp_path, CutPolicy())
    assert refused.value.code == "colour_change"
