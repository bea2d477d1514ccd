"""A week of a fleet in virtual time: jobs arrive, are preempted, fail and go on; the watch looks for bad nodes.

The scheduler is a model: the highest priority first, preemption with a checkpoint, no backfill behind a job that waits
for preempted nodes. A run's next start is decided by the launcher's `Failures`, from the record.
"""

import heapq
import math
import random
from collections.abc import Callable

from loader.storage import open_store
from penstock.nodes.signs import NO_FAILURE
from penstock.nodes.suspects import Attempt as EndedAttempt
from penstock.train.launch.failures import Failures, last_step

from .books import Books
from .jobs import DAY_S, HOUR_S, Allocation, Attempt, Job, Node, make_jobs, make_nodes, us
from .watch import Watch

FAILURES_PER_NODE_DAY = 7 / 1000
REPAIR_S = 4 * HOUR_S
CRASH_S = 2 * HOUR_S
"""Mean time to a crash of an attempt that has a lemon."""
DETECT_S = 20.0
"""Seconds until the launcher knows that a rank died."""
LEAVE_S = 3.0
"""Seconds from the last event to the end of the processes."""
WATCH_S = 1200.0
CANCELLED_SHARE = 0.03
GANG_ERROR = "RuntimeError: NCCL communicator was aborted on rank 0."
"""The same line whichever step a lemon crashes at."""


class Week:
    """The simulation; `run` returns when the time is over."""

    def __init__(self, n_nodes: int, seed: int, days: float = 7.0) -> None:
        self.random, self.days = random.Random(seed), days
        self.nodes = make_nodes(self.random, n_nodes)
        self.jobs = make_jobs(self.random, n_nodes, days)
        self.books = Books(open_store(f"memory://fleet-week-{seed}-{n_nodes}-{id(self)}"))
        self.watch = Watch(self.nodes, self.random, days)
        self.now_s = 0.0
        self.over_by_rule: list[Job] = []
        """Runs that `Failures` ended."""
        self._waiting: list[Job] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Call at a time."""
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, call))

    def at_of(self, job: Job, at_s: float, call: Callable[[], None]) -> None:
        """Call at a time, unless the job has changed by then."""
        version = job.version

        def if_unchanged() -> None:
            if job.version == version:
                call()

        self.at(at_s, if_unchanged)

    def run(self) -> None:
        """Simulate to the end of the time, when all that runs is stopped."""
        for job in self.jobs:
            self.at(job.submitted_s, lambda job=job: self._arrive(job))
            if self.random.random() < CANCELLED_SHARE:
                in_s = self.random.uniform(0, 2 * DAY_S)
                self.at(job.submitted_s + in_s, lambda job=job: self._cancel(job))
        for node in self.nodes:
            self._plan_failure(node)
        self.at(WATCH_S, self._look)
        end_s = self.days * DAY_S
        while self._events and self._events[0][0] < end_s:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        self.now_s = end_s
        for job in self.jobs:
            if job.allocation is not None:
                self._kill(job, "RUNNING")

    # The scheduler.

    def _arrive(self, job: Job) -> None:
        self.books.submitted(job)
        self._waiting.append(job)
        self._schedule()

    def _schedule(self) -> None:
        self._waiting.sort(key=lambda job: (-job.priority, job.submitted_s, job.number))
        free = [node for node in self.nodes if node.is_free(self.now_s)]
        for job in list(self._waiting):
            if len(free) >= job.least:
                chosen = self.random.sample(free, min(job.most, len(free)))
                taken = {node.name for node in chosen}
                free = [node for node in free if node.name not in taken]
                self._waiting.remove(job)
                self._allocate(job, chosen)
            elif self._preempt_for(job, len(free)):
                return

    def _preempt_for(self, job: Job, n_free: int) -> bool:
        """Signal jobs of lower priority until the job fits; return whether it will."""
        running = [one for one in self.jobs if one.allocation is not None and one.priority < job.priority]
        stopping = sum(len(one.allocation.nodes) for one in running if one.is_stopping and one.allocation)
        victims = [one for one in running if not one.is_stopping]
        victims.sort(key=lambda one: (one.priority, -(one.allocation.begun_s if one.allocation else 0)))
        count, chosen = n_free + stopping, []
        for victim in victims:
            if count >= job.least:
                break
            assert victim.allocation is not None
            chosen.append(victim)
            count += len(victim.allocation.nodes)
        if count < job.least:
            return False
        for victim in chosen:
            self._signal(victim, "PREEMPTED")
        return True

    def _allocate(self, job: Job, nodes: list[Node]) -> None:
        job.version += 1
        job.allocation = Allocation(math.ceil(self.now_s), nodes, job.submitted_s)
        job.failures = Failures()
        for node in nodes:
            node.job = job
        self._start(job, job.allocation.begun_s)

    def _release(self, job: Job, at_s: float, state: str) -> None:
        assert job.allocation is not None
        allocation, job.version = job.allocation, job.version + 1
        allocation.ended_s, allocation.state = math.ceil(at_s), state
        self.books.allocation_ended(job, allocation)
        for node in allocation.nodes:
            node.job = None
        job.allocation = job.attempt = None
        job.is_stopping = False

    def _requeue(self, job: Job) -> None:
        job.submitted_s = math.ceil(self.now_s)
        self._waiting.append(job)
        self._schedule()

    # A run, as penstock's launcher and ranks have it.

    def _start(self, job: Job, at_s: float) -> None:
        assert job.allocation is not None
        job.version += 1
        job.attempts += 1
        draw, nodes = self.random, job.allocation.nodes
        up_s = at_s + draw.uniform(20, 60)
        restored_s = up_s + (job.restore_s if job.saved else 0.0)
        job.attempt = attempt = Attempt(
            number=job.attempts,
            begun_s=at_s,
            nodes=len(nodes),
            up_s=up_s,
            restored_s=restored_s,
            first_s=restored_s + draw.uniform(2, 10),
            first_step=job.saved,
            step_s=job.step_s * job.most / len(nodes),
            has_checkpoint=job.saved > 0,
        )
        end_s = attempt.time_of(job.steps, job.save_every, job.save_s) + job.save_s
        self.at_of(job, end_s, lambda: self._leave(job, "ended", job.steps, "COMPLETED"))
        if job.bug_step is not None and job.bug_step >= job.saved:
            at_s = attempt.time_of(job.bug_step, job.save_every, job.save_s) + 0.5 * attempt.step_s
            line = f"ValueError: step {job.bug_step} has no value"
            self.at_of(job, at_s, lambda: self._crash(job, line, job.bug_step))
        if any(node.lemon == "crash" for node in nodes):
            self.at_of(job, up_s + draw.expovariate(1 / CRASH_S), lambda: self._crash(job, GANG_ERROR, None))

    def _done(self, job: Job, at_s: float) -> int:
        assert job.attempt is not None
        _, done = job.attempt.progress(job.save_every, job.save_s, at_s)
        return min(done, job.steps if job.bug_step is None else max(job.bug_step, job.saved))

    def _end_attempt(self, job: Job, last: str, done: int, *, failed: bool) -> None:
        assert job.attempt is not None
        assert job.allocation is not None
        self.books.attempt_ended(job, job.attempt, self.now_s, last, done)
        names = tuple(node.name for node in job.allocation.nodes)
        self.watch.attempts.append(
            EndedAttempt(
                run=job.run,
                number=job.attempt.number,
                nodes=names,
                ended_us=us(self.now_s),
                failed=failed,
                end_step=done,
                saved_step=job.saved,
            )
        )
        job.attempt = None

    def _signal(self, job: Job, state: str) -> None:
        """SIGTERM to all ranks: they leave after the same step, with a checkpoint."""
        job.is_stopping = True
        attempt = job.attempt
        if attempt is None:  # between two starts: the script asks to requeue
            assert job.allocation is not None
            self._after_leaving(job, state, self.now_s)
            return
        done = min(self._done(job, self.now_s) + 1, job.steps)
        if job.bug_step is not None and done > job.bug_step:
            return  # its error comes first
        end_s = attempt.time_of(done, job.save_every, job.save_s) + job.save_s
        job.version += 1
        self.at_of(job, max(end_s, self.now_s), lambda: self._leave(job, "stopped", done, state))

    def _leave(self, job: Job, last: str, done: int, state: str) -> None:
        self._end_attempt(job, last, done, failed=False)
        self._after_leaving(job, state, self.now_s + LEAVE_S)

    def _after_leaving(self, job: Job, state: str, at_s: float) -> None:
        assert job.allocation is not None
        job.version += 1
        begun_s = self.now_s

        def left() -> None:
            self.books.gap("stopping", math.ceil(at_s) - begun_s, job)
            self._release(job, at_s, state)
            if state in ("COMPLETED", "CANCELLED"):
                job.end = state
                self._schedule()
            else:
                self._requeue(job)

        self.at_of(job, at_s, left)

    def _crash(self, job: Job, line: str, step: int | None) -> None:
        """A rank dies; the launcher begins the gang again within its allocation, or ends the run."""
        assert job.attempt is not None
        assert job.allocation is not None
        done = self._done(job, self.now_s) if step is None else step
        last = "failed" if step is not None or self.random.random() < 0.5 else ""
        self._end_attempt(job, last, done, failed=True)
        job.version += 1
        wait_s = job.failures.next_start_s(last_step(self.books.folder(job)), line)
        if job.is_stopping or wait_s is None:
            state = "PREEMPTED" if job.is_stopping else "FAILED"
            self.books.gap("idle", math.ceil(self.now_s + DETECT_S) - self.now_s, job)
            self._release(job, self.now_s + DETECT_S, state)
            if state == "FAILED":
                job.end = state
                self.over_by_rule.append(job)
                self.at(self.now_s + DETECT_S, self._schedule)
            else:
                self._requeue(job)
            return
        at_s = self.now_s + DETECT_S + wait_s
        self.books.gap("idle", at_s - self.now_s, job)
        self.at_of(job, at_s, lambda: self._start(job, at_s))

    # What happens to it.

    def _plan_failure(self, node: Node) -> None:
        self.at(
            self.now_s + self.random.expovariate(FAILURES_PER_NODE_DAY / DAY_S),
            lambda: self._fail(node),
        )

    def _fail(self, node: Node) -> None:
        self._plan_failure(node)
        node.up_at_s = self.now_s + REPAIR_S
        self.at(node.up_at_s, self._schedule)
        if node.job is not None:
            job = node.job
            self._kill(job, "NODE_FAIL")
            self._requeue(job)

    def _kill(self, job: Job, state: str) -> None:
        """All processes end at once: no event, no checkpoint."""
        if job.attempt is not None:
            failed = not state.startswith((*NO_FAILURE, "RUNNING"))
            self._end_attempt(job, "", self._done(job, self.now_s), failed=failed)
        self._release(job, self.now_s, state)

    def _cancel(self, job: Job) -> None:
        if job.end:
            return
        if job.allocation is not None:
            if not job.is_stopping:
                self._signal(job, "CANCELLED")
        elif job in self._waiting:
            self._waiting.remove(job)
            job.end = "CANCELLED"

    def _look(self) -> None:
        self.at(self.now_s + WATCH_S, self._look)
        self.watch.look(self.now_s, [job for job in self.jobs if job.attempt is not None])
        self._schedule()
