"""The newest version's samples of a batch's raw objects. Nodes do not read them: they are passed with the tasks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

import loader
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.storage import Store
from penstock.stages import current_record

from ...spec import DatasetSpec
from ...stages import UNITS
from ...tables import read_table
from .known_samples import Earlier, EarlierSamples
from .sample_facts import Row

_COLUMNS = ["part", "row", "key", "source_key", "raw_uri", "raw_sha256", "split", "partition"]


class NewestVersion(NamedTuple):
    """The newest version of a dataset; empty before the first."""

    id: str = ""
    """Its id; "" before the first."""
    groups: Mapping[str, Mapping[str, Any]] = {}
    """As in its manifest."""
    columns: Mapping[str, Mapping[str, Any]] = {}
    """As in its manifest."""
    earlier: Mapping[str, EarlierSamples] = {}
    """Key of a raw object -> samples that it has of the object."""


def newest_version(root: loader.Root, spec: DatasetSpec, raws: Sequence[Row]) -> NewestVersion:
    """Return the newest version and its samples of these raw objects, given by their rows.

    Costs the column `raw_uri` of the version; for objects that are in it, the tables of keys that name them and the
    `units` tables of their batches. Memory: 1 kB per sample. Raises: Corrupt; StoreError.
    """
    record = root.state.newest(spec.name)
    if record is None:
        return NewestVersion()
    version = root.open(record.id)
    scopes = {raw["key"]: _scope(raw["uri"], raw["key"], spec.keyed_by_place) for raw in raws}
    keys = _rows(version, frozenset(scopes.values()), spec.keyed_by_place) if scopes else ()
    rows = sorted(keys, key=itemgetter("partition"))
    contents = _contents(root.store, spec.name, {row["partition"] for row in rows})
    by_scope, first = dict[str, dict[str, Earlier]](), dict[str, str]()
    for row in rows:
        first.setdefault(row["raw_uri"], row["raw_sha256"])
        samples = by_scope.setdefault(row["scope"], {})
        samples.setdefault(row["source_key"], Earlier()).add(row, contents.get(row["key"], ""))
    earlier = {
        raw["key"]: EarlierSamples(first.get(raw["uri"], ""), by_scope[scopes[raw["key"]]])
        for raw in raws
        if scopes[raw["key"]] in by_scope
    }
    return NewestVersion(version.id, version.manifest["groups"], version.manifest["columns"], earlier)


def published_since(version: loader.Version, rows: Sequence[Row], body: Mapping[str, Any]) -> str:
    """Return why waiting samples no longer fit this version, or "": samples of their source keys changed since.

    rows: provenance of the samples. body: of their units' record. Costs as `newest_version`. Raises: Corrupt;
    StoreError.
    """
    by_place, live = body["keyed_by_place"], dict[tuple[str, str], set[str]]()
    scopes = {row["raw_uri"]: _scope(row["raw_uri"], row["raw_key"], by_place) for row in rows}
    for published in _rows(version, frozenset(scopes.values()), by_place):
        if published["live"]:
            live.setdefault((published["scope"], published["source_key"]), set()).add(published["key"])
    every = {key for keys in live.values() for key in keys}
    for row in rows:
        current = live.get((scopes[row["raw_uri"]], row["source_key"]), set())
        replaces = set(body["replaces"].get(row["key"], ()))
        of = f"sample {row['source_key']!r} of {row['raw_key']!r}"
        if came := current - replaces:
            return f"{version.name} has {min(came)!r} instead: {of}"
        if went := replaces - every:
            return f"{version.name} no longer has {min(went)!r}, which it replaces: {of}"
    return ""


def _scope(uri: str, key: str, by_place: bool) -> str:
    """Return the URI within which a source key is unique: the raw object's, or its source's."""
    return uri.removesuffix(key) if by_place else uri


def _rows(version: loader.Version, scopes: frozenset[str], by_place: bool) -> Iterator[Row]:
    """Yield the rows of the version's key tables in these scopes, with `scope` and `live`."""
    import pyarrow.compute as pc

    files = [TableFile.from_json(one) for one in version.manifest["samples"] if one["group"] == "keys"]
    for file, column in zip(files, get_tables(version.store, files, ["raw_uri", "raw_key"]), strict=True):
        named = column.group_by(["raw_uri", "raw_key"]).aggregate([]).drop_null().to_pylist()
        scope_of = {one["raw_uri"]: _scope(one["raw_uri"], one["raw_key"], by_place) for one in named}
        selected = {uri: scope for uri, scope in scope_of.items() if scope in scopes}
        if not selected:
            continue
        (table,) = get_tables(version.store, [file], _COLUMNS)
        table = table.filter(pc.is_in(table["raw_uri"], value_set=pa.array(selected, pa.string())))
        positions = version.parts.positions(table["part"]).tolist()
        live = {at: version.parts.live_members(at) for at in set(positions)}
        for at, row in zip(positions, table.to_pylist(), strict=True):
            yield row | {"scope": selected[row["raw_uri"]], "live": bool(live[at][row["row"]])}


def _contents(store: Store, dataset: str, batches: Iterable[str]) -> dict[str, str]:
    """Return key -> hash of the content of these batches' samples."""
    contents = dict[str, str]()
    for batch in sorted(batches):
        record = current_record(store, dataset, UNITS, batch)
        for row in read_table(store, record.files[UNITS]) if record else ():
            contents[row["key"]] = row.get("content") or ""
    return contents
