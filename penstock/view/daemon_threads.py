"""Run calls in daemon threads, so that the viewer exits even if one is still decoding."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


# Subclasses ThreadPoolExecutor because event loops accept no other executor. Its own threads would be joined at exit.
class DaemonThreads(ThreadPoolExecutor):
    """Executor that starts one daemon thread per call. Callers must bound the number of calls."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        Thread(target=_call, args=(future, fn, args, kwargs), name="penstock-view", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return without waiting."""


def _call(future: "Future[Any]", fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised where the future is waited for
        future.set_exception(error)
    else:
        future.set_result(result)
