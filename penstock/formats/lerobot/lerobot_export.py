"""LeRobot v3.0 exports: shared videos of unchanged packets, and Parquet rows and metadata, in key order."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from loader.errors import Conflict, Corrupt, ObjectNotFound
from loader.json_text import parse_json
from loader.modalities.language import FIELD
from loader.modalities.video.episode_packets import Mp4Writer, PacketSpan, open_video, read_span
from loader.modalities.video.packet_runs import open_run
from loader.modalities.video.packet_table import SUFFIX
from loader.storage import Store

from ..exporter import FOLDER, ExportSample, ExportSelection, Loss, Outbox, WorkUnit
from .dataset_layout import BOOKKEEPING, LANGUAGE
from .depth import count_channels, depth_info
from .export_survey import (
    PlannedEpisode,
    Survey,
    extra_columns,
    load_array,
    sample_language,
    survey_selection,
)
from .language import language_column
from .metadata import INFO, SUBTASK_INDEX, SUBTASKS
from .row_statistics import RowTotals, aggregate, statistics, with_norm
from .rows import timestamp_seconds, value_runs
from .subtasks import lines_beside

FILE_BYTES = 100 * 2**20
"""Most bytes of episodes per file of rows, unless one is larger."""
CHUNK_FILES = 1000
"""Files per folder."""
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeUnit(WorkUnit):
    """Episodes of one file of rows."""

    episodes: Sequence[PlannedEpisode]
    survey: Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Source of an export's metadata."""

    selection: ExportSelection
    """Exported samples."""
    survey: Survey
    """Their episodes."""
    units: Sequence[Mapping[str, Any]]
    """Per unit: features, and its episodes' length, videos and stats."""


def losses(selection: ExportSelection) -> list[Loss]:
    """Return the losses: streams at another rate, irregular clocks, other fields, and changed keys."""
    return survey_selection(selection).losses


def units(selection: ExportSelection) -> list[WorkUnit]:
    """Return units of about 100 MiB, in key order."""
    survey = survey_selection(selection)
    fields = [f"{name}.npy" for name in survey.streams]
    for video in survey.cameras.values():
        fields.append(video)
        if video.endswith(".run"):  # its packet table
            fields.append(f"{video}{SUFFIX}")
    fields += [f"{name}.json" for name in survey.texts]
    if survey.language:
        fields.append(FIELD)
    names = tuple(fields)
    units: list[WorkUnit] = []
    episodes: list[PlannedEpisode] = []
    unit_nbytes = 0
    for episode in survey.episodes:
        (address,) = selection.version.address(np.array([episode.ordinal]), names)
        nbytes = sum(place.nbytes for place in address.fields.values()) + episode.language_nbytes
        if episodes and unit_nbytes + nbytes > FILE_BYTES:
            units.append(_unit(len(units), names, episodes, survey))
            episodes = []
            unit_nbytes = 0
        episodes.append(episode)
        unit_nbytes += nbytes
    units.append(_unit(len(units), names, episodes, survey))
    return units


def _unit(number: int, names: tuple[str, ...], episodes: list[PlannedEpisode], survey: Survey) -> EpisodeUnit:
    ordinals = np.array([one.ordinal for one in episodes])
    return EpisodeUnit(
        number=number, fields=tuple(sorted(names)), ordinals=ordinals, episodes=episodes, survey=survey
    )


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Write a file of rows, and each camera's videos."""
    assert isinstance(unit, EpisodeUnit)
    survey = unit.survey
    tables = list[Any]()
    written = list[dict[str, Any]]()
    totals = RowTotals()
    videos = {
        camera: _Videos(camera, field, survey.features.get(camera, {}), unit.number, outbox)
        for camera, field in survey.cameras.items()
    }
    features: dict[str, Any] = {}
    try:
        for episode, sample in zip(unit.episodes, selection.samples(unit), strict=True):
            rows = _rows(episode, sample, survey)
            own = {name: _feature(values) for name, values in rows.items()}
            shown = {camera: one.add(sample, episode) for camera, one in videos.items()}
            own |= {camera: one.feature for camera, one in videos.items()}
            own |= {name: {"dtype": LANGUAGE, "shape": [1]} for name in survey.language}
            if features and own != features:
                message = (
                    f"{sample.key!r} has the features {own}, samples before it {features}: export them apart"
                )
                raise Corrupt(message, what="features", where=sample.key, given=own, accepted=features)
            features = own
            tables.append(_table(rows, _language(episode, sample, survey, rows)))
            stats = {**statistics(rows), **{n: one for n, one in episode.stats.items() if n in features}}
            totals.add(rows)
            written.append({"length": episode.length, "videos": shown, "stats": stats})
        for camera_videos in videos.values():
            camera_videos.finish()
    finally:
        for camera_videos in videos.values():
            camera_videos.close()
    _put_rows(
        tables,
        f"data/chunk-{unit.number // CHUNK_FILES:03d}/file-{unit.number % CHUNK_FILES:03d}.parquet",
        outbox,
    )
    totals_key = _totals_key(unit.number)
    # Part of the journal, so it is not an object of the dataset.
    outbox.store.put(totals_key, totals.stored(selection.version.id, totals_key))
    return {
        "told": json.dumps({"episodes": written, "features": features}, sort_keys=True)
    }  # JSON text keeps floats exact


def _totals_key(number: int) -> str:
    """Return the key of a unit's totals in the journal's folder, which readers skip."""
    return f"{FOLDER}totals/{number:06d}.parquet"


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write the metadata, `info.json` last."""
    survey = survey_selection(selection)
    meta = Meta(
        selection=selection, survey=survey, units=[parse_json(one["told"], lenient=True) for one in facts]
    )
    put_metadata(meta, _statistics(meta, outbox.store), CHUNK_FILES, outbox)


def _statistics(meta: Meta, target: Store) -> dict[str, dict[str, Any]]:
    """Return the statistics of all rows: computed for numbers, joined from the episodes' own for cameras."""
    stats = aggregate([one["stats"] for unit in meta.units for one in unit["episodes"]])
    totals = RowTotals()
    for number in range(len(meta.units)):
        key = _totals_key(number)
        try:
            data = target.get(key).data
        except ObjectNotFound:
            message = f"{target.url} has no {key}, so an earlier release began this export; export into an empty folder"
            raise Conflict(message, what=key, where=target.url) from None
        totals.add_stored(data, key, f"{target.url}/{key}")
    stats |= totals.statistics()
    if meta.selection.norm is not None:
        stats = with_norm(stats, meta.selection.norm)
    return stats


class _Videos:
    def __init__(
        self, camera: str, field: str, described: Mapping[str, Any], chunk: int, outbox: Outbox
    ) -> None:
        """Begin a camera's videos. described: the feature as in the version's `episode.json`."""
        self._camera = camera
        self._field = field
        self._chunk = chunk
        self._outbox = outbox
        self._described = described
        self._writer: Mp4Writer | None = None
        self._kind: tuple[Any, ...] = ()
        self._n = 0
        self.feature: dict[str, Any] = {}

    def add(self, sample: ExportSample, episode: PlannedEpisode) -> dict[str, Any]:
        with self._packets(sample, episode) as (video, span):
            if self._writer is None or span.kind != self._kind or not self._writer.takes(span):
                self.finish()
                self._writer = Mp4Writer(video[1])
                self._kind = span.kind
            codec = video[1].codec_context
            channels = count_channels(codec.pix_fmt, self._described)
            shape = [codec.height, codec.width, channels]
        self.feature = {"dtype": "video", "shape": shape}
        begin = self._writer.end * span.time_base
        self._writer.add(span)
        times = {"from": _text(begin), "to": _text(self._writer.end * span.time_base)}
        return {"chunk": self._chunk, "file": self._n, **times}

    @contextmanager
    def _packets(self, sample: ExportSample, episode: PlannedEpisode) -> Iterator[tuple[Any, PacketSpan]]:
        what = f"sample {sample.key!r}, {self._field}"
        data = sample.fields[self._field]
        if not self._field.endswith(".run"):
            with open_video(io.BytesIO(data), what) as video:
                yield video, read_span(video, what, episode.length)
            return
        with open_run(data, sample.fields[self._field + SUFFIX], what) as (video, span):
            if len(span.pts) != episode.length:
                raise Corrupt(f"{what}: {len(span.pts)} frames, and {episode.length} rows")
            yield video, span

    def finish(self) -> None:
        if self._writer is not None:
            self._outbox.put(
                f"videos/{self._camera}/chunk-{self._chunk:03d}/file-{self._n:03d}.mp4", self._writer.finish()
            )
            self._writer.close()
            self._writer = None
            self._n = self._n + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _text(time: Fraction) -> str:
    return f"{time.numerator}/{time.denominator}"


def _rows(episode: PlannedEpisode, sample: ExportSample, survey: Survey) -> dict[str, Any]:
    """Return an episode's columns, each [rows, ...]. LeRobot stores a number as shape [1]: hence `[:, None]`."""
    n = episode.length
    out = dict[str, Any]()
    for name in survey.streams:
        values = load_array(sample.fields[f"{name}.npy"], f"sample {sample.key!r}: {name}.npy")
        if not values.ndim or len(values) != n:
            raise Corrupt(
                f"sample {sample.key!r}: {name}.npy has the shape {list(values.shape)}, and its clock has {n} rows"
            )
        out[name] = values.reshape(n, 1) if values.ndim == 1 else values
    for name in survey.texts:
        texts = parse_json(sample.fields[f"{name}.json"])
        if not isinstance(texts, list) or len(texts) != n or not all(isinstance(one, str) for one in texts):
            raise Corrupt(f"sample {sample.key!r}: {name}.json is not a list of {n} texts")
        out[name] = texts
    tasks = np.concatenate(
        [np.full(one["stop"] - one["start"], survey.tasks.index(one["task"])) for one in episode.tasks]
    )
    return out | {
        "timestamp": timestamp_seconds(episode.ns, survey.fps)[:, None],
        "frame_index": np.arange(n)[:, None],
        "episode_index": np.full((n, 1), episode.number),
        "index": (episode.first + np.arange(n))[:, None],
        "task_index": tasks.astype(np.int64)[:, None],
    }


def _feature(values: Any) -> dict[str, Any]:
    if isinstance(values, list):
        return {"dtype": "string", "shape": [1]}
    return {"dtype": values.dtype.name, "shape": list(values.shape[1:])}


def _language(
    episode: PlannedEpisode, sample: ExportSample, survey: Survey, rows: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an episode's language columns. rows: its other columns."""
    if not survey.language:
        return {}
    lines = sample_language(sample.fields, sample.key)
    if survey.subtasks:
        numbers = rows[SUBTASK_INDEX].reshape(episode.length)
        rest = lines_beside(lines, numbers, episode.ns, survey.subtasks)
        if rest is None:
            raise Corrupt(f"sample {sample.key!r}: {FIELD} differs from what the survey of the export read")
        lines = rest
    seconds = rows["timestamp"][:, 0]
    return {name: language_column(name, lines, episode.ns, seconds) for name in survey.language}


def _table(rows: dict[str, Any], language: dict[str, Any]) -> Any:
    import pyarrow as pa

    return pa.table({**{name: _column(values) for name, values in rows.items()}, **language})


def _column(values: Any) -> Any:
    """Return a feature's Arrow column. values: texts, or an array [rows, ...]."""
    import pyarrow as pa

    if isinstance(values, list):
        return pa.array(values, pa.string())
    column = pa.array(values.reshape(-1))
    shape = values.shape[1:]
    if shape == (1,):
        return column
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, shape[0])
    for width in reversed(shape):  # the innermost dimension first
        offsets = pa.array(range(0, len(column) + 1, width), pa.int32())
        column = pa.ListArray.from_arrays(offsets, column)
    return column


def _put_rows(tables: list[Any], key: str, outbox: Outbox) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, tables[0].schema, compression="snappy") as writer:
        for table in tables:
            writer.write_table(table)
    outbox.put(key, sink.getvalue().to_pybytes())


def put_metadata(
    meta: Meta, stats: Mapping[str, Mapping[str, Any]], chunk_files: int, outbox: Outbox
) -> None:
    """Write `meta/`. stats: feature -> statistic -> value. chunk_files: files per folder."""
    rows = meta.selection.rows(np.array([one.ordinal for one in meta.survey.episodes]))
    episodes_of_units = [(number, one) for number, unit in enumerate(meta.units) for one in unit["episodes"]]
    episodes = [
        _episode(meta, i, *divmod(unit, chunk_files), one) for i, (unit, one) in enumerate(episodes_of_units)
    ]
    for name in extra_columns(meta.selection):
        for episode, row in zip(episodes, rows, strict=True):
            episode[name] = row.get(name)
    outbox.put("meta/episodes/chunk-000/file-000.parquet", _parquet(_episode_table(episodes)))
    outbox.put("meta/tasks.parquet", _parquet(_texts("task", meta.survey.tasks)))
    if subtasks := meta.survey.subtasks:
        # LeRobot takes a number as the row of its text, so numbers that no row has get a row too.
        rows_of_texts = [subtasks.get(number, "") for number in range(max(subtasks) + 1)]
        outbox.put(SUBTASKS, _parquet(_texts("subtask", rows_of_texts)))
    outbox.put("meta/stats.json", json.dumps(stats, sort_keys=True, indent=1).encode())
    outbox.put(INFO, json.dumps(_info(meta, rows, chunk_files), indent=4, ensure_ascii=False).encode())


def _episode(meta: Meta, number: int, chunk: int, file: int, facts: Mapping[str, Any]) -> dict[str, Any]:
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


def _episode_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _texts(name: str, texts: Sequence[str]) -> Any:
    """Return texts as the index of pandas, beside their numbers: a table of `meta/`. name: "task" or "subtask"."""
    import pyarrow as pa

    index = "__index_level_0__"
    number_column = {
        "name": f"{name}_index",
        "field_name": f"{name}_index",
        "pandas_type": "int64",
        "numpy_type": "int64",
        "metadata": None,
    }
    text_column = {
        "name": None,
        "field_name": index,
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": None,
    }
    pandas = {"index_columns": [index], "column_indexes": [], "columns": [number_column, text_column]}
    numbers = pa.array(range(len(texts)), pa.int64())
    table = pa.table({f"{name}_index": numbers, index: pa.array(texts, pa.string())})
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
    runs = value_runs([row.get("split") for row in rows])
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
    features: dict[str, Any] = {}
    for name, own in meta.units[0]["features"].items():  # what was written wins over what the source stated
        stated = {} if name in BOOKKEEPING else meta.survey.features.get(name, {})
        if own["dtype"] != "video":
            features[name] = {"names": None, **stated, **own}
            continue
        features[name] = {"names": ["height", "width", "channels"], **stated, **own}
        field_facts = meta.selection.version.facts.get(meta.survey.cameras[name], {})
        if info := depth_info(stated, field_facts.get("depth")):
            features[name]["info"] = info
    return features
