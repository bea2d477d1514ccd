"""Video: every random access gives exactly the frames of a decode from the start."""

import contextlib
import io
import os
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import islice, product
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation
from PIL import Image

from loader.errors import DecodeFailed, InvalidRuntime
from loader.modalities import find_decoder
from loader.modalities.video.demux import whole_file
from loader.modalities.video.request import VideoDecoder, video
from loader.modalities.video.timeline import Timeline
from tests.refusals import refusal


def make_timeline(n, time_base=Fraction(1, 25)):
    """A timeline of `n` frames, one per tick."""
    every = np.ones(n, np.bool_)
    return Timeline.of(np.arange(n), every, ~every, time_base, n)


class TestWhichFrames:
    def test_defaults(self):
        assert find_decoder("cam.mp4") == video(frames=16)
        assert video(4, 2, (8, 9), 3) == VideoDecoder(frames=4, stride=2, size=(8, 9), start=3)
        decoder = video(np.int64(4), size=(np.int32(8), 9))
        assert pickle.loads(pickle.dumps(decoder)) == decoder  # noqa: S301
        assert type(decoder.frames) is int

    @pytest.mark.parametrize(
        ("wrong", "what", "value"),
        [
            ({"frames": 0}, "frames and stride", [0, 1]),
            ({"stride": 0}, "frames and stride", [16, 0]),
            ({"size": (0, 4)}, "size", (0, 4)),
            ({"size": (4,)}, "video()", (None, 1, (4,), None, None, None, None)),
            ({"size": (4, 4, 3)}, "video()", (None, 1, (4, 4, 3), None, None, None, None)),
            ({"start": -1}, "start", -1),
            ({"frames": 1.5}, "video()", (1.5, 1, None, None, None, None, None)),
            ({"size": 224}, "video()", (None, 1, 224, None, None, None, None)),
        ],
    )
    def test_arguments_out_of_range(self, wrong, what, value):
        with refusal(InvalidRuntime, what=what, given=value):
            video(**wrong)

    def test_drawn_start_covers_every_place_and_follows_its_generator(self):
        decoder = video(frames=4, stride=3)
        rng = np.random.Generator(np.random.Philox(1))
        starts = [decoder.choose_frames(make_timeline(14), rng)[0] for _ in range(200)]
        assert set(starts) == {0, 1, 2, 3, 4}
        again = np.random.Generator(np.random.Philox(1))
        assert [decoder.choose_frames(make_timeline(14), again)[0] for _ in range(200)] == starts

    def test_frames_and_stride(self):
        assert video(4, 3, start=2).choose_frames(make_timeline(12), None) == [2, 5, 8, 11]
        assert video(1).choose_frames(make_timeline(1), None) == [0]
        assert video(4, 3).choose_frames(make_timeline(100), None)[0] == 0

    @pytest.mark.parametrize("decoder", [video(4, 3, start=3), video(13), video(7, 2)])
    def test_too_few_frames_are_not_repeated(self, decoder):
        with refusal(DecodeFailed, what="frames", given=12, accepted=13):
            decoder.choose_frames(make_timeline(12), np.random.default_rng(0))


def test_every_random_access_is_the_sequential_decode(videos, media):
    for name, (data, n_frames) in videos.items():
        reference = list(media.sequential(data))
        assert [media.number_in(frame) for frame in reference] == list(range(n_frames)), name
        for start in range(n_frames):
            got = video(1, start=start)(data)
            assert got.shape == (1, media.HEIGHT, media.WIDTH, 3)
            assert np.array_equal(got[0], reference[start]), (name, start)
        for frames, stride in ((2, 1), (5, 3), (4, 13), (8, 7), (60, 1), (3, 29)):
            for start in {0, 1, 4, 7, n_frames - (frames - 1) * stride - 1}:
                if 0 <= start <= n_frames - (frames - 1) * stride - 1:
                    got = video(frames, stride, start=start)(data)
                    wanted = [reference[start + i * stride] for i in range(frames)]
                    assert np.array_equal(got, wanted), (name, frames, stride, start)


def test_clip_is_an_owned_uint8_array(videos):
    data, _ = videos["gop12"]
    got = video(3)(memoryview(data))
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert got.flags.owndata


def test_threads_may_share_a_decoder(videos, media):
    data, n_frames = videos["open_gop"]
    decoders = [video(4, start=start) for start in range(n_frames - 3)]
    with ThreadPoolExecutor(4) as pool:
        for decoder, got in zip(decoders, pool.map(lambda d: d(data), decoders), strict=True):
            assert media.number_in(got[0]) == decoder.start


def test_keyframe_marks_that_lie_are_seen_through(videos, media):
    """Without its table of sync samples, every frame of an mp4 claims to be a keyframe."""
    data, _ = videos["one_gop_b"]
    reference = list(media.sequential(data))
    lying = data.replace(b"stss", b"free")
    for start in (0, 9, 31, 57):
        assert np.array_equal(video(3, start=start)(lying), reference[start : start + 3])


@pytest.mark.parametrize("gop", ["250", "4"])
def test_frames_that_an_edit_list_hides_are_not_counted(media, gop):
    """With one GOP, ten packets are marked as hidden; with short ones, whole GOPs are left out as well."""

    def earlier(packet, count):
        offset = round(0.4 / packet.time_base)
        packet.pts -= offset
        packet.dts -= offset

    options = {"g": gop, "bf": "0", "x264-params": "scenecut=0"}
    data = media.encode_video([n * 40 for n in range(40)], options=options, shift=earlier)
    with av.open(io.BytesIO(data)) as container:
        hidden = sum(packet.is_discard for packet in container.demux(video=0))
    assert hidden == (10 if gop == "250" else 2)
    got = video(30)(data)
    assert [media.number_in(frame) for frame in got] == list(range(10, 40))
    with refusal(DecodeFailed, what="frames", given=30, accepted=31):
        video(31)(data)


def test_two_frames_at_one_instant_are_refused(media):
    def onto_the_next(packet, count):
        if count == 5:
            packet.pts += round(0.04 / packet.time_base)

    data = media.encode_video(
        [n * 40 for n in range(20)], options={"g": "20", "bf": "0"}, shift=onto_the_next
    )
    with refusal(DecodeFailed, what="timestamp", where="packets 5 and 6", given=3840):
        video(2)(data)


def with_matrix(data, a, b, c, d):
    """The mp4 with this display matrix in its track header (ISO/IEC 14496-12, 8.3.2)."""
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    matrix = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    return data[:at] + matrix + data[at + 36 :]


TURNS = [
    m
    for m in product((-1, 0, 1), repeat=4)
    if m[0] * m[3] - m[1] * m[2] in (-1, 1)
    and 0 in m
    and abs(m[0]) == abs(m[3])
    and abs(m[1]) == abs(m[2])
    and sum(map(abs, m)) == 2
]


@pytest.mark.parametrize("matrix", TURNS)
def test_display_matrix_is_applied(videos, matrix):
    data, _ = videos["gop12"]
    a, b, c, d = matrix
    plain = video(2)(data)
    height, width = plain.shape[1:3]
    y, x = np.mgrid[:height, :width]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    wanted = np.empty((2, to_y.max() + 1, to_x.max() + 1, 3), np.uint8)
    wanted[:, to_y, to_x] = plain
    turned = with_matrix(data, *matrix)
    assert np.array_equal(video(2)(turned), wanted)
    assert video(2, size=(20, 30))(turned).shape == (2, 20, 30, 3)


def test_quarter_turn_agrees_with_ffmpeg_s_angle(videos):
    data = with_matrix(videos["gop12"][0], 0, 1, -1, 0)
    with av.open(io.BytesIO(data)) as container:
        angle = next(container.decode(video=0)).rotation
    assert angle == -90
    assert np.array_equal(video(1)(data)[0], np.rot90(video(1)(videos["gop12"][0])[0], -1))


def test_another_angle_is_refused(videos):
    with refusal(
        DecodeFailed, what="display matrix", given=[65536, 65536, -65536, 65536], accepted="a quarter turn"
    ):
        video(1)(with_matrix(videos["gop12"][0], 1, 1, -1, 1))


def test_size_resizes_the_whole_picture(videos, media):
    data, _ = videos["gop12"]
    got = video(4, size=(32, 48))(data)
    assert got.shape == (4, 32, 48, 3)
    flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
    flags |= Interpolation.FULL_CHR_H_INT
    with av.open(io.BytesIO(data)) as container:
        for mine, frame in zip(got, islice(container.decode(video=0), 4), strict=True):
            theirs = frame.reformat(48, 32, "rgb24", src_colorspace=5, src_color_range=1, interpolation=flags)
            assert np.array_equal(mine, theirs.to_ndarray())
            halved = frame.to_ndarray(format="rgb24").reshape(32, 2, 48, 2, 3).mean((1, 3))
            assert np.abs(mine - halved).mean() < 6
    assert video(1, size=(480, 10))(data).shape == (1, 480, 10, 3)


# Kr, Kb of ITU-R BT.601-7, BT.709-6 and BT.2020-2; FFmpeg's names for AVColorSpace.
MATRICES = {
    "untagged": (2, 0.299, 0.114),
    "bt601": (6, 0.299, 0.114),
    "bt709": (1, 0.2126, 0.0722),
    "bt2020": (9, 0.2627, 0.0593),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("full", [False, True])
def test_colour_follows_the_tagged_matrix_and_range(name, full):
    if name == "untagged" and full:
        full = False  # untagged is read as limited
    space, kr, kb = MATRICES[name]
    luma, cb, cr = 120, 100, 160
    frame = av.VideoFrame(64, 64, "yuv420p")
    for plane, level in zip(frame.planes, (luma, cb, cr), strict=True):
        plane.update(bytes([level]) * plane.buffer_size)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.colorspace = space
        stream.codec_context.color_range = 0 if name == "untagged" else 2 if full else 1
        container.mux([*stream.encode(frame), *stream.encode(None)])
    y, u, v = (
        (luma / 255, (cb - 128) / 255, (cr - 128) / 255)
        if full
        else ((luma - 16) / 219, (cb - 128) / 224, (cr - 128) / 224)
    )
    red, blue = y + 2 * (1 - kr) * v, y + 2 * (1 - kb) * u
    green = (y - kr * red - kb * blue) / (1 - kr - kb)
    for decoder in (video(1), video(1, size=(32, 32))):
        got = decoder(file.getvalue())[0, 5:-5, 5:-5].reshape(-1, 3)
        assert np.abs(got - 255 * np.array([red, green, blue])).max() <= 3


def motion_jpeg(picture):
    """An mp4 whose one frame is a JPEG of 96 x 64 px."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuvj420p"
        packet = av.Packet(picture)
        packet.stream, packet.pts, packet.dts, packet.time_base = stream, 0, 0, Fraction(1, 25)
        packet.is_keyframe = True
        container.mux(packet)
    return sink.getvalue()


class TestRefusals:
    def test_motion_jpeg_of_too_many_scans(self):
        """FFmpeg decodes each scan of a frame: 80 KB of them take 1.6 s."""
        file = io.BytesIO()
        Image.new("RGB", (96, 64)).save(file, "JPEG", progressive=True)
        whole = file.getvalue()
        last = whole.rindex(b"\xff\xda")
        many = whole[:last] + whole[last:-2] * 150 + b"\xff\xd9"
        assert len(video(1)(motion_jpeg(whole))) == 1
        with refusal(DecodeFailed, what="scans", accepted=100):
            video(1)(motion_jpeg(many))

    def test_truncated(self, videos):
        data, _ = videos["gop12"]
        assert data.index(b"moov") < data.index(b"mdat")
        for n in (len(data) - 1, len(data) * 2 // 3, data.index(b"mdat") + 100, data.index(b"mdat"), 600, 40):
            with pytest.raises(DecodeFailed):
                video(2)(data[:n])

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\0" * 100,
            b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
            b"ffconcat version 1.0\nfile /etc/hostname\n",
            b"RIFF\x24\0\0\0AVI LIST",
        ],
    )
    def test_other_bytes(self, data):
        with refusal(DecodeFailed, what="video", given="InvalidDataError"):
            video(2)(data)

    def test_no_video_stream(self):
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("aac", rate=16000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate = 16000
            container.mux([*stream.encode(frame), *stream.encode(None)])
        with refusal(DecodeFailed, what="video stream", given="none"):
            video(1)(file.getvalue())

    def test_clip_too_large(self, videos):
        with refusal(DecodeFailed, what="frames", given=18000000000, accepted=4294967296):
            video(60, size=(10_000, 10_000))(videos["gop12"][0])

    def test_damage_in_a_picture_is_refused_not_concealed(self, videos):
        data, _ = videos["one_gop_b"]
        with av.open(io.BytesIO(data)) as container:
            packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
        at, nbytes = packets[0]
        broken = bytearray(data)
        broken[at + nbytes // 2 : at + nbytes] = b"\xaa" * (nbytes - nbytes // 2)
        with pytest.raises(DecodeFailed):
            video(2, start=10)(bytes(broken))

    def test_flipped_bytes_decode_or_are_refused(self, videos):
        rng = np.random.default_rng(11)
        for name, n_cases in (("gop12", 200), ("hevc", 100), ("vfr", 200), ("mpeg4", 100)):
            good, _ = videos[name]
            for _ in range(n_cases):
                data = bytearray(good)
                for place in rng.integers(0, len(data), rng.integers(1, 6)):
                    data[place] = rng.integers(256)
                cut = bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data)
                with contextlib.suppress(DecodeFailed):
                    assert video(3, 5, size=(16, 16))(cut, rng).shape == (3, 16, 16, 3)


def test_real_videos_give_what_a_sequential_decode_gives(media, at_scale):
    """Every small mp4 of the corpus (when there is one) that decodes from the start without damage."""
    folder = os.environ.get("PENSTOCK_MEDIA")
    rng = np.random.default_rng(2)
    for path in sorted(Path(folder, "video").glob("*.mp4")) if folder else ():
        data = path.read_bytes()
        with av.open(io.BytesIO(data)) as container:
            if not container.streams.video or container.streams.video[0].width > at_scale(400, 900):
                continue
            turns = next(container.decode(video=0)).rotation // 90
        reference = [np.rot90(frame, turns) for frame in islice(media.sequential(data), 40)]
        for start in {0, *rng.integers(0, len(reference) - 2, 2).tolist()}:
            got = video(2, start=start)(data)
            assert np.array_equal(got, reference[start : start + 2]), (path.name, start)


def test_only_what_is_needed_is_decoded(videos):
    """Three far frames of short GOPs: three runs, each from its own keyframe."""
    data, _ = videos["gop12"]
    with whole_file(data) as file:
        runs = file.timeline.runs([1, 30, 59])
        assert len(runs) == 3
        assert all(file.key[run.first] and run.stop - run.first <= 12 for run in runs)


@pytest.mark.parametrize("level", [16, 100, 198, 255])
def test_resized_grey_keeps_its_level(level, tmp_path):
    path = tmp_path / "grey.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "1", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(2):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for size in (None, (48, 64), (30, 30), (96, 128)):
        clip = video(frames=2, size=size, start=0)(path.read_bytes())
        assert abs(int(clip.min()) - level) <= 1, size
        assert abs(int(clip.max()) - level) <= 1, size
