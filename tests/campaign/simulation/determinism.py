"""What makes a world the same each time: its own clock, its own chance, and no thread but those that take turns."""

import concurrent.futures
import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from loader.dataset.log import heartbeats, leases
from loader.storage import threads
from penstock.upkeep.gc import clients


class AtOnce(Executor):
    """Does what is submitted before it returns: which thread is quicker is not part of a world. What ends an actor ends
    it here, too."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is under way."""

    def dismiss(self) -> None:
        """Nothing is under way."""

    def join(self, timeout_s: float | None = None) -> None:
        """Nothing is under way."""


def executors() -> Iterator[tuple[Any, str]]:
    """(module, name) wherever the packages have threads of their own by a pool."""
    yield concurrent.futures, "ThreadPoolExecutor"
    pools = {concurrent.futures.ThreadPoolExecutor, threads.DaemonPool}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in ("loader", "penstock") and module is not None:
            for attribute in ("ThreadPoolExecutor", "DaemonPool"):
                if vars(module).get(attribute) in pools:
                    yield module, attribute


def _world_source(
    others: Set[int | None], real: Callable[..., Any], of_world: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a clock, or a chance, of a world. Threads that ran before it have the real one: they take no turns."""
    return lambda *given: (real if threading.get_ident() in others else of_world)(*given)


@contextmanager
def make_deterministic(world: Any) -> Iterator[None]:
    """While a world runs. world: has `now_us()`, `monotonic_s()`, `run_us()` and `boot()` of whoever's turn it is,
    `slept()`, `token(nbytes)`, `pulse`, `renew`, `stop_renewing` and `holder()`."""
    clocks = [
        ("time_ns", lambda: world.now_us() * 1000),
        ("time", lambda: world.now_us() / 1e6),
        ("monotonic", world.monotonic_s),
        ("monotonic_ns", lambda: world.run_us() * 1000),
        ("clock_gettime_ns", lambda _: world.run_us() * 1000),
    ]
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    planned = [
        *((time, name, _world_source(others, getattr(time, name), of_world)) for name, of_world in clocks),
        (clients, "_boot", world.boot),
        (time, "sleep", lambda _: world.slept()),
        (
            secrets,
            "token_hex",
            _world_source(others, secrets.token_hex, lambda nbytes=32: world.token(nbytes)),
        ),
        (heartbeats, "_Pulse", world.pulse),
        (heartbeats, "new_holder", world.holder),
        (leases, "new_holder", world.holder),
        (leases, "renew_in_background", world.renew),
        (leases, "stop_renewing", world.stop_renewing),
        *((module, name, AtOnce) for module, name in list(executors())),
    ]
    patches = [patch.object(where, name, what) for where, name, what in planned]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # of faults there would be many warnings
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
        _restore_imported()
        logging.disable(disabled)


def _restore_imported() -> None:
    """Give modules that a world imported first, such as torch's, the pool of threads that they asked for."""
    for module in list(sys.modules.values()):
        if vars(module).get("ThreadPoolExecutor") is AtOnce:
            module.ThreadPoolExecutor = concurrent.futures.ThreadPoolExecutor  # type: ignore[attr-defined]
