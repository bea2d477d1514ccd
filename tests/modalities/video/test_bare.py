"""Clips from bare packets: bit for bit those of a decode from the start, and known when they cannot be."""

import contextlib
import io
import itertools
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import DecodeFailed
from loader.modalities.image.crop import Framing
from loader.modalities.video.decode import read_bare, read_clip
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.modalities.video.timeline import Timeline
from tests.refusals import refusal

MORE = {
    "vp9": {"codec": "libvpx-vp9", "options": {"g": "20", "deadline": "realtime", "cpu-used": "8"}},
    "av1": {"codec": "libsvtav1", "rate": 25, "options": {"g": "24", "preset": "12", "crf": "40"}},
    "intra": {"codec": "mjpeg", "options": {"qscale": "3", "strict": "unofficial"}},
}


@pytest.fixture(scope="module")
def coded_videos(videos, media):
    """name -> (mp4 bytes, every frame of a decode from the start); also frames that an edit list hides."""

    def earlier(packet, count):
        packet.pts -= round(0.4 / packet.time_base)
        packet.dts -= round(0.4 / packet.time_base)

    steady = [n * 40 for n in range(60)]
    made = {name: data for name, (data, _) in videos.items()}
    made |= {name: media.encode_video(steady, **how) for name, how in MORE.items()}
    made["hidden"] = media.encode_video(
        steady, options={"g": "250", "bf": "0", "x264-params": "scenecut=0"}, shift=earlier
    )
    return {name: (data, list(media.sequential(data))) for name, data in made.items()}


def packet_bodies(data, table, timeline, frames):
    return {
        number: data[table.pos[number] :][: table.size[number]]
        for run in timeline.runs(frames)
        for number in range(run.first, run.stop)
    }


def bare(data, frames, framing=None, table=None):
    table = read_packets(index_packets(data)) if table is None else table
    timeline = Timeline.of_table(table)
    return read_bare(
        table, timeline, packet_bodies(data, table, timeline, frames), frames, framing or Framing()
    )


def test_every_codec_is_indexed(coded_videos):
    names = {}
    for name, (data, reference) in coded_videos.items():
        table = read_packets(index_packets(data))
        assert table.facts.whole_because == "", name
        assert len(Timeline.of_table(table)) == len(reference), name
        names[name] = table.facts.codec
    assert {"h264", "hevc", "mpeg4", "vp9", "libdav1d", "mjpeg"} <= set(names.values())
    assert coded_videos["hidden"][1][0].shape == (64, 96, 3)
    assert len(coded_videos["hidden"][1]) == 50


def test_every_frame_alone(coded_videos):
    for name, (data, reference) in coded_videos.items():
        table = read_packets(index_packets(data))
        for n in range(len(reference)):
            got = bare(data, [n], table=table)
            assert got is not None, (name, n)
            assert np.array_equal(got[0], reference[n]), (name, n)


@settings(derandomize=True, max_examples=120, deadline=None)
@given(st.data())
def test_any_frames_in_any_order(coded_videos, data):
    name = data.draw(st.sampled_from(sorted(coded_videos)))
    encoded, reference = coded_videos[name]
    frames = data.draw(st.lists(st.integers(0, len(reference) - 1), min_size=1, max_size=12))
    got = bare(encoded, frames)
    assert np.array_equal(got, [reference[n] for n in frames])
    assert np.array_equal(got, read_clip(encoded, lambda _: frames))


def test_turns_and_colours_come_with_the_table(videos, media):
    """Facts that only the container has: the display matrix, and colour that the bitstream does not tag."""
    data = videos["gop12"][0]
    turned = quarter_turned(data)
    table = read_packets(index_packets(turned))
    assert table.facts.display_matrix[:2] == (0, 1 << 16)
    upright = bare(turned, [3, 4], table=table)
    assert np.array_equal(upright, read_clip(turned, lambda _: [3, 4]))
    assert np.array_equal(upright[0], np.rot90(next_frame(media, data, 3), -1))


def test_clip_lies_where_there_is_a_place_for_it(videos):
    """Not where it is turned: what is decoded has another shape then."""
    data = videos["gop12"][0]
    for one, asked in ((data, [(3, 64, 96, 3)]), (quarter_turned(data), [])):
        table = read_packets(index_packets(one))
        timeline = Timeline.of_table(table)
        frames, places = [5, 3, 5], []

        def place(shape, dtype, places=places):
            places.append(np.full(shape, 7, dtype))
            return places[-1]

        bodies = packet_bodies(one, table, timeline, frames)
        got = read_bare(table, timeline, bodies, frames, Framing(), place=place)
        assert [one.shape for one in places] == asked
        assert all(one is got for one in places)
        assert np.array_equal(got, bare(one, frames, table=table))


def test_picture_tells_where_the_decoder_is_told_something_else(videos):
    """How a picture is turned comes with a decoded one alone, and is taken over from a file of the same encoder."""
    data = videos["gop12"][0]
    turned = quarter_turned(data)
    tried = read_packets(index_packets(data)).facts
    assert read_packets(index_packets(turned, tried)).facts.display_matrix == ()
    for other in ({"extradata": b""}, {"color_trc": 13}, {"whole_because": "no reason"}):
        assert index_packets(turned, replace(tried, **other)) == index_packets(turned)


def quarter_turned(data):
    """With a display matrix in its header."""
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    quarter = b"".join(
        n.to_bytes(4, "big", signed=True) for n in (0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    )
    return data[:at] + quarter + data[at + 36 :]


def next_frame(media, data, n):
    return list(media.sequential(data))[n]


def grey_green(space):
    """A video of one colour whose bitstream is tagged with this matrix and full range (2: with nothing)."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        if space != 2:
            stream.codec_context.colorspace, stream.codec_context.color_range = space, 2
        frame = av.VideoFrame(64, 64, "yuv420p")
        for plane, level in zip(frame.planes, (120, 100, 160), strict=True):
            plane.update(bytes([level]) * plane.buffer_size)
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def with_colr(data, space):
    """The mp4, its index behind its data, with a colour box in its sample entry: this matrix, full range (ISO/IEC
    14496-12, 12.1.5)."""
    assert data.index(b"mdat") < data.index(b"moov")
    box = struct.pack(">I8sHHHB", 19, b"colrnclx", 2, 2, space, 1 << 7)
    names = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1")
    sizes = {name: data.index(name, data.index(b"moov")) - 4 for name in names}
    end = sizes[b"avc1"] + int.from_bytes(data[sizes[b"avc1"] :][:4], "big")
    out = bytearray(data)
    for at in sizes.values():
        out[at : at + 4] = (int.from_bytes(out[at : at + 4], "big") + len(box)).to_bytes(4, "big")
    return bytes(out[:end] + box + out[end:])


@pytest.mark.parametrize("space", [1, 5, 9])
def test_colour_that_only_the_container_tags_reaches_the_bare_decoder(space):
    untagged = grey_green(2)
    data = with_colr(untagged, space)
    facts = read_packets(index_packets(data)).facts
    assert (facts.colorspace, facts.color_range) == (space, 2)
    assert facts.whole_because == ""
    for framing in (Framing(), Framing(size=(30, 30))):
        got = bare(data, [0], framing)
        assert np.array_equal(got, read_clip(data, lambda _: [0], framing.size))
        assert np.array_equal(got, bare(grey_green(space), [0], framing))
        assert not np.array_equal(got, bare(untagged, [0], framing))


@pytest.mark.parametrize("name", ["gop12", "mpeg4"])
def test_keyframes_that_are_none_are_known(videos, name):
    """A table whose second mark is on the packet after the keyframe. FFmpeg's decoder of MPEG-4 starts there without a
    word, with grey for what is missing."""
    data = videos[name][0]
    table = read_packets(index_packets(data))
    clock = Timeline.of_table(table)
    keys = np.flatnonzero(table.key)
    lying = replace(table, key=np.isin(np.arange(len(table)), [keys[0], keys[1] + 1, *keys[2:]]))
    number_of = {int(packet): frame for frame, packet in enumerate(clock.shown)}
    late = [number_of[int(keys[2]) - 1], number_of[int(keys[2])]]
    assert bare(data, late, table=lying) is None
    assert bare(data, [number_of[int(keys[1])], number_of[int(keys[2])]], table=lying) is not None
    assert np.array_equal(read_clip(data, lambda _: late), bare(data, late))


def test_damage_is_known(videos):
    """None, so that the whole file is read and says what is wrong."""
    data = videos["one_gop_b"][0]
    table = read_packets(index_packets(data))
    at, nbytes = int(table.pos[0]), int(table.size[0])
    broken = bytearray(data)
    broken[at + nbytes // 2 : at + nbytes] = b"\xaa" * (nbytes - nbytes // 2)
    assert bare(bytes(broken), [10, 11], table=table) is None
    with pytest.raises(DecodeFailed):
        read_clip(bytes(broken), lambda _: [10, 11])


def conceal_frame(data, table):
    """The mp4 with one byte changed so that FFmpeg gives a frame all the same, and says that it is damaged; with that
    frame's number."""
    for number, place in itertools.product(range(1, 40), (40, 60, 90, 120)):
        if place >= table.size[number]:
            continue
        damaged = bytearray(data)
        damaged[table.pos[number] + place] ^= 0x55
        with av.open(io.BytesIO(damaged)) as container, contextlib.suppress(av.error.FFmpegError):
            for n, frame in enumerate(container.decode(video=0)):
                if frame.is_corrupt:
                    return bytes(damaged), n
    raise AssertionError("no byte found")


def test_concealed_damage_is_known(media):
    data = media.encode_video([40 * n for n in range(40)], options={"crf": "5", "g": "50", "bf": "0"})
    table = read_packets(index_packets(data))
    damaged, n = conceal_frame(data, table)
    assert bare(damaged, [n], table=table) is None
    with refusal(DecodeFailed, what="frame"):
        read_clip(damaged, lambda _: [n])


def test_decoder_that_is_not_here_is_known(videos):
    data = videos["gop12"][0]
    table = read_packets(index_packets(data))
    for codec in ("h267", "aac", ""):
        other = replace(table, facts=replace(table.facts, codec=codec))
        assert bare(data, [0], table=other) is None


def test_what_the_file_would_refuse_is_refused(videos):
    data = videos["gop12"][0]
    with refusal(DecodeFailed, what="crop", given=(0, 0, 65, 10), accepted=(64, 96)):
        bare(data, [0], Framing(crop=(0, 0, 65, 10)))


def test_random_bytes_instead_of_packets_never_crash(videos):
    rng = np.random.default_rng(7)
    for name in ("gop12", "hevc", "mpeg4", "vfr"):
        data = videos[name][0]
        table = read_packets(index_packets(data))
        timeline = Timeline.of_table(table)
        for _ in range(60):
            frames = rng.integers(0, 60, 3).tolist()
            bodies = packet_bodies(data, table, timeline, frames)
            for number in rng.choice(list(bodies), min(2, len(bodies)), replace=False):
                body = bytearray(bodies[number])
                for place in rng.integers(0, len(body), rng.integers(1, 8)):
                    body[place] = rng.integers(256)
                bodies[number] = bytes(body[: rng.integers(1, len(body) + 1)])
            got = read_bare(table, timeline, bodies, frames, Framing(size=(16, 16)))
            assert got is None or got.shape == (3, 16, 16, 3)


def test_threads_share_tables(coded_videos):
    data, reference = coded_videos["open_gop"]
    table = read_packets(index_packets(data))
    start = threading.Barrier(4)

    def read(n):
        if n < 4:
            start.wait()
        return bare(data, [n], table=table)

    with ThreadPoolExecutor(4) as pool:
        for n, got in enumerate(pool.map(read, range(60))):
            assert np.array_equal(got[0], reference[n])


def real_videos():
    folder = os.environ.get("PENSTOCK_MEDIA")
    suffixes = {".mp4", ".mov", ".m4v"}
    found = sorted(Path(folder).rglob("*")) if folder else []
    return [path for path in found if path.suffix.lower() in suffixes and path.parent.name != "broken"]


@pytest.mark.server
@pytest.mark.parametrize("path", real_videos(), ids=lambda path: path.stem)
def test_real_videos_from_bare_packets_and_whole_are_the_sequential_decode(path, media, at_scale):
    """Every mp4 and mov of the corpus that has a video: frames from all over it, as a decode from the start shows
    them (its first frames at most: enough for any reordering), both ways."""
    data = path.read_bytes()
    with av.open(io.BytesIO(data)) as container:
        if not container.streams.video:
            return
    table = read_packets(index_packets(data))
    assert table.facts.whole_because == ""
    timeline = Timeline.of_table(table)
    huge = table.facts.width_px > 2000  # 100 MB a frame: fewer of them
    at_most = (
        at_scale(3, 60) if huge else at_scale(24, 60) if table.facts.width_px > 700 else at_scale(100, 300)
    )
    n = min(len(timeline), at_most)
    turned = bool(table.facts.display_matrix)
    rng = np.random.default_rng(len(data))
    wanted = sorted({0, n - 1, *rng.integers(0, n, 1 if huge else 5).tolist()})
    whole = read_clip(data, lambda _: wanted)
    got = bare(data, wanted, table=table)
    assert np.array_equal(got, whole)
    if not turned:
        assert np.array_equal(whole, media.shown(data, wanted))
    late = sorted(rng.integers(0, n if huge else len(timeline), 1 if huge else 3).tolist())
    size = Framing(size=(90, 160))
    assert np.array_equal(bare(data, late, size, table), read_clip(data, lambda _: late, (90, 160)))
