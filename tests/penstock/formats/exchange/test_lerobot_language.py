"""Language of LeRobot datasets: its tasks and columns become lines of time, and the same columns again."""

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.errors import Corrupt, InvalidSample, InvalidStore, LossyExport
from loader.modalities.language import LanguageLine
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.lerobot import language, language_texts
from penstock.formats.lerobot.language import columns_nbytes
from penstock.formats.lerobot.language_texts import read_texts
from penstock.formats.lerobot.lerobot_import import find_readable, open_dataset
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.penstock.formats.builders.lerobot_files import (
    CALL,
    CAMERA,
    EVENTS,
    LANGUAGE,
    LANGUAGE_COLUMNS,
    LENGTHS,
    PERSISTENT,
    column_type,
    declare,
    table,
    v21,
    v30,
    write_language,
)
from tests.refusals import refusal


def of_fields(kind: pa.DataType) -> list[tuple[str, str]]:
    """Name and type of each field of a list of structs; Parquet names the values of lists its own way."""
    return [(field.name, str(field.type).replace("element:", "item:")) for field in kind.value_type]


def import_dataset(root, folder, name="d"):
    assert import_place(root, "lerobot", open_store(folder), name).failures == []
    return root.open(name)


def language_lines(version):
    return {one["__key__"]: one["language.jsonl"] for one in version.select("language.jsonl")}


def episode_columns(folder):
    """Episode -> column -> its rows, with the calls parsed."""
    out: dict[int, dict[str, list[Any]]] = {}
    for path in sorted((folder / "data").rglob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            own = out.setdefault(row["episode_index"], {name: [] for name in LANGUAGE_COLUMNS})
            for name in LANGUAGE_COLUMNS:
                parsed = [
                    one | {"tool_calls": one["tool_calls"] and [*map(json.loads, one["tool_calls"])]}
                    for one in row[name]
                ]
                own[name].append(parsed)
    return out


def test_tasks_are_lines_of_the_time_of_their_rows(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        lines = language_lines(import_dataset(root, v21(tmp_path / "in", cameras=[CAMERA])))
        line = {"end_ns": None, "style": "task", "role": "user", "camera": None, "tool_calls": None}
        assert lines["episode_000000"] == [{"start_ns": 0, "text": "lift", **line}]
        assert lines["episode_000001"] == [
            {"start_ns": 0, "text": "lift", **line},
            {"start_ns": 2 * 10**9 // 30, "text": "put down", **line},
        ]
        view = root.open("d").select("observation.state.npy")
        at = {"observation.state.npy": [0]}
        windows = loader.windows(view, anchor="observation.state.npy", at=at, text=["task"])
        plan = loader.plan({"d": windows}, seed=1, global_batch=sum(LENGTHS))
        with loader.Loader(plan, workers=0, steps=1) as batches:
            (batch,) = batches
        read = {key: text for (_, key), text in zip(batch.ids, batch["text"], strict=True)}
        assert [read[f"episode_000001@{row}"] for row in range(8)] == ["lift"] * 2 + ["put down"] * 6
        assert loader.to_lerobot(batch)["task"] == batch["text"]


@pytest.mark.parametrize("inferred", [False, True])
@pytest.mark.parametrize("layout", [v21, v30])
def test_columns_of_lerobot_survive_import_and_export(tmp_path, layout, inferred):
    place = write_language(v21(tmp_path / "in", cameras=[CAMERA]), inferred)
    if layout is v30:
        place = v30(tmp_path / "new", place, cameras=[CAMERA])
        declare(place)
    with loader.Root(tmp_path / "root") as root, loader.Root(tmp_path / "again") as again:
        version = import_dataset(root, place)
        lines = language_lines(version)["episode_000001"][2:]
        assert [(one["start_ns"], one["end_ns"], one["text"]) for one in lines[:4]] == [
            (0, None, "reach"),
            (0, None, "raise it"),
            (2 * 10**9 // 30, None, "grasp"),
            (81200003, None, "aside"),  # float32
        ]
        now = 10**9 // 30
        assert [(one["start_ns"], one["end_ns"], one["style"]) for one in lines[4:]] == [
            (now, now + 1, None),
            (2 * 10**9 // 30, 2 * 10**9 // 30 + 1, "vqa"),
            (2 * 10**9 // 30, 2 * 10**9 // 30 + 1, "vqa"),
        ]
        assert lines[4]["tool_calls"] == [CALL]
        assert lines[5]["camera"] == CAMERA
        done = export(version, "lerobot", open_store(tmp_path / "out"))
        assert (done.lost, done.failures) == ([], [])
        out = episode_columns(tmp_path / "out")
        assert list(out) == [0, 1, 2]
        for number, own in out.items():
            assert own["language_persistent"] == [PERSISTENT] * LENGTHS[number]
            assert own["language_events"] == [EVENTS.get(row, []) for row in range(LENGTHS[number])]
        stored = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet").schema
        info = json.loads((tmp_path / "out/meta/info.json").read_text())
        for name in LANGUAGE_COLUMNS:
            assert info["features"][name] == LANGUAGE
            assert of_fields(stored.field(name).type) == of_fields(column_type(name))
        assert language_lines(import_dataset(again, tmp_path / "out")) == language_lines(version)


def test_windows_see_an_event_in_its_row_only(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        view = import_dataset(root, write_language(v21(tmp_path / "in", cameras=[CAMERA]))).select(
            "matrix.npy"
        )
        at = {"matrix.npy": loader.rows(0, 1)}
        windows = loader.windows(view, anchor="matrix.npy", at=at, text=("vqa", "subtask", "task"))
        plan = loader.plan({"d": windows}, seed=1, global_batch=sum(LENGTHS))
        with loader.Loader(plan, workers=0, steps=1) as batches:
            (batch,) = batches
        read = {key: text for (_, key), text in zip(batch.ids, batch["text"], strict=True)}
        told = [read[f"episode_000001@{row}"] for row in range(8)]
        assert told == ["reach", "reach", "what is left?", *["grasp"] * 5]


def other_rows(**of):
    """Persistent rows whose first text is another."""
    return lambda n: [[PERSISTENT[0] | of, *PERSISTENT[1:]]] * n


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda n: [[], *[PERSISTENT] * (n - 1)], {"what": "row", "given": 1}),
        (lambda n: [None, *[PERSISTENT] * (n - 1)], {"what": "row", "given": 1}),
        (other_rows(role=None), {"what": "language", "given": "line 2: role = None; a text is needed"}),
        (other_rows(style="task"), {"what": "style", "given": "task"}),
        (other_rows(timestamp=float("nan")), {"what": "timestamp", "given": math.nan, "accepted": "seconds"}),
        (other_rows(timestamp=None), {"what": "timestamp", "accepted": "seconds"}),
        (other_rows(timestamp=1e20), {"what": "timestamp", "given": 1e20, "accepted": "seconds"}),
        (
            other_rows(timestamp=1.76e9),
            {"what": "timestamp", "given": 1.76e9, "accepted": "seconds since the first row"},
        ),
        (
            other_rows(content=b"\xff"),
            {"what": "language", "given": "Object of type bytes is not JSON serializable"},
        ),
        (other_rows(tool_calls=["{"]), {"what": "tool call", "given": "{"}),
        (
            other_rows(tool_calls=["[" * 140 + "]" * 140]),
            {"what": "tool call", "given": "[" * 140 + "]" * 140},
        ),
        (lambda n: [[None]] * n, {"what": "text", "given": "null"}),
        (lambda n: [1] * n, {"what": "type", "given": "int64"}),
        (lambda n: ["lift"] * n, {"what": "type", "given": "string"}),
        (lambda n: [["lift"]] * n, {"what": "type", "given": "list<element: string>"}),
    ],
)
def test_damaged_columns_are_corrupt(tmp_path, damage, fault):
    folder = v21(tmp_path / "in", cameras=[])
    path = folder / "data/chunk-000/episode_000000.parquet"
    rows = pq.read_table(path)
    table(path, rows.append_column("language_persistent", pa.array(damage(len(rows)))))
    declare(folder, ["language_persistent"])
    store = open_store(folder)
    readable = find_readable(store, list(store.list()), ColumnarOptions(without=frozenset()))
    (run,) = readable.runs(readable.infos[0])
    with refusal(Corrupt, within="episode_000000.parquet, episode 0", **fault) as caught:
        list(readable.samples(run))
    assert "leave the feature out with --without language" in str(caught.value)


def test_column_that_meta_names_and_the_rows_lack_is_corrupt(tmp_path):
    folder = v21(tmp_path / "in", cameras=[])
    declare(folder, ["language_events"])
    with loader.Root(tmp_path / "root") as root:
        (failure, *_) = import_place(root, "lerobot", open_store(folder), "d").failures
        assert "no column 'language_events'; leave the feature out with --without language_events" in failure
        declare(folder, ["words"])
        with refusal(
            InvalidStore,
            what="words",
            where=f"{tmp_path}/in",
            given="language",
            accepted=("language_persistent", "language_events"),
        ):
            import_place(root, "lerobot", open_store(folder), "d")
        options = ColumnarOptions(without=frozenset(["words", "language.jsonl"]))
        assert import_place(root, "lerobot", open_store(folder), "d", options=options).failures == []
        assert "language.jsonl" not in root.open("d").fields


@pytest.mark.parametrize("without", [["language_events"], ["language.jsonl"], ["observation.state"], []])
def test_columns_that_are_left_out_are_not_read(tmp_path, without):
    store = open_store(write_language(v21(tmp_path / "in", cameras=[])))
    infos, options = list(store.list()), ColumnarOptions(without=frozenset(without))
    dataset = open_dataset(store, infos, options)
    (info,) = (one for one in infos if one.key.endswith("episode_000000.parquet"))
    names = {*LANGUAGE_COLUMNS} if without == ["language.jsonl"] else {*without}
    every = {*pq.read_schema(tmp_path / "in" / info.key).names}
    table, texts = dataset._table(info, 0, "")
    assert {*table.column_names, *texts} == every - names
    assert not {*LANGUAGE_COLUMNS} & {*table.column_names}


def write_language_version(root, lines, tasks=True, name="episode_000000"):
    ns = np.array([n * 10**9 // 30 for n in range(4)])
    own = [{"start_ns": 0, "style": "task", "text": "lift"}] * tasks
    with root.write("own") as writer:
        fields = {"action.npy": np.zeros((4, 2), np.float32), "action.ns.npy": ns}
        writer.add(name, {**fields, "language.jsonl": own + lines})
    return root.open("own")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"start_ns": 0, "end_ns": 5, "style": "subtask", "text": "a"}, "ends at 5 ns"),
        ({"start_ns": 12345678901, "style": "subtask", "text": "a"}, "becomes float32 seconds"),
        ({"start_ns": 7, "style": "task", "text": "drop"}, "becomes one of whole rows"),
        ({"start_ns": 0, "style": "task", "text": "drop"}, "the task at 0 ns"),
        ({"start_ns": 0, "style": "task"}, "the task at 0 ns"),
        ({"start_ns": 33333335, "style": "subtask", "text": "a"}, "becomes float32 seconds"),  # as row 1 does
    ],
)
def test_what_lerobot_cannot_hold_is_a_loss(tmp_path, line, why):
    with loader.Root(tmp_path / "root") as root:
        version = write_language_version(root, [line])
        with pytest.raises(LossyExport, match=f"episode_000000.*{why}"):
            export(version, "lerobot", open_store(tmp_path / "out"))
        done = export(version, "lerobot", open_store(tmp_path / "out"), lossy=True)
        assert [one["name"] for one in done.lost] == ["field 'language.jsonl'"]


def test_text_that_ends_where_calls_of_tools_begin_is_a_loss(tmp_path):
    row = 10**9 // 30
    lines = [
        {"start_ns": 0, "end_ns": row, "style": "subtask", "text": "a"},
        {"start_ns": row, "style": "subtask", "tool_calls": [{}]},
    ]
    with loader.Root(tmp_path / "root") as root, pytest.raises(LossyExport, match="the text at 0 ns ends"):
        export(write_language_version(root, lines), "lerobot", open_store(tmp_path / "out"))


def test_rows_without_a_task_are_a_loss(tmp_path):
    late = {"start_ns": 2 * 10**9 // 30, "style": "task", "text": "drop"}
    with loader.Root(tmp_path / "root") as root:
        version = write_language_version(root, [late], tasks=False)
        with pytest.raises(LossyExport, match="a row has no task"):
            export(version, "lerobot", open_store(tmp_path / "out"))


def test_columns_of_an_episode_are_bounded():
    """Tasks and events are not repeated in each row, as other texts are."""
    ns = np.arange(0, 2**17, 2)
    tasks = [LanguageLine(start_ns=row, style="task", text=str(row)) for row in range(0, 2**17, 2**8)]
    assert columns_nbytes(tasks, ns) == 0
    assert columns_nbytes([one._replace(end_ns=one.start_ns + 1, style="vqa") for one in tasks], ns) < 2**17
    texts = [one._replace(style="subtask") for one in tasks]
    assert len(ns) * 2**6 < columns_nbytes(texts[:1], ns) < len(ns) * 2**8
    for large in (
        texts,
        [texts[0]._replace(text="a" * 2**14)],
        [texts[0]._replace(tool_calls=["a" * 2**14])],
    ):
        with refusal(InvalidSample, what="language", accepted=language.MOST_BYTES):
            columns_nbytes(large, ns)


def test_files_of_rows_count_the_language_that_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.formats.lerobot.lerobot_export.FILE_BYTES", 3 * 20_000)
    with loader.Root(tmp_path / "root") as root:
        line = {"start_ns": 0, "style": "subtask", "text": "a" * 5000}
        for number in range(3):
            write_language_version(root, [line], name=f"episode_00000{number}")
        assert export(root.open("own"), "lerobot", open_store(tmp_path / "out")).failures == []
    files = sorted((tmp_path / "out/data").rglob("*.parquet"))
    assert [pq.read_table(path)["language_persistent"].to_pylist()[3][0]["content"] for path in files] == [
        "a" * 5000
    ] * 2


def test_own_lines_of_tasks_become_lerobots_tasks(tmp_path):
    drop = {"start_ns": 2 * 10**9 // 30, "style": "task", "text": "drop"}
    with loader.Root(tmp_path / "root") as root:
        assert (
            export(write_language_version(root, [drop]), "lerobot", open_store(tmp_path / "out")).lost == []
        )
    rows = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet").to_pydict()["__index_level_0__"]
    assert [tasks[index] for index in rows["task_index"].to_pylist()] == ["lift", "lift", "drop", "drop"]
    assert not {*LANGUAGE_COLUMNS} & {*rows.column_names}


def test_language_of_a_registered_place_is_a_group_of_its_own(tmp_path, cli):
    """Versions that were registered before language go on: their episodes stay as they are."""
    place = v21(tmp_path / "in", cameras=[CAMERA])
    root = tmp_path / "root"
    assert cli("register", "lerobot", place, "d", "--without", "language.jsonl", root=root).code == 0
    assert cli("register", "lerobot", write_language(v21(tmp_path / "spoken")), "new", root=root).code == 0
    with loader.Root(root) as opened:
        assert "language.jsonl" not in opened.open("d").fields
        groups = opened.open("new").manifest["groups"]
        assert groups["language"]["field_nbytes"].keys() == {"language.jsonl"}
        assert len(language_lines(opened.open("new"))["episode_000001"]) == 2 + len(PERSISTENT) + 3


def test_texts_of_every_row_take_the_memory_of_some_rows(tmp_path):
    """64 KiB of texts in each of 3,000 rows, which Parquet stores in 100 KiB."""
    path, n = tmp_path / "rows.parquet", 3000
    row = [PERSISTENT[0] | {"content": "reach " * 10_000}, *PERSISTENT[1:]]
    own = pa.array([row]).take(pa.array(np.zeros(n, np.int64)))
    frames = np.arange(n) % 1000
    events = pa.array([EVENTS[2] if frame == 5 else [] for frame in frames.tolist()])
    numbers = pa.array(np.arange(n) // 1000)
    table(path, pa.table([numbers, own, events], names=["episode_index", *reversed(LANGUAGE_COLUMNS)]))
    assert path.stat().st_size < 2**18
    del own
    pool, usual = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        texts = read_texts(pq.ParquetFile(path, pre_buffer=False), LANGUAGE_COLUMNS)
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 2**24
    for episode in range(3):
        (run,) = texts["language_persistent"][episode].checked()
        assert run == (0, 1000, [one | {"tool_calls": None} for one in row])
        runs = texts["language_events"][episode].checked()
        assert [(one.first, one.stop, len(one.structs)) for one in runs] == [
            (0, 5, 0),
            (5, 6, 2),
            (6, 1000, 0),
        ]


def test_texts_beyond_the_limit_of_language_are_corrupt_and_not_kept(tmp_path):
    path = tmp_path / "rows.parquet"
    events = [[EVENTS[2][0] | {"content": chr(97 + row % 26) * 2**20}] for row in range(40)]
    table(path, pa.table({"episode_index": np.zeros(40, np.int64), "language_events": pa.array(events)}))
    own = read_texts(pq.ParquetFile(path), LANGUAGE_COLUMNS)["language_events"][0]
    assert len(own.runs) == 15
    with refusal(Corrupt, what="texts of a column", given=15, accepted=16_777_216):
        own.checked()


def test_texts_of_many_episodes_of_an_object_are_bounded_together(tmp_path, monkeypatch):
    """1 KiB of Parquet would keep a MiB for each episode."""
    monkeypatch.setattr(language_texts, "OBJECT_BYTES", 4 * 2**20)
    path = tmp_path / "rows.parquet"
    row = [EVENTS[2][0] | {"content": "a" * (2**20 - 2**12)}]
    table(path, pa.table({"episode_index": np.arange(6), "language_events": pa.array([row] * 6)}))
    texts = read_texts(pq.ParquetFile(path), LANGUAGE_COLUMNS)["language_events"]
    assert [len(texts[episode].runs) for episode in range(6)] == [1, 1, 1, 1, 0, 0]
    with refusal(Corrupt, what="texts of an object", given=0, accepted=4 * 2**20):
        texts[4].checked()


def test_nulls_count_as_texts(tmp_path):
    """Arrow has no bytes for them."""
    path, n = tmp_path / "rows.parquet", 40
    lists = pa.array([[None] * (2**14 + row % 2) for row in range(n)], pa.list_(pa.null()))
    table(path, pa.table({"episode_index": np.zeros(n, np.int64), "language_events": lists}))
    own = read_texts(pq.ParquetFile(path), LANGUAGE_COLUMNS)["language_events"][0]
    assert len(own.runs) == 15
    with refusal(Corrupt, what="texts of a column", given=15, accepted=16_777_216):
        own.checked()
