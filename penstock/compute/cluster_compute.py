"""A cluster for a step that waits: works go to it as jobs, and what is small is computed on this machine.

Whoever waits may die: the job goes on, and who does the same work again finds it. It ends with a person's word alone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from .attach import JobState, attach, cancel
from .blocks import BlockOutcomes
from .cluster import Cluster
from .job import Job, JobFolder
from .pool import Compute, Outcome, Progress

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")


class ClusterCompute:
    """An engine whose works run on a cluster.

    here: engine of this machine, for `map`; closed with this one. tell: takes a line where a job's state has changed.
    given_up: True once a person wants the work ended; asked where the wait is broken off.
    waits: takes the id of a job before the wait for it, and "" after it.
    """

    isolates = True

    def __init__(
        self,
        cluster: Cluster,
        here: Compute,
        tell: Callable[[str], object],
        given_up: Callable[[], bool] = lambda: False,
        waits: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._cluster, self._here, self._tell = cluster, here, tell
        self._given_up, self._waits = given_up, waits

    def map(
        self,
        function: Callable[[T], R],
        units: Sequence[T],
        *,
        timeout_s: float | Sequence[float],
        progress: Progress | None = None,
        variables: Collection[str] = (),
    ) -> Iterator[Outcome[R]]:
        """See `Compute.map`: on this machine."""
        return self._here.map(function, units, timeout_s=timeout_s, progress=progress, variables=variables)

    def tell(self, line: str) -> None:
        """Say a line to whoever waits."""
        self._tell(line)

    def blocks(
        self, job: Job[U, R], units: Callable[[], Iterable[U]], progress: Progress | None
    ) -> Iterator[BlockOutcomes[R]]:
        """Yield the blocks of a job in their order; it is submitted, or found and waited for.

        Memory: the outcomes of blocks that ended before an earlier one. Raises: as `attach`.
        """
        engine = self._cluster.open()
        waiting: dict[int, BlockOutcomes[R]] = {}
        place = 0
        with closing(engine):
            self._waits(job.id)
            try:
                for block in attach(job, units, engine, self._cluster, self._telling(progress)):
                    waiting[block.number] = block
                    while place in waiting:
                        yield waiting.pop(place)
                        place += 1
            except BaseException as error:
                if isinstance(error, Exception | GeneratorExit):  # nobody asks for more
                    self._waits("")
                if not isinstance(error, Exception) and self._given_up():
                    cancel(JobFolder(job.store, job.id), engine)
                    self._tell(f"job {job.id} ({job.about}) was cancelled: a person ended its run")
                raise
            self._waits("")

    def close(self) -> None:
        """See `Compute.close`; jobs go on."""
        self._here.close()

    def _telling(self, progress: Progress | None) -> Callable[[JobState], None]:
        said = ""

        def told(state: JobState) -> None:
            nonlocal said
            if progress is not None:
                progress(state.units_done, state.n_units)
            line = words_of(state)
            if line != said:
                self._tell(line)
                said = line

        return told


def words_of(state: JobState) -> str:
    """Return the state of a job as a line: how far it is, and why it waits."""
    look = state.look
    counts = ", ".join(
        f"{n} {what}" for n, what in ((look.running, "running"), (look.waiting, "waiting")) if n
    )
    why = f": {look.reason}" if look.reason else ""
    return (
        f"job {state.id} ({state.about}): {state.n_done} of {state.n_blocks} blocks, "
        f"{state.units_done} of {state.n_units} units; attempt {state.attempt} {look.state}"
        f"{f' ({counts})' if counts else ''}{why}"
    )
