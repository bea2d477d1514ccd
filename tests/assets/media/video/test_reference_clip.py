"""Reference clips: the source's own packets, its pixels bit for bit, its times; and why there is none."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from assets.media.clips import reference
from assets.media.clips.cut import cut_video
from assets.media.clips.reference import GopCut, Gops, Packets
from assets.media.cutters import Known
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.segments import Segment
from assets.media.unit import Unit
from assets.media.video.audit import audit_video
from assets.media.video.spans import ClipSpan
from assets.media.video.timestamps import frame_crc
from loader.modalities.video.packet_table import read_packets

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
QUARTER_TURN = (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)


def policy(**options: Any) -> CutPolicy:
    return CutPolicy(video=VideoPolicy(**{"mode": "reference", "clip_s": 1.0, "max_clips": 2, **options}))


def decode_frames(path: str) -> dict[Fraction, tuple[int, np.ndarray]]:
    """Seconds -> (CRC, RGB) of every frame, by a plain decode."""
    with av.open(path) as container:
        stream = container.streams.video[0]
        base = stream.time_base or Fraction(1)
        return {
            (frame.pts or 0) * base: (frame_crc(frame), frame.to_ndarray(format="rgb24"))
            for frame in container.decode(stream)
        }


def check_identical(path: str, unit: Unit) -> None:
    """Every frame, against a decode of the whole source."""
    source, clip = decode_frames(path), decode_frames(str(unit.fields["mp4"]))
    facts = unit.fields["json"]
    base = Fraction(*facts["time_base"])
    start = facts["pts"][0] * base
    assert list(clip) == [pts * base - start for pts in facts["pts"]]
    for at, (crc, _) in clip.items():
        assert source[start + at][0] == crc
    first, n_wanted = facts["wanted"]
    assert 0 <= first < first + n_wanted <= len(facts["pts"])


SHORT: dict[str, dict[str, Any]] = {
    "h264": {"options": {"g": "5", "crf": "20", "bf": "2"}},
    "hevc": {"codec": "libx265", "options": {"g": "5", "x265-params": "log-level=none:open-gop=0:bframes=2"}},
    "vp9": {"codec": "libvpx-vp9", "options": {"g": "5", "cpu-used": "8", "deadline": "realtime"}},
    "av1": {"codec": "libsvtav1", "options": {"g": "2", "preset": "12", "svtav1-params": "keyint=2"}},
    "mpeg4": {"codec": "mpeg4", "options": {"g": "5", "b": "800k"}},
    "mjpeg": {"codec": "mjpeg", "pix_fmt": "yuvj420p", "options": {"qscale": "4"}},
    "mkv": {"container": "matroska", "options": {"g": "5", "crf": "20", "bf": "2"}},
    "ts": {"container": "mpegts", "options": {"g": "5", "crf": "20", "bf": "2"}},
    "flv": {"container": "flv", "options": {"g": "5", "crf": "20", "bf": "2"}},
    "turned": {"options": {"g": "5", "crf": "20"}, "matrix": QUARTER_TURN},
    "uneven": {"options": {"g": "5", "crf": "20"}, "pts": [*range(0, 400, 40), *range(401, 1000, 7), 2000]},
}


@pytest.mark.parametrize("name", SHORT)
def test_whole_gops_packet_for_packet(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames, name: str
) -> None:
    pts = SHORT[name].get("pts")
    path = encode_video(noise_frames(len(pts) if pts else 60, 64, 96), **SHORT[name])
    units = cut_video(path, tmp_path, policy())
    assert [unit.metadata["clip_mode"] for unit in units] == ["reference"] * len(units)
    assert [unit.metadata["clip_mode_reason"] for unit in units] == [""] * len(units)
    for unit in units:
        check_identical(path, unit)
        data = unit.fields["mp4"].read_bytes()
        assert data.index(b"moov") < data.index(b"mdat")
        table = read_packets(unit.fields["mp4.packets"].read_bytes())
        if name != "mpeg4":
            assert table.facts.whole_because == ""
        seen = loader.video(frames=2)(data)
        upright = (96, 64) if name == "turned" else (64, 96)
        assert seen.shape[1:3] == upright
        assert (unit.metadata["height_px"], unit.metadata["width_px"]) == upright


def test_audit_saves_decoding_and_changes_nothing(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode_video(noise_frames(100, 64, 96), **SHORT["h264"])
    before = [unit.fields["mp4"].read_bytes() for unit in cut_video(path, tmp_path, policy())]
    known = Known(audit=audit_video(path))
    monkeypatch.setattr("assets.media.video.spans.frames_in_order", None)  # not called
    assert [unit.fields["mp4"].read_bytes() for unit in cut_video(path, tmp_path, policy(), known)] == before


def test_clip_records_the_requested_frames(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    path = encode_video(
        numbered_frames(100), options={"crf": "10", "bf": "0", "x264-params": "keyint=10:scenecut=0"}
    )
    known = Known(segments=(Segment(start_s=0.5, end_s=2.3), Segment(start_s=0.8, end_s=2.0)))
    asked = policy(units="segments", max_overhead_ratio=1.35)
    wide, exact = cut_video(path, tmp_path, asked, known)
    facts = wide.fields["json"]
    assert facts["pts"] == list(range(400, 2400, 40))  # frames 10 to 59: GOPs begin at every tenth
    assert facts["wanted"] == [3, 45]  # 520 to 2280 ms
    assert (wide.start, wide.end) == ("400@1/1000", "2400@1/1000")
    assert (wide.metadata["start_s"], wide.metadata["duration_s"]) == (0.4, 2.0)
    assert (exact.fields["json"]["wanted"], exact.fields["json"]["pts"][0]) == ([0, 30], 800)
    for unit in (wide, exact):
        check_identical(path, unit)


def test_clips_of_shots_hold_the_gops_inside(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames
) -> None:
    path = encode_video(
        noise_frames(75, 64, 96), options={"crf": "20", "bf": "0", "x264-params": "keyint=5:scenecut=0"}
    )
    known = Known(audit={**audit_video(path), "scene_cuts": [720, 1400]})
    units = cut_video(path, tmp_path, policy(units="shots", max_clips=None, clip_s=10), known)
    told = [(unit.metadata["shot"], unit.fields["json"]["pts"]) for unit in units]
    assert told == [
        (0, list(range(0, 600, 40))),  # the GOP from 600 on ends in the next shot
        (1, list(range(800, 1400, 40))),
        (2, list(range(1400, 3000, 40))),
    ]
    assert [unit.fields["json"]["wanted"] for unit in units] == [[0, 15], [0, 15], [0, 40]]
    assert [unit.metadata["clip_mode"] for unit in units] == ["reference"] * 3


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "long gop": ({"options": {"g": "250", "crf": "20"}}, "long_gop"),
    "open gop": (
        {
            "codec": "libx265",
            "options": {"g": "5", "x265-params": "log-level=none:open-gop=1:bframes=3:scenecut=0"},
        },
        "open_gop",
    ),
    "avi": ({"container": "avi", "codec": "mpeg4", "options": {"g": "5"}}, "no_timestamps"),
    "vp8": ({"container": "webm", "codec": "libvpx", "options": {"g": "5", "deadline": "realtime"}}, "codec"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_packets_cannot_be_copied_the_clip_is_canonical(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames, name: str
) -> None:
    options, reason = REFUSED[name]
    path = encode_video(noise_frames(100, 64, 96), **options)
    units = cut_video(path, tmp_path, policy(max_clips=1, max_overhead_ratio=1.1))
    assert {unit.metadata["clip_mode"] for unit in units} == {"canonical"}
    assert {unit.metadata["clip_mode_reason"] for unit in units} == {reason}


def test_some_clips_of_a_video_may_be_canonical(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames
) -> None:
    path = encode_video(
        noise_frames(100, 64, 96), options={"crf": "20", "x264-params": "keyint=50:scenecut=0"}
    )
    known = Known(segments=(Segment(start_s=0, end_s=2), Segment(start_s=1, end_s=3)))
    first, second = cut_video(path, tmp_path, policy(units="segments"), known)
    assert (first.metadata["clip_mode"], first.metadata["clip_mode_reason"]) == ("reference", "")
    assert (second.metadata["clip_mode"], second.metadata["clip_mode_reason"]) == ("canonical", "long_gop")
    assert set(first.metadata) == set(second.metadata)
    assert second.fields["json"]["pts"] == list(range(1000, 3000, 40))


def test_clip_that_decodes_to_other_pixels_is_refused(
    tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode_video(noise_frames(50, 64, 96), **SHORT["h264"])
    really = reference._Mp4Writer.add

    def mistaken(self: Any, data: bytes, number: int) -> None:
        really(
            self, data if number != 7 else data[: len(data) // 2] + bytes(len(data) - len(data) // 2), number
        )

    monkeypatch.setattr(reference._Mp4Writer, "add", mistaken)
    first, *_ = cut_video(path, tmp_path, policy())
    assert (first.metadata["clip_mode"], first.metadata["clip_mode_reason"]) == ("canonical", "not_identical")


def packets(n: int, gop: int, leading: int = 0) -> Packets:
    """A stream of 40 ms a frame. leading: packets behind each keyframe but the first that are shown before it."""
    pts = [40 * number for number in range(n)]
    key = [number % gop == 0 for number in range(n)]
    for number in range(gop, n, gop):
        block = pts[number - leading : number]
        pts[number - leading : number + 1] = [pts[number], *block]
        key[number - leading], key[number] = True, key[number] and leading == 0
    return Packets(pts=pts, duration=[40] * n, key=key, hidden=[False] * n)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(1, 80), st.integers(1, 12), st.integers(-100, 3000), st.integers(1, 2000))
def test_cuts_begin_and_end_between_gops(n: int, gop: int, start: int, length: int) -> None:
    source = packets(n, gop)
    span = ClipSpan(start=start, end=start + length)
    cut = Gops(source, shortest=1).cut(span, VideoPolicy(max_overhead_ratio=4))
    wanted = [pts for pts in source.pts if start <= pts < start + length]
    if isinstance(cut, str):
        assert cut == ("long_gop" if wanted else "no_gop_inside")
        return
    assert cut.first % gop == 0
    assert cut.stop % gop == 0 or cut.stop == n
    assert set(wanted) <= set(source.pts[cut.first : cut.stop])
    assert cut.stop - cut.first <= 4 * len(wanted)
    assert cut.stop - cut.first < len(wanted) + 2 * gop


def test_open_gops_are_no_cut_points() -> None:
    gops = Gops(packets(60, 6, leading=2), shortest=1)
    assert gops.cut(ClipSpan(start=480, end=960), VideoPolicy(max_overhead_ratio=1.5)) == "open_gop"
    assert gops.cut(ClipSpan(start=0, end=2400), VideoPolicy()) == GopCut(first=0, stop=60)
    closed = Gops(packets(60, 6), shortest=1)
    assert closed.cut(ClipSpan(start=480, end=960), VideoPolicy()) == GopCut(first=12, stop=24)


def test_frames_that_an_edit_list_hides_are_not_copied() -> None:
    source = packets(20, 5)
    hidden = Packets(pts=source.pts, duration=source.duration, key=source.key, hidden=[True, *[False] * 19])
    gops = Gops(hidden, shortest=1)
    assert gops.cut(ClipSpan(start=40, end=200), VideoPolicy()) == "edit_list"
    assert gops.cut(ClipSpan(start=200, end=400), VideoPolicy()) == GopCut(first=5, stop=10)
