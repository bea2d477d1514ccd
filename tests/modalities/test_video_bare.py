"""Clips from bare packets: bit for bit those of a decode from the start, and known when they cannot be."""

import io
import os
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
from loader.modalities.clip import read_bare, read_clip
from loader.modalities.framing import Framing
from loader.modalities.packets import index_packets, read_packets
from loader.modalities.timeline import Timeline

MORE = {
    "vp9": {"codec": "libvpx-vp9", "options": {"g": "20", "deadline": "realtime", "cpu-used": "8"}},
    "av1": {"codec": "libsvtav1", "rate": 25, "options": {"g": "24", "preset": "12", "crf": "40"}},
    "intra": {"codec": "mjpeg", "options": {"qscale": "3", "strict": "unofficial"}},
}


@pytest.fixture(scope="module")
def coded(videos, media):
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


def bodies_of(data, table, timeline, frames):
    return {
        number: data[table.pos[number] :][: table.size[number]]
        for run in timeline.runs(frames)
        for number in range(run.first, run.stop)
    }


def bare(data, frames, framing=None, table=None):
    table = read_packets(index_packets(data)) if table is None else table
    timeline = Timeline.of_table(table)
    return read_bare(table, timeline, bodies_of(data, table, timeline, frames), frames, framing or Framing())


def test_every_codec_is_indexed(coded):
    names = {}
    for name, (data, reference) in coded.items():
        table = read_packets(index_packets(data))
        assert table.facts.whole_because == "", name
        assert len(Timeline.of_table(table)) == len(reference), name
        names[name] = table.facts.codec
    assert {"h264", "hevc", "mpeg4", "vp9", "libdav1d", "mjpeg"} <= set(names.values())
    assert coded["hidden"][1][0].shape == (64, 96, 3)
    assert len(coded["hidden"][1]) == 50


def test_every_frame_alone(coded):
    for name, (data, reference) in coded.items():
        table = read_packets(index_packets(data))
        for n in range(len(reference)):
            got = bare(data, [n], table=table)
            assert got is not None, (name, n)
            assert np.array_equal(got[0], reference[n]), (name, n)


@settings(derandomize=True, max_examples=120, deadline=None)
@given(st.data())
def test_any_frames_in_any_order(coded, data):
    name = data.draw(st.sampled_from(sorted(coded)))
    encoded, reference = coded[name]
    frames = data.draw(st.lists(st.integers(0, len(reference) - 1), min_size=1, max_size=12))
    got = bare(encoded, frames)
    assert np.array_equal(got, [reference[n] for n in frames])
    assert np.array_equal(got, read_clip(encoded, lambda _: frames))


def test_turns_and_colours_come_with_the_table(videos, media):
    """Facts that only the container has: the display matrix, and colour that the bitstream does not tag."""
    data = videos["gop12"][0]
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    quarter = b"".join(
        n.to_bytes(4, "big", signed=True) for n in (0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    )
    turned = data[:at] + quarter + data[at + 36 :]
    table = read_packets(index_packets(turned))
    assert table.facts.display_matrix[:2] == (0, 1 << 16)
    upright = bare(turned, [3, 4], table=table)
    assert np.array_equal(upright, read_clip(turned, lambda _: [3, 4]))
    assert np.array_equal(upright[0], np.rot90(next_frame(media, data, 3), -1))


def next_frame(media, data, n):
    return list(media.sequential(data))[n]


def tagged(space, in_bitstream):
    """Grey-green video whose matrix (and full range) the container tags, and the bitstream too or not at all."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options={"movflags": "write_colr"}) as container:
        stream = container.add_stream("libx264", rate=25, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        context = stream.codec_context
        context.colorspace, context.color_range = space, 2
        context.color_primaries = context.color_trc = 1
        frame = av.VideoFrame(64, 64, "yuv420p")
        for plane, level in zip(frame.planes, (120, 100, 160), strict=True):
            plane.update(bytes([level]) * plane.buffer_size)
        container.mux([*stream.encode(frame), *stream.encode(None)])
    data = file.getvalue()
    if in_bitstream:
        return data
    # The same file with a bitstream that says nothing: FFmpeg's own filter takes the tags out.
    plain = io.BytesIO()
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(plain, "w", format="mp4", options={"movflags": "write_colr"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        strip = av.BitStreamFilterContext(
            "h264_metadata=video_full_range_flag=0:matrix_coefficients=2:colour_primaries=2:"
            "transfer_characteristics=2",
            source.streams.video[0],
        )
        for packet in source.demux(video=0):
            for out in strip.filter(packet if packet.size else None):
                out.stream = stream
                target.mux(out)
    return plain.getvalue()


@pytest.mark.parametrize("space", [1, 5, 9])
@pytest.mark.parametrize("in_bitstream", [True, False])
def test_container_tags_reach_the_bare_decoder(space, in_bitstream):
    data = tagged(space, in_bitstream)
    assert read_packets(index_packets(data)).facts.colorspace == space
    got = bare(data, [0])
    assert got is not None
    assert np.array_equal(got, read_clip(data, lambda _: [0]))


def test_keyframes_that_are_none_are_known(videos):
    """A table whose second mark is on the frame after the keyframe."""
    data = videos["gop12"][0]
    table = read_packets(index_packets(data))
    keys = np.flatnonzero(table.key)
    lying = replace(table, key=np.isin(np.arange(len(table)), [keys[0], keys[1] + 1, *keys[2:]]))
    frames = [int(keys[1]) + 2, int(keys[2]) - 1]
    assert bare(data, frames, table=lying) is None
    assert bare(data, [int(keys[1]) - 1, int(keys[2])], table=lying) is not None
    assert np.array_equal(read_clip(data, lambda _: frames), bare(data, frames))


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


def test_a_decoder_that_is_not_here_is_known(videos):
    data = videos["gop12"][0]
    table = read_packets(index_packets(data))
    for codec in ("h267", "aac", ""):
        other = replace(table, facts=replace(table.facts, codec=codec))
        assert bare(data, [0], table=other) is None


def test_what_the_file_would_refuse_is_refused(videos):
    data = videos["gop12"][0]
    with pytest.raises(DecodeFailed, match="reaches out of a picture"):
        bare(data, [0], Framing(crop=(0, 0, 65, 10)))


def test_random_bytes_instead_of_packets_never_crash(videos):
    rng = np.random.default_rng(7)
    for name in ("gop12", "hevc", "mpeg4", "vfr"):
        data = videos[name][0]
        table = read_packets(index_packets(data))
        timeline = Timeline.of_table(table)
        for _ in range(60):
            frames = rng.integers(0, 60, 3).tolist()
            bodies = bodies_of(data, table, timeline, frames)
            for number in rng.choice(list(bodies), min(2, len(bodies)), replace=False):
                body = bytearray(bodies[number])
                for place in rng.integers(0, len(body), rng.integers(1, 8)):
                    body[place] = rng.integers(256)
                bodies[number] = bytes(body[: rng.integers(1, len(body) + 1)])
            got = read_bare(table, timeline, bodies, frames, Framing(size=(16, 16)))
            assert got is None or got.shape == (3, 16, 16, 3)


def test_threads_share_tables(coded):
    data, reference = coded["open_gop"]
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
def test_real_videos_from_bare_packets_and_whole_are_the_sequential_decode(path, media):
    """Every mp4 and mov of the corpus that has a video: frames from all over it, as a decode from the start shows
    them (its first frames at most: enough for any reordering), both ways."""
    data = path.read_bytes()
    with av.open(io.BytesIO(data)) as container:
        if not container.streams.video:
            return
    table = read_packets(index_packets(data))
    assert table.facts.whole_because == ""
    timeline = Timeline.of_table(table)
    n = min(len(timeline), 60 if table.facts.width_px > 700 else 300)
    turned = bool(table.facts.display_matrix)
    rng = np.random.default_rng(len(data))
    wanted = sorted({0, n - 1, *rng.integers(0, n, 5).tolist()})
    reference = {}
    for number, frame in enumerate(media.sequential(data)):
        if number in wanted:
            reference[number] = frame
        if number >= n - 1:
            break
    whole = read_clip(data, lambda _: wanted)
    got = bare(data, wanted, table=table)
    assert np.array_equal(got, whole)
    if not turned:
        assert np.array_equal(whole, [reference[number] for number in wanted])
    late = sorted(rng.integers(0, len(timeline), 3).tolist())
    size = Framing(size=(90, 160))
    assert np.array_equal(bare(data, late, size, table), read_clip(data, lambda _: late, (90, 160)))
