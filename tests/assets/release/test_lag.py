"""From an object's arrival to its version: measured on the way, told per batch, per version, over versions."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from assets.arrivals.batch_manifests import RawObject, read_manifest
from assets.release.lag import _median, _quantile, duration_text, lags
from assets.sources import BatchLimits
from assets.spec import DatasetSpec
from dagster_project.definitions import batch_partitions, build_defs
from dagster_project.sensors.release import release_sensor
from loader.errors import InvalidSpec
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", max_reject_rate=1.0)
HOUR_S = 3600


def test_lag_of_a_batch_is_that_of_its_used_objects(
    run: Any, root: loader.Root, landing: Path, arrive: Callable[[Path], str]
) -> None:
    now = time.time()
    ages = {"photos/cats/a cat.jpg": 4, "photos/dogs/狗.jpg": 3, "videos/clip.mp4": 2, "speech/tone.wav": 1}
    for name, hours in ages.items():
        os.utime(landing / name, (now - hours * HOUR_S,) * 2)
    os.utime(landing / "readme.txt", (now - 99 * HOUR_S,) * 2)
    (landing / "broken.jpg").write_bytes(b"\xff\xd8 no photo")  # never trainable: it has no lag
    os.utime(landing / "broken.jpg", (now - 50 * HOUR_S,) * 2)
    batch = arrive(landing)
    arrived = {item.key: item.arrived_us for item in read_manifest(root.store, "demo", batch).objects}
    assert arrived["videos/clip.mp4"] == pytest.approx((now - 2 * HOUR_S) * 1e6, abs=1e6)
    assert run("ingest", SPEC, batch).success
    before = time.time()
    release = run("release", SPEC)
    after = time.time()
    (found,) = lags(root, "demo")
    assert (found.version, found.batch, found.n) == ("demo@1", batch, 5)  # of six; a text is a sample too
    # the clocks of the log and of the files are this machine's
    for value, hours in ((found.min_s, 1), (found.median_s, 3), (found.p95_s, 99), (found.max_s, 99)):
        assert before - now - 1 <= value - hours * HOUR_S <= after - now + 1
    (event,) = release.asset_materializations_for_node("demo__version")
    shown = {name: value.value for name, value in event.metadata.items()}
    assert shown["lag_median_s"] == found.median_s
    assert (shown["lag_min_s"], shown["lag_p95_s"], shown["lag_max_s"]) == (
        found.min_s,
        found.p95_s,
        found.max_s,
    )
    assert duration_text(found.median_s) in shown["lag"]
    assert shown["lag_plot"].startswith("![time from arrival to version](data:image/png;base64,")


def test_arrival_is_no_part_of_what_an_object_is() -> None:
    told = RawObject(key="a", uri="s3://b/a", nbytes=1, etag="e", arrived_us=7)
    assert told == replace(told, arrived_us=0)
    assert told.identified() == replace(told, arrived_us=0).identified()
    assert told.to_json()["arrived_us"] == 7
    assert "arrived_us" not in replace(told, arrived_us=0).to_json()


def test_versions_that_no_batch_became_have_none(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    with root.write("demo") as writer:
        writer.add("a", {"cls": 1})
    assert lags(root, "demo") == []


@settings(max_examples=50, deadline=None, derandomize=True)
@given(times=st.lists(st.integers(0, 1000), min_size=1, max_size=60), percent=st.integers(1, 100))
def test_quantile_is_the_nearest_rank(times: list[int], percent: int) -> None:
    times.sort()
    found = _quantile(times, percent)
    assert found in times
    assert sum(one <= found for one in times) * 100 >= percent * len(times)
    assert sum(one < found for one in times) * 100 < percent * len(times)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(values=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=12))
def test_median_counts_objects(values: list[tuple[int, int]]) -> None:
    written_out = sorted(value for value, n in values for _ in range(n))
    assert _median([(float(value), n) for value, n in values]) == written_out[(len(written_out) - 1) // 2]


def test_streaming_dataset_waits_for_no_full_batch() -> None:
    with refusal(InvalidSpec, what="max_wait_s", where="streaming", given=3600.0):
        replace(SPEC, streaming=True)
    streaming = replace(SPEC, streaming=True, batch=BatchLimits(max_wait_s=0))
    made = {one.name: one for one in build_defs(datasets=[streaming]).sensors or ()}
    assert made["demo_release_batches"].minimum_interval_seconds == 5
    assert made["demo_discovery"].minimum_interval_seconds == 5
    slow = {one.name for one in build_defs(datasets=[SPEC]).sensors or ()}
    assert "demo_release_batches" not in slow


def test_every_batch_asks_for_a_release_once(instance: dg.DagsterInstance) -> None:
    sensor, cursor = release_sensor("stream"), None

    def tick() -> str:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        answer = sensor(context)
        cursor = context.cursor
        if isinstance(answer, dg.SkipReason):
            return ""
        assert isinstance(answer, dg.RunRequest)
        assert answer.tags["penstock/release"] == "stream"
        return str(answer.run_key)

    def report_sample(batch: str) -> None:
        event = dg.AssetMaterialization(dg.AssetKey(["stream", "samples"]), partition=batch)
        instance.report_runless_asset_event(event)

    def report_failure(run_key: str) -> None:
        tags = {"dagster/run_key": run_key}
        run = instance.create_run_for_job(dg.job(name="stream_release")(lambda: None), tags=tags)
        instance.report_run_failed(run)

    instance.add_dynamic_partitions(str(batch_partitions(replace(SPEC, name="stream")).name), ["a", "b"])
    assert tick() == ""
    report_sample("a")
    report_sample("b")
    first = tick()
    assert first
    assert tick() == ""
    before = cursor
    report_sample("a")
    second = tick()
    assert second not in ("", first)
    cursor = before  # the tick died before its cursor was stored: the same run key again
    assert tick() == second
    report_failure(second)
    again = tick()
    assert again == f"{second}-again"
    report_failure(again)
    assert tick() == ""
