"""Count the windows of a view's episodes, once per root.

    windows/<hash>.parquet      first; a row per episode, the number of its first window, then the number of all

The hash covers view, anchor, every and the rows that windows need inside. Rows are counted from the index: a field's
bytes less its header.
"""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, Forbidden, InvalidPlan, ObjectNotFound, StoreError
from ...modalities.array import NpyLayout, is_array, layout_in
from ...modalities.fields import last_word
from ...modalities.row_blocks import MIN_BYTES, read_rows
from ...modalities.row_blocks import SUFFIX as ROWS
from ...order.random.keyed_permutation import I64
from ...order.random.plan_hash import content_hash
from ...order.sources.window_layout import AGE_NS, ANCHOR_NS, IS_PAD, ROW, WindowLayout
from ...order.sources.window_view import WindowView, n_windows, table_sha256
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import SampleAddress
from ..tables.parquet import integers, parse_stored, table_bytes, table_facts
from .pack import field_nbytes

if TYPE_CHECKING:
    from .view import View

logger = logging.getLogger(__name__)
VIDEOS = ("mp4", "mov", "mkv", "webm", "run")


def windows_of(view: "View", layout: WindowLayout) -> WindowView:
    """Return the view's windows of a layout. Raises: InvalidPlan; FieldNotFound; Corrupt."""
    _check_fields(view, layout)
    first = _load(view, layout)
    if first is None:
        first = _kept(view, layout, _counted(view, layout))
    return WindowView(view, layout, first)


def _check_fields(view: "View", layout: WindowLayout) -> None:
    view.version.group_of(layout.anchor)
    if not is_array(layout.anchor):
        raise InvalidPlan(
            f"windows: anchor = {layout.anchor!r}; an array field is needed, such as 'action.npy'"
        )
    for field in layout.at:
        if field not in view.fields:
            raise InvalidPlan(f"windows: at names {field!r}; the view selects {list(view.fields)}")
        if not is_array(field) and last_word(field) not in VIDEOS:
            raise InvalidPlan(f"windows: at names {field!r}; arrays and videos have values in time")
        if field in layout.rule and (layout.rule[field] == "linear" and not is_array(field)):
            raise InvalidPlan(f"windows: rule[{field!r}] = 'linear'; frames are not mixed: use 'nearest'")
    for field in view.fields:
        if last_word(field) in VIDEOS and field not in layout.at:
            raise InvalidPlan(
                f"windows: the view selects {field!r}, a video, and at= does not name it: add its times, or leave "
                "it out with select()"
            )
    extra = {ANCHOR_NS, ROW, *(f"{field}.{suffix}" for field in layout.at for suffix in (AGE_NS, IS_PAD))}
    if clash := extra & set(view.fields):
        raise InvalidPlan(
            f"windows: {sorted(clash)[0]!r} is a field that windows add; leave it out with select()"
        )


def _counted(view: "View", layout: WindowLayout) -> I64:
    episodes = view.version_ordinals(np.arange(len(view), dtype=np.int64))
    if not len(episodes):
        return np.zeros(1, np.int64)
    address, stored = _first_layout(view, layout.anchor, episodes[:1])
    if not stored.shape or not stored.shape[0] or stored.fortran:
        raise InvalidPlan(
            f"windows: {address.describe(layout.anchor)} is {stored.dtype} {list(stored.shape)}; rows are needed"
        )
    nbytes = np.concatenate(list(field_nbytes(view.version, layout.anchor)))[episodes]
    n_rows, rest = np.divmod(nbytes - len(stored.head), stored.nbytes // stored.shape[0])
    wrong = np.flatnonzero((rest != 0) | (n_rows < 1))
    if len(wrong):
        keys = view.keys(episodes[wrong[:3]])
        raise InvalidPlan(
            f"windows: {len(wrong)} episodes have no whole rows of {layout.anchor!r} like the first episode, such as "
            f"{', '.join(map(repr, keys))}: leave them out with where(), or store them in one dtype and width"
        )
    counts = n_windows(n_rows, layout)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _first_layout(view: "View", anchor: str, episode: I64) -> tuple[SampleAddress, NpyLayout]:
    """Return an episode's address and its anchor's layout: of a large one, from its row blocks."""
    version = view.version
    (address,) = version.address(episode, [anchor])
    if anchor + ROWS in version.fields and address.fields[anchor].nbytes > MIN_BYTES:
        (part,), _ = version.parts.locate(episode)
        if version.parts.has_group(version.group_of(anchor + ROWS))[part]:
            (at,) = version.address(episode, [anchor + ROWS])
            (fields,) = read_fields(version.shard_store, [at])
            if fields[anchor + ROWS]:
                return address, read_rows(fields[anchor + ROWS]).layout
    (fields,) = read_fields(version.shard_store, [address])
    return address, layout_in(anchor, fields[anchor])


def _path(view: "View", layout: WindowLayout) -> str:
    question: dict[str, Any] = {"view": view.id, "anchor": layout.anchor, "every": layout.every}
    if layout.pad == "inside":
        question["inside"] = list(layout.span)
    return f"windows/{content_hash('n', question).removeprefix('n-')}.parquet"


def _load(view: "View", layout: WindowLayout) -> I64 | None:
    store, path = view.version.store, _path(view, layout)
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    name = f"{store.url}/{path}"
    first = parse_windows(data, path, name)
    if len(first) != len(view) + 1:
        raise Corrupt(
            f"{name} has {len(first)} rows, the view {len(view)} episodes; delete it, it is made again"
        )
    return first


def parse_windows(data: bytes, path: str, name: str) -> I64:
    """Return the table in a file, int64 [episodes + 1], checked. Raises: Corrupt."""
    table = parse_stored(data, path, name)
    try:
        first = integers(table["first"])
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{name} is no table of windows: {error}; delete it, it is made again") from error
    stated = table_facts(table).get("content_sha256")
    if not len(first) or first[0] != 0 or (np.diff(first) < 0).any() or table_sha256(first) != stated:
        raise Corrupt(f"{name} is no table of windows, or was damaged or edited; delete it, it is made again")
    return first


def _kept(view: "View", layout: WindowLayout, first: I64) -> I64:
    store, path = view.version.store, _path(view, layout)
    try:
        facts = {"path": path, "content_sha256": table_sha256(first)}
        store.put_if_absent(path, table_bytes(pa.table({"first": first}), "windows", facts=facts))
    except AlreadyExists:
        saved = _load(view, layout)
        return first if saved is None else saved
    except Forbidden:
        logger.warning("the root is read-only here: %s was not saved, each process counts the windows", path)
    except StoreError as error:
        logger.warning("%s was not saved (%s); each process counts the windows", path, error)
    return first
