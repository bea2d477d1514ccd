"""A store whose process dies at one verb, for scripts that are killed at each: import it before anything is opened."""

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any


class Killing:
    """Dies by SIGKILL before its n-th verb, or behind it. Several threads may use it."""

    def __init__(self, store: Any, n: int, *, behind: bool = True) -> None:
        self._store, self._n, self._behind, self._count = store, n, behind, itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb):
            return verb

        def called(*args: Any, **options: Any) -> Any:
            number = next(self._count)
            if number == self._n and not self._behind:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return verb(*args, **options)
            finally:
                if number == self._n:
                    os.kill(os.getpid(), signal.SIGKILL)

        return called


def killed_at_each(work: Callable[[int], object]) -> int:
    """Run work(n) in a process of its own for n = 1, 2 ... until one is through; how many were killed."""
    for n in range(1, 100):
        child = os.fork()  # nothing has been opened, no thread was started
        if child == 0:
            work(n)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return n - 1
        assert code == -signal.SIGKILL, code
    raise AssertionError("killed at 99 verbs, and not through")
