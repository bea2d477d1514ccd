from pathlib import Path
from typing import Any

from assets.batch import CutBatch, cut_batch, labels_of, part_samples, policy_fingerprint
from assets.discovery import listed, raw_object
from assets.landing import no_progress, raw_rows
from assets.media.unit import CutPolicy
from assets.samples import audit
from loader.storage import Store, open_store

POLICY = CutPolicy(short_side_px=48, clip_s=2.0)


def landed(store: Store) -> list[dict[str, Any]]:
    return list(raw_rows(store, [raw_object(store, info) for info in listed(store)]))


def cut(place: Path, tmp_path: Path, published: dict[str, str] | None = None) -> CutBatch:
    store = open_store(str(place))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rows = landed(store)
    return cut_batch(store, rows, POLICY, scratch, published=published or {}, progress=no_progress)


def refusals(batch: CutBatch) -> dict[str, tuple[str, str]]:
    return {row["key"]: (row["outcome"], row["code"]) for row in batch.refusals}


def test_a_sound_batch(landing: Path, tmp_path: Path) -> None:
    batch = cut(landing, tmp_path)
    assert [sample.kind for sample in batch.samples] == ["image", "image", "audio", "video", "video"]
    assert refusals(batch) == {"readme.txt": ("dropped", "type_not_taken")}
    assert (batch.n_landed, batch.n_used) == (5, 4)
    assert len({sample.key for sample in batch.samples}) == 5
    assert audit(batch, 0) == ""


def test_one_bad_object_never_stops_the_batch(landing: Path, tmp_path: Path) -> None:
    whole = (landing / "videos/clip.mp4").read_bytes()
    bad = {
        "videos/half.mp4": whole[: len(whole) * 3 // 4],
        "videos/empty.mp4": b"",
        "videos/no.mp4": b"\x00\x01\x02\x03" * 100,
        "photos/cats/cut off.jpg": (landing / "photos/cats/a cat.jpg").read_bytes()[:300],
        "speech/head only.wav": (landing / "speech/tone.wav").read_bytes()[:30],
        "photos/cats/again.jpg": (landing / "photos/dogs/狗.jpg").read_bytes(),
    }
    for name, data in bad.items():
        (landing / name).write_bytes(data)
    batch = cut(landing, tmp_path)
    found = refusals(batch)
    assert found["videos/empty.mp4"] == ("rejected", "empty")
    assert found["videos/no.mp4"] == ("rejected", "unknown_type")
    assert found["videos/half.mp4"] == ("rejected", "truncated")
    assert found["photos/cats/cut off.jpg"][0] == "rejected"
    assert found["speech/head only.wav"][0] == "rejected"
    assert found["photos/dogs/狗.jpg"] == ("dropped", "duplicate")  # the second of two equal ones, by name
    assert batch.n_used + len(batch.refusals) == batch.n_landed == 11
    assert batch.n_used == 4
    assert audit(batch, 5) == ""
    assert "5 unreadable of 11 objects, allowed are 4" in audit(batch, 4)
    assert "and 2 more" in audit(batch, 0)
    assert str(tmp_path) not in " ".join(row["reason"] for row in batch.refusals)


def test_the_suffix_plays_no_part(landing: Path, tmp_path: Path) -> None:
    (landing / "photos/cats/a cat.jpg").rename(landing / "photos/cats/a cat.mp4")
    (landing / "videos/clip.mp4").rename(landing / "videos/clip.jpg")
    assert [sample.kind for sample in cut(landing, tmp_path).samples] == [
        "image",
        "image",
        "audio",
        "video",
        "video",
    ]


def test_what_is_published_already_is_dropped(landing: Path, tmp_path: Path) -> None:
    there = {
        row["sha256"]: "there" for row in landed(open_store(str(landing))) if row["mime"] != "text/plain"
    }
    batch = cut(landing, tmp_path, there)
    assert not batch.samples
    assert audit(batch, 0) == ""  # nothing new is no failure
    assert [row["code"] for row in batch.refusals].count("duplicate") == 4


def test_a_batch_of_nothing_usable_fails(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "notes.txt").write_bytes(b"no media")
    assert "none of 1 objects" in audit(cut(place, tmp_path), 0)


def test_an_audit_sees_a_lost_object() -> None:
    assert "one is lost" in audit(CutBatch(n_landed=3, n_used=1), 0)


def test_an_object_that_changes_or_goes_after_landing_is_rejected(landing: Path, tmp_path: Path) -> None:
    store = open_store(str(landing))
    rows = landed(store)
    (landing / "photos/cats/a cat.jpg").write_bytes(b"another")
    (landing / "speech/tone.wav").unlink()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    batch = cut_batch(store, rows, POLICY, scratch, published={}, progress=no_progress)
    assert refusals(batch)["photos/cats/a cat.jpg"] == ("rejected", "Changed")
    assert refusals(batch)["speech/tone.wav"] == ("rejected", "ObjectNotFound")


def test_unit_ids_follow_the_bytes_and_the_policy(landing: Path, tmp_path: Path) -> None:
    first = {sample.key for sample in cut(landing, tmp_path).samples}
    (landing / "photos/cats/a cat.jpg").rename(landing / "photos/cats/b.jpg")
    (tmp_path / "again").mkdir()
    assert {sample.key for sample in cut(landing, tmp_path / "again").samples} == first
    assert policy_fingerprint(POLICY) != policy_fingerprint(CutPolicy(short_side_px=48, clip_s=2.5))


def test_numbers_of_known_labels_stay(landing: Path, tmp_path: Path) -> None:
    batch = cut(landing, tmp_path)
    assert labels_of(batch, []) == ["cats", "dogs"]
    assert labels_of(batch, ["zebras", "dogs"]) == ["zebras", "dogs", "cats"]
    samples = list(part_samples(batch.of_kind("image"), ["zebras", "dogs", "cats"], {"run_id": "r"}))
    assert {fields["photo.json"]["raw"]: fields["cls"] for _, fields, _, _ in samples} == {
        "photos/cats/a cat.jpg": 2,
        "photos/dogs/狗.jpg": 1,
    }
    assert all(source["run_id"] == "r" and source["raw_sha256"] for _, _, _, source in samples)


def test_what_was_replaced_or_taken_away_since_discovery_is_dropped(landing: Path, tmp_path: Path) -> None:
    store = open_store(str(landing))
    objects = [raw_object(store, info) for info in listed(store)]
    (landing / "photos/cats/a cat.jpg").write_bytes(b"another")
    (landing / "speech/tone.wav").unlink()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rows = list(raw_rows(store, objects))
    batch = cut_batch(store, rows, POLICY, scratch, published={}, progress=no_progress)
    assert refusals(batch)["photos/cats/a cat.jpg"] == ("dropped", "Changed")
    assert refusals(batch)["speech/tone.wav"] == ("dropped", "ObjectNotFound")
    assert batch.n_used + len(batch.refusals) == batch.n_landed == 5
    assert audit(batch, 0) == ""
