"""Run work units in threads that delay an exit only briefly."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait  # noqa: TID251 - see DaemonThreads
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from loader.errors import InvalidRuntime, PenstockError
from loader.storage.threads import AwaitedThread, DaemonPool

Unit = TypeVar("Unit")
Done = TypeVar("Done")


def check_workers(workers: int) -> None:
    """Raise InvalidRuntime unless a number of threads is above 0."""
    if workers < 1:
        raise InvalidRuntime(
            f"--workers {workers}: a number of threads above 0 is needed",
            what="--workers",
            given=workers,
            accepted="a number above 0",
        )


def in_threads(
    work: Callable[[Unit], Done], units: Iterable[Unit], at_once: int, failures: list[str]
) -> Iterator[Done]:
    """Yield units' results as they complete; append errors to `failures`, and go on."""
    pool = DaemonPool(at_once, "penstock-units")
    coming = iter(units)
    waiting: set[Future[Done]] = set()
    try:
        while True:
            waiting |= {pool.submit(work, unit) for unit in islice(coming, 2 * at_once - len(waiting))}
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    yield future.result()
                except PenstockError as error:
                    failures.append(str(error))
    finally:
        pool.dismiss()


P = ParamSpec("P")
T = TypeVar("T")


# Subclasses ThreadPoolExecutor because event loops accept no other executor. Its own threads would be joined at exit.
class DaemonThreads(ThreadPoolExecutor):
    """Executor that starts one daemon thread per call. Callers must bound their number."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        AwaitedThread(_call, (future, fn, args, kwargs), name="penstock-view").start()
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
