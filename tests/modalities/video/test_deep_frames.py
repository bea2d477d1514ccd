"""Frames of more than 8 bits: gray keeps its codes on every path, colour its bits on request."""

import io
import itertools

import av
import numpy as np
import pytest

import loader
from loader.errors import DecodeFailed, InvalidRuntime
from loader.modalities.image.crop import Framing, nearest
from loader.modalities.video.decode import read_bare, read_clip
from loader.modalities.video.frame_pixels import frame_pixels
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.modalities.video.request import RUN
from loader.modalities.video.timeline import Timeline
from tests.refusals import refusal

# Keyframes only: x265 loses some codes of 12 bits between frames, lossless=1 or not.
LOSSLESS = {"x265-params": "keyint=1:lossless=1:log-level=none"}
GROUPS = {"x265-params": "keyint=4:min-keyint=4:bframes=2:lossless=1:log-level=none"}
N, HEIGHT, WIDTH = 9, 48, 64
DEEP = {
    "gray10le": ("libx265", "mp4", LOSSLESS),
    "gray12le": ("libx265", "mp4", LOSSLESS),
    "gray16le": ("ffv1", "matroska", {}),
}


def encode_video(frames, pix_fmt, codec, container, options):
    """A video of these frames, [T, H, W] gray or [T, H, W, 3] rgb48le, at 30 a second."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pix_fmt
        for samples in frames:
            source = pix_fmt if frames.ndim == 3 else "rgb48le"
            out.mux(stream.encode(av.VideoFrame.from_ndarray(samples, source)))
        out.mux(stream.encode(None))
    return file.getvalue()


def code_ramps(pix_fmt, shape=(N, HEIGHT, WIDTH)):
    """Ramps over all codes of the format."""
    frames, height, width = shape
    top = 2 ** int(pix_fmt[4:6])
    pixel = np.linspace(0, top - 1, height * width).round().astype(np.int64).reshape(height, width)
    return ((pixel + 97 * np.arange(frames)[:, None, None]) % top).astype(np.uint16)


@pytest.fixture(scope="module", params=DEEP)
def gray(request):
    """(codes, uint16 [T, H, W, 1]; the video)."""
    codes = code_ramps(request.param)
    return codes[..., None], encode_video(codes, request.param, *DEEP[request.param])


def test_gray_of_more_than_8_bits_keeps_its_codes_in_a_whole_file(gray):
    codes, data = gray
    clip = loader.video(frames=N, start=0)(data)
    assert clip.dtype == np.uint16
    assert np.array_equal(clip, codes)
    assert np.array_equal(loader.video(frames=N, start=0, bits=16)(data), codes)
    assert np.array_equal(read_clip(data, lambda n: [n - 1, 2]), codes[[N - 1, 2]])


@pytest.fixture(scope="module")
def hevc():
    """As `gray`, HEVC with frames that need others, whose packets the loader reads one by one."""
    data = encode_video(code_ramps("gray12le"), "gray12le", "libx265", "mp4", GROUPS)
    with av.open(io.BytesIO(data)) as file:
        codes = np.stack([frame.to_ndarray() for frame in file.decode(video=0)])
    assert codes.max() > 4000
    return codes[..., None], data


def test_gray_of_more_than_8_bits_keeps_its_codes_in_bare_packets(hevc):
    codes, data = hevc
    table = read_packets(index_packets(data))
    assert table.facts.whole_because == ""
    timeline = Timeline.of_table(table)
    whole = memoryview(data)
    for frames in ([7, 1, 1], list(range(N))):
        numbers = itertools.chain(*(range(run.first, run.stop) for run in timeline.runs(frames)))
        bodies = {n: whole[table.pos[n] :][: table.size[n]] for n in numbers}
        clip = read_bare(table, timeline, bodies, frames, Framing())
        assert clip is not None
        assert clip.dtype == np.uint16
        assert np.array_equal(clip, codes[frames])


def test_deep_gray_lies_in_the_memory_that_is_offered(hevc):
    codes, data = hevc
    table = read_packets(index_packets(data))
    timeline = Timeline.of_table(table)
    bodies = {n: data[table.pos[n] :][: table.size[n]] for n in range(len(table))}
    offers = []

    def place(shape, dtype):
        offers.append((shape, dtype))
        return np.zeros(shape, dtype)

    clip = read_bare(table, timeline, bodies, [3, 4], Framing(), place=place)
    assert offers == [((2, HEIGHT, WIDTH, 1), np.dtype(np.uint16))]
    assert np.array_equal(clip, codes[[3, 4]])


def test_scaled_deep_gray_has_no_new_codes(gray):
    codes, data = gray
    half = loader.video(frames=N, start=0, size=(HEIGHT // 2, WIDTH // 2))(data)
    assert np.array_equal(half, codes[:, 1::2, 1::2])
    twice = loader.video(frames=1, start=2, size=(2 * HEIGHT, 2 * WIDTH))(data)
    assert np.array_equal(twice[0], codes[2].repeat(2, axis=0).repeat(2, axis=1))
    box = loader.video(frames=1, start=2, crop=(3, 5, 20, 31))(data)
    assert np.array_equal(box[0], codes[2, 3:23, 5:36])
    square = loader.video(frames=1, start=2, size=(24, 24), crop="center")(data)
    assert np.array_equal(square[0], codes[2, 1::2, 9:57:2])
    scaled_box = loader.video(frames=1, start=2, crop=(3, 5, 20, 30), size=(40, 60))(data)
    assert np.array_equal(scaled_box[0], codes[2, 3:23, 5:35].repeat(2, axis=0).repeat(2, axis=1))


def test_nearest_takes_the_pixel_that_holds_the_centre():
    row = np.arange(5, dtype=np.uint16).reshape(1, 5, 1)
    assert nearest(row, (0, 0, 1, 5), (1, 3), (0, 0, 1, 3)).ravel().tolist() == [0, 2, 4]
    assert nearest(row, (0, 1, 1, 4), (1, 8), (0, 2, 1, 4)).ravel().tolist() == [2, 2, 3, 3]


def test_gray_of_12_bits_becomes_8_on_request(gray):
    _, data = gray
    clip = loader.video(frames=N, start=0, bits=8)(data)
    assert clip.dtype == np.uint8
    assert clip.shape == (N, HEIGHT, WIDTH, 3)
    assert np.array_equal(clip, read_clip(data, range, bits=8))


def rotate_track(data):
    """The mp4 with a quarter turn in its track header."""
    unit, turn = 0x00010000, bytearray(data)
    upright = b"".join(v.to_bytes(4, "big") for v in (unit, 0, 0, 0, unit, 0, 0, 0, 0x40000000))
    quarter = b"".join((v % 2**32).to_bytes(4, "big") for v in (0, unit, 0, -unit, 0, 0, 0, 0, 0x40000000))
    at = data.index(upright, data.index(b"tkhd"))
    turn[at : at + len(quarter)] = quarter
    return bytes(turn)


def test_deep_gray_comes_upright():
    codes = code_ramps("gray12le", (2, HEIGHT, WIDTH))
    data = rotate_track(encode_video(codes, "gray12le", *DEEP["gray12le"]))
    clip = loader.video(frames=2, start=0)(data)
    assert np.array_equal(clip, np.rot90(codes[..., None], -1, axes=(1, 2)))


@pytest.fixture(scope="module")
def colour():
    """A ramp of 10 bits in colour, yuv420p10le."""
    ramp = np.zeros((2, 32, 1024, 3), np.uint16)
    ramp[...] = (np.arange(1024, dtype=np.uint16) << 6)[:, None]
    return encode_video(ramp, "yuv420p10le", "libx265", "mp4", LOSSLESS)


def test_colour_of_10_bits_has_8_unless_16_are_requested(colour):
    plain = loader.video(frames=2, start=0)(colour)
    assert plain.dtype == np.uint8
    assert plain.shape[3] == 3
    deep = loader.video(frames=2, start=0, bits=16)(colour)
    assert deep.dtype == np.uint16
    assert deep.shape == plain.shape
    assert len(np.unique(deep[0, 0, :, 1])) > 800
    assert np.abs(deep / 257 - plain).max() < 3
    small = loader.video(frames=1, start=0, bits=16, size=(16, 512))(colour)
    assert len(np.unique(small[0, 0, :, 1])) > 400


def test_gray_of_8_bits_is_rgb():
    codes = code_ramps("gray12le", (1, 32, 32)) >> 4
    data = encode_video(codes.astype(np.uint8), "gray", "ffv1", "matroska", {})
    clip = loader.video(frames=1, start=0)(data)
    assert np.array_equal(clip, codes[..., None].astype(np.uint8).repeat(3, axis=3))
    assert loader.video(frames=1, start=0, bits=16)(data).shape == (1, 32, 32, 3)


@pytest.mark.parametrize("pix_fmt", ["grayf32le", "grayf16le", "gbrpf32le", "gray32le"])
@pytest.mark.parametrize("bits", [None, 8, 16])
def test_samples_that_no_integer_of_16_bits_holds_are_refused(pix_fmt, bits):
    with refusal(DecodeFailed, what="pix_fmt", given=pix_fmt, accepted=16):
        frame_pixels(pix_fmt, bits)


def test_float_video_is_refused_by_name():
    frames = np.linspace(0, 5, 2 * 32 * 32, dtype=np.float32).reshape(2, 32, 32)
    data = encode_video(frames, "grayf32le", "rawvideo", "nut", {})
    with pytest.raises(DecodeFailed):
        loader.video(frames=1, start=0)(data)


def test_deep_gray_with_alpha_is_refused_unless_8_bits_are_requested():
    with refusal(DecodeFailed, what="pix_fmt", given="ya16le", accepted="gray without alpha"):
        frame_pixels("ya16le", None)
    assert frame_pixels("ya16le", 8).channels == 3


@pytest.mark.parametrize("bits", [7, "8", 12, True])
def test_other_bits_are_refused(bits):
    for decoder in (loader.video, loader.image):
        with refusal(InvalidRuntime, what="bits", given=bits, accepted=[8, 16, None]):
            decoder(bits=bits)
    with refusal(InvalidRuntime, what="bits", given=bits, accepted="8, 16 or None"):
        loader.random_resized_crop((8, 8), bits=bits)


def test_run_keeps_the_codes(hevc):
    codes, data = hevc
    assert RUN.bits is None
    table = index_packets(data)
    clip = loader.video(frames=N, start=0).of_run(data, table)
    assert np.array_equal(clip, codes)
