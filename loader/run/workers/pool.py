"""A pool of worker processes that makes batches, and its handle for a worker: process, socket and pending tasks.

Workers proceed through queued steps by themselves, and the thread that waits for a batch reads their messages: a busy
trainer keeps no worker waiting.
"""

import logging
import os
import select
import signal
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from ...dataset.reading.read_faults import FAULTS
from ...errors import WorkerFailed
from ..batch.frameworks import as_framework
from ..items.item_watch import log_slow_item
from ..making.prefetch import MadeBatches
from ..metrics import Metrics
from .batch_memory import MemorySegment, OutcomePlace, Ring, read
from .batch_message import TaskOutcome, log_again
from .fork_server import ForkServer, fork_server
from .messages import (
    NO_FILES,
    MessageKind,
    WorkerMessage,
    connection,
    if_few,
    is_want_of_files,
    receive,
    send,
    too_few_files,
)
from .parent_watch import GRACE_S
from .startup_message import StartupMessage, libraries

_NEEDED = ("loader.cache", "loader.modalities", "loader.run.ahead", "loader.storage", "obstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsTask:
    number: int
    steps: range
    """Steps to make."""
    future: Future[MadeBatches]
    segment: MemorySegment | None
    """Segment for the batches; None if the worker creates one."""


class WorkerProcess:
    """A worker, forked immediately, which loads its startup message by itself. Not thread-safe."""

    def __init__(self, sent_fd: int, libraries: tuple[str, ...] = ()) -> None:
        """Fork a worker. sent_fd: memory with its message. libraries: modules that all workers need besides."""
        self.pid: int | None = None
        self.server = fork_server()
        self.socket, theirs = connection()
        try:
            modules = [name for name in sys.modules if name.startswith(_NEEDED)]
            self._number = self.server.fork(theirs, sent_fd, [*modules, *libraries])
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.is_ready = False
        self.lacks_files = False
        self.tasks: deque[StepsTask] = deque()
        self._known: set[int] = set()
        self._unread: list[tuple[WorkerMessage, int | None]] = []

    def ask(self, task: StepsTask) -> None:
        """Queue steps. Raises: EOFError if the worker is gone; the task is queued all the same."""
        self.tasks.append(task)
        message = WorkerMessage(MessageKind.MAKE, task.number, task.steps.start, len(task.steps))
        if task.segment is None:
            send(self.socket, message)
            return
        message = message._replace(segment=task.segment.number, nbytes=task.segment.nbytes)
        new = task.segment.number not in self._known
        send(self.socket, message, task.segment.fd if new else None)
        self._known.add(task.segment.number)

    def drop(self) -> None:
        send(self.socket, WorkerMessage(MessageKind.DROP))

    def forget(self, segment: int) -> None:
        if segment in self._known:
            self._known.remove(segment)
            send(self.socket, WorkerMessage(MessageKind.FORGET, segment=segment))

    def started_pid(self) -> int | None:
        with suppress(EOFError):
            while self.pid is None:
                self._receive(self._unread, wait=True)
        return self.pid

    def answers(self) -> list[tuple[WorkerMessage, int | None]]:
        """Return the worker's answers since the last call.

        Raises: EOFError after the last answer of a worker that is gone; OSError if it could not be started.
        """
        messages, self._unread = self._unread, []
        try:
            while self._receive(messages, wait=False):
                pass
        except EOFError:
            if not messages:
                raise
        return messages

    def _receive(self, into: list[tuple[WorkerMessage, int | None]], *, wait: bool) -> bool:
        got = receive(self.socket, wait=wait)
        if got is None:
            return False
        message = got[0]
        if message.kind == MessageKind.STARTED:
            self.pid = message.task
        elif message.kind == MessageKind.NOT_STARTED:
            raise OSError(message.task, f"no worker process can be forked: {os.strerror(message.task)}")
        else:
            into.append(got)
        return True

    def answered(self, number: int) -> tuple[StepsTask, list[StepsTask]]:
        """Return (the answered task, earlier tasks whose answers an interrupt lost)."""
        lost = []
        while self.tasks[0].number != number:
            lost.append(self.tasks.popleft())
        return self.tasks.popleft(), lost

    def hang_up(self) -> None:
        with suppress(OSError):  # it has ended
            self.socket.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        self.server.wait_later(self._number, GRACE_S + 4)
        if self.pid is not None and not self.server.is_alive():
            _wait_exit(self.pid, GRACE_S + 4)
        self.socket.close()

    def wait(self) -> str:
        """Return the cause of the worker's end, as text; kill it after a timeout. Sets `lacks_files`."""
        code = self.server.wait(self._number, GRACE_S + 4)
        self.socket.close()
        if code is None and self.pid is not None:
            _wait_exit(self.pid, GRACE_S + 4)
            return "an unknown cause, for its fork server had ended"
        if code is None:
            code = self.server.exit_code()
        self.lacks_files = code == NO_FILES
        return _signal_name(-code) if code < 0 else f"exit code {code}"


def _wait_exit(pid: int, timeout_s: float) -> None:
    with suppress(OSError):  # it has ended; or a kernel before 5.3, where it ends by itself
        watched = os.pidfd_open(pid)
        try:
            if not select.select([watched], [], [], timeout_s)[0]:
                signal.pidfd_send_signal(watched, signal.SIGKILL)
        finally:
            os.close(watched)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = str(number)
    return f"signal {name}" + (", as the kernel does when memory runs out" if name == "SIGKILL" else "")


logger = logging.getLogger(__name__)

DEATHS = 2
"""Number of workers that may die on the same steps."""


class PendingBatches(Future[MadeBatches]):
    """A worker's future batches; waiting for them reads the workers' messages."""

    def __init__(self, read: Callable[[], None]) -> None:
        super().__init__()
        self._read = read

    def result(self, timeout: float | None = None) -> MadeBatches:
        """Return the result. Raises: errors of making the batch; CancelledError if the pool was dismissed."""
        while not self.done():
            self._read()
        return super().result(timeout)


class WorkerPool:
    """`workers` processes that make a recipe's batches. Not thread-safe, except `dismiss`."""

    def __init__(self, message: StartupMessage, workers: int, bound_bytes: int, metrics: Metrics) -> None:
        """Start the workers. bound_bytes: batch memory above which free segments are dropped.

        Raises: Unpicklable; InvalidRuntime if too few files may be open; OSError.
        """
        self.size = workers
        self._framework, self._metrics = message.recipe.framework, metrics
        self._ring = Ring(bound_bytes, workers)
        self._numbers = count()
        self._deaths: Counter[range] = Counter()
        self._lost_servers: set[ForkServer] = set()
        self._refusal: BaseException | None = None
        self._dismissed = False
        self._pid = os.getpid()
        self._sent_fd = -1
        self._workers: list[WorkerProcess] = []
        self._n_workers = workers
        self._libraries = libraries(message.recipe)
        self._source_names = message.recipe.plan.source_names
        try:
            self._sent_fd = message.written()
            for _ in range(workers):
                self._workers.append(WorkerProcess(self._sent_fd, self._libraries))
        except OSError as error:
            self.abandon()
            if is_want_of_files(error):
                raise too_few_files("starting worker processes", workers) from error
            raise

    @property
    def pids(self) -> list[int]:
        return [pid for worker in self._workers if (pid := worker.started_pid()) is not None]

    def poll(self) -> bool:
        self._read(wait=False)
        if self._refusal is not None:
            raise self._refusal
        return all(worker.is_ready for worker in self._workers)

    def submit(self, steps: range) -> Future[MadeBatches]:
        future = PendingBatches(self._read)
        if self._refusal is not None:
            future.set_exception(self._refusal)
            return future
        for segment in self._ring.trim():
            self._drop(segment)
        self._ask(steps, future)
        return future

    def cancel(self, futures: Iterable[Future[MadeBatches]]) -> None:
        for future in futures:
            future.cancel()
        for worker in self._workers:
            if worker.tasks:
                with suppress(EOFError):
                    worker.drop()

    def retire(self) -> None: ...

    def dismiss(self) -> None:
        if os.getpid() == self._pid:
            self._dismissed = True
            for worker in self._workers:
                worker.hang_up()

    def join(self) -> None:
        self._leave(WorkerProcess.wait)

    def _leave(self, leave: Callable[[WorkerProcess], object]) -> None:
        if os.getpid() != self._pid or self._sent_fd < 0:
            return
        for worker in self._workers:
            leave(worker)
        self._workers.clear()  # their futures refer to this pool: leaves no cycle for the collector
        self._ring.close()
        os.close(self._sent_fd)
        self._sent_fd = -1

    def abandon(self) -> None:
        self.dismiss()
        self._leave(WorkerProcess.leave)

    def _ask(self, steps: range, future: Future[MadeBatches]) -> None:
        worker = min(self._workers, key=lambda candidate: len(candidate.tasks))
        with suppress(EOFError):  # it is gone: the next read notices, and another worker gets the task
            worker.ask(
                StepsTask(number=next(self._numbers), steps=steps, future=future, segment=self._ring.take())
            )

    def _read(self, *, wait: bool = True) -> None:
        if self._dismissed:
            self._fail(CancelledError())
            return
        poll = select.poll()
        by_fd = {worker.socket.fileno(): worker for worker in self._workers}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(None if wait else 0):
            worker = by_fd[fd]
            try:
                for message, passed in worker.answers():
                    self._heed(worker, message, passed)
            except EOFError:
                self._ended(worker)
            except OSError as error:
                self._without_files(error)
                return

    def _heed(self, worker: WorkerProcess, message: WorkerMessage, fd: int | None) -> None:
        if message.kind == MessageKind.READY:
            worker.is_ready = True
        elif message.kind == MessageKind.SLOW_ITEM:
            log_slow_item(self._source_names[message.task], message.step, message.steps)
        elif message.kind == MessageKind.REFUSED:
            assert fd is not None
            outcome = self._outcome(self._ring.add(fd, message.nbytes), message)
            assert outcome.error is not None
            self._fail(outcome.error.restored())
        else:
            task, lost = worker.answered(message.task)
            for candidate in lost:
                self._return(candidate)
            if message.kind == MessageKind.DROPPED:
                self._return(task)
            else:
                self._finish_task(task, message, fd)

    def _finish_task(self, task: StepsTask, message: WorkerMessage, fd: int | None) -> None:
        segment = task.segment
        if fd is not None:
            if segment is not None:
                self._drop(segment)
            try:
                segment = self._ring.add(fd, message.nbytes)
            except OSError as error:
                self._without_files(error, task.future)
                return
        assert segment is not None
        try:
            result = self._received(self._outcome(segment, message), segment.nbytes)
        except Exception as error:  # noqa: BLE001 - `result` raises it
            _fail(task.future, error)
            return
        if task.future.set_running_or_notify_cancel():
            task.future.set_result(result)

    def _received(self, outcome: TaskOutcome, nbytes: int) -> MadeBatches:
        self._metrics.merge(outcome.totals)
        log_again(outcome.logged)
        FAULTS.extend(outcome.faults)
        batches = [] if outcome.packed is None else outcome.packed.batches()
        for batch in batches:
            batch.fields, batch.mask = as_framework(batch.fields, batch.mask, self._framework)
        error = None if outcome.error is None else outcome.error.restored()
        return MadeBatches(batches, error, outcome.made_s, outcome.took_s, nbytes)

    def _outcome(self, segment: MemorySegment, message: WorkerMessage) -> TaskOutcome:
        written = OutcomePlace(message.at, message.pickled, message.arrays)
        outcome: TaskOutcome = read(self._ring.lend(segment, written.end), written)
        return outcome

    def _drop(self, segment: MemorySegment) -> None:
        self._ring.drop(segment)
        for worker in self._workers:
            with suppress(EOFError):
                worker.forget(segment.number)

    def _return(self, task: StepsTask) -> None:
        if task.segment is not None:
            self._ring.give_back(task.segment)

    def _ended(self, worker: WorkerProcess) -> None:
        if self._dismissed:
            self._fail(CancelledError())
        if self._refusal is not None:
            return
        how = worker.wait()
        if worker.lacks_files:
            self._workers.remove(worker)
            error = too_few_files("making batches", self._n_workers)
            self._fail(error)
            for task in worker.tasks:
                _fail(task.future, error)
            return
        tasks = list(worker.tasks)
        for task in tasks:
            self._return(task)
        live = [task for task in tasks if not task.future.cancelled()]
        steps = tasks[0].steps if tasks else range(0)
        doing = "starting" if not worker.is_ready else f"making {_words(steps)}" if tasks else "waiting"
        who = "the fork server of worker processes" if worker.pid is None else f"worker process {worker.pid}"
        text = f"{who} ended by {how} while {doing}"
        self._workers.remove(worker)
        if self._has_cost_enough(worker, steps):
            message = (
                f"{text}, as did the one before it. If memory ran out: fewer workers, or a smaller prefetch. If a "
                f"decoder crashed: loader.explain(plan, step={steps.start}) names the samples, and workers=0 makes the "
                f"batches in this process.{if_few()}"
            )
            failed = WorkerFailed(message, what="worker process", where=doing, given=how)
            if not live or worker.pid is None:
                self._fail(failed)
                for task in live:
                    _fail(task.future, failed)
                return
            _fail(live.pop(0).future, failed)
        logger.warning("%s; another takes its place", text)
        try:
            self._workers.append(WorkerProcess(self._sent_fd, self._libraries))
        except OSError as error:
            self._without_files(error, *(task.future for task in live))
            return
        for task in live:
            self._ask(task.steps, task.future)

    def _has_cost_enough(self, worker: WorkerProcess, steps: range) -> bool:
        if worker.pid is None:  # its server ended before the fork: counted once for all workers
            self._lost_servers.add(worker.server)
            return len(self._lost_servers) >= DEATHS
        self._deaths[steps] += len(worker.tasks) > 0 or not worker.is_ready
        if self._deaths[steps] < DEATHS:
            return False
        del self._deaths[steps]
        return True

    def _without_files(self, error: OSError, *futures: Future[MadeBatches]) -> None:
        if not is_want_of_files(error):
            raise error
        self._fail(too_few_files("taking batches from worker processes", self._n_workers))
        assert self._refusal is not None
        for future in futures:
            _fail(future, self._refusal)

    def _fail(self, error: BaseException) -> None:
        self._refusal = error
        for worker in self._workers:
            worker.hang_up()
            for task in worker.tasks:
                _fail(task.future, error)


def _words(steps: range) -> str:
    return f"step {steps.start}" if len(steps) == 1 else f"steps {steps.start} to {steps[-1]}"


def _fail(future: Future[MadeBatches], error: BaseException) -> None:
    # (several workers may end before the next read, and each fails all tasks)
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
