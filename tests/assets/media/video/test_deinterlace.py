"""Two fields in a frame become one picture of one moment, at the frame's time."""

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from assets.media.clips.cut import cut_video
from assets.media.cutters import Known
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unit
from assets.media.video.audit import audit_video

EncodeVideo = Callable[..., str]
HEIGHT, WIDTH = 96, 128
POLICY = CutPolicy(video=VideoPolicy(clip_s=1.0, max_clips=2, short_side_px=HEIGHT))
FIELDS = {"crf": "4", "g": "10", "x264-params": "bff=1"}


def draw_bar(field: int) -> np.ndarray:
    """A white bar that is at another place in every field."""
    picture = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
    start = 8 + 2 * field % (WIDTH - 40)
    picture[:, start : start + 16] = 220
    return picture


def woven(n_frames: int) -> list[np.ndarray]:
    """Bottom field of one moment, top field of half a frame later: what a camera for television records."""
    frames = []
    for number in range(n_frames):
        frame = draw_bar(2 * number + 1)
        frame[1::2] = draw_bar(2 * number)[1::2]
        frames.append(frame)
    return frames


def pictures(unit: Unit) -> list[np.ndarray]:
    with av.open(str(unit.fields["mp4"])) as clip:
        return [frame.to_ndarray(format="gray").astype(int) for frame in clip.decode(video=0)]


def combing(picture: np.ndarray) -> float:
    """How much a line differs from the mean of those above and below it, in levels."""
    return float(np.abs(picture[1:-1] - (picture[:-2] + picture[2:]) / 2).mean())


def test_fields_become_frames(tmp_path: Path, encode_video: EncodeVideo) -> None:
    path = encode_video(woven(50), options=FIELDS)
    units = cut_video(path, tmp_path, POLICY)
    assert [unit.fields["json"]["pts"] for unit in units] == [
        list(range(0, 1000, 40)),
        list(range(1000, 2000, 40)),
    ]
    assert [unit.metadata["n_deinterlaced"] for unit in units] == [25, 25]
    comb = combing(woven(1)[0].mean(axis=2))
    assert comb > 4
    for unit in units:
        found = pictures(unit)
        assert len(found) == 25
        for number, picture in enumerate(found):
            assert combing(picture) < comb / 6
            frame = (unit.fields["json"]["pts"][0] // 40) + number
            # The moment of the first field: the bar is where it was then, to less than a field's step.
            row = picture[HEIGHT // 2].astype(float) - 40
            centre = float((row * np.arange(WIDTH)).sum() / row.sum())
            assert centre == pytest.approx(8 + 4 * frame % (WIDTH - 40) + 7.5, abs=1.1)


def test_progressive_frames_are_left_alone(tmp_path: Path, encode_video: EncodeVideo) -> None:
    path = encode_video([draw_bar(number) for number in range(25)], options={"crf": "4", "g": "10"})
    (unit,) = cut_video(path, tmp_path, POLICY)
    assert unit.metadata["n_deinterlaced"] == 0


def test_interlaced_video_is_decoded_in_order(
    tmp_path: Path, encode_video: EncodeVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame's neighbours take part: a seek would give the first one of a clip another look."""
    path = encode_video(woven(75), options=FIELDS)
    audit = audit_video(path)
    assert audit["interlaced_ratio"] == 1
    before = [unit.fields["mp4"].read_bytes() for unit in cut_video(path, tmp_path, POLICY)]
    monkeypatch.setattr("assets.media.video.spans.frames_sought", None)  # not called
    known = Known(audit=audit)
    assert [unit.fields["mp4"].read_bytes() for unit in cut_video(path, tmp_path, POLICY, known)] == before


def test_fields_cannot_be_a_reference(tmp_path: Path, encode_video: EncodeVideo) -> None:
    path = encode_video(woven(50), options=FIELDS)
    units = cut_video(path, tmp_path, CutPolicy(video=VideoPolicy(mode="reference", clip_s=1.0)))
    assert {unit.metadata["clip_mode_reason"] for unit in units} == {"interlaced"}
    assert {unit.metadata["clip_mode"] for unit in units} == {"canonical"}
