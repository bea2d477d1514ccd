"""lerobot, version pinned in lerobot.txt: it finds the rows and pictures of a dataset in our export of it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.storage import open_store
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.oracles.items_walk import same_batches, samples

pytestmark = pytest.mark.oracle


def export_dataset(folder, target, lossy=False):
    """Import a dataset, and export it in two files of rows."""
    with loader.Root(f"{target}-root") as root:
        assert import_place(root, "lerobot", open_store(folder), "d").failures == []
        return export(root.open("d"), "lerobot", open_store(target), lossy=lossy)


def test_its_writers_dataset_comes_out_with_every_row_and_picture(tmp_path, peer, monkeypatch):
    monkeypatch.setattr("penstock.formats.lerobot.lerobot_export.FILE_BYTES", 9200)
    peer("lerobot", "write", tmp_path / "made")
    done = export_dataset(tmp_path / "made", tmp_path / "out")
    assert (done.lost, done.samples) == ([], 3)
    assert len(list((tmp_path / "out/data").rglob("*.parquet"))) == 2
    *rows, told = peer("lerobot", "read", tmp_path / "made", 1)
    *ours, our_told = peer("lerobot", "read", tmp_path / "out", 1)
    assert len(rows) == 24
    assert len({row["observation.images.wrist"] for row in rows}) > 12
    assert ours == rows
    stats, our_stats = told.pop("stats"), our_told.pop("stats")
    assert our_told == told
    assert our_stats.keys() == stats.keys()
    exact = {name for name in stats if name.partition("/")[0] != "task_index" and "/q" not in name}
    assert len(exact) > 30
    for name in exact:
        np.testing.assert_allclose(
            np.array(our_stats[name], float), np.array(stats[name], float), 1e-5, 1e-8, err_msg=name
        )


def test_dataset_of_lerobot_makes_the_same_batches_everywhere(tmp_path, peer):
    """LeRobot's reader as a source of a plan: windows of rows, and two cameras."""
    peer("lerobot", "write", tmp_path / "episodes")
    (result,) = peer("lerobot", "items", tmp_path / "episodes")
    batches = same_batches(result["settings"])
    assert result["length"] == 24
    assert "observation.images.wrist" in samples(batches)[0]


def test_real_episodes_come_out_with_their_rows_and_pictures(tmp_path, peer):
    """Of v2.1, which lerobot 0.4.4 does not read, where PENSTOCK_MEDIA names the corpus."""
    for corpus in filter(None, [os.environ.get("PENSTOCK_MEDIA")]):
        check_real_episodes(Path(corpus) / "robot/g1_lerobot_v21", tmp_path, peer)


def check_real_episodes(media, tmp_path, peer):
    """Rows are held against its Parquet, pictures against PyAV."""
    import av
    import pyarrow.parquet as pq

    folder = tmp_path / "g1"
    numbers = sorted(int(path.stem[-6:]) for path in media.rglob("*.parquet"))[-2:]
    for path in media.rglob("*"):
        if path.is_file() and (path.parent.name == "meta" or any(f"{n:06d}" in path.name for n in numbers)):
            (folder / path.relative_to(media)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / path.relative_to(media))
    for name in ("episodes.jsonl", "episodes_stats.jsonl"):
        lines = (folder / "meta" / name).read_text().splitlines()
        kept = [line for line in lines if json.loads(line)["episode_index"] in numbers]
        (folder / "meta" / name).write_text("\n".join(kept))
    done = export_dataset(folder, tmp_path / "out", lossy=True)
    assert [one["name"] for one in done.lost] == ["keys"]
    *ours, told = peer("lerobot", "read", tmp_path / "out", 37)
    wanted = [pq.read_table(folder / f"data/chunk-000/episode_{n:06d}.parquet").to_pylist() for n in numbers]
    assert told["lengths"] == [len(rows) for rows in wanted]
    place = [(n, row) for n, rows in enumerate(wanted) for row in range(len(rows))]
    pictures = [
        peer_pictures(folder / f"videos/chunk-000/observation.images.cam_high/episode_{n:06d}.mp4", av)
        for n in numbers
    ]
    for row in ours:
        episode, number = place[row["index"]]
        source = wanted[episode][number]
        assert (row["episode_index"], row["frame_index"]) == (episode, number)
        for name in ("observation.state", "action", "timestamp"):
            assert row[name] == source[name]
        assert row["task"] == "Pick up the yellow bottle on the table."
        assert row["observation.images.cam_high"] == pictures[episode][number]


def peer_pictures(path, av):
    """SHA-256 of each picture of a video, as the peer takes it."""
    import hashlib

    with av.open(str(path)) as file:
        return [
            hashlib.sha256(frame.to_ndarray(format="rgb24").transpose(2, 0, 1).tobytes()).hexdigest()
            for frame in file.decode(video=0)
        ]
