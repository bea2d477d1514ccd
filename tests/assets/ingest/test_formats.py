"""The suite of formats in the pipeline: a batch has the samples of an import, and a damaged object costs itself alone.

`tests/penstock/formats/test_golden_parts.py` holds the bytes of the same batches.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.arrivals.joined_objects import raw_store
from assets.arrivals.make_batches import discover
from assets.gate_settings import Gate
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.samples.samples_asset import samples_stage
from assets.sources import Source, in_place_formats
from assets.spec import DatasetSpec
from fuzz.place_case import OPTIONS
from fuzz.places import PLACE_FORMATS, objects_of
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.formats.importer import NO_OPTIONS
from penstock.formats.registry import FORMATS
from penstock.stages import StageRecord
from tests.penstock.formats.builders.places import PLACES
from tests.penstock.formats.conftest import fill_all
from tests.penstock.formats.versions import OF_PLACE, contents, import_version

ALL = sorted({*PLACE_FORMATS, *PLACES})
Publish = Callable[[loader.Root, StageRecord], loader.Version]


@pytest.fixture(scope="session")
def format_places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = fill_all(tmp_path_factory.mktemp("places"))
    return folder


class Batch:
    """The stages of a batch with all of a place, in this process."""

    def __init__(self, root: loader.Root, place: Path, name: str, keep: Any = "copy") -> None:
        root.create()
        format = name.partition(".")[0]
        source = Source(format=format, keep=keep, fields=OPTIONS.get(name, NO_OPTIONS).fields)
        self.root, self.store = root, raw_store(open_store(str(place)), source)
        self.spec = DatasetSpec(
            name="demo", sources=(source,), gate=Gate(thresholds=None), max_reject_rate=1.0
        )
        (batch,) = discover(root.store, self.store, "demo", source=source)
        self.how: dict[str, Any] = {"partition": batch, "run_id": "r"}
        land(root.store, self.store, dataset="demo", **self.how)

    def audit(self) -> tuple[StageRecord, dict[str, str]]:
        """The record of the audit, and key -> outcome of refused objects."""
        record, _, refused = media_stage(self.root, self.store, InlineCompute(), self.spec, **self.how)
        return record, {row["key"]: row["outcome"] for row in refused}

    def samples(self) -> StageRecord:
        self.audit()
        units_stage(self.root, self.store, InlineCompute(), self.spec, **self.how)
        return samples_stage(self.root, self.spec, **self.how)[0]


def format_name(name: str) -> str:
    return name.partition(".")[0]


def copy_place(place: Path, root: loader.Root) -> Path:
    """The place without the notes of an export, which the pipeline does not read."""
    to = Path(f"{root.url}-place")
    return Path(
        shutil.copytree(place, to, copy_function=shutil.copy2, ignore=shutil.ignore_patterns(".penstock"))
    )


@pytest.mark.parametrize(
    ("name", "keep"),
    [
        *((name, "copy") for name in ALL),
        *((name, "in place") for name in ALL if format_name(name) in in_place_formats()),
    ],
)
def test_batch_has_the_samples_of_an_import(
    name: str, keep: str, format_places: Path, root: loader.Root, publish_alone: Publish
) -> None:
    """Each with the keys of its object and of the format, its fields, its columns and its split."""
    place, fields = copy_place(format_places / name, root), OPTIONS.get(name, NO_OPTIONS).fields
    record = Batch(root, place, name, keep).samples()
    assert (record.verdict, record.counts["rejected"]) == ("published", 0)
    found = {
        (row["raw_key"], row["source_key"]): (data, row)
        for data, row in contents(publish_alone(root, record)).values()
    }
    copies = contents(import_version(format_name(name), place, fields=fields))
    assert len(found) == len(copies)
    for key, (data, columns) in copies.items():
        mine, row = found[columns["raw_key"], columns.get("source_key", key)]
        assert mine == data
        assert row["split"] == columns.pop("split", "train")
        held = {column: one for column, one in columns.items() if column not in (*OF_PLACE, "source_key")}
        assert held.items() <= row.items()


@pytest.mark.parametrize("name", [name for name in PLACE_FORMATS if name not in ("csv", "files")])
def test_damaged_object_is_refused_alone(name: str, format_places: Path, root: loader.Root) -> None:
    """Files and CSV may end anywhere."""
    place = copy_place(format_places / name, root)
    companions, objects = FORMATS[name].companions, objects_of(place)
    key = max(
        (one for one in objects if not (companions and companions.search(one))),
        key=lambda one: len(objects[one]),
    )
    (place / key).write_bytes(objects[key][: len(objects[key]) * 2 // 3 - 3])
    batch = Batch(root, place, name)
    record, refused = batch.audit()
    assert refused == {key: "rejected"}
    assert record.counts["admitted"] == record.counts["landed"] - 1
