"""Kinds of objects that hold no sample's bytes and no sample's name, by the path that their format prescribes."""

import re
from collections.abc import Collection, Iterator

from ...denied.record import Place
from ...search.overlap.protected_texts import protected_path

_NAME = r"[^/]+"
_HASH = r"[0-9a-f]{64}"
_ENTRY = r"[0-9]{12}"

WITHOUT = {
    "penstock.json": "the root's id",
    "collect/": "paths of objects, replaced at each look",
    "heartbeats/": "counts",
    "leases/": "ids of versions",
    "lists/": "ordinals; lists of the samples' versions have places of their own",
    "migrations/": "paths and checksums",
    "nodes/": "paths and checksums of ranges, and figures of checks",
    "norms/": "statistics; norms of the samples' versions have places of their own",
    "packs/": "numbers of documents; packs of the samples' versions have places of their own",
    "places/": "URLs of folders and buckets",
    "seals/": "checksums; seals of the samples' shards have places of their own",
    "starts/": "ids of versions, and paths of their manifests",
    "swept/": "paths of objects",
    "takedowns/": "keyed hashes, and paths of objects",
    "trails/": "checksums and metrics",
    "views/": "bits; views of the samples' versions have places of their own",
    "windows/": "counts; windows of the samples' versions have places of their own",
}
"""Prefixes without samples' bytes or names -> their contents."""
_FREE = re.compile(
    "|".join(
        [
            r"penstock\.json",
            rf"collect/{_NAME}/{_NAME}\.(?:json|parquet)",
            rf"nodes/.+\.json|nodes/runs/{_NAME}/{_NAME}",
            rf"heartbeats/{_NAME}",
            rf"leases/(?:{_NAME}/)?{_NAME}",  # of earlier releases: leases/<version id>/<holder>.json
            rf"(?:lists|norms|packs|seals|views|windows)/{_HASH}\.parquet",
            rf"migrations/{_NAME}\.jsonl?",
            rf"places/{_NAME}/{_ENTRY}\.json",
            rf"starts/{_NAME}\.json",
            rf"swept/{_ENTRY}(?:-[0-9a-f]+)?\.parquet",
            rf"takedowns/{_ENTRY}/[0-9a-f]+\.json",
            rf"trails/{_NAME}/{_NAME}\.(?:json|parquet)",
        ]
    )
)
_SEARCHED = {
    "data": re.compile(r".+\.(?:parquet|json|tar)"),
    # Clips of a running batch are not tables: a takedown deletes its dataset's.
    "tables": re.compile(rf".+\.(?:parquet|json)|tables/{_NAME}/clips_ahead/{_NAME}/{_NAME}/clips\.bin"),
    "stages": re.compile(r".+\.json"),
    "exclusions": re.compile(r".+\.json"),
    "slices": re.compile(rf"slices/{_NAME}/{_NAME}/[0-9]{{6}}\.(?:json|parquet)"),
    "search": re.compile(
        rf"search/[0-9a-f]{{16}}/(?:how\.json|{_NAME}-[0-9a-f]{{16}}\.(?:codes|texts)\.parquet)"
    ),
    "maps": re.compile(rf"maps/[0-9a-f]{{16}}/(?:fit\.parquet|how\.json|{_NAME}-[0-9a-f]{{16}}\.parquet)"),
    "plans": re.compile(r".+\.json"),
    "protected": re.compile(rf"protected/v-{_HASH}\.parquet"),
    "follows": re.compile(r".+\.json"),
    "ledgers": re.compile(r".+\.jsonl"),
    "cards": re.compile(rf".+/(?:card\.(?:json|md|html)|examples-{_NAME}\.jpg)"),
    "gates": re.compile(r".+\.html"),
    "reports": re.compile(r".+\.json"),
    "log": re.compile(r".+\.json"),
    "jobs": re.compile(r".+"),
    "foreign": re.compile(r".+"),
    "trainings": re.compile(
        rf"trainings/{_NAME}/(?:stop|spec\.json|{_NAME}/{_NAME}\.(?:json|json\.gz|parquet))"
    ),
}
"""First folder -> paths that a proof can search there."""
NEVER_REWRITTEN = {
    "jobs": "a data job's folder is never rewritten: penstock jobs clear deletes it",
    "foreign": "penstock takedown run --apply puts its other samples into shards, and penstock gc deletes it",
    "log": "the log is never rewritten",
    "reports": "a training's report is never rewritten: delete it",
    "trainings": "penstock takedown run --apply rewrites intervals and failures; delete others, such as a profile",
}
"""First folder -> why a takedown rewrites none of its objects."""


def is_free(path: str) -> bool:
    """Return whether a format of penstock has an object at this path, which names and holds no sample."""
    return _FREE.fullmatch(path) is not None


def is_searchable(path: str) -> bool:
    """Return whether a proof can search an object with this path."""
    pattern = _SEARCHED.get(path.partition("/")[0])
    return pattern is not None and pattern.fullmatch(path) is not None


def has_shingles(path: str, versions: Collection[str]) -> bool:
    """Return whether a table has the shingles of one of these versions, by their ids.

    A comparison that began before the takedown may have stored it since.
    """
    return any(path == protected_path(version) for version in versions)


MOST_NAMED = 100
"""Objects that a proof names as not searched; it counts the others."""


class StrangeObjects:
    """Objects that a proof cannot search: the first by name, the others by number."""

    def __init__(self) -> None:
        self._paths = list[str]()
        self._n = 0

    def add(self, path: str) -> None:
        self._n += 1
        if len(self._paths) < MOST_NAMED:
            self._paths.append(path)

    def places(self) -> Iterator[Place]:
        why = "not searched: penstock writes no object of this name or size there. Look at it, then move or delete it"
        for path in self._paths:
            yield {"check": "scan", "what": "an unknown object", "path": path, "clean": False, "why": why}
        if more := self._n - len(self._paths):
            yield {"check": "scan", "what": f"{more} more unknown objects", "clean": False, "why": why}
