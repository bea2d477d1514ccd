"""A dataset built anew beside another one, with other parameters."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.arrivals.batch_manifests import manifests
from assets.arrivals.make_batches import copy_batches, discover, rebuild_of
from assets.media.policy import CutPolicy, ImagePolicy
from assets.spec import DatasetSpec
from loader.dataset.log.denies import Target
from loader.errors import InvalidSpec
from loader.storage import open_store
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", splits={"train": 0.5, "validation": 0.5})
SMALL = rebuild_of(SPEC, "demo_small", policy=CutPolicy(image=ImagePolicy(short_side_px=32)))
Run = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def landing(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> Path:
    """Six photos."""
    place = tmp_path / "landing"
    place.mkdir()
    for number in range(6):
        (place / f"{number}.jpg").write_bytes(make_jpeg(96 + 2 * number, 64))
    return place


def sample_facts(version: loader.Version) -> dict[str, tuple[str, int]]:
    """raw SHA-256 -> split and height."""
    rows = version.samples().select("raw_sha256", "split", "height_px").collect().iter_rows()
    return {sha256: (split, height) for sha256, split, height in rows}


def test_rebuild_has_the_same_objects_and_splits_and_the_old_versions_stay(
    run: Run, arrive: Callable[[Path], str], root: loader.Root, landing: Path, instance: dg.DagsterInstance
) -> None:
    batch = arrive(landing)
    assert run("ingest", SPEC, batch).success
    assert run("release", SPEC).success
    before = root.open("demo@1").manifest
    assert run("take_over", SMALL).success
    (taken,) = instance.get_dynamic_partitions("demo_small_raw_batch")
    assert taken.startswith("000001-")
    assert taken != batch
    assert run("ingest", SMALL, taken).success
    assert run("release", SMALL).success
    old, new = sample_facts(root.open("demo@1")), sample_facts(root.open("demo_small@1"))
    assert {sha256: split for sha256, (split, _) in old.items()} == {
        sha256: split for sha256, (split, _) in new.items()
    }
    assert {split for split, _ in old.values()} == {"train", "validation"}
    assert ({height for _, height in old.values()}, {height for _, height in new.values()}) == ({64}, {32})
    assert root.open("demo@1").manifest == before
    # What arrives later its own discovery finds, and nothing twice.
    place = open_store(str(landing))
    assert discover(root.store, place, "demo_small") == []
    place.put("later.jpg", b"7")
    (later,) = discover(root.store, place, "demo_small")
    assert later.startswith("000002-")


def test_copy_of_batches_survives_a_kill_and_lacks_denied_objects(root: loader.Root, landing: Path) -> None:
    place = open_store(str(landing))
    discover(root.store, place, "demo")
    place.put("more.txt", b"more")
    discover(root.store, place, "demo")
    root.log.deny([Target(kind="raw", dataset="demo", value="3.jpg")], reason="ticket 7", by="legal")
    denies = root.state.denies

    kept, calls = root.store.put_if_absent, []

    def dies(key: str, data: bytes) -> object:
        calls.append(key)
        if len(calls) == 2:
            raise ConnectionError("killed")
        return kept(key, data)

    root.store.put_if_absent = dies  # type: ignore[method-assign, assignment]
    with pytest.raises(ConnectionError):
        copy_batches(root.store, "demo", "beside", denies)
    root.store.put_if_absent = kept  # type: ignore[method-assign]
    assert len(copy_batches(root.store, "demo", "beside", denies)) == 1
    assert copy_batches(root.store, "demo", "beside", denies) == []
    keys = [[item.key for item in manifest.objects] for manifest in manifests(root.store, "beside")]
    assert keys == [["0.jpg", "1.jpg", "2.jpg", "4.jpg", "5.jpg"], ["more.txt"]]


def test_rebuild_of_a_rebuild_is_of_the_first_and_none_is_of_itself() -> None:
    again = rebuild_of(SMALL, "third")
    assert (again.rebuild_of, again.split_of("a")) == ("demo", SPEC.split_of("a"))
    with refusal(InvalidSpec, what="rebuild_of", given="demo"):
        rebuild_of(SPEC, "demo")
