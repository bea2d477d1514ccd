"""Kill a program at its n-th request to a store, look at what it left, and run it again.

A store's user dies before a request or right after it. `kill_process` ends the process by SIGKILL; `stop` raises
`Killed` in this process, and again at each further request.
"""

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import Any, NoReturn

from loader.errors import StoreError

PUTS = frozenset({"put", "put_if_absent", "put_file"})
WRITES = PUTS | {"delete_many", "copy"}
"""Requests between which nothing changes in a store."""
SIDES = ("before", "after")
RENEWS = "penstock-leases"
"""The process's thread that renews leases."""


class Killed(BaseException):
    """Stands for SIGKILL in this process: no code of ours catches it."""


def kill_process() -> NoReturn:
    """End this process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def stop() -> NoReturn:
    """End the work, not the process."""
    raise Killed


class Death:
    """The request at which a program dies. `of` counts those of several stores together, from any thread.

    If `die` returns, the program goes on: an interruption.
    """

    def __init__(
        self,
        at: int,
        when: str = "before",
        verbs: Collection[str] | None = None,
        die: Callable[[], object] = kill_process,
    ) -> None:
        self.at, self.when, self.verbs, self.die = at, when, verbs, die
        self._numbers, self._dead = count(1), False

    def of(self, store: Any) -> "MortalStore":
        """Return the store as the program sees it."""
        return MortalStore(store, self)

    def request(self, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Do the request, unless the program is dead before it."""
        if threading.current_thread().name == RENEWS:
            return self._renew(verb, *args, **options)
        number = next(self._numbers)
        if self._dead or (number == self.at and self.when == "before"):
            self._end()
        try:
            return verb(*args, **options)
        finally:
            if number == self.at and self.when == "after":
                self._end()

    def _renew(self, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Do a request of the thread that renews leases: it comes at any time, so it kills nothing.

        The thread outlives a program that `stop` ended. It goes on with the leases of others.
        """
        if self._dead:
            raise StoreError("the program is dead")
        return verb(*args, **options)

    def _end(self) -> None:
        try:
            self.die()
        except BaseException:
            self._dead = True
            raise


class MortalStore:
    """A store whose requests a `Death` counts; of `verbs` only these."""

    def __init__(self, store: Any, death: Death) -> None:
        self._store, self._death = store, death

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        verbs = self._death.verbs
        if not callable(verb) or name.startswith("_") or (verbs is not None and name not in verbs):
            return verb
        return lambda *args, **options: self._death.request(verb, *args, **options)


def kill_at_each(
    run: Callable[[Death, Any], object],
    start: Callable[[str], Any],
    *,
    verbs: Collection[str] | None = None,
    at: Iterable[int] = (),
    sides: Iterable[str] = SIDES,
) -> Iterator[tuple[Any, int, str]]:
    """Yield (what `start` returned, k, side) after each `run(death, it)` that was killed at its k-th request.

    Every k up to the first run that ends by itself, or those in `at`. One at least is killed.
    """
    killed = 0
    for when in sides:
        for k in at or count(1):
            started = start(f"{k}-{when}")
            try:
                run(Death(k, when, verbs, stop), started)
            except Killed:
                killed += 1
                yield started, k, when
            else:
                break
    assert killed, "the program makes no such request"


def killed_runs(
    run: Callable[[Any], object],
    store_of: Callable[[str], Any],
    *,
    verbs: Collection[str] | None = WRITES,
    at: Iterable[int] = (),
) -> Iterator[tuple[Any, int, str]]:
    """Yield (store, k, side) after each run that was killed at its k-th request; a store of its own for each."""
    return kill_at_each(lambda death, store: run(death.of(store)), store_of, verbs=verbs, at=at)


def forks_killed(work: Callable[[Death], object], when: str = "after") -> int:
    """Return how many forks of this process were killed: one per request of `work`, until a fork ends by itself.

    `work(death)` opens its stores itself. This process may have opened nothing and started no thread.
    """
    for k in range(1, 100):
        child = os.fork()
        if child == 0:
            os.fsync = lambda descriptor: None  # a power cut needs it, SIGKILL does not
            work(Death(k, when))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return k - 1
        assert code == -signal.SIGKILL, code
    raise AssertionError("killed at 99 requests, and not at the end")
