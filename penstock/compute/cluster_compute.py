"""Run each `Work` as a job on a cluster, which outlives the waiting process, and small tasks here."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from .attach import JobState, cancel, follow
from .cluster import Cluster
from .engines.engine import AttemptStatus
from .job import Job
from .pool import Compute, Outcome, Progress
from .submit import BlockOutcomes, submit_job

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")


class ClusterCompute:
    """A `Compute` that runs each `Work` on a cluster.

    here: this machine's `Compute`, for `map`; closed with this one.
    tell: receives a line whenever a job's state changes.
    given_up: returns True once a user has ended the run.
    waits: receives a job's id before the wait, and "" after it.
    file: name of the cluster's file, for messages.
    ended: receives each job's final state.
    """

    isolates = True

    def __init__(
        self,
        cluster: Cluster,
        here: Compute,
        tell: Callable[[str], object],
        given_up: Callable[[], bool] = lambda: False,
        waits: Callable[[str], object] = lambda _: None,
        *,
        file: str = "FILE",
        ended: Callable[[JobState], object] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._here = here
        self._tell = tell
        self._given_up = given_up
        self._waits = waits
        self._file = file
        self._ended = ended

    def map(
        self,
        function: Callable[[T], R],
        units: Sequence[T],
        *,
        timeout_s: float | Sequence[float],
        progress: Progress | None = None,
        variables: Collection[str] = (),
        gpus: Sequence[str] = (),
    ) -> Iterator[Outcome[R]]:
        return self._here.map(
            function, units, timeout_s=timeout_s, progress=progress, variables=variables, gpus=gpus
        )

    def tell(self, line: str) -> None:
        """Print a line for the waiting user."""
        self._tell(line)

    def blocks(
        self, job: Job[U, R], units: Callable[[], Iterable[U]], progress: Progress | None
    ) -> Iterator[BlockOutcomes[R]]:
        """Yield a job's blocks in order; submit the job, or find it and wait.

        Memory: blocks that finish before an earlier one. Raises: as `attach`.
        """
        engine = self._cluster.open()
        waiting: dict[int, BlockOutcomes[R]] = {}
        place = 0
        with closing(engine):
            there = submit_job(job, units, self._tell)
            folder = there.folder
            self._waits(folder.id)
            self._tell(
                f"job {folder.id} ({job.about}) is for {self._cluster.engine}, as set in {self._file}; where it is: "
                f"penstock jobs why {folder.id[:8]} --root {job.store.url} --cluster {self._file}"
            )
            try:
                for block in follow(there, job.work, engine, self._cluster, self._reporting(progress)):
                    waiting[block.number] = block
                    while place in waiting:
                        yield waiting.pop(place)
                        place += 1
            except BaseException as error:
                if isinstance(error, Exception | GeneratorExit):  # the consumer has stopped
                    self._waits("")
                # An interrupt by itself leaves the job to other processes and later runs.
                if not isinstance(error, Exception) and self._given_up():
                    cancel(folder, engine)
                    self._tell(f"job {folder.id} ({job.about}) was cancelled: a person ended its run")
                raise
            self._waits("")

    def close(self) -> None:
        """See `Compute.close`. Jobs continue."""
        self._here.close()

    def _reporting(self, progress: Progress | None) -> Callable[[JobState], None]:
        last_line = ""

        def report(state: JobState) -> None:
            nonlocal last_line
            if progress is not None:
                progress(state.units_done, state.n_units)
            line = state_text(state)
            if line != last_line:
                self._tell(line)
                last_line = line
            if state.n_done == state.n_blocks:
                self._ended(state)

        return report


def state_text(state: JobState) -> str:
    """Return a job's progress, location, and reason for a wait in one line."""
    return (
        f"job {state.id} ({state.about}): {state.n_done} of {state.n_blocks} blocks, {state.units_done} of "
        f"{state.n_units} units done; {words_of_attempt(state.attempt, state.status)}"
    )


_STATES = {
    "waiting": "waits",
    "running": "runs",
    "ended": "has ended",
    "unknown": "may still be there",
}


def words_of_attempt(attempt: int, status: AttemptStatus) -> str:
    """Return an attempt's state: 'attempt 1 waits as Slurm job 12 in partition long; runners: 4 wait'."""
    counts = [f"{n} {what}" for n, what in ((status.running, "run"), (status.waiting, "wait")) if n]
    runners = ""
    if counts:
        runners = f"runners: {', '.join(counts)}"
    place = ""
    if status.place:
        place = f" as {status.place}"
    words = [f"attempt {attempt} {_STATES[status.state]}{place}", runners, status.reason]
    return "; ".join(filter(None, words))
