from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from assets.pipeline.stages import require_published
from assets.pipeline.tables import read_table, write_table
from loader.errors import AlreadyExists, Corrupt, InvalidName, StageNotPublished
from loader.storage import Store, open_store
from penstock.stages import (
    KnownRecords,
    StageRecord,
    Upstream,
    append_record,
    current_record,
    current_records,
    fingerprint,
    partitions,
)
from tests.refusals import refusal

RECORD = StageRecord(
    dataset="demo",
    stage="samples",
    partition="b1",
    verdict="published",
    run_id="r",
    code_version="1",
    fingerprint="f",
    upstream=(Upstream(stage="raw_objects", partition="b1", r=1),),
    counts={"landed": 3},
    body={"parts": []},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_records_are_numbered_and_the_last_one_counts(store: Store) -> None:
    assert current_record(store, "demo", "samples", "b1") is None
    first = append_record(store, replace(RECORD, verdict="failed", reason="bad"))
    second = append_record(store, RECORD)
    assert (first.r, second.r) == (1, 2)
    assert current_record(store, "demo", "samples", "b1") == second
    assert second.path == "stages/demo/samples/b1/000000000002.json"
    assert require_published(store, "demo", "samples", "b1") == second


def test_record_cannot_be_replaced(store: Store) -> None:
    record = append_record(store, RECORD)
    with pytest.raises(AlreadyExists):
        store.put_if_absent(record.path, b"{}")


def test_only_a_published_current_record_may_be_read(store: Store) -> None:
    with refusal(StageNotPublished, what="samples", where="demo, partition b1", given=None):
        require_published(store, "demo", "samples", "b1")
    append_record(store, RECORD)
    append_record(store, replace(RECORD, verdict="failed", reason="2 unreadable"))
    with refusal(StageNotPublished, what="samples", where="demo, partition b1", given="2 unreadable"):
        require_published(store, "demo", "samples", "b1")


def test_writers_at_once_lose_nothing(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: append_record(store, replace(RECORD, run_id=str(n))), range(40)))
    assert sorted(record.r for record in made) == list(range(1, 41))
    newest = current_record(store, "demo", "samples", "b1")
    assert newest is not None
    assert newest.r == 40


def test_newest_record_is_found_despite_a_lagging_listing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        append_record(store, RECORD)
    everything = list(store.list("stages/"))
    monkeypatch.setattr(store, "list", lambda prefix="", start_after=None: iter(everything[:2]))
    newest = current_record(store, "demo", "samples", "b1")
    assert newest is not None
    assert newest.r == 4


def test_partitions(store: Store) -> None:
    for name in ("b2", "b1", "2026-11-20.001"):
        append_record(store, replace(RECORD, partition=name))
    append_record(store, replace(RECORD, stage="raw_objects", partition="b9"))
    assert partitions(store, "demo", "samples") == ["2026-11-20.001", "b1", "b2"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 101, "-x"])
def test_partition_keys_are_path_segments(store: Store, name: str) -> None:
    with pytest.raises(InvalidName):
        append_record(store, replace(RECORD, partition=name))
    with pytest.raises(InvalidName):
        write_table(store, "demo", "refusals", name, [])


def test_damaged_record_is_named(store: Store) -> None:
    store.put("stages/demo/samples/b1/000000000001.json", b'{"verdict": "published"}')
    with refusal(Corrupt, what="stage record", where=f"{store.url}/stages/demo/samples/b1/000000000001.json"):
        current_record(store, "demo", "samples", "b1")


def test_tables_come_back(store: Store) -> None:
    row = {"key": "k", "sha256": "s", "outcome": "rejected", "stage": "probe", "code": "c", "reason": "r"}
    row |= {"decode_error_at_frame": None}
    assert read_table(store, write_table(store, "demo", "refusals", "b", [row])) == [row]
    assert read_table(store, write_table(store, "demo", "refusals", "b", [])) == []
    file = write_table(store, "demo", "refusals", "b", [row])
    store.put(file.path, b"other")
    with pytest.raises(Corrupt):
        read_table(store, file)


def test_fingerprints() -> None:
    assert fingerprint("a", "b") != fingerprint("ab") != fingerprint("a", ["b"])
    assert fingerprint({"x": 1, "y": 2}) == fingerprint({"y": 2, "x": 1})


def test_known_records_are_read_once_and_again_where_a_takedown_has_replaced_them(store: Store) -> None:
    known, reads = KnownRecords("demo", ["units", "samples"]), list[str]()

    class Counting:
        url, list = store.url, store.list

        def get(self, key: str) -> object:
            reads.append(key)
            return store.get(key)

    def look() -> dict[str, dict[str, StageRecord]]:
        reads.clear()
        return known.newest(Counting())  # type: ignore[arg-type]

    assert look() == {}
    first = append_record(store, RECORD)
    other = append_record(store, replace(RECORD, stage="units", partition="b2"))
    append_record(store, replace(RECORD, stage="media"))
    assert look() == {"b1": {"samples": first}, "b2": {"units": other}}
    assert sorted(reads) == sorted([first.path, other.path])
    assert look() == {"b1": {"samples": first}, "b2": {"units": other}}
    assert not reads
    second = append_record(store, replace(RECORD, verdict="failed", reason="bad"))
    assert look()["b1"] == {"samples": second}
    assert reads == [second.path]
    store.put(second.path, store.get(second.path).data.replace(b'"reason":"bad"', b'"reason":"worse"'))
    assert look()["b1"]["samples"].reason == "worse"
    assert reads == [second.path]
    store.put(other.path, b"edited by hand")
    with refusal(Corrupt, what="stage record", where=f"{store.url}/{other.path}", given="DamagedJson"):
        look()


def test_what_is_no_record_stops_nobody_and_one_that_is_damaged_is_named(store: Store) -> None:
    made = append_record(store, RECORD)
    store.put(f"{made.path.rpartition('/')[0]}/notes.txt", b"mine")
    store.put(f"{made.path.rpartition('/')[0]}/x.json", b"{}")
    assert current_record(store, made.dataset, made.stage, made.partition) == made
    assert current_records(store, made.dataset, made.stage) == {made.partition: made}
    assert KnownRecords(made.dataset, [made.stage]).newest(store) == {made.partition: {made.stage: made}}
    later = made.path.replace("0001.json", "0002.json")
    for data in (store.get(made.path).data, b'{"files":' * 5000, rb'{"dataset": "\ud800"}', b"[]"):
        store.put(later, data)
        with refusal(Corrupt, what="stage record", where=f"{store.url}/{later}"):
            current_record(store, made.dataset, made.stage, made.partition)
