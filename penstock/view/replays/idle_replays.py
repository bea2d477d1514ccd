"""Replay the neighbours of the last requested step while no request comes."""

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import NamedTuple

from loader.errors import PenstockError
from loader.storage.threads import AwaitedThread

AHEAD_S = 1.0
"""Idle seconds until the last step's neighbours, which most users open next, are replayed."""


class RankStep(NamedTuple):
    """A rank's part of a run's step."""

    run: str
    step: int
    rank: int
    world_size: int


class IdleReplays:
    """Replays in a thread, until `close`.

    prepare: called first in each pause. Errors of both functions are ignored: the user's own request raises them.
    """

    def __init__(self, prepare: Callable[[], None], replay: Callable[[RankStep], None]) -> None:
        self._prepare = prepare
        self._replay = replay
        self._last: RankStep | None = None
        self._requested = Event()
        self._is_closed = False
        AwaitedThread(self._work, name="penstock-view-ahead").start()

    def interrupt(self) -> None:
        """Restart the pause: a request came."""
        self._requested.set()

    def forget(self) -> None:
        """Replay no neighbours until `follow`."""
        self._last = None

    def follow(self, last: RankStep) -> None:
        """Replay the neighbours of this step in the next pause."""
        self._last = last
        self._requested.set()

    def close(self) -> None:
        """End the thread after its current step, without waiting."""
        self._is_closed = True
        self._requested.set()

    def _work(self) -> None:
        done: RankStep | None = None  # its neighbours are replayed
        while self._requested.wait() and not self._is_closed:
            self._requested.clear()
            if self._requested.wait(AHEAD_S):
                continue
            with suppress(PenstockError):
                self._prepare()
            # A request may come at any moment: what it interrupts is replayed in the next pause.
            last = self._last
            if last is None or last is done:
                continue
            if self._replay_neighbours(last):
                done = last

    def _replay_neighbours(self, last: RankStep) -> bool:
        """Replay the steps beside one; return False if a request came meanwhile."""
        for neighbour in (last.step + 1, last.step - 1):
            if self._requested.is_set():
                return False
            with suppress(PenstockError):
                self._replay(last._replace(step=neighbour))
        return True
