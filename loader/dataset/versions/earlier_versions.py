"""Earlier versions of a dataset: their tables, and the samples that a view has added and excluded since.

A version only appends to its parent's parts, so common samples keep their order and new ones follow.
"""

import logging
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from ...errors import InvalidPlan, PenstockError
from ...order.sources.views import Delta
from ..tables.parquet import TableFile, get_tables

if TYPE_CHECKING:
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
    """Yield earlier versions, the newest first, if the root has objects under a prefix.

    A version out of a pickle has no root to look in.
    """
    root = version.reader
    if not isinstance(root, Versions) or next(iter(version.store.list(prefix)), None) is None:
        return
    records = [
        one for one in root.versions(version.dataset) if one.number < version.number and not one.retired
    ]
    for record in records[: -EARLIER_MAX - 1 : -1]:
        try:
            earlier = root.open(record.id)
        except PenstockError as error:
            logger.debug("tables of %s are not used: %s", record.name, error)
            continue
        yield earlier


Int64s = np.ndarray[Any, np.dtype[np.int64]]


def view_delta(view: "ViewSamples", old: "ViewSamples", compare: bool = True) -> Delta:
    """Return what `view` added and removed since `old`, a view of an earlier version.

    compare: False skips the comparison sample by sample.

    Raises: InvalidPlan if the version does not continue the earlier one, or the views differ in fields, predicate, or
    selection of common samples.
    """
    was, now = old.version, view.version
    if was.dataset != now.dataset or was.id == now.id:
        text = f"{now.name} is not a later version of the dataset of {was.name}"
        raise InvalidPlan(text, what="version", where=now.name, given=was.name)
    if wrong := _find_rewrite(was, now):
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
    first = len(was) - len(removed)
    if compare and (view.is_filtered or old.is_filtered):
        kept = np.ones(len(was), bool)
        kept[removed] = False
        if not np.array_equal(old.members()[kept], view.members()[:first]):
            raise InvalidPlan(
                f"of the samples that {was.name} and {now.name} share, their views do not select the same ones: a "
                "group or column was added to old parts. Make a new plan",
                what="view",
                where=now.name,
                given=was.name,
            )
    new = view.from_first(first)
    return Delta(view=new if len(new) else None, first=first, removed=removed)


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
    now, was = ([term.selection for term in one.slices] for one in (view, old))
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
        before, after = was.manifest[name], now.manifest[name]
        if after[: len(before)] != before and not _has_prefix(was, before, after):
            return name
    return None


def _has_prefix(version: "VersionShards", before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    old, new = (
        list(get_tables(version.store, [TableFile.from_json(file) for file in files[same:]]))
        for files in (before, after)
    )
    if not old or not new:
        return not old
    rows = pa.concat_tables(old)
    return bool(pa.concat_tables(new).slice(0, len(rows)).equals(rows))


def _removals(was: "VersionShards", now: "VersionShards") -> Int64s:
    if was.manifest["exclusions"] == now.manifest["exclusions"]:
        return np.zeros(0, np.int64)
    removed = [np.zeros(0, np.int64)]
    for part in now.parts.with_exclusions:
        if part < len(was.parts):
            before = was.parts.live_members(part)
            rows = before & ~now.parts.live_members(part)
            removed.append(int(was.parts.first_ordinal[part]) + np.flatnonzero(rows[before]))
    return np.concatenate(removed)
