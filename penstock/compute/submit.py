"""Submit a job, its units in blocks, or accept the same job from another process.

Any writer of `jobs/` may have forged a folder, so a submitter accepts only a description equal to its own, and gives
runners the SHA-256.
"""

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from loader.errors import Changed, Corrupt, JobFailed, ObjectNotFound
from loader.storage.disk.scratch import scratch_folder

from .job import FOLDER, Job, JobDescription, JobFolder, now_us
from .job_json import from_frame, from_json, to_frame, to_json
from .pool import Outcome
from .work import StoredPlace, Work, python_release, source_hash

U = TypeVar("U")
R = TypeVar("R")
MAX_UNITS = 256
MAX_COST_S = 120.0
"""Most estimated seconds in a block; a costlier unit gets its own block."""
MAX_NBYTES = 256 * 2**20
"""Most estimated output bytes in a block; a larger unit gets its own block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOutcomes(Generic[R]):
    """A finished block."""

    number: int
    """Number of the block in its job."""
    first: int
    """Number of the block's first unit in the job."""
    outcomes: list[Outcome[R]]
    """Outcomes, in unit order."""
    part: Any = None
    """Result of the work's `finish`, or None."""


def cut_blocks(work: Work[U, Any], units: Iterable[U]) -> Iterator[list[U]]:
    """Yield the units in blocks, in order. Memory: one block."""
    block: list[U] = []
    seconds = 0.0
    written = 0
    for unit in units:
        cost_s = work.cost_s(unit)
        nbytes = work.nbytes(unit)
        full = len(block) == MAX_UNITS or seconds + cost_s > MAX_COST_S or written + nbytes > MAX_NBYTES
        if block and full:
            yield block
            block = []
            seconds = 0.0
            written = 0
        block.append(unit)
        seconds = seconds + cost_s
        written = written + nbytes
    if block:
        yield block


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsFile:
    """A file of units: one frame per block, one line per unit."""

    sha256: str
    """SHA-256 hex of the file."""
    blocks: list[tuple[int, int, int]]
    """Per block: number of units, offset of its frame, and bytes."""
    frames: list[str]
    """SHA-256 hex of each block's frame."""


def write_units(work: Work[U, Any], units: Iterable[U], path: Path) -> UnitsFile:
    """Write units to a file. Memory: one block."""
    sha256 = hashlib.sha256()
    blocks = []
    frames = []
    offset = 0
    with path.open("wb") as file:
        for block in cut_blocks(work, units):
            frame = to_frame(map(to_json, block))
            sha256.update(frame)
            file.write(frame)
            blocks.append((len(block), offset, len(frame)))
            # A runner reads each frame long after the description: only its own hash shows that it was replaced.
            frames.append(hashlib.sha256(frame).hexdigest())
            offset += len(frame)
    return UnitsFile(sha256=sha256.hexdigest(), blocks=blocks, frames=frames)


Tell = Callable[[str], object]
MAX_OTHERS = 16
"""Most of a job's folders that may hold other work; more mean forgery."""
# `_has_units` compares the units: a later run of the same job may give them another run id.
_COMPARED = ("work", "name", "version", "code", "python", "stores")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted job."""

    folder: JobFolder
    """Folder of the first attempt whose id holds no other work."""
    description: JobDescription
    """Description that this process vouches for."""


def submit_job(
    job: Job[U, R],
    units: Callable[[], Iterable[U]],
    tell: Tell = _log.warning,
    *,
    anew: bool = False,
) -> Submission:
    """Submit a job, or return the same job if another process submitted it.

    A folder that holds other work stays; the job uses its next attempt's id. Memory: one block's units. tell: receives
    a line about each such folder. anew: if the job has ended, submit it again as the next attempt.

    Raises: InvalidRuntime if nodes cannot open a store or the work; JobFailed if too many folders hold other work.
    """
    # Raises before any unit is made.
    StoredPlace.of(job.store)
    n_others = 0
    with scratch_folder("job") as scratch:
        path = scratch / "units"
        new = _describe(job, write_units(job.work, units(), path))
        while True:
            folder = JobFolder(job.store, job.id)
            stored, why = _accept(job.work, folder, new, path, anew=anew)
            if stored is not None:
                return Submission(folder=folder, description=stored)
            job = replace(job, attempt=job.attempt + 1)
            if why:
                n_others += 1
                name_other(folder, why, tell, n_others)


def created(job: Job[U, R], units: Callable[[], Iterable[U]]) -> Submission | None:
    """Submit a job; return None if its folder already has a description. Raises: as `submit_job`."""
    StoredPlace.of(job.store)
    folder = JobFolder(job.store, job.id)
    with scratch_folder("job") as scratch:
        path = scratch / "units"
        new = _describe(job, write_units(job.work, units(), path))
        if folder.create(new, path) == new:
            return Submission(folder=folder, description=new)
        return None


def find_job(folder: JobFolder, sha256: str) -> Submission | None:
    """Return the job whose description has this SHA-256, or None if it is missing or differs."""
    try:
        return Submission(folder=folder, description=folder.find_description(sha256))
    except (ObjectNotFound, Changed):
        return None


def name_other(folder: JobFolder, why: str, tell: Tell, n_others: int) -> None:
    """Report a folder that holds other work. Raises: JobFailed if there are too many."""
    tell(
        f"{folder.key('')} in {folder.store.url} is not used: {why}. The job goes on as its next attempt; look at "
        f"it with penstock jobs show {folder.id}, and at who may write to {FOLDER} there"
    )
    if n_others >= MAX_OTHERS:
        raise JobFailed(
            f"{n_others} folders in {folder.store.url}/{FOLDER} have ids of one job and hold other work, the last is "
            f"{folder.id}: {why}. Find out who may write there, and run penstock jobs clear ID for each",
            what="folders",
            where=f"{folder.store.url}/{FOLDER}",
            given=n_others,
        )


def own_folders(job: Job[Any, Any]) -> Iterator[JobFolder]:
    """Yield a job's folders, for this attempt and later ones, if they hold its work and source tree.

    A job that found other work in its folder, or that was submitted anew, has a later attempt (`submit_job`).
    """
    code = source_hash(job.work.place)
    for attempt in range(job.attempt, job.attempt + MAX_OTHERS):
        folder = JobFolder(job.store, replace(job, attempt=attempt).id)
        try:
            stored = folder.description()
        except Corrupt:  # written by another program
            continue
        if stored is None:
            return  # attempts follow each other without a gap
        if (stored.work, stored.version, stored.code) == (job.work.place, job.work.version, code):
            yield folder


def _describe(job: Job[U, R], units: UnitsFile) -> JobDescription:
    return JobDescription(
        work=job.work.place,
        name=job.work.name,
        version=job.work.version,
        about=job.about,
        code=source_hash(job.work.place),
        python=python_release(),
        units=units.sha256,
        blocks=units.blocks,
        stores=[StoredPlace.of(store) for store in job.stores],
        at_us=now_us(),
        token=secrets.token_hex(4),
        frames=units.frames,
    )


def _accept(
    work: Work[U, Any], folder: JobFolder, new: JobDescription, path: Path, *, anew: bool
) -> tuple[JobDescription | None, str]:
    """Create the job in a folder, or accept the same job there. path: file of the units.

    Returns (description to run, ""); (None, "") if the job has ended and is wanted anew; else (None, why the folder is
    another job's).
    """
    try:
        stored = folder.description()
        others = [] if stored is None else _other_fields(new, stored)
        if stored is not None and not others and not folder.has_units(stored):
            folder.remove()  # the process that was removing it was killed
            stored = None
        if stored is None:
            if folder.create(new, path) == new:
                return new, ""
            return _accept(work, folder, new, path, anew=anew)  # another process was first
        if anew and _has_ended(folder, stored):
            return None, ""
        if not others and not _has_units(work, folder, new, stored, path):
            others = ["units"]
        if others:
            return None, f"it holds another job (other {', '.join(others)})"
        # By its hash: another writer may have replaced it since it was compared.
        return folder.find_description(stored.sha256), ""
    except (Changed, Corrupt) as error:
        return None, str(error)


def _other_fields(new: JobDescription, stored: JobDescription) -> list[str]:
    """Return the names of the compared fields in which two descriptions differ."""
    return [name for name in _COMPARED if to_json(getattr(new, name)) != to_json(getattr(stored, name))]


def _has_ended(folder: JobFolder, description: JobDescription) -> bool:
    """Return whether all blocks are done."""
    return len(folder.done(description)) == len(description.blocks)


def _has_units(
    work: Work[U, Any], folder: JobFolder, new: JobDescription, stored: JobDescription, path: Path
) -> bool:
    """Return whether a stored job has the same units: the same bytes, or units that are alike by the work's rule."""
    if (stored.units, stored.blocks, stored.frames) == (new.units, new.blocks, new.frames):
        return True
    if work.alike is None or [n for n, *_ in new.blocks] != [n for n, *_ in stored.blocks]:
        return False
    with path.open("rb") as file:
        for block, (_, _, nbytes) in enumerate(new.blocks):
            own = [from_json(line, work.unit, str(path)) for line in from_frame(file.read(nbytes), str(path))]
            theirs = folder.units(stored, block, work.unit)
            if [to_json(work.alike(one)) for one in own] != [to_json(work.alike(one)) for one in theirs]:
                return False
    return True
