"""Matroska and WebM: read whole, as a decode from the start shows them; a truncated one is no shorter video."""

import io
import os
from pathlib import Path

import av
import numpy as np
import pytest

from loader.errors import DecodeFailed
from loader.modalities import find_decoder
from loader.modalities.video.container_checks import check_segment
from loader.modalities.video.decode import read_clip
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.modalities.video.request import video
from tests.refusals import refusal

HOW = {
    "vp8": (
        "libvpx",
        {"g": "30", "cpu-used": "8", "b": "200000"},
    ),
    "vp9": (
        "libvpx-vp9",
        {"g": "30", "cpu-used": "8", "b": "200000"},
    ),
    "h264": ("libx264", {"g": "12", "bf": "2"}),
}


@pytest.fixture(scope="module")
def files(media):
    made = {}
    for name, (codec, options) in HOW.items():
        file = io.BytesIO()
        with av.open(file, "w", format="webm" if name.startswith("vp") else "matroska") as container:
            stream = container.add_stream(codec, rate=25, options=options)
            stream.width, stream.height, stream.pix_fmt = media.WIDTH, media.HEIGHT, "yuv420p"
            stream.thread_count = 1
            for n in range(60):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(media.numbered(n), format="rgb24")))
            container.mux(stream.encode(None))
        made[name] = file.getvalue()
    return made


@pytest.mark.parametrize("name", HOW)
def test_header_without_packets_is_refused(files, name):
    data = bytearray(files[name])
    number = data.index(b"\x83\x81\x01", data.index(b"\x16\x54\xae\x6b"))  # TrackType: video
    track = data.rindex(b"\xd7\x81\x01", 0, number)
    data[track + 2] = 9  # no block belongs to it
    with pytest.raises(DecodeFailed):
        index_packets(bytes(data))


def test_random_access_is_the_sequential_decode(files, media):
    rng = np.random.default_rng(1)
    for name, data in files.items():
        reference = list(media.sequential(data))
        assert [media.number_in(frame) for frame in reference] == list(range(60)), name
        for frames in ([0], [59], *rng.integers(0, 60, (12, 3)).tolist()):
            assert np.array_equal(read_clip(data, lambda _, f=frames: f), [reference[n] for n in frames])
        assert find_decoder("cam.webm") == find_decoder("cam.mkv") == find_decoder("cam.mov") == video()
        assert find_decoder("cam.webm")(data).shape == (16, 64, 96, 3)


def with_hidden_frames(data, show_bit):
    """The WebM with a copy of each keyframe before it whose bit "show this frame" is off."""
    file = io.BytesIO()
    plain = {"fflags": "-autobsf"}  # else FFmpeg puts the two into one packet
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format="webm", options=plain) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if not packet.size:
                continue
            body = bytes(packet)
            hidden = av.Packet(bytes([body[0] & ~(1 << show_bit)]) + body[1:])
            hidden.pts, hidden.dts, hidden.time_base = packet.pts, packet.dts, packet.time_base
            hidden.is_keyframe = True
            for one in [hidden, packet] if packet.is_keyframe else [packet]:
                one.stream = stream
                target.mux(one)
    return file.getvalue()


@pytest.mark.parametrize(("codec", "show_bit"), [("vp8", 4), ("vp9", 1)])
def test_frames_that_nobody_sees_are_not_counted(files, media, codec, show_bit):
    """Alternate reference frames: packets at the time of another that give no picture."""
    plain = files[codec]
    data = with_hidden_frames(plain, show_bit)
    table = read_packets(index_packets(data))
    n_keys = int(read_packets(index_packets(plain)).key.sum())
    assert len(table) == 60 + n_keys
    assert np.flatnonzero(table.discard).tolist() == [0, 31][:n_keys]
    assert [media.number_in(frame) for frame in media.sequential(data)] == list(range(60))
    for frames in ([0], [5, 6], [30, 29], [59]):
        got = read_clip(data, lambda _, f=frames: f)
        assert [media.number_in(one) for one in got] == frames
        assert np.array_equal(got, read_clip(plain, lambda _, f=frames: f))


def test_truncated(files):
    for data in files.values():
        check_segment(data)
        for n in (len(data) - 1, len(data) // 2, 300, 60):
            with refusal(DecodeFailed, what="segment", given=n, accepted=len(data)):
                video(2)(data[:n])
        with refusal(DecodeFailed, what="segment", given="none"):
            video(2)(data[:5])
        with refusal(DecodeFailed, what="element", given=4):
            video(2)(data[:4])


def test_any_damage_is_refused_or_read(files):
    rng = np.random.default_rng(4)
    for data in files.values():
        for _ in range(60):
            damaged = bytearray(data)
            for place in rng.integers(0, len(data), rng.integers(1, 6)):
                damaged[place] = rng.integers(256)
            try:
                assert video(3, 5, size=(16, 16))(bytes(damaged), rng).shape == (3, 16, 16, 3)
            except DecodeFailed as error:
                assert str(error).startswith("video: ")  # noqa: PT017


def real_videos():
    folder = os.environ.get("PENSTOCK_MEDIA")
    return sorted([*Path(folder).glob("video/*.webm"), *Path(folder).glob("video/*.mkv")]) if folder else []


@pytest.mark.server
@pytest.mark.parametrize("path", real_videos(), ids=lambda path: path.stem)
def test_real_videos_are_the_sequential_decode(path, media):
    data = path.read_bytes()
    reference = [frame for _, frame in zip(range(60), media.sequential(data), strict=False)]
    frames = sorted(
        {0, len(reference) - 1, *np.random.default_rng(2).integers(0, len(reference), 8).tolist()}
    )
    assert np.array_equal(read_clip(data, lambda _: frames), [reference[n] for n in frames])
