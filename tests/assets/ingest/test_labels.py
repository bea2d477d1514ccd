"""Class numbers keep their meaning, whoever made the versions in between."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.ingest.cut import all_class_names
from assets.ingest.published import published_labels
from assets.spec import DatasetSpec
from loader.errors import InvalidSpec
from tests.refusals import refusal


def test_version_made_by_hand_loses_no_class_name(root: loader.Root) -> None:
    assert published_labels(root, "demo") == []
    with root.write("demo", producer={"labels": ["dog", "cat"]}) as writer:
        for number in range(3):
            writer.add(f"{number}", {"cls": 0})
    root.exclude("demo@1", ["0"], reason="not wanted")
    assert published_labels(root, "demo") == ["dog", "cat"]
    assert all_class_names([], {}, published_labels(root, "demo")) == ["dog", "cat"]
    root.retire("demo@1", reason="wrong")
    root.retire("demo@2", reason="wrong")
    assert published_labels(root, "demo") == []


Run = Callable[..., dg.ExecuteInProcessResult]
SPEC = DatasetSpec(name="demo")


@pytest.fixture
def photos(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> Path:
    """Photos in folders that are not labels, such as the day of the recording."""
    place = tmp_path / "photos"
    for number, day in enumerate(("monday", "monday", "tuesday")):
        path = place / day / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_jpeg(50 + number, 40))
    return place


def test_folder_is_no_label_unless_the_dataset_says_so(
    run: Run, arrive: Callable[[Path], str], root: loader.Root, photos: Path
) -> None:
    assert run("ingest", SPEC, arrive(photos), photos).success
    assert run("release", SPEC).success
    version = root.open("demo@1")
    assert "cls" not in version.fields
    assert "label" not in version.manifest["columns"]
    assert published_labels(root, "demo") == []


def test_folder_is_the_label_on_request(
    run: Run, arrive: Callable[[Path], str], root: loader.Root, photos: Path
) -> None:
    spec = replace(SPEC, label_from="folder")
    assert run("ingest", spec, arrive(photos), photos).success
    assert run("release", spec).success
    version = root.open("demo@1")
    assert sorted(version.samples().collect()["label"]) == ["monday", "monday", "tuesday"]
    assert published_labels(root, "demo") == ["monday", "tuesday"]
    assert "cls" in version.fields


def test_labelled_dataset_that_does_not_say_where_labels_come_from_is_refused(
    run: Run,
    arrive: Callable[[Path], str],
    root: loader.Root,
    photos: Path,
    tmp_path: Path,
    make_jpeg: Callable[..., bytes],
    failure_text: Callable[[dg.ExecuteInProcessResult], str],
) -> None:
    """As earlier releases published it, which took each folder as a label."""
    spec = replace(SPEC, label_from="folder")
    assert run("ingest", spec, arrive(photos), photos).success
    assert run("release", spec).success
    more = tmp_path / "more"
    (more / "friday").mkdir(parents=True)
    (more / "friday/a.jpg").write_bytes(make_jpeg(70, 44))
    batch = arrive(more)
    stopped = run("ingest", SPEC, batch, more)
    assert not stopped.success
    assert "photos of demo have the classes 'monday', 'tuesday'" in failure_text(stopped)
    assert "label_from='folder'" in failure_text(stopped)
    assert run("ingest", spec, batch, more).success
    assert run("release", spec).success
    assert published_labels(root, "demo") == ["monday", "tuesday", "friday"]


def test_label_source_is_checked() -> None:
    with refusal(InvalidSpec, what="label_from", given="path"):
        DatasetSpec(name="demo", label_from="path")  # type: ignore[arg-type]
