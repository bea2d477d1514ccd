"""Whatever a training writes first makes an empty place a root, so that its first checkpoint can be saved there."""

from collections.abc import Callable
from pathlib import Path

import pytest

import loader
from loader.dataset.reading.read_faults import ReadFault
from loader.dataset.shards.address import SampleAddress
from loader.errors import NotARoot, StoreError
from loader.run.batch.substitution import Substitution
from loader.run.ledger import Ledger
from loader.storage import open_store
from penstock.nodes.cases import CaseBook
from penstock.nodes.node_check import CheckStatus, NodeCheckResult, put_failures
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.run_places import check_places, place_notes
from penstock.train.record_writer import RunRecord, put_faults
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import submit
from penstock.train.trackers.feed import TrackedSteps
from tests.penstock.train.conftest import Rank
from tests.refusals import refusal
from tests.servers.patience import until


def make_plan(root: str) -> loader.Plan:
    return loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)


def keep_trail(root: str, place: str) -> None:
    with loader.Loader(make_plan(root), steps=2, trail=loader.Trail(loader.Root(place), "big-7")) as batches:
        list(batches)


def follow(root: str, place: str) -> None:
    loader.follow(loader.Root(place), make_plan(root), run="big-7", every=10).close()


def substitute(root: str, place: str) -> None:
    plan = make_plan(root)
    address = SampleAddress(
        key="000", version="points@1", version_id="v-0", part="p", row=0, ordinal=0, fields={}
    )
    entry = Substitution(
        step=1,
        slot=0,
        source="points",
        epoch=0,
        position=0,
        attempt=1,
        stage="decode",
        error="planted",
        address=address,
        substitute="001",
        substitute_ordinal=1,
    )
    ledger = Ledger(plan, loader.World(rank=0, world_size=1), {"points": open_store(place)})
    ledger.write([entry])
    ledger.close()


def record_start(root: str, place: str) -> None:
    record = RunRecord(open_store(place), "big-7", {"launcher": "local"})
    record.event("ranks_up", 0)
    record.close()


def record_fault(root: str, place: str) -> None:
    fault = ReadFault("data/a.tar", 0, 10, "00000000", "11111111", place, "read", 1)
    put_faults(RunFolder(open_store(place), "big-7"), {"node": "m1", "attempt": 1, "rank": 0}, [fault])


def fail_check(root: str, place: str) -> None:
    result = NodeCheckResult(check="gpu", status=CheckStatus.FAILED, text="lost")
    put_failures(open_store(place), "m1", [result])


WRITERS: dict[str, Callable[[str, str], object]] = {
    "plan": lambda root, place: make_plan(root).save(loader.Root(place)),
    "trail": keep_trail,
    "follow": follow,
    "ledger": substitute,
    "spec": lambda root, place: RunFolder(open_store(place), "big-7").put_spec(
        RunSpec(run="big-7", command=("true",), record=place)
    ),
    "start": record_start,
    "fault": record_fault,
    "tracker": lambda root, place: TrackedSteps(place, "big-7", "mlflow").put(3),
    "case": lambda root, place: CaseBook(open_store(place)).open("m1", "slow", {}, "ann"),
    "alert": lambda root, place: CaseBook(open_store(place)).put_alert("slow"),
    "check": fail_check,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_first_writer_makes_an_empty_place_a_root(root: str, tmp_path: Path, writer: str) -> None:
    place = str(tmp_path / "new")
    WRITERS[writer](root, place)
    new = loader.Root(place)
    assert len(list(new.store.list(""))) > 1, "the writer wrote"
    assert new.datasets() == [], "it is a root, without versions"


@pytest.mark.parametrize("writer", WRITERS)
def test_place_that_holds_other_things_stays_as_it_is(root: str, tmp_path: Path, writer: str) -> None:
    place = tmp_path / "other"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    WRITERS[writer](root, str(place))
    assert not (place / "penstock.json").exists()
    assert len(list(open_store(place).list(""))) > 1, "the record is there all the same"


def test_record_of_an_earlier_release_becomes_a_root(root: str, tmp_path: Path) -> None:
    """Plans and trails, written without a root."""
    place = tmp_path / "new"
    keep_trail(root, str(place))
    (place / "penstock.json").unlink()
    loader.Root(place).create()
    assert loader.Root(place).datasets() == []


def test_run_saves_into_the_new_place_of_its_record(
    root: str, tmp_path: Path, start: Callable[..., list[Rank]]
) -> None:
    place = str(tmp_path / "runs")
    places = {"PENSTOCK_RECORD": place, "PENSTOCK_CHECKPOINTS": place}
    (rank,) = start(1, "--data", root, "--steps", 5, "--step-s", 0, **places)
    assert rank.status() == 0, rank.text
    assert [key.key for key in open_store(place).list("checkpoints/") if key.key.endswith("5.json")]


def test_run_that_cannot_save_fails_before_its_first_step(
    root: str, tmp_path: Path, start: Callable[..., list[Rank]]
) -> None:
    place = tmp_path / "other"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    (rank,) = start(1, "--data", root, "--steps", 5, "--step-s", 0, PENSTOCK_CHECKPOINTS=str(place))
    assert rank.status() == 1
    assert NotARoot.__name__ in rank.text
    assert "took" not in rank.text


def test_finished_run_that_is_started_again_says_so(root: str, start: Callable[..., list[Rank]]) -> None:
    (rank,) = start(1, "--steps", 3, "--step-s", 0)
    assert rank.status() == 0, rank.text
    assert "has ended before" not in rank.text
    (rank,) = start(1, "--steps", 3, "--step-s", 0)
    until(lambda: "has ended before" in rank.text, lambda: rank.text)
    assert rank.status() == 0, rank.text
    assert "took" not in rank.text


NO_RUN = ("true",)


def make_spec(place: Path, checkpoints: Path | None = None) -> RunSpec:
    saved = "" if checkpoints is None else str(checkpoints)
    return RunSpec(run="big-7", command=NO_RUN, record=str(place), checkpoints=saved)


def test_new_place_is_named_and_a_root_is_not(root: str, tmp_path: Path) -> None:
    assert place_notes(make_spec(Path(root))) == []
    (note,) = place_notes(make_spec(tmp_path / "typo"))
    assert note.startswith(f"record: {tmp_path / 'typo'} is new")
    (note,) = place_notes(make_spec(Path(root), tmp_path / "typo"))
    assert note.startswith(f"checkpoints: {tmp_path / 'typo'} is new")


def test_places_are_checked_without_a_trace(root: str, tmp_path: Path) -> None:
    keys = [info.key for info in open_store(root).list("")]
    check_places(make_spec(Path(root)))
    check_places(make_spec(tmp_path / "new" / "runs"))
    assert [info.key for info in open_store(root).list("")] == keys
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["record", "checkpoints"])
def test_place_that_takes_no_object_is_refused_before_a_start(root: str, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    refused = tmp_path / "file" / "runs"
    spec = make_spec(refused, Path(root)) if place == "record" else make_spec(Path(root), refused)
    launcher = LocalRuns(root)
    with refusal(StoreError, what="object", given="ENOTDIR", within="file/runs"):
        submit(spec, launcher)
    with refusal(StoreError, what="object", given="ENOTDIR", within="file/runs"):
        check_places(spec)
    assert launcher.status("big-7").state == "unknown"


def test_place_of_checkpoints_that_holds_other_things_is_refused_before_a_start(
    root: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    place = tmp_path / "other"
    with refusal(NotARoot, what="penstock.json", where=place) as at_start:
        submit(make_spec(Path(root), place), LocalRuns(root))
    with refusal(NotARoot, what="penstock.json", where=place) as at_check:
        check_places(make_spec(Path(root), place))
    assert "notes.txt" in str(at_start.value.given)
    assert "notes.txt" in str(at_check.value.given)
    assert RunFolder(open_store(root), "big-7").read_spec() is None
