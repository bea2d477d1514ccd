"""A worker process: reads its startup message, then makes batches until the trainer hangs up."""

import logging
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import NoReturn

from ...dataset.reading.read_faults import FAULTS
from ...errors import Unpicklable
from ...order.plan import Plan
from ..ahead.thread_pools import range_threads
from ..batch.batch import Batch
from ..making.assemble import Assembler
from ..making.prefetch import making
from ..metrics import Metrics
from .batch_memory import BatchSlot, MemorySegment, can_be_sent
from .batch_message import LogCollector, PickledError, TaskOutcome, packed
from .forked_children import cover_children
from .messages import NO_FILES, MessageKind, WorkerMessage, is_want_of_files, receive, send
from .parent_watch import ParentWatch, default_handlers, stay_alive, survive_stop_signals
from .startup_message import StartupMessage


def main(sock_fd: int, sent_fd: int, trainer_fd: int = -1) -> NoReturn:
    """Run the worker process.

    sent_fd: memory with a `StartupMessage`. trainer_fd: process descriptor of the trainer, or -1.
    """
    survive_stop_signals()
    cover_children(stay_alive, default_handlers())
    sock = socket.socket(fileno=sock_fd)
    watch = ParentWatch(sock, trainer_fd)
    try:
        _work(sock, sent_fd)
    except EOFError:
        pass
    except OSError as error:
        if not is_want_of_files(error):
            raise
        os._exit(NO_FILES)  # the trainer's error names the limit
    watch.end()


def _work(sock: socket.socket, sent_fd: int) -> None:
    logs = LogCollector()
    logging.getLogger("loader").addHandler(logs)
    metrics = Metrics()
    slot = BatchSlot()
    try:
        sent = StartupMessage.read(sent_fd)
        logging.getLogger("loader").setLevel(sent.log_level)
        if sent.values:
            from .script_values import check_values

            check_values(sent.values)
        if sent.recipe.has_items:
            _report_slow_items(sock, sent.recipe.plan)
        run = range_threads(sent.recipe.plan)[1]
        assembler = Assembler(sent.recipe, metrics, run, sent.cache, slot.allocate)
    except Exception as error:  # noqa: BLE001 - the trainer raises it
        refusal = TaskOutcome(error=PickledError.of(error), made_s=perf_counter(), totals=metrics.drain())
        _reply(sock, slot, None, WorkerMessage(MessageKind.REFUSED), refusal)
        while True:
            receive(sock, wait=True)
    try:
        send(sock, WorkerMessage(MessageKind.READY))
        BatchWorker(sock, slot, assembler, metrics, logs).run()
    finally:
        assembler.close()


def _report_slow_items(sock: socket.socket, plan: Plan) -> None:
    """Send items that hang to the trainer: this process's log goes with its next batch."""
    from ..items import item_watch

    def report(source: str, ordinal: int, seconds: float) -> None:
        message = WorkerMessage(
            MessageKind.SLOW_ITEM,
            task=plan.source_names.index(source),
            step=ordinal,
            steps=int(seconds),
        )
        with suppress(EOFError, OSError):  # the trainer is gone
            send(sock, message)

    item_watch.report = report


class BatchWorker:
    """Makes the steps of its tasks in turn. It finishes a batch in progress and does not start dropped tasks."""

    def __init__(
        self, sock: socket.socket, slot: BatchSlot, assembler: Assembler, metrics: Metrics, logs: LogCollector
    ) -> None:
        self._sock = sock
        self._slot = slot
        self._assembler = assembler
        self._metrics = metrics
        self._logs = logs
        self._segments: dict[int, MemorySegment] = {}
        self._tasks: deque[WorkerMessage] = deque()  # requests to make batches, not yet begun
        self._make_batches = making(assembler.batches)

    def run(self) -> NoReturn:
        while True:
            start = perf_counter()
            # Waits for a message only without a task: then time without work counts as "room".
            while (received := receive(self._sock, wait=not self._tasks)) is not None:
                self._heed(*received)
            self._metrics.observe("room", perf_counter() - start)
            self._make(self._tasks.popleft())

    def _heed(self, message: WorkerMessage, fd: int | None) -> None:
        if fd is not None:
            segment = self._segments[message.segment] = MemorySegment(message.segment, fd, message.nbytes)
            segment.close()  # the mapping stays
        if message.kind == MessageKind.MAKE:
            self._tasks.append(message)
        elif message.kind == MessageKind.FORGET:
            del self._segments[message.segment]
        elif message.kind == MessageKind.DROP:
            while self._tasks:
                task = self._tasks.popleft()
                send(self._sock, task._replace(kind=MessageKind.DROPPED))

    def _make(self, task: WorkerMessage) -> None:
        segment = self._segments.get(task.segment)
        self._slot.begin(segment)
        result = self._make_batches(range(task.step, task.step + task.steps))
        outcome = TaskOutcome(
            packed=packed(result.batches, self._slot.allocate),
            error=None if result.error is None else PickledError.of(result.error),
            made_s=result.at_s,
            took_s=result.took_s,
            totals=self._metrics.drain(),
            logged=self._logs.drain(),
            faults=FAULTS.drain(),
        )
        _reply(self._sock, self._slot, segment, task._replace(kind=MessageKind.DONE), outcome, result.batches)


def _reply(
    sock: socket.socket,
    slot: BatchSlot,
    segment: MemorySegment | None,
    message: WorkerMessage,
    outcome: TaskOutcome,
    batches: Sequence[Batch] = (),
) -> None:
    try:
        into, written = slot.write(outcome)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling what a transform returned may raise anything
        refused = PickledError.of(_unsendable(batches, error))
        into, written = slot.write(replace(outcome, packed=None, error=refused))
    place = {"at": written.at, "pickled": written.nbytes, "arrays": written.arrays}
    if into is segment:
        send(sock, message._replace(**place))
    else:
        send(sock, message._replace(segment=-1, nbytes=into.nbytes, **place), into.fd)


def _unsendable(batches: Sequence[Batch], error: Exception) -> Unpicklable:
    names: dict[str, None] = {}
    for batch in batches:
        values = {**batch.fields, "collated": batch.collated}
        for name, value in values.items():
            if not can_be_sent(value):
                names[name] = None
    return Unpicklable(
        f"field {', '.join(map(repr, names))}: what the dataset, decoder, transform or collate returned cannot be sent "
        f"from a worker process ({type(error).__name__}: {error}); return arrays, numbers, strings or plain containers "
        "of them, or make the batches in this process: executor='threads', or workers=0 for a dataset",
        what=", ".join(names),
        given=type(error).__name__,
        accepted="arrays, numbers, strings or plain containers",
    )
