"""raw_objects: a row per object of the manifest, whatever happened to the object since."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from assets.arrivals.batch_manifests import read_manifest
from assets.arrivals.make_batches import discover
from assets.ingest.raw_objects import land, raw_rows, read_origins
from assets.pipeline.tables import read_table
from assets.sources import BatchLimits
from loader.errors import Changed, Corrupt, InvalidName, ObjectNotFound, StageNotPublished, Transient
from loader.storage import Store, open_store
from tests.refusals import refusal


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "root"))


def land_rows(store: Store, place: Store, batch: str) -> dict[str, dict[str, Any]]:
    _, rows = land(store, place, dataset="d", partition=batch, run_id="r")
    return {row["key"]: row for row in rows}


def codes(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {key: row["error_code"] for key, row in rows.items() if row["error_code"]}


def test_row_per_object(store: Store, landing: Path) -> None:
    place = open_store(str(landing))
    (batch,) = discover(store, place, "d")
    record, rows = land(store, place, dataset="d", partition=batch, run_id="r")
    assert [row["key"] for row in rows] == sorted(row["key"] for row in rows)
    assert read_table(store, record.files["raw_objects"]) == rows
    assert record.counts == {"landed": 5, "nbytes": sum(row["nbytes"] for row in rows)}
    for row in rows:
        data = (landing / row["key"]).read_bytes()
        assert (row["sha256"], row["nbytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
        assert row["uri"] == f"{landing}/{row['key']}"
        assert row["etag"] == place.head(row["key"]).etag
    assert {row["mime"] for row in rows} >= {"image/jpeg", "video/mp4", "text/plain"}


def test_objects_above_the_size_of_one_read(store: Store, tmp_path: Path) -> None:
    place = open_store(str(tmp_path / "place"))
    data = os.urandom(2**20) * 19  # two reads of 8 MiB and a rest
    place.put("big", data)
    place.put("exactly", data[: 8 * 2**20])
    rows = land_rows(store, place, discover(store, place, "d")[0])
    assert rows["big"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert rows["exactly"]["sha256"] == hashlib.sha256(data[: 8 * 2**20]).hexdigest()


def test_exactly_the_manifest_lands(store: Store, landing: Path) -> None:
    place = open_store(str(landing))
    batches = discover(store, place, "d", BatchLimits(max_objects=2))
    place.put("later.jpg", b"not of any batch yet")
    rows = [land_rows(store, place, batch) for batch in batches]
    assert [len(found) for found in rows] == [2, 2, 1]
    assert not any("later.jpg" in found for found in rows)
    (later,) = discover(store, place, "d")
    assert [item.key for item in read_manifest(store, "d", later).objects] == ["later.jpg"]


def test_changed_gone_and_unreadable_objects_are_rows(store: Store, landing: Path) -> None:
    place = open_store(str(landing))
    place.put("empty", b"")
    place.put("empty and replaced", b"")
    place.put("empty and gone", b"")
    (batch,) = discover(store, place, "d")
    (landing / "photos/cats/a cat.jpg").write_bytes(b"another")
    (landing / "speech/tone.wav").unlink()
    (landing / "videos/clip.mp4").unlink()
    (landing / "videos/clip.mp4").symlink_to(landing / "videos/clip.mp4")  # opening it is refused by the disk
    place.put("empty and replaced", b"full")
    place.delete_many(["empty and gone"])
    rows = land_rows(store, place, batch)
    found = codes(rows)
    assert found.pop("videos/clip.mp4")
    assert found == {
        "photos/cats/a cat.jpg": "Changed",
        "speech/tone.wav": "ObjectNotFound",
        "empty and replaced": "Changed",
        "empty and gone": "ObjectNotFound",
    }
    assert len(rows) == 8
    assert rows["empty"]["sha256"] == hashlib.sha256(b"").hexdigest()
    assert all(row["error_reason"] for row in rows.values() if row["error_code"])
    (landing / "videos/clip.mp4").unlink()
    (again,) = discover(store, place, "d")  # what replaced it lands in a batch of its own
    assert set(land_rows(store, place, again)) == {"photos/cats/a cat.jpg", "empty and replaced"}


def test_object_replaced_between_two_reads_is_not_mixed(store: Store, tmp_path: Path) -> None:
    place = open_store(str(tmp_path / "place"))
    place.put("big", bytes(20 * 2**20))

    class Replacing:
        def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Any:
            if offset:
                place.put("big", bytes([1]) * (20 * 2**20))
            return place.get_range(key, offset, nbytes, etag)

        def __getattr__(self, name: str) -> Any:
            return getattr(place, name)

    (batch,) = discover(store, place, "d")
    assert codes(land_rows(store, Replacing(), batch)) == {"big": "Changed"}


def test_store_that_does_not_answer_is_no_reason_to_reject(store: Store, landing: Path) -> None:
    place = open_store(str(landing))

    class Silent:
        def get_range(self, *arguments: object) -> Any:
            raise Transient("no answer")

        def __getattr__(self, name: str) -> Any:
            return getattr(place, name)

    (batch,) = discover(store, place, "d")
    with pytest.raises(Transient):
        land(store, Silent(), dataset="d", partition=batch, run_id="r")
    assert list(store.list("stages/")) == []


def test_landing_again_writes_nothing(store: Store, landing: Path) -> None:
    place = open_store(str(landing))
    (batch,) = discover(store, place, "d")
    first, _ = land(store, place, dataset="d", partition=batch, run_id="1")
    keys = [info.key for info in store.list()]
    again, rows = land(store, place, dataset="d", partition=batch, run_id="2")
    assert again == first
    assert [info.key for info in store.list()] == keys
    (landing / rows[0]["key"]).unlink()
    assert land(store, place, dataset="d", partition=batch, run_id="3")[0].r == 2


def test_origins_are_told_and_are_no_object(store: Store, landing: Path) -> None:
    place = open_store(str(landing))
    place.put(
        "_origins.json",
        b'{"speech/tone.wav": {"licence": "CC0-1.0", "author": "me", "text": "a tone"},'
        b' "readme.txt": {"licence": null, "text": null}}',
    )
    (batch,) = discover(store, place, "d")
    rows = land_rows(store, place, batch)
    assert "_origins.json" not in rows
    assert (rows["speech/tone.wav"]["licence"], rows["speech/tone.wav"]["text"]) == ("CC0-1.0", "a tone")
    assert rows["readme.txt"]["licence"] == "unknown"
    for damaged, said in ((b"[]", "expected"), (b"{", "is not JSON"), (b'{"a":' * 5000, "more than 64")):
        place.put("_origins.json", damaged)
        with pytest.raises(Corrupt, match=said):
            read_origins(place)
        with pytest.raises(Corrupt, match=said):
            land(store, place, dataset="d", partition=batch, run_id="2")


SPOILT = {
    "half a character": rb'{"title": "\ud800"}',
    "half a character in a list": rb'{"title": ["\ud800"]}',
    "a number beyond": b'{"title": 1e999}',
    "no object": b'["CC0-1.0"]',
    "a page of a licence": b'{"licence": "' + b"x" * (2**20 + 1) + b'"}',
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_said_of_one_object_and_makes_no_sense_is_its_own_problem(
    store: Store, landing: Path, what: str
) -> None:
    place = open_store(str(landing))
    place.put(
        "_origins.json",
        b'{"\\ud800": {}, "nobody": {"title": "\\ud800"}, "readme.txt": %s, "speech/tone.wav": {"licence": "CC0-1.0"}}'
        % SPOILT[what],
    )
    (batch,) = discover(store, place, "d")
    rows = land_rows(store, place, batch)
    if what == "half a character in a list":  # as text it is an escape
        assert rows["readme.txt"]["title"] == r"['\ud800']"
    else:
        assert codes(rows) == {"readme.txt": "Corrupt"}
        assert "_origins.json is " in rows["readme.txt"]["error_reason"]
    assert rows["speech/tone.wav"]["licence"] == "CC0-1.0"


def test_batch_of_another_place(store: Store, landing: Path, tmp_path: Path) -> None:
    (batch,) = discover(store, open_store(str(landing)), "d")
    with refusal(StageNotPublished, what="landing", where=f"batch {batch} of d", given=tmp_path):
        land(store, open_store(str(tmp_path)), dataset="d", partition=batch, run_id="r")
    with refusal(ObjectNotFound, what="batch", where=store.url, given=batch):
        land(store, open_store(str(landing)), dataset="other", partition=batch, run_id="r")
    with pytest.raises(InvalidName):
        land(store, open_store(str(landing)), dataset="d", partition="media", run_id="r")


def test_row_stands_for_one_object_version(store: Store, landing: Path) -> None:
    place = open_store(str(landing))
    item = read_manifest(store, "d", discover(store, place, "d")[0]).objects[0]
    with pytest.raises(Changed):
        place.get_range(item.key, 0, 1, "another")
    assert [row["error_code"] for row in raw_rows(place, [item])] == [""]
