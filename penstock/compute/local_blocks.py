"""Compute the blocks of a `Work` as a cluster job, or in this process's own pool."""

import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from loader.errors import Corrupt, PenstockError
from loader.storage import Store
from loader.storage.disk.scratch import scratch_folder

from .job import Job, StoredOutcome, store_url
from .job_json import from_json, to_json
from .pool import Compute, Failure, Outcome, Progress, is_fault
from .pool.environment import shares, store_variables
from .submit import BlockOutcomes, cut_blocks, own_folders
from .work import Block, Fault, Node, Work, find_work

FINISH_S = 3600.0
"""Time limit of a block's `finish`, in s."""
_RESULT = b"r"
_FAULT = b"f"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentFault:
    """A fault of code or machine, as a worker sends it."""

    text: str
    """Type, message and perhaps a traceback."""
    where: str | None = None
    """The field `where`, if the error states it."""
    value: Any = None
    """The field `given`, or the first line of the text."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A `Work`, by name."""

    place: str
    """'module:name' of the work."""
    packages: tuple[str, ...]
    """Packages whose `Work` objects may run."""
    stores: Mapping[str, Any]
    """URL -> store or spec that units may open."""

    @property
    def work(self) -> Work[Any, Any]:
        return find_work(self.place, self.packages)


class _UnitCall(_Call):
    """The work's function, as sent to workers."""

    def __call__(self, arguments: tuple[bytes, str]) -> bytes:
        """Run a unit, given as (JSON, scratch folder or "")."""
        work = self.work
        unit, folder = arguments
        with closing(Node(self.stores, Path(folder) if folder else None, self.packages)) as node:
            try:
                return _answer(lambda: work.function(from_json(unit, work.unit, "a unit"), node))
            except Exception:
                if folder:
                    # A failed unit must leave nothing for `finish`.
                    shutil.rmtree(folder, ignore_errors=True)
                raise


class _FinishCall(_Call):
    """The work's `finish`, as sent to workers."""

    def __call__(self, arguments: tuple[int, list[bytes], list[str], list[bytes]]) -> bytes:
        """Run `finish` on (number, units, folders, outcomes)."""
        work = self.work
        number, units, folders, outcomes = arguments
        block = Block(
            number=number,
            units=[from_json(unit, work.unit, "a unit") for unit in units],
            folders=[Path(folder) for folder in folders],
        )
        stored = StoredOutcome.of(work.result)
        stored_outcomes = [from_json(line, stored, "an outcome").outcome for line in outcomes]
        finish = work.finish
        assert finish is not None  # `WorkerCalls.finish` sends no call without one
        with closing(Node(self.stores, packages=self.packages)) as node:
            return _answer(lambda: finish(block, stored_outcomes, node))


class WorkerCalls:
    """A `Work` whose units and blocks a pool computes.

    place: 'module:name' of the work. packages: packages whose `Work` objects may run. stores: URL -> store or spec.
    variables: environment variables that the stores need. gpus: this machine's.
    """

    def __init__(
        self,
        compute: Compute,
        place: str,
        packages: Sequence[str],
        stores: Mapping[str, Any],
        variables: Collection[str],
        gpus: Sequence[str] = (),
    ) -> None:
        call = (place, tuple(packages), stores)
        self._unit = _UnitCall(*call)
        self._finish = _FinishCall(*call)
        self.work: Work[Any, Any] = self._unit.work
        self._compute = compute
        self._variables = variables
        each = self.work.resources.gpus
        self._gpus = shares(gpus, each) if each else ()

    def outcomes(
        self, units: Sequence[Any], folders: Sequence[str], progress: Progress | None = None
    ) -> Generator[StoredOutcome[Any]]:
        """Yield the outcome of each unit, in order; units run in parallel.

        folders: each unit's scratch folder, which is kept; "" for a temporary one. Raises: Fault; as `Compute.map`.
        """
        answers = self._compute.map(
            self._unit,
            [(to_json(unit), folder) for unit, folder in zip(units, folders, strict=True)],
            timeout_s=[self.work.limit_s(unit) for unit in units],
            progress=progress,
            variables=self._variables,
            gpus=self._gpus,
        )
        for outcome in answers:
            yield self._stored_outcome(outcome)

    def finish(
        self,
        number: int,
        units: Sequence[Any],
        folders: Sequence[str],
        outcomes: Sequence[StoredOutcome[Any]],
    ) -> Any:
        """Return what the work's `finish` returns for a block, or None. Raises: Fault; as `Compute.map`."""
        if self.work.finish is None:
            return None
        arguments = (number, [*map(to_json, units)], list(folders), [*map(to_json, outcomes)])
        (outcome,) = self._compute.map(
            self._finish, [arguments], timeout_s=FINISH_S, variables=self._variables
        )
        if outcome.value is None:
            failure = _failure(outcome)
            raise Fault(
                f"block {number} could not be finished: {failure.reason}",
                what=f"block {number}",
                given=failure.summary,
            )
        body, fault = _read(outcome.value)
        if fault:
            raise Fault(
                f"block {number} could not be finished: {fault.text}",
                what=f"block {number}",
                where=fault.where,
                given=fault.value,
            )
        return from_json(body, self.work.part, f"what the finish of block {number} returned")

    def _stored_outcome(self, outcome: Outcome[bytes]) -> StoredOutcome[Any]:
        """Parse a worker's answer; return the unit's outcome in the form in which a job stores it.

        Raises: Fault if the machine failed, and not the unit.
        """
        if outcome.value is None:
            error = _failure(outcome)
            return StoredOutcome(code=error.code, reason=error.summary)
        body, fault = _read(outcome.value)
        if fault:
            raise Fault(
                f"work {self.work.name!r} failed, which is not a verdict on its unit: {fault.text}",
                what=self.work.name,
                where=fault.where,
                given=fault.value,
            )
        try:  # a hostile input file may control the worker
            result = from_json(body, self.work.result, "the result of a unit")
        except Corrupt as error:
            return StoredOutcome(code="exception", reason=str(error))
        return StoredOutcome(result=result)


def _failure(outcome: Outcome[Any]) -> Failure:
    return outcome.error or Failure(code="exception", reason="no value")


def _answer(make: Callable[[], Any]) -> bytes:
    """Return a letter, then the JSON of what `make` returns, or of the fault that it raises. Runs in a worker."""
    try:
        answer = make()
    except Exception as error:
        if not is_fault(error):
            raise
        # Returned, since the pool reports an exception as the unit's failure.
        return _FAULT + to_json(_sent_fault(error))
    return _RESULT + to_json(answer)


def _sent_fault(error: Exception) -> _SentFault:
    text = f"{type(error).__name__}: {error}"
    fields: Mapping[str, Any] = {}
    if isinstance(error, PenstockError):
        fields = error.fields
    # The further lines of a text are a traceback.
    first_line, _, _ = text.partition("\n")
    return _SentFault(text=text, where=fields.get("where"), value=fields.get("given", first_line))


def _read(answer: bytes) -> tuple[memoryview, _SentFault | None]:
    """Return (JSON of a result, None), or the fault that a worker sent instead; reads what `_answer` returned."""
    body = memoryview(answer)[1:]
    if answer[:1] == _RESULT:
        return body, None
    try:
        return body, from_json(body, _SentFault, "a fault")
    except Corrupt:  # a hostile input file may control the worker
        return body, _SentFault(text=str(body, errors="replace"))


U = TypeVar("U")
R = TypeVar("R")


@runtime_checkable
class Jobs(Protocol):
    """A `Compute` that runs each `Work` elsewhere, as a job."""

    def blocks(
        self, job: Job[U, R], units: Callable[[], Iterable[U]], progress: Progress | None
    ) -> Iterator[BlockOutcomes[R]]:
        """Yield a job's blocks, in order."""

    def tell(self, line: str) -> None:
        """Print a line for the waiting user."""


def job_blocks(
    compute: Compute,
    job: Job[U, R],
    units: Callable[[], Iterable[U]],
    progress: Progress | None = None,
) -> Iterator[BlockOutcomes[R]]:
    """Yield a job's blocks in order, computed elsewhere or in this process's own pool.

    Raises: as `ClusterCompute.blocks` and `compute_here`.
    """
    if isinstance(compute, Jobs):
        return compute.blocks(job, units, progress)
    return compute_here(job.work, units(), compute, job.stores, progress)


def discard(compute: object, job: Job[Any, Any]) -> None:
    """Delete a job's folder once its outcomes are recorded: units contain keys and texts of raw objects."""
    if isinstance(compute, Jobs):
        for folder in own_folders(job):
            folder.remove()


def compute_here(
    work: Work[U, R],
    units: Iterable[U],
    compute: Compute,
    stores: Sequence[Store],
    progress: Progress | None = None,
) -> Iterator[BlockOutcomes[R]]:
    """Yield the blocks of a `Work` in order, while later units run. stores: units may open them by URL.

    Raises: Fault if a store, a disk or `finish` fails; as `Compute.map`.
    """
    place = work.place
    calls = WorkerCalls(
        compute,
        place,
        [place.partition(":")[0].partition(".")[0]],
        {store_url(store): store for store in stores},
        store_variables(*stores),
    )
    blocks = list(cut_blocks(work, units))
    every: list[Any] = [unit for block in blocks for unit in block]
    with scratch_folder("blocks") as scratch:
        kept = work.finish is not None
        folders = [str(scratch / f"{number:06d}") if kept else "" for number in range(len(every))]
        first = 0
        with closing(calls.outcomes(every, folders, progress)) as answers:
            for number, block in enumerate(blocks):
                own = folders[first : first + len(block)]
                outcomes = list(islice(answers, len(block)))
                part = calls.finish(number, block, own, outcomes)
                # Block by block, so that the disk holds the files of few blocks.
                for folder in own if kept else ():
                    shutil.rmtree(folder, ignore_errors=True)
                yield BlockOutcomes(
                    number=number,
                    first=first,
                    outcomes=[one.outcome for one in outcomes],
                    part=part,
                )
                first += len(block)
