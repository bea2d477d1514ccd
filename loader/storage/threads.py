"""Daemon threads for which exit waits at most briefly, and the state that a forked child resets.

The interpreter joins the pools of concurrent.futures, so after Ctrl-C an unresponsive store would block the exit for 90
s. Once a process has used obstore, a forked child hangs even with a new store, because it lacks the runtime's threads:
`check_fork` rejects it.
"""

import atexit
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Semaphore, Thread
from threading import enumerate as enumerate_threads
from time import monotonic, process_time
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from ..errors import ForkedStore
from .store import Blob, Objects

_locks: WeakSet[Lock] = WeakSet()


class Shared(Protocol):
    """State that a forked child must reset."""

    def begin_anew(self) -> None:
        """Reset the state: called once in the child, before anything else."""


_shared: WeakSet[Shared] = WeakSet()


def _after_fork_in_child() -> None:
    for held in list(_locks):
        held._at_fork_reinit()  # type: ignore[attr-defined]  # what CPython's own modules call after a fork
    for state in list(_shared):
        state.begin_anew()


def lock() -> Lock:
    """Return a lock that is free in a forked child, for views, versions and roots that a plan takes there."""
    _locks.add(new := Lock())
    return new


def begins_anew(state: Shared) -> None:
    """Reset the state in forked children while it is alive."""
    _shared.add(state)


os.register_at_fork(after_in_child=_after_fork_in_child)

P = ParamSpec("P")
T = TypeVar("T")

Call = tuple[Callable[[], Any], "Future[Any]"]

LEAVE_S = 1.0
"""Seconds that exit waits for all threads without progress: one that returns from native code later may abort."""
MAX_LEAVE_S = 10.0
"""Seconds that exit waits for threads that use the processor, such as for a batch of videos."""
_LOOK_S = 0.05
_BUSY_S = 0.001
"""Processor seconds between two looks that count as progress."""


class Leaving(Protocol):
    """An owner of threads that may be working at interpreter exit."""

    def dismiss(self) -> None:
        """Let every thread end after its current call. Does not wait."""


_leaving: "weakref.WeakSet[Any]" = weakref.WeakSet()


def ends_with_the_process(who: Leaving) -> None:
    """Dismiss `who` at interpreter exit, if it is still alive. Exit waits for its AwaitedThreads."""
    _leaving.add(who)


class AwaitedThread(Thread):
    """A daemon thread for which exit waits, at most briefly. Its owner calls `ends_with_the_process`."""

    # Exit looks for threads, not for owners: a thread may free its owner first, and then its last batch. A tensor's
    # destructor calls Python; if the interpreter ends meanwhile, C++ aborts the process.
    def __init__(self, target: Callable[..., object], args: tuple[Any, ...] = (), *, name: str) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)


def _end_all() -> None:
    for who in list(_leaving):
        who.dismiss()
    start_s = monotonic()
    progress_s = start_s
    used_s = process_time()
    while running := _awaited_threads():
        running[0].join(_LOOK_S)
        now_s = monotonic()
        used_before_s = used_s
        used_s = process_time()
        if used_s - used_before_s >= _BUSY_S:
            progress_s = now_s
        if now_s - progress_s >= LEAVE_S or now_s - start_s >= MAX_LEAVE_S:
            return


def _awaited_threads() -> list[Thread]:
    return [thread for thread in enumerate_threads() if isinstance(thread, AwaitedThread)]


atexit.register(_end_all)


class Signal:
    """An event for one waiting thread that finalizers may also set.

    `threading.Event` holds a lock in Python code, where garbage collection may run a finalizer that sets the event.
    """

    def __init__(self) -> None:
        self._unset = Lock()
        self._unset.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # already set
            self._unset.release()

    def wait(self, timeout_s: float) -> bool:
        return self._unset.acquire(timeout=timeout_s)


class DaemonPool(Executor):
    """A ThreadPoolExecutor with daemon threads, started on demand and ended with the pool."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._threads: list[Thread] = []
        self._lock = Lock()
        self._n_threads = 0
        self._closed = False
        ends_with_the_process(self)
        weakref.finalize(self, self._queue.put, None).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Return the future of the call. Raises: RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        if not self._closed:
            self._queue.put((lambda: fn(*args, **kwargs), future))
            if not self._idle.acquire(blocking=False):
                self._begin_thread()
        # Checked again: a pool that was shut down meanwhile may have no thread for the call.
        if self._closed and (future.cancel() or future.cancelled()):
            raise RuntimeError(f"{self._name}: these threads were shut down")
        return future

    def _begin_thread(self) -> None:
        with self._lock:
            number = self._n_threads
            if number == self._size:
                return
            self._n_threads += 1
        # (not a method: threads that reference the pool would keep it alive)
        work = AwaitedThread(_work, (self._queue, self._idle), name=f"{self._name}_{number}")
        work.start()
        self._threads.append(work)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after all submitted calls or, with cancel_futures, after their current calls."""
        # Without the lock: a finalizer may call this during `submit`, in the same thread.
        self._closed = True
        if cancel_futures:
            self._cancel()
        self._queue.put(None)
        if wait:
            self.join()

    def dismiss(self) -> None:
        self.shutdown(wait=False, cancel_futures=True)

    def join(self, timeout_s: float | None = None) -> None:
        if timeout_s is None:
            for thread in self._threads:
                thread.join()
            return
        until = monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    def _cancel(self) -> None:
        while True:
            try:
                queued = self._queue.get_nowait()
            except Empty:
                return
            if queued is not None:
                queued[1].cancel()


@contextmanager
def in_background(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Iterator[Future[T]]":
    """Yield the future of a call in another thread; leaving the block does not wait."""
    thread = DaemonPool(1, "penstock-beside")
    try:
        yield thread.submit(copy_context().run, partial(call, *args, **kwargs))
    finally:
        thread.dismiss()


class Turns:
    """Admits one thread at a time per key, so that one reads for several."""

    def __init__(self) -> None:
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Drop all turns, as in a forked child."""
        self._changed = Condition()
        self._busy: set[Hashable] = set()

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: key not in self._busy)
            self._busy.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(key)
                self._changed.notify_all()


def _work(queue: "SimpleQueue[Call | None]", idle: Semaphore) -> None:
    while True:
        queued = queue.get()
        if queued is None:
            queue.put(None)  # for the next thread
            return
        call, future = queued
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the waiting thread gets it
                future.set_exception(error)
        del queued, call, future  # an idle thread must not keep its last result alive
        idle.release()


AT_ONCE = 64


class SizedLru:
    """Least-recently-used cache, bounded by the sum of sizes: bytes, rows or 1 each. Thread-safe.

    The newest value stays, however large.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.turns = Turns()
        self._lock = lock()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Drop all values, as in a forked child."""
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.size = 0

    def get(self, key: Hashable) -> Any:
        with self._lock:
            hit = self._held.get(key)
            if hit is None:
                return None
            self._held.move_to_end(key)
            return hit[0]

    def put(self, key: Hashable, value: Any, size: int = 1) -> None:
        self.discard(key)
        with self._lock:
            self._held[key] = (value, size)
            self.size += size
            while self.size > self.capacity and len(self._held) > 1:
                _, (_, oldest_size) = self._held.popitem(last=False)
                self.size -= oldest_size

    def discard(self, key: Hashable) -> None:
        with self._lock:
            _, size = self._held.pop(key, (None, 0))
            self.size -= size

    def items(self) -> list[tuple[Hashable, Any]]:
        """Return (key, value) pairs, most recently used last."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._held.items()]

    def clear(self) -> None:
        with self._lock:
            self.begin_anew()


class Together:
    """A store that reads some objects ahead. A context manager, which drops unused reads at exit.

    The first `get` of one of `keys` returns the object read ahead, or its error; any other `get` reads.
    """

    def __init__(self, store: Objects, keys: Iterable[str]) -> None:
        self._store = store
        self.url = store.url
        self._pool = DaemonPool(AT_ONCE, "penstock-together")
        self._coming: dict[str, Future[Blob]] = {
            key: self._pool.submit(copy_context().run, store.get, key) for key in keys
        }

    def get(self, key: str) -> Blob:
        coming = self._coming.pop(key, None)
        return self._store.get(key) if coming is None else coming.result()

    def peek(self, key: str) -> Blob:
        """Return the same as `get`, and keep it for the next `get`."""
        if key not in self._coming:
            self._coming[key] = self._pool.submit(copy_context().run, self._store.get, key)
        return self._coming[key].result()

    def __enter__(self) -> "Together":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.dismiss()


_generation = 0  # forks between the first import of this module and this process
_native_since: int | None = None  # generation in which a native runtime first started


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


def fork_token() -> int:
    """Return the token for `check_fork`, for a store whose client can be reopened in a child (fsspec)."""
    return _generation


def native_opened(url: str) -> int:
    """Record that a native runtime starts in this process, and return the token for `check_fork`.

    Raises: ForkedStore in a child of a process that had started one.
    """
    global _native_since
    if _native_since is None:
        _native_since = _generation
    check_fork(_native_since, url)
    return _generation


def check_fork(born: int, url: str) -> None:
    """Raise ForkedStore if this process was forked after `born` was issued."""
    if born != _generation:
        raise ForkedStore(
            f"{url}: this process (pid {os.getpid()}) was forked from one that had opened a store, and "
            "native clients hang in a forked child; start workers with multiprocessing.get_context('spawn') "
            "or 'forkserver', or use threads (a store pickles, and opens anew in the worker)"
        )
