"""Contents of a dataset's newest version, and whether parts that wait for publication still fit it."""

from collections.abc import Sequence
from typing import Any

import loader
from loader.dataset.shards.part import part_rows
from penstock.class_names import class_names
from penstock.stages import StageRecord

Row = dict[str, Any]


def published_labels(root: "loader.Root", dataset: str) -> list[str]:
    """Return the newest version's class names, by number; [] before the first version."""
    versions = root.state.versions(dataset)
    names = class_names(root.store, versions)
    return names or []


def published_objects(root: "loader.Root", dataset: str) -> dict[str, str]:
    """Return sha256 -> description, for every raw object with samples in the newest version."""
    newest = root.state.newest(dataset)
    if newest is None:
        return {}
    samples = root.open(newest.id).samples()
    objects = samples.select("raw_sha256", "raw_key").unique()
    published: dict[str, str] = {}
    for sha256, key in objects.collect().iter_rows():
        published[sha256] = f"{key!r} in {newest.name}"
    return published


def clash(
    root: "loader.Root",
    record: StageRecord,
    parts: Sequence["loader.Part"],
) -> str:
    """Return why waiting parts no longer fit the dataset, or "".

    Class numbers, fields of a group or column types may have changed, or another batch published the same bytes or
    objects. record: of the stage `units` or `samples`.
    """
    dataset = record.dataset
    labels = record.body["labels"]
    known = published_labels(root, dataset)
    # A batch may lack the newest classes, or add some: what both have must agree.
    shared = min(len(known), len(labels))
    if known[:shared] != list(labels[:shared]):
        return f"it was cut with the classes {list(labels)}, but the newest version has {known}"
    # These read only manifests.
    reason = _group_clash(root, dataset, parts) or _column_clash(root, record)
    if reason:
        return reason

    published = published_objects(root, dataset)
    rows = list[Row]()
    if published:  # otherwise the rows cannot clash: do not read them
        for part in parts:
            rows += part_rows(root.store, part)
    for row in rows:
        sha256 = row["raw_sha256"]
        if sha256 in published:
            return f"{row['raw_key']!r} has the same bytes as {published[sha256]}"

    if "replaces" not in record.body:  # the batch is of media, whose samples replace none
        return ""
    newest = root.state.newest(dataset)
    if newest is None:
        return ""
    from .formats.admission import version_conflict

    version = root.open(newest.id)
    return version_conflict(version, rows, record.body)


def _group_clash(
    root: "loader.Root",
    dataset: str,
    parts: Sequence["loader.Part"],
) -> str:
    newest = root.state.newest(dataset)
    if newest is None:
        return ""
    version = root.open(newest.id)
    groups = version.manifest["groups"]
    for part in parts:
        for shard in part.shards:
            if shard.group not in groups:
                continue
            fields = groups[shard.group]["field_nbytes"]
            if set(shard.field_nbytes) != set(fields):
                return f"group {shard.group!r} has {sorted(fields)} now"
    return ""


def _column_clash(root: "loader.Root", record: StageRecord) -> str:
    columns = record.body.get("columns")
    if not columns:
        return ""
    newest = root.state.newest(record.dataset)
    if newest is None:
        return ""
    version = root.open(newest.id)
    published = version.manifest["columns"]
    for name, kind in columns.items():
        if name not in published:
            continue
        stored = published[name]["type"]
        if stored not in (kind, "null"):  # a column without values takes any type
            return f"the column {name!r} is {stored} in the newest version, and {kind} here"
    return ""
