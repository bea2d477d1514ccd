"""Threads that make tasks in turn: what ends them, and what they report."""

from threading import Event

import pytest

from loader.run.ahead.thread_pools import ThreadPool


def test_retired_pool_finishes_what_was_submitted() -> None:
    waits: list[float] = []
    pool = ThreadPool[int, int](lambda task: 2 * task, 2, on_idle=waits.append)
    futures = [pool.submit(task) for task in range(8)]
    pool.retire()
    pool.join()
    assert [future.result(0) for future in futures] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert len(waits) == 8
    assert min(waits) >= 0


def test_dismissed_pool_cancels_what_has_not_started() -> None:
    begun, may_end = Event(), Event()

    def make(task: int) -> int:
        begun.set()
        may_end.wait()
        return task

    pool = ThreadPool[int, int](make, 1)
    first, second = pool.submit(1), pool.submit(2)
    begun.wait()
    pool.dismiss()
    third = pool.submit(3)
    may_end.set()
    pool.join()
    assert first.result(0) == 1
    assert (second.cancelled(), third.cancelled()) == (True, True)


def test_failed_task_raises_its_error() -> None:
    pool = ThreadPool[int, float](lambda task: 1 / task, 1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(0).result()
    assert pool.submit(2).result() == 0.5
    pool.dismiss()
