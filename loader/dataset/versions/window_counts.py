"""Count the windows of a view's episodes, once per root: `window_tables` stores the result.

If an earlier version's table is known, only new episodes are counted: common episodes keep their order and their bytes.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
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
)
from ...storage.threads import DaemonPool
from ..progress import Watch, unwatched
from ..reading.verified_bucket_reads import FieldPart, PartsOfField, read_fields, read_parts
from ..shards.address import UNKNOWN_CRC, SampleAddress
from ..shards.bitmap import Bools, SelectTable, pack_pieces
from ..tables.parquet import READ_AHEAD
from .documents import field_nbytes
from .earlier_versions import earlier_versions, view_delta
from .window_tables import kept_windows_bytes, load_kept, parse_windows, windows_bytes

if TYPE_CHECKING:
    from .view_samples import ViewSamples

logger = logging.getLogger(__name__)
VIDEOS = ("mp4", "mov", "mkv", "webm", "run")
HEAD_BYTES = 2**14
"""Bytes of an array that are read for its header."""
KEEP_BYTES = 16 * 2**20
KEEP_EPISODES = 4096
"""Bytes of `keep`, and episodes, that are read together at most, about."""


def view_windows(
    view: "ViewSamples",
    layout: WindowLayout,
    watch: Watch = unwatched,
    earlier: Iterable[WindowView] = (),
) -> WindowView:
    """Return the view's windows of a layout. earlier: windows of earlier versions. The root is searched for more.

    Raises: InvalidPlan; FieldNotFound; Corrupt.
    """
    _check_fields(view, layout)
    stored = find_stored_windows(view, layout)
    if stored is not None:
        return stored
    known = _newest_earlier(view, layout, earlier)
    table = _WindowCounter(view, layout, known).table(watch)
    if _is_saved(view, layout, table):
        # Another process may have stored the table first: all use that one.
        stored = find_stored_windows(view, layout)
        if stored is not None:
            return stored
    if table.packed is None:
        return WindowView(view, layout, table.first)
    n_at_all_rows = int(table.first[-1])
    members = SelectTable(table.packed.tobytes(), n_at_all_rows)
    kept = KeptWindows(table.first, members)
    return WindowView(view, layout, table.first_kept, kept)


def find_stored_windows(view: "ViewSamples", layout: WindowLayout) -> WindowView | None:
    """Return the view's windows if the root has their table; None otherwise. Raises: Corrupt."""
    store = view.version.store
    path = _path(view, layout)
    name = f"{store.url}/{path}"
    n_rows = len(view) + 1  # a row per episode, then the number of all windows
    kept: KeptWindows | None = None
    if layout.keep is not None:
        table = load_kept(store, path, n_rows)
        if table is None:
            return None
        first, kept, sha256 = table
    else:
        try:
            data = store.get(path).data
        except ObjectNotFound:
            return None
        first, sha256 = parse_windows(data, path, name)
    if len(first) != n_rows:
        raise Corrupt(
            f"{name} has {len(first)} rows, the view {len(view)} episodes; delete it to rebuild it",
            what="rows",
            where=name,
            given=len(first),
            accepted=n_rows,
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
    _check_added_names(view, layout)


def _check_added_names(view: "ViewSamples", layout: WindowLayout) -> None:
    """Raise InvalidPlan if a field that windows add has the name of another field of a batch."""
    added = [ANCHOR_NS, ROW]
    for field in layout.at:
        added += [f"{field}.{AGE_NS}", f"{field}.{IS_PAD}"]
        if DEPTH in view.version.facts.get(field, {}):
            added.append(f"{field}.{DEPTH}")
    added += layout.columns
    if layout.text:
        added.append(TEXT)
    names = [*added, *view.fields]
    clash = sorted(name for name in added if names.count(name) > 1)
    if clash:
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
    """int64, ascending: the earlier view's numbers of the view's first episodes."""


def _newest_earlier(
    view: "ViewSamples",
    layout: WindowLayout,
    earlier: Iterable[WindowView],
) -> _EarlierTable | None:
    """Return the first table that the view continues: of `earlier`, then the newest in the root. None without any."""
    for windows in chain(earlier, _earlier_windows(view, layout)):
        old = windows.episodes
        if view.first or old.first:  # type: ignore[attr-defined]
            continue  # it has later episodes only: numbers of the other view do not fit
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
        self._view = view
        self._layout = layout
        self._known = known
        self._before = 0  # rows at each end of an episode, at which no window stands
        self._after = 0
        if layout.pad == "inside":
            self._before, self._after = layout.span
        self._n_known = 0
        if known is not None:
            self._n_known = len(known.episodes)
        new_episodes = np.arange(self._n_known, len(view), dtype=np.int64)
        self._new = view.version_ordinals(new_episodes)

    def table(self, watch: Watch) -> _Table:
        n_rows = self._n_rows()
        counts = n_windows(n_rows, self._layout)
        known = self._known
        if known is not None:
            known_first = known.windows.first
            if known.windows.kept is not None:
                known_first = known.windows.kept.first
            known_counts = np.diff(known_first)[known.episodes]
            counts = np.concatenate([known_counts, counts])
        first = _starts(counts)
        if self._layout.keep is None:
            return _Table(first, first, None)
        n_kept = np.zeros(len(counts), np.int64)  # [episodes]; `_read_bits` sets the new ones' counts
        if known is not None:
            n_kept[: self._n_known] = np.diff(known.windows.first)[known.episodes]
        bits = chain(self._member_bits(), self._read_bits(n_rows, n_kept, watch))
        packed = pack_pieces(bits, int(first[-1]), BITS_TOGETHER)
        return _Table(first, _starts(n_kept), packed)

    def _n_rows(self) -> I64:
        """Return int64 [new episodes]: rows of the anchor, from its size in bytes. Raises: InvalidPlan."""
        view = self._view
        field = self._layout.anchor
        if not len(self._new):
            return np.zeros(0, np.int64)
        first_episode = view.version_ordinals(np.zeros(1, np.int64))
        address, stored = _first_layout(view, field, first_episode)
        if not stored.shape or not stored.shape[0] or stored.fortran:
            raise InvalidPlan(
                f"windows: {address.describe(field)} is {stored.dtype} {list(stored.shape)}; rows are needed",
                what=field,
                where=address.describe(field),
                given=[str(stored.dtype), *stored.shape],
                accepted="rows",
            )
        data_nbytes = self._nbytes(field) - len(stored.head)
        row_nbytes = stored.nbytes // stored.shape[0]
        n_rows, rest = np.divmod(data_nbytes, row_nbytes)
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
        """Return int64 [new episodes]: size of a field, -1 where it is missing. Not for no new episodes."""
        parts = self._view.version.parts
        (part,), _ = parts.locate(self._new[:1])  # earlier parts have no new episode
        by_part = list(field_nbytes(self._view.version, field, int(part)))
        sizes = np.concatenate(by_part)  # [live samples from the part on]
        return sizes[self._new - int(parts.first_ordinal[part])]

    def _member_bits(self) -> Iterator[Bools]:
        """Yield the truth values at the windows of the known episodes, from the earlier table's bitmap."""
        if self._known is None or not len(self._known.episodes):
            return
        kept = self._known.windows.kept
        episodes = self._known.episodes
        assert kept is not None
        has_gap_behind = np.diff(episodes) != 1  # removed episodes follow
        run_starts = np.flatnonzero(has_gap_behind) + 1
        run_edges = [0, *run_starts.tolist(), len(episodes)]
        for run, next_run in pairwise(run_edges):
            first = int(kept.first[episodes[run]])
            stop = int(kept.first[episodes[next_run - 1] + 1])
            for start in range(first, stop, BITS_TOGETHER):
                yield kept.members.bits(start, min(start + BITS_TOGETHER, stop))

    def _read_bits(self, n_rows: I64, n_kept: I64, watch: Watch) -> Iterator[Bools]:
        """Yield the truth values at the windows of each new episode, and set its number of true ones in `n_kept`."""
        if not len(self._new):
            return
        view = self._view
        field = self._layout.keep or ""
        nbytes = self._nbytes(field)
        missing = np.flatnonzero(nbytes < 0)
        if len(missing):
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
        group_changes = np.diff(ends // KEEP_BYTES)
        group_starts = np.flatnonzero(group_changes) + 1
        groups = np.split(np.arange(len(nbytes)), group_starts)
        wrong = list[str]()
        with DaemonPool(READ_AHEAD, "penstock-keep") as pool:
            for numbers in watch(groups, f"reading {field}", len, lambda: len(nbytes)):
                addresses = view.version.address(self._new[numbers], [field], pool.map)
                read = read_fields(view.version.shard_store, addresses, parallel_map=pool.map)
                for number, address, data in zip(numbers.tolist(), addresses, read, strict=True):
                    values = _truth_values(field, data[field])
                    n = int(n_rows[number])
                    if not isinstance(values, str) and values.shape != (n,):
                        values = f"bool {list(values.shape)}"
                    if isinstance(values, str):
                        wrong.append(f"{address.key!r} ({values}, and {n} rows)")
                        continue
                    stop = max(self._before, n - self._after)
                    at_windows = values[self._before : stop : self._layout.every]
                    n_kept[self._n_known + number] = np.count_nonzero(at_windows)
                    yield at_windows
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
    """Return int64 [n + 1]: the sum of the counts before each, then the sum of all."""
    ends = np.cumsum(counts, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), ends])


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
    decided_by: dict[str, Any] = {
        "view": view.id,
        "anchor": layout.anchor,
        "every": layout.every,
    }
    if layout.pad == "inside":
        decided_by["inside"] = list(layout.span)
    if layout.keep is not None:
        decided_by["keep"] = layout.keep
        decided_by["bitmap"] = "front"  # a path other than the tables of earlier releases have
    digest = content_hash("n", decided_by).removeprefix("n-")
    return f"windows/{digest}.parquet"


def _is_saved(view: "ViewSamples", layout: WindowLayout, table: _Table) -> bool:
    """Save a table; return whether the root has one."""
    path = _path(view, layout)
    if table.packed is None:
        data = windows_bytes(table.first, path)
    else:
        data = kept_windows_bytes(table.first, table.first_kept, table.packed, {"path": path})
    try:
        view.version.store.put_if_absent(path, data)
    except AlreadyExists:
        pass
    except Forbidden:
        logger.warning("the root is read-only here: %s was not saved, each process counts the windows", path)
        return False
    except StoreError as error:
        logger.warning("%s was not saved (%s); each process counts the windows", path, error)
        return False
    return True
