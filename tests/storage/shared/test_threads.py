"""A pool of daemon threads: what ThreadPoolExecutor does, but that nobody waits for it."""

import gc
import threading
from concurrent.futures import CancelledError

import pytest

from loader.storage import threads
from loader.storage.threads import DaemonPool, SizedLru
from tests.servers.patience import PATIENCE_S


def test_results_come_in_order_and_errors_on_request():
    pool = DaemonPool(3, "pool")
    assert list(pool.map(lambda a, b: a * b, range(50), range(50))) == [n * n for n in range(50)]
    failed = pool.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    pool.shutdown()


def test_threads_begin_on_demand_and_work_together_up_to_the_limit():
    pool = DaemonPool(3, "pool")
    for _ in range(20):
        pool.submit(int).result()
    assert len(pool._threads) <= 2  # the one before may not have said that it is idle
    together = threading.Barrier(3)
    assert sorted(pool.map(lambda _: together.wait(PATIENCE_S), range(6))) == [0, 0, 1, 1, 2, 2]
    pool.shutdown()
    assert len(pool._threads) == 3
    assert not any(thread.is_alive() for thread in pool._threads)


def test_what_is_not_begun_is_cancelled_and_nothing_is_taken_on_after_the_end():
    pool, begun, gate = DaemonPool(1, "pool"), threading.Event(), threading.Event()
    running = pool.submit(lambda: (begun.set(), gate.wait(PATIENCE_S)))
    begun.wait(PATIENCE_S)
    queued = pool.submit(int)
    pool.dismiss()
    with pytest.raises(CancelledError):
        queued.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)
    pool.join(0.0)  # does not wait for the call
    gate.set()
    assert running.result(PATIENCE_S) == (None, True)
    pool.join()
    assert not pool._threads[0].is_alive()


def test_shutdown_finishes_the_queue():
    pool, gate = DaemonPool(1, "pool"), threading.Event()
    pool.submit(gate.wait, PATIENCE_S)
    queued = pool.submit(int)
    pool.shutdown(wait=False)
    gate.set()
    pool.join()
    assert queued.result(0) == 0


def test_threads_end_when_nobody_has_the_pool():
    pool = DaemonPool(2, "pool")
    together = threading.Barrier(2)
    list(pool.map(lambda _: together.wait(PATIENCE_S), range(2)))
    threads = list(pool._threads)
    del pool
    gc.collect()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_finalizer_shuts_a_pool_down_in_the_middle_of_submit(monkeypatch):
    """The garbage collector may run it in the thread that submits, or in the one that begins."""
    pool, real = DaemonPool(1, "pool"), threading.Thread

    class Collecting(real):
        def start(self):
            pool.shutdown(wait=False)
            super().start()

    monkeypatch.setattr(threads, "Thread", Collecting)
    outcomes = []

    def submit():
        try:
            outcomes.append(pool.submit(int).result(PATIENCE_S))
        except RuntimeError as error:
            outcomes.append(str(error))

    submitting = real(target=submit, daemon=True)
    submitting.start()
    submitting.join(PATIENCE_S)
    assert outcomes in ([0], ["pool: these threads were shut down"])


def test_signal_is_set_once_however_often_and_waited_for_once():
    signal = threads.Signal()
    assert not signal.wait(0)
    signal.set()
    signal.set()
    assert signal.wait(0)
    assert not signal.wait(0)


def test_lru_drops_what_was_used_least_recently():
    lru = SizedLru(3)
    for key in "abc":
        lru.put(key, key.upper())
    assert lru.get("a") == "A"
    lru.put("d", "D")
    assert lru.items() == [("c", "C"), ("a", "A"), ("d", "D")]
    lru.put("a", "AA", 2)
    assert (lru.items(), lru.size) == ([("d", "D"), ("a", "AA")], 3)
    lru.discard("a")
    lru.discard("a")
    assert (lru.get("a"), lru.size) == (None, 1)


def test_lru_keeps_the_newest_value_however_large():
    lru = SizedLru(10)
    lru.put("small", 1, 4)
    lru.put("large", 2, 40)
    assert (lru.items(), lru.size) == ([("large", 2)], 40)
