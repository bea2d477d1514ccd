"""Bugs planted into the cutting of videos: each is found, under its own name, and sound clips pass."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assets.media.clips import canonical as clip_encoder
from assets.media.clips import cut as video
from assets.media.cut_audit import findings
from assets.media.cut_audit.clips import check_times
from assets.media.unit import Unit, Unusable
from assets.media.video import frame_filter, spans
from assets.media.video.spans import ClipSpan
from assets.media.video.timestamps import TimedFrame
from assets.media.video.timestamps import time_frames as really_shown

EncodeVideo = Callable[..., str]
RefusedAs = Callable[..., str]

QUARTER_TURN = (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
MIRRORED = (-65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
PLAIN = {"color_range": 1, "colorspace": 6}


def moving(n_frames: int = 30, height: int = 64, width: int = 96) -> list[np.ndarray]:
    """A bright, coloured corner and a bar that walks: no symmetry, no two frames alike."""
    frames = []
    rows, columns = np.mgrid[0:height, 0:width]
    for number in range(n_frames):
        picture = np.stack([60 + columns, 40 + 2 * rows, 90 + 0 * rows], axis=-1).clip(16, 235)
        picture[: height // 4, : width // 3] = (200, 40, 40)
        start = 2 + 3 * number % (width - 14)
        picture[height // 3 :, start : start + 12] = (30, 220, 60)
        frames.append(picture.astype(np.uint8))
    return frames


@pytest.fixture
def source(encode_video: EncodeVideo) -> Callable[..., str]:
    def make(**options: Any) -> str:
        return encode_video(moving(), **{"tags": PLAIN, **options})

    return make


@pytest.mark.parametrize("matrix", [None, QUARTER_TURN, MIRRORED])
@pytest.mark.parametrize("tags", [PLAIN, {"color_range": 2, "colorspace": 1}, {}])
@pytest.mark.parametrize("pts", [None, [0, 40, 120, 130, 300, 420, 421, *range(500, 1420, 40)]])
def test_honest_clips_pass(
    source: Callable[..., str], refusal_code: RefusedAs, matrix: Any, tags: Any, pts: list[int] | None
) -> None:
    assert refusal_code(source(matrix=matrix, tags=tags, pts=pts)) == ""


@pytest.mark.parametrize("matrix", [QUARTER_TURN, MIRRORED])
def test_rotation_and_mirrors_ignored(
    source: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, matrix: Any
) -> None:
    monkeypatch.setattr(frame_filter, "matrix_filters", lambda matrix: ([], False))
    found = refusal_code(source(matrix=matrix))
    # Turned by a quarter the shape is wrong as well, which is looked at first.
    assert found == (findings.ASPECT_RATIO if matrix is QUARTER_TURN else findings.ROTATION)


def test_rotation_ignored_in_a_square(
    encode_video: EncodeVideo, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode_video(moving(height=96), tags=PLAIN, matrix=QUARTER_TURN)
    assert refusal_code(path) == ""
    monkeypatch.setattr(frame_filter, "matrix_filters", lambda matrix: ([], False))
    assert refusal_code(path) == findings.ROTATION


def test_wrong_way_round(
    encode_video: EncodeVideo, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode_video(moving(height=96), tags=PLAIN, matrix=QUARTER_TURN)
    monkeypatch.setattr(frame_filter, "matrix_filters", lambda matrix: ([("transpose", "2")], True))
    assert refusal_code(path) == findings.ROTATION


def test_pixel_aspect_ratio_ignored(
    source: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = frame_filter.fit
    monkeypatch.setattr(frame_filter, "fit", lambda width, height, short: really(width * 0.8, height, short))
    assert refusal_code(source()) == findings.ASPECT_RATIO


def test_colour_range_tagged_wrong(
    source: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clip_encoder.ClipEncoder, "_open", _tagging("color_range", 2))
    assert refusal_code(source()) == findings.COLOUR_RANGE


def test_colour_matrix_tagged_wrong(
    source: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source()
    assert refusal_code(path) == ""
    tagged = 1 if _space(path) == 6 else 6
    monkeypatch.setattr(clip_encoder.ClipEncoder, "_open", _tagging("colorspace", tagged))
    assert refusal_code(path) == findings.COLOUR_MATRIX


def _space(path: str) -> int:
    """What a canonical clip is tagged as, whatever the source is."""
    return 6


def _tagging(name: str, value: int) -> Callable[..., None]:
    really = clip_encoder.ClipEncoder._open

    def open_tagged(self: Any, picture: Any, rendering: Any) -> None:
        really(self, picture, rendering)
        setattr(self._encoder.codec_context, name, value)

    return open_tagged


def test_frame_beside_it(
    source: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any, **options: Any) -> Iterator[TimedFrame]:
        before: TimedFrame | None = None
        for now in really_shown(*arguments, **options):
            yield now._replace(frame=before.frame) if before is not None else now
            before = now

    monkeypatch.setattr(spans, "time_frames", late)
    assert refusal_code(source()) == findings.WRONG_FRAME


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda pts: pts - 40_000, findings.TIMESTAMPS),  # the start offset thrown away
        (lambda pts: int(np.float32(pts + 2**30) - 2**30), findings.TIMESTAMPS),
        (lambda pts: pts + 7, findings.TIMESTAMPS),
    ],
    ids=["start_offset", "float32", "shifted"],
)
def test_times_that_are_not_the_sources(
    encode_video: EncodeVideo,
    refusal_code: RefusedAs,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[[int], int],
    name: str,
) -> None:
    path = encode_video(moving(), pts=[40_000 + 33 * number for number in range(30)], tags=PLAIN)
    assert refusal_code(path) == ""

    def mistaken(*arguments: Any, **options: Any) -> Iterator[TimedFrame]:
        for now in really_shown(*arguments, **options):
            yield now._replace(pts=wrong(now.pts))

    monkeypatch.setattr(spans, "time_frames", mistaken)
    monkeypatch.setattr(
        video, "windows", lambda *_: [ClipSpan(start=wrong(40_000), end=wrong(41_000))]
    )  # the clips are where the mistake puts them
    assert refusal_code(path) == name


def test_dts_taken_for_pts(
    encode_video: EncodeVideo, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode_video(moving(), tags=PLAIN, options={"bf": "3", "g": "30", "crf": "1"})
    assert refusal_code(path) == ""

    def mistaken(container: Any, frames: Any) -> Iterator[TimedFrame]:
        kept = list(really_shown(container, frames))
        times = [one.pts for one in kept]
        for one, earlier in zip(kept[2:], times, strict=False):  # decoded two frames before it is shown
            yield one._replace(pts=earlier)

    monkeypatch.setattr(spans, "time_frames", mistaken)
    assert refusal_code(path) == findings.WRONG_FRAME


def test_missing_frames_are_found(
    source: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(*arguments: Any, **options: Any) -> Iterator[TimedFrame]:
        for number, now in enumerate(really_shown(*arguments, **options)):
            if number % 10 != 3:
                yield now

    monkeypatch.setattr(spans, "time_frames", some)
    assert refusal_code(source()) == findings.FRAMES_MISSING


def test_variable_rate_stored_as_a_constant_one(
    source: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = clip_encoder.ClipEncoder._write

    def regular(self: Any, packets: Any) -> None:
        kept = []
        for packet in packets:
            number = self.__dict__.setdefault("number", 0)
            packet.pts = packet.dts = 40 * number
            self.__dict__["number"] = number + 1
            kept.append(packet)
        really(self, kept)

    monkeypatch.setattr(clip_encoder.ClipEncoder, "_write", regular)
    assert refusal_code(source(pts=[0, 40, 120, 130, 300, 420, 421, *range(500, 1420, 40)])) == findings.VFR


def timed_unit(pts: list[int]) -> Unit:
    return Unit(fields={"mp4": Path("clip.mp4"), "json": {"pts": pts, "time_base": [1, 1000]}}, metadata={})


@pytest.mark.parametrize(
    ("told", "stored", "source", "name"),
    [
        ([0, 40, 80], [0, 40], [0, 40, 80], findings.FRAMES_MISSING),
        ([0, 40, 80], [0, 40, 90], [0, 40, 80], findings.TIMESTAMPS),
        ([0, 40, 90], [0, 40, 80], [0, 40, 90], findings.VFR),
        ([0, 40, 40], [0, 40, 40], [0, 40, 80], findings.TIMESTAMPS),
        ([0, 40, 81], [0, 40, 81], [0, 40, 80], findings.TIMESTAMPS),
        ([0, 80], [0, 80], [0, 40, 80], findings.FRAMES_MISSING),
        ([40, 80], [0, 40], [0, 40, 80, 120], ""),
    ],
)
def test_times_by_name(told: list[int], stored: list[int], source: list[int], name: str) -> None:
    if not name:
        check_times(timed_unit(told), stored, Fraction(1, 1000), source, True)
        return
    with pytest.raises(Unusable) as refused:
        check_times(timed_unit(told), stored, Fraction(1, 1000), source, True)
    assert refused.value.code == name
