"""Admission of a batch's samples, given the dataset's: an object that grew adds only what is new.

A sample is identified by its raw object's URI and its `source_key`; if keys are unique in the source
(`DatasetSpec.keyed_by_place`), the source's URI replaces the object's. Compared with the newest version, a sample

- is left out if a live sample has its content;
- replaces the live samples of its identity and keeps their split, if its content differs;
- stays removed if a removed sample has its content;
- is new otherwise, with the split of the object's first publication, unless its format names one.

Content is fields and metadata, whose hashes `units` tables store. A missing hash counts as different content.
Samples in place have no hashes: all but removed ones are admitted, and replace the object's live samples.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

import loader
from loader.dataset.shards.shard import Payload, loaded
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.writing.spill import Sample
from loader.storage import Store
from penstock.stages import current_record

from ...media.objects import refusal_row
from ...media.unit import dropped
from ...stages import UNITS, BatchSamples
from ...tables import read_table
from .sample_facts import Row

if TYPE_CHECKING:
    from ...spec import DatasetSpec

_HASH_CHARS = 32


@dataclass(slots=True)
class Earlier:
    """Samples that a dataset has under one source key. Sent in tasks."""

    live: dict[str, str] = field(default_factory=dict)
    """Live key -> content hash; "" if unknown."""
    removed: list[str] = field(default_factory=list)
    """Content hashes of removed samples; "" if unknown."""
    split: str = ""
    """Split of the live samples or ""."""

    def add(self, row: Row, content: str) -> None:
        """Add one row of the version's key table."""
        if row["live"]:
            self.live[row["key"]], self.split = content, row["split"]
        else:
            self.removed.append(content)


@dataclass(slots=True)
class EarlierSamples:
    """Samples that a dataset has from a raw object, or its source. Sent in tasks."""

    first_sha256: str = ""
    """SHA-256 at its first publication, or ""."""
    by_key: dict[str, Earlier] = field(default_factory=dict)
    """Source key -> samples."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Admitted samples, and what they replace."""

    contents: dict[str, str] = field(default_factory=dict)
    """Admitted key -> content hash."""
    replaces: dict[str, list[str]] = field(default_factory=dict)
    """Admitted key -> published keys that it replaces."""
    objects: set[str] = field(default_factory=set)
    """Keys of objects with admitted samples."""
    known: dict[str, int] = field(default_factory=dict)
    """Key of an object -> samples left out because the dataset has, or had, them."""

    @classmethod
    def of_all(cls, units: Iterable["Admission"]) -> "Admission":
        """Return the combined admission of all units of a batch."""
        total = cls()
        for unit in units:
            total.contents.update(unit.contents)
            total.replaces.update(unit.replaces)
            total.objects.update(unit.objects)
            for key, n_known in unit.known.items():
                total._leave_out(key, n_known)
        return total

    def admit(self, sample: Sample, earlier: EarlierSamples, has_own_split: bool) -> Sample | None:
        """Return the sample as admitted; None if it is left out. has_own_split: its format names the split."""
        content, of = content_of(sample.fields, sample.metadata), sample.source["raw_key"]
        before = earlier.by_key.get(sample.source["source_key"], Earlier())
        contents = before.live.values() or before.removed
        if content in contents or (not before.live and "" in contents):
            self._leave_out(of)
            return None
        self.contents[sample.key] = content
        self.objects.add(of)
        if before.live:
            self.replaces[sample.key] = sorted(before.live)
            if not has_own_split:
                sample = replace(sample, source={**sample.source, "split": before.split})
        return sample

    def admit_in_place(self, key: str, source: Mapping[str, str], earlier: EarlierSamples) -> bool:
        """Return whether a sample in place is admitted. key: its key in the dataset. source: its provenance."""
        of, before = source["raw_key"], earlier.by_key.get(source["source_key"], Earlier())
        if before.removed and not before.live:
            self._leave_out(of)
            return False
        self.objects.add(of)
        if before.live:
            self.replaces[key] = sorted(before.live)
        return True

    def replace_lost(self, first_of: Mapping[str, str], earlier: Mapping[str, EarlierSamples]) -> None:
        """Let the first sample of an object in place replace the samples that the object lost.

        first_of: key of an object -> key of its first admitted sample. earlier: key of an object -> the dataset's
        samples from only this object.
        """
        replaced = {key for keys in self.replaces.values() for key in keys}
        for of, first in first_of.items():
            had = earlier.get(of, EarlierSamples()).by_key.values()
            if lost := {key for one in had for key in one.live} - replaced:
                self.replaces[first] = sorted({*self.replaces.get(first, ()), *lost})

    def apply_to(self, batch: BatchSamples, raws: Mapping[str, Row]) -> BatchSamples:
        """Return the batch's samples with this admission. Objects without an admitted sample are refused."""
        refusals = [*batch.refusals]
        for key, n_known in sorted(self.known.items()):
            if key not in self.objects:
                why = f"all of its {n_known} samples were published before, or removed from the dataset since"
                refusals.append(refusal_row(key, raws[key]["sha256"], dropped("dedup", "nothing_new", why)))
        n_known = sum(self.known.values())
        return replace(batch, refusals=refusals, replaces=self.replaces, n_known=n_known)

    def _leave_out(self, of: str, n_known: int = 1) -> None:
        self.known[of] = self.known.get(of, 0) + n_known


def content_of(fields: Mapping[str, Payload], metadata: Mapping[str, Any]) -> str:
    """Return a hash of a sample's fields and metadata, 32 hex digits: SHA-256 per field, columns as JSON."""
    known = {name: value for name, value in metadata.items() if value is not None}
    hashes = {name: hashlib.sha256(loaded(data)).hexdigest() for name, data in fields.items()}
    text = json.dumps([hashes, known], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]


_COLUMNS = ["part", "row", "key", "source_key", "raw_uri", "raw_sha256", "split", "partition"]


class NewestVersion(NamedTuple):
    """The newest version of a dataset; empty before the first."""

    id: str = ""
    """Version id; "" before the first."""
    groups: Mapping[str, Mapping[str, Any]] = {}
    """Groups, as in its manifest."""
    columns: Mapping[str, Mapping[str, Any]] = {}
    """Columns, as in its manifest."""
    earlier: Mapping[str, EarlierSamples] = {}
    """Key of a raw object -> its samples in the version."""


def newest_version(root: loader.Root, spec: "DatasetSpec", raws: Sequence[Row]) -> NewestVersion:
    """Return the newest version and its samples from these raw objects.

    Costs the column `raw_uri`, and for known objects the tables that name them. Memory: 1 kB per sample.
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
    """Return why waiting samples no longer fit this version (samples of their source keys changed since), or "".

    rows: provenance of the samples. body: body of their units record. Costs as `newest_version`. Raises: Corrupt;
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
    return uri.removesuffix(key) if by_place else uri


def _rows(version: loader.Version, scopes: frozenset[str], by_place: bool) -> Iterator[Row]:
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
    contents = dict[str, str]()
    for batch in sorted(batches):
        record = current_record(store, dataset, UNITS, batch)
        for row in read_table(store, record.files[UNITS]) if record else ():
            contents[row["key"]] = row.get("content") or ""
    return contents
