"""Write the metadata of a dataset in layout v3.0: tables of episodes, tasks and statistics, `info.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..exporting.outbox import Outbox
from ..exporting.selection import ExportSelection
from .dataset_layout import BOOKKEEPING, INFO
from .export_survey import Survey, extra_columns, runs_of
from .statistics import aggregated

_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Everything that describes an export."""

    selection: ExportSelection
    """The exported samples."""
    survey: Survey
    """Their episodes."""
    units: Sequence[Mapping[str, Any]]
    """Facts of each unit: features, and episodes with length, videos and stats."""


def put_metadata(meta: Meta, chunk_files: int, outbox: Outbox) -> None:
    """Put the objects in `meta/`. chunk_files: files per folder. Raises: StoreError."""
    rows = meta.selection.rows(np.array([one.ordinal for one in meta.survey.episodes]))
    episodes_of_units = [(number, one) for number, unit in enumerate(meta.units) for one in unit["episodes"]]
    episodes = [
        _episode(meta, i, *divmod(unit, chunk_files), one) for i, (unit, one) in enumerate(episodes_of_units)
    ]
    for name in extra_columns(meta.selection):
        for episode, row in zip(episodes, rows, strict=True):
            episode[name] = row.get(name)
    outbox.put("meta/episodes/chunk-000/file-000.parquet", _parquet(_table(episodes)))
    outbox.put("meta/tasks.parquet", _parquet(_tasks(meta.survey.tasks)))
    stats = aggregated([one["stats"] for _, one in episodes_of_units])
    outbox.put("meta/stats.json", json.dumps(stats, sort_keys=True, indent=1).encode())
    outbox.put(INFO, json.dumps(_info(meta, rows, chunk_files), indent=4, ensure_ascii=False).encode())


def _episode(meta: Meta, number: int, chunk: int, file: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of meta/episodes."""
    planned = meta.survey.episodes[number]
    row: dict[str, Any] = {
        "episode_index": number,
        "tasks": list(dict.fromkeys(one["task"] for one in planned.tasks)),
        "length": planned.length,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": planned.first,
        "dataset_to_index": planned.first + planned.length,
    }
    for camera, shown in sorted(facts["videos"].items()):
        row[f"videos/{camera}/chunk_index"] = shown["chunk"]
        row[f"videos/{camera}/file_index"] = shown["file"]
        row[f"videos/{camera}/from_timestamp"] = float(Fraction(shown["from"]))
        row[f"videos/{camera}/to_timestamp"] = float(Fraction(shown["to"]))
    for feature, stats in sorted(facts["stats"].items()):
        row |= {f"stats/{feature}/{name}": value for name, value in sorted(stats.items())}
    return row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a table with the columns of all rows."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _tasks(texts: Sequence[str]) -> Any:
    """Return the table of tasks: texts are its index, in the layout of pandas."""
    import pyarrow as pa

    index = "__index_level_0__"
    columns = [
        {
            "name": "task_index",
            "field_name": "task_index",
            "pandas_type": "int64",
            "numpy_type": "int64",
            "metadata": None,
        },
        {
            "name": None,
            "field_name": index,
            "pandas_type": "unicode",
            "numpy_type": "object",
            "metadata": None,
        },
    ]
    pandas = {"index_columns": [index], "column_indexes": [], "columns": columns}
    table = pa.table(
        {"task_index": pa.array(range(len(texts)), pa.int64()), index: pa.array(texts, pa.string())}
    )
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _parquet(table: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="snappy")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _info(meta: Meta, rows: Sequence[Mapping[str, Any]], chunk_files: int) -> dict[str, Any]:
    survey = meta.survey
    runs = runs_of([row.get("split") for row in rows])
    named = {name: f"{first}:{stop}" for name, first, stop in runs if name}
    if not named or len(runs) > len({name for name, _, _ in runs}):
        named = {"train": f"0:{len(survey.episodes)}"}
    return {
        "codebase_version": "v3.0",
        "robot_type": rows[0].get("robot"),
        "total_episodes": len(survey.episodes),
        "total_frames": sum(one.length for one in survey.episodes),
        "total_tasks": len(survey.tasks),
        "chunks_size": chunk_files,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": int(survey.fps) if survey.fps.denominator == 1 else float(survey.fps),
        "splits": named,
        "data_path": f"data/{_FILE}.parquet",
        "video_path": f"videos/{{video_key}}/{_FILE}.mp4" if survey.cameras else None,
        "features": _features(meta),
    }


def _features(meta: Meta) -> dict[str, Any]:
    """Return each feature as stored, with names and other facts of the version."""
    held: Mapping[str, Any] = meta.units[0]["features"]
    out = {}
    for name, own in held.items():
        facts = {} if name in BOOKKEEPING else meta.survey.features.get(name, {})
        default = {"names": ["height", "width", "channels"] if own["dtype"] == "video" else None}
        out[name] = {**default, **facts, **own}
    return out
