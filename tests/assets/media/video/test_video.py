from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.clips.cut import cut_video
from assets.media.container import PacketIndex, kind_inside
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unit, Unusable
from assets.media.video.frame_filter import fit, matrix_filters
from assets.media.video.spans import windows
from loader.modalities.video.packet_table import read_packets
from tests.refusals import refusal

MakeVideo = Callable[..., bytes]
POLICY = CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=1.0, max_clips=3))


def cut(tmp_path: Path, data: bytes, policy: CutPolicy = POLICY) -> list[Unit]:
    (tmp_path / "raw").write_bytes(data)
    return cut_video(str(tmp_path / "raw"), tmp_path, policy)


def clip_frames(unit: Unit) -> list[tuple[Fraction, float]]:
    """(seconds, mean of red) of every frame of a clip."""
    with av.open(str(unit.fields["mp4"])) as clip:
        stream = clip.streams.video[0]
        assert stream.time_base is not None
        return [
            (frame.pts * stream.time_base, float(frame.to_ndarray(format="rgb24")[..., 0].mean()))
            for frame in clip.decode(stream)
            if frame.pts is not None
        ]


def test_clips_hold_the_source_frames_at_the_source_times(tmp_path: Path, make_video: MakeVideo) -> None:
    pts = list(range(0, 3000, 40))
    units = cut(tmp_path, make_video(pts))
    assert [unit.metadata["n_frames"] for unit in units] == [25, 25, 25]
    assert [unit.start for unit in units] == ["0@1/1000", "1000@1/1000", "2000@1/1000"]
    for unit in units:
        stored = unit.fields["json"]["pts"]
        frames = clip_frames(unit)
        assert [int(at * 1000) for at, _ in frames] == [tick - stored[0] for tick in stored]
        for (_, level), tick in zip(frames, stored, strict=True):
            assert abs(level - (20 + 2 * pts.index(tick))) < 2.5  # the frame number is burnt into the grey


def test_uneven_frame_times_are_kept(tmp_path: Path, make_video: MakeVideo) -> None:
    pts = [0, 11, 50, 51, 300, 333, 700, 701, 702, 990, 1400, 1450, 1990]
    units = cut(
        tmp_path, make_video(pts), CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=2.0, max_clips=1))
    )
    assert units[0].fields["json"]["pts"] == pts
    assert [at for at, _ in clip_frames(units[0])] == [Fraction(tick, 1000) for tick in pts]


@settings(max_examples=12, derandomize=True, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 400), min_size=2, max_size=40),
    start=st.integers(0, 10**7),
    reference=st.booleans(),
    container=st.sampled_from(["mp4", "matroska"]),
)
def test_any_times_are_kept_exactly(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], start: int, reference: bool, container: str
) -> None:
    """Variable frame rates, offsets, and how long the last frame is shown."""
    folder = tmp_path_factory.mktemp("times")
    pts = [start + sum(gaps[:number]) for number in range(len(gaps))]
    options = {"video_track_timescale": "1000"} if container == "mp4" else {}
    with av.open(str(folder / "raw"), "w", format=container, options=options) as out:
        stream = out.add_stream("mpeg4", rate=25, options={"g": "3"})
        stream.width, stream.height, stream.pix_fmt, stream.time_base = 32, 32, "yuv420p", Fraction(1, 1000)
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, ticks in enumerate(pts):
            grey = np.full((32, 32, 3), 3 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            frame.pts, frame.time_base, frame.duration = ticks, Fraction(1, 1000), gaps[number]
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with av.open(str(folder / "raw")) as made:
        end = max(packet.pts + (packet.duration or 0) for packet in made.demux() if packet.pts is not None)
    mode = "reference" if reference else "canonical"
    policy = VideoPolicy(mode=mode, clip_s=2.0, max_clips=None, short_side_px=32, max_overhead_ratio=4)
    for unit in cut_video(str(folder / "raw"), folder, CutPolicy(video=policy)):
        facts = unit.fields["json"]
        assert set(facts["pts"]) <= set(pts)
        table = read_packets(unit.fields["mp4.packets"].read_bytes())
        base = table.facts.time_base
        assert [at * base for at in sorted(table.pts.tolist())] == [
            Fraction(at - facts["pts"][0], 1000) for at in facts["pts"]
        ]
        with av.open(str(unit.fields["mp4"])) as clip:
            ends = [packet.pts + (packet.duration or 0) for packet in clip.demux() if packet.pts is not None]
        assert max(ends) * base == Fraction(facts["end"] - facts["pts"][0], 1000)
        following = [at for at in [*pts, end] if at > facts["pts"][-1]]
        window_end = start + 2000 * ((facts["pts"][0] - start) // 2000 + 1)
        assert facts["end"] == (following[0] if reference else min(following[0], window_end))


def test_clip_is_canonical(tmp_path: Path, make_video: MakeVideo) -> None:
    (unit, *_) = cut(tmp_path, make_video(list(range(0, 3000, 40)), size=(256, 128), sound=True))
    data = unit.fields["mp4"].read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    with av.open(str(unit.fields["mp4"])) as clip:
        stream = clip.streams.video[0]
        assert stream.time_base == Fraction(1, 1000)  # the source's
        context = stream.codec_context
        assert (context.name, context.pix_fmt, context.width, context.height) == ("h264", "yuv420p", 128, 64)
        assert (context.color_range, context.colorspace) == (1, 6)
        assert (context.color_primaries, context.color_trc) == (1, 1)  # the source says nothing: assumed
        assert not clip.streams.audio
        packets = [packet for packet in clip.demux(stream) if packet.pts is not None]
    assert all(packet.pts == packet.dts for packet in packets)  # no B-frames
    keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    assert max(np.diff([*keys, len(packets)])) <= 12


def test_same_video_gives_the_same_bytes(tmp_path: Path, make_video: MakeVideo) -> None:
    data = make_video(list(range(0, 1000, 40)))
    first = cut(tmp_path, data)[0].fields["mp4"].read_bytes()
    assert cut(tmp_path, data)[0].fields["mp4"].read_bytes() == first


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 500, [(0, 1000)]),
        (0, 1999, [(0, 1000)]),
        (500, 3600, [(500, 1500), (1500, 2500), (2500, 3500)]),
        (0, 9000, [(0, 1000), (3000, 4000), (6000, 7000)]),
        (-200, 900, [(-200, 800)]),
    ],
)
def test_windows(start: int, end: int, expected: list[tuple[int, int]]) -> None:
    index = PacketIndex(n_packets=1, start_pts=start, end_pts=end, time_base=(1, 1000), max_gop_frames=1)
    assert [(span.start, span.end) for span in windows(index, POLICY.video)] == expected


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_truncated_video_is_rejected_although_it_opens(
    tmp_path: Path, make_video: MakeVideo, share: float
) -> None:
    whole = make_video(list(range(0, 4000, 40)))
    head = whole.index(b"mdat")
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, whole[: head + int((len(whole) - head) * share)])
    assert (refused.value.outcome, refused.value.code) == ("rejected", "truncated")


def test_video_that_ends_between_two_frames_is_rejected(tmp_path: Path, make_video: MakeVideo) -> None:
    whole = make_video(list(range(0, 4000, 40)))
    (tmp_path / "whole").write_bytes(whole)
    with av.open(str(tmp_path / "whole")) as container:
        packets = [packet for packet in container.demux() if packet.pos is not None]
        end = max(packet.pos + packet.size for packet in packets[:60])
    with refusal(Unusable, what="truncated", where="frames", given=60) as refused:
        cut(tmp_path, whole[:end])
    assert refused.value.code == "truncated"


def test_fragmented_video_cut_inside_a_frame_is_rejected(tmp_path: Path, make_video: MakeVideo) -> None:
    (tmp_path / "whole").write_bytes(make_video(list(range(0, 4000, 40))))
    options = {"movflags": "frag_keyframe+empty_moov"}  # such a file has no table that says how much there is
    with (
        av.open(str(tmp_path / "whole")) as source,
        av.open(str(tmp_path / "parts"), "w", format="mp4", options=options) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    whole = (tmp_path / "parts").read_bytes()
    assert len(cut(tmp_path, whole)) == 3
    half = whole.index(b"mdat") + (whole.rindex(b"mfra") - whole.index(b"mdat")) // 2
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, whole[:half])
    assert refused.value.outcome == "rejected"


def test_damage_in_the_middle_is_rejected(tmp_path: Path, make_video: MakeVideo) -> None:
    whole = bytearray(make_video(list(range(0, 4000, 40))))
    middle = whole.index(b"mdat") + (len(whole) - whole.index(b"mdat")) // 2
    whole[middle : middle + 400] = bytes(400)
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, bytes(whole))
    assert refused.value.outcome == "rejected"


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"\x00\x00\x00\x18ftypisom" + bytes(2000)])
def test_rubbish_is_rejected(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Unusable) as refused:
        cut(tmp_path, data)
    assert (refused.value.outcome, refused.value.stage) == ("rejected", "probe")


def test_container_with_sound_alone_is_sound(tmp_path: Path, make_wav: Callable[..., bytes]) -> None:
    (tmp_path / "tone").write_bytes(make_wav(0.5))
    assert kind_inside(str(tmp_path / "tone")) == "audio"


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ((1, 0, 0, 1), ([], False)),
        ((-1, 0, 0, -1), ([("hflip", ""), ("vflip", "")], False)),
        ((-1, 0, 0, 1), ([("hflip", "")], False)),
        ((0, 1, -1, 0), ([("transpose", "1")], True)),
        ((0, -1, 1, 0), ([("transpose", "2")], True)),
        ((0, 1, 1, 0), ([("transpose", "0")], True)),
        ((0, -1, -1, 0), ([("transpose", "3")], True)),
    ],
)
def test_turns_put_every_corner_where_the_matrix_says(
    matrix: tuple[int, int, int, int], expected: tuple[list[tuple[str, str]], bool]
) -> None:
    a, b, c, d = (value * 65536 for value in matrix)
    turns, swapped = matrix_filters((a, b, 0, c, d, 0, 0, 0, 1 << 30))
    assert (turns, swapped) == expected
    # The same by hand: move the four pixels of a 2 x 2 picture by the matrix, and by the filters' definitions.
    pixels = np.array([[1, 2], [3, 4]])
    moved = np.zeros_like(pixels)
    for y in (0, 1):
        for x in (0, 1):
            to_x = matrix[0] * (x - 0.5) + matrix[2] * (y - 0.5) + 0.5
            to_y = matrix[1] * (x - 0.5) + matrix[3] * (y - 0.5) + 0.5
            moved[int(to_y), int(to_x)] = pixels[y, x]
    by_filter = {
        "hflip": lambda p, _: p[:, ::-1],
        "vflip": lambda p, _: p[::-1],
        "transpose": lambda p, how: {
            "0": p.T,
            "1": np.rot90(p, -1),
            "2": np.rot90(p),
            "3": np.rot90(p, 2).T,
        }[how],
    }
    for name, how in turns:
        pixels = by_filter[name](pixels, how)
    assert pixels.tolist() == moved.tolist()


def test_fit() -> None:
    assert fit(1920, 1080, 256) == (456, 256)
    assert fit(1080, 1920, 256) == (256, 456)
    assert fit(100, 50, 256) == (100, 50)
    assert fit(3, 1, 256) == (4, 2)
