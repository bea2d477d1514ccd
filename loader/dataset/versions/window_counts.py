"""Count the windows of a view's episodes, once per root.

    windows/<hash>.parquet      first; a row per episode, the number of its first window, then the number of all

With `keep` the file also has a bitmap of the windows at true rows (`kept_windows`).

If an earlier version's table is known, only new episodes are counted: common episodes keep their order and their bytes.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import (
    AlreadyExists,
    Corrupt,
    DecodeFailed,
    FieldNotFound,
    Forbidden,
    InvalidPlan,
    ObjectNotFound,
    PenstockError,
    StoreError,
)
from ...keywords import did_you_mean
from ...modalities import find_decoder
from ...modalities.array import NpyLayout, field_layout, is_array
from ...modalities.fields import last_word
from ...modalities.language import FIELD as LANGUAGE
from ...modalities.row_blocks import MIN_BYTES
from ...order.random.keyed_permutation import I64
from ...order.random.plan_hash import content_hash
from ...order.sources.window_layout import AGE_NS, ANCHOR_NS, DEPTH, IS_PAD, ROW, TEXT, WindowLayout
from ...order.sources.window_view import (
    BITS_TOGETHER,
    KeptWindows,
    WindowView,
    n_windows,
    remaining_episodes,
    table_sha256,
)
from ...storage.threads import DaemonPool
from ..progress import Watch, unwatched
from ..reading.verified_bucket_reads import FieldPart, PartsOfField, read_fields, read_parts
from ..shards.address import UNKNOWN_CRC, SampleAddress
from ..shards.bitmap import Bools, SelectTable
from ..tables.parquet import READ_AHEAD, integers, parse_stored, table_bytes, table_facts
from ..tables.parquet_ranges import footer_nbytes
from .documents import field_nbytes
from .earlier_versions import earlier_versions, view_delta
from .kept_windows import check_kept, kept_windows_bytes, load_kept

if TYPE_CHECKING:
    from .view_samples import ViewSamples

logger = logging.getLogger(__name__)
VIDEOS = ("mp4", "mov", "mkv", "webm", "run")
HEAD_BYTES = 2**14
"""Bytes of an array that are read for its header."""
KEEP_BYTES, KEEP_EPISODES = 16 * 2**20, 4096
"""Bytes of `keep`, and episodes, that are read together at most, about."""


def view_windows(
    view: "ViewSamples", layout: WindowLayout, watch: Watch = unwatched, earlier: Iterable[WindowView] = ()
) -> WindowView:
    """Return the view's windows of a layout. earlier: windows of earlier versions. The root is searched for more.

    Raises: InvalidPlan; FieldNotFound; Corrupt.
    """
    _check_fields(view, layout)
    if (stored := find_stored_windows(view, layout)) is not None:
        return stored
    table = _WindowCounter(view, layout, _newest_earlier(view, layout, earlier)).table(watch)
    if _is_saved(view, layout, table) and (stored := find_stored_windows(view, layout)) is not None:
        return stored
    first, kept = table.first, None
    if table.packed is not None:
        kept = KeptWindows(first, SelectTable(table.packed.tobytes(), int(first[-1])))
        first = table.first_kept
    return WindowView(view, layout, first, kept)


def find_stored_windows(view: "ViewSamples", layout: WindowLayout) -> WindowView | None:
    """Return the view's windows if the root has their table; None otherwise. Raises: Corrupt."""
    store, path, n = view.version.store, _path(view, layout), len(view) + 1
    if layout.keep is not None:
        table = load_kept(store, path, n)
        if table is None:
            return None
        first, kept, sha256 = table
    else:
        try:
            data = store.get(path).data
        except ObjectNotFound:
            return None
        (first, sha256), kept = _parse_table(data, path, f"{store.url}/{path}"), None
    if len(first) != n:
        raise Corrupt(
            f"{store.url}/{path} has {len(first)} rows, the view {len(view)} episodes; delete it to rebuild it",
            what="rows",
            where=f"{store.url}/{path}",
            given=len(first),
            accepted=n,
        )
    return WindowView(view, layout, first, kept, sha256)


def _check_fields(view: "ViewSamples", layout: WindowLayout) -> None:
    if view.columns:
        raise InvalidPlan(
            f"windows of a view with the columns {list(view.columns)}: pass them to loader.windows(columns=), not to "
            "select()",
            what="view",
            given=list(view.columns),
            accepted="columns of loader.windows(columns=)",
        )
    view.version.group_of(layout.anchor)
    if not is_array(layout.anchor):
        message = f"windows: anchor = {layout.anchor!r}; an array field is needed, such as 'action.npy'"
        raise InvalidPlan(message, what="anchor", given=layout.anchor, accepted="an array field")
    if layout.keep is not None:
        view.version.group_of(layout.keep)
        if not is_array(layout.keep):
            raise InvalidPlan(
                f"windows: keep = {layout.keep!r}; an array field of truth values is needed, such as 'keep.npy'",
                what="keep",
                given=layout.keep,
                accepted="an array field of truth values",
            )
    if layout.text:
        view.version.group_of(LANGUAGE)
    for field in layout.at:
        if field not in view.fields:
            message = f"windows: at names {field!r}; the view selects {list(view.fields)}"
            raise InvalidPlan(message, what="at", given=field, accepted=list(view.fields))
        if not is_array(field) and last_word(field) not in VIDEOS:
            message = f"windows: at names {field!r}; arrays and videos have values in time"
            raise InvalidPlan(message, what="at", given=field, accepted="arrays and videos")
        if field in layout.rule and (layout.rule[field] == "linear" and not is_array(field)):
            message = f"windows: rule[{field!r}] = 'linear'; frames are not mixed: use 'nearest'"
            raise InvalidPlan(message, what=f"rule[{field!r}]", given="linear", accepted=["last", "nearest"])
    for field in view.fields:
        if last_word(field) in VIDEOS and field not in layout.at:
            message = (
                f"windows: the view selects {field!r}, a video, and at= does not name it: add its times, or leave "
                "it out with select()"
            )
            raise InvalidPlan(message, what="at", given=list(layout.at), accepted=f"also the video {field!r}")
    known = view.version.manifest["columns"]
    for column in layout.columns:
        if column not in known:
            raise FieldNotFound(
                f"windows: columns names {column!r}{did_you_mean(column, known) or ';'} the samples table of "
                f"{view.version.name} has {', '.join(sorted(known))}",
                what="columns",
                where=view.version.name,
                given=column,
                accepted=sorted(known),
            )
    extra = [ANCHOR_NS, ROW, *(f"{field}.{suffix}" for field in layout.at for suffix in (AGE_NS, IS_PAD))]
    extra += [f"{field}.{DEPTH}" for field in layout.at if DEPTH in view.version.facts.get(field, {})]
    extra += [*layout.columns, *([TEXT] if layout.text else [])]
    names = [*extra, *view.fields]
    if clash := sorted(name for name in extra if names.count(name) > 1):
        message = f"windows: {clash[0]!r} is a field that windows add; leave it out with select()"
        raise InvalidPlan(message, what=clash[0], where="view", accepted="a name that windows do not add")


class _Table(NamedTuple):
    """A table of windows.

    first: int64 [episodes + 1], windows at all rows. first_kept: the same, at true rows. packed: bitmap, uint8; None
    without `keep`.
    """

    first: I64
    first_kept: I64
    packed: NDArray[np.uint8] | None


class _EarlierTable(NamedTuple):
    """Windows of the view's first episodes, from an earlier version's table."""

    windows: WindowView
    episodes: I64


def _newest_earlier(
    view: "ViewSamples", layout: WindowLayout, earlier: Iterable[WindowView]
) -> _EarlierTable | None:
    for windows in chain(earlier, _earlier_windows(view, layout)):
        old = windows.episodes
        if view.first or old.first:  # type: ignore[attr-defined]
            continue  # of later episodes only, which the other's numbers do not fit
        try:
            delta = view_delta(view, old)  # type: ignore[arg-type]
        except InvalidPlan as error:
            logger.debug("the windows of %s are not used: %s", old, error)
            continue
        return _EarlierTable(windows, remaining_episodes(windows, delta.removed))
    return None


def _earlier_windows(view: "ViewSamples", layout: WindowLayout) -> Iterator[WindowView]:
    for version in earlier_versions(view.version, "windows/"):
        try:
            windows = find_stored_windows(view.of_version(version), layout)
        except PenstockError as error:
            logger.debug("the windows of %s are not used: %s", version.name, error)
            continue
        if windows is not None:
            yield windows


class _WindowCounter:
    """Counts the windows of new episodes."""

    def __init__(self, view: "ViewSamples", layout: WindowLayout, known: _EarlierTable | None) -> None:
        self._view, self._layout, self._known = view, layout, known
        self._before, self._after = layout.span if layout.pad == "inside" else (0, 0)
        self._n_known = 0 if known is None else len(known.episodes)
        self._new = view.version_ordinals(np.arange(self._n_known, len(view), dtype=np.int64))

    def table(self, watch: Watch) -> _Table:
        n_rows = self._n_rows()
        counts = n_windows(n_rows, self._layout)
        known = self._known
        if known is not None:
            all_rows = known.windows.kept.first if known.windows.kept else known.windows.first
            counts = np.concatenate([np.diff(all_rows)[known.episodes], counts])
        first = _starts(counts)
        if self._layout.keep is None:
            return _Table(first, first, None)
        kept = np.zeros(len(counts), np.int64)
        if known is not None:
            kept[: self._n_known] = np.diff(known.windows.first)[known.episodes]
        packed = _pack_bits(chain(self._member_bits(), self._read_bits(n_rows, kept, watch)), int(first[-1]))
        return _Table(first, _starts(kept), packed)

    def _n_rows(self) -> I64:
        view, field = self._view, self._layout.anchor
        if not len(self._new):
            return np.zeros(0, np.int64)
        address, stored = _first_layout(view, field, view.version_ordinals(np.zeros(1, np.int64)))
        if not stored.shape or not stored.shape[0] or stored.fortran:
            raise InvalidPlan(
                f"windows: {address.describe(field)} is {stored.dtype} {list(stored.shape)}; rows are needed",
                what=field,
                where=address.describe(field),
                given=[str(stored.dtype), *stored.shape],
                accepted="rows",
            )
        nbytes = self._nbytes(field)
        n_rows, rest = np.divmod(nbytes - len(stored.head), stored.nbytes // stored.shape[0])
        wrong = np.flatnonzero((rest != 0) | (n_rows < 1))
        if len(wrong):
            keys = view.keys(self._new[wrong[:3]])
            raise InvalidPlan(
                f"windows: {len(wrong)} episodes have no whole rows of {field!r} like the first episode, such as "
                f"{', '.join(map(repr, keys))}: leave them out with where(), or store them in one dtype and width",
                what=field,
                where=f"episode {keys[0]!r}",
                accepted="whole rows like the first episode's",
            )
        return n_rows.astype(np.int64, copy=False)

    def _nbytes(self, field: str) -> I64:
        version = self._view.version
        (part,), _ = version.parts.locate(self._new[:1])
        sizes = np.concatenate(list(field_nbytes(version, field, int(part))))
        return sizes[self._new - int(version.parts.first_ordinal[part])]

    def _member_bits(self) -> Iterator[Bools]:
        if self._known is None:
            return
        kept, episodes = self._known.windows.kept, self._known.episodes
        assert kept is not None
        runs = [0, *(np.flatnonzero(np.diff(episodes) != 1) + 1).tolist(), len(episodes)]
        for first, stop in pairwise(runs if len(episodes) else []):
            start, end = int(kept.first[episodes[first]]), int(kept.first[episodes[stop - 1] + 1])
            for at in range(start, end, BITS_TOGETHER):
                yield kept.members.bits(at, min(at + BITS_TOGETHER, end))

    def _read_bits(self, n_rows: I64, kept: I64, watch: Watch) -> Iterator[Bools]:
        """Yield the truth values at the windows of each new episode, and set its number of true ones in `kept`."""
        if not len(self._new):
            return
        view, field = self._view, self._layout.keep or ""
        nbytes = self._nbytes(field)
        if len(missing := np.flatnonzero(nbytes < 0)):
            (key,) = view.keys(self._new[missing[:1]])
            raise FieldNotFound(
                f"windows: {len(missing)} episodes, such as {key!r}, have no {field!r}: select it with "
                "where_present=True, or add its group for them with root.add_group",
                what=field,
                where=f"episode {key!r}",
                accepted="a value for each episode",
            )
        # Each episode counts as KEEP_BYTES / KEEP_EPISODES at least, which bounds the episodes of a group.
        ends = np.cumsum(np.maximum(nbytes, KEEP_BYTES // KEEP_EPISODES))
        groups = np.split(np.arange(len(nbytes)), np.flatnonzero(np.diff(ends // KEEP_BYTES)) + 1)
        wrong = list[str]()
        with DaemonPool(READ_AHEAD, "penstock-keep") as pool:
            for numbers in watch(groups, f"reading {field}", len, lambda: len(nbytes)):
                addresses = view.version.address(self._new[numbers], [field], pool.map)
                read = read_fields(view.version.shard_store, addresses, parallel_map=pool.map)
                for number, address, data in zip(numbers.tolist(), addresses, read, strict=True):
                    values, n = _truth_values(field, data[field]), int(n_rows[number])
                    if isinstance(values, str) or values.shape != (n,):
                        got = values if isinstance(values, str) else f"bool {list(values.shape)}"
                        wrong.append(f"{address.key!r} ({got}, and {n} rows)")
                        continue
                    own = values[self._before : max(self._before, n - self._after) : self._layout.every]
                    kept[self._n_known + number] = np.count_nonzero(own)
                    yield own
        if wrong:
            raise InvalidPlan(
                f"windows: keep = {field!r} of {len(wrong)} episodes is not a bool for each row of "
                f"{self._layout.anchor!r}, such as {', '.join(wrong[:3])}: leave them out with where(), or store the "
                "field again",
                what="keep",
                given=wrong[:3],
                accepted=f"a bool for each row of {self._layout.anchor!r}",
            )


def _starts(counts: I64) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _pack_bits(pieces: Iterable[Bools], n: int) -> NDArray[np.uint8]:
    packed, at, waiting, n_waiting = np.zeros(-(-n // 8), np.uint8), 0, list[Bools](), 0

    def pack(values: Bools) -> None:
        nonlocal at
        octets = np.packbits(values, bitorder="little")
        packed[at : at + len(octets)] = octets
        at += len(octets)

    for piece in pieces:
        waiting.append(piece)
        n_waiting += len(piece)
        if n_waiting >= BITS_TOGETHER:
            values = np.concatenate(waiting)
            whole = n_waiting // 8 * 8
            pack(values[:whole])
            waiting, n_waiting = [values[whole:]], n_waiting - whole
    pack(np.concatenate([np.zeros(0, bool), *waiting]))
    return packed


def _truth_values(field: str, data: bytes) -> Bools | str:
    """Return an array of truth values, or a text about what is there instead."""
    try:
        values: np.ndarray[Any, Any] = find_decoder(field)(data, None)  # type: ignore[assignment]
    except DecodeFailed as error:
        return str(error)
    if values.dtype == np.bool_:
        return values
    return f"{values.dtype} {list(values.shape)}"


def _first_layout(view: "ViewSamples", anchor: str, episode: I64) -> tuple[SampleAddress, NpyLayout]:
    """Return an episode's address and its anchor's layout, which is read from the header if the anchor is large."""
    version = view.version
    (address,) = version.address(episode, [anchor])
    place = address.fields[anchor]
    if place.nbytes > MIN_BYTES and last_word(anchor) == "npy":
        head = FieldPart(0, HEAD_BYTES, UNKNOWN_CRC)
        ((data,),) = read_parts(version.shard_store, [PartsOfField(address, anchor, [[head]])])
        stored = field_layout(anchor, data)
        if len(stored.head) + stored.nbytes == place.nbytes:
            return address, stored
    (fields,) = read_fields(version.shard_store, [address])
    return address, field_layout(anchor, fields[anchor])


def _path(view: "ViewSamples", layout: WindowLayout) -> str:
    question: dict[str, Any] = {"view": view.id, "anchor": layout.anchor, "every": layout.every}
    if layout.pad == "inside":
        question["inside"] = list(layout.span)
    if layout.keep is not None:
        question |= {"keep": layout.keep, "bitmap": "front"}  # other than the tables of earlier releases
    return f"windows/{content_hash('n', question).removeprefix('n-')}.parquet"


def check_windows(data: bytes, path: str, name: str) -> None:
    """Raise Corrupt unless a file is an undamaged table of windows, with or without a bitmap."""
    if b"penstock.front_sha256" in data[len(data) - footer_nbytes(data) :]:
        check_kept(data, path, name)
    else:
        _parse_table(data, path, name)


def _parse_table(data: bytes, path: str, name: str) -> tuple[I64, str]:
    """Return the table in a file, int64 [episodes + 1], and the SHA-256 of its content. Raises: Corrupt."""
    table = parse_stored(data, path, name)
    try:
        first, packed = integers(table["first"]), b""
        if "kept" in table.column_names:  # of an earlier release
            packed = b"".join(table["kept"].to_pylist())
    except (KeyError, TypeError) as error:
        message = f"{name} is not a table of windows: {error}; delete it to rebuild it"
        raise Corrupt(message, what="table of windows", where=name, given=str(error)) from error
    is_ordered = len(first) and first[0] == 0 and not (first[1:] < first[:-1]).any()
    if not is_ordered or (sha256 := table_sha256(first, packed)) != table_facts(table).get("content_sha256"):
        message = f"{name} is not a table of windows, or was damaged or edited; delete it to rebuild it"
        raise Corrupt(message, what="content of the table", where=name)
    return first, sha256


def _is_saved(view: "ViewSamples", layout: WindowLayout, table: _Table) -> bool:
    """Save a table; return whether the root has one."""
    store, path = view.version.store, _path(view, layout)
    try:
        store.put_if_absent(path, _table_bytes(path, table))
    except AlreadyExists:
        pass
    except Forbidden:
        logger.warning("the root is read-only here: %s was not saved, each process counts the windows", path)
        return False
    except StoreError as error:
        logger.warning("%s was not saved (%s); each process counts the windows", path, error)
        return False
    return True


def _table_bytes(path: str, table: _Table) -> bytes:
    if table.packed is not None:
        return kept_windows_bytes(table.first, table.first_kept, table.packed, {"path": path})
    facts = {"path": path, "content_sha256": table_sha256(table.first)}
    delta: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"first": "DELTA_BINARY_PACKED"}}
    return table_bytes(pa.table({"first": table.first}), "windows", facts=facts, **delta)
