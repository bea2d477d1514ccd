"""A pool of daemon threads: what ThreadPoolExecutor does, but that nobody waits for it."""

import gc
import subprocess
import sys
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
    pool, real = DaemonPool(1, "pool"), threads.AwaitedThread

    class Collecting(real):
        def start(self):
            pool.shutdown(wait=False)
            super().start()

    monkeypatch.setattr(threads, "AwaitedThread", Collecting)
    outcomes = []

    def submit():
        try:
            outcomes.append(pool.submit(int).result(PATIENCE_S))
        except RuntimeError as error:
            outcomes.append(str(error))

    submitting = real(submit, name="submits")
    submitting.start()
    submitting.join(PATIENCE_S)
    assert outcomes in ([0], ["pool: these threads were shut down"])


EXIT = """
import threading, time
from loader.storage import threads

threads.LEAVE_S = {leave_s}

class Batch:
    def __del__(self):
        {frees}
        print("freed", flush=True)

def make():
    is_dropped.wait()
    return Batch()

is_dropped = threading.Event()
pool = threads.DaemonPool(1, "pool")
pool.submit(make)
{begins}is_dropped.set()
"""
MEANWHILE = "time.sleep(0.1)"
COMPUTES = "until = time.process_time() + 1\n        while time.process_time() < until: pass"
DROPPED_POOL = "del pool\n"
KEPT_POOL = ""


@pytest.mark.parametrize(
    ("frees", "begins", "leave_s", "is_awaited"),
    [
        pytest.param(MEANWHILE, KEPT_POOL, 60, True, id="briefly"),
        pytest.param(MEANWHILE, DROPPED_POOL, 60, True, id="after its pool"),
        pytest.param(COMPUTES, KEPT_POOL, 0.5, True, id="computes"),
        pytest.param("time.sleep(3600)", KEPT_POOL, 0.2, False, id="hangs"),
    ],
)
def test_exit_waits_for_threads_that_free_their_last_result(frees, begins, leave_s, is_awaited):
    """A tensor that is freed as the interpreter ends aborts the process."""
    script = EXIT.format(frees=frees, begins=begins, leave_s=leave_s)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert ended.stdout == ("freed\n" if is_awaited else "")


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
