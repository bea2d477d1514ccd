"""Samples that trainings met as corrupt: judged again, taken out once, kept out; a wrong report throws nothing out."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest
from PIL import Image

import loader
from assets.pipeline.stages import PipelineStage
from assets.pipeline.tables import write_table
from assets.samples import quarantine
from assets.samples.quarantine import (
    MAX_LEDGERS,
    Quarantined,
    quarantine_metadata,
    quarantine_stage,
    quarantined_units,
    unjudged_ledgers,
    verdicts,
)
from assets.samples.reported_samples import judge
from assets.spec import DatasetSpec
from dagster_project.sensors.trainings import quarantine_sensor
from loader.errors import StoreError
from penstock.compute.pool import InlineCompute
from penstock.compute.pool.contract import Failure, Outcome
from penstock.stages import append_record, current_record
from resources.storage import RootResource
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

SPEC = DatasetSpec(name="demo", max_quarantine_rate=0.0)


def jpeg(number: int) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), number * 5 % 256, np.uint8)).save(sink, "JPEG")
    return sink.getvalue()


@pytest.fixture
def version(root: loader.Root) -> loader.Version:
    """40 photos; number 3 was written with bytes that no decoder takes."""
    with root.write("demo", part_samples=10) as writer:
        for number in range(40):
            data = b"no jpeg at all" if number == 3 else jpeg(number)
            writer.add(f"{number:03d}", {"jpg": data, "cls": number}, source={"unit_id": f"unit-{number}"})
    return root.open("demo@1")


def damage(root: loader.Root, version: loader.Version, key: str) -> None:
    """Flip a byte of a sample's photo where it lies."""
    ordinal = version.select("jpg", where_present=True).ordinals([key])
    (address,) = version.address(ordinal, ["jpg"])
    place = address.fields["jpg"]
    with open(os.path.join(root.url, place.path), "r+b") as file:
        file.seek(place.offset + place.nbytes // 2)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 0x10]))


def train(root: loader.Root, version: loader.Version, decode: Any = True, seed: int = 1) -> None:
    """A training that reads every sample once, and puts what it cannot read into its ledger."""
    plan = loader.plan({"p": version}, seed=seed, global_batch=8)
    with loader.Loader(
        plan, 0, 1, steps=5, framework="numpy", workers=0, decode=decode, corrupt_budget=1.0
    ) as batches:
        for _ in batches:
            pass


def stage(root: loader.Root, spec: DatasetSpec = SPEC) -> Quarantined:
    return quarantine_stage(root, InlineCompute(), spec, run_id="run-q")


def by_verdict(rows: Any) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for row in rows:
        out.setdefault(row["verdict"], set()).add(row["key"])
    return out


def test_what_is_corrupt_goes_and_what_is_not_stays(
    root: loader.Root, version: loader.Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(root, version, "007")

    def refuses(data: bytes, rng: object) -> int:
        if int(data) in (11, 12):
            raise ValueError("my own idea of corrupt")
        return int(data)

    train(root, version, decode={"cls": refuses})
    found = stage(root)
    assert by_verdict(found.rows) == {"corrupt": {"003", "007"}, "sound": {"011", "012"}}
    codes = {row["key"]: row["code"] for row in found.rows if row["verdict"] == "corrupt"}
    assert codes == {"003": "decode", "007": "checksum"}
    assert found.excluded == ("003", "007")
    assert found.version is not None
    assert found.version.name == "demo@2"
    keys = set(found.version.samples().collect()["key"])
    assert keys == {f"{n:03d}" for n in range(40)} - {"003", "007"}
    assert found.version.manifest["producer"]["dagster_run_id"] == "run-q"
    assert quarantined_units(root.store, "demo").keys() == {"unit-3"}  # cut again, 007 would be good
    shown = quarantine_metadata(root.url, found)
    assert shown["excluded"].value == 2
    assert "viewer" not in shown
    monkeypatch.setenv("PENSTOCK_VIEW_URL", "http://view.example")
    shown = quarantine_metadata(root.url, found)
    assert shown["viewer"].value == "http://view.example/v/demo/2"
    ordinals = dict(version.samples().select("key", "ordinal").collect().iter_rows())
    for key in ("003", "007", "011"):
        link = f"| [{key}](http://view.example/v/demo/1/s/{ordinals[key]}) |"
        assert link in str(shown["judged_now"].value)
    assert "011" in str(shown["judged_now"].value)


def test_again_is_no_change(root: loader.Root, version: loader.Version) -> None:
    train(root, version)
    stage(root)
    record = current_record(root.store, "demo", "quarantine", "ledgers")
    again = stage(root)
    assert again.rows == again.excluded == ()
    assert again.record == record
    assert len(root.versions("demo")) == 2
    train(root, version, seed=2)  # another training on the old version meets it too
    assert by_verdict(stage(root).rows) == {"gone": {"003"}}
    assert len(root.versions("demo")) == 2


def test_run_keeps_the_verdicts_that_another_run_appends_between(
    root: loader.Root, version: loader.Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(root, version)
    write = PipelineStage.write_table

    def write_after_another_run(self: PipelineStage, table: str, rows: Any) -> Any:
        monkeypatch.setattr(PipelineStage, "write_table", write)
        train(root, version, seed=2)
        other = stage(root)
        assert len({row["ledger"] for row in other.rows}) == 2
        return self.write_table(table, rows)

    monkeypatch.setattr(PipelineStage, "write_table", write_after_another_run)
    first = stage(root)
    assert len({row["ledger"] for row in first.rows}) == 1
    assert len({row["ledger"] for row in verdicts(root.store, "demo")}) == 2
    assert list(unjudged_ledgers(root.store, "demo")) == []


def test_without_a_ledger_nothing_happens(root: loader.Root, version: loader.Version) -> None:
    assert stage(root) == Quarantined(record=None)
    assert stage(root, DatasetSpec(name="other")) == Quarantined(record=None)


def test_killed_after_the_verdicts_the_next_run_publishes(
    root: loader.Root, version: loader.Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(root, version)
    with monkeypatch.context() as patch:
        patch.setattr(loader.Root, "exclude", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            stage(root)
    assert len(root.versions("demo")) == 1
    assert len(verdicts(root.store, "demo")) > 0
    found = stage(root)
    assert found.excluded == ("003",)
    assert found.rows == ()


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_sample_that_was_cut_again_is_not_taken_out_for_the_old_one(
    root: loader.Root, version: loader.Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(root, version, "007")
    train(root, version)
    with monkeypatch.context() as patch:
        patch.setattr(loader.Root, "exclude", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            stage(root)
    root.exclude("demo@1", ["007"], reason="by hand")
    with root.write("demo") as writer:
        writer.add("007", {"jpg": jpeg(7), "cls": 7})
    assert stage(root).excluded == ("003",)
    assert "007" in set(root.open("demo@latest").samples().collect()["key"])


def test_too_many_at_once_stop_everything(root: loader.Root) -> None:
    with root.write("demo", part_samples=10) as writer:
        for number in range(40):
            writer.add(f"{number:03d}", {"jpg": b"no" if number < 9 else jpeg(number)})
    train(root, root.open("demo@1"))
    found = stage(root)
    assert found.record is not None
    assert (found.record.verdict, found.excluded) == ("failed", ())
    assert "9 of 40" in found.record.reason
    assert len(root.versions("demo")) == 1
    assert stage(root).record == found.record  # it stays so, and is written once
    assert len(stage(root, replace(SPEC, max_quarantine_rate=0.05)).excluded) == 9


def test_store_that_does_not_answer_says_nothing_about_a_sample(
    root: loader.Root, version: loader.Version, tmp_path: Path
) -> None:
    train(root, version)
    (address,) = version.address(version.select("jpg").ordinals(["003"]), ["jpg"])
    shard = Path(root.url) / address.fields["jpg"].path
    shard.rename(tmp_path / "away")
    with pytest.raises(StoreError):
        stage(root)
    assert len(list(unjudged_ledgers(root.store, "demo"))) > 0
    (tmp_path / "away").rename(shard)
    assert stage(root).excluded == ("003",)


class Evicted(InlineCompute):
    """An engine with a failure of its own, which says nothing about a sample."""

    def map(self, function: Any, units: Any, **options: Any) -> Any:
        code: Any = "evicted"
        return [Outcome(error=Failure(code=code, reason="the machine went away")) for _ in units]


def test_failure_that_nobody_knows_condemns_no_sample(version: loader.Version) -> None:
    with refusal(StoreError, what="judgement", given="the machine went away"):
        judge(version, {"005": ["jpg"]}, Evicted(), timeout_s=PATIENCE_S)


def test_other_datasets_and_damaged_ledgers_stop_nobody(root: loader.Root, version: loader.Version) -> None:
    with root.write("other") as writer:
        for number in range(8):
            writer.add(f"{number:03d}", {"jpg": b"no" if number == 3 else jpeg(number)})
    train(root, root.open("other@1"))
    root.store.put("ledgers/p-1/0-of-1/x.jsonl", b"{")
    root.store.put("ledgers/p-1/0-of-1/y.jsonl", b"")
    train(root, version)
    found = stage(root)
    assert by_verdict(found.rows).keys() == {"corrupt", "elsewhere", "unreadable"}
    assert found.excluded == ("003",)
    assert list(unjudged_ledgers(root.store, "demo")) == []
    assert "003" in set(root.open("other@latest").samples().collect()["key"])
    assert {row["key"] for row in verdicts(root.store, "demo") if row["verdict"] == "elsewhere"} == {""}
    assert stage(root, replace(SPEC, name="other")).excluded == ("003",)


DAMAGED_LINES = {
    "a step beyond a float": {"step": 1e400},
    "a step beyond 64 bits": {"step": 2**64 - 1},
    "a large float as a step": {"step": 1e300},
    "half a character in the key": {"key": "\ud800"},
    "half a character in the error": {"error": "\udfff"},
    "half a character in a field": {"fields": {"\ud800": {}}},
    "fields that are not names": {"fields": [["jpg"], ["cls"]]},
    "a key without an end": {"key": "k" * 100_000},
    "a version that is a list": {"version_id": []},
}


@pytest.mark.parametrize("what", [*DAMAGED_LINES, "deep brackets", "too large"])
def test_one_line_of_one_ledger_ends_nobodys_run(
    root: loader.Root, version: loader.Version, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(root, version)
    ledger = root.store.get(next(unjudged_ledgers(root.store, "demo"))).data
    line = json.loads(bytes(ledger).splitlines()[0]) | DAMAGED_LINES.get(what, {})
    bad = b'{"key":' * 5000 if what == "deep brackets" else json.dumps(line).encode()
    if what == "too large":
        monkeypatch.setattr(quarantine, "_LEDGER_BYTES", len(ledger) + 10)
        bad = b" " * len(ledger)
    root.store.put("ledgers/p-1/0-of-1/0.jsonl", bad + b"\n" + ledger)
    found = stage(root)
    assert found.excluded == ("003",)
    told = [row for row in verdicts(root.store, "demo") if row["verdict"] == "unreadable"]
    assert [(row["ledger"], row["line"]) for row in told] == [("ledgers/p-1/0-of-1/0.jsonl", 0)]
    assert told[0]["reason"]
    assert list(unjudged_ledgers(root.store, "demo")) == []


def test_clip_is_decoded_to_its_end(
    root: loader.Root, make_video: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder of the loader's shows some frames; what is broken in another one is found here."""
    whole = make_video(list(range(0, 4000, 40)))
    torn = bytearray(whole)
    start = torn.rindex(b"mdat") + 4
    torn[start + (len(torn) - start) // 2 : start + (len(torn) - start) // 2 + 200] = bytes(200)
    with root.write("demo") as writer:
        writer.add("whole", {"mp4": whole})
        writer.add("torn", {"mp4": bytes(torn)})
    found = judge(
        root.open("demo@1"), {"whole": ["mp4"], "torn": ["mp4"]}, InlineCompute(), timeout_s=PATIENCE_S
    )
    assert {key: one.verdict for key, one in found.items()} == {"whole": "sound", "torn": "corrupt"}


def test_sensor_asks_once_a_day_until_it_is_judged(
    root: loader.Root, version: loader.Version, instance: dg.DagsterInstance
) -> None:
    sensor = quarantine_sensor(SPEC)

    def tick() -> Any:
        context = dg.build_sensor_context(instance=instance, resources={"root": RootResource(url=root.url)})
        return sensor(context)

    assert isinstance(tick(), dg.SkipReason)
    train(root, version)
    first, second = tick(), tick()
    assert isinstance(first, dg.RunRequest)
    assert first.run_key == second.run_key
    stage(root)
    assert isinstance(tick(), dg.SkipReason)
    assert MAX_LEDGERS >= 1


def test_asset_publishes_and_ingest_skips_the_unit(
    run: Any, root: loader.Root, landing: Path, arrive: Callable[[Path], str], check_results: Any
) -> None:
    spec = DatasetSpec(name="demo", max_reject_rate=1.0)
    first = arrive(landing)
    assert run("ingest", spec, first).success
    assert run("release", spec).success
    version = root.open("demo@1")
    table = version.samples().collect()
    key, unit, raw = table.filter(table["kind"] == "image").select("key", "unit_id", "raw_key").row(0)
    damage(root, version, key)
    view = version.select("jpg", where_present=True)
    plan = loader.plan({"p": view}, seed=1, global_batch=2)
    with loader.Loader(plan, 0, 1, steps=1, framework="numpy", workers=0, corrupt_budget=1.0) as batches:
        list(batches)
    result = run("quarantine", spec)
    assert result.success
    assert check_results(result) == {"within_limits": True}
    assert set(root.open("demo@latest").samples().collect()["key"]) == set(table["key"]) - {key}

    # Bytes that had changed are good when they are cut again; of bytes that never decoded the verdict is "decode".
    record = current_record(root.store, "demo", "quarantine", "ledgers")
    assert record is not None
    rows = [row | ({"code": "decode"} if row["key"] == key else {}) for row in verdicts(root.store, "demo")]
    files = {"quarantine": write_table(root.store, "demo", "quarantine", "ledgers", rows)}
    append_record(root.store, replace(record, files=files))
    assert quarantined_units(root.store, "demo").keys() == {unit}
    os.utime(landing / raw, (1, 1))  # another etag: the object lands again, and no version has a sample of it
    again = arrive(landing)
    assert again != first
    assert run("ingest", spec, again).success
    samples = current_record(root.store, "demo", "samples", again)
    assert samples is not None
    assert samples.body["exclude"].keys() == {key}
    assert samples.body["exclude"][key].startswith("quarantined: decode")
    assert samples.counts["samples"] == 0
