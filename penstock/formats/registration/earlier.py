"""Compare the objects in a source with a dataset's objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.shards.bitmap import unpack
from loader.dataset.tables.foreign_objects import foreign_objects, is_foreign, stored_etag
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
        out = self.replaced | self.missing
        return {key for rows in (self.live or {}).values() for key, of in rows.values() if of not in out}

    def left_out(self, version: Version | None) -> RowsToExclude:
        """Return the live samples of changed or missing objects."""
        rows: dict[tuple[str, str], list[int]] = {}
        for part, members in (self.live or {}).items():
            for row, (_, of) in members.items():
                for why, keys in (("written again", self.replaced), ("gone", self.missing)):
                    if of in keys:
                        rows.setdefault((part, f"{REGISTERED_AGAIN}{of} is {why}"), []).append(row)
        parts = {part for part, _ in rows}
        part_sizes = {
            part: int(version.parts.n_rows[version.parts.position(part)]) for part in parts if version
        }
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
        raise Conflict(f"the samples of {version.name} were written, not registered; choose another name")
    if (before := parse_json(facts.get("registered", "{}"))) != chosen:
        raise Conflict(
            f"{version.name} was registered as {before}, which {dict(chosen)} is not; choose another name"
        )
    known = {one.key: one for one in objects}
    places = frozenset(one.place for one in objects)
    elsewhere = frozenset(place for place in places if not is_adopted(version.store, place))
    present = {info.key: info for info in infos}
    if not known.keys() & present.keys():
        raise Conflict(
            f"{store.url} has none of the {len(known)} objects of {version.name}, such as {min(known)}: it is another "
            "place; choose another name"
        )
    changed = {
        key
        for key, info in present.items()
        if key in known and not known[key].is_unchanged(info, stored_etag(store, info))
    }
    shards = version.parts.shard_rows().select(["part", "path"]).to_pylist()
    registered = {row["part"] for row in shards if is_foreign(row["path"])}
    fresh = [info for info in infos if info.key in changed or info.key not in known]
    vanished = {key for key in known.keys() - present.keys() if known[key].place in elsewhere}
    live: dict[str, dict[int, tuple[str, str]]] = {}
    for part, row, key, of, _, is_live in _samples(version) if fresh or vanished else ():
        if is_live and part in registered:
            live.setdefault(part, {})[row] = key, of
    with_samples = {of for rows in live.values() for _, of in rows.values()}
    return PlaceDifference(
        fresh=fresh,
        replaced=frozenset(changed),
        missing=frozenset(vanished & with_samples),
        same=len((known.keys() & present.keys()) - changed),
        places=elsewhere,
        live=live,
    )


def imported_difference(
    version: Version | None, store: Store, infos: Sequence[ObjectInfo]
) -> PlaceDifference:
    """Return the objects' difference from earlier imports; none counts as missing.

    Raises: Conflict if the version has no sample imported from these objects.
    """
    if version is None:
        return PlaceDifference(fresh=infos)
    if version.manifest.get("foreign"):
        raise Conflict(f"the samples of {version.name} were registered, not imported; choose another name")
    live: dict[str, dict[int, tuple[str, str]]] = {}
    every, tokens = dict[str, set[str]](), dict[str, set[str]]()
    for part, row, key, of, token, is_live in _samples(version):
        if of:
            every.setdefault(of, set()).add(token)
            if is_live:
                live.setdefault(part, {})[row] = key, of
                tokens.setdefault(of, set()).add(token)
    known = {info.key: tokens.get(info.key, every[info.key]) for info in infos if info.key in every}
    if not known:
        raise Conflict(
            f"no sample of {version.name} was imported from an object that {store.url} has; choose another name"
        )
    changed = {
        info.key for info in infos if info.key in known and token_of(store, info) not in known[info.key]
    }
    return PlaceDifference(
        fresh=[info for info in infos if info.key in changed or info.key not in known],
        replaced=frozenset(changed),
        same=len(known) - len(changed),
        earlier=frozenset(every),
        live=live,
    )


def token_of(store: Store, info: ObjectInfo) -> str:
    """Return the stored change token: an ETag, or a file's size and time."""
    return stored_etag(store, info) or f"{info.nbytes}-{info.modified_us or 0}"


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


def excluded_samples(version: Version, column: str) -> Iterator[SampleRow]:
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
    for row in _rows(version, (column,)) if excluded else ():
        if row["row"] in excluded.get(row["part"], ()):
            yield _sample_row(row, column)


def _sample_row(row: Mapping[str, Any], column: str) -> SampleRow:
    return SampleRow(row["part"], row["row"], row["key"], row.get(column) or "")


def _samples(version: Version) -> Iterator[tuple[str, int, str, str, str, bool]]:
    for row in _rows(version, ("raw_key", "raw_etag")):
        of, token = row.get("raw_key") or "", row.get("raw_etag") or ""
        yield row["part"], row["row"], row["key"], of, token, row["live"]


def _rows(version: Version, more: Sequence[str]) -> Iterator[dict[str, Any]]:
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    members: dict[str, Any] = {}
    for table in get_tables(version.store, files, ["part", "row", "key", *more]):
        for row in table.to_pylist():
            part = row["part"]
            if part not in members:
                members[part] = np.asarray(version.parts.live_members(version.parts.position(part)))
            yield {**row, "live": bool(members[part][row["row"]])}
