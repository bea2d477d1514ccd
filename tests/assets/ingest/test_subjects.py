"""`split_by="subject"`: a subject's samples say whose they are, stay in one split, and are taken down by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.arrivals.batch_manifests import manifests
from assets.arrivals.make_batches import discover
from assets.spec import DatasetSpec
from loader.dataset.log.denies import Target
from loader.storage import open_store
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.takedown_run import run_takedown

SPEC = DatasetSpec(
    name="demo", label_from="folder", splits={"train": 0.5, "validation": 0.5}, split_by="subject"
)
SUBJECTS = [f"patient-{number:04d}" for number in range(6)]


@pytest.fixture
def landing(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> Path:
    """Two photos of each subject in a folder of its name, and one that lies in no folder."""
    place = tmp_path / "landing"
    for number, subject in enumerate(SUBJECTS):
        (place / subject).mkdir(parents=True)
        for photo in range(2):
            (place / subject / f"{photo}.jpg").write_bytes(make_jpeg(64 + 2 * number, 48 + 2 * photo))
    (place / "nobody.jpg").write_bytes(make_jpeg(32, 32))
    return place


def test_subjects_are_known_split_whole_and_removed_by_a_takedown(
    run: Callable[..., Any], arrive: Callable[[Path], str], root: loader.Root, landing: Path
) -> None:
    assert run("ingest", SPEC, arrive(landing)).success
    assert run("release", SPEC).success
    rows = root.open("demo@1").samples().collect().to_dicts()
    told = {row["raw_key"]: row["subject"] for row in rows}
    assert told == {
        "nobody.jpg": None,
        **{f"{subject}/{photo}.jpg": subject for subject in SUBJECTS for photo in range(2)},
    }
    splits = {subject: {row["split"] for row in rows if row["subject"] == subject} for subject in SUBJECTS}
    assert all(len(of) == 1 for of in splits.values())
    assert set.union(*splits.values()) == {"train", "validation"}

    gone = SUBJECTS[3]
    n = root.log.deny([Target(kind="subject", value=gone)], "ticket 5", "privacy desk").n
    ran = run_takedown(root, n, apply=True)
    assert (ran.samples, ran.new, ran.retired) == ({"demo": 2}, ["demo@2"], ["demo@1"])
    left = root.open("demo@2").samples().collect()["subject"].to_list()
    assert sorted(filter(None, left)) == sorted(2 * [one for one in SUBJECTS if one != gone])
    # Its name is not a class any more, and every other class keeps its number.
    names = root.open("demo@2").manifest["producer"]["labels"]
    assert gone not in names
    assert [name for name in names if name in SUBJECTS] == [one for one in SUBJECTS if one != gone]
    # What is not clean: the raw objects at their source, and the version before, which no collector has taken yet.
    retired = root.state.versions("demo")[0].manifest
    unclean = [place for place in prove(root, n)["places"] if not place["clean"]]
    assert {place["check"] for place in unclean} == {"absent", "raw"}
    assert retired in [place.get("path") for place in unclean]  # its classes name the subject
    # The subject's next photo is left where it is; those of others are published.
    for subject in (gone, SUBJECTS[0]):
        (landing / subject / "2.jpg").write_bytes((landing / subject / "1.jpg").read_bytes() + b"\0")
    place, denies = open_store(str(landing)), root.state.denies
    (batch,) = discover(root.store, place, "demo", denies=denies, by_subject=True)
    assert run("ingest", SPEC, batch).success
    assert run("release", SPEC).success
    now = root.open("demo@latest")
    left = now.samples().collect()
    assert gone not in left["subject"].to_list()
    assert left["subject"].to_list().count(SUBJECTS[0]) == 3
    assert now.manifest["producer"]["labels"] == names
    assert [
        item.key for one in manifests(root.store, "demo") for item in one.objects if gone in item.key
    ] == []
