"""Decide which registered objects contain bytes of denied samples: no adoption or migration copies them.

An object contains such bytes if:

- a takedown recorded it, by the hash of its path, or by its key, size and change token;
- a version has a denied sample in it that is not redacted yet;
- its shard's index has a redacted row, which has no fields, and the object has bytes outside all fields.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from loader import Root, Version
from loader.dataset.log.state import Deny
from loader.dataset.publishing.apply_denies import DenyEntries, find_denied_rows
from loader.dataset.tables.foreign_objects import ForeignObject, foreign_objects, foreign_place, is_foreign
from loader.dataset.tables.place_records import is_adopted, owner_record
from loader.dataset.tables.trusted_places import is_bucket, is_vouched, untrusted_error
from loader.dataset.writing.redact import shard_index
from loader.errors import Corrupt, Denied, ObjectNotFound, PenstockError
from loader.storage import Store, open_store
from loader.storage.external_shards import FOREIGN, difference
from loader.storage.store import as_disk

from .hashed_names import Marks, mark
from .readable_versions import WholeVersions, read_whole_versions
from .record import Place, read_record


def registered_objects(version: Version) -> dict[str, list[ForeignObject]]:
    """Return path of a registered shard -> its objects, by offset. Costs a request per table of objects."""
    out: dict[str, list[ForeignObject]] = {}
    for object_ in foreign_objects(version.store, version.manifest["foreign"])[0]:
        out.setdefault(object_.shard, []).append(object_)
    return out


def denied_objects(
    version: Version, shard: dict[str, Any], candidates: Sequence[ForeignObject], rows: Collection[int]
) -> list[ForeignObject]:
    """Return the candidates, objects of a registered shard, that contain fields of these rows. Reads its index."""
    starts = [one.offset for one in candidates]
    _, places = shard_index(version.store, shard)
    numbers = set()
    for table in places.values():  # int64 [rows, 3] of a field: offset, nbytes, crc32c
        for row in rows:
            offset, nbytes, _ = table[row].tolist()
            if nbytes:  # a redacted row has no bytes, and no offset
                numbers.add(bisect_right(starts, offset) - 1)
    return [candidates[number] for number in sorted(numbers)]


def registered_place(marks: Marks, object_: ForeignObject, shard: dict[str, Any]) -> Place:
    """Return a registered object's `Place`, for `check_registered`. shard: the shard that contains it."""
    facts: dict[str, Any] = {"place": object_.place, "mark": mark(marks.salt, marks.dataset, object_.path)}
    # Node caches name pages by the hash of the shard's path.
    facts["pages"] = [hashlib.sha256(shard["path"].encode()).hexdigest(), shard["nbytes"]]
    # A takedown's record names no denied sample: an object whose key does is known only by its mark.
    if not marks.names(object_.key):
        facts |= {
            "key": object_.key,
            "nbytes": object_.nbytes,
            "etag": object_.etag,
            "modified_us": object_.modified_us,
        }
    return {
        "check": "registered",
        "what": "registered bytes, which are their owner's",
        "of": marks.dataset,
        **facts,
    }


def check_registered(store: Store, place: Place) -> Place:
    """Check a registered object; return its `Place` with `clean`, and `evidence` or `why`. store: the root's.

    Only its owner may change or delete it. It is clean if it is gone or was replaced. Costs a HEAD, and a LIST if the
    object is gone.
    """
    if "key" not in place:
        why = "a takedown denied its name too, so penstock cannot find it: ask its owner whether the object is deleted"
        return {**place, "clean": False, "why": why}
    url = ""
    try:
        record, url = owner_record(store, place["place"])
        if not is_bucket(url) and not is_vouched(store, record, url):
            untrusted = untrusted_error(store, record, url, "checked")
            return {**place, "clean": False, "why": str(untrusted)}
        info = open_store(url).head(place["key"])
    except ObjectNotFound as error:
        if url:
            return _check_location(place, url)
        return {**place, "clean": False, "why": str(error)}
    except PenstockError as error:
        return {
            **place,
            "clean": False,
            "why": f"{url}/{place['key']} could not be checked: {type(error).__name__}",
        }
    differs = difference(info, place["nbytes"], place["etag"], place["modified_us"])
    if differs is not None:
        return {
            **place,
            "clean": True,
            "evidence": f"{url}/{place['key']} was replaced: it {differs.text}",
        }
    why = (
        f"{url}/{place['key']} still exists and belongs to its owner: ask the owner to delete it, or to write it "
        "without the denied samples"
    )
    return {**place, "clean": False, "why": why}


def _check_location(place: Place, url: str) -> Place:
    """Return the `Place` of an object that its location lacks. It is clean if the location has anything to read."""
    store = open_store(url)
    is_disk = as_disk(store) is not None
    if is_disk or is_bucket(url):
        # A disk that is not mounted, or a bucket that does not exist, lacks each object.
        try:
            first = next(iter(store.list("")), None)
        except PenstockError as error:
            return {**place, "clean": False, "why": f"{url} could not be listed: {type(error).__name__}"}
        if is_disk and first is None:
            why = (
                f"{url} has no file on this machine: check it where its disk is mounted. If its owner deleted all of "
                "its files, put any file there"
            )
            return {**place, "clean": False, "why": why}
    return {**place, "clean": True, "evidence": f"no object at {url}/{place['key']}"}


Int64s = np.ndarray[Any, np.dtype[np.int64]]
Shard = tuple[Version, dict[str, Any]]
"""Version, and a row of its shards table."""


class _Copies(NamedTuple):
    """Paths of the copies of registered objects in the root."""

    adopted: set[str]
    """In adopted locations: versions read these copies."""
    orphans: set[str]
    """In other locations, copied by an adoption that was killed."""


class DeniedBytes:
    """The objects that contain bytes of denied samples. Reads each record once.

    denies: all takedowns in the root's log.
    """

    def __init__(self, store: Store, denies: Sequence[Deny]) -> None:
        self._store = store
        self._denies = denies
        self._rows: dict[str, DenyEntries] = {}

    @cached_property
    def _on_record(self) -> list[tuple[str, Place]]:
        """(salt of the takedown, place) of each registered object that a takedown recorded."""
        places = []
        for deny in self._denies:
            recorded = read_record(self._store, deny.n).having("registered")
            places += [(deny.salt, place) for place in recorded]
        return places

    @cached_property
    def _marks(self) -> dict[tuple[str, str], set[str]]:
        """(salt, dataset) -> marks of the recorded paths."""
        out: dict[tuple[str, str], set[str]] = {}
        for salt, place in self._on_record:
            out.setdefault((salt, place["of"]), set()).add(place["mark"])
        return out

    @cached_property
    def _known_places(self) -> set[tuple[Any, ...]]:
        """(key, nbytes, etag, modified_us) of the recorded objects whose key names no denied sample."""
        out = set()
        for _, place in self._on_record:
            if "key" in place:
                out.add((place["key"], place["nbytes"], place["etag"], place["modified_us"]))
        return out

    def has_path(self, path: str) -> bool:
        """Return whether a takedown recorded this path, `foreign/<place>/<key>`."""
        return any(mark(salt, of, path) in marks for (salt, of), marks in self._marks.items())

    def has(self, object_: ForeignObject) -> bool:
        """Return whether a takedown recorded this object."""
        facts = (object_.key, object_.nbytes, object_.etag, object_.modified_us)
        return facts in self._known_places or self.has_path(object_.path)

    def in_shard(self, shards: Sequence[Shard], objects: Sequence[ForeignObject]) -> set[int]:
        """Return the numbers of a registered shard's objects that contain such bytes. Reads its indexes.

        shards: versions with the shard, each with its row. objects: the shard's, by offset.
        """
        if not self._denies:
            return set()
        numbers = {number for number, one in enumerate(objects) if self.has(one)}
        places: dict[str, list[Int64s]] = {}
        suspect = set[str]()
        for version, shard in shards:
            _, fields = shard_index(version.store, shard)
            table = np.stack(list(fields.values()), axis=1)
            live = version.parts.live_members(version.parts.position(shard["part"]))
            # [rows]: a redacted row is excluded, and has no fields.
            denied = ~live & ~table.any(axis=(1, 2))
            denied[list(self._version_denies(version).get(shard["part"], ()))] = True
            if denied.any():
                suspect.add(version.id)
            # [fields, 2]: offset and nbytes of the fields that may stay.
            places.setdefault(version.id, []).append(table[~denied].reshape(-1, 3)[:, :2])
        # The only object of the shard has the denied sample, too.
        if suspect and len(objects) == 1:
            return {0}
        ends = [*(one.offset for one in objects[1:]), shards[0][1]["nbytes"]]
        for id in suspect:
            numbers |= _not_covered([one.offset for one in objects], ends, np.concatenate(places[id]))
        return numbers

    @cached_property
    def _copies(self) -> _Copies:
        paths = {info.key for info in self._store.list(FOREIGN)}
        places = {foreign_place(path) for path in paths}
        adopted_places = {place for place in places if self._is_adopted(place)}
        adopted = {path for path in paths if foreign_place(path) in adopted_places}
        return _Copies(adopted, paths - adopted)

    def _is_adopted(self, place: str) -> bool:
        """Return whether versions read copies of this location's objects: an adoption made them, and ended."""
        try:
            return is_adopted(self._store, place)
        except Corrupt:
            # Every writer of the root may have forged this damaged record in `places/`. It must not stop a takedown.
            # No version reads the copies, because readers raise Corrupt too.
            return False

    def adopted(self, version: Version) -> dict[str, list[str]]:
        """Return path of a registered shard -> paths of its adopted objects that contain such bytes."""
        if self._denies:
            return self.of_version(version, self._copies.adopted)
        return {}

    def orphan_copies(self, root: Root, dataset: str) -> list[str]:
        """Return the paths of such objects that a killed adoption copied: versions read the owner's object instead."""
        if not self._denies or not self._copies.orphans:
            return []

        def denied_orphans(versions: WholeVersions) -> set[str]:
            denied: set[str] = set()
            for _, version in versions:
                # A version names an object by the path that its copy would have.
                paths_by_shard = self.of_version(version, self._copies.orphans)
                denied.update(*paths_by_shard.values())
            return denied

        return sorted(read_whole_versions(root, dataset, denied_orphans))

    def of_version(self, version: Version, among: Collection[str]) -> dict[str, list[str]]:
        """Return path of a registered shard -> paths of its objects in `among` that contain such bytes."""
        if not self._denies or not among or not version.manifest.get("foreign"):
            return {}
        shards: dict[str, list[Shard]] = {}  # path -> rows of the shards table; parts may share a shard
        for row in version.parts.shard_rows().to_pylist():
            if is_foreign(row["path"]):
                shards.setdefault(row["path"], []).append((version, row))
        out = {}
        for path, objects in registered_objects(version).items():
            is_candidate = any(one.path in among for one in objects)
            if path not in shards or not is_candidate:
                continue  # its index is not read
            numbers = sorted(self.in_shard(shards[path], objects))
            denied_paths = [objects[number].path for number in numbers if objects[number].path in among]
            if denied_paths:
                out[path] = denied_paths
        return out

    def _version_denies(self, version: Version) -> DenyEntries:
        if version.id not in self._rows:
            self._rows[version.id] = find_denied_rows(version, self._denies)
        return self._rows[version.id]


def _not_covered(starts: Sequence[int], ends: Sequence[int], fields: Int64s) -> set[int]:
    """Return numbers of objects with a byte in none of these fields: int64 [n, 2] of offset, nbytes. O(n log n)."""
    fields = fields[np.argsort(fields[:, 0], kind="stable")]
    # [n]: the furthest end of the fields up to each one, as fields may overlap.
    reach = np.maximum.accumulate(fields.sum(axis=1)) if len(fields) else np.zeros(0, np.int64)
    out = set()
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        at = start
        while at < end:
            known = int(np.searchsorted(fields[:, 0], at, "right"))
            if not known or reach[known - 1] <= at:
                out.add(number)
                break
            at = int(reach[known - 1])
    return out


def denial(name: str) -> Denied:
    """Return the error for an object that must not be copied. name: its address."""
    return Denied(
        f"{name} holds denied samples, so penstock does not copy it whole. `penstock import` copies the other samples. "
        "Or ask its owner to write it without the denied ones. Then register and seal again, and retire the versions "
        "that read the old object"
    )
