"""Submit a job, wait for it, and yield its blocks as they finish; an engine's silence ends no job."""

import hashlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from loader.errors import EngineUnreachable, InvalidRuntime, JobCancelled, JobFailed, ObjectNotFound
from loader.storage import Store

from .cluster import Cluster
from .engines.engine import AttemptStatus, Engine
from .job import FOLDER, MAX_STARTS, AttemptRecord, Job, JobDescription, JobFolder, now_us
from .job_json import from_json, to_json
from .pool import Outcome
from .runner import FINAL
from .submit import BlockOutcomes, Submission, submit_job
from .work import Work

U = TypeVar("U")
R = TypeVar("R")

INTENT_S = 60.0
"""Seconds until another process replaces an intent that led to no submission."""
SLOWER = 6
"""Longest idle poll interval, in multiples of the engine's own."""
BARREN = 2
"""Consecutive attempts that start no block before the job fails."""
ATTEND_S = 600.0
"""Interval of a waiting process's heartbeat, in s."""
SILENCE_S = 24 * 3600.0
"""Longest wait for an unreachable engine, in s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job's state."""

    id: str
    about: str
    """Job name."""
    n_blocks: int
    n_done: int
    """Finished blocks."""
    n_units: int
    units_done: int
    """Units in finished blocks."""
    attempt: int
    """Newest attempt's number; 0 before the first."""
    status: AttemptStatus
    """Status of that attempt, from the engine."""


StateCallback = Callable[[JobState], None]


def attach(
    job: Job[U, R],
    units: Callable[[], Iterable[U]],
    engine: Engine,
    cluster: Cluster,
    on_state: StateCallback | None = None,
) -> Iterator[BlockOutcomes[R]]:
    """Yield a job's blocks as they finish; start missing blocks if no process works on them.

    on_state: called at each poll. Raises: as `submit_job` and `follow`.
    """
    return follow(submit_job(job, units), job.work, engine, cluster, on_state)


def outcomes_anew(
    work: Work[U, R], units: Sequence[U], cluster: Cluster, *, store: Store, about: str
) -> Iterator[Outcome[R]]:
    """Yield the outcome of each unit, in order, from a job in `store`. A job that has ended runs again.

    about: job name. Memory: outcomes that arrive before an earlier unit's. Raises: as `attach`.
    """
    words = hashlib.sha256()
    for unit in units:
        words.update(to_json(unit))
    job = Job(store=store, work=work, about=about, fingerprint=words.hexdigest(), stores=[store])
    engine = cluster.open()
    try:
        outcomes: dict[int, Outcome[R]] = {}
        place = 0
        there = submit_job(job, lambda: units, anew=True)
        for block in follow(there, job.work, engine, cluster):
            outcomes.update(enumerate(block.outcomes, block.first))
            while place in outcomes:
                yield outcomes.pop(place)
                place += 1
    finally:
        engine.close()


def follow(
    there: Submission,
    work: Work[Any, R],
    engine: Engine,
    cluster: Cluster,
    on_state: StateCallback | None = None,
    *,
    begins: bool = True,
) -> Iterator[BlockOutcomes[R]]:
    """Yield a submitted job's blocks as they finish.

    begins: False for a process that only waits, because it cannot vouch for the description.
    Memory: 100 bytes per block, and one block's outcomes. Requests: one per block, and a listing per poll.
    Raises: JobFailed if a block starts eight times without outcomes, runners start no block, or library releases vary;
    JobCancelled; EngineUnreachable after a silent day; InvalidRuntime if the job is idle and `begins` is False.
    """
    folder = there.folder
    description = there.description
    waiter = _Waiter(there, engine, cluster, begins=begins)
    if begins:
        # A cancelled job that is submitted again goes on.
        folder.go_on()
    firsts = [0, *accumulate(n_units for n_units, *_ in description.blocks)]
    seen: set[int] = set()
    libraries: dict[str, str] | None = None
    delay_s = engine.poll_s
    attended_s = -math.inf
    while True:
        if time.monotonic() > attended_s + ATTEND_S:
            folder.attend()
            attended_s = time.monotonic()
        fresh = [block for block in folder.done(description) if block not in seen]
        for block in fresh:
            head, outcomes = folder.outcomes(description, block, work.result)
            if libraries is not None and head.libraries != libraries:
                raise JobFailed(
                    f"block {block} of job {folder.id} was computed with {head.libraries}, others with "
                    f"{libraries}; install the same releases on all nodes, and penstock jobs clear {folder.id}",
                    what="libraries",
                    where=f"block {block} of job {folder.id}",
                    given=head.libraries,
                    accepted=libraries,
                )
            libraries = head.libraries
            seen.add(block)
            part = from_json(to_json(head.part), work.part, f"the part of block {block} of job {folder.id}")
            yield BlockOutcomes(number=block, first=firsts[block], outcomes=outcomes, part=part)
        n_missing = len(description.blocks) - len(seen)
        status = waiter.status(n_missing) if n_missing else waiter.end()
        if on_state is not None:
            on_state(job_state(folder, description, seen, waiter.attempt, status))
        if not n_missing:
            return
        # Polls slow down while nothing finishes, to spare the scheduler.
        delay_s = engine.poll_s if fresh else min(delay_s * 1.2, engine.poll_s * SLOWER)
        if status.state != "ended":
            time.sleep(delay_s)


def job_state(
    folder: JobFolder, description: JobDescription, done: Iterable[int], attempt: int, status: AttemptStatus
) -> JobState:
    """Return the state of a job whose finished blocks are `done`."""
    numbers = list(done)
    return JobState(
        id=folder.id,
        about=description.about,
        n_blocks=len(description.blocks),
        n_done=len(numbers),
        n_units=description.n_units,
        units_done=sum(description.blocks[number][0] for number in numbers),
        attempt=attempt,
        status=status,
    )


class _Waiter:
    """Keeps an attempt at a job submitted until all blocks exist."""

    def __init__(self, there: Submission, engine: Engine, cluster: Cluster, *, begins: bool) -> None:
        self._folder = there.folder
        self._description = there.description
        self._engine = engine
        self._cluster = cluster
        self._begins = begins
        self._heard_s = time.monotonic()
        self._own_attempt = 0  # the newest attempt that this process submitted
        self._n_barren = 0  # consecutive attempts of this process that started no block
        self.attempt = 0

    def status(self, n_missing: int) -> AttemptStatus:
        """Return the newest attempt's status, and submit another attempt if it ended before its blocks were done.

        n_missing: blocks without a result at the caller's last listing. Raises: JobCancelled; EngineUnreachable after
        `SILENCE_S` without an answer.
        """
        if self._folder.stopped:
            raise JobCancelled(
                f"job {self._folder.id} ({self._description.about}) was cancelled; run it again to go on",
                what="job",
                given=self._folder.id,
            )
        try:
            status = self._current(n_missing)
        except EngineUnreachable as error:
            if time.monotonic() - self._heard_s > SILENCE_S:
                raise
            return AttemptStatus(state="unknown", reason=str(error))
        self._heard_s = time.monotonic()
        return status

    def end(self) -> AttemptStatus:
        """Withdraw what is left of each attempt; return the final status."""
        attempts = self._folder.attempts()
        self.attempt = max(attempts, default=0)
        place = ""
        for attempt in attempts:
            name = self._folder.attempt_name(attempt)
            try:
                status = self._engine.status(name)
                place = status.place or place
                if status.waiting or status.running:
                    self._engine.withdraw(name)
            except EngineUnreachable as error:
                return AttemptStatus(state="ended", reason=f"what is left of {name} ends by itself: {error}")
        return AttemptStatus(state="ended", place=place)

    def _current(self, n_missing: int) -> AttemptStatus:
        """Return the status of the newest attempt; submit one if none runs. n_missing: blocks that were not done."""
        self.attempt, attempt = self._folder.newest_attempt()
        name = self._folder.attempt_name(self.attempt)
        if attempt is None:
            return self._submit(self.attempt + 1)
        if not attempt.placed:
            # The submitter may have died between the engine's acceptance and its record.
            if self._engine.find(name):
                self._folder.placed(self.attempt, attempt)
            # Its submitter died between intent and submission: nothing else would place it.
            elif now_us() - attempt.at_us > INTENT_S * 1e6:
                return self._submit(self.attempt + 1)
            else:
                return AttemptStatus(
                    state="unknown", reason=f"{attempt.by} is about to submit attempt {self.attempt}"
                )
        status = self._engine.status(name)
        if status.state == "ended" and 0 < self._own_attempt < self.attempt:
            # The newest attempt may run on a machine that this engine cannot see: keep following our own.
            status = self._engine.status(self._folder.attempt_name(self._own_attempt))
        # Listed again: runners may have finished blocks just before they ended.
        n_left = len(self._description.blocks) - len(self._folder.done(self._description))
        if status.state != "ended" or n_left < n_missing:
            return status
        self._check_ended(attempt)
        return self._submit(self.attempt + 1)

    def _submit(self, attempt: int) -> AttemptStatus:
        """Submit an attempt, unless another process records the same one first."""
        if not self._begins:
            raise InvalidRuntime(
                f"no process works on job {self._folder.id} ({self._description.about}), and every writer of "
                f"{FOLDER} may have written its description. Run the command that submitted it again. Or read penstock "
                f"jobs show {self._folder.id}, and pass --sha256 {self._description.sha256} to vouch for it",
                what="job",
                given=self._folder.id,
                accepted=self._description.sha256,
            )
        record = AttemptRecord(
            by=f"{socket.gethostname()}:{os.getpid()}",
            at_us=now_us(),
            n_begun=self._folder.n_starts().total(),
        )
        if not self._folder.intend(attempt, record):
            return AttemptStatus(state="unknown", reason=f"another process submits attempt {attempt}")
        self.attempt = self._own_attempt = attempt
        n_blocks = len(self._description.blocks)
        runner = self._cluster.runner(self._folder, attempt, self._description.sha256)
        try:
            self._engine.submit(self._folder.attempt_name(attempt), runner, n_blocks, FINAL)
        except EngineUnreachable:  # it may have been accepted: keep the intent until the name is looked up
            raise
        except Exception:
            self._folder.placed(attempt, record)
            raise
        self._folder.placed(attempt, record)
        return AttemptStatus(state="waiting", reason="submitted")

    def _check_ended(self, attempt: AttemptRecord) -> None:
        """Raise JobFailed if another attempt would help no more than the last ones did."""
        starts = self._folder.n_starts()
        done = set(self._folder.done())
        tired = sorted(block for block, n in starts.items() if n >= MAX_STARTS and block not in done)
        if tired:
            raise JobFailed(
                f"blocks {', '.join(map(str, tired[:10]))} of job {self._folder.id} began {MAX_STARTS} times without "
                f"outcomes; {self._last_words(tired[0])}",
                what="blocks",
                where=f"job {self._folder.id}",
                given=tired[:10],
                accepted=MAX_STARTS,
            )
        # Barren: no runner of the attempt began a block.
        is_barren = self.attempt == self._own_attempt and attempt.n_begun == starts.total()
        if is_barren:
            self._n_barren += 1
        else:
            self._n_barren = 0
        if self._n_barren == BARREN:
            raise JobFailed(
                f"{BARREN} attempts at job {self._folder.id} began no block; {self._last_words(None)}",
                what="attempts",
                where=f"job {self._folder.id}",
                given=BARREN,
            )

    def _last_words(self, block: int | None) -> str:
        """Return what a block's runner wrote last, in one line; None: the first runner of the attempt."""
        text = ""
        if block is not None:
            text = self._folder.log(block)
        if not text:
            with suppress(EngineUnreachable):
                text = self._engine.logs(self._folder.attempt_name(self.attempt), 0)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        where = ""
        if block is not None:
            nodes = sorted({start.node for start in self._folder.starts(block)})
            if nodes:
                where = f" on {', '.join(nodes)}"
        if lines:
            return f"its last words{where}: {' | '.join(lines[-3:])}"
        return f"nothing was written{where}"


def cancel(folder: JobFolder, engine: Engine) -> None:
    """End a job: runners start no more blocks, and the newest attempt is cancelled."""
    folder.stop()
    attempt, record = folder.newest_attempt()
    if record is not None:
        with suppress(ObjectNotFound):
            engine.cancel(folder.attempt_name(attempt))
