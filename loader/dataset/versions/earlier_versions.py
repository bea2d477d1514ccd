"""Earlier versions of a dataset: their tables, and the samples that a view has added and excluded since.

A version only appends to its parent's parts, so common samples keep their order and new ones follow.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from ...errors import InvalidPlan, PenstockError
from ...order.sources.views import Delta
from ..tables.parquet import TableFile, get_tables

if TYPE_CHECKING:
    from ...storage import Store
    from ..log.state import VersionRecord
    from ..reading.version_shards import VersionShards
    from .view_samples import ViewSamples

logger = logging.getLogger(__name__)
EARLIER_MAX = 16
"""Most earlier versions to look at; each costs opening it and two requests."""


@runtime_checkable
class Versions(Protocol):
    """A root."""

    def versions(self, dataset: str) -> "list[VersionRecord]":
        """Return the versions of a dataset."""

    def open(self, ref: str) -> "VersionShards":
        """Return a version."""


def earlier_versions(version: "VersionShards", prefix: str) -> "Iterator[VersionShards]":
    """Yield earlier versions that are not retired, the newest first, if the root has objects under a prefix."""
    root = version.reader
    if not isinstance(root, Versions):  # None: a version out of a pickle has no root to look in
        return
    first_object = next(iter(version.store.list(prefix)), None)
    if first_object is None:
        return
    records: list[VersionRecord] = []
    for record in root.versions(version.dataset):
        is_earlier = record.number < version.number
        if is_earlier and record.retired is None:
            records.append(record)
    newest_first = records[::-1]
    for record in newest_first[:EARLIER_MAX]:
        try:
            earlier = root.open(record.id)
        except PenstockError as error:
            logger.debug("tables of %s are not used: %s", record.name, error)
            continue
        yield earlier


Int64s = np.ndarray[Any, np.dtype[np.int64]]


def view_delta(view: "ViewSamples", old: "ViewSamples", compare: bool = True) -> Delta:
    """Return what `view` added and removed since `old`, a view of an earlier version.

    compare: False skips the comparison sample by sample, which reads both views' bitmaps.

    Raises: InvalidPlan if the version does not continue the earlier one, or the views differ in fields, predicate, or
    selection of common samples.
    """
    was = old.version
    now = view.version
    if was.dataset != now.dataset or was.id == now.id:
        text = f"{now.name} is not a later version of the dataset of {was.name}"
        raise InvalidPlan(text, what="version", where=now.name, given=was.name)
    wrong = _find_rewrite(was, now)
    if wrong is not None:
        raise InvalidPlan(
            f"{now.name} does not go on from {was.name}: its {wrong} do not begin with those in {was.name}. "
            "A version with rewritten parts, or of another line, needs a new plan",
            what=wrong,
            where=now.name,
            given=was.name,
        )
    _check_selection(view, old)
    _check_slices(view, old)
    removed = _removals(was, now)
    first = len(was) - len(removed)  # the common samples have the ordinals before it in the later version
    if compare and (view.is_filtered or old.is_filtered):
        is_common = np.ones(len(was), bool)
        is_common[removed] = False
        members_before = old.members()[is_common]
        members = view.members()[:first]
        if not np.array_equal(members_before, members):
            raise InvalidPlan(
                f"of the samples that {was.name} and {now.name} share, their views do not select the same ones: a "
                "group or column was added to old parts. Make a new plan",
                what="view",
                where=now.name,
                given=was.name,
            )
    later = view.from_first(first)
    new_samples: ViewSamples | None = None
    if len(later):
        new_samples = later
    return Delta(view=new_samples, first=first, removed=removed)


def _check_selection(view: "ViewSamples", old: "ViewSamples") -> None:
    """Raise InvalidPlan unless both views have the same fields, columns and predicate."""
    was = old.version
    now = view.version
    if set(view.fields) != set(old.fields) or view.where_present != old.where_present:
        raise InvalidPlan(
            f"the view of {now.name} has the fields {sorted(view.fields)}, of {was.name} {sorted(old.fields)}; "
            f"batches hold samples of both: select({', '.join(map(repr, old.fields))})",
            what="fields",
            where=now.name,
            given=sorted(view.fields),
            accepted=sorted(old.fields),
        )
    if view.columns != old.columns:
        raise InvalidPlan(
            f"the view of {now.name} has the columns {list(view.columns)}, of {was.name} {list(old.columns)}, or other "
            "class names; batches hold samples of both: pass the same columns= to select()",
            what="columns",
            where=now.name,
            given=view.columns,
            accepted=old.columns,
        )
    if view.predicate != old.predicate:
        raise InvalidPlan(
            f"the view of {now.name} is where {view.predicate!r}, of {was.name} where {old.predicate!r}: the "
            "same predicate is needed, for it decides about the samples that both have",
            what="where",
            where=now.name,
            given=view.predicate,
            accepted=old.predicate,
        )


def _check_slices(view: "ViewSamples", old: "ViewSamples") -> None:
    """Raise InvalidPlan unless both views have the same slices, which are rules."""
    lists = [term.name for term in (*view.slices, *old.slices) if term.is_list]
    if lists:
        raise InvalidPlan(
            f"the slice {lists[0]!r} is a list of samples, which does not grow: make a new plan over "
            f"{view.version.name}",
            what=f"slice {lists[0]}",
            given="a list of samples",
        )
    # The digests differ: each is of its own version's ordinals.
    now = [term.selection for term in view.slices]
    was = [term.selection for term in old.slices]
    if now != was:
        raise InvalidPlan(
            f"the view of {view.version.name} has the slices {[term.name for term in now]}, of {old.version.name} "
            f"{[term.name for term in was]}, or other numbers of them: the same ones are needed",
            what="slices",
            given=[term.name for term in now],
            accepted=[term.name for term in was],
        )


def _find_rewrite(was: "VersionShards", now: "VersionShards") -> str | None:
    """Return a table of the later version that drops or reorders rows of the earlier one's, or None."""
    for name in ("shards", "exclusions"):
        before = was.manifest[name]
        after = now.manifest[name]
        has_same_files = after[: len(before)] == before
        if not has_same_files and not _has_same_rows(was.store, before, after):
            return name
    return None


def _has_same_rows(
    store: "Store",
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
) -> bool:
    """Return whether the files `after` begin with the rows of `before`: a compaction merges files, and keeps rows."""
    n_same = 0  # files at the beginning that both have: their rows need no comparison
    for file_before, file_after in zip(before, after, strict=False):
        if file_before != file_after:
            break
        n_same += 1
    tables_before = _read_tables(store, before[n_same:])
    tables_after = _read_tables(store, after[n_same:])
    if not tables_before:
        return True
    if not tables_after:
        return False
    rows_before = pa.concat_tables(tables_before)
    first_rows = pa.concat_tables(tables_after).slice(0, len(rows_before))
    return bool(first_rows.equals(rows_before))


def _read_tables(store: "Store", files: Sequence[Mapping[str, Any]]) -> list[pa.Table]:
    table_files = [TableFile.from_json(dict(file)) for file in files]
    return list(get_tables(store, table_files))


def _removals(was: "VersionShards", now: "VersionShards") -> Int64s:
    """Return int64, ascending: live ordinals of the earlier version whose samples the later one excludes."""
    if was.manifest["exclusions"] == now.manifest["exclusions"]:
        return np.zeros(0, np.int64)
    removed = [np.zeros(0, np.int64)]
    for part in now.parts.with_exclusions:
        if part >= len(was.parts):  # a new part
            continue
        was_live = was.parts.live_members(part)  # bool [rows of the part]
        is_removed = was_live & ~now.parts.live_members(part)
        # Ordinals count live rows only.
        is_live_removed = is_removed[was_live]
        first_ordinal = int(was.parts.first_ordinal[part])
        removed.append(first_ordinal + np.flatnonzero(is_live_removed))
    return np.concatenate(removed)
