"""Run work units in threads; an error is recorded, and the other units continue."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import TypeVar

from loader.errors import PenstockError
from loader.storage.shared.threads import DaemonPool

Unit = TypeVar("Unit")
Done = TypeVar("Done")


def in_threads(
    work: Callable[[Unit], Done], units: Iterable[Unit], at_once: int, failures: list[str]
) -> Iterator[Done]:
    """Yield units' results as they complete; append errors to `failures`."""
    pool, coming = DaemonPool(at_once, "penstock-units"), iter(units)
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
