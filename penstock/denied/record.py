"""A takedown's findings, recorded before anything changes: a killed run continues from them, and a proof checks them.

takedowns/<n>/<16 hex>.json n: the deny entry, 12 digits; named after their content, created once
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.log.state import Deny
from loader.errors import Corrupt
from loader.json_text import parse_json_object
from loader.storage import Store

FORMAT = 1
Place = Mapping[str, Any]
"""A place: an object or version to check, as JSON.

check: "absent", "zeros", "replaced", "remade", "retired", "raw", "registered" or "trained" (a run, not an object).
what: description. of: dataset. path: the object's. Other keys depend on the check.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakedownRecord:
    """A takedown's record."""

    n: int
    """Number of the takedown's deny entry."""
    places: tuple[Place, ...] = ()
    """Places to check, without duplicates."""
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dataset -> marks of the denied names."""

    @property
    def paths(self) -> list[str]:
        """Paths of all objects whose bytes had to be deleted or changed."""
        paths = set()
        for place in self.places:
            if place["check"] in ("absent", "replaced", "remade"):
                paths.add(place["path"])
        return sorted(paths)

    def having(self, check: str) -> list[Place]:
        return [place for place in self.places if place["check"] == check]

    def versions(self) -> frozenset[str]:
        """Return the ids of the versions that had denied samples."""
        return frozenset(place["id"] for place in self.having("retired"))


def folder(n: int) -> str:
    """Return the folder of a takedown's records."""
    return f"takedowns/{n:012d}/"


def read_record(store: Store, n: int) -> TakedownRecord:
    places: dict[bytes, Place] = {}
    marks: dict[str, set[str]] = {}
    for info in store.list(folder(n)):
        try:
            body = parse_json_object(store.get(info.key).data)
            _merge_places(places, body["places"])
            for dataset, hashes in body["marks"].items():
                marks.setdefault(dataset, set()).update(hashes)
        except DAMAGED as error:
            raise Corrupt(
                f"{store.url}/{info.key} is not a record of a takedown ({error}); restore it from a mirror"
            ) from error
    # Sorted by content: the result does not depend on the files that hold it.
    ordered = tuple(places[key] for key in sorted(places))
    sorted_marks = {}
    for dataset in sorted(marks):
        sorted_marks[dataset] = tuple(sorted(marks[dataset]))
    return TakedownRecord(n=n, places=ordered, marks=sorted_marks)


def _merge_places(known: dict[bytes, Place], places: Iterable[Place]) -> None:
    """Add places without duplicates; a raw object's deletion replaces its earlier place."""
    for place in places:
        is_raw = place["check"] == "raw"
        identity = place
        if is_raw:
            # Without `deleted`, which changes once the raw object is deleted.
            identity = {"check": "raw", "mark": place["mark"]}
        name = canonical(identity)
        is_deletion = is_raw and place["deleted"]
        if name not in known or is_deletion:
            known[name] = place


def add_to_record(
    store: Store, n: int, places: Iterable[Place], marks: Mapping[str, Iterable[str]] | None = None
) -> TakedownRecord:
    """Record new places and marks. Returns the whole record."""
    known = read_record(store, n)
    recorded = {canonical(place) for place in known.places}
    merged: dict[bytes, Place] = {}
    _merge_places(merged, known.places)
    _merge_places(merged, places)
    new = {canonical(place): place for place in merged.values()}
    added_keys = sorted(new.keys() - recorded)
    added = [new[key] for key in added_keys]
    fresh = {}
    for name, hashes in sorted((marks or {}).items()):
        unrecorded = set(hashes).difference(known.marks.get(name, ()))
        if unrecorded:
            fresh[name] = sorted(unrecorded)
    if not fresh and not added:
        return known
    # A file for what is new: records are created once and never rewritten, so a kill loses none.
    data = canonical({"format": FORMAT, "takedown": n, "places": added, "marks": fresh})
    digest = hashlib.sha256(data).hexdigest()
    store.put_if_absent(f"{folder(n)}{digest[:16]}.json", data)
    return read_record(store, n)


def condemned_versions(store: Store, denies: Iterable[Deny]) -> frozenset[str]:
    """Return the ids of versions in which takedowns found samples. Costs a read per record."""
    ids: set[str] = set()
    for deny in denies:
        ids |= read_record(store, deny.n).versions()
    return frozenset(ids)
