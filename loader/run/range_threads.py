"""Threads that read ranges of remote objects at the same time, for whoever makes batches in this process."""

from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

from ..dataset.read import Map
from ..order.plan import Plan
from ..storage import is_local
from ..storage.threads import DaemonPool
from .recipe import stored_views

IO_THREADS = 64
"""Objects read at once per process of a remote store, as many as it takes by default: the indexes and the samples of a
first batch, spread over as many shards, are a round trip each. Threads are begun where there is work for them."""


def range_threads(plan: Plan) -> tuple[DaemonPool | None, Map]:
    """(the threads, None where every source lies on this machine, how to read with them)."""
    if _all_local(plan):
        return None, map
    pool = DaemonPool(IO_THREADS, "penstock-io")
    return pool, _in_context(pool)


def _in_context(pool: DaemonPool) -> Map:
    """The pool's map; every call runs in a copy of the caller's context, where its requests are counted."""

    def run(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return pool.map(lambda one: one[0].run(function, one[1]), [(copy_context(), item) for item in items])

    return run


def _all_local(plan: Plan) -> bool:
    """Whether every source lies on this machine: threads per range read only pay where a read waits."""
    return all(is_local(view.version.store) for view in stored_views(plan))
