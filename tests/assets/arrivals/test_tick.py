"""A tick goes a bounded step further at every source."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from assets.arrivals.batch_manifests import manifests
from assets.arrivals.progress import TickBudget, TickDataset, pause, read_progress, resume, write_progress
from assets.arrivals.tick import tick
from assets.sources import BatchLimits, Source
from loader.dataset.log.denies import Target, hashes
from loader.dataset.log.state import Deny
from loader.dataset.tables.parquet import table_bytes
from loader.errors import Corrupt, InvalidStore
from loader.storage import ObjectInfo, Store, open_store
from resources.storage import LandingResource
from tests.assets.arrivals.ticking import NOW_US, Place, Ticking
from tests.refusals import refusal

HOUR_US = 3_600_000_000
AT_ONCE = BatchLimits(max_objects=3, max_wait_s=0)


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{os.urandom(8).hex()}/root")


def batches(store: Store) -> list[str]:
    return ["".join(item.key for item in found.objects) for found in manifests(store, "d")]


def test_what_fills_no_batch_waits_until_it_has_waited_long_enough(store: Store) -> None:
    place, limits = Place(), BatchLimits(max_objects=3, max_wait_s=600)
    go = Ticking(store, limits, landing=place)
    place.put(*"abcd", at_us=NOW_US - 100_000_000)
    place.put("e")
    (step,) = go()
    assert batches(store) == ["abc"]
    assert (step.n_new, step.waiting, step.oldest_s, len(step.batches)) == (5, 2, 100.0, 1)
    place.put("A")
    assert go(499)[0].waiting == 3 - 3  # three wait: a full batch
    assert batches(store) == ["abc", "deA"]
    place.put("f", at_us=go.dataset.now_us)
    assert go(599)[0].waiting == 1
    assert go(1)[0].waiting == 0
    assert batches(store) == ["abc", "deA", "f"]
    assert go(10_000)[0].batches == []


@pytest.mark.parametrize("ahead_s", [5 * 3600, 60 * 365 * 86_400])
def test_object_dated_in_the_future_waits_from_its_first_listing(store: Store, ahead_s: int) -> None:
    place = Place()
    go = Ticking(store, BatchLimits(max_objects=9, max_wait_s=600), landing=place)
    place.put("a", at_us=NOW_US + ahead_s * 10**6)
    assert go()[0].oldest_s == 0
    assert go(599)[0].oldest_s == 599
    assert batches(store) == []
    assert len(go(1)[0].batches) == 1
    (manifest,) = manifests(store, "d")
    assert [item.arrived_us for item in manifest.objects] == [NOW_US]


def test_stored_date_in_the_future_counts_from_the_next_tick(store: Store) -> None:
    place = Place()
    go = Ticking(store, BatchLimits(max_objects=9, max_wait_s=600), landing=place)
    place.put("a")
    go()
    progress = read_progress(store, "d", "landing")
    ((uri, waiting),) = progress.waiting.items()
    progress.waiting[uri] = replace(waiting, arrived_us=4 * NOW_US)
    write_progress(store, "d", "landing", progress)
    assert go(1)[0].oldest_s == 0
    assert len(go(600)[0].batches) == 1


def test_objects_with_old_dates_make_one_batch_in_each_waiting_time(store: Store) -> None:
    place = Place()
    go = Ticking(store, BatchLimits(max_objects=9, max_wait_s=600), landing=place)
    for number in range(4):
        place.put(str(number), at_us=1)
        go(300)
    assert batches(store) == ["0", "12"]
    go(300)
    assert batches(store) == ["0", "12", "3"]


def test_tick_lists_no_more_than_its_budget_and_the_next_continues(store: Store) -> None:
    place = Place()
    place.put(*(f"{number:02d}" for number in range(20)))
    go = Ticking(store, BatchLimits(max_objects=5, max_wait_s=0), landing=place)
    go.budget = TickBudget(max_listed=7)
    cursors = [go()[0].cursor for _ in range(3)]
    assert cursors == ["06", "13", ""]
    assert place.n_listed <= 3 * 7
    assert [len(found.objects) for found in manifests(store, "d")] == [5, 5, 5, 5]
    place.put("000")  # below the cursor's next place: the next pass finds it
    assert sum(go()[0].n_new for _ in range(4)) == 1
    assert read_progress(store, "d", "landing").n_passes == 2


def test_what_stays_over_in_the_middle_of_a_pass_waits_for_more_and_not_for_ever(store: Store) -> None:
    place = Place()
    place.put(*(f"{number:02d}" for number in range(12)), at_us=NOW_US - HOUR_US)
    go = Ticking(store, BatchLimits(max_objects=4, max_wait_s=60), landing=place)
    go.budget = TickBudget(max_listed=6)
    go()
    assert [len(found.objects) for found in manifests(store, "d")] == [4]  # two wait for the next tick
    go()
    assert [len(found.objects) for found in manifests(store, "d")] == [4, 4, 4]
    place.put("!", at_us=NOW_US - HOUR_US)
    go.budget = TickBudget(max_listed=9)
    go()  # to the end
    go()  # a long pass in which nothing becomes full: the old one waits for no end of it
    assert sum(len(found.objects) for found in manifests(store, "d")) == 13


class Raising(Place):
    """Fails its own way when it is listed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("memory://broken")
        self.error = error

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        raise self.error
        yield


@pytest.mark.parametrize(
    "error", [TypeError("a bug"), Corrupt("a damaged page"), OSError("no network"), RecursionError("deep")]
)
def test_whatever_one_source_raises_is_its_own_failure(store: Store, error: Exception) -> None:
    place = Place()
    place.put("a")
    go = Ticking(
        store, AT_ONCE, Source(name="broken"), Source(name="sound"), broken=Raising(error), sound=place
    )
    broken, sound = go()
    assert (broken.failed, broken.note) == (True, f"{type(error).__name__}: {error}")
    assert (sound.failed, batches(store)) == (False, ["a"])


def test_who_ends_the_process_ends_the_tick(store: Store) -> None:
    go = Ticking(store, AT_ONCE, Source(name="broken"), broken=Raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        go()


@pytest.mark.parametrize(
    "told",
    [
        {"at_us": "late"},
        {"cursor": 3},
        {"held": [{}]},
        {"taken": [["a", "b"]]},
        {"read": {"a": {}}},
        {"n_passes": None},
        {"mood": "fine"},
    ],
)
def test_what_is_kept_of_a_source_and_makes_no_sense_is_forgotten(store: Store, told: dict[str, Any]) -> None:
    place, other = Place(), Place("memory://other")
    place.put("a")
    path = "tables/d/arrivals/landing/waiting.parquet"
    rows = pa.table({name: pa.array([], pa.int64()) for name in ("nbytes", "arrived_us")})
    for name in ("key", "uri", "etag"):
        rows = rows.append_column(name, pa.array([], pa.string()))
    store.put(
        path, table_bytes(rows, "waiting-objects", facts={"progress": json.dumps({"taken": []} | told)})
    )
    told = Ticking(store, AT_ONCE, Source(), Source(name="other"), landing=place, other=other)()
    assert [step.note for step in told] == ["", ""]
    assert batches(store) == ["a"]
    assert read_progress(store, "d", "landing").n_passes == 1


def test_sources_are_told_apart_and_share_the_budget(store: Store) -> None:
    here, there = Place("memory://here"), Place("memory://there")
    here.put("photos/a.jpg", "photos/b.JPG", "photos/c.tmp", "test/d.jpg", "e.jpg")
    there.put("a", "b", nbytes=5)
    there.put("c", nbytes=50)
    there.put(".hidden", "x/", "_origins.json")
    sources = (
        Source(name="photos", prefix="photos/", include=("*.[jJ][pP][gG]",)),
        Source(name="rest", exclude=("/photos/", "test/**", "!test/d.jpg")),
        Source(name="there", url="memory://there", min_bytes=2, max_bytes=10),
    )
    go = Ticking(store, AT_ONCE, *sources, photos=here, rest=here, there=there)
    steps = {step.source: step for step in go()}
    assert batches(store) == ["photos/a.jpgphotos/b.JPG", "e.jpgtest/d.jpg", "ab"]
    assert [found.landing for found in manifests(store, "d")] == [here.url, here.url, there.url]
    assert steps["photos"].not_taken == {"not_included": 1}
    assert steps["rest"].not_taken == {"excluded": 3}
    assert steps["there"].not_taken == {"not_media": 3, "too_large": 1}
    go.budget = TickBudget(max_listed=9)
    assert [step.listed for step in go()] == [3, 3, 3]


def test_sources_of_one_place_that_overlap_share_no_object(store: Store) -> None:
    place = Place()
    place.put("a/1", "a/2", "b")
    sources = (Source(name="all"), Source(name="a", prefix="a/"))
    limits = BatchLimits(max_objects=9, max_wait_s=60)
    go = Ticking(store, limits, *sources, all=place, a=place)
    assert [step.waiting for step in go()] == [3, 2]  # at both
    assert [len(step.batches) for step in go(60)] == [1, 0]
    assert batches(store) == ["a/1a/2b"]
    assert [step.waiting for step in go()] == [0, 0]


def test_rates(store: Store) -> None:
    place = Place()
    place.put(*(f"{number:03d}" for number in range(100)))
    source = Source(objects_per_tick=10, objects_per_hour=25)
    go = Ticking(store, BatchLimits(max_objects=5, max_wait_s=0), source, landing=place)
    found = [go(600)[0].n_new for _ in range(20)]
    assert found[:8] == [10, 10, 5, 0, 0, 0, 10, 10]
    assert sum(found) == sum(len(found.objects) for found in manifests(store, "d"))
    assert all(sum(found[first : first + 6]) <= 25 for first in range(15))
    keys = [item.key for found in manifests(store, "d") for item in found.objects]
    assert keys == sorted(keys) == sorted(set(keys))  # none was passed over


def test_pausing(store: Store) -> None:
    places = {"one": Place("memory://one"), "two": Place("memory://two")}
    for place in places.values():
        place.put("a")
    go = Ticking(store, AT_ONCE, Source(name="one"), Source(name="two", paused=True), **places)
    pause(store, "d", "one", reason="bad upload", by="ann")
    assert [step.note for step in go()] == ["paused by ann: bad upload", "paused in the dataset's spec"]
    assert batches(store) == []
    assert resume(store, "d", "one")
    assert not resume(store, "d", "one")
    assert [len(step.batches) for step in go()] == [1, 0]
    store.put("tables/d/arrivals/one/paused.json", b"by hand, at night")
    assert go()[0].note == "paused by unknown: no reason"


class Broken(Place):
    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        raise InvalidStore("no such bucket")


def test_source_that_is_down_holds_up_no_other(store: Store) -> None:
    up = Place()
    up.put("a")
    go = Ticking(store, AT_ONCE, Source(name="down"), Source(name="up"), down=Broken(), up=up)
    down, other = go()
    assert down.failed
    assert down.note == "InvalidStore: no such bucket"
    assert (other.failed, len(other.batches)) == (False, 1)


def test_what_is_taken_down_lands_no_more_though_it_waited(store: Store) -> None:
    place = Place()
    place.put("a", "b")
    go = Ticking(store, BatchLimits(max_objects=9, max_wait_s=60), landing=place)
    assert go()[0].waiting == 2
    named = hashes("ab", [Target(kind="raw", value="a")])
    deny = Deny(n=1, salt="ab", hashes=tuple(named), scope="raw")
    go.dataset = replace(go.dataset, denies=(deny,))
    place.put("c")
    (step,) = go(60)
    assert batches(store) == ["bc"]
    assert step.waiting == 0
    assert go()[0].not_taken == {"taken_down": 1}


def test_overwritten_object_waits_once_as_what_it_is_now(store: Store) -> None:
    place = Place()
    place.put("a", "b")
    go = Ticking(store, BatchLimits(max_objects=9, max_wait_s=60), landing=place)
    go()
    place.put("a", at_us=NOW_US + 30_000_000)
    go(30)
    (found,) = [go(30), manifests(store, "d")][1]
    assert [(item.key, item.etag) for item in found.objects] == [("b", "2"), ("a", "3")]


def test_state_that_is_lost_or_damaged_costs_a_pass_and_no_object(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place()
    place.put(*"abcde")
    go = Ticking(store, BatchLimits(max_objects=4, max_wait_s=60), landing=place)
    go()
    path = "tables/d/arrivals/landing/waiting.parquet"
    for damage in (b"", b"PAR1 no", store.get(path).data[:-20]):
        store.put(path, damage)
        assert go()[0].waiting == 1
        assert "a new pass begins" in caplog.text
    store.delete_many([path])
    go(60)
    assert batches(store) == ["abcd", "e"]


def test_requests_of_a_tick_do_not_grow_with_earlier_listings(store: Store) -> None:
    """At two sizes: what a tick in the middle of a pass lists is its budget, however much lies before the cursor."""
    for n_before in (50, 500):
        place = Place()
        place.put(*(f"{number:04d}" for number in range(n_before + 100)))
        go = Ticking(open_store(f"memory://{os.urandom(8).hex()}/root"), AT_ONCE, landing=place)
        go.budget = TickBudget(max_listed=n_before)
        go()
        place.n_listed, go.budget = 0, TickBudget(max_listed=20)
        assert go()[0].listed == 20
        assert place.n_listed == 20


def test_secrets_of_a_source_come_out_of_the_environment(
    store: Store, s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    from assets.arrivals.batch_manifests import opener

    with refusal(InvalidStore, what="secret", where="source 'partner'"):
        Source(name="partner", url="s3://bucket/x", options={"secret": s3["secret"]})
    options = {
        "endpoint_url": s3["endpoint_url"],
        "key": dg.EnvVar("PARTNER_KEY"),
        "secret": dg.EnvVar("PARTNER_SECRET"),
    }
    source = Source(name="partner", url=dg.EnvVar("PARTNER_URL"), options=options)
    monkeypatch.setenv("PARTNER_URL", "s3://bucket/partner")
    monkeypatch.setenv("PARTNER_KEY", s3["key"])
    monkeypatch.delenv("PARTNER_SECRET", raising=False)
    landing = LandingResource(url="memory://default")
    with refusal(InvalidStore, what="PARTNER_SECRET"), opener(landing)(source):
        pass
    monkeypatch.setenv("PARTNER_SECRET", s3["secret"])
    with opener(landing)(source) as place:
        place.put("a", b"abc")
        dataset = TickDataset(store=store, name="d", limits=AT_ONCE, now_us=4 * NOW_US)
        (step,) = tick(dataset, (source,), opener(landing))
        assert len(step.batches) == 1, step.note
        sent = pickle.dumps(place)
        assert s3["secret"].encode() not in sent
        assert pickle.loads(sent).get("a").data == b"abc"  # noqa: S301
    assert s3["secret"] not in repr(source) + repr(place)
    (found,) = manifests(store, "d")
    assert found.landing == "s3://bucket/partner"
    assert s3["secret"] not in json.dumps([str(found)])
    with opener(landing)(Source()) as place:
        assert place.url == "memory://default"
