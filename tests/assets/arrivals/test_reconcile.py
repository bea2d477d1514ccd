"""What a source really holds against all manifests: late, overwritten, vanished; listed, or by an inventory."""

import gzip
import hashlib
import io
import json
import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

import loader
from assets.arrivals.batch_manifests import manifests
from assets.arrivals.inventory import read_inventory
from assets.arrivals.make_batches import discover
from assets.arrivals.progress import TickDataset, source_pause
from assets.arrivals.reconcile import reconcile
from assets.arrivals.tick import tick
from assets.sources import BatchLimits, Source
from assets.spec import DatasetSpec
from dagster_project.definitions import build_defs
from dagster_project.sensors.alerting import why_failed
from loader.dataset.log.denies import Target, hashes
from loader.dataset.log.state import Deny
from loader.errors import Corrupt, InvalidStore
from loader.storage import Store, open_store
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource
from tests.proxy_stores import ProxyStore
from tests.refusals import refusal

LATER_US = 4_000_000_000_000_000
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@pytest.fixture
def place(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "raw"))


@pytest.fixture
def work() -> TickDataset:
    store = open_store(f"memory://{os.urandom(8).hex()}/root")
    return TickDataset(store=store, name="d", limits=BatchLimits(max_wait_s=0), now_us=LATER_US)


def put(place: Store, *keys: str, data: bytes = b"x") -> None:
    for key in keys:
        place.put(key, data)


def exactly_once(store: Store, place: Store) -> bool:
    times = Counter(item.identity for found in manifests(store, "d") for item in found.objects)
    there = {(f"{place.url}/{info.key}", info.etag) for info in place.list()}
    return set(times.values()) == {1} and there <= set(times)


def differences(found: Any) -> list[tuple[str, str, int]]:
    return list(found.differences.select("status", "key", "batch").iter_rows())


def test_differences_by_a_listing(work: TickDataset, place: Store) -> None:
    put(place, *"abcd")
    discover(work.store, place, "d", BatchLimits(max_objects=2))
    put(place, "0", "e", "x.tmp")
    put(place, "b", data=b"other")
    place.delete_many(["c"])
    source = Source(exclude=("*.tmp",))
    looked = reconcile(work, source, place, write=False)
    assert differences(looked) == [
        ("late", "0", 0),
        ("late", "e", 0),
        ("overwritten", "b", 1),
        ("vanished", "c", 2),
    ]
    assert (looked.n_there, looked.n_batched, looked.n_fresh, looked.batches) == (5, 4, 0, [])
    assert looked.not_taken == {"excluded": 1}
    assert len(manifests(work.store, "d")) == 2
    found = reconcile(work, source, place)
    assert len(found.batches) == 1
    place.delete_many(["x.tmp"])
    assert exactly_once(work.store, place)
    assert found.table is not None
    kept = pl.read_parquet(work.store.get(found.table.path).data)
    assert kept.select("status", "key").rows() == [(status, key) for status, key, _ in differences(looked)]
    again = reconcile(work, source, place)
    assert differences(again) == [("vanished", "c", 2)]
    assert again.batches == []


@pytest.mark.parametrize(
    ("source", "n_there", "not_taken"),
    [
        (Source(exclude=("/old/**",)), 1, {"excluded": 1}),
        (Source(include=("*.mp4",)), 0, {"not_included": 2}),
        (Source(min_bytes=2), 1, {"too_small": 1}),
        (Source(max_bytes=1), 1, {"too_large": 1}),
    ],
)
def test_object_that_the_source_no_longer_selects_has_not_vanished(
    work: TickDataset, place: Store, source: Source, n_there: int, not_taken: dict[str, int]
) -> None:
    put(place, "old/a.jpg", data=b"x")
    put(place, "b.jpg", data=b"xx")
    discover(work.store, place, "d")
    report = reconcile(work, source, place)
    assert differences(report) == []
    assert (report.n_there, report.n_batched, report.not_taken) == (n_there, 2, not_taken)
    place.delete_many(["old/a.jpg", "b.jpg"])
    assert differences(reconcile(work, source, place)) == [
        ("vanished", "b.jpg", 1),
        ("vanished", "old/a.jpg", 1),
    ]


def test_what_is_young_or_waits_is_left_to_the_sensor(work: TickDataset, place: Store) -> None:
    put(place, "a")
    (info,) = place.list()
    assert info.modified_us is not None
    now = replace(work, limits=BatchLimits(max_wait_s=600), now_us=info.modified_us + 4100 * 10**6)
    assert reconcile(now, Source(), place).n_fresh == 1
    waits = replace(now, limits=BatchLimits(max_wait_s=10**9))
    from contextlib import nullcontext

    assert tick(waits, (Source(),), lambda source: nullcontext(place))[0].waiting == 1
    late = replace(now, now_us=now.now_us + 200 * 10**6)
    found = reconcile(late, Source(), place)
    assert (found.n_fresh, found.batches) == (1, [])
    work.store.delete_many(["tables/d/arrivals/landing/waiting.parquet"])
    assert differences(reconcile(late, Source(), place)) == [("late", "a", 0)]


def test_object_dated_in_the_future_is_late_once_no_difference_of_clocks_explains_it(
    work: TickDataset, place: Store
) -> None:
    put(place, "a")
    (info,) = place.list()
    assert info.modified_us is not None
    slow = replace(work, now_us=info.modified_us - 3500 * 10**6)
    assert reconcile(slow, Source(), place, write=False).n_fresh == 1
    slower = replace(work, now_us=info.modified_us - 3700 * 10**6)
    assert differences(reconcile(slower, Source(), place)) == [("late", "a", 0)]
    (manifest,) = manifests(work.store, "d")
    assert [item.arrived_us for item in manifest.objects] == [slower.now_us]


def test_sensor_goes_on_beside_it(work: TickDataset, place: Store) -> None:
    from contextlib import nullcontext

    put(place, *"abc")

    def discover_first(store: Store, key: str, data: bytes) -> None:
        put(place, "0")
        tick(work, (Source(),), lambda source: nullcontext(place))
        store.put_if_absent(key, data)

    found = reconcile(
        replace(work, store=ProxyStore(work.store, put_if_absent=discover_first)), Source(), place
    )
    assert found.batches == []
    assert exactly_once(work.store, place)


def test_other_places_prefixes_and_takedowns_are_no_difference(
    work: TickDataset, place: Store, tmp_path: Path
) -> None:
    other = open_store(str(tmp_path / "other"))
    put(place, "a/1", "b/1")
    put(other, "c")
    discover(work.store, other, "d")
    discover(work.store, place, "d", source=Source(prefix="b/"))
    named = hashes("ab", [Target(kind="raw", value="a/1")])
    denied = replace(work, denies=(Deny(n=1, salt="ab", hashes=tuple(named), scope="raw"),))
    found = reconcile(denied, Source(prefix="a/"), place)
    assert differences(found) == [("late", "a/1", 0)]
    assert found.batches == []
    assert (found.n_there, found.n_batched) == (1, 0)
    place.delete_many(["b/1"])
    assert differences(reconcile(work, Source(prefix="b/"), place)) == [("vanished", "b/1", 2)]


def inventory(place: Store, at: Path, kind: str, rows: list[dict[str, Any]]) -> str:
    """An S3 Inventory, as S3 lays it out; the URL of its manifest."""
    frame, sink = pl.DataFrame(rows), io.BytesIO()
    if kind == "Parquet":
        frame.rename(
            {"Key": "key", "Size": "size", "ETag": "e_tag", "LastModifiedDate": "last_modified_date"}
        ).write_parquet(sink)
        data, name = sink.getvalue(), "u-u.parquet"
    else:
        quoted = frame.with_columns(pl.col("Key").str.replace_all("%", "%25").str.replace_all(" ", "+"))
        quoted.write_csv(sink, include_header=False, quote_style="always")
        data, name = gzip.compress(sink.getvalue()), "u-u.csv.gz"
    base = at / "raw-bucket" / "daily"
    (base / "data").mkdir(parents=True)
    (base / "2026-11-20T01-00Z").mkdir()
    (base / "data" / name).write_bytes(data)
    body = {
        "sourceBucket": "raw-bucket",
        "destinationBucket": "arn:aws:s3:::inventories",
        "fileFormat": kind,
        "fileSchema": ", ".join(frame.columns),
        "files": [
            {
                "key": f"some/raw-bucket/daily/data/{name}",
                "size": len(data),
                "MD5checksum": hashlib.md5(data).hexdigest(),
            }
        ],
    }
    manifest = base / "2026-11-20T01-00Z" / "manifest.json"
    manifest.write_text(json.dumps(body))
    return str(manifest)


@pytest.mark.parametrize("kind", ["Parquet", "CSV"])
def test_differences_by_an_inventory_of_s3(
    work: TickDataset, s3: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    place = open_store(f"s3://bucket/{kind}-{os.urandom(4).hex()}", s3)
    folder = place.url.removeprefix("s3://bucket/")
    put(place, "a", "b", "c d%.jpg", "late")
    discover(work.store, place, "d", source=Source(exclude=("late",)))
    put(place, "b", data=b"other")
    at = datetime(2026, 11, 1, tzinfo=UTC)
    when = at if kind == "Parquet" else at.isoformat().replace("+00:00", ".000Z")
    rows = [
        {
            "Bucket": "bucket",
            "Key": f"{folder}/{info.key}",
            "Size": info.nbytes,
            "LastModifiedDate": when,
            "ETag": info.etag.strip('"'),
        }
        for info in place.list()
    ]
    gone = rows[0] | {"Key": f"{folder}/gone since"}
    elsewhere = [rows[0] | {"Key": "elsewhere/a"}, rows[0] | {"Bucket": "other", "Key": f"{folder}/z"}]
    place.delete_many(["a"])
    url = inventory(place, tmp_path, kind, [*rows[1:], gone, *elsewhere])
    found = reconcile(work, Source(), place, inventory=url)
    expected = [("late", "gone since", 0), ("late", "late", 0), ("overwritten", "b", 1), ("vanished", "a", 1)]
    assert differences(found) == expected
    assert len(found.batches) == 1
    assert exactly_once(work.store, place)  # what has gone since is in no batch
    assert [item.key for item in manifests(work.store, "d")[1].objects] == ["late", "b"]
    data = next(Path(url).parent.parent.glob("data/*"))
    data.write_bytes(data.read_bytes()[:-1])
    with refusal(Corrupt, what="MD5", where=data):
        reconcile(work, Source(), place, inventory=url)
    place.close()


def test_plain_tables_and_what_is_none(tmp_path: Path) -> None:
    def read(name: str, data: bytes, place: str = "/raw") -> list[tuple[Any, ...]]:
        (tmp_path / name).write_bytes(data)
        return read_inventory(str(tmp_path / name), {}, place).rows()

    assert read("a.csv", b"name,size\nb,3\na,\n") == [("a", None, "", None), ("b", 3, "", None)]
    text = b'uri,ETag,Last-Modified,is_delete_marker\ngs://b/raw/x,"""e""",2026-01-01T00:00:00Z,false\ngs://b/raw/y,,,true\n'
    assert read("b.csv.gz", gzip.compress(text), "gs://b/raw") == [("x", None, "e", 1_767_225_600_000_000)]
    for name, data, error, what in (
        ("c.csv", b"colour\nred\n", Corrupt, "key"),
        ("c.parquet", b"PAR1", Corrupt, "c.parquet"),
        ("manifest.json", b"{}", Corrupt, "manifest"),
        ("c.orc", b"ORC", InvalidStore, "inventory"),
    ):
        with refusal(error, what=what, where=tmp_path / name):
            read(name, data)


def test_jobs(tmp_path: Path) -> None:
    raw = open_store(str(tmp_path / "raw"))
    for key in ("a.txt", "b.txt"):
        raw.put(key, key.encode())
    os.utime(tmp_path / "raw" / "a.txt", (1_600_000_000, 1_600_000_000))
    spec = DatasetSpec(name="d", sources=(Source(name="files"),), batch=BatchLimits(max_wait_s=60))
    resources = {
        "root": RootResource(url=str(tmp_path / "root")),
        "landing": LandingResource(url=str(tmp_path / "raw")),
        "compute": ComputeResource(engine="inline"),
    }
    defs = build_defs(resources, [spec])
    with dg.DagsterInstance.ephemeral(settings={"telemetry": {"enabled": False}}) as instance:

        def run(job: str, step: str, **config: Any) -> dg.ExecuteInProcessResult:
            return defs.resolve_job_def(job).execute_in_process(
                instance=instance,
                run_config=QUIET | {"ops": {step: {"config": config}}},
                raise_on_error=False,
            )

        assert not run("d_pause_source", "d_pause", source="nothing", reason="r", by="b").success
        assert not run("d_pause_source", "d_pause", source="files").success
        assert not run("d_pause_source", "d_pause", source="files", reason=" ", by="ann").success
        assert run("d_pause_source", "d_pause", source="files", reason="night", by="ann").success
        with loader.Root(tmp_path / "root") as root:
            assert source_pause(root.store, "d", "files") is not None
            assert run("d_reconcile", "d__reconciliation").success
            assert manifests(root.store, "d") == []  # paused: only looked at
            assert run("d_pause_source", "d_pause", source="files", resume=True).success
            result = run("d_reconcile", "d__reconciliation", source="files")
            (made,) = result.asset_materializations_for_node("d__reconciliation")
            assert [made.metadata[name].value for name in ("late", "vanished", "batches_made")] == [1, 0, 1]
            assert "a.txt" in str(made.metadata["differences"].value)
            assert [item.key for found in manifests(root.store, "d") for item in found.objects] == ["a.txt"]
            assert not run("d_reconcile", "d__reconciliation", source="other").success


def test_source_that_cannot_be_compared_does_not_hold_up_the_others(tmp_path: Path) -> None:
    open_store(str(tmp_path / "raw")).put("a.txt", b"a")
    os.utime(tmp_path / "raw" / "a.txt", (1_600_000_000, 1_600_000_000))
    nowhere = Source(name="nowhere", url=dg.EnvVar("PENSTOCK_TEST_OF_NO_PLACE"))
    spec = DatasetSpec(name="d", sources=(nowhere, Source(name="files")), batch=BatchLimits(max_wait_s=60))
    resources = {
        "root": RootResource(url=str(tmp_path / "root")),
        "landing": LandingResource(url=str(tmp_path / "raw")),
        "compute": ComputeResource(engine="inline"),
    }
    defs = build_defs(resources, [spec])
    with dg.DagsterInstance.ephemeral(settings={"telemetry": {"enabled": False}}) as instance:
        job = defs.resolve_job_def("d_reconcile")
        result = job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
    assert not result.success
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert "source nowhere: " in why_failed(failed)
    with loader.Root(tmp_path / "root") as root:
        assert [item.key for found in manifests(root.store, "d") for item in found.objects] == ["a.txt"]
