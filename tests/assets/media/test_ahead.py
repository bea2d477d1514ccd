"""Clips made on the way: the bytes that cutting gives, taken where they fit, and forgotten where they do not."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assets.media.ahead import Shelf
from assets.media.objects import AuditRequest, CutRequest, CutResult, audit_object, cut_object
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.segments import Segment
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
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(store=open_store(str(tmp_path / "root")), key="ahead/a")


def asked(place: Store, scratch: Path, **more: Any) -> dict[str, Any]:
    sha256 = hashlib.sha256(bytes(place.get("a.mp4").data)).hexdigest()
    return {"store": place, "key": "a.mp4", "sha256": sha256, "mime": MP4, "scratch": str(scratch), **more}


def audited(place: Store, scratch: Path, shelf: Shelf | None, **more: Any) -> dict[str, Any]:
    options = {"policy": POLICY, **more}
    result = audit_object(AuditRequest(**asked(place, scratch, shelf=shelf, **options)))
    assert result.row is not None, result
    assert list(scratch.iterdir()) == []  # an audit leaves nothing
    return result.row


def cut(place: Store, scratch: Path, shelf: Shelf | None, row: dict[str, Any], **more: Any) -> CutResult:
    options = {"policy": POLICY, **more}
    return cut_object(CutRequest(**asked(place, scratch, shelf=shelf, audit=row, **options)))


def told(result: CutResult) -> list[Any]:
    """All that a sample is made of."""
    found = []
    for unit in result.units:
        fields = {
            name: value.read_bytes() if isinstance(value, Path) else value
            for name, value in unit.fields.items()
        }
        found.append((unit.start, unit.end, unit.metadata, unit.groups, unit.request, fields))
    return found


def keys(shelf: Shelf) -> set[str]:
    return {info.key for info in shelf.store.list(f"{shelf.key}/")}


SEGMENTS = (Segment(start_s=0.2, end_s=1.1, caption="one"), Segment(start_s=0.9, end_s=2.5))


@pytest.mark.parametrize("segments", [(), SEGMENTS])
def test_they_are_those_that_cutting_gives(
    tmp_path: Path, place: Store, shelf: Shelf, segments: tuple[Segment, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = CutPolicy(
        video=VideoPolicy(
            short_side_px=48, clip_s=1.0, max_clips=2, units="segments" if segments else "windows"
        )
    )
    more = {"policy": policy, "segments": segments}
    row = audited(place, tmp_path / "audit", shelf, **more)
    assert row == audited(place, tmp_path / "audit", None, **more)
    before = told(cut(place, tmp_path / "cut", None, row, **more))
    assert len(before) == 2
    assert len(keys(shelf)) == 5  # a clip and its packet table, twice, and what is known of them
    monkeypatch.setattr("assets.media.video.canonical_clips", None)  # not called
    assert told(cut(place, tmp_path / "taken", shelf, row, **more)) == before


def test_what_does_not_fit_is_cut_from_the_source(tmp_path: Path, place: Store, shelf: Shelf) -> None:
    row = audited(place, tmp_path / "audit", shelf)
    wanted = told(cut(place, tmp_path / "cut", None, row))
    facts = bytes(shelf.store.get(f"{shelf.key}/clips.json").data)
    clip = bytes(shelf.store.get(f"{shelf.key}/1.mp4").data)
    spoilt: list[tuple[str, bytes | None]] = [
        ("clips.json", None),
        ("clips.json", b"{"),
        ("clips.json", b"[]"),
        ("clips.json", b'{"extent": [0, 3000], "clips": [1, 2]}'),
        ("clips.json", facts.replace(b'"span": [0, 1000]', b'"span": [0, 999]')),
        ("clips.json", facts.replace(b'"extent": [0, ', b'"extent": [1, ')),
        ("1.mp4", None),
        ("1.mp4", clip[:-1]),
        ("1.packets", b""),
    ]
    for number, (name, data) in enumerate(spoilt):
        original = bytes(shelf.store.get(f"{shelf.key}/{name}").data)
        if data is None:
            shelf.store.delete_many([f"{shelf.key}/{name}"])
        else:
            assert data != original
            shelf.store.put(f"{shelf.key}/{name}", data)
        assert told(cut(place, tmp_path / str(number), shelf, row)) == wanted
        shelf.store.put(f"{shelf.key}/{name}", original)


@pytest.mark.parametrize("options", [{"units": "shots"}, {"mode": "reference"}, {"units": "segments"}])
def test_where_stretches_are_not_known_nothing_is_made(
    tmp_path: Path, place: Store, shelf: Shelf, options: dict[str, Any]
) -> None:
    audited(place, tmp_path / "audit", shelf, policy=CutPolicy(video=VideoPolicy(**options)))
    assert keys(shelf) == set()


def test_trouble_with_a_clip_is_not_the_audits(
    tmp_path: Path, place: Store, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cutter will tell it, when it meets it again."""
    from assets.media.clip_encoder import ClipEncoder
    from assets.media.unit import dropped

    def refusing(self: Any, *arguments: Any) -> None:
        raise dropped("cut", "rotation", "on its head")

    monkeypatch.setattr(ClipEncoder, "add", refusing)
    row = audited(place, tmp_path / "audit", shelf)
    assert keys(shelf) == set()
    refused = cut(place, tmp_path / "cut", shelf, row).refusal
    assert refused is not None
    assert refused["code"] == "rotation"


def test_a_damaged_video_leaves_nothing(tmp_path: Path, place: Store, shelf: Shelf) -> None:
    data = bytearray(place.get("a.mp4").data)
    middle = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 2
    data[middle : middle + 2000] = bytes(2000)
    place.put("a.mp4", bytes(data))
    scratch = tmp_path / "audit"
    result = audit_object(AuditRequest(**asked(place, scratch, shelf=shelf, policy=POLICY)))
    assert result.refusal is not None
    assert keys(shelf) == set()
    assert list(scratch.iterdir()) == []


def test_a_root_that_does_not_answer_is_nobodys_refusal(
    tmp_path: Path, place: Store, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> None:
        raise StoreError("no answer")

    monkeypatch.setattr(type(shelf.store), "put_file", failing)
    result = audit_object(AuditRequest(**asked(place, tmp_path / "audit", shelf=shelf, policy=POLICY)))
    assert (result.row, result.refusal) == (None, None)
    assert "no answer" in result.fault
