"""Compare a LeRobot dataset's episodes with its newest registered version."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from loader import Version
from loader.dataset.tables.foreign_objects import foreign_objects
from loader.dataset.tables.place_records import is_adopted
from loader.dataset.writing.exclude import RowsToExclude
from loader.errors import Conflict
from loader.json_text import parse_json
from loader.storage import ObjectInfo, Store

from ..registration.source_difference import REGISTERED_AGAIN, list_exclusions, live_samples
from .dataset_layout import episode_key


class EpisodeDifference(NamedTuple):
    fresh: list[int]
    """Numbers of new and changed episodes."""
    replaced: frozenset[str] = frozenset()
    """Keys of changed episodes."""
    missing: frozenset[str] = frozenset()
    """Keys of removed episodes."""
    places: frozenset[str] = frozenset()
    """Ids of sources that are not adopted."""
    left_out: RowsToExclude = RowsToExclude()
    """Live samples of changed and removed episodes."""


def episode_difference(
    version: Version | None,
    store: Store,
    chosen: Mapping[str, Any],
    units: Mapping[int, str],
    used: Sequence[ObjectInfo],
    denied: Set[str],
) -> EpisodeDifference:
    """Return the difference from the newest version.

    units: index of each episode -> its `unit_id`. used: objects of the dataset. denied: keys of episodes that a
    takedown names. Raises: Conflict if the version has another source or other options.
    """
    if version is None:
        return EpisodeDifference(list(units))
    objects, facts = foreign_objects(version.store, version.manifest.get("foreign", ()))
    # Under other options every episode would count as changed or gone.
    if parse_json(facts.get("registered", "{}")) != chosen:
        name = version.name
        earlier = facts.get("registered", "nothing")
        message = f"{name} was registered as {earlier}, which {dict(chosen)} is not; choose another name"
        raise Conflict(message, what="options", where=name, given=dict(chosen), accepted=earlier)
    # A wrong folder shares no video, and would exclude every episode.
    if not {one.key for one in objects} & {info.key for info in used}:
        message = f"{store.url} has none of the videos of {version.name}; choose another name"
        raise Conflict(message, what="videos", where=store.url, accepted=version.name)
    present = {episode_key(number): unit for number, unit in units.items()}
    same = set[str]()
    replaced = set[str]()
    missing = set[str]()
    rows = dict[tuple[str, str], list[int]]()
    for sample in live_samples(version, "unit_id"):
        if sample.value == present.get(sample.key, ""):
            same.add(sample.key)
        elif sample.value and sample.key not in denied:
            # Samples without `unit_id` were written, not registered.
            if sample.key in present:
                replaced.add(sample.key)
                why = f"{REGISTERED_AGAIN}the episode is another"
            else:
                missing.add(sample.key)
                why = f"{REGISTERED_AGAIN}the episode is gone"
            rows.setdefault((sample.part, why), []).append(sample.row)
    # An excluded episode comes back only if it changed.
    for sample in list_exclusions(version, "unit_id"):
        is_unchanged = sample.value == present.get(sample.key, "")
        if is_unchanged and sample.key not in replaced:
            same.add(sample.key)
    part_sizes = {}
    for part, _ in rows:
        position = version.parts.position(part)
        part_sizes[part] = int(version.parts.n_rows[position])
    return EpisodeDifference(
        fresh=[number for number in units if episode_key(number) not in same],
        replaced=frozenset(replaced),
        missing=frozenset(missing),
        places=frozenset(one.place for one in objects if not is_adopted(version.store, one.place)),
        left_out=RowsToExclude(rows=rows, part_sizes=part_sizes),
    )
