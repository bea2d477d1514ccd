"""Extend published parts by one log entry: new groups, new column values, excluded samples."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .commit import Pending, check_facts, check_producer, commit, with_statistics
from .labels.annotate import Annotating, write_annotation
from .publication_gate import Check, FreeGroup, SameCells
from .root import Root
from .shards.part import SHARDS_SCHEMA, Part, ShardFile
from .tables.manifest import Change, SamplesFile
from .versions.version import Version
from .writing.exclude import find_superseded, put_exclusions
from .writing.run_tables import write_group_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Additions to published parts."""

    shards: Sequence[ShardFile] = ()
    """Shards of new groups, written with the transaction that publishes them."""
    rows: Sequence[tuple[Annotating, Any]] = ()
    """(how, rows) of each annotation, as for `root.annotate`."""
    exclude: Mapping[str, str] = field(default_factory=dict)
    """Key of a live sample -> reason to leave it out."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Field -> its facts, as for `root.publish`."""


def published_part(version: Version, part: str) -> Part:
    """Return a version's part to read or extend, without its samples table and field sizes."""
    position = version.parts.position(part)
    shards = []
    for group, body in version.manifest["groups"].items():
        if bool(version.parts.has_group(group)[position]):
            row = version.parts.shard(group, position)
            known: dict[str, Any] = {name: row.get(name) for name in SHARDS_SCHEMA.names}
            shards.append(ShardFile(**known, field_nbytes=dict.fromkeys(body["field_nbytes"], 0)))
    n_rows = int(version.parts.n_rows[position])
    return Part(id=part, txn=part.rpartition("-")[0], n_rows=n_rows, shards=tuple(shards), samples=None)


def publish_extension(
    root: Root, version: Version, txn: str, extension: Extension, producer: Mapping[str, Any] | None
) -> Version:
    """Commit `txn` with an extension of a version's parts, and return the version; a committed `txn` returns its own.

    Raises: Conflict if another writer added the group, annotated one of the cells or excluded one of the samples since
    `version`; FieldMismatch if a column has another type; VersionNotFound if a sample to exclude does not exist;
    Fenced; EmptyVersion.
    """
    known = root.log.state.committed(txn)
    if known is not None:
        return root.open(known.id)
    producer_facts, facts = check_producer(producer), check_facts(extension.facts)
    with root.heartbeat(txn):
        prefix = _prefix(txn)
        change = Change()
        checks: list[Check] = []
        if extension.shards:
            added = write_group_run(root.store, prefix, _by_part(extension.shards))
            change = replace(change, shards=added.shards, groups=added.groups)
            checks += _free(extension.shards, version)
        files: list[SamplesFile] = []
        for how, rows in extension.rows:
            files += write_annotation(version, prefix, rows, how, first=len(files))[0]
        if files:
            change = replace(change, samples=tuple(files))
            checks.append(SameCells(version, files))
        if extension.exclude:
            excluded = find_superseded(version, extension.exclude)
            table = put_exclusions(root.store, prefix, excluded.rows, excluded.n_rows)
            change = replace(change, exclusions=table, n_excluded=excluded.n_samples)
            checks.append(excluded.still_live())
        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=change,
            producer=producer_facts,
            facts=facts,
            complete=lambda parent, merged: (
                with_statistics(parent, prefix, merged) if merged.samples else merged
            ),
        )
        return commit(root.store, root.log, pending, *checks)


def _prefix(txn: str) -> str:
    return f"data/{txn}/{secrets.token_hex(8)}"


def _by_part(shards: Sequence[ShardFile]) -> list[Part]:
    return [Part(id=one.part, txn="", n_rows=one.n_rows, shards=(one,), samples=None) for one in shards]


def _free(shards: Sequence[ShardFile], began: Version) -> list[Check]:
    parts: dict[str, list[str]] = {}
    for shard in shards:
        parts.setdefault(shard.group, []).append(shard.part)
    return [FreeGroup(group, ids, began) for group, ids in sorted(parts.items())]
