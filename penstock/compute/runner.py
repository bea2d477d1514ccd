"""A runner computes blocks of a job on one machine, with its pool of workers.

Runner i of n takes the missing blocks among i, i + n, ... Every unit gets exactly one outcome:

- If a unit returns, raises, hangs or dies, the pool reports it: see `pool`.
- If the runner vanishes, the block restarts with the outcomes stored so far.
- After two such losses, units run one at a time, each named in the store first; one named at two losses has crashed.
- If the store or disk fails, the runner fails, and no unit is rejected.
"""

import math
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loader.errors import CodeMismatch, InvalidRuntime, StoreError
from loader.storage.disk.scratch import scratch_folder

from .job import MAX_STARTS, Head, JobDescription, JobFolder, Spent, Start, StoredOutcome, now_us
from .local_blocks import WorkerCalls
from .pool import Compute
from .pool.environment import store_variables
from .work import Work, libraries_here, python_release, source_hash

DONE = 0
FAILED = 1
REFUSED = 3
STOPPED = 143
"""Exit statuses: nothing left to do; a fault, which a restart may clear; a final refusal; SIGTERM."""
FINAL = (DONE, REFUSED)
"""Exit statuses after which the engine does not restart the runner."""
STOP_S = 5.0
"""Minimum interval between checks for a stop request, in s."""
KEEP_S = 30.0
"""Longest time between two saves of outcomes, in s."""
BLOCKS_AT_ONCE = 2
"""Concurrent blocks; workers stay busy while a block's last units run."""
VANISHED = 2
"""Losses of a runner after which units run one at a time; a unit named this often has crashed."""


class RunnerStopped(Exception):
    """The runner received SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerName:
    """Identity of a runner."""

    attempt: int
    """Number of the attempt."""
    element: int
    """Number of the runner, from 0."""
    elements: int
    """Runners in the attempt."""
    node: str
    """Name of the machine."""


class Runner:
    """Computes a job's blocks with a pool.

    Raises: CodeMismatch if the source tree or Python differs from the job's; InvalidRuntime if the work may not run.
    """

    def __init__(
        self,
        folder: JobFolder,
        description: JobDescription,
        name: RunnerName,
        compute: Compute,
        packages: Sequence[str],
        gpus: Sequence[str] = (),
    ) -> None:
        """gpus: the slot's GPUs, as entries of CUDA_VISIBLE_DEVICES."""
        # Before any unit runs: other code may give other results.
        check_code(description)
        self._folder = folder
        self._description = description
        self._name = name
        self._compute = compute
        stores = {one.url: one.spec for one in description.stores}
        self._calls = WorkerCalls(compute, description.work, packages, stores, store_variables(*stores), gpus)
        self._libraries = libraries_here(self._calls.work.libraries)
        self._stop_requested = threading.Event()
        self._asked_s = -math.inf
        self._stopped = False
        self._turns = threading.Semaphore(BLOCKS_AT_ONCE)
        self._next_turn = threading.Lock()

    def run(self) -> int:
        """Compute this runner's blocks; return the exit status. Raises: the first fault."""
        done = set(self._folder.done())
        numbers = range(self._name.element, len(self._description.blocks), self._name.elements)
        # Another runner may finish one of these meanwhile: the outcomes that are written first count.
        waiting = iter([number for number in numbers if number not in done])
        lock = threading.Lock()
        errors = list[BaseException]()
        given_up = list[int]()

        def work() -> None:
            try:
                while not self._stop_requested.is_set():
                    with lock:
                        block = None
                        if not self._is_stopped():
                            block = next(waiting, None)
                    if block is None:
                        return
                    if not self.block(block):  # it has started too often
                        given_up.append(block)
            except BaseException as error:  # noqa: BLE001 - re-raised by the runner's own thread
                errors.append(error)
                self.tell_to_end()  # the other threads

        threads = [threading.Thread(target=work, daemon=True) for _ in range(BLOCKS_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            # A fault in one thread stops the others, whose errors explain nothing.
            if not isinstance(error, RunnerStopped):
                raise error
        if errors or self._stop_requested.is_set():
            return STOPPED
        # Not FAILED: a restarted runner would give up the same blocks.
        return REFUSED if given_up else DONE

    def _is_stopped(self) -> bool:
        """Return whether a user cancelled the job. Asks the store at most once per `STOP_S`."""
        now_s = time.monotonic()
        if now_s > self._asked_s + STOP_S:
            self._asked_s = now_s
            self._stopped = self._folder.stopped
        return self._stopped

    def tell_to_end(self) -> None:
        """Stop all units; `run` stores the outcomes so far and returns."""
        self._stop_requested.set()
        self._compute.close()

    def block(self, block: int) -> bool:
        """Compute a block; return False if it has started too often. Raises: StoreError; RunnerStopped."""
        starts = self._folder.starts(block)
        with self._turn(exclusive=_runs_alone(starts)):
            return self._block(block, starts)

    @contextmanager
    def _turn(self, *, exclusive: bool) -> Iterator[None]:
        """Wait for a turn. exclusive: run no other block meanwhile, as this one may kill the runner."""
        n = 1
        if exclusive:
            n = BLOCKS_AT_ONCE
        # One at a time: two exclusive blocks would wait for each other's turns.
        with self._next_turn:
            for _ in range(n):
                self._turns.acquire()
        try:
            yield
        finally:
            self._turns.release(n)

    def _block(self, block: int, starts: Sequence[Start]) -> bool:
        """Compute a block in its turn. starts: its starts so far. Returns and raises as `block`."""
        start = Start(
            attempt=self._name.attempt, element=self._name.element, node=self._name.node, at_us=now_us()
        )
        number = len(starts) + 1
        # Another runner may have begun it since the listing.
        while number <= MAX_STARTS and not self._folder.begin(block, start, number):
            number += 1
        if number > MAX_STARTS:
            return False
        begun_s = time.monotonic()
        with scratch_folder("block") as folder:
            scratch = None
            if self.work.finish:
                scratch = folder
            run = _BlockRun(self, block, start, number, starts, scratch)
            try:
                outcomes = run.outcomes()
                head = Head(libraries=self._libraries, part=run.finish(outcomes))
            except BaseException as error:
                run.leave(error)
                raise
        self._folder.put_done(block, head, outcomes)
        seconds = time.monotonic() - begun_s
        spent = Spent(seconds=seconds, node=self._name.node, n_computed=run.n_computed)
        self._folder.put_spent(block, number, spent)
        return True

    @property
    def work(self) -> Work[Any, Any]:
        """The job's work."""
        return self._calls.work

    def results(self, units: Sequence[Any], folders: Sequence[str]) -> Iterator[StoredOutcome[Any]]:
        """Yield the units' outcomes; units run in parallel. Raises: Fault; RunnerStopped."""
        with self._end_safely():
            yield from self._calls.outcomes(units, folders)

    def finish(
        self, block: int, units: Sequence[Any], folders: Sequence[str], outcomes: Sequence[StoredOutcome[Any]]
    ) -> Any:
        """Return what the work's `finish` returns for a block, or None. Raises: Fault; RunnerStopped."""
        with self._end_safely():
            return self._calls.finish(block, units, folders, outcomes)

    @contextmanager
    def _end_safely(self) -> Iterator[None]:
        try:
            yield
        except InvalidRuntime:
            # The pool was closed by the stop itself.
            if self._stop_requested.is_set():
                raise RunnerStopped from None
            raise

    def units(self, block: int) -> list[Any]:
        return self._folder.units(self._description, block, self.work.unit)

    @property
    def folder(self) -> JobFolder:
        return self._folder


class _BlockRun:
    """One start of a block. With `finish`, outcomes are not saved early: their files vanish with the runner.

    start, number: this start, and its number from 1. starts: the block's starts before it. scratch: folder of the files
    that `finish` reads; None without `finish`.
    """

    def __init__(
        self,
        runner: Runner,
        block: int,
        start: Start,
        number: int,
        starts: Sequence[Start],
        scratch: Path | None,
    ) -> None:
        self._runner = runner
        self._folder = runner.folder
        self._block = block
        self._start = start
        self._number = number
        self._starts = starts
        self._scratch = scratch
        self._units: list[Any] = []
        self._outcomes: dict[int, StoredOutcome[Any]] = {}
        """Number of the unit -> its outcome, of this start or stored by one before."""
        if starts:
            self._outcomes = self._folder.kept(block, runner.work.result)
        self._saved_s = time.monotonic()
        """Monotonic time at which outcomes were stored last."""
        self._n_saved = len(self._outcomes)
        """Outcomes that are stored."""
        self.n_computed = 0
        """Units that this start computed."""

    def outcomes(self) -> list[StoredOutcome[Any]]:
        """Return the outcomes of all units of the block, in order. Computes each that no earlier start stored."""
        self._units = self._runner.units(self._block)
        numbers = range(len(self._units))
        missing = [number for number in numbers if number not in self._outcomes]
        if _runs_alone(self._starts):
            self._one_at_a_time(missing)
        else:
            for number, outcome in zip(missing, self._results(missing), strict=True):
                self._take(number, outcome)
        return [self._outcomes[number] for number in numbers]

    def finish(self, outcomes: Sequence[StoredOutcome[Any]]) -> Any:
        folders = self._folders(range(len(self._units)))
        return self._runner.finish(self._block, self._units, folders, outcomes)

    def _results(self, numbers: Sequence[int]) -> Iterator[StoredOutcome[Any]]:
        return self._runner.results([self._units[number] for number in numbers], self._folders(numbers))

    def _folders(self, numbers: Sequence[int]) -> list[str]:
        """Return the scratch folder of each unit; "" without one that `finish` reads."""
        if not self._scratch:
            return [""] * len(numbers)
        return [str(self._scratch / str(number)) for number in numbers]

    def leave(self, error: BaseException) -> None:
        """Store the outcomes so far, and why the start ended. A start without a reason counts as a lost runner."""
        reason = "told" if isinstance(error, RunnerStopped) else "failed"
        try:
            self._keep()
            self._folder.tell_start(self._block, replace(self._start, left=reason), self._number)
            if reason == "failed":
                text = "".join(traceback.format_exception(error))
                self._folder.put_log(self._block, self._number, text)
        except StoreError as silent:
            # `error` is the cause: a store that fails meanwhile must not hide it.
            error.add_note(f"and how block {self._block} ended could not be written: {silent}")

    def _one_at_a_time(self, missing: Sequence[int]) -> None:
        """Compute units, each named in the store before it runs."""
        # Unit -> runners that vanished while they computed it.
        deaths = Counter(start.unit for start in self._starts if not start.left)
        # Suspects last, so that the others are stored before one kills the runner again.
        for number in sorted(missing, key=lambda number: deaths[number]):
            if deaths[number] >= VANISHED:
                reason = f"its runner vanished {deaths[number]} times while it ran by itself"
                self._take(number, StoredOutcome(code="crashed", reason=reason))
                continue
            # It may kill the runner: the outcomes so far must be stored.
            if deaths[number]:
                self._keep()
            # Named before it runs: if this runner vanishes, the next start reads which unit ran.
            self._start = replace(self._start, unit=number)
            self._folder.tell_start(self._block, self._start, self._number)
            for outcome in self._results([number]):
                self._take(number, outcome)

    def _take(self, number: int, outcome: StoredOutcome[Any]) -> None:
        self._outcomes[number] = outcome
        self.n_computed += 1
        if time.monotonic() - self._saved_s > KEEP_S:
            self._keep()

    def _keep(self) -> None:
        if self._scratch is None and len(self._outcomes) > self._n_saved:
            self._folder.keep(self._block, self._number, self._outcomes)
            self._n_saved = len(self._outcomes)
        self._saved_s = time.monotonic()


def _runs_alone(starts: Sequence[Start]) -> bool:
    """Return whether so many runners vanished during a block that its units run one at a time."""
    n_lost = sum(not start.left for start in starts)  # a runner that ends by itself stores why it left
    return n_lost >= VANISHED


def check_code(description: JobDescription) -> None:
    """Check that this machine's code is the job's. Raises: CodeMismatch."""
    if description.python != python_release():
        raise CodeMismatch(
            f"the job was submitted by Python {description.python}, here is {python_release()} ({sys.executable})",
            what="python",
            given=python_release(),
            accepted=description.python,
        )
    if (here := source_hash(description.work)) != description.code:
        raise CodeMismatch(
            f"the job was submitted by another source tree (SHA-256 {description.code[:12]}) than the one here "
            f"({here[:12]}, {sys.executable}); install the same checkout for nodes and who submits",
            what="code",
            given=here,
            accepted=description.code,
        )
