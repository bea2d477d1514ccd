"""Every object version is in exactly one batch, whoever discovers, and wherever it is killed."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.arrivals.batch_manifests import Book, Manifest, RawObject, manifests, read_manifest
from assets.arrivals.make_batches import discover, pending
from assets.sources import BatchLimits
from loader.errors import AlreadyExists, Corrupt, FormatTooNew, InvalidName, InvalidSpec, ObjectNotFound
from loader.storage import Store, open_store
from penstock.stages import StageRecord, append_record
from tests.refusals import refusal
from tests.servers.processes import python
from tests.servers.s3 import boto3_client

REPOSITORY = Path(__file__).resolve().parents[3]
FEW = BatchLimits(max_objects=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "root"))


@pytest.fixture
def place(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "landing"))


def put(place: Store, *keys: str) -> None:
    for key in keys:
        place.put(key, key.encode())


def times(store: Store, dataset: str = "d") -> Counter[tuple[str, str]]:
    """(uri, etag) -> in how many batches it is."""
    return Counter(item.identity for found in manifests(store, dataset) for item in found.objects)


def exactly_once(store: Store, place: Store) -> bool:
    there = {(f"{place.url}/{info.key}", info.etag) for info in place.list()}
    found = times(store)
    return set(found.values()) <= {1} and there <= set(found)


def test_objects_are_grouped_in_key_order_and_named_by_what_they_are(store: Store, place: Store) -> None:
    put(place, *(f"k{number}" for number in range(7)))
    keys = discover(store, place, "d", FEW)
    assert [[item.key for item in read_manifest(store, "d", key).objects] for key in keys] == [
        ["k0", "k1", "k2"],
        ["k3", "k4", "k5"],
        ["k6"],
    ]
    assert [key[:7] for key in keys] == ["000001-", "000002-", "000003-"]
    assert discover(open_store("memory://elsewhere-d"), place, "d", FEW) == keys  # the same in another root
    assert discover(open_store("memory://elsewhere-e"), place, "e", FEW) != keys
    first = read_manifest(store, "d", keys[0]).objects[0]
    assert first == RawObject(key="k0", uri=f"{place.url}/k0", nbytes=2, etag=place.head("k0").etag)
    body = store.get("tables/d/manifests/000001.json").data
    assert body == read_manifest(store, "d", keys[0]).to_json()


def test_second_look_finds_only_what_is_new(store: Store, place: Store) -> None:
    assert discover(store, place, "d") == []
    assert list(store.list()) == []
    put(place, "m", "z/1")
    (first,) = discover(store, place, "d")
    assert discover(store, place, "d") == []
    put(place, "a/late and below", "z/0")  # both sort before keys that have been seen
    (second,) = discover(store, place, "d")
    assert [item.key for item in read_manifest(store, "d", second).objects] == ["a/late and below", "z/0"]
    assert (first[:6], second[:6]) == ("000001", "000002")
    assert exactly_once(store, place)


def test_overwritten_object_lands_again(store: Store, place: Store) -> None:
    put(place, "a", "b")
    discover(store, place, "d")
    place.put("a", b"other")
    (key,) = discover(store, place, "d")
    assert [item.key for item in read_manifest(store, "d", key).objects] == ["a"]
    assert exactly_once(store, place)
    place.delete_many(["a"])
    assert discover(store, place, "d") == []


def test_what_is_no_raw_object_is_left_alone(store: Store, place: Store) -> None:
    put(place, "_origins.json", ".hidden", "a/.git/x", "a/_origins.json", "a/b.jpg", "ein Bild 狗.jpg")
    place.put("empty", b"")
    (key,) = discover(store, place, "d")
    found = {item.key for item in read_manifest(store, "d", key).objects}
    assert found == {"a/_origins.json", "a/b.jpg", "ein Bild 狗.jpg", "empty"}


def test_bytes_limit_a_batch_too(store: Store, place: Store) -> None:
    for key, nbytes in {"a": 60, "b": 60, "c": 500, "d": 40, "e": 60, "f": 0, "g": 1}.items():
        place.put(key, bytes(nbytes))
    keys = discover(store, place, "d", BatchLimits(max_bytes=100))
    assert ["".join(item.key for item in found.objects) for found in manifests(store, "d")] == [
        "a",
        "b",
        "c",
        "def",
        "g",
    ]
    assert len(keys) == 5
    with refusal(InvalidSpec, what="max_objects", given=0):
        BatchLimits(max_objects=0)


def test_call_may_be_bounded(store: Store, place: Store) -> None:
    put(place, *(f"k{number}" for number in range(10)))
    limits = BatchLimits(max_objects=2, max_batches=2)
    assert [len(discover(store, place, "d", limits)) for _ in range(4)] == [2, 2, 1, 0]
    assert exactly_once(store, place)


def test_two_places_with_the_same_names(store: Store, place: Store, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "other"))
    put(place, "a")
    put(other, "a")
    discover(store, place, "d")
    discover(store, other, "d")
    assert exactly_once(store, place)
    assert exactly_once(store, other)
    assert [found.landing for found in manifests(store, "d")] == [place.url, other.url]


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3), st.booleans()), min_size=1, max_size=25
    ),
    st.integers(1, 4),
)
def test_any_history(history: list[tuple[str, int, bool]], max_objects: int) -> None:
    name = os.urandom(8).hex()
    store, place = open_store(f"memory://{name}/root"), open_store(f"memory://{name}/landing")
    seen = set()
    for key, content, look in history:
        place.put(key, bytes([content]))
        if look:
            discover(store, place, "d", BatchLimits(max_objects=max_objects))
            seen |= {(f"{place.url}/{info.key}", info.etag) for info in place.list()}
    assert times(store) == Counter(dict.fromkeys(seen, 1))


class Meddling:
    """A store in which something happens just before a manifest is written."""

    def __init__(self, store: Store, meddle: Callable[[], object]) -> None:
        self._store, self._meddle = store, meddle

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._meddle()
        self._store.put_if_absent(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_another_discoverer_between_the_listing_and_the_writing(store: Store, place: Store) -> None:
    put(place, *"bdfhj")
    arrivals = iter("aceg")

    def meddle() -> None:
        for key in arrivals:
            put(place, key)
            discover(store, place, "d", BatchLimits(max_objects=2))
            return

    mine = discover(Meddling(store, meddle), place, "d", BatchLimits(max_objects=2))
    discover(store, place, "d")
    assert exactly_once(store, place)
    assert mine == []  # the other one took them all


def test_another_discoverer_with_the_same_listing_makes_the_same_batches(store: Store, place: Store) -> None:
    put(place, *"abcde")
    theirs: list[str] = []
    mine = discover(Meddling(store, lambda: theirs.extend(discover(store, place, "d", FEW))), place, "d", FEW)
    assert theirs[0] in mine
    assert len(manifests(store, "d")) == 2
    assert exactly_once(store, place)


def test_discoverers_at_once(store: Store, place: Store) -> None:
    def arrive_and_discover(number: int) -> list[str]:
        put(place, *(f"{number}/{position}" for position in range(5)))
        return discover(store, place, "d", BatchLimits(max_objects=2))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(arrive_and_discover, range(18)))
    assert exactly_once(store, place)
    numbers = [found.number for found in manifests(store, "d")]
    assert numbers == list(range(1, len(numbers) + 1))


KILLED = """
import sys
import pathspec, polars
from assets.arrivals.make_batches import discover
from assets.sources import BatchLimits
from loader.storage import open_store
from tests.mortal_store import SIDES, forks_killed

landing, roots = sys.argv[1:]

def work(death):
    store = death.of(open_store(f"{roots}/{death.when}-{death.at}"))
    discover(store, open_store(landing), "d", BatchLimits(max_objects=2))

print(sum(forks_killed(work, when) for when in SIDES))
"""


def test_killed_at_every_verb(tmp_path: Path, place: Store) -> None:
    put(place, *"abcdefg")
    done = python("-c", KILLED, tmp_path / "landing", tmp_path / "roots", cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2 * 6  # a listing, a look behind it, four manifests; before and after each
    expected = discover(open_store(str(tmp_path / "whole")), place, "d", BatchLimits(max_objects=2))
    for when in ("before", "after"):
        for number in range(1, 7):
            store = open_store(str(tmp_path / "roots" / f"{when}-{number}"))
            made = discover(store, place, "d", BatchLimits(max_objects=2))
            assert exactly_once(store, place)
            assert pending(store, "d", "samples") == expected  # none is forgotten, and all are the same
            assert set(made) <= set(expected)


def test_pending_are_those_without_a_record(store: Store, place: Store) -> None:
    put(place, *"abc")
    keys = discover(store, place, "d", BatchLimits(max_objects=1))
    assert pending(store, "d", "samples") == keys
    record = StageRecord(
        dataset="d",
        stage="samples",
        partition=keys[1],
        verdict="failed",
        run_id="r",
        code_version="1",
        fingerprint="f",
    )
    append_record(store, record)
    assert pending(store, "d", "samples") == [keys[0], keys[2]]


def test_hints_spare_the_manifests_and_are_not_believed_blindly(
    store: Store, place: Store, caplog: pytest.LogCaptureFixture
) -> None:
    put(place, *(f"{number:03d}" for number in range(130)))
    discover(store, place, "d", BatchLimits(max_objects=2))
    (hint,) = [info.key for info in store.list("tables/d/manifests/state-")]
    assert hint.endswith("state-000065.parquet")
    put(place, "new")
    reads: list[str] = []

    class Counting(Meddling):
        def get(self, key: str) -> Any:
            reads.append(key)
            return self._store.get(key)

    assert len(discover(Counting(store, lambda: None), place, "d")) == 1
    assert reads == [hint, "tables/d/manifests/000066.json"]  # and nobody is behind it
    for damage in (b"no parquet", b""):
        store.put(hint, damage)
        assert discover(store, place, "d") == []
        assert "ignoring the hint" in caplog.text
    store.delete_many([f"tables/d/manifests/{number:06d}.json" for number in range(60, 67)])
    assert len(discover(store, place, "d")) == 1  # a root from before the hint: what it says is not used
    assert exactly_once(store, place)


def test_book_goes_on_where_an_earlier_one_was(store: Store, place: Store) -> None:
    reads: list[str] = []

    class Counting(Meddling):
        def get(self, key: str) -> Any:
            reads.append(key.rsplit("/", 1)[-1])
            return self._store.get(key)

    def book(before: Book | None) -> Book:
        reads.clear()
        found = Book(Counting(store, lambda: None), "d", before)
        assert sorted(zip(*found.seen().to_pydict().values(), strict=True)) == sorted(times(store))
        return found

    def made(first: int, n: int) -> None:
        put(place, *(f"{number:03d}" for number in range(first, first + n)))
        discover(store, place, "d", BatchLimits(max_objects=1))

    made(0, 5)
    earlier = book(None)
    assert reads == [f"{number:06d}.json" for number in range(1, 7)]
    assert book(earlier).newest == 5
    assert reads == ["000006.json"]  # which is not there
    made(5, 2)
    assert book(earlier).newest == 7
    assert sorted(reads) == ["000006.json", "000007.json", "000008.json"]
    earlier = book(book(earlier))
    assert reads == ["000008.json"]
    made(7, 9)  # and a hint, beside which nothing is taken away yet
    earlier = book(earlier)
    assert book(earlier)._hint == 16


def test_book_forgets_what_a_takedown_has_renamed(store: Store, place: Store) -> None:
    """What it keeps is never written into a hint again."""
    put(place, *(f"{number:03d}" for number in range(20)))
    discover(store, place, "d", BatchLimits(max_objects=2))
    earlier = Book(store, "d")
    assert any("007" in uri for uri in earlier.seen()["uri"].to_pylist())
    path = "tables/d/manifests/000004.json"
    body = json.loads(store.get(path).data)
    body["objects"][1] |= {"key": "taken-down/x", "uri": "taken-down:x", "etag": ""}
    store.put(path, json.dumps(body | {"redacted": True}).encode())
    assert not any(uri.endswith("007") for uri in Book(store, "d", earlier).seen()["uri"].to_pylist())


def test_book_whose_hint_was_taken_away_is_of_no_use(store: Store, place: Store) -> None:
    """A takedown takes the hint away after the manifests are replaced: whoever read it in between has the old names."""
    put(place, *(f"{number:03d}" for number in range(20)))
    discover(store, place, "d", BatchLimits(max_objects=1))
    (hint,) = [info.key for info in store.list("tables/d/manifests/state-")]
    path = "tables/d/manifests/000004.json"
    body = json.loads(store.get(path).data)
    body["objects"][0] |= {"key": "taken-down/x", "uri": "taken-down:x", "etag": ""}
    store.put(path, json.dumps(body | {"redacted": True}).encode())
    between = Book(store, "d")
    assert any(uri.endswith("003") for uri in between.seen()["uri"].to_pylist())
    store.delete_many([hint])
    assert not any(uri.endswith("003") for uri in Book(store, "d", between).seen()["uri"].to_pylist())


def test_listing_of_manifests_that_lags(store: Store, place: Store) -> None:
    put(place, *"ab")
    discover(store, place, "d", BatchLimits(max_objects=1))

    class Lagging(Meddling):
        def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[Any]:
            return iter(())

    put(place, "c")
    (key,) = discover(Lagging(store, lambda: None), place, "d")
    assert key.startswith("000003-")
    assert exactly_once(store, place)


@pytest.mark.parametrize("batch", ["b1", "1-00000000", "../000001-00000000", "000001-0000000G", "000001"])
def test_what_is_no_batch_key(store: Store, batch: str) -> None:
    with refusal(InvalidName, what="batch", given=batch):
        read_manifest(store, "d", batch)


def test_batches_that_are_not_there(store: Store, place: Store) -> None:
    with refusal(ObjectNotFound, what="batch", given="000001-00000000", accepted=None):
        read_manifest(store, "d", "000001-00000000")
    put(place, "a")
    (key,) = discover(store, place, "d")
    with refusal(ObjectNotFound, what="batch", given="000001-00000000", accepted=key):
        read_manifest(store, "d", "000001-00000000")


def test_manifest_that_was_changed(store: Store, place: Store) -> None:
    put(place, "a")
    (key,) = discover(store, place, "d")
    path = "tables/d/manifests/000001.json"
    data = store.get(path).data
    faults = {
        b"{": ("manifest", "DamagedJson"),
        b"[]": ("manifest", "DamagedJson"),
        b"{}": ("manifest", "KeyError"),
        data.replace(b'"a"', b'"b"'): ("batch", key),
    }
    for damaged, (what, fault) in faults.items():
        store.put(path, damaged)
        with refusal(Corrupt, what=what, where=f"{store.url}/{path}", given=fault):
            read_manifest(store, "d", key)
        with refusal(Corrupt, what=what, where=f"{store.url}/{path}", given=fault):
            discover(store, place, "d")
    store.put(path, data.replace(b'"format":1', b'"format":2'))
    with pytest.raises(FormatTooNew):
        discover(store, place, "d")


def test_batch_cannot_be_written_twice(store: Store) -> None:
    made = Manifest(
        dataset="d",
        number=1,
        landing="memory://x",
        objects=(RawObject(key="a", uri="memory://x/a", nbytes=1, etag="e"),),
    )
    store.put_if_absent(made.path, made.to_json())
    other = Manifest(dataset="d", number=1, landing="memory://y", objects=made.objects)
    assert other.path == made.path
    with pytest.raises(AlreadyExists):
        store.put_if_absent(other.path, other.to_json())


def test_bucket(s3: dict[str, Any]) -> None:
    client = boto3_client(s3)
    for key in ("raw/photos/", "raw/photos/a b.jpg", "raw/photos/ä.jpg", "raw/empty.jpg", "other"):
        body = b"" if key.endswith(("/", "empty.jpg")) else b"x"
        client.put_object(Bucket="bucket", Key=key, Body=body)
    store, place = open_store("s3://bucket/root", s3), open_store("s3://bucket/raw", s3)
    (key,) = discover(store, place, "d")
    found = read_manifest(store, "d", key)
    assert [item.key for item in found.objects] == ["empty.jpg", "photos/a b.jpg", "photos/ä.jpg"]
    assert found.landing == "s3://bucket/raw"
    assert discover(store, place, "d") == []
    client.put_object(Bucket="bucket", Key="raw/photos/a b.jpg", Body=b"y")
    assert len(discover(store, place, "d")) == 1
    assert len(times(store)) == 4
    client.close()
    store.close()
    place.close()
