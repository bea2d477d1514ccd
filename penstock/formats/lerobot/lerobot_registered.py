"""Register LeRobot videos in place, and copy numbers and texts.

A part is a run of episodes that share no video with other parts. It has one shard per camera (its videos joined), one
of packet tables, one of streams, and one of row blocks if it has long streams. `unit_id` hashes an episode's objects
and metadata. If it changes, the episode replaces the registered one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader import Root, Version
from loader.dataset.log.entries import canonical
from loader.dataset.names import check_dataset_name
from loader.dataset.publishing.publish import ObjectsTable, publish_registered, publish_without
from loader.dataset.shards.part import Part
from loader.dataset.tables.foreign_objects import foreign_table, place_id
from loader.dataset.tables.place_records import is_adopted, put_place
from loader.dataset.writing.exclude import RowsToExclude
from loader.dataset.writing.part_writer import PartWriter, make_sample
from loader.errors import Conflict, EmptyVersion, FieldMismatch, InvalidStore
from loader.modalities.language import FIELD
from loader.modalities.row_blocks import MIN_BYTES, has_row_blocks, index_rows
from loader.modalities.row_blocks import SUFFIX as ROWS
from loader.modalities.video.packet_runs import PacketRun, packet_run
from loader.modalities.video.packet_table import SUFFIX
from loader.storage import ObjectInfo, Store
from loader.storage.store import check_recordable
from loader.storage.threads import DaemonPool

from ...exclusion_records import exclusion_line, standing_exclusions
from ...places import check_apart
from ...progress import progress
from ..importer import ColumnarOptions, ReadSample
from ..reading.sample import ForeignShard, object_shards
from ..registration.parts import IndexFiles, object_rows, shard_path
from ..registration.register import APART, RegistrationReport, transaction
from ..registration.selection import EVERYTHING, ListedObjects, Selection, list_selected
from ..registration.shard_rows import group_name
from ..registration.source_difference import token_of
from ..registration.taken_down import TakenDown
from ..registration.unread_files import unread_files
from .dataset_layout import LeRobotEpisode, episode_key
from .episode_difference import episode_difference
from .lerobot_import import LeRobotDataset, feature_field, open_dataset
from .rows import FrameTimes

AT_ONCE = 8
"""Episodes read concurrently."""
PACKETS = "media_index"
STREAMS = "streams"
LANGUAGE = "language"
ROW_BLOCKS = "row_blocks"
"""Groups of packet tables, other copied fields, language, and row blocks of long streams."""
PART_EPISODES = 1024
"""Fewest episodes per part but the last."""
_AHEAD = 64


def register_lerobot(
    root: Root,
    store: Store,
    dataset: str,
    *,
    without: Sequence[str] = (),
    workers: int = AT_ONCE,
    selection: Selection = EVERYTHING,
    episodes: Sequence[tuple[int, int]] = (),
    allow_missing: bool = False,
) -> RegistrationReport:
    """Publish a version of a LeRobot dataset, or the next one if episodes were added or changed.

    Reads every video once. Memory: streams of 64 episodes.

    without: features to leave out. episodes: (first, last) index ranges, or none. allow_missing: as for `register`.

    Raises: InvalidStore if there is no such dataset, or if packets are not contiguous; Corrupt with episode and row;
    Conflict if `dataset` has another source or changed meanwhile; EmptyVersion.
    """
    check_dataset_name(dataset)
    check_apart(root.store, store, APART)
    check_recordable(store.url)
    root.create()
    parent = root.open(newest.id) if (newest := root.state.newest(dataset)) else None
    listed = list_selected(store, "lerobot", selection)
    options = ColumnarOptions(without=frozenset(without), episodes=tuple(episodes))
    source = _source(store, listed, options._replace(allow_missing=allow_missing))
    cameras = _cameras(source)
    used = _needed_objects(source, cameras)
    chosen = (
        {"format": "lerobot", "without": sorted(set(without))} | selection.to_json() | options.episodes_json()
    )
    denied = _denied_episodes(TakenDown(root, dataset, store), source, cameras, is_new=parent is None)
    numbers = [number for number in source.layout.episodes if number not in denied]
    units = {number: _unit_id(source, store, cameras, number) for number in numbers}
    denied_keys = {episode_key(number) for number in denied}
    changes = episode_difference(parent, store, chosen, units, used, denied_keys)
    if changes.fresh:
        work = EpisodeParts(root, store, dataset, source, cameras, units, workers)
        version = work.publish(parent, changes.fresh, changes.left_out, chosen, used)
    elif parent is not None:
        stands = standing_exclusions(root.store, dataset)  # in one log entry: a kill leaves no excluded row
        version = publish_without(root, parent, changes.left_out, exclusions=stands)
    else:
        raise EmptyVersion(f"{store.url} has no episode; nothing was registered")
    for known_place in sorted(changes.places):  # the source may have moved
        put_place(root.store, known_place, store.url)
    return RegistrationReport(
        version=version,
        new=len(changes.fresh) - len(changes.replaced),
        replaced=len(changes.replaced),
        missing=len(changes.missing),
        same=len(units) - len(changes.fresh),
        taken_down=len(denied),
        others=listed.n - len(used),
        refusals=listed.refusals,
        notes=[*_notes(source, listed, used), *exclusion_line(version, parent)],
        missing_parts=source.stated.lines(),
    )


def _source(store: Store, listed: ListedObjects, options: ColumnarOptions) -> LeRobotDataset:
    source = open_dataset(store, listed.infos, options)
    source.stated.leave_out(listed.why_left_out)
    if not options.allow_missing:
        source.stated.refuse()
    return source


def _notes(source: LeRobotDataset, listed: ListedObjects, used: Sequence[ObjectInfo]) -> list[str]:
    with_samples = [info for info in used if not info.key.startswith("meta/")]
    return [*source.notes(), *unread_files("lerobot", listed.infos, with_samples, source.layout.known)]


def _denied_episodes(
    taken_down: TakenDown, source: LeRobotDataset, cameras: Sequence[str], *, is_new: bool
) -> set[int]:
    """Return the numbers of the episodes that a takedown names. Raises: Denied if a new dataset has no others."""
    denied = set[int]()
    for number, episode in source.layout.episodes.items():
        objects = [episode.data, *(episode.videos[camera].key for camera in cameras)]
        names_object = any(taken_down.has_object(key) for key in objects)
        # Without provenance: its only compared column is `raw_key`, the object of the rows.
        if names_object or taken_down.has_sample(episode_key(number), {}):
            denied.add(number)
    if denied and is_new and len(denied) == len(source.layout.episodes):
        raise taken_down.all_denied_error(f"the {len(denied)} episodes")
    return denied


def _cameras(source: LeRobotDataset) -> list[str]:
    cameras = sorted(name for name, feature in source.features.items() if feature["dtype"] == "video")
    if not cameras:
        message = f"{source.url} has no video that could stay where it is: penstock import lerobot copies it"
        raise InvalidStore(message, what="video", where=source.url)
    of: dict[str, str] = {}
    for episode in source.layout.episodes.values():
        for camera in cameras:
            key = episode.videos[camera].key
            if of.setdefault(key, camera) != camera:
                message = f"{key} is the video of {of[key]} and of {camera}; leave one out (--without)"
                raise InvalidStore(message, what=key, given=[of[key], camera], accepted="one camera")
    return cameras


def _needed_objects(source: LeRobotDataset, cameras: Sequence[str]) -> list[ObjectInfo]:
    keys = {one.data for one in source.layout.episodes.values()}
    keys |= {one.videos[camera].key for one in source.layout.episodes.values() for camera in cameras}
    return [info for key, info in source.infos.items() if key in keys or key.startswith("meta/")]


def _unit_id(source: LeRobotDataset, store: Store, cameras: Sequence[str], number: int) -> str:
    episode = source.layout.episodes[number]
    keys = [episode.data, *(episode.videos[camera].key for camera in cameras)]
    layout = source.layout
    # The objects' tokens, what meta/ states of the episode, and what all episodes share: a change makes a new unit.
    facts: list[Any] = [
        [[key, token_of(store, source.infos[key])] for key in keys],
        [*episode[:3], {camera: episode.videos[camera] for camera in cameras}, *episode[4:]],
        # A sample holds these too, so a change of them makes another sample.
        [str(layout.fps), layout.robot, source.features, sorted(layout.tasks.items())],
    ]
    # Only if there are some: the units of datasets without subtasks keep their ids.
    if layout.subtasks:
        facts.append(sorted(layout.subtasks.items()))
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _row_blocks(sample: ReadSample, field: str) -> bytes:
    """Return row blocks; b"" for a short field."""
    data = sample.fields[field]
    if has_row_blocks(field, len(data)):
        return index_rows(data)
    return b""


class _ReadEpisode(NamedTuple):
    sample: ReadSample
    runs: Mapping[str, PacketRun]


@dataclass(frozen=True, slots=True)
class EpisodeParts:
    root: Root
    """Target root."""
    store: Store
    """The source's store."""
    dataset: str
    """Dataset name to publish."""
    source: LeRobotDataset
    """LeRobot's dataset."""
    cameras: Sequence[str]
    """Cameras registered in place."""
    units: Mapping[int, str]
    """Index -> `unit_id`."""
    workers: int
    """Episodes read concurrently."""

    def publish(
        self,
        parent: Version | None,
        fresh: Sequence[int],
        left_out: RowsToExclude,
        chosen: Mapping[str, Any],
        used: Sequence[ObjectInfo],
    ) -> Version:
        """Publish the episodes `fresh`. Raises: as `register_lerobot`.

        left_out: samples to replace. used: objects that the version depends on.
        """
        root = self.root
        place = place_id(self.store, used)
        groups = self._groups(parent)
        if is_adopted(root.store, place):
            raise Conflict(
                f"these objects of {self.store.url} were copied into {root.url} for another dataset, and may not all "
                "be there: penstock import makes a copy for this one"
            )
        txn = transaction(root, self.dataset, place, chosen, parent)
        # Before the version: readers find its objects by this record.
        put_place(root.store, place, self.store.url)
        parts = list[Part]()
        shards = list[ForeignShard]()
        with root.heartbeat(txn):
            read = progress(self._read(fresh), "register", total=len(fresh))
            for number, numbers in enumerate(self._apart(fresh)):
                episodes = [self.source.layout.episodes[one] for one in numbers]
                part, own = self._part(txn, place, f"{number:05d}", episodes, read, groups)
                parts.append(part)
                shards += own
            return publish_registered(
                root,
                self.dataset,
                txn,
                f"data/{txn}/registered",
                parts,
                samples=None,
                objects=ObjectsTable(
                    table=foreign_table(object_rows(self.store, place, shards)),
                    facts={"registered": canonical(dict(chosen)).decode()},
                ),
                parent=parent,
                to_exclude=left_out,
                producer={
                    "registered": dict(chosen),
                    "place": place,
                    **self.source.stated.to_json(self.store.url),
                },
                created_us=max(info.modified_us or 0 for info in used),
                field_facts=self._facts(),
                exclusions=standing_exclusions(root.store, self.dataset),
            )

    def _groups(self, parent: Version | None) -> dict[str, str]:
        known = {
            group: set(body["field_nbytes"])
            for group, body in (parent.manifest["groups"] if parent else {}).items()
        }
        group_of = {"episode.json": STREAMS}
        if self.source.language is not None:
            group_of[FIELD] = LANGUAGE
        in_use = {PACKETS, STREAMS, LANGUAGE, ROW_BLOCKS}
        for camera in self.cameras:
            field = f"{camera}.run"
            # The next version extends its parent's groups, so a camera keeps its group.
            before = next((group for group, fields in known.items() if field in fields), None)
            group_of[field] = before or group_name(field, {*in_use, *known})
            group_of[field + SUFFIX] = PACKETS
            in_use.add(group_of[field])
        for name, feature in self.source.features.items():
            if feature["dtype"] != "video":
                group_of[feature_field(name, feature)] = STREAMS
                if feature["dtype"] != "string":
                    group_of[f"{name}.ns.npy"] = STREAMS
        blocks = [field + ROWS for field in group_of if has_row_blocks(field, MIN_BYTES + 1)]
        before = {field: group for group, fields in known.items() for field in fields if field.endswith(ROWS)}
        if before:  # of an earlier registration, or added since
            blocks = [field for field in blocks if field in before]
        group_of |= {field: before.get(field, ROW_BLOCKS) for field in blocks}
        for group in {*group_of.values()} & known.keys():
            fields_now = {field for field, of in group_of.items() if of == group}
            if fields_now != known[group]:
                raise FieldMismatch(
                    f"the features of {self.store.url} changed: {sorted(fields_now ^ known[group])}; register it "
                    "under another name",
                    what="features",
                    where=self.store.url,
                    given=sorted(fields_now ^ known[group]),
                )
        return group_of

    def _facts(self) -> dict[str, dict[str, Any]]:
        out = {}
        for name, feature in self.source.features.items():
            field = f"{name}.run" if feature["dtype"] == "video" else feature_field(name, feature)
            out[field] = self.source.feature_facts(name)
        return out

    def _apart(self, numbers: Sequence[int]) -> list[list[int]]:
        keys = {
            n: {self.source.layout.episodes[n].videos[camera].key for camera in self.cameras} for n in numbers
        }
        # Video -> the last of these episodes that is in it.
        last = {key: at for at, n in enumerate(numbers) for key in keys[n]}
        out = list[list[int]]()
        episodes = list[int]()
        until = 0
        for at, number in enumerate(numbers):
            episodes.append(number)
            until = max([until, *(last[key] for key in keys[number])])
            # A part ends where no video continues, so that each video lies in one shard.
            if until == at and len(episodes) >= PART_EPISODES:
                out.append(episodes)
                episodes = []
        return [*out, episodes] if episodes else out

    def _part(
        self,
        txn: str,
        place: str,
        name: str,
        episodes: Sequence[LeRobotEpisode],
        read: Iterator[_ReadEpisode],
        group_of: Mapping[str, str],
    ) -> tuple[Part, list[ForeignShard]]:
        shards = dict[str, ForeignShard]()
        starts = dict[str, int]()
        for camera in self.cameras:
            videos = sorted({one.videos[camera].key for one in episodes})
            (shards[camera],) = object_shards([self.source.infos[key] for key in videos], len(videos))
            # Videos are joined to one shard, so a packet's place adds the start of its video.
            starts |= dict(zip(videos, shards[camera].offsets, strict=True))
        places = {camera: list[tuple[int, int, int]]() for camera in self.cameras}
        keys = list[str]()
        prefix = f"data/{txn}/registered"
        blocks = [field for field in group_of if field.endswith(ROWS)] if self._is_long(episodes) else []
        writer = PartWriter(
            self.root.store, txn=txn, attempt="registered", name=name, group_of=group_of.__getitem__
        )
        try:
            for episode, (sample, runs) in zip(
                episodes, read, strict=False
            ):  # `read` continues with the next part
                fields = {**sample.fields, **{f"{c}.run{SUFFIX}": run.packets for c, run in runs.items()}}
                fields |= {field: _row_blocks(sample, field.removesuffix(ROWS)) for field in blocks}
                source = {**sample.source, "raw_key": episode.data, "unit_id": self.units[episode.number]}
                writer.add(make_sample(sample.key, fields, sample.metadata, source))
                keys.append(sample.key)
                for camera, run in runs.items():
                    at = starts[episode.videos[camera].key] + run.offset
                    places[camera].append((at, run.nbytes, run.crc32c))
            part = writer.finish()
        finally:
            writer.close()
        for camera, shard in shards.items():
            field = f"{camera}.run"
            group = group_of[f"{camera}.run"]
            path = shard_path(place, shard)
            spans = {field: np.array(places[camera], np.int64)}
            index = IndexFiles.of(path, pa.array(keys), spans).put(
                self.root.store,
                f"{prefix}/{group}-{name}",
                part=part.id,
                group=group,
                path=path,
                nbytes=shard.nbytes,
                n_rows=len(keys),
            )
            part = replace(part, shards=(*part.shards, index))
        return part, list(shards.values())

    def _is_long(self, episodes: Sequence[LeRobotEpisode]) -> bool:
        """Return whether arrays may have row blocks: 128 bytes of header, 8 at most per value."""
        widths = [prod(one["shape"]) for one in self.source.features.values() if one["dtype"] != "video"]
        # An upper bound from the metadata: no row is read yet.
        return 128 + 8 * max(widths, default=1) * max(one.length for one in episodes) > MIN_BYTES

    def _read(self, numbers: Sequence[int]) -> Iterator[_ReadEpisode]:
        with DaemonPool(self.workers, "penstock-register") as pool:
            # In blocks: `map` submits all episodes at once, and would keep all their streams.
            for start in range(0, len(numbers), _AHEAD):
                yield from pool.map(self._episode, numbers[start : start + _AHEAD])

    def _episode(self, number: int) -> _ReadEpisode:
        episode = self.source.layout.episodes[number]
        runs: dict[str, PacketRun] = {}
        frames: list[FrameTimes] = []
        for camera, opened_video in self.source.videos(episode):
            what, file, video, span = opened_video
            runs[camera] = packet_run(video, span, file, what)
            frames.append(opened_video.times(camera))
        return _ReadEpisode(self.source.rows(episode, frames), runs)
