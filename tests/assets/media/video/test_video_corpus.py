"""Real videos, where PENSTOCK_MEDIA names them: clips by seeking are those of a decode from the start, reference clips
are made where they can be, HDR becomes SDR. Without the corpus there is nothing to compare."""

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from assets.media.clips.cut import cut_video
from assets.media.cutters import Known
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unit, Unusable
from assets.media.video import spans
from assets.media.video.audit import audit_video
from assets.media.video.spans import CannotSeek, frames_sought

pytestmark = pytest.mark.server

MAX_BYTES = 3_000_000
"""Larger files hold nothing that smaller ones do not."""

HDR = {
    "ax_dolbyVision-hdr.MOV": "hlg",
    "ax_hdr10-av1.mp4": "pq",
    "ax_hdr10-video-with-sdr-container.mp4": "pq",
    "ax_sample_av1.mkv": "hlg",
    "ax_sample_edit_list.mp4": "hlg",
    "ax_sample_with_colr_mdcv_and_clli.mp4": "pq",
    "tc_bt2020_10bit.mp4": "pq",
    "tc_testsrc2_12bit_hdr.mp4": "pq",
    "tc_h264_10bits.mp4": "reduced",
    "tc_h265_10bits.mp4": "reduced",
}


def videos(without: Collection[str] = ()) -> Iterator[Path]:
    folder = os.environ.get("PENSTOCK_MEDIA")
    for path in (
        [*sorted(Path(folder, "video").iterdir()), *sorted(Path(folder, "robot").rglob("*.mp4"))]
        if folder
        else ()
    ):
        if path.relative_to(folder).as_posix() not in without:
            yield path


def cut(path: Path, folder: Path, policy: VideoPolicy, known: Known) -> list[Unit]:
    folder.mkdir()
    return cut_video(str(path), folder, CutPolicy(video=policy), known)


def test_sought_clips_are_those_of_a_decode_from_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    audit_row: Callable[[Path], dict[str, Any]],
    nightly_files: frozenset[str],
) -> None:
    sought: list[str] = []
    failed: list[str] = []

    def record_seeks(*arguments: Any) -> Iterator[Any]:
        sought.append("")
        try:
            yield from frames_sought(*arguments)
        except CannotSeek:
            failed.append("")
            raise

    monkeypatch.setattr(spans, "frames_sought", record_seeks)
    policy = VideoPolicy(clip_s=1.0, max_clips=3, short_side_px=64)
    n_compared = 0
    for number, path in enumerate(videos(nightly_files)):
        if path.stat().st_size > MAX_BYTES:
            continue
        audit = audit_row(path)
        if audit.get("kind") != "video":
            continue
        found = cut(path, tmp_path / f"{number}-sought", policy, Known(audit=audit))
        in_order = cut(
            path, tmp_path / f"{number}-in-order", policy, Known(audit={**audit, "seek_ok": False})
        )
        assert [unit.fields["mp4"].read_bytes() for unit in found] == [
            unit.fields["mp4"].read_bytes() for unit in in_order
        ], path.name
        assert [unit.fields["json"] for unit in found] == [unit.fields["json"] for unit in in_order]
        n_compared += 1
    assert n_compared == 0 or (n_compared > 40 and len(sought) - len(failed) > 25)


def test_robots_keep_their_packets(tmp_path: Path, nightly_files: frozenset[str]) -> None:
    """AV1 with a keyframe in every second frame: a clip holds at most one frame more than was asked for."""
    policy = VideoPolicy(mode="reference", clip_s=2.0, max_clips=2)
    for number, path in enumerate(one for one in videos(nightly_files) if "cam_high" in one.as_posix()):
        units = cut(path, tmp_path / str(number), policy, Known(audit={"seek_ok": False}))
        assert {unit.metadata["clip_mode"] for unit in units} == {"reference"}
        for unit in units:
            first, n_wanted = unit.fields["json"]["wanted"]
            assert unit.metadata["n_frames"] - n_wanted <= 2  # type: ignore[operator]
            assert first <= 1


def test_hdr_and_deep_colour_on_request(tmp_path: Path, at_scale: Callable[[int, int], int]) -> None:
    """The audit, which decodes all, takes in CI only those of at most 100 KB: one of each treatment at least."""
    policy = VideoPolicy(hdr="tonemap", deep="reduce", clip_s=0.5, max_clips=1, short_side_px=128)
    audited_nbytes = at_scale(100_000, 1 << 40)
    for number, path in enumerate(one for one in videos() if one.name in HDR):
        audit: dict[str, Any] = {"seek_ok": False}
        if path.stat().st_size <= audited_nbytes:
            audit = audit_video(str(path), policy)
        (unit, *_) = cut(path, tmp_path / str(number), policy, Known(audit=audit))
        assert unit.metadata["colour_treatment"] == HDR[path.name], path.name
        with pytest.raises(Unusable) as refused:
            audit_video(str(path))
        assert refused.value.code in ("hdr", "bit_depth")
