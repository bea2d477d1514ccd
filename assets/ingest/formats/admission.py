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
from loader.dataset.shards.shard import Payload, load_payload
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.writing.spill import Sample
from loader.storage import Store
from penstock.stages import current_record

from ...media.objects import refusal_row
from ...media.unit import dropped
from ...pipeline.stages import UNITS, BatchSamples
from ...pipeline.tables import read_table
from .sample_facts import Row

if TYPE_CHECKING:
    from ...spec import DatasetSpec

_HASH_CHARS = 32


@dataclass(slots=True)
class KeyHistory:
    """Live and removed samples of a dataset under one source key. Sent in tasks."""

    live: dict[str, str] = field(default_factory=dict)
    """Live key -> content hash; "" if unknown."""
    removed: list[str] = field(default_factory=list)
    """Content hashes of samples that were removed since; "" if unknown."""
    split: str = ""
    """Split of the live samples or ""."""

    def add(self, row: Row, content: str) -> None:
        """Add one row of the version's key table."""
        if row["live"]:
            self.live[row["key"]] = content
            self.split = row["split"]
        else:
            self.removed.append(content)

    def has_content(self, content: str) -> bool:
        """Return whether the dataset has, or had, this content."""
        if self.live:
            return content in self.live.values()
        # A removed sample whose content is unknown stays removed, whatever the object has now.
        return content in self.removed or "" in self.removed


@dataclass(slots=True)
class ObjectHistory:
    """Live and removed samples of a dataset from a raw object, or from its source (`_scope`). Sent in tasks."""

    first_sha256: str = ""
    """SHA-256 at its first publication, or ""."""
    by_key: dict[str, KeyHistory] = field(default_factory=dict)
    """Source key -> its history."""

    def history(self, source_key: str) -> KeyHistory:
        """Return a source key's history; an empty one for an unknown key."""
        return self.by_key.get(source_key, KeyHistory())

    def live_keys(self) -> set[str]:
        """Return the keys of all live samples."""
        keys = set[str]()
        for history in self.by_key.values():
            keys.update(history.live)
        return keys


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
                total._skip_object(key, n_known)
        return total

    def admit(
        self,
        sample: Sample,
        earlier: ObjectHistory,
        has_own_split: bool,
    ) -> Sample | None:
        """Decide on a sample, and record the decision; return it as admitted, or None if it is left out.

        has_own_split: its format names the split.
        """
        raw_key = sample.source["raw_key"]
        source_key = sample.source["source_key"]
        before = earlier.history(source_key)
        content = content_hash(sample.fields, sample.metadata)
        if before.has_content(content):
            self._skip_object(raw_key)
            return None

        self.contents[sample.key] = content
        self.objects.add(raw_key)
        if not before.live:
            return sample
        self.replaces[sample.key] = sorted(before.live)
        if has_own_split:
            return sample
        # Changed content must not move a sample from the training to the test split.
        source = dict(sample.source)
        source["split"] = before.split
        return replace(sample, source=source)

    def admit_in_place(
        self,
        key: str,
        source: Mapping[str, str],
        earlier: ObjectHistory,
    ) -> bool:
        """Decide on a sample in place, and record the decision; return whether it is admitted.

        key: its key in the dataset. source: its provenance.
        """
        raw_key = source["raw_key"]
        source_key = source["source_key"]
        before = earlier.history(source_key)
        # Its content is not read, so a removed sample stays removed whatever the object has now.
        if before.removed and not before.live:
            self._skip_object(raw_key)
            return False
        self.objects.add(raw_key)
        if before.live:
            self.replaces[key] = sorted(before.live)
        return True

    def replace_lost(
        self,
        first_keys: Mapping[str, str],
        earlier: Mapping[str, ObjectHistory],
    ) -> None:
        """Let the first sample of an object in place replace the samples that the object lost.

        first_keys: key of an object -> key of its first admitted sample. earlier: key of an object -> the dataset's
        samples from only this object.
        """
        # Computed once: what one object's first sample replaces below does not count as replaced for the next object.
        replaced = set[str]()
        for keys in self.replaces.values():
            replaced.update(keys)
        for raw_key, first in first_keys.items():
            if raw_key not in earlier:
                continue
            # Live keys that no sample of the object replaces: it no longer has them.
            lost = earlier[raw_key].live_keys() - replaced
            if lost:
                lost.update(self.replaces.get(first, ()))
                self.replaces[first] = sorted(lost)

    def complete(
        self,
        samples: BatchSamples,
        raws: Mapping[str, Row],
    ) -> BatchSamples:
        """Return the batch's samples with what they replace, and a refusal of each object without an admitted sample.

        raws: key of an object -> its row of `raw_objects`.
        """
        refusals = [*samples.refusals]
        for key, n_known in sorted(self.known.items()):
            if key in self.objects:
                continue
            why = f"all of its {n_known} samples were published before, or removed from the dataset since"
            refusal = dropped("dedup", "nothing_new", why)
            sha256 = raws[key]["sha256"]
            refusals.append(refusal_row(key, sha256, refusal))
        return replace(
            samples,
            refusals=refusals,
            replaces=self.replaces,
            n_known=sum(self.known.values()),
        )

    def _skip_object(self, raw_key: str, n_known: int = 1) -> None:
        before = self.known.get(raw_key, 0)
        self.known[raw_key] = before + n_known


def content_hash(
    fields: Mapping[str, Payload],
    metadata: Mapping[str, Any],
) -> str:
    """Return a hash of a sample's fields and metadata, 32 hex digits: SHA-256 per field, columns as JSON."""
    hashes: dict[str, str] = {}
    for name, data in fields.items():
        digest = hashlib.sha256(load_payload(data))
        hashes[name] = digest.hexdigest()
    # A missing value hashes as a missing column: whether a batch has the column depends on its other samples.
    known = {name: value for name, value in metadata.items() if value is not None}
    text = json.dumps([hashes, known], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    return digest.hexdigest()[:_HASH_CHARS]


_COLUMNS = [
    "part",
    "row",
    "key",
    "source_key",
    "raw_uri",
    "raw_sha256",
    "split",
    "partition",
]


class NewestVersion(NamedTuple):
    """The newest version of a dataset; empty before the first."""

    id: str = ""
    """Version id; "" before the first."""
    groups: Mapping[str, Mapping[str, Any]] = {}
    """Groups, as in its manifest."""
    columns: Mapping[str, Mapping[str, Any]] = {}
    """Columns, as in its manifest."""
    earlier: Mapping[str, ObjectHistory] = {}
    """Key of a raw object -> its history; without objects that the version does not know."""


def newest_version(
    root: loader.Root,
    spec: "DatasetSpec",
    raws: Sequence[Row],
) -> NewestVersion:
    """Return the newest version and its samples from these raw objects.

    Costs the column `raw_uri`, and for known objects the tables that name them. Memory: 1 kB per sample.
    """
    record = root.state.newest(spec.name)
    if record is None:
        return NewestVersion()
    version = root.open(record.id)
    return NewestVersion(
        id=version.id,
        groups=version.manifest["groups"],
        columns=version.manifest["columns"],
        earlier=_earlier_samples(version, spec, raws),
    )


def _earlier_samples(
    version: loader.Version,
    spec: "DatasetSpec",
    raws: Sequence[Row],
) -> dict[str, ObjectHistory]:
    """Return key of a raw object -> its history; without objects that the version does not know."""
    scopes: dict[str, str] = {}  # key of a raw object -> its scope
    for raw in raws:
        scopes[raw["key"]] = _scope(raw["uri"], raw["key"], spec.keyed_by_place)
    distinct_scopes = frozenset(scopes.values())
    rows = list(_rows(version, distinct_scopes, spec.keyed_by_place))
    # Batches are named by date: the first row of an object is of its first publication.
    rows.sort(key=itemgetter("partition"))
    batches = {row["partition"] for row in rows}
    contents = _contents(version.store, spec.name, batches)

    by_scope: dict[str, dict[str, KeyHistory]] = {}
    first_sha256: dict[str, str] = {}  # by URI
    for row in rows:
        first_sha256.setdefault(row["raw_uri"], row["raw_sha256"])
        histories = by_scope.setdefault(row["scope"], {})
        history = histories.setdefault(row["source_key"], KeyHistory())
        content = contents.get(row["key"], "")
        history.add(row, content)

    earlier: dict[str, ObjectHistory] = {}
    for raw in raws:
        scope = scopes[raw["key"]]
        # Objects whose source keys are unique in the source share all its samples.
        if scope in by_scope:
            earlier[raw["key"]] = ObjectHistory(
                first_sha256=first_sha256.get(raw["uri"], ""),
                by_key=by_scope[scope],
            )
    return earlier


def version_conflict(
    version: loader.Version,
    rows: Sequence[Row],
    body: Mapping[str, Any],
) -> str:
    """Return why waiting samples no longer fit this version (samples of their source keys changed since), or "".

    rows: provenance of the samples. body: body of their units record. Costs as `newest_version`. Raises: Corrupt;
    StoreError.
    """
    by_place = body["keyed_by_place"]
    scopes: dict[str, str] = {}  # URI of a raw object -> its scope
    for row in rows:
        scopes[row["raw_uri"]] = _scope(row["raw_uri"], row["raw_key"], by_place)

    live: dict[tuple[str, str], set[str]] = {}  # (scope, source key) -> keys
    live_keys = set[str]()
    distinct_scopes = frozenset(scopes.values())
    for published in _rows(version, distinct_scopes, by_place):
        if not published["live"]:
            continue
        identity = (published["scope"], published["source_key"])
        keys = live.setdefault(identity, set())
        keys.add(published["key"])
        live_keys.add(published["key"])

    for row in rows:
        identity = (scopes[row["raw_uri"]], row["source_key"])
        replaces = set(body["replaces"].get(row["key"], ()))
        sample = f"sample {row['source_key']!r} of {row['raw_key']!r}"
        added = live.get(identity, set()) - replaces
        if added:
            return f"{version.name} has {min(added)!r} instead: {sample}"
        # A first sample in place may replace samples of other source keys, so any live key counts.
        removed = replaces - live_keys
        if removed:
            return f"{version.name} no longer has {min(removed)!r}, which it replaces: {sample}"
    return ""


def _scope(uri: str, key: str, by_place: bool) -> str:
    """Return what source keys are unique in: the URI of the source, or of the object."""
    if by_place:
        return uri.removesuffix(key)
    return uri


def _rows(
    version: loader.Version,
    scopes: frozenset[str],
    by_place: bool,
) -> Iterator[Row]:
    """Yield the version's rows of the key table that are in these scopes, with `scope` and `live` added."""
    if not scopes:
        return
    files = list[TableFile]()
    for entry in version.manifest["samples"]:
        if entry["group"] == "keys":
            files.append(TableFile.from_json(entry))
    objects_of_files = get_tables(version.store, files, ["raw_uri", "raw_key"])
    for file, objects in zip(files, objects_of_files, strict=True):
        # The two columns of a file decide whether it is read: most files have none of these objects.
        selected = _scopes_by_uri(objects, scopes, by_place)
        if selected:
            yield from _rows_of_file(version, file, selected)


def _scopes_by_uri(
    objects: pa.Table,
    scopes: frozenset[str],
    by_place: bool,
) -> dict[str, str]:
    """Return URI -> scope, for the objects of these scopes."""
    distinct = objects.group_by(["raw_uri", "raw_key"]).aggregate([])
    selected: dict[str, str] = {}
    for raw in distinct.drop_null().to_pylist():
        scope = _scope(raw["raw_uri"], raw["raw_key"], by_place)
        if scope in scopes:
            selected[raw["raw_uri"]] = scope
    return selected


def _rows_of_file(
    version: loader.Version,
    file: TableFile,
    scopes: Mapping[str, str],
) -> Iterator[Row]:
    """Yield the file's rows of these objects. scopes: URI -> scope."""
    import pyarrow.compute as pc

    (table,) = get_tables(version.store, [file], _COLUMNS)
    uris = pa.array(list(scopes), pa.string())
    is_selected = pc.is_in(table["raw_uri"], value_set=uris)
    table = table.filter(is_selected)
    positions = version.parts.positions(table["part"]).tolist()  # of each row's part in the version
    live_members = {}
    for position in set(positions):
        live_members[position] = version.parts.live_members(position)
    for position, row in zip(positions, table.to_pylist(), strict=True):
        is_live = live_members[position]  # bool [rows of the part]
        row["scope"] = scopes[row["raw_uri"]]
        row["live"] = bool(is_live[row["row"]])
        yield row


def _contents(
    store: Store,
    dataset: str,
    batches: Iterable[str],
) -> dict[str, str]:
    """Return key of a sample -> its content hash; "" if unknown."""
    contents = dict[str, str]()
    for batch in sorted(batches):
        record = current_record(store, dataset, UNITS, batch)
        if record is None:
            continue
        for row in read_table(store, record.files[UNITS]):
            content = row.get("content")  # earlier releases stored none
            contents[row["key"]] = content or ""
    return contents
