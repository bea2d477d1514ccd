"""Metadata of a LeRobot dataset: features, tasks, episodes and their objects."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from loader.dataset.columnar.arrow_columns import arrow_errors
from loader.dataset.names import COLUMN
from loader.dataset.tables.columns import RESERVED_COLUMNS
from loader.errors import Corrupt, InvalidStore, ObjectNotFound
from loader.json_text import parse_json
from loader.storage import ObjectInfo, Store

INFO = "meta/info.json"
VERSIONS = "v2.0", "v2.1", "v3.0"
LANGUAGE = "language"
"""Dtype of lists of structs, since LeRobot 0.6."""
BOOKKEEPING = "timestamp", "frame_index", "episode_index", "index", "task_index"
"""Features of every LeRobot dataset."""
_KNOWN = {
    *RESERVED_COLUMNS,
    "episode_index",
    "length",
    "tasks",
    "stats",
    "dataset_from_index",
    "dataset_to_index",
}
_MOST_RANGES = 20
"""Most ranges of episodes that an error names."""
_PLACE = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")


class VideoPlace(NamedTuple):
    """One camera's video of an episode."""

    key: str
    """Object key."""
    from_s: float | None
    """Episode's start in the object, in seconds; None if it holds only this episode."""
    to_s: float | None
    """Episode's end in the object, in seconds; None likewise."""


class LeRobotEpisode(NamedTuple):
    """An episode according to the metadata, unchecked."""

    number: int
    """Index in the metadata."""
    length: int
    """Number of rows."""
    data: str
    """Key of its object of rows."""
    videos: Mapping[str, VideoPlace]
    """Camera -> video."""
    stats: Any
    """Feature -> statistic -> value, or None."""
    split: str
    """Split name, or ""."""
    columns: Mapping[str, Any]
    """Other columns: name -> text, number or truth value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetLayout:
    fps: Fraction
    """Rows per second."""
    robot: str | None
    """Robot type, or None."""
    features: Mapping[str, Mapping[str, Any]]
    """Feature -> dtype, shape and names; without `BOOKKEEPING` and `language`."""
    language: Mapping[str, Mapping[str, Any]]
    """Likewise for features of dtype `LANGUAGE`."""
    tasks: Mapping[int, str]
    """Task index -> text."""
    episodes: Mapping[int, LeRobotEpisode]
    """Index -> episode, ascending."""


def key_of(number: int) -> str:
    return f"episode_{number:06d}"


def read_layout(
    store: Store,
    infos: list[ObjectInfo],
    *,
    whole: bool = True,
    episodes: Sequence[tuple[int, int]] = (),
    earlier: Container[str] = (),
) -> DatasetLayout:
    """Return the layout of a source's dataset.

    whole: reject a dataset that lacks objects. episodes: (first, last) index ranges; empty selects all.
    earlier: keys of episodes that stay selected, if they share an object of rows with others or have all objects.

    Raises: InvalidStore.
    """
    info = _object(_json(store, INFO), INFO)
    version = info.get("codebase_version")
    if version not in VERSIONS:
        raise InvalidStore(
            f"{store.url}/{INFO}: codebase_version {version!r:.40}; accepted are {', '.join(VERSIONS)}: "
            "convert the dataset with lerobot's own script"
        )
    features = _features(info.get("features"))
    robot = info.get("robot_type")
    read = _read_v3 if version == "v3.0" else _read_v2
    tasks, rows = read(store, [one.key for one in infos])
    splits = _splits(info.get("splits") or {})
    cameras = [name for name, feature in features.items() if feature["dtype"] == "video"]
    by_number: dict[int, LeRobotEpisode] = {}
    for row in rows:
        episode = _episode(row, info, cameras, version, splits)
        if episode.number in by_number:
            raise InvalidStore(f"{store.url}: episode {episode.number} comes twice in meta/")
        by_number[episode.number] = episode
    there = {one.key for one in infos}
    if episodes:
        by_number = _chosen(store, by_number, episodes, earlier, there)
    if whole and (missing := _missing(by_number, there)):
        raise InvalidStore(
            f"{store.url}: {len(missing)} objects of its episodes are missing, the first is {missing[0]}: fetch them"
            + _complete(by_number, there)
        )
    return DatasetLayout(
        fps=_fps(info.get("fps")),
        robot=robot if isinstance(robot, str) else None,
        language={name: feature for name, feature in features.items() if feature["dtype"] == LANGUAGE},
        features={
            name: feature
            for name, feature in features.items()
            if name not in BOOKKEEPING and feature["dtype"] != LANGUAGE
        },
        tasks=tasks,
        episodes=dict(sorted(by_number.items())),
    )


def _chosen(
    store: Store,
    by_number: Mapping[int, LeRobotEpisode],
    chosen: Sequence[tuple[int, int]],
    earlier: Container[str],
    there: set[str],
) -> dict[int, LeRobotEpisode]:
    for first, last in chosen:
        if not any(first <= number <= last for number in by_number):
            known = f"{min(by_number)} to {max(by_number)}" if by_number else "none"
            raise InvalidStore(f"{store.url} has no episode from {first} to {last}; meta/ names {known}")
    asked = {n for n in by_number if any(first <= n <= last for first, last in chosen)}
    shared = {by_number[n].data for n in asked}
    return {
        n: one
        for n, one in by_number.items()
        if n in asked or (key_of(n) in earlier and (one.data in shared or not _missing({n: one}, there)))
    }


def _missing(episodes: Mapping[int, LeRobotEpisode], there: Container[str]) -> list[str]:
    needed = {one.data for one in episodes.values()}
    needed |= {place.key for one in episodes.values() for place in one.videos.values()}
    return sorted(key for key in needed if key not in there)


def _complete(episodes: Mapping[int, LeRobotEpisode], there: Container[str]) -> str:
    """Return advice that names the episodes with all objects, or ""."""
    runs: list[list[int]] = []
    for number in sorted(n for n, one in episodes.items() if not _missing({n: one}, there)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{first}-{last}" if last > first else str(first) for first, last in runs[:_MOST_RANGES]]
    more = f" and {len(runs) - _MOST_RANGES} more ranges" if len(runs) > _MOST_RANGES else ""
    return f", or choose the episodes that are there: --episodes {','.join(texts)}{more}" if runs else ""


def _read_v2(store: Store, _keys: list[str]) -> tuple[dict[int, str], list[dict[str, Any]]]:
    tasks = {_whole(one, "task_index"): str(one.get("task")) for one in _lines(store, "meta/tasks.jsonl")}
    try:
        stats = _lines(store, "meta/episodes_stats.jsonl")
    except ObjectNotFound:  # v2.0 has statistics only for the whole dataset
        stats = []
    stats_of = {_whole(one, "episode_index"): one.get("stats") for one in stats}
    rows = _lines(store, "meta/episodes.jsonl")
    return tasks, [{**row, "stats": stats_of.get(_whole(row, "episode_index"))} for row in rows]


def _read_v3(store: Store, keys: list[str]) -> tuple[dict[int, str], list[dict[str, Any]]]:
    table = _parquet(store, "meta/tasks.parquet")
    named = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(named) != 1:
        raise InvalidStore(
            f"{store.url}/meta/tasks.parquet: columns {table.column_names}; task_index and a text are needed"
        )
    tasks = dict(zip(table["task_index"].to_pylist(), map(str, table[named[0]].to_pylist()), strict=True))
    rows = []
    for key in sorted(key for key in keys if key.startswith("meta/episodes/") and key.endswith(".parquet")):
        rows += [_with_stats(row) for row in _parquet(store, key).to_pylist()]
    return tasks, rows


def _with_stats(row: dict[str, Any]) -> dict[str, Any]:
    stats: dict[str, dict[str, Any]] = {}
    for name in [name for name in row if name.startswith("stats/")]:
        feature, _, stat = name.removeprefix("stats/").rpartition("/")
        if (value := row.pop(name)) is not None:
            stats.setdefault(feature, {})[stat] = value
    return {**row, "stats": stats or None}


def _episode(
    row: Mapping[str, Any],
    info: Mapping[str, Any],
    cameras: list[str],
    version: str,
    splits: Mapping[str, range],
) -> LeRobotEpisode:
    index = _whole(row, "episode_index")
    split = next((name for name, span in splits.items() if index in span), "")
    columns = {name: value for name, value in row.items() if name not in _KNOWN and COLUMN.match(name)}
    common: dict[str, Any] = {
        "number": index,
        "length": _whole(row, "length"),
        "stats": row["stats"] if isinstance(row.get("stats"), dict) else None,
        "split": split,
        "columns": {name: value for name, value in columns.items() if isinstance(value, str | int | float)},
    }
    if version != "v3.0":
        chunk = index // max(1, _whole(info, "chunks_size"))
        names = {"episode_chunk": chunk, "episode_index": index}
        videos = {
            camera: VideoPlace(_path(info, "video_path", {**names, "video_key": camera}), None, None)
            for camera in cameras
        }
        return LeRobotEpisode(data=_path(info, "data_path", names), videos=videos, **common)
    videos = {}
    for camera in cameras:
        names = {one: _whole(row, f"videos/{camera}/{one}") for one in ("chunk_index", "file_index")}
        times = [row.get(f"videos/{camera}/{one}") for one in ("from_timestamp", "to_timestamp")]
        if not all(isinstance(time, float) and 0 <= time < 1e9 for time in times):
            raise InvalidStore(
                f"meta/episodes: episode {index} is shown by {camera} from {times[0]} to {times[1]} s"
            )
        videos[camera] = VideoPlace(_path(info, "video_path", {**names, "video_key": camera}), *times)
    names = {one: _whole(row, f"data/{one}") for one in ("chunk_index", "file_index")}
    return LeRobotEpisode(data=_path(info, "data_path", names), videos=videos, **common)


def _path(info: Mapping[str, Any], which: str, names: Mapping[str, Any]) -> str:
    template = info.get(which)
    try:
        if not isinstance(template, str):
            raise KeyError(which)
        path = _PLACE.sub(lambda m: str(names[m[1]]).zfill(int(m[2] or 0)), template)
    except (KeyError, ValueError) as error:
        raise InvalidStore(
            f"{INFO}: {which} {template!r:.200}: {error}; accepted are {', '.join(names)}"
        ) from None
    if set(path) & set("{}\\\0") or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidStore(
            f"{INFO}: {which} {template!r:.200} leads to {path!r:.200}: a path inside of the place is needed"
        )
    return path


def _features(features: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(features, dict) or not features:
        raise InvalidStore(f"{INFO}: features {features!r:.80}; a mapping is needed")
    for name, feature in features.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        whole = isinstance(shape, list) and all(type(n) is int and 0 < n < 2**31 for n in shape)
        if not whole or not isinstance(feature.get("dtype"), str):
            raise InvalidStore(
                f"{INFO}: feature {name!r:.80} is {feature!r:.200}; dtype and a shape above 0 are needed"
            )
    return features


def _fps(value: Any) -> Fraction:
    if type(value) not in (int, float) or not 1e-3 <= value <= 1e6:  # the comparison also rejects NaN
        raise InvalidStore(f"{INFO}: fps {value!r:.40}; a number from 0.001 to 1,000,000 is needed")
    return Fraction(repr(value))


def _splits(splits: Any) -> dict[str, range]:
    out = {}
    for name, text in splits.items() if isinstance(splits, dict) else ():
        if match := re.fullmatch(r"(\d{1,12}):(\d{1,12})", str(text)):
            out[str(name)] = range(int(match[1]), int(match[2]))
    return out


def _whole(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 <= value < 2**62:
        raise InvalidStore(f"meta/: {name} {value!r:.40}; a whole number from 0 on is needed")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidStore(f"{where}: {value!r:.80}; a JSON object is needed")
    return value


def _json(store: Store, key: str) -> Any:
    try:
        return parse_json(store.get(key).data, lenient=True)
    except (ValueError, RecursionError) as error:
        raise InvalidStore(f"{store.url}/{key}: {error}") from None
    except ObjectNotFound:
        raise InvalidStore(f"{store.url} has no {key}: name the folder of one LeRobot dataset") from None


def _lines(store: Store, key: str) -> list[dict[str, Any]]:
    try:
        lines = [line for line in store.get(key).data.splitlines() if line.strip()]
        return [_object(parse_json(line, lenient=True), key) for line in lines]
    except (ValueError, RecursionError) as error:
        raise InvalidStore(f"{store.url}/{key}: {error}") from None


def _parquet(store: Store, key: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = store.get(key).data
    try:
        with arrow_errors(f"{store.url}/{key}"):
            return pq.read_table(pa.BufferReader(data), use_threads=False, pre_buffer=False)
    except Corrupt as error:
        raise InvalidStore(str(error)) from error
