"""Metadata of a LeRobot dataset: features, tasks, episodes and their objects."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from loader.dataset.names import COLUMN
from loader.dataset.tables.columns import RESERVED_COLUMNS
from loader.errors import InvalidStore
from loader.keywords import is_whole_number
from loader.storage import ObjectInfo, Store

from ...units import shorten_list
from ..reading.stated_counts import WAY_OUT, StatedCounts
from .metadata import INFO, SUBTASKS, Metadata, json_document, json_object, read_v2, read_v3, whole_number
from .stated_totals import compare_totals, ranges_text, runs_of_numbers

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
_PLACES = "data/", "videos/", "meta/episodes/"
"""Prefixes of columns of `meta/episodes` that name files and times in them."""
_METADATA = re.compile(
    r"\.penstock/|meta/(?:info\.json|stats\.json|tasks\.(?:parquet|jsonl)|episodes/.*\.parquet)$"
)
_METADATA_V2 = re.compile(r"meta/episodes(?:_stats)?\.jsonl$")
"""Objects that an import reads, or whose content it computes: `stats.json`."""
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
    subtasks: Mapping[int, str]
    """Subtask index -> text; empty without `meta/subtasks.parquet`."""
    episodes: Mapping[int, LeRobotEpisode]
    """Index -> episode, ascending."""
    known: frozenset[str]
    """Keys of listed objects that `meta/` names, chosen or not, and of the metadata that is read."""
    notes: Sequence[str]
    """Names of columns of `meta/` that are not read."""
    named: frozenset[int]
    """Indices of all episodes that the metadata names, chosen or not."""


def episode_key(number: int) -> str:
    return f"episode_{number:06d}"


def read_layout(
    store: Store,
    infos: list[ObjectInfo],
    stated: StatedCounts,
    *,
    whole: bool = True,
    episodes: Sequence[tuple[int, int]] = (),
    earlier: Container[str] = (),
    without: Container[str] = (),
) -> DatasetLayout:
    """Return the layout of a source's dataset.

    stated: output: stated things that the dataset lacks.
    whole: reject a dataset that lacks objects; if `stated` allows that, leave out episodes.
    episodes: (first, last) index ranges; empty selects all.
    earlier: keys of episodes that stay selected, if they share an object of rows with others or have all objects.
    without: features or fields to leave out: no video of such a camera is looked up.

    Raises: InvalidStore.
    """
    info = json_object(json_document(store, INFO), INFO)
    version = info.get("codebase_version")
    if version not in VERSIONS:
        where = f"{store.url}/{INFO}"
        message = (
            f"{where}: codebase_version {version!r:.40}; accepted are {', '.join(VERSIONS)}: "
            "convert the dataset with lerobot's own script"
        )
        raise InvalidStore(message, what="codebase_version", where=where, given=version, accepted=VERSIONS)
    features = _features(info.get("features"))
    robot = info.get("robot_type")
    read = read_v3 if version == "v3.0" else read_v2
    metadata = read(store, [one.key for one in infos])
    rows = metadata.rows
    splits = _splits(info.get("splits") or {})
    cameras, left_out = _cameras(features, without)
    episodes_there = [_episode(row, info, cameras, version, splits) for row in rows]
    by_number = _by_number(store.url, episodes_there)
    there = {one.key for one in infos}
    known = _known_keys(there, version, by_number, metadata) | _camera_videos(left_out, there)
    named = frozenset(by_number)  # before the choice: the rows of others are not leftovers
    if episodes:  # a chosen part never has the totals of the whole dataset
        by_number = _choose(store, by_number, episodes, earlier, there)
    else:
        lengths = {number: episode.length for number, episode in by_number.items()}
        compare_totals(f"{store.url}/{INFO}", info, lengths, len(metadata.tasks), stated)
    if whole:
        by_number = _with_objects(store, by_number, there, stated)
    return DatasetLayout(
        fps=_fps(info.get("fps")),
        robot=robot if isinstance(robot, str) else None,
        language={name: feature for name, feature in features.items() if feature["dtype"] == LANGUAGE},
        features=_own_features(features),
        tasks=metadata.tasks,
        subtasks=metadata.subtasks,
        episodes=dict(sorted(by_number.items())),
        known=known,
        notes=[*metadata.notes, *_unread_columns(rows)],
        named=named,
    )


def _cameras(
    features: Mapping[str, Mapping[str, Any]], without: Container[str]
) -> tuple[list[str], set[str]]:
    """Return the features that are videos: chosen ones, and others."""
    cameras = [name for name, feature in features.items() if feature["dtype"] == "video"]
    # --without accepts both: users read features in `info.json`, and fields in a version.
    left_out = {name for name in cameras if name in without or f"{name}.mp4" in without}
    return [name for name in cameras if name not in left_out], left_out


def _own_features(features: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {
        name: feature
        for name, feature in features.items()
        if name not in BOOKKEEPING and feature["dtype"] != LANGUAGE
    }


def _by_number(url: str, episodes: Sequence[LeRobotEpisode]) -> dict[int, LeRobotEpisode]:
    by_number: dict[int, LeRobotEpisode] = {}
    for episode in episodes:
        if episode.number in by_number:
            raise InvalidStore(
                f"{url}: episode {episode.number} comes twice in meta/",
                what=f"episode {episode.number}",
                where=f"{url}/meta/",
                accepted="each episode once",
            )
        by_number[episode.number] = episode
    return by_number


def _known_keys(
    keys: set[str], version: str, episodes: Mapping[int, LeRobotEpisode], metadata: Metadata
) -> frozenset[str]:
    named = {place.key for one in episodes.values() for place in one.videos.values()}
    named |= {one.data for one in episodes.values()}
    if metadata.subtasks:
        named.add(SUBTASKS)
    # Otherwise the import would report the metadata that it reads as files not read.
    read = {key for key in keys if _METADATA.match(key)}
    if version != "v3.0":
        read |= {key for key in keys if _METADATA_V2.match(key)}
    return frozenset(named & keys | read)


def _camera_videos(cameras: set[str], keys: set[str]) -> set[str]:
    """Return the keys in folders of cameras, where each layout of LeRobot has their videos."""
    return {key for key in keys if not cameras.isdisjoint(key.split("/")[:-1])}


def _unread_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note of the columns of episodes that are neither known nor a text, number or truth value."""
    unread = {
        name
        for row in rows
        for name, value in row.items()
        if not (name in _KNOWN or name.startswith(_PLACES) or _is_column(name, value))
    }
    if unread:
        return [f"meta/: columns of episodes that are not read: {shorten_list(sorted(unread))}"]
    return []


def _is_column(name: str, value: Any) -> bool:
    return value is None or (bool(COLUMN.match(name)) and isinstance(value, str | int | float))


def _choose(
    store: Store,
    by_number: Mapping[int, LeRobotEpisode],
    chosen: Sequence[tuple[int, int]],
    earlier: Container[str],
    there: set[str],
) -> dict[int, LeRobotEpisode]:
    for first, last in chosen:
        if not any(first <= number <= last for number in by_number):
            known = "none"
            if by_number:
                known = f"{min(by_number)} to {max(by_number)}"
            raise InvalidStore(f"{store.url} has no episode from {first} to {last}; meta/ names {known}")
    asked = {n for n in by_number if any(first <= n <= last for first, last in chosen)}
    # An object of rows is replaced as a whole, so earlier episodes in it stay chosen.
    shared = {by_number[n].data for n in asked}
    return {
        n: one
        for n, one in by_number.items()
        if n in asked or (episode_key(n) in earlier and (one.data in shared or not _missing({n: one}, there)))
    }


def _with_objects(
    store: Store, by_number: dict[int, LeRobotEpisode], there: Container[str], stated: StatedCounts
) -> dict[int, LeRobotEpisode]:
    """Return the episodes whose objects exist. Raises: InvalidStore if others miss one, unless that is allowed."""
    missing = _missing(by_number, there)
    if not missing:
        return by_number
    if not stated.is_allowed:
        raise InvalidStore(
            f"{store.url}: {len(missing)} objects of its episodes are missing, the first is {missing[0]}: {WAY_OUT}"
            + _complete(by_number, there),
            what=missing[0],
            where=store.url,
            given=len(missing),
        )
    for key in missing:
        stated.lacks(f"{store.url}/meta names {key}, which is not there", key)
    return {number: one for number, one in by_number.items() if not _missing({number: one}, there)}


def _missing(episodes: Mapping[int, LeRobotEpisode], there: Container[str]) -> list[str]:
    needed = {one.data for one in episodes.values()}
    needed |= {place.key for one in episodes.values() for place in one.videos.values()}
    return sorted(key for key in needed if key not in there)


def _complete(episodes: Mapping[int, LeRobotEpisode], there: Container[str]) -> str:
    """Return advice that names the episodes with all objects, or ""."""
    complete = sorted(number for number, one in episodes.items() if not _missing({number: one}, there))
    if not complete:
        return ""
    ranges = ranges_text(runs_of_numbers(complete))
    return f", or choose the episodes that are there: --episodes {ranges}"


def _episode(
    row: Mapping[str, Any],
    info: Mapping[str, Any],
    cameras: list[str],
    version: str,
    splits: Mapping[str, range],
) -> LeRobotEpisode:
    index = whole_number(row, "episode_index")
    split = next((name for name, span in splits.items() if index in span), "")
    columns = {name: value for name, value in row.items() if name not in _KNOWN and COLUMN.match(name)}
    common: dict[str, Any] = {
        "number": index,
        "length": whole_number(row, "length"),
        "stats": row["stats"] if isinstance(row.get("stats"), dict) else None,
        "split": split,
        "columns": {
            name: value for name, value in columns.items() if _is_column(name, value) and value is not None
        },
    }
    if version != "v3.0":
        # `meta/` of v2 has no column for the folder, so it follows from the number.
        chunk = index // max(1, whole_number(info, "chunks_size"))
        names = {"episode_chunk": chunk, "episode_index": index}
        videos = {
            camera: VideoPlace(_path(info, "video_path", {**names, "video_key": camera}), None, None)
            for camera in cameras
        }
        return LeRobotEpisode(data=_path(info, "data_path", names), videos=videos, **common)
    videos = {}
    for camera in cameras:
        names = {one: whole_number(row, f"videos/{camera}/{one}") for one in ("chunk_index", "file_index")}
        times = [row.get(f"videos/{camera}/{one}") for one in ("from_timestamp", "to_timestamp")]
        # The comparison also rejects NaN.
        if not all(isinstance(time, float) and 0 <= time < 1e9 for time in times):
            raise InvalidStore(
                f"meta/episodes: episode {index} is shown by {camera} from {times[0]} to {times[1]} s; two times "
                f"from 0 on are needed, or leave the camera out with --without {camera}"
            )
        videos[camera] = VideoPlace(_path(info, "video_path", {**names, "video_key": camera}), *times)
    names = {one: whole_number(row, f"data/{one}") for one in ("chunk_index", "file_index")}
    return LeRobotEpisode(data=_path(info, "data_path", names), videos=videos, **common)


def _path(info: Mapping[str, Any], which: str, names: Mapping[str, Any]) -> str:
    template = info.get(which)
    try:
        if not isinstance(template, str):
            raise KeyError(which)
        path = _PLACE.sub(lambda m: str(names[m[1]]).zfill(int(m[2] or 0)), template)
    except (KeyError, ValueError) as error:
        message = f"{INFO}: {which} {template!r:.200}: {error}; accepted are {', '.join(names)}"
        raise InvalidStore(message, what=which, where=INFO, given=template, accepted=list(names)) from None
    # The template is untrusted: an absolute path or `..` would read outside the source.
    if set(path) & set("{}\\\0") or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidStore(
            f"{INFO}: {which} {template!r:.200} leads to {path!r:.200}: a path inside of the place is needed",
            what=which,
            where=INFO,
            given=template,
            accepted="a path inside of the place",
        )
    return path


def _features(features: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(features, dict) or not features:
        raise InvalidStore(f"{INFO}: features {features!r:.80}; a mapping is needed")
    for name, feature in features.items():
        shape = None
        if isinstance(feature, dict):
            shape = feature.get("shape")
        whole = isinstance(shape, list) and all(is_whole_number(n, 1, 2**31 - 1) for n in shape)
        if not whole or not isinstance(feature.get("dtype"), str):
            raise InvalidStore(
                f"{INFO}: feature {name!r:.80} is {feature!r:.200}; dtype and a shape above 0 are needed",
                what=f"feature {name}",
                where=INFO,
                given=feature,
                accepted="dtype and a shape above 0",
            )
    return features


def _fps(value: Any) -> Fraction:
    if type(value) not in (int, float) or not 1e-3 <= value <= 1e6:  # the comparison also rejects NaN
        message = f"{INFO}: fps {value!r:.40}; a number from 0.001 to 1,000,000 is needed"
        raise InvalidStore(message, what="fps", where=INFO, given=value, accepted="0.001 to 1,000,000")
    # The shortest decimal: 29.97 as a binary float would have a denominator of 2^48.
    return Fraction(repr(value))


def _splits(splits: Any) -> dict[str, range]:
    out = {}
    # A split in another form costs the column `split`, not the import.
    for name, text in splits.items() if isinstance(splits, dict) else ():
        if match := re.fullmatch(r"(\d{1,12}):(\d{1,12})", str(text)):
            out[str(name)] = range(int(match[1]), int(match[2]))
    return out
