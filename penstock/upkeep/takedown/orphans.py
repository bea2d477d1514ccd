"""Find objects under data/ that no version names and that contain denied samples: leftovers and unpublished parts."""

import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from loader import Root
from loader.dataset.apply_denies import Rows
from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import references
from loader.dataset.tables.parquet import TableFile, get_tables, parse_table, put_named_table, table_facts
from loader.dataset.versions.version import open_record
from loader.dataset.writing.redact import redact_rows, rows_of
from loader.errors import Corrupt, ObjectNotFound
from loader.storage import Store

from ...denied.cells import json_object, scrub, taken_rows
from ...denied.find import producer_names_some
from ...denied.hashed_names import Marks
from ...denied.readable_versions import Whole, over_whole
from ...denied.record import Place
from ..gc.needed import OURS

PART_SAMPLES = "part-samples"


def left_over(root: Root, dataset: str, marks: Marks) -> Iterator[Place]:
    """Yield record entries for objects in a dataset's transactions that no version names.

    Reads each index, table and manifest among them. If a version was partly collected, the rest must go too.
    """

    def named_by(versions: Whole) -> tuple[set[str], set[str]]:
        whole = {record.txn for record, _ in versions}
        named = {record.manifest for record, _ in versions}
        for _, version in versions:
            named |= {one.path for one in references(root.store, version.manifest)}
        return whole, named

    # Read the log first, so that a version committed meanwhile is not taken for a partly collected one.
    txns = [one for one in root.state.txns.values() if one.dataset == dataset]
    whole, named = over_whole(root, dataset, named_by)
    for txn in sorted(txns, key=lambda txn: txn.txn):
        in_part = txn.status == "committed" and txn.txn not in whole
        keys = {info.key for info in root.store.list(f"data/{txn.txn}/")}
        for path in sorted(keys - named):
            known = list(_looked_at(root.store, path, keys, marks, waits=txn.status == "open"))
            for object_path, what in known or (_rest(path) if in_part else ()):
                yield {"check": "absent", "what": what, "of": dataset, "path": object_path}


def _rest(path: str) -> Iterator[tuple[str, str]]:
    if re.fullmatch(OURS, path):
        yield path, "rest of a version that was collected in part"


def _looked_at(
    store: Store, path: str, keys: set[str], marks: Marks, *, waits: bool
) -> Iterator[tuple[str, str]]:
    """Yield (path, what) for an object, and for an index's shard, if it has or names a denied sample."""
    # waits: it may still be published; if it only names samples, the next run rewrites it.
    try:
        for object_path, what in _with_marks(store, path, keys, marks, waits):
            yield object_path, f"{what} that no version names"
    except ObjectNotFound:
        return


def _with_marks(
    store: Store, path: str, keys: set[str], marks: Marks, waits: bool
) -> Iterator[tuple[str, str]]:
    if path.endswith(".parquet"):
        table = parse_table(store.get(path).data, path)
        if any(taken_rows(table, marks)) or (not waits and scrub(table, marks) is not table):
            yield path, table_facts(table).get("table", "table")
            if path.endswith(".index.parquet"):
                yield path.removesuffix(".index.parquet") + ".tar", "shard"
    elif path.endswith(".json"):
        if not waits and producer_names_some(json_object(store.get(path).data, path, store.url), marks):
            yield path, "manifest"
    elif path.endswith(".tar") and path.removesuffix(".tar") + ".index.parquet" not in keys:
        with suppress(Corrupt):  # a proof names an unreadable shard
            if any(marks.takes("sample", key) for key in member_keys(store, path)):
                yield path, "shard without an index"


def member_keys(store: Store, path: str) -> Iterator[str]:
    """Yield the keys of a shard's members, as far as it is readable."""
    try:
        with (
            store.open_stream(path) as stream,
            tarfile.open(fileobj=stream, mode="r|", ignore_zeros=True) as tar,
        ):
            for member in tar:
                folder, slash, name = member.name.rpartition("/")
                yield folder + slash + name.partition(".")[0]
    except tarfile.TarError as error:
        raise Corrupt(f"{store.url}/{path} is no archive that can be read to its end: {error}") from error


def part_samples(root: Root, dataset: str, rows: Rows, marks: Marks) -> dict[str, dict[str, Any]]:
    """Return path -> redacted table, for part-samples tables with denied samples."""
    newest = root.state.newest(dataset)
    if newest is None or not rows:
        return {}
    keys = _keys(root.store, newest, rows)
    out = {}
    for place in list(left_over(root, dataset, marks)):
        if place["what"].startswith(PART_SAMPLES):
            path = place["path"]
            try:
                table = parse_table(root.store.get(path).data, path)
            except ObjectNotFound:  # it was just collected
                continue
            new = scrub(redact_rows(table, rows_of(table, keys)), marks)
            out[path] = put_named_table(root.store, path.rpartition("/")[0], new, PART_SAMPLES).to_json()
    return out


def _keys(store: Store, record: VersionRecord, rows: Rows) -> dict[str, dict[int, str]]:
    files = [
        TableFile.from_json(one)
        for one in open_record(store, record).manifest["samples"]
        if one["group"] == "keys"
    ]
    out: dict[str, dict[int, str]] = {}
    for table in get_tables(store, files, ["part", "row", "key"]):
        for at in table.to_pylist():
            if at["row"] in rows.get(at["part"], ()):
                out.setdefault(at["part"], {})[at["row"]] = at["key"]
    return out
