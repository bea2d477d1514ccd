"""Objects that a listing of a source cannot hand out: they are counted and named, and the others become batches."""

from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from assets.arrivals.batch_manifests import manifests
from assets.arrivals.make_batches import discover
from assets.arrivals.progress import TickBudget, TickDataset
from assets.arrivals.reconcile import reconcile
from assets.arrivals.tick import tick
from assets.sources import BatchLimits, Source
from dagster_project.sensors.discovery import tick_line
from loader.errors import InvalidStore
from loader.storage import ObjectInfo, open_store
from tests.refusals import refusal
from tests.servers.s3 import boto3_client

NOW_US = 1_900_000_000_000_000
LIMITS = BatchLimits(max_objects=2, max_wait_s=0)


@pytest.fixture
def folder(tmp_path):
    """A folder with three objects, a link out of it and two names that are not keys."""
    place, outside = tmp_path / "place", tmp_path / "outside"
    place.mkdir()
    outside.mkdir()
    for name in ("a.jpg", "c.jpg", "e.jpg", "b\x07.jpg", "d\n.jpg"):
        (place / name).write_bytes(name.encode())
    for number in range(10):
        (outside / f"{number}.jpg").write_bytes(b"not yours")
    (place / "docs").symlink_to(outside)
    return str(place), {}


@pytest.fixture(scope="module")
def bucket(s3):
    """The same in a bucket of a real S3 server."""
    client = boto3_client(s3)
    client.create_bucket(Bucket="unlisted")
    for key in ("a.jpg", "c.jpg", "e.jpg", "b//x.jpg", "d/../x.jpg", "d\x07.jpg"):
        client.put_object(Bucket="unlisted", Key=f"raw/{key}", Body=key.encode())
    yield "s3://unlisted/raw", s3
    client.close()


@pytest.fixture(params=["folder", "bucket"])
def place(request):
    url, options = request.getfixturevalue(request.param)
    return lambda: open_store(url, options)


def _tick_steps(place, root, budget, *sources, n=1) -> list[Any]:
    @contextmanager
    def open_place(source):
        yield place()

    dataset = TickDataset(store=root, name="d", limits=LIMITS, now_us=NOW_US)
    steps = []
    for number in range(n):
        (step,) = tick(replace(dataset, now_us=NOW_US + number), sources, open_place, budget)
        steps.append(step)
    return steps


def _batch_keys(root):
    return sorted(item.key for found in manifests(root, "d") for item in found.objects)


@pytest.fixture
def root(tmp_path):
    return open_store(str(tmp_path / "root"))


@pytest.mark.parametrize("max_listed", [1, 2, 100])
def test_ticks_count_and_name_what_is_not_listed_once_a_pass(place, root, max_listed):
    steps = _tick_steps(place, root, TickBudget(max_listed=max_listed), Source(), n=5)
    assert not any(step.failed for step in steps)
    assert _batch_keys(root) == ["a.jpg", "c.jpg", "e.jpg"]
    whole = next(step for step in steps if step.n_passes)
    assert whole.not_taken == {"not_listed": 3}
    assert "3 not_listed" in tick_line(whole)
    until = steps[: steps.index(whole) + 1]
    assert len([line for step in until for line in step.unlisted]) == 3


def test_source_that_excludes_such_objects_does_not_count_them(place, root):
    (step,) = _tick_steps(place, root, TickBudget(), Source(exclude=("b*", "d*", "x.jpg", "docs")))
    assert "not_listed" not in step.not_taken
    assert step.unlisted == []
    assert _batch_keys(root) == ["a.jpg", "c.jpg", "e.jpg"]


def test_discovery_and_reconciliation_go_on_beside_them(place, root):
    report = reconcile(
        TickDataset(store=root, name="d", limits=LIMITS, now_us=NOW_US), Source(), place(), write=False
    )
    assert report.n_there == 3
    assert report.not_taken == {"not_listed": 3}
    discover(root, place(), "d", LIMITS)
    assert _batch_keys(root) == ["a.jpg", "c.jpg", "e.jpg"]


def test_key_of_an_inventory_that_no_store_takes_is_not_listed():
    assert Source().sieve()(ObjectInfo(key="raw//x.jpg", nbytes=1, etag="")) == "not_listed"
    assert Source(exclude=("raw/",)).sieve()(ObjectInfo(key="raw//x.jpg", nbytes=1, etag="")) == "excluded"


@pytest.mark.parametrize(
    ("key", "name"),
    [("t/_delta_log/0.json", "Delta"), ("t/.hoodie/x", "Hudi"), ("t/metadata/v1.metadata.json", "Iceberg")],
)
def test_source_of_tables_with_a_log_of_their_own_is_refused(tmp_path, root, key, name):
    for path in ("t/0.parquet", key):
        (tmp_path / "lake" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lake" / path).write_bytes(b"x")
    source = Source(format="parquet", fields={"text": "txt"})
    with refusal(InvalidStore, what=key, given=f"{name} table") as refused:
        source.sieve()(ObjectInfo(key=key, nbytes=1, etag=""))
    assert "export the live rows" in str(refused.value)
    (step,) = _tick_steps(lambda: open_store(str(tmp_path / "lake")), root, TickBudget(), source)
    assert step.failed
    assert f"log of a {name} table" in step.note
    assert _batch_keys(root) == []
    chosen = replace(source, exclude=(f"{key.rpartition('/')[0]}/",))
    (step,) = _tick_steps(lambda: open_store(str(tmp_path / "lake")), root, TickBudget(), chosen)
    assert _batch_keys(root) == ["t/0.parquet"]


@pytest.mark.parametrize(
    "key", ["other/_delta_log/0.json", "other/.hoodie/x", "other/metadata/v1.metadata.json"]
)
def test_log_of_a_table_below_another_prefix_stops_no_source(key):
    source = Source(format="parquet", fields={"text": "txt"}, prefix="live/")
    assert source.sieve()(ObjectInfo(key=key, nbytes=1, etag="")) == "elsewhere"
    with refusal(InvalidStore, what=f"live/{key}"):
        source.sieve()(ObjectInfo(key=f"live/{key}", nbytes=1, etag=""))


def test_another_tools_own_files_are_no_tables():
    why = Source(format="parquet", fields={"text": "txt"}).sieve()
    for key in ("_temporary/0/a.parquet", "x/_a.parquet", "_SUCCESS"):
        assert why(ObjectInfo(key=key, nbytes=1, etag="")) == "not_media"
    assert why(ObjectInfo(key="_day=1/a.parquet", nbytes=1, etag="")) == ""
    assert Source().sieve()(ObjectInfo(key="_MG_0001.jpg", nbytes=1, etag="")) == ""
