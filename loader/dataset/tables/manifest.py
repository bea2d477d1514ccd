"""The manifest: a version's content, and the sha256 that is its identity.

    id = "v-" + sha256(canonical JSON)          sorted keys, no spaces, UTF-8, no floats

A change appends file names to its parent's lists.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...errors import Corrupt, FieldMismatch, FieldNotFound, FormatTooNew
from ...storage import Store
from ...storage.requests import retry_corrupt
from ...storage.store import Objects
from ..log.entries import entry_key
from ..log.state import VersionRecord
from .columns import fits, is_annotation
from .parquet import TableFile, get_tables

FORMAT = 1
ANNOTATED_FORMAT = 2
"""Format with annotations, which older readers would ignore."""
REGISTERED_FORMAT = 3
"""Format with registered bytes, which older readers would look for in the root."""
NEWEST_FORMAT = 4
"""Format with registered tables, whose decoded offsets older readers would misread as stored ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesFile:
    """One column group of the samples table for one run of parts."""

    file: TableFile
    """Parquet file."""
    group: str
    """Name of the column group."""
    columns: Mapping[str, str]
    """Name -> Arrow type."""
    author: str = ""
    """Author of an annotation, or ""."""
    at_us: int = 0
    """Time of an annotation, UTC microseconds, or 0."""

    def to_json(self) -> dict[str, Any]:
        body = self.file.to_json()
        body["group"] = self.group
        body["columns"] = sorted(self.columns)
        # Absent from other files: the presence of `author` is what makes a file an annotation (`is_annotation`).
        if self.author:
            body["author"] = self.author
            body["at_us"] = self.at_us
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExtent:
    """Additions of a change to a group."""

    field_nbytes: Mapping[str, int]
    """Field -> payload bytes."""
    n_parts: int
    """Parts that have the group."""
    n_rows: int
    """Rows of these parts."""
    nbytes: int
    """Shard bytes added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Additions of a transaction to its parent version."""

    shards: TableFile | None = None
    """Shards table, or None."""
    samples: tuple[SamplesFile, ...] = ()
    """Files of the samples table."""
    stats: TableFile | None = None
    """Statistics table, or None."""
    exclusions: TableFile | None = None
    """Exclusions table, or None."""
    foreign: TableFile | None = None
    """Table of registered objects, or None."""
    chunks: Mapping[str, Any] = field(default_factory=dict)
    """For chunked objects: `chunk_rows`, average samples per chunk, and `chunk_fields`."""
    key_hashes: Mapping[str, Any] | None = None
    """Entry of the key hash table (`key_hashes.put_hashes`), or None."""
    groups: Mapping[str, GroupExtent] = field(default_factory=dict)
    """Group -> additions to it."""
    n_parts: int = 0
    """Parts added."""
    n_rows: int = 0
    """Rows added."""
    n_excluded: int = 0
    """Rows excluded."""


def version_id(data: bytes) -> str:
    return "v-" + hashlib.sha256(data).hexdigest()


def child(
    parent: Mapping[str, Any] | None,
    change: Change,
    *,
    dataset: str,
    parent_id: str | None,
    txn: str,
    denies: int,
    producer: Mapping[str, Any],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    created_us: int | None = None,
) -> dict[str, Any]:
    """Return the manifest of `change` applied to `parent`.

    Raises: FieldMismatch if a group's fields, a column or a field's fact differ; FieldNotFound if facts name a missing
    field.
    """
    base: Mapping[str, Any] = parent or _EMPTY
    if created_us is None:
        created_us = time.time_ns() // 1000
    samples = [*base["samples"]]
    samples += [samples_file.to_json() for samples_file in change.samples]
    foreign = [*base.get("foreign", ())]
    if change.foreign is not None:
        foreign.append({**change.foreign.to_json(), **change.chunks})
    key_hashes = [*base.get("key_hashes", ())]
    if change.key_hashes:
        key_hashes.append(dict(change.key_hashes))
    groups = _groups(base["groups"], change.groups)
    field_facts = _facts(base, facts or {}, groups)

    # Absent if there are none, so that such manifests have the ids that earlier releases gave them.
    manifest: dict[str, Any] = {}
    if field_facts:
        manifest["facts"] = field_facts
    if foreign:
        manifest["foreign"] = foreign
    manifest |= {
        "format": _format(samples, foreign),
        "dataset": dataset,
        "parent": parent_id,
        "txn": txn,
        "created_us": created_us,
        "denies": denies,
        "producer": dict(producer),
        "n_parts": base["n_parts"] + change.n_parts,
        "n_rows": base["n_rows"] + change.n_rows,
        "n_live": base["n_live"] + change.n_rows - change.n_excluded,
        "groups": groups,
        "columns": merge_columns(base["columns"], change.samples),
        "shards": _with_file(base["shards"], change.shards),
        "samples": samples,
        "stats": _with_file(base["stats"], change.stats),
        "exclusions": _with_file(base["exclusions"], change.exclusions),
        "key_hashes": key_hashes,
    }
    return manifest


_EMPTY: Mapping[str, Any] = {
    "n_parts": 0,
    "n_rows": 0,
    "n_live": 0,
    "groups": {},
    "columns": {},
    "shards": [],
    "samples": [],
    "stats": [],
    "exclusions": [],
}


def _format(samples: Sequence[Mapping[str, Any]], foreign: Sequence[Mapping[str, Any]]) -> int:
    # The lowest format that can hold the manifest: older readers still open versions without newer contents.
    has_tables = any(entry.get("chunk_rows") for entry in foreign)
    if has_tables:
        return NEWEST_FORMAT
    if foreign:
        return REGISTERED_FORMAT
    has_annotations = any(is_annotation(entry) for entry in samples)
    if has_annotations:
        return ANNOTATED_FORMAT
    return FORMAT


def _with_file(files: Sequence[Mapping[str, Any]], file: TableFile | None) -> list[Mapping[str, Any]]:
    """Return a manifest's list of tables with one more, if the change has one."""
    extended = list(files)  # a copy: the parent's manifest stays
    if file is not None:
        extended.append(file.to_json())
    return extended


def _groups(base: Mapping[str, Any], added: Mapping[str, GroupExtent]) -> dict[str, Any]:
    """Return a manifest's groups, extended by a change's. Raises: FieldMismatch."""
    merged: dict[str, Any] = {}
    owner: dict[str, str] = {}  # field -> its group
    for group, body in base.items():
        merged[group] = dict(body)
        for name in body["field_nbytes"]:
            owner[name] = group

    for group, extent in added.items():
        for name in extent.field_nbytes:
            # Also between two new groups of this change.
            earlier_group = owner.setdefault(name, group)
            if earlier_group != group:
                raise FieldMismatch(
                    f"field {name!r} would be in group {group!r} and is already in group {earlier_group!r}; "
                    "a field has one group in a dataset: use the same group, or another field name",
                    what=f"field {name}",
                    given=group,
                    accepted=earlier_group,
                )
        earlier = merged.get(group)
        if earlier is None:
            earlier = {
                "field_nbytes": dict.fromkeys(extent.field_nbytes, 0),
                "n_parts": 0,
                "n_rows": 0,
                "nbytes": 0,
            }
        merged[group] = _extend_group(group, earlier, extent)
    return merged


def _extend_group(group: str, earlier: Mapping[str, Any], extent: GroupExtent) -> dict[str, Any]:
    """Return the manifest's entry of a group with a change's additions. Raises: FieldMismatch."""
    earlier_fields = sorted(earlier["field_nbytes"])
    fields = sorted(extent.field_nbytes)
    if earlier_fields != fields:
        raise FieldMismatch(
            f"group {group!r} has fields {earlier_fields} in the dataset and {fields} in these parts; all parts of a "
            "group have the same fields: write the others as a group of their own",
            what=f"group {group}",
            given=fields,
            accepted=earlier_fields,
        )
    field_nbytes = {}
    for name, nbytes in earlier["field_nbytes"].items():
        field_nbytes[name] = nbytes + extent.field_nbytes[name]
    return {
        "field_nbytes": field_nbytes,
        "n_parts": earlier["n_parts"] + extent.n_parts,
        "n_rows": earlier["n_rows"] + extent.n_rows,
        "nbytes": earlier["nbytes"] + extent.nbytes,
    }


def _facts(
    base: Mapping[str, Any],
    added: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return field -> facts, extended by a change's. Raises: FieldMismatch; FieldNotFound."""
    merged = {field_name: dict(known) for field_name, known in base.get("facts", {}).items()}
    fields: list[str] = []
    for group in groups.values():
        fields.extend(group["field_nbytes"])

    for field_name, added_facts in added.items():
        # A misspelt field would have facts that no reader ever looks up.
        if field_name not in fields:
            raise FieldNotFound(
                f"facts of field {field_name!r}, which the version does not have; it has {sorted(fields)}",
                what="facts",
                given=field_name,
                accepted=sorted(fields),
            )
        for name, value in added_facts.items():
            # Here, not above: a field without facts has no entry.
            field_facts = merged.setdefault(field_name, {})
            earlier = field_facts.setdefault(name, value)
            if earlier != value and not _is_longer_list(value, earlier):
                raise FieldMismatch(
                    f"field {field_name!r} has {name} {earlier!r:.200} in the dataset and {value!r:.200} in this "
                    "change; a fact of a field does not change, but a list may get longer: write another field",
                    what=name,
                    where=f"field {field_name!r}",
                    given=value,
                    accepted=earlier,
                )
            field_facts[name] = value
    return merged


def _is_longer_list(value: Any, earlier: Any) -> bool:
    if not isinstance(earlier, list) or not isinstance(value, list):
        return False
    n_earlier = len(earlier)
    return value[:n_earlier] == earlier


def merge_columns(base: Mapping[str, Any], added: Sequence[SamplesFile]) -> dict[str, Any]:
    """Return a manifest's columns, extended by more files. Raises: FieldMismatch."""
    merged = dict(base)
    for file in added:
        for name, kind in file.columns.items():
            column = merged.setdefault(name, {"type": kind, "group": file.group})
            earlier_kind = column["type"]
            if fits(kind, earlier_kind):  # a new column, the same type, or a file with only nulls
                continue
            # Otherwise the dataset has only nulls so far, and this file brings the type.
            if not fits(earlier_kind, kind):
                raise FieldMismatch(
                    f"column {name!r} is {kind} in this change and {earlier_kind} in the dataset; a column's type "
                    "does not change: convert the values, or use another name",
                    what="type",
                    where=f"column {name!r}",
                    given=kind,
                    accepted=earlier_kind,
                )
            merged[name] = {**column, "type": kind}  # a copy: the parent's manifest stays
    return merged


def read_manifest(store: Objects, path: str, sha256: str) -> dict[str, Any]:
    """Return the manifest that a commit names. Raises: Corrupt if its bytes differ; FormatTooNew."""
    data = retry_corrupt(partial(_manifest_bytes, store, path, sha256))
    body: dict[str, Any] = json.loads(data)
    if body["format"] > NEWEST_FORMAT:
        raise FormatTooNew(
            f"{store.url}/{path} has format {body['format']}; this penstock reads up to {NEWEST_FORMAT}. "
            "Upgrade penstock-data (docs/install.md)",
            what="format",
            where=f"{store.url}/{path}",
            given=body["format"],
            accepted=NEWEST_FORMAT,
        )
    return body


def read_record_manifest(store: Objects, record: VersionRecord) -> dict[str, Any]:
    """Return the manifest that a log record names. Raises: as `read_manifest`; Corrupt if the two disagree."""
    manifest = read_manifest(
        store,
        record.manifest,
        record.sha256,
    )
    problems = differences(record, manifest)
    if problems:
        where = f"{store.url}/{entry_key(record.n)}"
        name, problem = next(iter(problems.items()))
        committed = getattr(record, name)
        raise Corrupt(
            f"{where}: {problem}", what=name, where=where, given=committed, accepted=manifest.get(name)
        )
    return manifest


def differences(record: VersionRecord, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return how a manifest disagrees with its commit: names of fields -> messages."""
    problems = {}
    # The commit's hash covers the manifest: a difference is an edit of the log's entry.
    for name in ("dataset", "parent", "txn", "denies"):
        committed = getattr(record, name)
        value = manifest.get(name)
        if value != committed:
            problems[name] = (
                f"it commits {record.name} with {name} {committed!r}, the manifest has {value!r}: the entry was "
                "edited; restore it from a mirror"
            )
    return problems


def _manifest_bytes(
    store: Objects,
    path: str,
    sha256: str,
) -> bytes:
    """Return the manifest's bytes, which have this SHA-256. Raises: Corrupt."""
    data = store.get(path).data
    # Before anything is parsed: the hash is the version's identity, so a parsed manifest is the committed one.
    actual_sha256 = hashlib.sha256(data).hexdigest()
    if actual_sha256 != sha256:
        raise Corrupt(
            f"{store.url}/{path} has sha256 {actual_sha256}, in its commit {sha256}: the manifest was edited or "
            "damaged. Restore it from a mirror; nothing was read from it",
            what="sha256",
            where=f"{store.url}/{path}",
            given=actual_sha256,
            accepted=sha256,
        )
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    path: str
    """Path in the root."""
    nbytes: int
    """Size in bytes."""
    sha256: str | None
    """Sha256 hex; None for an index."""
    kind: str
    """Manifest list that names it (`shards`, `samples`, ...), or `shard`, `index`."""


def table_references(manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the tables that a manifest names, in order, including lists of newer releases. No request."""
    for kind, files in manifest.items():
        if not isinstance(files, list):
            continue
        for file in files:
            if isinstance(file, dict) and "path" in file:
                yield Reference(
                    path=file["path"],
                    nbytes=file["nbytes"],
                    sha256=file["sha256"],
                    kind=kind,
                )


def references(store: Store, manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the tables that a manifest names, then the shards and indexes of its shards tables, each once per row.

    Costs one request per shards table.
    """
    yield from table_references(manifest)
    files = [TableFile.from_json(file) for file in manifest["shards"]]
    columns = [
        "path",
        "nbytes",
        "sha256",
        "index_path",
        "index_nbytes",
    ]
    for table in get_tables(store, files, columns):
        for batch in table.to_batches(max_chunksize=4096):  # Python's objects of few rows at a time
            for row in batch.to_pylist():
                yield Reference(
                    path=row["path"],
                    nbytes=row["nbytes"],
                    sha256=row["sha256"],
                    kind="shard",
                )
                yield Reference(
                    path=row["index_path"],
                    nbytes=row["index_nbytes"],
                    sha256=None,
                    kind="index",
                )
