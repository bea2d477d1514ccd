"""Extend published parts by one log entry: new groups, new column values, excluded samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..labels.annotate import AnnotationOptions, write_annotation
from ..shards.part import SHARDS_SCHEMA, Part, ShardFile
from ..tables.manifest import Change, SamplesFile
from ..versions.version import Version
from ..writing.exclude import find_superseded, put_exclusions
from ..writing.run_tables import write_group_run
from .commit import Pending, check_facts, check_producer, commit, with_statistics
from .publication_gate import Check, FreeGroup, SameCells
from .publish import new_prefix

if TYPE_CHECKING:
    from ..root_calls import RootCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Additions to published parts."""

    shards: Sequence[ShardFile] = ()
    """Shards of new groups, written with the transaction that publishes them."""
    rows: Sequence[tuple[AnnotationOptions, Any]] = ()
    """(options, rows) of each annotation, as for `root.annotate`."""
    exclude: Mapping[str, str] = field(default_factory=dict)
    """Key of a live sample -> reason to leave it out."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Field -> its facts, as for `root.publish`."""


def open_published_part(version: Version, part: str) -> Part:
    """Return a version's part to read or extend, without its samples table and field sizes."""
    position = version.parts.position(part)
    shards: list[ShardFile] = []
    for group, body in version.manifest["groups"].items():
        has_group = version.parts.has_group(group)  # bool [parts]
        if not has_group[position]:
            continue
        row = version.parts.shard(group, position)
        columns: dict[str, Any] = {name: row.get(name) for name in SHARDS_SCHEMA.names}
        field_nbytes = dict.fromkeys(body["field_nbytes"], 0)
        shards.append(ShardFile(**columns, field_nbytes=field_nbytes))
    return Part(
        id=part,
        txn=part.rpartition("-")[0],  # a part is named <transaction>-<name>
        n_rows=int(version.parts.n_rows[position]),
        shards=tuple(shards),
        samples=None,
    )


def publish_extension(
    root: "RootCalls",
    version: Version,
    txn: str,
    extension: Extension,
    producer: Mapping[str, Any] | None,
) -> Version:
    """Commit `txn` with an extension of a version's parts, and return its version. A committed `txn` publishes nothing.

    Raises: Conflict if another writer added the group, annotated one of the cells or excluded one of the samples since
    `version`; FieldMismatch if a column has another type; VersionNotFound if a sample to exclude does not exist;
    Fenced; EmptyVersion.
    """
    committed = root.log.state.committed(txn)
    if committed is not None:
        return root.open(committed.id)
    producer_facts = check_producer(producer)
    facts = check_facts(extension.facts)
    with root.heartbeat(txn):
        prefix = new_prefix(txn)
        change, checks = _write_change(root, version, prefix, extension)

        def complete(parent: Version | None, change: Change) -> Change:
            if not change.samples:  # no annotation
                return change
            return with_statistics(parent, prefix, change)

        pending = Pending(
            dataset=version.dataset,
            txn=txn,
            prefix=prefix,
            change=change,
            producer=producer_facts,
            facts=facts,
            complete=complete,
        )
        return commit(root.store, root.log, pending, *checks)


def _write_change(
    root: "RootCalls",
    version: Version,
    prefix: str,
    extension: Extension,
) -> tuple[Change, list[Check]]:
    """Upload the extension's tables under `prefix`; return the change, and the checks that it needs."""
    change = Change()
    checks: list[Check] = []
    if extension.shards:
        group_change = write_group_run(root.store, prefix, _parts_of_shards(extension.shards))
        change = replace(change, shards=group_change.shards, groups=group_change.groups)
        checks += _group_checks(extension.shards, version)

    files: list[SamplesFile] = []
    for options, rows in extension.rows:
        # `first` numbers the files: annotations of one extension never have one name.
        own_files, _ = write_annotation(version, prefix, rows, options, first=len(files))
        files += own_files
    if files:
        change = replace(change, samples=tuple(files))
        checks.append(SameCells(version, files))

    if extension.exclude:
        to_exclude = find_superseded(version, extension.exclude)
        table = put_exclusions(root.store, prefix, to_exclude.rows, to_exclude.part_sizes)
        change = replace(change, exclusions=table, n_excluded=to_exclude.n_samples)
        checks.append(to_exclude.still_live())
    return change, checks


def _parts_of_shards(shards: Sequence[ShardFile]) -> list[Part]:
    """Return one part per shard, with only this shard."""
    parts: list[Part] = []
    for shard in shards:
        part = Part(
            id=shard.part,
            txn="",
            n_rows=shard.n_rows,
            shards=(shard,),
            samples=None,
        )
        parts.append(part)
    return parts


def _group_checks(shards: Sequence[ShardFile], began: Version) -> list[Check]:
    """Return a check for each group that its parts have none yet."""
    part_ids: dict[str, list[str]] = {}
    for shard in shards:
        part_ids.setdefault(shard.group, []).append(shard.part)
    return [FreeGroup(group, ids, began) for group, ids in sorted(part_ids.items())]
