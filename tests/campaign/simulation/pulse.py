"""Signs of life, and what a collector makes of them: what a world needs of both."""

import io
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

from .actors import GRACE_S
from .turns import Actor


def due(plan: bytes) -> set[str]:
    """The transactions of the versions that a collector's plan has condemned for the whole grace."""
    rows = pq.read_table(io.BytesIO(plan), use_threads=False).to_pylist()
    ripe = (row for row in rows if row["age_us"] >= GRACE_S * 1e6)
    return {row["txn"] for row in ripe if row["why"] == "retired version"}


class Pulse:
    """Beats whenever time has passed, as the thread that it stands for; until the store takes it."""

    def __init__(
        self,
        world: Any,
        actor: Actor,
        beat: Callable[[], object],
        every_s: float,
        name: str,
        id_: int | None = None,
    ) -> None:
        self._world, self._actor, self._beat = world, actor, beat
        self._every_us, self._at_us = int(every_s * 1e6), world.turns.true_us
        self._id = id(self) if id_ is None else id_
        if name.startswith("penstock-heartbeats/"):
            self._txn = name.removeprefix("penstock-heartbeats/").removesuffix(".json")
            world._owners[self._txn] = actor
        else:
            self._txn = ""
        actor.beats[self._id] = self

    def __call__(self) -> None:
        if self._world.turns.true_us - self._at_us < self._every_us:
            return
        self._at_us = self._world.turns.true_us
        if not any(self._beat() for _ in range(3)):
            with self._world.alone():
                self._beat()

    def close(self) -> None:
        """No longer."""
        self._actor.beats.pop(self._id, None)
        self._world._owners.pop(self._txn, None)
