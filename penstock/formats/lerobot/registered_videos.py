"""A version over LeRobot's videos where they lie: numbers and texts are copied, packets are runs of the owner's files.

An episode's `unit_id` is a hash of its objects and of all that the metadata tell of it. Registered again, the next
version has the episodes that are new or others by now, in the place of the earlier ones.
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
from ..registration.register import Registered, check_apart
from ..registration.selection import EVERYTHING, Selection, list_selected
from .dataset_layout import Episode
from .episode_parts import EpisodeParts
from .importer import Dataset, dataset_in

AT_ONCE = 8
"""Episodes that are read together."""


def register_lerobot(
    root: Root,
    store: Store,
    dataset: str,
    *,
    without: Sequence[str] = (),
    workers: int = AT_ONCE,
    selection: Selection = EVERYTHING,
    episodes: Sequence[tuple[int, int]] = (),
) -> Registered:
    """Publish a version of the episodes of a place, or the next one with those that are new or others by now.

    Nothing is written in the place. Every video is read once. Counts of the result are of episodes. Memory: streams of
    64 episodes.

    without: Features that are left out, by their name or their field's. workers: Threads.
    selection: Objects that are looked at. episodes: First and last numbers of those that are registered; empty for all.

    Raises: InvalidStore for a place that is no dataset, or whose packets cannot be read where they lie; Corrupt with
    episode and row; Conflict where the dataset is not of this place, or somebody published meanwhile; EmptyVersion;
    Changed; StoreError.
    """
    check_dataset_name(dataset)
    check_apart(root.url, store.url)
    root.create()
    parent = root.open(newest.id) if (newest := root.state.newest(dataset)) else None
    listed = list_selected(store, "lerobot", selection)
    options = Options(without=frozenset(without), episodes=tuple(episodes))
    found = dataset_in(store, listed.infos, options)
    cameras = _cameras(found)
    used = _used(found, cameras)
    if not cameras:
        raise InvalidStore(
            f"{store.url} has no video that could stay where it is: penstock import lerobot copies it"
        )
    chosen = {"format": "lerobot", "without": sorted(set(without)), **selection.to_json()}
    chosen |= options.episodes_json()
    units = {number: _unit_id(found, store, cameras, one) for number, one in found.layout.episodes.items()}
    since = _difference(parent, store, chosen, units, used)
    version = parent
    if since.fresh:
        work = EpisodeParts(root, store, dataset, found, cameras, units, workers)
        version = work.publish(parent, since.fresh, since.left_out, chosen, used)
    elif since.gone and parent is not None:
        version = publish_exclusions(root, parent.name, sorted(since.gone), _reason("gone"), None)
    if version is None:
        raise EmptyVersion(f"{store.url} has no episode; nothing was registered")
    for known in sorted(since.places):
        put_place(root.store, known, store.url)
    return Registered(
        version=version,
        new=len(since.fresh) - len(since.replaced),
        replaced=len(since.replaced),
        gone=len(since.gone),
        same=len(units) - len(since.fresh),
        others=listed.n - len(used),
        refusals=listed.refusals,
        left_out=found.layout.left_out,
    )


def key_of(number: int) -> str:
    """Return the key of an episode."""
    return f"episode_{number:06d}"


def _cameras(found: Dataset) -> list[str]:
    """Return the cameras that are registered. Raises: InvalidStore for two in one file."""
    cameras = sorted(name for name, told in found.features.items() if told["dtype"] == "video")
    of: dict[str, str] = {}
    for episode in found.layout.episodes.values():
        for camera in cameras:
            key = episode.videos[camera].key
            if of.setdefault(key, camera) != camera:
                raise InvalidStore(
                    f"{key} is the video of {of[key]} and of {camera}; leave one out (--without)"
                )
    return cameras


def _used(found: Dataset, cameras: Sequence[str]) -> list[ObjectInfo]:
    """Return the objects that the version is made of."""
    keys = {one.data for one in found.layout.episodes.values()}
    keys |= {one.videos[camera].key for one in found.layout.episodes.values() for camera in cameras}
    return [info for key, info in found.infos.items() if key in keys or key.startswith("meta/")]


def _unit_id(found: Dataset, store: Store, cameras: Sequence[str], episode: Episode) -> str:
    """Return a hash of all that an episode's sample is made of."""
    keys = [episode.data, *(episode.videos[camera].key for camera in cameras)]
    layout = found.layout
    told = [
        [[key, token_of(store, found.infos[key])] for key in keys],
        [*episode[:3], {camera: episode.videos[camera] for camera in cameras}, *episode[4:]],
        [str(layout.fps), layout.robot, found.features, sorted(layout.tasks.items())],
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


class _Difference(NamedTuple):
    """Episodes of a place, beside those that the newest version has of it."""

    fresh: list[int]
    """Numbers of episodes to read."""
    replaced: frozenset[str] = frozenset()
    """Keys of samples whose episode is another by now."""
    gone: frozenset[str] = frozenset()
    """Keys of samples whose episode is not there any more."""
    places: frozenset[str] = frozenset()
    """Places that the version has elsewhere."""
    left_out: Superseded = Superseded()
    """Rows of the samples that are replaced or gone."""


def _difference(
    version: Version | None,
    store: Store,
    chosen: Mapping[str, Any],
    units: Mapping[int, str],
    used: Sequence[ObjectInfo],
) -> _Difference:
    """Return how the episodes differ from those of the newest version. Raises: Conflict for one of another place."""
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
    replaced, gone, rows = set[str](), set[str](), dict[tuple[str, str], list[int]]()
    for one in live_samples(version, "unit_id"):
        if one.told == present.get(one.key, ""):
            same.add(one.key)
        elif one.told:  # others were written by somebody
            (replaced if one.key in present else gone).add(one.key)
            why = _reason("another" if one.key in present else "gone")
            rows.setdefault((one.part, why), []).append(one.row)
    n_rows = {part: int(version.parts.n_rows[version.parts.position(part)]) for part, _ in rows}
    return _Difference(
        fresh=[number for number in units if key_of(number) not in same],
        replaced=frozenset(replaced),
        gone=frozenset(gone),
        places=frozenset(one.place for one in objects if not is_adopted(version.store, one.place)),
        left_out=Superseded(rows=rows, n_rows=n_rows),
    )


def _reason(how: str) -> str:
    return f"registered again: the episode is {how}"
