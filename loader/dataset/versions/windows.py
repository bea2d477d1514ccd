"""Count the windows of a view's episodes, once per root.

    windows/<hash>.parquet      first; a row per episode, the number of its first window, then the number of all

The hash covers view, anchor, every, keep and the rows that windows need inside. Rows are counted from the index: a
field's bytes less its header. With `keep` the table has one more column, `kept`: a bitmap of the windows that stand at
true rows, cut into as many pieces as there are rows. `first` then counts windows at all rows.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import (
    AlreadyExists,
    Corrupt,
    DecodeFailed,
    FieldNotFound,
    Forbidden,
    InvalidPlan,
    ObjectNotFound,
    StoreError,
)
from ...keywords import did_you_mean
from ...modalities import decoder_for
from ...modalities.array import NpyLayout, is_array, layout_in
from ...modalities.fields import last_word
from ...modalities.language import FIELD as LANGUAGE
from ...modalities.row_blocks import MIN_BYTES, read_rows
from ...modalities.row_blocks import SUFFIX as ROWS
from ...order.random.keyed_permutation import I64
from ...order.random.plan_hash import content_hash
from ...order.sources.window_layout import AGE_NS, ANCHOR_NS, IS_PAD, ROW, TEXT, WindowLayout
from ...order.sources.window_view import KeptWindows, WindowView, n_windows, table_sha256
from ..progress import Watch, unwatched
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import UNKNOWN_CRC, SampleAddress
from ..shards.bitmap import SelectTable
from ..tables.parquet import READ_AHEAD, integers, parse_stored, table_bytes, table_facts
from .pack import field_nbytes

if TYPE_CHECKING:
    from .view import View

logger = logging.getLogger(__name__)
VIDEOS = ("mp4", "mov", "mkv", "webm", "run")
KEEP_BYTES, KEEP_EPISODES = 64 * 2**20, 4096
"""Bytes of `keep`, and episodes, that are read together at most, about."""


def windows_of(view: "View", layout: WindowLayout, watch: Watch = unwatched) -> WindowView:
    """Return the view's windows of a layout. Raises: InvalidPlan; FieldNotFound; Corrupt."""
    _check_fields(view, layout)
    table = _load(view, layout)
    if table is None:
        table = _stored(view, layout, _counted(view, layout, watch))
    first, kept = table
    return WindowView(view, layout, first, kept)


def stored_windows(view: "View", layout: WindowLayout) -> WindowView | None:
    """Return the view's windows if the root has their table; None otherwise. Raises: Corrupt."""
    table = _load(view, layout)
    return None if table is None else WindowView(view, layout, *table)


def _check_fields(view: "View", layout: WindowLayout) -> None:
    view.version.group_of(layout.anchor)
    if not is_array(layout.anchor):
        raise InvalidPlan(
            f"windows: anchor = {layout.anchor!r}; an array field is needed, such as 'action.npy'"
        )
    if layout.keep is not None:
        view.version.group_of(layout.keep)
        if not is_array(layout.keep):
            raise InvalidPlan(
                f"windows: keep = {layout.keep!r}; an array field of truth values is needed, such as 'keep.npy'"
            )
    if layout.text:
        view.version.group_of(LANGUAGE)
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
    known = view.version.manifest["columns"]
    for column in layout.columns:
        if column not in known:
            raise FieldNotFound(
                f"windows: columns names {column!r}{did_you_mean(column, known) or ';'} the samples table of "
                f"{view.version.name} has {', '.join(sorted(known))}"
            )
    extra = [ANCHOR_NS, ROW, *(f"{field}.{suffix}" for field in layout.at for suffix in (AGE_NS, IS_PAD))]
    extra += [*layout.columns, *([TEXT] if layout.text else [])]
    names = [*extra, *view.fields]
    if clash := sorted(name for name in extra if names.count(name) > 1):
        raise InvalidPlan(f"windows: {clash[0]!r} is a field that windows add; leave it out with select()")


def _counted(view: "View", layout: WindowLayout, watch: Watch) -> tuple[I64, KeptWindows | None]:
    episodes = view.version_ordinals(np.arange(len(view), dtype=np.int64))
    n_rows = _n_rows(view, layout, episodes)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_windows(n_rows, layout))])
    if layout.keep is None:
        return first, None
    packed = b"".join(_kept_bits(view, layout, episodes, n_rows, watch))
    kept = KeptWindows(first, SelectTable(packed, int(first[-1])))
    return kept.first_kept(), kept


def _n_rows(view: "View", layout: WindowLayout, episodes: I64) -> I64:
    if not len(episodes):
        return np.zeros(0, np.int64)
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
    return n_rows.astype(np.int64, copy=False)


def _kept_bits(
    view: "View", layout: WindowLayout, episodes: I64, n_rows: I64, watch: Watch
) -> Iterator[bytes]:
    """Yield the bitmap of the windows at true rows, in pieces. Reads the field `keep` of each episode once."""
    field = layout.keep or ""
    nbytes = np.concatenate([np.zeros(0, np.int64), *field_nbytes(view.version, field)])[episodes]
    if len(missing := np.flatnonzero(nbytes < 0)):
        (key,) = view.keys(episodes[missing[:1]])
        raise FieldNotFound(
            f"windows: {len(missing)} episodes, such as {key!r}, have no {field!r}: select it with where_present=True, "
            "or add its group for them with root.add_group"
        )
    ends = np.cumsum(np.maximum(nbytes, KEEP_BYTES // KEEP_EPISODES))
    groups = np.split(np.arange(len(episodes)), np.flatnonzero(np.diff(ends // KEEP_BYTES)) + 1)
    before, after = layout.span if layout.pad == "inside" else (0, 0)
    rest, wrong = np.zeros(0, bool), list[str]()
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-keep") as pool:
        for numbers in watch(groups, f"reading {field}", len, lambda: len(episodes)):
            addresses = view.version.address(episodes[numbers], [field], pool.map)
            rows = [rest]
            for number, address, data in zip(
                numbers.tolist(),
                addresses,
                read_fields(view.version.shard_store, addresses, run=pool.map),
                strict=True,
            ):
                kept, n = _truth_values(field, data[field]), int(n_rows[number])
                if isinstance(kept, str) or kept.shape != (n,):
                    got = kept if isinstance(kept, str) else f"bool {list(kept.shape)}"
                    wrong.append(f"{address.key!r} ({got}, and {n} rows)")
                else:
                    rows.append(kept[before : max(before, n - after) : layout.every])
            bits = np.concatenate(rows)
            whole = len(bits) // 8 * 8
            rest = bits[whole:]
            yield np.packbits(bits[:whole], bitorder="little").tobytes()
    if wrong:
        raise InvalidPlan(
            f"windows: keep = {field!r} of {len(wrong)} episodes is not a bool for each row of {layout.anchor!r}, such "
            f"as {', '.join(wrong[:3])}: leave them out with where(), or store the field again"
        )
    yield np.packbits(rest, bitorder="little").tobytes()


def _truth_values(field: str, data: bytes) -> "np.ndarray[Any, np.dtype[np.bool_]] | str":
    """Return an array of truth values, or a text about what is there instead."""
    try:
        values: np.ndarray[Any, Any] = decoder_for(field)(data, None)  # type: ignore[assignment]
    except DecodeFailed as error:
        return str(error)
    if values.dtype == np.bool_:
        return values
    return f"{values.dtype} {list(values.shape)}"


def _first_layout(view: "View", anchor: str, episode: I64) -> tuple[SampleAddress, NpyLayout]:
    """Return an episode's address and its anchor's layout: of a large one, from its row blocks."""
    version = view.version
    (address,) = version.address(episode, [anchor])
    if anchor + ROWS in version.fields and address.fields[anchor].nbytes > MIN_BYTES:
        (part,), _ = version.parts.locate(episode)
        if version.parts.has_group(version.group_of(anchor + ROWS))[part]:
            (at,) = version.address(episode, [anchor + ROWS])
            (fields,) = read_fields(version.shard_store, [at])
            place = address.fields[anchor]
            if fields[anchor + ROWS]:
                blocks = read_rows(fields[anchor + ROWS])
                if (blocks.nbytes, place.crc32c) in (
                    (place.nbytes, blocks.crc32c),
                    (place.nbytes, UNKNOWN_CRC),
                ):
                    return address, blocks.layout
    (fields,) = read_fields(version.shard_store, [address])
    return address, layout_in(anchor, fields[anchor])


def _path(view: "View", layout: WindowLayout) -> str:
    question: dict[str, Any] = {"view": view.id, "anchor": layout.anchor, "every": layout.every}
    if layout.pad == "inside":
        question["inside"] = list(layout.span)
    if layout.keep is not None:
        question["keep"] = layout.keep
    return f"windows/{content_hash('n', question).removeprefix('n-')}.parquet"


def _load(view: "View", layout: WindowLayout) -> tuple[I64, KeptWindows | None] | None:
    store, path = view.version.store, _path(view, layout)
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    name = f"{store.url}/{path}"
    first, kept = parse_windows(data, path, name)
    if len(first) != len(view) + 1 or (kept is None) != (layout.keep is None):
        raise Corrupt(
            f"{name} has {len(first)} rows, the view {len(view)} episodes; delete it, it is made again"
        )
    return first, kept


def parse_windows(data: bytes, path: str, name: str) -> tuple[I64, KeptWindows | None]:
    """Return the table in a file, int64 [episodes + 1], and the rows that `keep` leaves, checked. Raises: Corrupt."""
    table = parse_stored(data, path, name)
    damaged = Corrupt(f"{name} is no table of windows, or was damaged or edited; delete it, it is made again")
    try:
        first = integers(table["first"])
        packed = b"".join(table["kept"].to_pylist()) if "kept" in table.column_names else None
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{name} is no table of windows: {error}; delete it, it is made again") from error
    if not len(first) or first[0] != 0 or (first[1:] < first[:-1]).any():
        raise damaged
    kept, n = None, int(first[-1])
    if packed is not None:
        if len(packed) != -(-n // 8) or (n % 8 and packed[-1] >> n % 8):
            raise damaged
        kept = KeptWindows(first, SelectTable(packed, n))
    if table_sha256(first, kept) != table_facts(table).get("content_sha256"):
        raise damaged
    return (first, None) if kept is None else (kept.first_kept(), kept)


def _stored(
    view: "View", layout: WindowLayout, windows: tuple[I64, KeptWindows | None]
) -> tuple[I64, KeptWindows | None]:
    store, path = view.version.store, _path(view, layout)
    first, kept = windows
    table = pa.table({"first": first})
    if kept is not None:
        packed, n = kept.members.packed(), len(kept.first)
        step = -(-len(packed) // n)
        pieces = [packed[at : at + step] for at in range(0, n * step, step)] if step else [b""] * n
        table = pa.table({"first": kept.first, "kept": pa.array(pieces, pa.binary())})
    try:
        facts = {"path": path, "content_sha256": table_sha256(first, kept)}
        store.put_if_absent(path, table_bytes(table, "windows", facts=facts))
    except AlreadyExists:
        saved = _load(view, layout)
        return windows if saved is None else saved
    except Forbidden:
        logger.warning("the root is read-only here: %s was not saved, each process counts the windows", path)
    except StoreError as error:
        logger.warning("%s was not saved (%s); each process counts the windows", path, error)
    return windows
