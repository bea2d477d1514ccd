"""A second implementation of an online run's decisions: lists and sets, without cursors, records or arrays."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """A published rollout; a version's rows come in the order of part and row."""

    key: str
    txn: str
    group: str
    policy: int


@dataclass
class Model:
    groups: int
    max_lag: int
    stale: str
    min_size: int
    fates: dict[str, str] = field(default_factory=dict)
    """Key -> "trained", "stale" or "small"."""

    def grouped(self, rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
        """Return the groups of undecided rows, in the order of their first rows."""
        members: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            if row.key not in self.fates:
                members.setdefault((row.txn, row.group), []).append(row)
        return members

    def backlog(self, rows: list[Row]) -> int:
        return len(self.grouped(rows))

    def decide(self, rows: list[Row], policy: int) -> list[str] | None:
        """Return the keys to train, in order, and note each fate; None, without a note, if there are too few groups."""
        fates: dict[str, str] = {}
        trained: list[str] = []
        n_groups = 0
        for members in self.grouped(rows).values():
            if n_groups == self.groups:
                break
            stale = {row.key for row in members if policy - row.policy > self.max_lag}
            if stale and self.stale == "group":
                stale = {row.key for row in members}
            fresh = [row.key for row in members if row.key not in stale]
            is_trained = len(fresh) >= self.min_size
            n_groups += is_trained
            fates.update(dict.fromkeys(stale, "stale"))
            fates.update(dict.fromkeys(fresh, "trained" if is_trained else "small"))
            if is_trained:
                trained += fresh
        if n_groups < self.groups:
            return None
        self.fates.update(fates)
        return trained

    def withheld(self, fate: str, among: Collection[str]) -> int:
        return sum(self.fates[key] == fate for key in among)
