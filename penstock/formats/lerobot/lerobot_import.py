"""LeRobot datasets: each episode is a sample; video packets are copied unchanged."""

import hashlib
import json
import math
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.columnar.arrow_errors import arrow_errors
from loader.errors import Corrupt, InvalidStore
from loader.modalities.language import FIELD
from loader.modalities.row_blocks import with_row_blocks
from loader.modalities.video.episode_packets import PacketSpan, episode_mp4, open_video, read_span
from loader.modalities.video.packet_table import SUFFIX, index_packets
from loader.storage import ObjectInfo, Store

from ..episodes.episode import npy_bytes
from ..importer import ColumnarOptions, ImportRun, KnownNames, Readable, ReadSample, group_files, joined
from ..reading.object_file import ObjectFile
from ..reading.object_file import open_object as opened_object
from ..reading.stated_counts import StatedCounts
from .dataset_layout import DatasetLayout, LeRobotEpisode, episode_key, read_layout
from .depth import depth_fact
from .episode_notes import EpisodeNotes
from .language import COLUMNS, language_bytes
from .language_texts import EpisodeTexts, Texts, read_texts
from .metadata import INFO
from .row_statistics import statistics
from .rows import EpisodeRows, FrameTimes, clock, feature_named, read_rows

OPTIONS = frozenset({"episodes"})
EPISODE = "episode.json"
_NAMES = KnownNames[Mapping[str, Sequence[str]]]()


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the objects with rows, joined with their videos."""
    return _readable(open_dataset(store, infos, options))


def find_complete_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    return _readable(open_dataset(store, infos, options, whole=False))


def names_in(
    store: Store, infos: Sequence[ObjectInfo], options: ColumnarOptions
) -> Mapping[str, Sequence[str]]:
    """Return key of an object with rows -> it and its videos. Reads `meta/` if it changed."""
    meta = [one for one in infos if one.key.startswith("meta/")]
    return _NAMES.of(
        (store.url, frozenset(options.without)),
        meta,
        lambda: _names(open_dataset(store, [*infos], options, whole=False)),
    )


def _names(dataset: "LeRobotDataset") -> dict[str, tuple[str, ...]]:
    return {key: (key, *dataset.object_videos(key)) for key in dataset.of}


def _readable(dataset: "LeRobotDataset") -> Readable:
    files, _ = group_files(_names(dataset), dataset.infos)
    return Readable(
        [dataset.episodes_object(joined(files[key])) for key in dataset.infos if key in files],
        dataset.runs,
        dataset.samples,
        stated=dataset.stated,
        facts={
            feature_field(name, feature): dataset.feature_facts(name)
            for name, feature in dataset.features.items()
        },
        known=dataset.layout.known,
        notes=dataset.notes,
    )


def open_dataset(
    store: Store, infos: list[ObjectInfo], options: ColumnarOptions, *, whole: bool = True
) -> "LeRobotDataset":
    """Return a source's dataset, without the features in `options.without`."""
    stated = StatedCounts(options.allow_missing)
    layout = read_layout(
        store,
        infos,
        stated,
        whole=whole,
        episodes=options.episodes,
        earlier=options.earlier,
        without=options.without,
    )
    features = {
        name: feature for name, feature in layout.features.items() if not _is_excluded(name, feature, options)
    }
    language = {name: feature for name, feature in layout.language.items() if name not in options.without}
    if unknown := sorted(language.keys() - set(COLUMNS)):
        message = (
            f"{store.url}: {unknown[0]} is a feature of language; {' and '.join(COLUMNS)} are imported: leave it out "
            f"with --without {unknown[0]}"
        )
        raise InvalidStore(message, what=unknown[0], where=store.url, given="language", accepted=COLUMNS)
    for name, feature in features.items():
        # Refused rather than left out: the pixels would be lost in silence.
        if feature["dtype"] == "image":
            message = (
                f"{store.url}: {name} is a feature of single images in the rows, which is not imported: leave it out "
                f"with --without {name}"
            )
            raise InvalidStore(message, what=name, where=store.url, given="single images in the rows")
    return LeRobotDataset(
        store,
        {one.key: one for one in infos},
        layout,
        stated,
        features,
        None if FIELD in options.without else language,
        options.episodes,
    )


def _nested_texts(names: Any) -> Iterator[str]:
    if isinstance(names, dict):
        names = list(names.values())
    # Recorders nest names by motor group; dimensions need one flat list.
    for item in names if isinstance(names, list) else ():
        if isinstance(item, str):
            yield item
        else:
            yield from _nested_texts(item)


def _is_excluded(name: str, feature: Mapping[str, Any], options: ColumnarOptions) -> bool:
    return bool({name, feature_field(name, feature)} & options.without)


def feature_field(name: str, feature: Mapping[str, Any]) -> str:
    return f"{name}.{ {'video': 'mp4', 'string': 'json'}.get(feature['dtype'], 'npy') }"


class OpenVideo(NamedTuple):
    """An episode's packets in an open video."""

    what: str
    """File and episode, for errors."""
    file: ObjectFile
    video: tuple[Any, Any]
    """Container and video stream."""
    span: PacketSpan
    """Packets' location and times."""

    def times(self, camera: str) -> FrameTimes:
        """Return the times of the frames of the feature `camera`."""
        tick_s = float(self.span.time_base)
        return FrameTimes(camera, self.what, self.span.shown * tick_s, tick_s)


class LeRobotDataset:
    """A dataset's samples; thread-safe.

    features, language: features to import. language: None to import no `language.jsonl`. chosen: ranges of episodes
    (first, last) to import; empty for all.
    """

    def __init__(
        self,
        store: Store,
        infos: Mapping[str, ObjectInfo],
        layout: DatasetLayout,
        stated: StatedCounts,
        features: Mapping[str, Mapping[str, Any]],
        language: Mapping[str, Mapping[str, Any]] | None,
        chosen: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._store = store
        self._chosen = chosen
        self.stated = stated
        self.infos = infos
        self.layout = layout
        self.features = features
        self.language = language
        self.episode_notes = EpisodeNotes()
        self._lock = threading.Lock()
        self._held: tuple[str, Any, Texts] | None = None  # rows and texts of the last object read
        # A video of many episodes counts by shares, so sizes of runs add up to its size.
        self._sharing = Counter(
            place.key for one in layout.episodes.values() for place in one.videos.values()
        )
        self.of: dict[str, list[LeRobotEpisode]] = {}
        for episode in layout.episodes.values():
            self.of.setdefault(episode.data, []).append(episode)

    @property
    def url(self) -> str:
        return self._store.url

    def episodes_object(self, info: ObjectInfo) -> ObjectInfo:
        """Return an object of rows, its ETag covering the chosen episodes too."""
        if not self._chosen:
            return info
        # Otherwise an import of other episodes would skip the object as unchanged.
        numbers = json.dumps([one.number for one in self.of[info.key]]).encode()
        etag = hashlib.sha256(info.etag.encode() + numbers).hexdigest()
        # A file's change token is its size and time; this shifts the time by less than a second.
        return replace(info, etag=etag, modified_us=(info.modified_us or 0) + zlib.crc32(numbers) % 10**6)

    def feature_facts(self, feature: str) -> dict[str, Any]:
        """Return a feature's rate; dimension names if numeric; a video's clock, and its scale if it is depth."""
        facts = self.features[feature]
        names = list(_nested_texts(facts.get("names"))) if facts["dtype"] not in ("video", "string") else []
        clock = None
        if facts["dtype"] == "video":
            clock = self._clock
        own: dict[str, Any] = {"dims": names} if names else {"clock": clock} if clock else {}
        depth = None
        if facts["dtype"] == "video":
            depth = depth_fact(feature, facts)
        if depth is not None:
            own["depth"] = depth
        return {"fps": str(self.layout.fps), **own}

    @property
    def _clock(self) -> str | None:
        """Field with the times of rows and of all frames; None without a stream."""
        streams = sorted(
            name for name, one in self.features.items() if one["dtype"] not in ("video", "string")
        )
        if streams:
            return f"{'action' if 'action' in streams else streams[0]}.ns.npy"
        return None

    def object_videos(self, data: str) -> list[str]:
        """Return the sorted keys of an object's videos."""
        return sorted(
            {
                place.key
                for episode in self.of[data]
                for camera, place in episode.videos.items()
                if camera in self.features
            }
        )

    def runs(self, info: ObjectInfo) -> Iterator[ImportRun]:
        for episode in self.of[info.key]:
            nbytes = self.infos[info.key].nbytes // len(self.of[info.key])
            for place in episode.videos.values():
                nbytes += self.infos[place.key].nbytes // self._sharing[place.key]
            yield ImportRun(info, episode.number, episode.number + 1, nbytes)

    def notes(self) -> list[str]:
        """Return what of the metadata, and of the episodes read so far, is left out."""
        return [*self.layout.notes, *self.episode_notes.lines()]

    def samples(self, run: ImportRun) -> Iterator[ReadSample]:
        episode = self.layout.episodes[run.first]
        fields: dict[str, bytes] = {}
        frames: list[FrameTimes] = []
        for camera, opened_video in self.videos(episode):
            what, _, video, span = opened_video
            with feature_named(camera):
                fields[f"{camera}.mp4"] = data = episode_mp4(video, span, what)
                fields[f"{camera}.mp4{SUFFIX}"] = index_packets(data)
            frames.append(opened_video.times(camera))
        rest = self.rows(episode, frames)
        yield rest._replace(fields={**fields, **with_row_blocks(rest.fields)})

    def rows(self, episode: LeRobotEpisode, frames: Sequence[FrameTimes]) -> ReadSample:
        """Return an episode without videos. frames: times of its cameras' frames."""
        layout = self.layout
        info = self.infos[episode.data]
        what = f"{info.key}, episode {episode.number}"
        streams = {name: feature for name, feature in self.features.items() if feature["dtype"] != "video"}
        table, texts = self._table(info, episode.number, what)
        # Texts of subtasks go to `language.jsonl` only.
        subtasks: Mapping[int, str] = {}
        if self.language is not None:
            subtasks = layout.subtasks
        rows = read_rows(table, what, episode.length, layout.fps, streams, layout.tasks, subtasks, frames)
        fields = _stream_fields(rows)
        fields[EPISODE] = self._facts(episode, rows)
        if self.language is not None:
            fields[FIELD] = language_bytes(texts, self.language, rows, what)
        is_regular = np.array_equal(rows.ns, clock(episode.length, layout.fps))
        if is_regular:
            duration_ns = episode.length * 10**9 * layout.fps.denominator // layout.fps.numerator
        else:
            # A clock that drifts ends one period after its own last row.
            period_ns = 10**9 * layout.fps.denominator // layout.fps.numerator
            duration_ns = int(rows.ns[-1]) + period_ns
        metadata = {
            **episode.columns,
            "episode_index": episode.number,
            "task": rows.tasks[0]["task"],  # of the first row: `read_rows` raises without rows
            "n_frames": episode.length,
            "duration_ns": duration_ns,
        }
        if layout.robot is not None:
            metadata["robot"] = layout.robot
        source = {"split": episode.split} if episode.split else {}
        return ReadSample(episode_key(episode.number), fields, metadata, source)

    def videos(self, episode: LeRobotEpisode) -> Iterator[tuple[str, OpenVideo]]:
        """Yield (camera, packets) of an episode."""
        for camera, (key, from_s, to_s) in episode.videos.items():
            if camera not in self.features:
                continue
            what = f"{key}, episode {episode.number}"
            with ExitStack() as stack:
                with feature_named(camera):
                    # Container tables and packets lie apart, so reads jump back and forth.
                    file = stack.enter_context(ObjectFile(self._store, self.infos[key], scattered=True))
                    video = stack.enter_context(open_video(file, what))
                    span = read_span(video, what, episode.length, from_s, to_s, extra_frames=True)
                if span.n_extra:
                    note = f"{camera}: frames after the last row are left out"
                    self.episode_notes.add(note, episode.number)
                yield camera, OpenVideo(what, file, video, span)

    def _table(self, info: ObjectInfo, index: int, what: str) -> tuple[Any, dict[str, EpisodeTexts]]:
        """Return an episode's rows, and texts by column."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        with arrow_errors(what, damaged="cannot be read"):
            with self._lock:
                # Episodes of an object are read in turn, so one object in memory suffices.
                if self._held is None or self._held[0] != info.key:
                    with opened_object(self._store, info) as file:
                        parquet = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=False)
                        texts_of = read_texts(parquet, {*(self.language or ())})
                        table = self._read_table(parquet)
                        self._held = info.key, table, texts_of
                    self._compare_rows(info, table)
                _, table, texts_of = self._held
            if "episode_index" not in table.column_names:
                raise Corrupt(f"{what}: {info.key} has no column 'episode_index'")
            texts = {name: of.get(index, EpisodeTexts()) for name, of in texts_of.items()}
            return table.filter(pc.equal(table["episode_index"], index)), texts

    def _compare_rows(self, info: ObjectInfo, table: Any) -> None:
        """Note rows of episodes that the metadata does not name, as a killed recorder leaves them."""
        # Rows of episodes that were not chosen are left out on purpose.
        if self._chosen or "episode_index" not in table.column_names:
            return
        column = table["episode_index"].to_numpy()
        if column.dtype.kind not in "iu":
            return  # `rows` names nulls and other types
        numbers = np.unique(column)
        unnamed = ~np.isin(numbers, list(self.layout.named))
        if unnamed.any():
            note = f"{info.key}: rows of episodes that meta/ does not name are left out"
            for number in numbers[unnamed].tolist():
                self.episode_notes.add(note, number)

    def _read_table(self, parquet: Any) -> Any:
        """Return the imported columns, without language."""
        left_out = {*self.layout.features, *self.layout.language} - {*self.features}
        # `read_texts` reads language in batches, as its texts repeat in every row.
        names = [name for name in parquet.schema_arrow.names if name not in left_out]
        return parquet.read(columns=names, use_threads=False)

    def _facts(self, episode: LeRobotEpisode, rows: EpisodeRows) -> bytes:
        stats = statistics(rows.streams)
        for name, of_feature in (episode.stats or {}).items():
            if name not in self.features or not isinstance(of_feature, dict):
                continue
            # The recorder's statistics win, as trainings in LeRobot normalize by them.
            if is_finite(of_feature):
                stats[name] = of_feature
                continue
            what_instead = "computed anew" if name in stats else "left out"
            note = f"statistics of {name} in meta/ hold values that are not finite, and are {what_instead}"
            self.episode_notes.add(note, episode.number)
        try:
            return json_bytes(
                {
                    "fps": str(self.layout.fps),
                    "features": {**self.features, **(self.language or {})},
                    "stats": stats,
                    "tasks": rows.tasks,
                }
            )
        except ValueError as error:  # NaN
            raise Corrupt(f"{INFO}: features hold numbers that are not finite: {error}") from None


def is_finite(value: Any) -> bool:
    """Return whether no number in nested lists and mappings is NaN or infinite."""
    if isinstance(value, dict):
        return all(is_finite(part) for part in value.values())
    if isinstance(value, list):
        return all(is_finite(part) for part in value)
    return not isinstance(value, float) or math.isfinite(value)


def _stream_fields(rows: EpisodeRows) -> dict[str, bytes]:
    fields = {}
    for name, values in rows.streams.items():
        if isinstance(values, list):
            fields[f"{name}.json"] = json_bytes(values)
        else:
            fields[f"{name}.npy"] = npy_bytes(values)
            fields[f"{name}.ns.npy"] = npy_bytes(rows.ns)
    return fields


def json_bytes(value: Any) -> bytes:
    """Return JSON, sorted by name. Raises: ValueError for NaN."""
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()
