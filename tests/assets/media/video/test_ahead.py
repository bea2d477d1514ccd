"""Clips made on the way: the bytes that cutting gives, taken where they fit, and forgotten where they do not."""

import hashlib
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.clips.canonical import QUALITIES, ClipEncoder
from assets.media.clips.early_clips import ShotMaker, get_clips
from assets.media.container import PacketIndex
from assets.media.cutters import ClipStaging
from assets.media.objects import AuditRequest, CutRequest, CutResult, audit_object, cut_object
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.segments import Segment
from assets.media.unit import Unusable, dropped
from assets.media.video.spans import ClipSpan, shots
from assets.media.video.timestamps import TimedFrame
from loader.errors import StoreError
from loader.storage import Store, open_store

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
POLICY = CutPolicy(video=VideoPolicy(short_side_px=48, clip_s=1.0, max_clips=2))
MP4 = "video/mp4"


@pytest.fixture
def place(tmp_path: Path, encode_video: EncodeVideo, noise_frames: MakeFrames) -> Store:
    tone = (8000 * np.sin(np.arange(48_000) / 5)).astype(np.int16)
    path = encode_video(
        noise_frames(75, 64, 96), options={"g": "10", "bf": "2", "crf": "20"}, sound=(tone, 16_000, "aac")
    )
    store = open_store(str(tmp_path / "place"))
    store.put("a.mp4", Path(path).read_bytes())
    return store


@pytest.fixture
def staging(tmp_path: Path) -> ClipStaging:
    return ClipStaging(store=open_store(str(tmp_path / "root")), key="ahead/a")


def request_fields(place: Store, scratch: Path, **more: Any) -> dict[str, Any]:
    sha256 = hashlib.sha256(bytes(place.get("a.mp4").data)).hexdigest()
    return {"store": place, "key": "a.mp4", "sha256": sha256, "mime": MP4, "scratch": str(scratch), **more}


def audit_clip(place: Store, scratch: Path, staging: ClipStaging | None, **more: Any) -> dict[str, Any]:
    options = {"policy": POLICY, **more}
    result = audit_object(AuditRequest(**request_fields(place, scratch, staging=staging, **options)))
    assert result.row is not None, result
    assert list(scratch.iterdir()) == []  # an audit leaves nothing
    return result.row


def cut(
    place: Store, scratch: Path, staging: ClipStaging | None, row: dict[str, Any], **more: Any
) -> CutResult:
    options = {"policy": POLICY, **more}
    return cut_object(CutRequest(**request_fields(place, scratch, staging=staging, audit=row, **options)))


def sample_contents(result: CutResult) -> list[Any]:
    """All that a sample is made of."""
    found = []
    for unit in result.units:
        fields = {
            name: value.read_bytes() if isinstance(value, Path) else value
            for name, value in unit.fields.items()
        }
        found.append((unit.start, unit.end, unit.metadata, unit.groups, unit.request, fields))
    return found


def keys(staging: ClipStaging) -> set[str]:
    return {info.key for info in staging.store.list(f"{staging.key}/")}


SEGMENTS = (Segment(start_s=0.2, end_s=1.1, caption="one"), Segment(start_s=0.9, end_s=2.5))


@pytest.mark.parametrize("segments", [(), SEGMENTS])
def test_they_are_those_that_cutting_gives(
    tmp_path: Path,
    place: Store,
    staging: ClipStaging,
    segments: tuple[Segment, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = CutPolicy(
        video=VideoPolicy(
            short_side_px=48, clip_s=1.0, max_clips=2, units="segments" if segments else "windows"
        )
    )
    more = {"policy": policy, "segments": segments}
    row = audit_clip(place, tmp_path / "audit", staging, **more)
    assert row == audit_clip(place, tmp_path / "audit", None, **more)
    before = sample_contents(cut(place, tmp_path / "cut", None, row, **more))
    assert len(before) == 2
    assert len(keys(staging)) == 2  # the clips with their packet tables, and what is known of them
    monkeypatch.setattr("assets.media.clips.cut.canonical_clips", None)  # not called
    assert sample_contents(cut(place, tmp_path / "taken", staging, row, **more)) == before


def test_what_does_not_fit_is_cut_from_the_source(tmp_path: Path, place: Store, staging: ClipStaging) -> None:
    row = audit_clip(place, tmp_path / "audit", staging)
    wanted = sample_contents(cut(place, tmp_path / "cut", None, row))
    facts = bytes(staging.store.get(f"{staging.key}/clips.json").data)
    clips = bytes(staging.store.get(f"{staging.key}/clips.bin").data)
    n_mp4, n_packets = json.loads(facts)["clips"][0]["nbytes"]
    assert n_mp4 + n_packets == json.loads(facts)["clips"][1]["offset"]
    in_table = n_mp4 + n_packets // 2
    spoilt: list[tuple[str, bytes | None]] = [
        ("clips.json", None),
        ("clips.json", b"{"),
        ("clips.json", b"[]"),
        ("clips.json", b'{"extent": [0, 3000], "clips": [1, 2]}'),
        ("clips.json", facts.replace(b'"span": [0, 1000, null]', b'"span": [0, 999, null]')),
        ("clips.json", facts.replace(b'"extent": [0, ', b'"extent": [1, ')),
        ("clips.bin", None),
        ("clips.bin", clips[:-1]),
        ("clips.bin", clips[:-1] + bytes([clips[-1] ^ 1])),
        ("clips.bin", clips[:in_table] + bytes([clips[in_table] ^ 1]) + clips[in_table + 1 :]),
        ("clips.json", facts.replace(b'"offset": 0', b'"offset": -1')),
        ("clips.json", facts.replace(b'"offset": 0', b'"offset": "0"')),
    ]
    for number, (name, data) in enumerate(spoilt):
        original = bytes(staging.store.get(f"{staging.key}/{name}").data)
        if data is None:
            staging.store.delete_many([f"{staging.key}/{name}"])
        else:
            assert data != original
            staging.store.put(f"{staging.key}/{name}", data)
        spans = [ClipSpan(start=0, end=1000), ClipSpan(start=1000, end=2000)]
        assert get_clips(staging, spans, (0, 3000), tmp_path) is None
        assert sample_contents(cut(place, tmp_path / str(number), staging, row)) == wanted
        staging.store.put(f"{staging.key}/{name}", original)


def scenes(lengths: list[int]) -> list[np.ndarray]:
    """A picture of its own for each scene, moving a little."""
    rng = np.random.default_rng(3)
    frames = []
    for length in lengths:
        coarse = rng.integers(0, 256, (9, 16, 3), np.uint8)
        picture = np.kron(coarse, np.ones((16, 16, 1), np.uint8))
        frames += [picture[number % 3 : number % 3 + 96, 8:136] for number in range(length)]
    return frames


def test_shots_are_cut_while_they_are_found(
    tmp_path: Path, staging: ClipStaging, encode_video: EncodeVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [30, 8, 70, 12, 13, 200, 9, 40, 60]
    path = encode_video(scenes(lengths), options={"g": "50", "bf": "2", "crf": "20"})
    place = open_store(str(tmp_path / "place"))
    place.put("a.mp4", Path(path).read_bytes())
    policy = CutPolicy(
        video=VideoPolicy(short_side_px=48, units="shots", clip_s=2.0, min_clip_s=0.48, max_clips=None)
    )
    row = audit_clip(place, tmp_path / "audit", staging, policy=policy)
    starts = [40 * sum(lengths[:number]) for number in range(1, len(lengths))]
    assert row["scene_cuts"] == starts
    before = sample_contents(cut(place, tmp_path / "cut", None, row, policy=policy))
    assert (
        len(before) == 11
    )  # two shots are too short, one gives four clips, two give two, and one is just long enough
    monkeypatch.setattr("assets.media.clips.cut.canonical_clips", None)  # not called
    assert sample_contents(cut(place, tmp_path / "taken", staging, row, policy=policy)) == before


def one_frame(folder: Path) -> str:
    """A video that a stream can be taken from."""
    path = str(folder / "one.mp4")
    with av.open(path, "w", options={"video_track_timescale": "1000"}) as out:
        stream = out.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        out.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))))
        out.mux(stream.encode(None))
    return path


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    gaps=st.lists(st.sampled_from([40, 40, 40, 7, 120, 900]), min_size=1, max_size=80),
    places=st.sets(st.integers(0, 79), max_size=16),
    step=st.integers(1, 60),
    late=st.integers(0, 30),
)
def test_shots_that_become_known_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], places: set[int], step: int, late: int
) -> None:
    """Whenever the cuts become known, the clips are those of the whole."""
    times = [500 + sum(gaps[:number]) for number in range(len(gaps))]
    cuts = sorted(times[place] for place in places if 0 < place < len(times))
    index = PacketIndex(
        n_packets=len(times), start_pts=500, end_pts=times[-1] + 40, time_base=(1, 1000), max_gop_frames=1
    )
    policy = VideoPolicy(units="shots", clip_s=1.0, min_clip_s=0.2, max_clips=None, short_side_px=16)
    n_seen = 0

    def settled() -> tuple[list[int], int | None]:
        known = n_seen // step * step - late
        if known <= 0:
            return [], None
        return [pts for pts in cuts if pts < times[known - 1]], times[known - 1]

    folder = tmp_path_factory.mktemp("clips")
    with av.open(one_frame(folder)) as source, pytest.MonkeyPatch.context() as patch:
        patch.setattr("assets.media.clips.early_clips._ASK_EVERY", 1)
        maker = ShotMaker(index, folder, policy, source.streams.video[0], QUALITIES[0], settled)
        for n_seen, pts in enumerate(times, 1):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), n_seen, np.uint8))
            frame.time_base = Fraction(1, 1000)
            maker.add(TimedFrame(frame, pts, pts))
        try:
            spans = shots(index, policy, cuts).spans
        except Unusable:
            spans = []
        clips = maker.finish(cuts, spans)
    assert clips is not None
    for clip, span in zip(clips, spans, strict=True):
        inside = [pts for pts in times if span.start <= pts < span.end]
        assert (clip.pts if clip else []) == inside


@pytest.mark.parametrize("options", [{"units": "shots"}, {"mode": "reference"}, {"units": "segments"}])
def test_where_stretches_are_not_known_nothing_is_made(
    tmp_path: Path, place: Store, staging: ClipStaging, options: dict[str, Any]
) -> None:
    audit_clip(place, tmp_path / "audit", staging, policy=CutPolicy(video=VideoPolicy(**options)))
    assert keys(staging) == set()


def test_trouble_with_a_clip_is_not_the_audits(
    tmp_path: Path, place: Store, staging: ClipStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cutter will tell it, when it meets it again."""

    def refusing(self: Any, *arguments: Any) -> None:
        raise dropped("cut", "rotation", "on its head")

    monkeypatch.setattr(ClipEncoder, "add", refusing)
    row = audit_clip(place, tmp_path / "audit", staging)
    assert keys(staging) == set()
    refused = cut(place, tmp_path / "cut", staging, row).refusal
    assert refused is not None
    assert refused["code"] == "rotation"


def test_damaged_video_leaves_nothing(tmp_path: Path, place: Store, staging: ClipStaging) -> None:
    data = bytearray(place.get("a.mp4").data)
    middle = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 2
    data[middle : middle + 2000] = bytes(2000)
    place.put("a.mp4", bytes(data))
    scratch = tmp_path / "audit"
    result = audit_object(AuditRequest(**request_fields(place, scratch, staging=staging, policy=POLICY)))
    assert result.refusal is not None
    assert keys(staging) == set()
    assert list(scratch.iterdir()) == []


def test_root_that_does_not_answer_is_nobodys_refusal(
    tmp_path: Path, place: Store, staging: ClipStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> None:
        raise StoreError("no answer")

    monkeypatch.setattr(type(staging.store), "put_file", failing)
    result = audit_object(
        AuditRequest(**request_fields(place, tmp_path / "audit", staging=staging, policy=POLICY))
    )
    assert (result.row, result.refusal) == (None, None)
    assert "no answer" in result.fault
