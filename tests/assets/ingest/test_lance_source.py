"""A dataset of Lance as a source: fragments that are added, lose rows, are compacted and changed."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import loader
from assets.arrivals.joined_objects import raw_store
from assets.arrivals.make_batches import discover
from assets.gate_settings import Gate
from assets.sources import Source
from assets.spec import DatasetSpec
from loader.dataset.log.denies import Target
from loader.storage import open_store
from penstock.formats.files_beside import files_beside
from penstock.stages import StageRecord, current_record
from penstock.upkeep.takedown.raw_objects import RawDeletion, delete_object
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.assets.conftest import Run
from tests.assets.ingest.test_read_samples import field_bytes

SOURCE = Source(format="lance", key="name", fields={"text": "txt"})
DEMO = DatasetSpec(name="demo", sources=(SOURCE,), gate=Gate(thresholds=None))
Land = Callable[[], dict[str, int]]


def rows(*numbers: int) -> pa.Table:
    return pa.table({"name": [f"n{n}" for n in numbers], "text": [f"t{n}" for n in numbers], "n": numbers})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "in"


@pytest.fixture
def land(place: Path, root: loader.Root, run: Run) -> Land:
    """Take what has arrived to a version; return the counts of its units."""

    def go() -> dict[str, int]:
        (batch,) = discover(root.store, raw_store(open_store(str(place)), SOURCE), "demo", source=SOURCE)
        assert run("ingest", DEMO, batch, place).success
        assert run("release", DEMO, place=place).success
        record: StageRecord | None = current_record(root.store, "demo", "units", batch)
        assert record is not None
        names = "units", "published_before", "replacing", "dropped"
        return {name: record.counts[name] for name in names}

    return go


def texts(root: loader.Root) -> dict[str, str]:
    found = field_bytes(root.open("demo@latest"), "text.txt")
    return {key: bytes(data).decode() for (_, key), data in found.items()}


def test_fragments_bring_new_rows_and_changed_ones_and_no_row_twice(
    place: Path, root: loader.Root, land: Land
) -> None:
    dataset = lance.write_dataset(rows(0, 1, 2, 3), str(place), max_rows_per_file=2)
    assert land() == {"units": 4, "published_before": 0, "replacing": 0, "dropped": 0}
    dataset.insert(rows(4))
    dataset.delete("n = 0")
    assert land() == {"units": 1, "published_before": 1, "replacing": 0, "dropped": 1}
    dataset.optimize.compact_files()
    dataset.update({"text": "'new'"}, where="n = 2")
    seen = raw_store(open_store(str(place)), SOURCE).list()
    fragments = {f"data/{one.data_files()[0].path}" for one in lance.dataset(str(place)).get_fragments()}
    assert {info.key for info in seen if not SOURCE.sieve()(info)} == fragments  # not files of older versions
    assert land() == {"units": 1, "published_before": 3, "replacing": 1, "dropped": 1}
    assert texts(root) == {"n0": "t0", "n1": "t1", "n2": "new", "n3": "t3", "n4": "t4"}


def test_takedown_leaves_fragments_to_lance(place: Path, root: loader.Root, land: Land) -> None:
    lance.write_dataset(rows(0, 1), str(place), max_rows_per_file=1)
    land()
    (one, _) = sorted(set(root.open("demo@1").samples().collect()["raw_uri"]))
    n = root.log.deny([Target(kind="raw", value=one)], "ticket 4", "ann").n
    ran = run_takedown(root, n, apply=True, raw=RawDeletion(delete_object, files_beside))
    assert ["delete its rows with Lance" in why for why in ran.refused.values()] == [True]
    assert Path(one).exists()
    assert len(root.open("demo@latest")) == 1
