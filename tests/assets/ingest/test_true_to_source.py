"""A mistake of ours in the cut stops the batch, by name, in the data; a single odd object only costs itself."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from PIL import Image

import loader
from assets.media.image import cut as image
from assets.media.image.open import read_heif
from assets.spec import DatasetSpec
from penstock.stages import current_record, partitions

SPEC = DatasetSpec(name="demo")
Run = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def rotated_place(tmp_path: Path, half_red_blue: Callable[[int, int], Image.Image]) -> Path:
    """A place with three photos, one of them to be turned by its EXIF."""
    read_heif()  # registers its plug-in with Pillow; a warning of it would come in the middle of a test
    place = tmp_path / "turned"
    place.mkdir()
    for number, orientation in enumerate((1, 1, 3)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        half_red_blue(64 + 2 * number, 64 + 2 * number).save(place / f"{number}.jpg", exif=exif, quality=95)
    return place


def without_turning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "upright", lambda picture, pending: picture)


def test_mistake_in_the_cut_stops_the_batch_by_its_name(
    run: Run,
    arrive: Callable[[Path], str],
    root: loader.Root,
    rotated_place: Path,
    failure_text: Callable[[dg.ExecuteInProcessResult], str],
    check_results: Callable[[dg.ExecuteInProcessResult], dict[str, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = arrive(rotated_place)
    with monkeypatch.context() as planted:
        without_turning(planted)
        stopped = run("ingest", SPEC, batch, rotated_place)
    assert not stopped.success
    assert check_results(stopped)["true_to_source"] is False
    assert "1 of 3 objects" in failure_text(stopped)
    assert "rotation_ignored (1)" in failure_text(stopped)
    assert stopped.asset_materializations_for_node("demo__units") == []
    for stage in ("samples", "version"):  # later runs, by hand, do not get past the record either
        assert not run([stage], SPEC, batch if stage == "samples" else None, rotated_place).success
    assert partitions(root.store, "demo", "samples") == []

    assert run("ingest", SPEC, batch, rotated_place).success  # the mistake is mended: the batch is cut again
    assert run("release", SPEC).success
    assert len(root.open("demo@1")) == 3


def test_dataset_may_go_on_without_the_objects_that_came_out_wrong(
    run: Run,
    arrive: Callable[[Path], str],
    root: loader.Root,
    rotated_place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = DatasetSpec(name="demo", max_untrue_rate=0.5, max_reject_rate=0.5)
    batch = arrive(rotated_place)
    without_turning(monkeypatch)
    assert run("ingest", spec, batch, rotated_place).success
    assert run("release", spec).success
    assert len(root.open("demo@1")) == 2
    record = current_record(root.store, "demo", "units", batch)
    assert record is not None
    assert record.counts["rejected"] == 1
