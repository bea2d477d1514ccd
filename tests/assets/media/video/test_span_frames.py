"""Frames that are sought are those of a decode from the start; where that is not sure, nothing is sought."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.clips.cut import cut_video
from assets.media.container import open_container
from assets.media.cutters import Known
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.video.audit import audit_video
from assets.media.video.spans import (
    CannotSeek,
    ClipSpan,
    Times,
    frames_in_order,
    frames_sought,
    may_seek,
    span_frames,
    stream_times,
    stretches,
)
from assets.media.video.timestamps import frame_crc

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
CODECS: dict[str, dict[str, Any]] = {
    "b-frames": {"options": {"g": "12", "bf": "3", "crf": "20"}},
    "open gop": {"options": {"g": "12", "bf": "3", "crf": "20", "x264-params": "open-gop=1"}},
    "intra refresh": {"options": {"g": "12", "crf": "20", "x264-params": "intra-refresh=1"}},
    "hevc": {
        "codec": "libx265",
        "options": {"g": "12", "x265-params": "log-level=none:open-gop=1:bframes=3"},
    },
    "mpeg4": {"codec": "mpeg4", "options": {"g": "12", "bf": "2", "b": "400k"}},
    "vp9": {
        "codec": "libvpx-vp9",
        "container": "webm",
        "options": {"g": "12", "cpu-used": "8", "deadline": "realtime"},
    },
    "all keys": {"codec": "mjpeg", "pix_fmt": "yuvj420p", "options": {"qscale": "4"}},
}
SPANS = [
    ClipSpan(start=300, end=500),
    ClipSpan(start=420, end=640),
    ClipSpan(start=1000, end=1001),
    ClipSpan(start=1400, end=1900),
]


def crcs(path: str, spans: list[ClipSpan], audit: dict[str, Any], *, seeks: bool) -> dict[int, int]:
    with open_container(path) as container:
        frames = span_frames(container, container.streams.video[0], spans, audit, seeks=seeks)
        return {one.pts: frame_crc(one.frame) for one in frames}


@pytest.mark.parametrize("name", CODECS)
def test_sought_frames_are_those_of_a_decode_from_the_start(
    encode_video: EncodeVideo, noise_frames: MakeFrames, name: str
) -> None:
    path = encode_video(noise_frames(60, 48, 64), **CODECS[name])
    audit = audit_video(path)
    everything = crcs(path, SPANS, {}, seeks=True)
    assert len(everything) == 60
    wanted = {
        pts: crc for pts, crc in everything.items() if any(span.start <= pts < span.end for span in SPANS)
    }
    try:
        found = crcs(path, SPANS, audit, seeks=True)
    except CannotSeek:
        found = crcs(path, SPANS, audit, seeks=False)
    assert {pts: found[pts] for pts in wanted} == wanted
    if name in ("b-frames", "vp9", "all keys"):  # these seek, and nothing else is decoded for long
        assert found == wanted


@settings(max_examples=15, derandomize=True, deadline=None)
@given(starts=st.lists(st.integers(-100, 2600), min_size=1, max_size=5), length=st.integers(1, 900))
def test_any_spans(tmp_path_factory: pytest.TempPathFactory, starts: list[int], length: int) -> None:
    path = _numbers_video(tmp_path_factory)
    spans = [ClipSpan(start=start, end=start + length) for start in starts]
    wanted = [pts for pts in range(0, 2400, 40) if any(span.start <= pts < span.end for span in spans)]
    with open_container(path) as container:
        stream = container.streams.video[0]
        found = [one.pts for one in frames_sought(container, stream, spans, stream_times(container, stream))]
    assert found == wanted


_PATHS: dict[str, str] = {}


def _numbers_video(factory: pytest.TempPathFactory) -> str:
    """One video for all examples."""
    if "path" not in _PATHS:
        target = factory.mktemp("numbered") / "video.mp4"
        with av.open(str(target), "w", options={"video_track_timescale": "1000"}) as out:
            stream = out.add_stream("libx264", rate=25, options={"g": "10", "bf": "2"})
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
            for number in range(60):
                picture = np.full((32, 32, 3), 4 * number, np.uint8)
                out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            out.mux(stream.encode(None))
        _PATHS["path"] = str(target)
    return _PATHS["path"]


def test_clips_are_the_same_whether_sought_or_not(
    encode_video: EncodeVideo,
    noise_frames: MakeFrames,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = encode_video(noise_frames(100, 48, 64), options={"g": "10", "bf": "2", "crf": "20"})
    policy = CutPolicy(video=VideoPolicy(short_side_px=32, clip_s=0.6, max_clips=3))
    audit = audit_video(path)

    def clips(name: str, known: Known) -> list[bytes]:
        (tmp_path / name).mkdir()
        units = cut_video(path, tmp_path / name, policy, known)
        return [unit.fields["mp4"].read_bytes() for unit in units]

    in_order = clips("in order", Known())
    monkeypatch.setattr("assets.media.video.spans.frames_in_order", None)  # not called
    assert clips("sought", Known(audit=audit)) == in_order
    monkeypatch.undo()

    def every_packet(container: Any, stream: Any) -> Times:
        times = stream_times(container, stream)
        return Times(shown=times.shown, keys=times.shown)  # what a file says that has no table of keyframes

    monkeypatch.setattr("assets.media.video.spans.stream_times", every_packet)
    monkeypatch.setattr("assets.media.video.spans.frames_in_order", counted := Counted(frames_in_order))
    assert clips("mistaken", Known(audit=audit)) == in_order
    assert counted.n


class Counted:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.n, self._function = 0, function

    def __call__(self, *arguments: Any) -> Any:
        self.n += 1
        return self._function(*arguments)


@pytest.mark.parametrize(
    "reason",
    [{"seek_ok": False}, {"seek_ok": None}, {"n_pts_dup": 1}, {"n_pts_backward": 1}, {"interlaced_ratio": 0.1},
     {"hdr": True}, {"n_discard_packets": 3}],
)  # fmt: skip
def test_nothing_is_sought_where_a_reason_speaks_against_it(
    encode_video: EncodeVideo, numbered_frames: MakeFrames, reason: dict[str, Any]
) -> None:
    path = encode_video(numbered_frames(10))
    audit = audit_video(path)
    with open_container(path) as container:
        assert may_seek(container, audit)
        assert not may_seek(container, audit | reason)
        assert not may_seek(container, {})


def test_stretches() -> None:
    spans = [
        ClipSpan(start=5, end=9),
        ClipSpan(start=0, end=3),
        ClipSpan(start=8, end=12),
        ClipSpan(start=12, end=13),
    ]
    assert stretches(spans) == [(0, 3), (5, 13)]
