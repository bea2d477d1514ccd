"""Compare the objects in a source with a dataset's objects."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.shards.bitmap import unpack
from loader.dataset.tables.foreign_objects import change_token, foreign_objects, is_foreign
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.tables.place_records import is_adopted
from loader.dataset.versions.version import Version
from loader.dataset.writing.exclude import RowsToExclude
from loader.errors import Conflict
from loader.json_text import parse_json
from loader.storage import ObjectInfo, Store

REGISTERED_AGAIN = "registered again: "
"""Start of the reason why a changed or missing object's earlier samples are excluded."""
SampleRows = Mapping[str, Mapping[int, tuple[str, str]]]
"""Part id -> row -> (sample key, object key)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceDifference:
    """Difference between a source's objects and the newest version's."""

    fresh: Sequence[ObjectInfo]
    """New and changed objects, to read."""
    replaced: frozenset[str] = frozenset()
    """Keys of changed objects."""
    missing: frozenset[str] = frozenset()
    """Keys of missing objects with live samples; adopted ones are not checked."""
    same: int = 0
    """Unchanged objects."""
    earlier: frozenset[str] = frozenset()
    """Keys of all objects that earlier imports read, even if the source has lost them."""
    places: frozenset[str] = frozenset()
    """Ids of sources that are not adopted."""
    live: SampleRows | None = None
    """Live samples; empty if all objects are unchanged, None for a new dataset."""
    taken_down: frozenset[str] = frozenset()
    """Keys of new and changed objects that a takedown names, which are skipped."""

    @property
    def keys(self) -> set[str]:
        """Live samples that the dataset keeps."""
        excluded = self.replaced | self.missing
        keys: set[str] = set()
        for rows in (self.live or {}).values():
            keys.update(key for key, object_key in rows.values() if object_key not in excluded)
        return keys

    def left_out(self, version: Version | None) -> RowsToExclude:
        """Return the live samples of changed or missing objects."""
        rows: dict[tuple[str, str], list[int]] = {}
        for part, members in (self.live or {}).items():
            for row, (_, object_key) in members.items():
                if object_key in self.replaced:
                    reason = f"{REGISTERED_AGAIN}{object_key} is written again"
                elif object_key in self.missing:
                    reason = f"{REGISTERED_AGAIN}{object_key} is gone"
                else:
                    continue
                rows.setdefault((part, reason), []).append(row)
        part_sizes: dict[str, int] = {}
        if version is not None:
            for part in {part for part, _ in rows}:
                position = version.parts.position(part)
                part_sizes[part] = int(version.parts.n_rows[position])
        return RowsToExclude(rows=rows, part_sizes=part_sizes)


def difference(
    version: Version | None, chosen: Mapping[str, Any], store: Store, infos: Sequence[ObjectInfo]
) -> PlaceDifference:
    """Return the objects' difference from the newest version. chosen: format and options.

    Raises: Conflict if the version was written or imported, or registered from another source or with other options.
    """
    if version is None:
        return PlaceDifference(fresh=infos)
    objects, facts = foreign_objects(version.store, version.manifest.get("foreign", ()))
    if not objects:
        message = f"the samples of {version.name} were written, not registered; choose another name"
        raise Conflict(message, what="samples", where=version.name, given="written", accepted="registered")
    former = parse_json(facts.get("registered", "{}"))
    if former != chosen:
        message = (
            f"{version.name} was registered as {former}, which {dict(chosen)} is not; choose another name"
        )
        raise Conflict(message, what="options", where=version.name, given=dict(chosen), accepted=former)
    known = {one.key: one for one in objects}
    places = {one.place for one in objects}
    elsewhere = frozenset(place for place in places if not is_adopted(version.store, place))
    present = {info.key: info for info in infos}
    common = known.keys() & present.keys()
    if not common:
        raise Conflict(
            f"{store.url} has none of the {len(known)} objects of {version.name}, such as {min(known)}: it is another "
            "place; choose another name",
            what="objects",
            where=store.url,
            accepted=f"one of the {len(known)} objects of {version.name}",
        )
    changed = set()
    for key in common:
        info = present[key]
        if not known[key].is_unchanged(info, change_token(store, info)):
            changed.add(key)
    fresh = [info for info in infos if info.key in changed or info.key not in known]
    # An adopted object is in the root, even if its former source lacks it.
    vanished = {key for key in known.keys() - present.keys() if known[key].place in elsewhere}
    live: dict[str, dict[int, tuple[str, str]]] = {}
    if fresh or vanished:  # otherwise no key table is read
        live = _read_registered(version)
    with_samples: set[str] = set()
    for rows in live.values():
        with_samples.update(object_key for _, object_key in rows.values())
    return PlaceDifference(
        fresh=fresh,
        replaced=frozenset(changed),
        missing=frozenset(vanished & with_samples),
        same=len(common - changed),
        places=elsewhere,
        live=live,
    )


def _read_registered(version: Version) -> dict[str, dict[int, tuple[str, str]]]:
    """Return the live samples of registered parts: part id -> row -> (sample key, object key)."""
    shards = version.parts.shard_rows().select(["part", "path"]).to_pylist()
    registered = {row["part"] for row in shards if is_foreign(row["path"])}
    live: dict[str, dict[int, tuple[str, str]]] = {}
    for row in _rows(version, ("raw_key", "raw_etag")):
        part = row["part"]
        if row["live"] and part in registered:
            live.setdefault(part, {})[row["row"]] = (row["key"], row.get("raw_key") or "")
    return live


def import_difference(version: Version | None, store: Store, infos: Sequence[ObjectInfo]) -> PlaceDifference:
    """Return the objects' difference from earlier imports; none counts as missing.

    Raises: Conflict if the version has no sample imported from these objects.
    """
    if version is None:
        return PlaceDifference(fresh=infos)
    if version.manifest.get("foreign"):
        message = f"the samples of {version.name} were registered, not imported; choose another name"
        raise Conflict(message, what="samples", where=version.name, given="registered", accepted="imported")
    live: dict[str, dict[int, tuple[str, str]]] = {}
    every_token = defaultdict[str, set[str]](set)  # object key -> tokens of all its samples
    live_tokens = defaultdict[str, set[str]](set)  # object key -> tokens of its live samples
    for row in _rows(version, ("raw_key", "raw_etag")):
        object_key = row.get("raw_key") or ""
        token = row.get("raw_etag") or ""
        if not object_key:
            continue
        every_token[object_key].add(token)
        if row["live"]:
            live.setdefault(row["part"], {})[row["row"]] = (row["key"], object_key)
            live_tokens[object_key].add(token)
    known: set[str] = set()
    changed: set[str] = set()
    for info in infos:
        if info.key not in every_token:
            continue
        known.add(info.key)
        # Excluded samples decide only if no sample of the object is live.
        tokens = live_tokens.get(info.key, every_token[info.key])
        if token_of(store, info) not in tokens:
            changed.add(info.key)
    if not known:
        message = f"no sample of {version.name} was imported from an object that {store.url} has; choose another name"
        raise Conflict(message, what="objects", where=store.url, accepted=f"an object of {version.name}")
    return PlaceDifference(
        fresh=[info for info in infos if info.key in changed or info.key not in known],
        replaced=frozenset(changed),
        same=len(known) - len(changed),
        earlier=frozenset(every_token),
        live=live,
    )


def token_of(store: Store, info: ObjectInfo) -> str:
    """Return the stored change token: an ETag, or a file's size and time."""
    return change_token(store, info) or f"{info.nbytes}-{info.modified_us or 0}"


class SampleRow(NamedTuple):
    part: str
    """Part id."""
    row: int
    """Row in the part."""
    key: str
    value: str
    """Requested column's value, or ""."""


def live_samples(version: Version, column: str) -> Iterator[SampleRow]:
    """Yield live samples with one provenance column. Reads all key tables."""
    for row in _rows(version, (column,)):
        if row["live"]:
            yield _sample_row(row, column)


def list_exclusions(version: Version, column: str) -> Iterator[SampleRow]:
    """Yield the samples that a person or a takedown excluded, with one provenance column. Reads all key tables.

    Samples whose objects changed or vanished are not among them.
    """
    excluded: dict[str, set[int]] = {}
    files = [TableFile.from_json(entry) for entry in version.manifest["exclusions"]]
    for table in get_tables(version.store, files):
        for row in table.to_pylist():
            if not row["reason"].startswith(REGISTERED_AGAIN):
                members = np.flatnonzero(unpack(row["bitmap"], row["n_rows"])).tolist()
                excluded.setdefault(row["part"], set()).update(members)
    if not excluded:  # no key table is read
        return
    for row in _rows(version, (column,)):
        if row["row"] in excluded.get(row["part"], ()):
            yield _sample_row(row, column)


def _sample_row(row: Mapping[str, Any], column: str) -> SampleRow:
    return SampleRow(row["part"], row["row"], row["key"], row.get(column) or "")


def _rows(version: Version, more: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the key tables: part, row, key, the columns `more`, and `live`."""
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    members: dict[str, Any] = {}  # part id -> bool [rows]: live samples
    for table in get_tables(version.store, files, ["part", "row", "key", *more]):
        for row in table.to_pylist():
            part = row["part"]
            if part not in members:
                position = version.parts.position(part)
                members[part] = np.asarray(version.parts.live_members(position))
            yield {**row, "live": bool(members[part][row["row"]])}
