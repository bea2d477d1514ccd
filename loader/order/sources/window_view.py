"""A view of windows, one per `every`-th row of an episode's anchor, numbered 0..N-1, which L1 shuffles."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import content_hash
from .views import Delta, OrderView

if TYPE_CHECKING:
    from .window_layout import WindowLayout


class WindowView:
    """A view whose samples are windows of episodes; immutable.

    episodes: view of the episodes.
    layout: values of a window.
    first: int64 [episodes + 1], number of each episode's first window, then the number of all.
    """

    def __init__(self, episodes: OrderView, layout: "WindowLayout", first: I64) -> None:
        self.episodes, self.layout, self.first = episodes, layout, first
        self.table_sha256 = table_sha256(first)

    def __reduce__(self) -> Any:
        return WindowView, (self.episodes, self.layout, self.first)

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
        """Return the version ordinals (int64) of the episodes of windows (int64)."""
        real = numbers >= 0
        if real.all():
            return self.episodes.version_ordinals(self._episodes(numbers))
        ordinals = np.full_like(numbers, -1)  # at padding
        ordinals[real] = self.episodes.version_ordinals(self._episodes(numbers[real]))
        return ordinals

    def counts(self, numbers: I64) -> I64:
        """Return the number of windows (int64) of the episode of each window (int64)."""
        episodes = self._episodes(numbers)
        return self.first[episodes + 1] - self.first[episodes]

    def rows(self, numbers: I64) -> I64:
        """Return the anchor's row (int64) at which each window (int64) stands."""
        before, _ = self.layout.span if self.layout.pad == "inside" else (0, 0)
        return (numbers - self.first[self._episodes(numbers)]) * self.layout.every + before

    def keys(self, version_ordinals: I64) -> list[str]:
        episodes = self.episodes.keys(self.stored_ordinals(version_ordinals))
        rows = self.rows(version_ordinals).tolist()
        return [window_key(key, row) for key, row in zip(episodes, rows, strict=True)]

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return version ordinals of episodes, which quarantine lists name; -1 for unknown keys."""
        return self.episodes.ordinals(keys)

    def of_version(self, version: Any) -> "WindowView":
        """Return the same windows of another version. Raises: FieldNotFound; InvalidPlan."""
        windows: WindowView = self.episodes.of_version(version).windowed(self.layout)  # type: ignore[attr-defined]
        return windows

    def since(self, old: "WindowView", *, compare: bool = True) -> Delta:
        """Return the windows of the episodes that were added and removed since an earlier version's view.

        Ordinals of the result are episodes'. Raises: InvalidPlan unless both take the same of the episodes they share.
        """
        if self.layout != old.layout:
            raise InvalidPlan(
                "the later windows have another anchor, every, at, rule, pad, max_age or text; a plan has one"
            )
        delta: Delta = self.episodes.since(old.episodes, compare=compare)  # type: ignore[attr-defined]
        kept = len(self.episodes) - (0 if delta.view is None else len(delta.view))
        before = old.episodes.version_ordinals(np.arange(len(old.episodes), dtype=np.int64))
        counts = np.diff(old.first)[~np.isin(before, delta.removed)]
        if not np.array_equal(counts, np.diff(self.first)[:kept]):
            raise InvalidPlan(
                f"episodes of both versions have other numbers of rows of {self.layout.anchor!r} now"
            )
        if delta.view is None:
            return delta
        first = self.first[kept:] - self.first[kept]
        if not first[-1]:
            return replace(delta, view=None)  # no new episode has a window
        return replace(delta, view=WindowView(delta.view, self.layout, first))

    def windows_at(self, key: str) -> list[int] | None:
        """Return the numbers of the windows of an episode's key, or of a window's; None for an unknown key."""
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
            rows = self.rows(np.array(windows, np.int64)).tolist()
            return [windows[rows.index(int(at))]] if at.isdecimal() and int(at) in rows else None
        return None

    def _ordinal_of(self, episode: int) -> int:
        return int(self.episodes.version_ordinals(np.array([episode], np.int64))[0])

    def _episodes(self, numbers: I64) -> I64:
        return np.searchsorted(self.first, numbers, side="right").astype(np.int64, copy=False) - 1

    def _windows(self) -> dict[str, Any]:
        before, after = self.layout.span
        inside = {"inside": [before, after]} if self.layout.pad == "inside" else {}
        return {
            "anchor": self.layout.anchor,
            "every": self.layout.every,
            **inside,
            "table": self.table_sha256,
        }


def table_sha256(first: I64) -> str:
    """Return the SHA-256 of a table (int64), as little-endian int64."""
    return hashlib.sha256(np.ascontiguousarray(first, dtype="<i8").tobytes()).hexdigest()


def window_key(episode: str, row: int) -> str:
    """Return a window's key, such as 'episode-000012@340'."""
    return f"{episode}@{row}"


def stored_ordinals(view: OrderView, version_ordinals: I64) -> I64:
    """Return the version ordinals (int64) of the stored samples behind a view's: the episodes of windows."""
    return view.stored_ordinals(version_ordinals) if isinstance(view, WindowView) else version_ordinals


def n_windows(n_rows: I64, layout: "WindowLayout") -> I64:
    """Return the number of windows (int64) of episodes with so many rows of the anchor (int64)."""
    before, after = layout.span if layout.pad == "inside" else (0, 0)
    return np.maximum(0, -(-(n_rows - before - after) // layout.every))
