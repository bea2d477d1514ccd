"""A view of windows, one per `every`-th row of an episode's anchor, numbered 0..N-1, which L1 shuffles."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import content_hash
from .views import Delta, OrderView

if TYPE_CHECKING:
    from .window_layout import WindowLayout


BITS_TOGETHER = 2**24
"""Bits of `keep` that are compared together."""


class WindowNumbers(Protocol):
    """A subset of the windows' numbers: see `SelectTable` for what each member returns."""

    def __len__(self) -> int: ...

    def packed(self) -> bytes: ...

    def bits(self, start: int, stop: int) -> NDArray[np.bool_]: ...

    def after(self, n: int) -> "WindowNumbers": ...

    def select(self, x: I64) -> I64: ...


class KeptWindows:
    """The choice that `keep` makes among the windows at all rows; immutable.

    first: int64 [episodes + 1], number of each episode's first window without `keep`, then the number of all.
    members: numbers, without `keep`, of the windows at true rows. An eighth of a byte per window.
    """

    def __init__(self, first: I64, members: WindowNumbers) -> None:
        self.first = first
        self.members = members

    def after(self, episode: int) -> "KeptWindows":
        """Return the choice among the windows of this episode and the later ones, numbered anew."""
        start = int(self.first[episode])
        first = self.first[episode:] - start
        members = self.members.after(start)
        return KeptWindows(first, members)


class WindowView:
    """A view whose samples are windows of episodes; immutable.

    episodes: view of the episodes.
    layout: values of a window.
    first: int64 [episodes + 1], number of each episode's first window, then the number of all.
    kept: rows that the layout's `keep` leaves; None for all.
    sha256: hash of the table (`table_sha256`); "" computes it.
    """

    def __init__(
        self,
        episodes: OrderView,
        layout: "WindowLayout",
        first: I64,
        kept: KeptWindows | None = None,
        sha256: str = "",
    ) -> None:
        if not sha256:
            if kept is None:
                sha256 = table_sha256(first)
            else:
                packed = kept.members.packed()
                sha256 = table_sha256(kept.first, packed)
        self.episodes = episodes
        self.layout = layout
        self.first = first
        self.kept = kept
        self.table_sha256 = sha256

    def __reduce__(self) -> Any:
        arguments = (
            self.episodes,
            self.layout,
            self.first,
            self.kept,
            self.table_sha256,
        )
        return WindowView, arguments

    def __repr__(self) -> str:
        n = len(self)
        anchor = self.layout.anchor
        return f"WindowView({self.episodes!r}, {n} windows at rows of {anchor})"

    def __len__(self) -> int:
        return int(self.first[-1])

    @property
    def id(self) -> str:
        """Content hash of the episodes' view and the table; independent of what a window takes."""
        content: dict[str, Any] = {"episodes": self.episodes.id}
        content |= self._windows()
        return content_hash("w", content)

    @property
    def identity(self) -> str:
        """The episodes' view, the anchor and the table: with its number, a window's permanent name."""
        lines = [self.episodes.id]
        for name, value in self._windows().items():
            lines.append(f"{name}={value}")
        text = "\n".join(lines)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"n-{digest}"

    @property
    def mean_sample_bytes(self) -> int:
        n_windows = max(1, len(self))
        total = self.episodes.mean_sample_bytes * len(self.episodes)
        return -(-total // n_windows)  # rounded up

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "windows",
            "episodes": self.episodes.spec(),
            "layout": self.layout.to_json(),
            "table": self.table_sha256,
        }

    def version_ordinals(self, x: I64) -> I64:
        return x

    def stored_ordinals(self, numbers: I64) -> I64:
        """Return the version ordinals (int64) of the windows' episodes; -1 at padding, whose numbers are below 0."""
        is_window = numbers >= 0
        if is_window.all():
            episodes = self._episodes(numbers)
            return self.episodes.version_ordinals(episodes)

        episodes = self._episodes(numbers[is_window])
        ordinals = np.full_like(numbers, -1)
        ordinals[is_window] = self.episodes.version_ordinals(episodes)
        return ordinals

    def counts(self, numbers: I64) -> I64:
        """Return the number of rows (int64), kept or not, at which windows may stand in each window's episode."""
        episodes = self._episodes(numbers)
        first = self._first_at_all_rows
        stops = first[episodes + 1]
        return stops - first[episodes]

    def rows(self, numbers: I64) -> I64:
        """Return the anchor's row (int64) at which each window stands, counted in its episode."""
        before, _ = _rows_without_window(self.layout)
        episodes = self._episodes(numbers)
        if self.kept is not None:
            numbers = self.kept.members.select(numbers)  # as without `keep`
        first = self._first_at_all_rows
        number_in_episode = numbers - first[episodes]
        return number_in_episode * self.layout.every + before

    def keys(self, version_ordinals: I64) -> list[str]:
        stored = self.stored_ordinals(version_ordinals)
        episode_keys = self.episodes.keys(stored)
        rows = self.rows(version_ordinals)
        keys = []
        for episode_key, row in zip(episode_keys, rows.tolist(), strict=True):
            key = window_key(episode_key, row)
            keys.append(key)
        return keys

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return version ordinals of episodes, which quarantine lists name; -1 for unknown keys."""
        return self.episodes.ordinals(keys)

    def of_version(self, version: Any) -> "WindowView":
        """Return the same windows of another version. Raises: FieldNotFound; InvalidPlan."""
        episodes = self.episodes.of_version(version)  # type: ignore[attr-defined]
        windows: WindowView = episodes.windowed(self.layout, earlier=(self,))
        return windows

    def since(self, old: "WindowView", *, compare: bool = True) -> Delta:
        """Return the windows of new episodes since an earlier version's view, and the ordinals of removed episodes.

        compare: True also reads the clocks and the `keep` rows of shared episodes, and compares them. A stored plan
        needs no second comparison.

        Raises: InvalidPlan if a shared episode has other windows than before.
        """
        if self.layout != old.layout:
            own = self.layout.to_json()
            former = old.layout.to_json()
            changed = [name for name in own | former if own.get(name) != former.get(name)]
            raise InvalidPlan(
                "the later windows have another anchor, every, keep, at, rule, pad, max_age, text or columns; a plan "
                "has one",
                what="windows",
                given=changed,
                accepted="the earlier layout",
            )
        # Shared episodes must have the same windows. They come first in this view, before the new ones.
        delta: Delta = self.episodes.since(old.episodes, compare=compare)  # type: ignore[attr-defined]
        n_shared = len(self.episodes)
        if delta.view is not None:
            n_shared -= len(delta.view)
        shared = remaining_episodes(old, delta.removed)  # [shared]: their numbers in the old view
        all_counts_before = np.diff(old._first_at_all_rows)
        all_counts = np.diff(self._first_at_all_rows)
        counts_before = all_counts_before[shared]
        counts = all_counts[:n_shared]
        if not np.array_equal(counts_before, counts):
            raise InvalidPlan(
                f"the number of rows of {self.layout.anchor!r} changed in episodes that both versions share",
                what=self.layout.anchor,
                accepted="the same rows in shared episodes",
            )
        if compare:
            _check_clocks(self, old)
            _check_kept(self, old, shared)

        # The new episodes' windows, numbered from 0.
        if delta.view is None:
            return delta
        first_new_window = self.first[n_shared]
        first = self.first[n_shared:] - first_new_window
        n_new_windows = first[-1]
        if not n_new_windows:  # the new episodes are too short, or `keep` leaves no row
            return replace(delta, view=None)
        kept: KeptWindows | None = None
        if self.kept is not None:
            kept = self.kept.after(n_shared)
        new_windows = WindowView(delta.view, self.layout, first, kept)
        return replace(delta, view=new_windows)

    def key_windows(self, key: str) -> list[int] | None:
        """Return the numbers of an episode's windows, or of one window, by its key; None if there are none."""
        # First as an episode's key, which may have an @ of its own.
        windows = self._windows_of_episode(key)
        if windows is not None:
            return list(windows) or None

        # Then as a window's: <episode>@<row>.
        episode_key, _, row_text = key.rpartition("@")
        windows = self._windows_of_episode(episode_key)
        if windows is None:
            return None
        numbers = np.array(windows, np.int64)
        rows = self.rows(numbers)
        row_texts = [str(row) for row in rows.tolist()]
        if row_text not in row_texts:
            return None
        number_in_episode = row_texts.index(row_text)
        return [windows[number_in_episode]]

    def _windows_of_episode(self, key: str) -> range | None:
        """Return the numbers of an episode's windows; None if the view has no such episode."""
        (ordinal,) = self.episodes.ordinals([key]).tolist()
        if ordinal < 0:
            return None
        n_episodes = len(self.episodes)
        episode = bisect_left(
            range(n_episodes),
            ordinal,
            key=self._episode_ordinal,
        )
        is_beyond = episode == n_episodes
        if is_beyond or self._episode_ordinal(episode) != ordinal:
            return None  # the version has the sample, the view does not
        first_window = int(self.first[episode])
        stop_window = int(self.first[episode + 1])
        return range(first_window, stop_window)

    @property
    def _first_at_all_rows(self) -> I64:
        """int64 [episodes + 1]: `first`, with the windows counted that `keep` leaves out."""
        if self.kept is None:
            return self.first
        return self.kept.first

    def _episode_ordinal(self, episode: int) -> int:
        episodes = np.array([episode], np.int64)
        (ordinal,) = self.episodes.version_ordinals(episodes).tolist()
        return int(ordinal)

    def _episodes(self, numbers: I64) -> I64:
        """Return the number (int64) of each window's episode."""
        n_begun = np.searchsorted(self.first, numbers, side="right")  # episodes without windows count, too
        return n_begun.astype(np.int64, copy=False) - 1

    def _windows(self) -> dict[str, Any]:
        """Return what decides the windows' rows, besides the episodes."""
        body: dict[str, Any] = {
            "anchor": self.layout.anchor,
            "every": self.layout.every,
        }
        if self.layout.pad == "inside":
            body["inside"] = list(self.layout.span)
        if self.layout.keep is not None:
            body["keep"] = self.layout.keep
        body["table"] = self.table_sha256  # last: `identity` hashes the entries in this order
        return body


def remaining_episodes(old: WindowView, removed: I64) -> I64:
    """Return int64: numbers of an earlier view's episodes that remain. removed: version ordinals of the others."""
    n_episodes = len(old.episodes)
    numbers = np.arange(n_episodes, dtype=np.int64)
    ordinals = old.episodes.version_ordinals(numbers)
    is_removed = np.isin(ordinals, removed)
    return np.flatnonzero(~is_removed)


def _check_clocks(view: WindowView, old: WindowView) -> None:
    """Raise InvalidPlan unless both pick the values of each field by the same clock."""
    fields = (view.layout.anchor, *view.layout.at)
    clocks = view.episodes.clocks(fields)  # type: ignore[attr-defined]
    clocks_before = old.episodes.clocks(fields)  # type: ignore[attr-defined]
    for field in fields:
        clock = clocks[field]
        clock_before = clocks_before[field]
        if clock != clock_before:
            raise InvalidPlan(
                f"{field!r} has the clock {clock!r} now, and had {clock_before!r}: shared episodes have other "
                "windows. Make a new plan",
                what=field,
                given=clock,
                accepted=clock_before,
            )


def _check_kept(
    view: WindowView,
    old: WindowView,
    shared: I64,
) -> None:
    """Raise InvalidPlan unless both keep the same rows. shared: int64, `old`'s numbers of `view`'s first episodes."""
    if view.kept is None or old.kept is None or len(shared) == 0:
        return
    bits = view.kept.members.bits
    former_bits = old.kept.members.bits
    for first, stop, shift in _common_runs(view.kept, old.kept, shared):
        for block in range(first, stop, BITS_TOGETHER):  # bounds the memory
            block_end = min(block + BITS_TOGETHER, stop)
            is_kept = bits(block, block_end)
            was_kept = former_bits(block + shift, block_end + shift)
            differences = np.flatnonzero(is_kept != was_kept)
            if len(differences):
                first_difference = int(differences[0])
                key = _window_key(view, block + first_difference)
                raise InvalidPlan(
                    f"{view.layout.keep!r} was rewritten: episode {key!r} has other true rows now. Make a new plan",
                    what=view.layout.keep,
                    where=f"episode {key!r}",
                    accepted="the same true rows",
                )


def _common_runs(
    kept: KeptWindows,
    former: KeptWindows,
    shared: I64,
) -> Iterator[tuple[int, int, int]]:
    """Yield (first, stop, shift) for each run of windows that `kept` numbers first ... stop - 1.

    A run is the windows of shared episodes between two removed ones. `former` numbers them first + shift and so on.

    shared: int64, not empty: the old view's numbers of the new view's first episodes.
    """
    has_gap_behind = np.diff(shared) != 1  # a removed episode follows in the old view
    gaps = np.flatnonzero(has_gap_behind)
    run_starts = (gaps + 1).tolist()
    episode_edges = [0, *run_starts, len(shared)]  # in the new view
    for episode, stop_episode in pairwise(episode_edges):
        first = int(kept.first[episode])
        stop = int(kept.first[stop_episode])
        former_episode = shared[episode]
        former_first = int(former.first[former_episode])
        shift = former_first - first
        yield first, stop, shift


def _window_key(view: WindowView, number: int) -> str:
    """Return the key of the episode that has this window, numbered without `keep`."""
    assert view.kept is not None
    n_begun = np.searchsorted(
        view.kept.first,
        [number],
        side="right",
    )
    episode = n_begun - 1  # int64 [1]
    ordinals = view.episodes.version_ordinals(episode)
    (key,) = view.episodes.keys(ordinals)
    return key


def table_sha256(
    first: I64,
    packed: bytes | NDArray[np.uint8] = b"",
) -> str:
    """Return the SHA-256 of a table: first windows of the episodes (int64), then the bitmap of `keep`."""
    little_endian = np.ascontiguousarray(first, dtype="<i8")
    digest = hashlib.sha256(little_endian.data)
    if isinstance(packed, bytes):
        digest.update(packed)
    else:
        digest.update(packed.data)
    return digest.hexdigest()


def window_key(episode: str, row: int) -> str:
    return f"{episode}@{row}"


def view_ordinals(view: OrderView, version_ordinals: I64) -> I64:
    """Return the version ordinals (int64) of a view's stored samples, which are episodes for windows."""
    if isinstance(view, WindowView):
        return view.stored_ordinals(version_ordinals)
    return version_ordinals


def n_windows(n_rows: I64, layout: "WindowLayout") -> I64:
    """Return the number of windows (int64) of episodes with so many rows of the anchor (int64)."""
    before, after = _rows_without_window(layout)
    anchor_rows = n_rows - before - after
    rounded_up = -(-anchor_rows // layout.every)
    return np.maximum(0, rounded_up)


def _rows_without_window(layout: "WindowLayout") -> tuple[int, int]:
    """Return the number of an episode's first rows, and of its last rows, that are no window's anchor row."""
    if layout.pad == "inside":  # no window reaches beyond its episode
        return layout.span
    return 0, 0
