"""A view of windows, one per `every`-th row of an episode's anchor, numbered 0..N-1, which L1 shuffles."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import content_hash
from .views import Delta, OrderView

if TYPE_CHECKING:
    from ...dataset.shards.bitmap import SelectTable
    from .window_layout import WindowLayout


BITS_TOGETHER = 2**24
"""Bits of `keep` that are compared together."""


class KeptWindows:
    """The choice that `keep` makes among the windows at all rows; immutable.

    first: int64 [episodes + 1], number of each episode's first window without `keep`, then the number of all.
    members: numbers, without `keep`, of the windows at true rows. An eighth of a byte per window.
    """

    def __init__(self, first: I64, members: "SelectTable") -> None:
        self.first, self.members = first, members

    def after(self, episode: int) -> "KeptWindows":
        start = int(self.first[episode])
        return KeptWindows(self.first[episode:] - start, self.members.after(start))


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
        self.episodes, self.layout, self.first, self.kept = episodes, layout, first, kept
        if kept is None:
            self.table_sha256 = sha256 or table_sha256(first)
        else:
            self.table_sha256 = sha256 or table_sha256(kept.first, kept.members.packed())

    def __reduce__(self) -> Any:
        return WindowView, (self.episodes, self.layout, self.first, self.kept, self.table_sha256)

    def __repr__(self) -> str:
        return f"WindowView({self.episodes!r}, {len(self)} windows at rows of {self.layout.anchor})"

    def __len__(self) -> int:
        return int(self.first[-1])

    @property
    def id(self) -> str:
        """Content hash of the episodes' view and the table; independent of what a window takes."""
        return content_hash("w", {"episodes": self.episodes.id, **self._windows()})

    @property
    def identity(self) -> str:
        """The episodes' view, the anchor and the table: with its number, a window's permanent name."""
        words = [self.episodes.id, *(f"{name}={value}" for name, value in self._windows().items())]
        return "n-" + hashlib.sha256("\n".join(words).encode()).hexdigest()

    @property
    def mean_sample_bytes(self) -> int:
        return -(-self.episodes.mean_sample_bytes * len(self.episodes) // max(1, len(self)))

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
        real = numbers >= 0
        if real.all():
            return self.episodes.version_ordinals(self._episodes(numbers))
        ordinals = np.full_like(numbers, -1)  # at padding
        ordinals[real] = self.episodes.version_ordinals(self._episodes(numbers[real]))
        return ordinals

    def counts(self, numbers: I64) -> I64:
        """Return the number of rows (int64), kept or not, at which windows may stand in each window's episode."""
        episodes, first = self._episodes(numbers), self.first if self.kept is None else self.kept.first
        return first[episodes + 1] - first[episodes]

    def rows(self, numbers: I64) -> I64:
        before, _ = self.layout.span if self.layout.pad == "inside" else (0, 0)
        episodes, first = self._episodes(numbers), self.first
        if self.kept is not None:
            numbers, first = self.kept.members.select(numbers), self.kept.first
        return (numbers - first[episodes]) * self.layout.every + before

    def keys(self, version_ordinals: I64) -> list[str]:
        episodes = self.episodes.keys(self.stored_ordinals(version_ordinals))
        rows = self.rows(version_ordinals).tolist()
        return [window_key(key, row) for key, row in zip(episodes, rows, strict=True)]

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return version ordinals of episodes, which quarantine lists name; -1 for unknown keys."""
        return self.episodes.ordinals(keys)

    def of_version(self, version: Any) -> "WindowView":
        """Return the same windows of another version. Raises: FieldNotFound; InvalidPlan."""
        episodes = self.episodes.of_version(version)  # type: ignore[attr-defined]
        windows: WindowView = episodes.windowed(self.layout, earlier=(self,))
        return windows

    def since(self, old: "WindowView", *, compare: bool = True) -> Delta:
        """Return the windows of the episodes that were added and removed since an earlier version's view.

        Ordinals of the result are episodes'. Raises: InvalidPlan unless both take the same of the episodes they share.
        """
        if self.layout != old.layout:
            raise InvalidPlan(
                "the later windows have another anchor, every, keep, at, rule, pad, max_age, text or columns; a plan "
                "has one"
            )
        delta: Delta = self.episodes.since(old.episodes, compare=compare)  # type: ignore[attr-defined]
        kept = len(self.episodes) - (0 if delta.view is None else len(delta.view))
        shared = shared_episodes(old, delta.removed)
        rows, rows_before = (one.first if one.kept is None else one.kept.first for one in (self, old))
        if not np.array_equal(np.diff(rows_before)[shared], np.diff(rows)[:kept]):
            raise InvalidPlan(
                f"episodes of both versions have other numbers of rows of {self.layout.anchor!r} now"
            )
        if compare:
            _check_clocks(self, old)
            _check_kept(self, old, shared)
        if delta.view is None:
            return delta
        first = self.first[kept:] - self.first[kept]
        if not first[-1]:
            return replace(delta, view=None)  # no new episode has a window
        kept_after = None if self.kept is None else self.kept.after(kept)
        return replace(delta, view=WindowView(delta.view, self.layout, first, kept_after))

    def windows_at(self, key: str) -> list[int] | None:
        """Return the numbers of all windows of an episode, or of one window, by its key; None for an unknown key."""
        episode, _, row = key.rpartition("@")
        for name, at in ((key, None), (episode, row)):
            (ordinal,) = self.episodes.ordinals([name]).tolist()
            if ordinal < 0:
                continue
            place = bisect_left(range(len(self.episodes)), ordinal, key=self._ordinal_of)
            if place == len(self.episodes) or self._ordinal_of(place) != ordinal:
                continue
            windows = range(int(self.first[place]), int(self.first[place + 1]))
            if at is None:
                return list(windows) or None
            rows = [str(own) for own in self.rows(np.array(windows, np.int64)).tolist()]
            return [windows[rows.index(at)]] if at in rows else None
        return None

    def _ordinal_of(self, episode: int) -> int:
        return int(self.episodes.version_ordinals(np.array([episode], np.int64))[0])

    def _episodes(self, numbers: I64) -> I64:
        return np.searchsorted(self.first, numbers, side="right").astype(np.int64, copy=False) - 1

    def _windows(self) -> dict[str, Any]:
        before, after = self.layout.span
        inside = {"inside": [before, after]} if self.layout.pad == "inside" else {}
        keep = {} if self.layout.keep is None else {"keep": self.layout.keep}
        return {
            "anchor": self.layout.anchor,
            "every": self.layout.every,
            **inside,
            **keep,
            "table": self.table_sha256,
        }


def shared_episodes(old: WindowView, removed: I64) -> I64:
    """Return int64: numbers of an earlier view's episodes that remain. removed: version ordinals of the others."""
    ordinals = old.episodes.version_ordinals(np.arange(len(old.episodes), dtype=np.int64))
    return np.flatnonzero(~np.isin(ordinals, removed))


def _check_clocks(view: WindowView, old: WindowView) -> None:
    """Raise InvalidPlan unless both pick the values of each field by the same clock."""
    fields = (view.layout.anchor, *view.layout.at)
    now, was = (one.episodes.clocks(fields) for one in (view, old))  # type: ignore[attr-defined]
    for field in fields:
        if now[field] != was[field]:
            raise InvalidPlan(
                f"{field!r} has the clock {now[field]!r} now, and had {was[field]!r}: shared episodes have other "
                "windows. Make a new plan"
            )


def _check_kept(view: WindowView, old: WindowView, shared: I64) -> None:
    """Raise InvalidPlan unless both keep the same rows. shared: int64, `old`'s numbers of `view`'s first episodes."""
    if view.kept is None or old.kept is None:
        return
    now, was = view.kept.members, old.kept.members
    runs = [0, *(np.flatnonzero(np.diff(shared) != 1) + 1).tolist(), len(shared)]
    for first, stop in pairwise(runs if len(shared) else []):
        start, end = view.kept.first[[first, stop]].tolist()
        shift = int(old.kept.first[shared[first]]) - start
        for at in range(start, end, BITS_TOGETHER):
            until = min(at + BITS_TOGETHER, end)
            differ = np.flatnonzero(now.bits(at, until) != was.bits(at + shift, until + shift))
            if len(differ):
                episode = np.searchsorted(view.kept.first, at + differ[:1], side="right") - 1
                (key,) = view.episodes.keys(view.episodes.version_ordinals(episode))
                raise InvalidPlan(
                    f"{view.layout.keep!r} was rewritten: episode {key!r} has other true rows now. Make a new plan"
                )


def table_sha256(first: I64, packed: bytes | NDArray[np.uint8] = b"") -> str:
    """Return the SHA-256 of a table: first windows of the episodes (int64), then the bitmap of `keep`."""
    digest = hashlib.sha256(np.ascontiguousarray(first, dtype="<i8").data)
    digest.update(packed if isinstance(packed, bytes) else packed.data)
    return digest.hexdigest()


def window_key(episode: str, row: int) -> str:
    return f"{episode}@{row}"


def stored_ordinals(view: OrderView, version_ordinals: I64) -> I64:
    """Return the version ordinals (int64) of a view's stored samples, which are episodes for windows."""
    return view.stored_ordinals(version_ordinals) if isinstance(view, WindowView) else version_ordinals


def n_windows(n_rows: I64, layout: "WindowLayout") -> I64:
    """Return the number of windows (int64) of episodes with so many rows of the anchor (int64)."""
    before, after = layout.span if layout.pad == "inside" else (0, 0)
    return np.maximum(0, -(-(n_rows - before - after) // layout.every))
