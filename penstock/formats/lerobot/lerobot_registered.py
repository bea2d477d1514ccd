"""Register LeRobot's videos where they lie: numbers and texts are copied, packets are runs of the owner's files.

An episode's `unit_id` is a hash of its objects and of its metadata. If the place is registered again, new and
changed episodes replace the earlier ones in the next version.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loader import Root, Version
from loader.dataset.names import check_dataset_name
from loader.dataset.tables.foreign_objects import foreign_objects, is_adopted, put_place
from loader.dataset.writer import publish_exclusions
from loader.dataset.writing.exclude import Superseded
from loader.errors import Conflict, EmptyVersion, InvalidStore
from loader.json_text import parse_json
from loader.storage import ObjectInfo, Store

from ..importing.importer import Options
from ..registration.earlier import live_samples, token_of
from ..registration.register import RegistrationReport, check_apart
from ..registration.selection import EVERYTHING, Selection, list_selected
from .dataset_layout import LeRobotEpisode
from .episode_parts import EpisodeParts
from .lerobot_import import Dataset, dataset_in, key_of

AT_ONCE = 8
"""Episodes that are read at the same time."""


def register_lerobot(
    root: Root,
    store: Store,
    dataset: str,
    *,
    without: Sequence[str] = (),
    workers: int = AT_ONCE,
    selection: Selection = EVERYTHING,
    episodes: Sequence[tuple[int, int]] = (),
) -> RegistrationReport:
    """Publish a version of the episodes at a place, or the next version with new and changed episodes.

    Nothing is written at the place. Every video is read once. The counts of the result are episodes. Memory:
    streams of 64 episodes.

    without: features to leave out, by feature or field name. workers: threads.
    selection: objects to register. episodes: (first, last) numbers to register; empty for all.

    Raises: InvalidStore for a place that is no dataset, or whose packets are not contiguous; Corrupt with
    episode and row; Conflict if the dataset is of another place, or changed meanwhile; EmptyVersion; Changed;
    StoreError.
    """
    check_dataset_name(dataset)
    check_apart(root.url, store.url)
    root.create()
    parent = root.open(newest.id) if (newest := root.state.newest(dataset)) else None
    listed = list_selected(store, "lerobot", selection)
    options = Options(without=frozenset(without), episodes=tuple(episodes))
    source = dataset_in(store, listed.infos, options)
    cameras = _cameras(source)
    used = _used(source, cameras)
    if not cameras:
        raise InvalidStore(
            f"{store.url} has no video that could stay where it is: penstock import lerobot copies it"
        )
    chosen = {"format": "lerobot", "without": sorted(set(without)), **selection.to_json()}
    chosen |= options.episodes_json()
    units = {number: _unit_id(source, store, cameras, one) for number, one in source.layout.episodes.items()}
    since = _difference(parent, store, chosen, units, used)
    version = parent
    if since.fresh:
        work = EpisodeParts(root, store, dataset, source, cameras, units, workers)
        version = work.publish(parent, since.fresh, since.left_out, chosen, used)
    elif since.missing and parent is not None:
        version = publish_exclusions(root, parent.name, sorted(since.missing), _reason("gone"), None)
    if version is None:
        raise EmptyVersion(f"{store.url} has no episode; nothing was registered")
    for known in sorted(since.places):
        put_place(root.store, known, store.url)
    return RegistrationReport(
        version=version,
        new=len(since.fresh) - len(since.replaced),
        replaced=len(since.replaced),
        missing=len(since.missing),
        same=len(units) - len(since.fresh),
        others=listed.n - len(used),
        refusals=listed.refusals,
        left_out=source.layout.left_out,
    )


def _cameras(source: Dataset) -> list[str]:
    """Return the cameras to register."""
    cameras = sorted(name for name, feature in source.features.items() if feature["dtype"] == "video")
    of: dict[str, str] = {}
    for episode in source.layout.episodes.values():
        for camera in cameras:
            key = episode.videos[camera].key
            if of.setdefault(key, camera) != camera:
                raise InvalidStore(
                    f"{key} is the video of {of[key]} and of {camera}; leave one out (--without)"
                )
    return cameras


def _used(source: Dataset, cameras: Sequence[str]) -> list[ObjectInfo]:
    """Return the objects that the version depends on."""
    keys = {one.data for one in source.layout.episodes.values()}
    keys |= {one.videos[camera].key for one in source.layout.episodes.values() for camera in cameras}
    return [info for key, info in source.infos.items() if key in keys or key.startswith("meta/")]


def _unit_id(source: Dataset, store: Store, cameras: Sequence[str], episode: LeRobotEpisode) -> str:
    """Return a hash of everything that an episode's sample depends on."""
    keys = [episode.data, *(episode.videos[camera].key for camera in cameras)]
    layout = source.layout
    facts = [
        [[key, token_of(store, source.infos[key])] for key in keys],
        [*episode[:3], {camera: episode.videos[camera] for camera in cameras}, *episode[4:]],
        [str(layout.fps), layout.robot, source.features, sorted(layout.tasks.items())],
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


class _Difference(NamedTuple):
    """Episodes of a place, compared with the newest version."""

    fresh: list[int]
    """Numbers of the episodes to read."""
    replaced: frozenset[str] = frozenset()
    """Keys of samples whose episode changed."""
    missing: frozenset[str] = frozenset()
    """Keys of samples whose episode no longer exists."""
    places: frozenset[str] = frozenset()
    """The version's places outside the root."""
    left_out: Superseded = Superseded()
    """Rows of the samples that are replaced or missing."""


def _difference(
    version: Version | None,
    store: Store,
    chosen: Mapping[str, Any],
    units: Mapping[int, str],
    used: Sequence[ObjectInfo],
) -> _Difference:
    """Return how the episodes differ from the newest version's."""
    if version is None:
        return _Difference(list(units))
    objects, facts = foreign_objects(version.store, version.manifest.get("foreign", ()))
    if parse_json(facts.get("registered", "{}")) != chosen:
        raise Conflict(
            f"{version.name} was registered as {facts.get('registered', 'nothing')}, which {dict(chosen)} is not; "
            "choose another name"
        )
    if not {one.key for one in objects} & {info.key for info in used}:
        raise Conflict(f"{store.url} has none of the videos of {version.name}; choose another name")
    present, same = {key_of(number): unit for number, unit in units.items()}, set[str]()
    replaced, missing, rows = set[str](), set[str](), dict[tuple[str, str], list[int]]()
    for sample in live_samples(version, "unit_id"):
        if sample.value == present.get(sample.key, ""):
            same.add(sample.key)
        elif sample.value:  # other samples were written, not registered
            (replaced if sample.key in present else missing).add(sample.key)
            why = _reason("another" if sample.key in present else "gone")
            rows.setdefault((sample.part, why), []).append(sample.row)
    n_rows = {part: int(version.parts.n_rows[version.parts.position(part)]) for part, _ in rows}
    return _Difference(
        fresh=[number for number in units if key_of(number) not in same],
        replaced=frozenset(replaced),
        missing=frozenset(missing),
        places=frozenset(one.place for one in objects if not is_adopted(version.store, one.place)),
        left_out=Superseded(rows=rows, n_rows=n_rows),
    )


def _reason(how: str) -> str:
    return f"registered again: the episode is {how}"
