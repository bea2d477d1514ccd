"""Reject native clients in forked children of the process that opened them.

Once a process has used obstore, a forked child hangs even with a new store, because it lacks the runtime's threads. So
the child raises immediately; use spawn, forkserver or threads.
"""

import os

from ...errors import ForkedStore

_generation = 0  # forks between the first import of this module and this process
_native_since: int | None = None  # generation in which a native runtime first started


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_after_fork_in_child)


def token() -> int:
    """Return the token for `check`, for a store whose client can be reopened in a child (fsspec)."""
    return _generation


def opened(url: str) -> int:
    """Record that a native runtime starts in this process, and return the token for `check`.

    Raises: ForkedStore in a child of a process that had started one.
    """
    global _native_since
    if _native_since is None:
        _native_since = _generation
    check(_native_since, url)
    return _generation


def check(born: int, url: str) -> None:
    """Raise ForkedStore if this process was forked after `born` was issued."""
    if born != _generation:
        raise ForkedStore(
            f"{url}: this process (pid {os.getpid()}) was forked from one that had opened a store, and "
            "native clients hang in a forked child; start workers with multiprocessing.get_context('spawn') "
            "or 'forkserver', or use threads (a store pickles, and opens anew in the worker)"
        )
