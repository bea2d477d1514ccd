"""LeRobot's `meta/` and times as recorders write them: read, or named if left out."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import Corrupt, InvalidStore, LossyExport
from loader.modalities.language import parse_language
from loader.storage import open_store
from penstock.formats.content_digest import content_digest
from penstock.formats.importer import ColumnarOptions
from penstock.formats.lerobot.lerobot_import import find_readable
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.penstock.formats.builders.lerobot_files import (
    CAMERA,
    LENGTHS,
    PERSISTENT,
    change_meta,
    put,
    table,
    v21,
    v30,
    write_language,
)
from tests.refusals import refusal

NAN = float("nan")
SUBTASKS = "reach", "grasp", "lift"
ROWS_KEY = "data/chunk-000/file-000.parquet"


@pytest.fixture
def place(tmp_path):
    """A v3.0 dataset that a test may spoil."""
    return v30(tmp_path / "new", v21(tmp_path / "old", cameras=[CAMERA]), cameras=[CAMERA])


def folder_samples(folder, *without):
    store = open_store(folder)
    readable = find_readable(store, list(store.list()), ColumnarOptions(without=frozenset(without)))
    return {
        one.key: one
        for info in readable.infos
        for run in readable.runs(info)
        for one in readable.samples(run)
    }


def with_subtasks(folder, numbers, texts=SUBTASKS):
    """Add LeRobot 0.4's subtasks. numbers: an index for each row of all episodes."""
    path = folder / ROWS_KEY
    table(path, pq.read_table(path).append_column("subtask_index", pa.array(numbers, pa.int64())))
    body = json.loads((folder / "meta/info.json").read_text())
    body["features"]["subtask_index"] = {"dtype": "int64", "shape": [1], "names": None}
    put(folder / "meta/info.json", json.dumps(body))
    index = pa.table({"subtask_index": range(len(texts)), "__index_level_0__": list(texts)})
    table(folder / "meta/subtasks.parquet", index)
    return folder


SUBTASK_ROWS = [0, 0, 1, 2, 2, -1, 0, 0, 0, -1, 2, 2, 2, 1, 1, 1]


def subtasks(sample):
    lines = parse_language(sample.fields["language.jsonl"])
    return [(round(line.start_ns * 30 / 10**9), line.text) for line in lines if line.style == "subtask"]


def test_subtasks_are_lines_of_language(place):
    samples = folder_samples(with_subtasks(place, SUBTASK_ROWS))
    assert subtasks(samples["episode_000000"]) == [(0, "reach"), (2, "grasp"), (3, "lift")]
    lines = parse_language(samples["episode_000001"].fields["language.jsonl"])
    spans = [(line.start_ns, line.end_ns, line.text) for line in lines if line.style == "subtask"]
    ns = np.load(io.BytesIO(samples["episode_000001"].fields["matrix.ns.npy"])).tolist()
    assert spans == [(ns[1], ns[4], "reach"), (ns[5], None, "lift")]
    assert "language.jsonl" not in folder_samples(place, "language.jsonl")["episode_000001"].fields
    assert not subtasks(folder_samples(place, "subtask_index")["episode_000001"])


@pytest.mark.parametrize("verb", ["import", "register"])
def test_windows_have_the_text_of_their_subtask(place, tmp_path, cli, verb):
    with_subtasks(place, SUBTASK_ROWS)
    assert cli(verb, "lerobot", place, "d", root=tmp_path / "root").code == 0
    view = loader.Root(tmp_path / "root").open("d").select("observation.state.npy")
    name = "observation.state.npy"
    windows = loader.windows(view, anchor=name, at={name: loader.rows(0, 1)}, text=("subtask", "task"))
    plan = loader.plan({"arm": windows}, seed=1, global_batch=sum(LENGTHS))
    with loader.Loader(plan, framework="numpy", workers=0, steps=1) as batches:
        (batch,) = batches
    texts = dict(zip([key for _, key in batch.ids], batch["text"], strict=True))
    numbers = iter(SUBTASK_ROWS)
    tasks = ["lift"] * LENGTHS[0] + ["lift"] * 2 + ["put down"] * 6 + ["lift"] * LENGTHS[2]
    rows = [(episode, row) for episode, length in enumerate(LENGTHS) for row in range(length)]
    for (episode, row), number, task in zip(rows, numbers, tasks, strict=True):
        expected = task if number < 0 else SUBTASKS[number]
        assert texts[f"episode_{episode:06d}@{row}"] == expected


def test_subtask_without_a_text_is_corrupt_and_says_what_to_do(place):
    with_subtasks(place, [3, *SUBTASK_ROWS[1:]])
    with refusal(
        Corrupt, what="subtask_index", where="data/chunk-000/file-000.parquet, episode 0, row 0", given=3
    ):
        folder_samples(place)


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_statistics_that_are_not_finite_are_left_out_by_name(tmp_path, place, cli, layout):
    """The rows of episode 1 have a NaN, so its statistics are left out. Episode 0 gets computed ones."""
    spoiled = place if layout == "v3.0" else tmp_path / "old"
    path = place / ROWS_KEY if layout == "v3.0" else spoiled / "data/chunk-000/episode_000001.parquet"
    rows = pq.read_table(path)
    state = rows["observation.state"].to_pylist()
    state[6 if layout == "v3.0" else 1][2] = NAN
    column = pa.array(state, rows.schema.field("observation.state").type)
    at = rows.column_names.index("observation.state")
    table(path, rows.set_column(at, "observation.state", column))
    if layout == "v3.0":
        change_meta(
            place,
            lambda rows: [
                {**row, "stats/observation.state/mean": [1.0, NAN, 1.0]} if row["episode_index"] < 2 else row
                for row in rows
            ],
        )
    else:
        stats = [
            {"episode_index": n, "stats": {"observation.state": {"mean": [1.0, NAN, 1.0], "count": [5]}}}
            for n in range(2)
        ]
        put(spoiled / "meta/episodes_stats.jsonl", "".join(json.dumps(one) + "\n" for one in stats))
    done = cli("import", "lerobot", spoiled, "d", root=tmp_path / "root")
    assert done.code == 0, done.err
    what = "statistics of observation.state in meta/ hold values that are not finite"
    assert f"{what}, and are left out (episodes 1)" in done.out
    assert f"{what}, and are computed anew (episodes 0)" in done.out
    facts = {
        one["__key__"]: one["episode.json"]["stats"] for one in loader.Root(tmp_path / "root").open("d")[:]
    }
    assert "observation.state" not in facts["episode_000001"]
    values = folder_samples(spoiled)["episode_000000"].fields["observation.state.npy"]
    mean = np.load(io.BytesIO(values)).astype(np.float64).mean(0)
    assert facts["episode_000000"]["observation.state"]["mean"] == mean.tolist()


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ({"task_index": [0, 1], "task": ["lift", "put down"], "category": ["a", "b"]}, "category"),
        (
            {"task_index": [0, 1], "__index_level_0__": ["lift", "put down"], "category": ["a", "b"]},
            "category",
        ),
        (
            {"category": ["a", "b"], "task_index": [0, 1], "task": ["lift", "put down"], "b": [1, 2]},
            "b, category",
        ),
    ],
)
def test_more_columns_of_tasks_are_named(place, tmp_path, cli, tasks, text):
    table(place / "meta/tasks.parquet", pa.table(tasks))
    done = cli("import", "lerobot", place, "d", root=tmp_path / "root")
    assert done.code == 0, done.err
    assert f"meta/tasks.parquet: columns that are not read: {text}" in done.out
    assert folder_samples(place)["episode_000000"].metadata["task"] == "lift"


def test_texts_are_those_of_the_index_of_pandas(place):
    pandas = {"index_columns": ["text"], "column_indexes": [], "columns": []}
    tasks = pa.table({"task_index": [0, 1], "category": ["a", "b"], "text": ["lift", "put down"]})
    table(place / "meta/tasks.parquet", tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}))
    assert folder_samples(place)["episode_000001"].metadata["task"] == "lift"


@pytest.mark.parametrize("pandas", [b"{", b"\x80", b"[]", b'{"index_columns": 5}'])
def test_metadata_of_pandas_that_is_damaged_names_no_index(place, pandas):
    tasks = pa.table({"task_index": [0, 1], "task": ["lift", "put down"]})
    table(place / "meta/tasks.parquet", tasks.replace_schema_metadata({"pandas": pandas}))
    assert folder_samples(place)["episode_000001"].metadata["task"] == "lift"


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        (
            {"task_index": [0, 1], "a": ["lift", "put down"], "b": ["a", "b"]},
            {"what": "columns", "given": "'task_index', 'a', 'b'", "accepted": ["task_index", "task"]},
        ),
        (
            {"task_index": [0, 1], "task": ["lift", None]},
            {"what": ["task_index", "task"], "given": [1, None], "accepted": "a whole number and a text"},
        ),
        (
            {"task_index": [0, 0], "task": ["lift", "put down"]},
            {"what": "task_index", "given": 0, "accepted": "one text"},
        ),
    ],
)
def test_tasks_that_name_no_text_are_refused(place, tasks, fault):
    table(place / "meta/tasks.parquet", pa.table(tasks))
    with refusal(InvalidStore, **fault):
        folder_samples(place)


@pytest.mark.parametrize("verb", ["import", "register"])
def test_files_and_columns_that_are_not_read_are_named(place, tmp_path, cli, verb):
    put(place / "meta/segments.json", "{}")
    put(place / "README.md", "x")
    put(place / "notes/day.txt", "x")
    put(place / ".cache/huggingface/x", "x")
    change_meta(place, lambda rows: [{**row, "phases": ["a", "b"], "score": 0.5} for row in rows])
    done = cli(verb, "lerobot", place, "d", "--episodes", "0,1", root=tmp_path / "root")
    assert done.code == 0, done.err
    unread = [line for line in done.out.splitlines() if line.startswith("files that are not read")]
    assert unread == [
        "files that are not read, because lerobot does not know them: meta/segments.json, notes/day.txt"
    ]
    assert "meta/: columns of episodes that are not read: phases" in done.out
    again = cli(verb, "lerobot", place, "d", "--episodes", "0,1", root=tmp_path / "root")
    assert unread[0] in again.out


def test_files_of_features_that_are_left_out_are_no_unread_files(place, tmp_path, cli):
    done = cli("import", "lerobot", place, "d", "--without", CAMERA, root=tmp_path / "root")
    assert done.code == 0, done.err
    assert "not read" not in done.out


@pytest.mark.parametrize("field", [CAMERA, f"{CAMERA}.mp4"])
def test_camera_that_is_left_out_may_lack_its_videos_and_times(place, tmp_path, cli, field):
    change_meta(place, lambda rows: [{**row, f"videos/{CAMERA}/from_timestamp": None} for row in rows])
    (place / f"videos/{CAMERA}/chunk-000/file-000.mp4").unlink()
    refused = cli("import", "lerobot", place, "d", root=tmp_path / "root")
    assert f"--without {CAMERA}" in refused.err
    done = cli("import", "lerobot", place, "d", "--without", field, root=tmp_path / "root")
    assert done.code == 0, done.err
    assert done.out.splitlines()[1] == "3 samples with bytes of their own"


def with_timestamps(folder, change):
    """Replace the column `timestamp` of a v3.0 dataset by `change(seconds, frame numbers)`, float64 [rows]."""
    path = folder / ROWS_KEY
    rows = pq.read_table(path)
    numbers = rows["frame_index"].to_numpy()
    seconds = change(numbers / 30, numbers).astype(np.float32)
    at = rows.column_names.index("timestamp")
    table(path, rows.set_column(at, "timestamp", pa.array(seconds)))
    return folder


def test_times_within_the_tolerance_of_lerobot_are_the_rate(place):
    """A recorder's clock is 0.08 ms off, now too early and now too late."""
    before = folder_samples(place)
    with_timestamps(
        place, lambda seconds, numbers: seconds + 8e-5 * np.where(numbers % 2, 1, -1) * (numbers > 0)
    )
    assert folder_samples(place) == before


def test_times_that_drift_are_the_clock(place, tmp_path):
    """Each step is 0.09 ms longer than 1/30 s, which LeRobot accepts; the sum of seven is above its tolerance."""
    with_timestamps(place, lambda seconds, numbers: seconds + 9e-5 * numbers)
    episode = folder_samples(place, CAMERA)["episode_000001"]
    ns = np.load(io.BytesIO(episode.fields["matrix.ns.npy"]))
    seconds = (np.arange(LENGTHS[1]) / 30 + 9e-5 * np.arange(LENGTHS[1])).astype(np.float32)
    assert ns.tolist() == np.floor(seconds.astype(np.float64) * 1e9).astype(np.int64).tolist()
    assert episode.metadata["duration_ns"] == ns[-1] + 10**9 // 30
    with refusal(
        Corrupt,
        what="timestamp",
        where="videos/observation.images.high/chunk-000/file-000.mp4, episode 0, row 2",
        given=0.06666666666666667,
        accepted=0.06684666872024536,
    ):
        folder_samples(place)
    with loader.Root(tmp_path / "a") as first, loader.Root(tmp_path / "b") as second:
        options = ColumnarOptions(without=frozenset([CAMERA]))
        import_place(first, "lerobot", open_store(place), "d", options=options)
        export(first.open("d"), "lerobot", open_store(tmp_path / "out"), lossy=True)
        import_place(second, "lerobot", open_store(tmp_path / "out"), "d")
        digests = [content_digest(root.open("d"), full=True).digest for root in (first, second)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("off_s", [2e-4, -2e-4])
def test_step_beyond_the_tolerance_is_refused_with_its_row(place, off_s):
    with_timestamps(place, lambda seconds, numbers: seconds + off_s * (numbers == 3))
    where = "data/chunk-000/file-000.parquet, episode 0, row 3"
    with refusal(Corrupt, what="timestamp", where=where, accepted=0.1):
        folder_samples(place)


def exchange(place, tmp_path):
    """Import, export, and import again; return both versions and the exported folder."""
    out = tmp_path / "out"
    first, second = loader.Root(tmp_path / "a"), loader.Root(tmp_path / "b")
    assert import_place(first, "lerobot", open_store(place), "d").failures == []
    assert export(first.open("d"), "lerobot", open_store(out)).failures == []
    done = import_place(second, "lerobot", open_store(out), "d")
    assert (done.failures, done.notes) == ([], [])
    return first.open("d"), second.open("d"), out


@pytest.mark.parametrize(
    "texts", [SUBTASKS, ("reach", "grasp", "lift", "unused"), ("reach", "-", "grasp", "lift")]
)
def test_subtasks_come_out_and_in_again(place, tmp_path, texts):
    numbers = [number + (number > 0) * (texts[1] == "-") for number in SUBTASK_ROWS]
    first, second, out = exchange(with_subtasks(place, numbers, texts), tmp_path)
    assert content_digest(second, full=True).digest == content_digest(first, full=True).digest
    rows = pq.read_table(out / ROWS_KEY)
    assert rows["subtask_index"].to_pylist() == numbers
    assert "language_persistent" not in rows.column_names
    table_of_texts = pq.read_table(out / "meta/subtasks.parquet")
    frame = table_of_texts.to_pandas()
    for number in set(numbers) - {-1}:  # as LeRobot reads them
        assert frame.iloc[number].name == texts[number]


def test_subtasks_and_language_columns_come_out_and_in_again(place, tmp_path):
    """The lines of both stay apart: a subtask by number, and other texts of `language_persistent`."""
    persistent = [{**one, "style": "memory"} for one in PERSISTENT]
    write_language(place, persistent=[persistent] * sum(LENGTHS))
    with_subtasks(place, SUBTASK_ROWS)
    first, second, out = exchange(place, tmp_path)
    assert content_digest(second, full=True).digest == content_digest(first, full=True).digest
    styles = {
        text["style"]
        for row in pq.read_table(out / ROWS_KEY)["language_persistent"].to_pylist()
        for text in row
    }
    assert styles == {"memory"}


def test_subtasks_that_were_edited_beside_their_numbers_are_a_named_loss(place, tmp_path):
    """Number 0 has two texts then, one in each of two episodes."""
    root = loader.Root(tmp_path / "root")
    import_place(root, "lerobot", open_store(with_subtasks(place, SUBTASK_ROWS)), "d")
    version = root.open("d")
    with root.write("edited") as writer:
        for address in version.address(np.arange(len(version)), version.fields):
            (fields,) = read_fields(version.shard_store, [address])
            if address.key == "episode_000000":
                fields["language.jsonl"] = fields["language.jsonl"].replace(b'"reach"', b'"come near"')
            writer.add(address.key, fields)
    edited = root.open("edited")
    with pytest.raises(
        LossyExport, match=r"field 'subtask_index.npy': .*language_persistent.*subtasks.parquet is left"
    ):
        export(edited, "lerobot", open_store(tmp_path / "out"))
    export(edited, "lerobot", open_store(tmp_path / "out"), lossy=True)
    assert not (tmp_path / "out/meta/subtasks.parquet").exists()
    texts = pq.read_table(tmp_path / "out" / ROWS_KEY)["language_persistent"][0].as_py()
    assert "come near" in [one["content"] for one in texts]
