"""Feeds of notices: in any order and number, they lead to the same batches."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.arrivals.batch_manifests import manifests
from assets.arrivals.feeds import open_message_source
from assets.arrivals.progress import TickBudget, TickDataset, TickResult
from assets.arrivals.reconcile import reconcile
from assets.arrivals.tick import tick
from assets.sources import BatchLimits, Feed, Source
from loader.errors import Forbidden, Transient
from loader.storage import Store, open_store
from tests.assets.arrivals.events import BRIDGE, gcs_event, s3_event
from tests.mortal_store import Death, kill_at_each
from tests.servers.s3 import boto3_client

NOW_US = 4_000_000_000_000_000
AT_ONCE = BatchLimits(max_objects=100, max_wait_s=0)


@pytest.fixture
def name() -> str:
    return os.urandom(8).hex()


class World:
    """A root, a place and a feed of files, in memory."""

    def __init__(self, name: str, limits: BatchLimits = AT_ONCE, **more: Any) -> None:
        self.store, self.place = open_store(f"memory://{name}/root"), open_store(f"memory://{name}/raw")
        self.box = open_store(f"memory://{name}/box")
        feed = Feed(url=f"memory://{name}/box", prefix="notices/")
        self.source = Source(**{"listed": False, "feed": feed} | more)
        self.dataset = TickDataset(store=self.store, name="d", limits=limits, now_us=NOW_US)

    @contextmanager
    def opened(self, source: Source) -> Iterator[Store]:
        yield self.place

    def tick(self, later_s: float = 0, **budget: int) -> TickResult:
        self.dataset = replace(self.dataset, now_us=self.dataset.now_us + int(later_s * 1e6))
        return tick(self.dataset, (self.source,), self.opened, TickBudget(**budget))[0]

    def drop(self, file: str, *lines: Any) -> None:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        self.box.put(f"notices/{file}", text.encode())

    def batches(self) -> list[list[str]]:
        return [[item.key for item in found.objects] for found in manifests(self.store, "d")]

    def files(self) -> list[str]:
        return [info.key for info in self.box.list("notices/")]


def test_files_of_notices(name: str) -> None:
    world = World(name, exclude=("*.tmp",))
    for key in ("a", "b", "c.tmp", "d"):
        world.place.put(key, b"x")
    world.drop("1.jsonl", {"key": "b"}, {"key": "a"}, "", {"key": "b"}, {"key": "gone"}, {"key": "../x"})
    world.drop("2.jsonl", {"key": "c.tmp"}, "no json", {"uri": f"memory://{name}/other/x"}, {"key": "a"})
    step = world.tick()
    assert world.batches() == [["b", "a"]]
    assert step.not_taken == {
        "gone": 1,
        "not_media": 1,
        "excluded": 1,
        "elsewhere": 1,
        "unreadable_notice": 1,
    }
    assert world.files() == []
    (aside,) = [info.key for info in world.store.list("tables/d/arrivals/landing/unreadable-")]
    (row,) = pl.read_parquet(world.store.get(aside).data).to_dicts()
    assert (row["letter"], row["line"], row["text"]) == ("notices/2.jsonl", 2, "no json")
    world.drop("3.jsonl", {"key": "a"})  # again, and nothing is new
    assert world.tick().batches == []
    assert world.files() == []
    world.place.put("a", b"other")
    world.drop("4.jsonl", {"key": "a"})
    world.tick()
    assert world.batches() == [["b", "a"], ["a"]]


def test_file_stays_until_all_that_it_names_is_in_a_batch(name: str) -> None:
    world = World(name, BatchLimits(max_objects=3, max_wait_s=3600))
    for key in "abcdefgh":
        world.place.put(key, b"x")
    world.dataset = replace(world.dataset, now_us=0)  # nothing has waited for long
    world.drop("1", *({"key": key} for key in "ab"))
    assert world.tick().waiting == 2
    assert world.tick().n_new == 0
    assert world.files() == ["notices/1"]
    world.drop("2", *({"key": key} for key in "cdefg"))
    assert world.tick(max_notices=4).waiting == 0
    assert world.batches() == [list("abc"), list("def")]
    assert world.files() == ["notices/1", "notices/2"]
    assert world.tick().waiting == 1  # what was left of the second one; the first one has gone
    assert world.files() == ["notices/2"]
    world.dataset = replace(world.dataset, now_us=NOW_US)
    assert world.tick().batches
    world.tick()
    assert world.files() == []
    assert world.batches()[2:] == [["g"]]


def test_listing_beside_a_feed_finds_the_same_objects_once(name: str) -> None:
    world = World(name, listed=True)
    for key in "abc":
        world.place.put(key, b"x")
    world.drop("1", {"key": "c"}, {"key": "a"})
    step = world.tick()
    assert (step.n_new, world.batches(), world.files()) == (3, [["a", "b", "c"]], [])


def test_listing_and_a_feed_share_the_rate(name: str) -> None:
    world = World(name, listed=True, objects_per_hour=3)
    for key in "abcde":
        world.place.put(key, b"x")
    world.drop("1", *({"key": key} for key in "edc"))
    assert [world.tick(later_s).n_new for later_s in (0, 60, 3600)] == [3, 0, 2]
    world.tick(), world.tick()  # no more notices are read at a time than there is room for
    assert world.files() == []
    assert sorted(key for batch in world.batches() for key in batch) == list("abcde")


def message_body(bucket: object, key: object) -> dict[str, Any]:
    return {"bucket": {"name": bucket}, "object": {"key": key}}


BAD = {
    "no key": gcs_event("x")
    | {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": None}},
    "a key that is a number": BRIDGE | {"detail-type": "Object Created", "detail": message_body("b", 3)},
    "a bucket that is a list": BRIDGE | {"detail-type": "Object Created", "detail": message_body([], "a")},
    "half a character": r'{"key": "\ud800"}',
    "half a character in a field's name": r'{"\ud800": 1}',
    "no URL": {"eventType": "Microsoft.Storage.BlobCreated", "data": {"url": None}},
    "deep brackets": '{"key":' * 5000,
    "deep brackets in an envelope": {"Message": "[" * 5000},
    "a number without end": '{"key": "a", "n": ' + "9" * 5000 + "}",
    "no UTF-8": b'{"key": "\xff.jpg"}',
}


@pytest.mark.parametrize("what", BAD)
def test_unreadable_notice_is_set_aside_and_the_others_continue(name: str, what: str) -> None:
    world, bad = World(name, listed=False), BAD[what]
    for key in ("a", "b", "hidden"):
        world.place.put(key, b"x")
    line = (
        bad if isinstance(bad, bytes) else bad.encode() if isinstance(bad, str) else json.dumps(bad).encode()
    )
    world.box.put("notices/1.jsonl", b'{"key": "a"}\n' + line + b'\n{"key": "b"}\n')
    step = world.tick()
    assert (step.note, step.failed, world.batches(), world.files()) == ("", False, [["a", "b"]], [])
    assert step.not_taken == {"unreadable_notice": 1}
    (told,) = step.set_aside
    assert "notices/1.jsonl, line 2: " in told
    assert "accepted" in told
    (aside,) = world.store.list("tables/d/arrivals/landing/unreadable-")
    (row,) = pl.read_parquet(world.store.get(aside.key).data).to_dicts()
    assert (row["letter"], row["line"]) == ("notices/1.jsonl", 2)
    # What it may have named is not lost: whoever compares all of the place finds it.
    found = reconcile(world.dataset, world.source, world.place, write=True)
    assert world.batches()[1:] == [["hidden"]]
    assert found.batches


def test_file_that_is_too_large_is_set_aside(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from assets.arrivals import feeds

    world = World(name)
    world.place.put("a", b"x")
    world.drop("1", {"key": "b", "more": "x" * 2000})
    world.drop("2", {"key": "a"})
    monkeypatch.setattr(feeds, "_MOST_BYTES", 1000)
    step = world.tick()
    assert (world.batches(), world.files()) == ([["a"]], [])
    assert "at most 1000" in step.set_aside[0]


def test_name_with_a_line_separator_is_one_notice(name: str) -> None:
    world = World(name)
    world.place.put("a\u2028b", b"x")
    world.drop("1", '{"key": "a\u2028b"}')
    assert (world.tick().not_taken, world.batches()) == ({}, [["a\u2028b"]])


def test_feed_that_cannot_be_read_does_not_hold_up_its_source(name: str) -> None:
    world = World(name, listed=True)
    for key in "abc":
        world.place.put(key, b"x")
    world.drop("1", {"key": "a"})
    world.source = replace(world.source, feed=Feed(url=f"memory://{name}/box", prefix="../"))
    step = world.tick()
    assert step.failed
    assert "InvalidStore" in step.note
    assert world.batches() == [["a", "b", "c"]]


def test_notices_of_a_place_that_does_not_answer_are_read_again(name: str) -> None:
    world = World(name, listed=False)
    for key in "abc":
        world.place.put(key, b"x")
    world.drop("1", *({"key": key} for key in "abc"))
    place = world.place

    class Silent:
        url = place.url

        def head(self, key: str) -> Any:
            raise Transient("no answer")

    world.place = Silent()  # type: ignore[assignment]
    step = world.tick(max_notices=2)
    assert (step.failed, step.not_taken) == (True, {})
    world.place = place
    for _ in range(3):
        world.tick(max_notices=2)
    assert sorted(key for batch in world.batches() for key in batch) == list("abc")
    assert world.files() == []


class Locked:
    """A place that refuses to show some objects."""

    def __init__(self, place: Store, *keys: str) -> None:
        self.url, self.place, self.keys = place.url, place, set(keys)

    def head(self, key: str) -> Any:
        if key in self.keys:
            raise Forbidden(key)
        return self.place.head(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.place, name)


@pytest.mark.parametrize("max_notices", [2, 4096])
def test_file_that_names_a_forbidden_object_is_read_again(name: str, max_notices: int) -> None:
    world = World(name)
    for key in "abcd":
        world.place.put(key, b"x")
    place, world.place = world.place, Locked(world.place, "a")  # type: ignore[assignment]
    world.drop("1", *({"key": key} for key in "abc"))
    world.drop("2", {"key": "d"})
    steps = [world.tick(max_notices=max_notices) for _ in range(4)]
    assert sorted(key for batch in world.batches() for key in batch) == list("bcd")
    assert world.files() == ["notices/1"]
    assert steps[-1].not_taken == {"forbidden": 1}  # and no request before the retry
    world.tick(601, max_notices=max_notices)
    assert world.files() == ["notices/1"]
    world.place = place
    for _ in range(3):
        world.tick(601, max_notices=max_notices)
    assert sorted(key for batch in world.batches() for key in batch) == list("abcd")
    assert world.files() == []


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3), st.integers(0, 40)), max_size=25),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_any_history(history: list[tuple[str, int, int]], max_objects: int, max_notices: int) -> None:
    """Objects and notices of them come in any order, twice, or before their object was overwritten again."""
    world = World(os.urandom(8).hex(), BatchLimits(max_objects=max_objects, max_wait_s=60))
    for number, (key, what, later_s) in enumerate(history):
        if what < 2:
            world.place.put(key, b"%d" % number)
        elif what == 2:
            world.place.delete_many([key])
        world.drop(f"{number % 7}", *({"key": one} for one in (key, "a", key)))
        if number % 3:
            world.tick(later_s, max_notices=max_notices)
    for info in world.place.list():
        world.drop(f"last-{info.key}", {"key": info.key})
    for _ in range(60):
        world.tick(60, max_notices=max_notices)
    times = Counter(item.identity for found in manifests(world.store, "d") for item in found.objects)
    assert set(times.values()) <= {1}
    assert {(f"{world.place.url}/{info.key}", info.etag) for info in world.place.list()} <= set(times)
    assert world.files() == []


def test_tick_that_ends_anywhere_loses_no_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from assets.arrivals import feeds

    def start(_: str) -> World:
        world = World(os.urandom(8).hex(), BatchLimits(max_objects=2, max_wait_s=0))
        for key in "abc":
            world.place.put(key, b"x")
        world.drop("1", {"key": "a"}, {"key": "b"}, "no json")
        world.drop("2", {"key": "c"})
        return world

    def run(death: Death, world: World) -> None:
        plain, world.dataset = world.dataset, replace(world.dataset, store=death.of(world.store))
        with monkeypatch.context() as patched:
            patched.setattr(feeds, "open_place", lambda url, options: death.of(open_store(url)))
            try:
                world.tick(), world.tick()
            finally:
                world.dataset = plain

    killed = list(kill_at_each(run, start, sides=["after"]))
    assert len(killed) >= 12
    for world, k, _ in killed:
        world.tick(), world.tick()
        times = Counter(item.key for found in manifests(world.store, "d") for item in found.objects)
        assert times == Counter("abc"), k
        assert world.files() == []
        assert len(list(world.store.list("tables/d/arrivals/landing/unreadable-"))) == 1


@pytest.fixture
def queue(s3: dict[str, Any], name: str) -> Iterator[Any]:
    client = boto3_client(s3, "sqs")
    url = client.create_queue(QueueName=name)["QueueUrl"]
    yield lambda body: client.send_message(QueueUrl=url, MessageBody=json.dumps(body))
    client.close()


@pytest.mark.parametrize("url", ["sqs://[x/name", "sqs://[x"])
def test_url_that_names_no_queue_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(Transient), open_message_source(Feed(url=url)):
        pass


def test_queue(s3: dict[str, Any], name: str, queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE_KEY", s3["key"])
    monkeypatch.setenv("QUEUE_SECRET", s3["secret"])
    options = {
        "endpoint_url": s3["endpoint_url"],
        "aws_access_key_id": dg.EnvVar("QUEUE_KEY"),
        "aws_secret_access_key": dg.EnvVar("QUEUE_SECRET"),
    }
    world = World(name, BatchLimits(max_objects=12, max_wait_s=3600))
    feed = Feed(url=f"sqs://us-east-1/{name}", options=options)
    world.source = replace(world.source, feed=feed)
    world.place = open_store(f"s3://bucket/{name}", s3)
    keys = [f"a b/{number:02d}+狗.jpg" for number in range(15)]
    queue({"Service": "Amazon S3", "Event": "s3:TestEvent"})
    queue("no notice")
    for key in keys:
        world.place.put(key, b"x")
        quoted = f"{name}/{key}".replace("+", "%2B").replace(" ", "+")
        queue(s3_event(quoted))
        queue(s3_event(quoted))
    world.dataset = replace(world.dataset, now_us=0)
    step = world.tick()
    assert (step.note, step.n_new, step.waiting, len(step.batches)) == ("", 15, 3, 1)
    assert step.not_taken == {"unreadable_notice": 1}
    numbers = {"ApproximateNumberOfMessages": 0, "ApproximateNumberOfMessagesNotVisible": 6}
    client = boto3_client(s3, "sqs")
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(numbers))["Attributes"]
    assert {key: int(value) for key, value in found.items()} == numbers  # two for each that waits
    world.dataset = replace(world.dataset, now_us=NOW_US)
    assert len(world.tick().batches) == 1
    assert sorted(key for batch in world.batches() for key in batch) == keys
    client.purge_queue(QueueUrl=url)
    queue(s3_event(f"{name}/locked"))
    place, world.place = world.place, Locked(world.place, "locked")  # type: ignore[assignment]
    assert world.tick().not_taken == {"unreadable_notice": 1, "forbidden": 1}
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(numbers))["Attributes"]
    assert {key: int(value) for key, value in found.items()} == numbers | {
        "ApproximateNumberOfMessagesNotVisible": 1
    }
    client.close()
    world.place = place
    world.source = replace(world.source, feed=replace(feed, url="sqs://us-east-1/no-such-queue"))
    step = world.tick()
    assert step.failed
    assert Transient.__name__ in step.note
    assert s3["secret"] not in step.note
    world.place.close()
