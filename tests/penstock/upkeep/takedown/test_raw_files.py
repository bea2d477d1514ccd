"""Files beside a raw object: a video goes with the last object of rows that needs it, and no sooner."""

from fractions import Fraction

import pyarrow as pa
import pytest

from loader.dataset.log.denies import Target
from penstock.formats.files_beside import files_beside
from penstock.upkeep.takedown.raw_objects import RawDeletion
from penstock.upkeep.takedown.takedown_run import run_takedown

CAMERA = "observation.images.high"
DATA, FILM = "data/chunk-000/file-{:03d}.parquet", f"videos/{CAMERA}/chunk-000/file-{{:03d}}.mp4"
EPISODES = (0, 0), (1, 0), (1, 1)
"""Numbers of each episode's files: of rows, and of the video."""


@pytest.fixture
def place(shared, tmp_path):
    files = shared("penstock/formats/builders/lerobot_files")
    paths = (
        name.replace("000", "{chunk_index:03d}").replace("{:03d}", "{file_index:03d}")
        for name in (DATA, FILM)
    )
    files.put(tmp_path / "set/meta/info.json", files.info("v3.0", [CAMERA], Fraction(30), *paths))
    files.table(tmp_path / "set/meta/tasks.parquet", pa.table({"task_index": [0], "task": ["lift"]}))
    rows = [
        {
            "episode_index": number,
            "length": 3,
            "data/chunk_index": 0,
            "data/file_index": rows,
            f"videos/{CAMERA}/chunk_index": 0,
            f"videos/{CAMERA}/file_index": film,
            f"videos/{CAMERA}/from_timestamp": 0.0,
            f"videos/{CAMERA}/to_timestamp": 0.1,
        }
        for number, (rows, film) in enumerate(EPISODES)
    ]
    files.table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows))
    for name in (DATA, FILM):
        for number in range(2):
            files.put(tmp_path / "set" / name.format(number), "bytes")
    return tmp_path / "set"


@pytest.mark.parametrize("below", [".", ".."])
def test_video_goes_with_the_last_object_that_needs_it(place, below):
    def files_by_object(*numbers):
        alone = {str(place / DATA.format(n)): [str((place / below).resolve())] for n in numbers}
        found = files_beside(alone, refused)
        return {uri[-11:-8]: [file[-7:-4] for file in files] for uri, files in found.items()}

    refused = {}
    assert files_by_object(0) == {}
    assert files_by_object(1) == {"001": ["001"]}
    assert files_by_object(0, 1) == {"001": ["000", "001"]}
    (place / DATA.format(0)).unlink()
    assert files_by_object(1) == {"001": ["000", "001"]}
    assert refused == {}


def test_object_stays_whose_dataset_cannot_be_read(place):
    (place / "meta/info.json").write_text("{")
    refused, uri = {}, str(place / DATA.format(1))
    assert files_beside({uri: [str(place)], f"{place}.parquet": [str(place)]}, refused) == {}
    assert list(refused) == [uri]
    assert "meta/info.json" in refused[uri]


def test_object_stays_of_whose_file_something_else_was_cut(root, tmp_path):
    bag, deleted = tmp_path / "bag", []
    bag.mkdir()
    (bag / "metadata.yaml").write_text("rosbag2_bagfile_information: {relative_file_paths: [a.mcap]}")
    for dataset, name in (("bags", "metadata.yaml"), ("logs", "a.mcap")):
        with root.write(dataset) as writer:
            for key, uri in (("k1", f"{bag}/{name}"), ("k2", "other")):
                writer.add(key, {"txt": key}, source={"raw_uri": uri})
    n = root.log.deny([Target(kind="raw", value=f"{bag}/metadata.yaml")], "ticket 4", "ann").n
    ran = run_takedown(
        root, n, apply=True, raw=RawDeletion(deleted.append, files_beside), raw_below=[str(tmp_path)]
    )
    assert (deleted, ran.samples) == ([], {"bags": 1})
    assert "a.mcap: other samples were cut from it" in ran.refused[f"{bag}/metadata.yaml"]
