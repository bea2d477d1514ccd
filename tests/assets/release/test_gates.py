"""The gate is in the data: whatever Dagster is asked to run, a batch that failed never reaches a version."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

import loader
from assets.checks import CheckResult, Expectation, audio_rate
from assets.gate_settings import SUITE, Gate
from assets.pipeline.stages import require_published
from assets.release.version_asset import publish_batches
from assets.spec import DatasetSpec, Feature, Filter
from loader.errors import Fenced, StageNotPublished
from penstock.stages import current_record, partitions
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", features=(Feature(name="picture"),))
DRIFT = dict.fromkeys(("blank", "drift", "agreement", "splits", "protected"), True)
AFTER_MEDIA = ("units", "feature_picture", "samples")
Run = Callable[..., dg.ExecuteInProcessResult]
Told = Callable[[dg.ExecuteInProcessResult], str]
Checks = Callable[[dg.ExecuteInProcessResult], dict[str, bool]]
Arrive = Callable[[Path], str]
Jpeg = Callable[..., bytes]
Numbers = Callable[[], list[int]]


def speech_rate(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
    return audio_rate(table.filter(pl.col("kind") == "audio"), declared_hz=(16_000,))


@pytest.fixture
def bad(tmp_path: Path, make_jpeg: Jpeg) -> Path:
    """A place with a good photo and a damaged one."""
    place = tmp_path / "bad"
    (place / "cats").mkdir(parents=True)
    (place / "cats/new.jpg").write_bytes(make_jpeg(50, 40))
    (place / "cats/empty.jpg").write_bytes(b"")
    return place


def test_failed_media_check_stops_every_way_round_it(
    run: Run,
    arrive: Arrive,
    root: loader.Root,
    bad: Path,
    numbers: Numbers,
    failure_text: Told,
    check_results: Checks,
) -> None:
    batch = arrive(bad)
    stopped = run("ingest", SPEC, batch, bad)
    assert not stopped.success
    assert check_results(stopped) == {"readable": False}
    assert (
        "1 of 2 objects are unreadable; the limit is 0.0% (max_reject_rate): 'cats/empty.jpg'"
        in failure_text(stopped)
    )
    assert stopped.asset_materializations_for_node("demo__media") == []

    for stage in AFTER_MEDIA:  # nothing of Dagster's forbids these runs: the record does
        alone = run([stage], SPEC, batch, bad)
        assert not alone.success
        assert "StageNotPublished" not in failure_text(alone)  # a dg.Failure in words, not an exception
    assert "failed its check (attempt 1" in failure_text(run(["units"], SPEC, batch, bad))
    assert not run(list(AFTER_MEDIA), SPEC, batch, bad).success
    for what in ("release", ["version"]):
        assert not run(what, SPEC).success

    again = run("ingest", SPEC, batch, bad)
    assert not again.success
    assert check_results(again) == {"readable": False}
    record = current_record(root.store, "demo", "media", batch)
    assert record is not None
    assert (record.r, record.run_id) == (1, stopped.run_id)  # the verdict stands
    for stage in AFTER_MEDIA:
        assert partitions(root.store, "demo", stage) == []
    assert not root.state.txns
    assert numbers() == []

    allowed = replace(SPEC, max_reject_rate=0.5)  # the owner of the dataset may decide otherwise
    assert run("ingest", allowed, batch, bad).success
    assert run("release", allowed).success
    assert len(root.open("demo@1")) == 1


def test_backfill_with_one_bad_batch(
    run: Run,
    arrive: Arrive,
    root: loader.Root,
    landing: Path,
    bad: Path,
    tmp_path: Path,
    make_jpeg: Jpeg,
    numbers: Numbers,
) -> None:
    """Stage by stage over all batches, as a backfill goes, whatever became of the stage before."""
    more = tmp_path / "more"
    (more / "dogs").mkdir(parents=True)
    (more / "dogs/a.jpg").write_bytes(make_jpeg(48, 48))
    assert run("ingest", SPEC, first := arrive(landing)).success
    assert run("release", SPEC).success
    batches = {arrive(place): place for place in (bad, more)}
    failed, good = batches
    for stage in ("raw_objects", "media", *AFTER_MEDIA):
        fine = {batch: run([stage], SPEC, batch, place).success for batch, place in batches.items()}
        assert fine == {failed: stage == "raw_objects", good: True}
    release = run("release", SPEC)
    assert release.success
    (event,) = release.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == good
    assert [root.open(f"demo@{n}").manifest["producer"]["batch"] for n in numbers()] == [first, good]
    table = root.open("demo@latest").samples().collect()
    assert not set(table["raw_uri"]) & {path.as_posix() for path in bad.rglob("*.jpg")}


def test_batch_whose_media_fail_after_its_samples_were_made(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path, numbers: Numbers, failure_text: Told
) -> None:
    whole = (landing / "photos/dogs/狗.jpg").read_bytes()
    (landing / "photos/dogs/broken.jpg").write_bytes(whole[: len(whole) // 2])
    batch = arrive(landing)
    assert run("ingest", replace(SPEC, max_reject_rate=1.0), batch).success
    assert not run("ingest", SPEC, batch).success  # the dataset's owner allows no damage any more
    assert require_published(root.store, "demo", "samples", batch).r == 1  # of what was there before
    release = run("release", SPEC)
    assert not release.success
    assert "stage media of demo" in failure_text(release)
    assert not run(["samples"], SPEC, batch).success
    assert not run("release", SPEC).success
    assert numbers() == []


def test_samples_of_other_media_than_the_current_ones(
    run: Run, arrive: Arrive, landing: Path, numbers: Numbers, failure_text: Told
) -> None:
    """Units that were cut before an object was refused do not bring it in."""
    lenient = replace(SPEC, max_reject_rate=1.0)
    batch = arrive(landing)
    assert run("ingest", lenient, batch).success
    (landing / "photos/dogs/狗.jpg").write_bytes(b"overwritten")
    assert run(["raw_objects", "media"], lenient, batch).success
    stale = run(["samples"], lenient, batch)
    assert not stale.success
    assert "materialize [demo, units] again" in failure_text(stale)
    assert run("ingest", lenient, batch).success
    assert run("release", lenient).success


def test_failed_samples_audit(
    run: Run, arrive: Arrive, root: loader.Root, bad: Path, numbers: Numbers, check_results: Checks
) -> None:
    """The limit was lowered between two stages. By hand it cannot be published either."""
    batch = arrive(bad)
    lenient = replace(SPEC, max_reject_rate=0.5)
    assert run(["raw_objects", "media", "units", "feature_picture"], lenient, batch, bad).success
    stopped = run(["samples"], SPEC, batch, bad)
    assert not stopped.success
    assert check_results(stopped) == {"accounted_for": False}
    assert not run("release", lenient).success
    assert not run("release", SPEC).success
    assert [txn.status for txn in root.state.txns.values()] == ["aborted"]
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    parts = [loader.Part.from_json(body) for body in record.body["parts"]]
    with pytest.raises(Fenced):
        root.publish("demo", parts)
    assert numbers() == []
    assert run("ingest", lenient, batch, bad).success  # cut anew, in a transaction of its own
    assert run("release", lenient).success
    assert numbers() == [1]


def test_batch_at_the_wrong_rate_is_held_back_and_another_goes(
    run: Run,
    arrive: Arrive,
    root: loader.Root,
    landing: Path,
    tmp_path: Path,
    make_wav: Callable[..., bytes],
    numbers: Numbers,
    failure_text: Told,
    check_results: Checks,
) -> None:
    spec = replace(SPEC, gate=Gate(suite=SUITE, checks={"audio_rate": speech_rate}))
    slow = tmp_path / "slow"
    (slow / "speech").mkdir(parents=True)
    (slow / "speech/half.wav").write_bytes(make_wav(2.0, 8000))
    wrong = arrive(slow)
    assert run("ingest", spec, wrong, slow).success  # sound in itself; the gate sees the rate
    assert run("ingest", spec, good := arrive(landing)).success
    stopped = run("release", spec)
    assert not stopped.success
    told = {**DRIFT, "expectations": True, "audio_rate": False}
    assert check_results(stopped) == told | {
        "refresh_gate": True
    }  # of another asset, which has nothing to publish
    assert "1 of 1 audio units (100.0%) were not recorded at 16000 Hz" in failure_text(stopped)
    assert "(penstock approve demo)" in failure_text(stopped)
    assert numbers() == []
    done = run("release", spec)
    assert done.success
    (event,) = done.asset_materializations_for_node("demo__version")
    assert (event.metadata["published_batches"].value, event.metadata["held_back_batches"].value) == (
        good,
        wrong,
    )
    for what in ("release", ["version"]):
        assert not run(what, spec).success
    assert run("ingest", spec, wrong, slow).success
    assert not run("release", spec).success
    with refusal(StageNotPublished, what="gate", where="demo", given=["audio_rate"]):
        publish_batches(root, "demo", "by hand", spec.gate)
    assert numbers() == [1]
    assert root.open("demo@1").manifest["producer"]["batch"] == good


@pytest.mark.parametrize("how", ["expectation", "raises"])
def test_planted_in_the_gate(
    run: Run,
    arrive: Arrive,
    landing: Path,
    numbers: Numbers,
    failure_text: Told,
    check_results: Checks,
    how: str,
) -> None:
    def raise_error(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        raise ZeroDivisionError("oh")

    planted = Expectation(kind="between", column="luma_mean_ratio", low=2.0)
    gate, check, said = {
        "expectation": (
            Gate(suite=(*SUITE, planted)),
            "expectations",
            "between(luma_mean_ratio, 2.0, None): failed",
        ),
        "raises": (Gate(checks={"mine": raise_error}), "mine", "could not run: ZeroDivisionError: oh"),
    }[how]
    spec = replace(SPEC, gate=gate)
    batch = arrive(landing)
    assert run("ingest", spec, batch).success
    for _ in range(2):
        stopped = run("release", spec)
        assert not stopped.success
        assert not check_results(stopped)[check]
        told = failure_text(stopped)
        assert said in told, told[:1500]
        # No one can approve a check that could not run.
        assert ("(penstock approve demo)" in told) == (how == "expectation")
        assert not stopped.asset_materializations_for_node("demo__version")
    assert numbers() == []
    if how == "expectation":  # (a check that could not run is tried again; one that failed gave the parts up)
        assert "its parts were given up" in failure_text(run("release", SPEC))
        assert run("ingest", SPEC, batch).success
    assert run("release", SPEC).success  # another gate is another question
    assert numbers() == [1]


def test_filters_that_leave_nothing_of_a_batch(
    run: Run, arrive: Arrive, landing: Path, numbers: Numbers, failure_text: Told
) -> None:
    strict = replace(SPEC, filters=(Filter(column="kind", allowed=frozenset({"none", "of", "these"})),))
    ingest = run("ingest", strict, arrive(landing))
    assert ingest.success, failure_text(ingest)
    release = run("release", strict)
    assert not release.success
    assert "row_count" in failure_text(release)
    assert numbers() == []
