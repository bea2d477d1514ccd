"""Submission of a job, or of what another process submitted before: only where it is the same work.

Any writer of `jobs/` may have forged a folder. A submitter computes the description itself, and takes a stored one
only if both agree. Runners get the SHA-256 of that description from their submitter, by the engine.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from loader.errors import Changed, Corrupt, JobFailed, ObjectNotFound
from loader.storage.disk.scratch import held_folder

from .blocks import UnitsFile, write_units
from .code import python_release, source_hash
from .job import FOLDER, Job, JobDescription, JobFolder, now_us
from .plain import from_frame, from_json, to_json
from .work import StoredPlace, Work

U = TypeVar("U")
R = TypeVar("R")
Tell = Callable[[str], object]
MAX_OTHERS = 16
"""Folders of other work under the ids of one job; with more of them somebody forges them."""
_COMPARED = ("work", "name", "version", "code", "python", "stores")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that was submitted."""

    folder: JobFolder
    """Its folder; its id has the number of the attempt at which no other work lay there."""
    description: JobDescription
    """Its description, which this process vouches for."""


def submitted(
    job: Job[U, R],
    units: Callable[[], Iterable[U]],
    tell: Tell = _log.warning,
    *,
    anew: bool = False,
) -> Submission:
    """Submit a job, or return the same one that another process submitted before.

    A folder of other work is named, stays, and this job goes on under the id of its next attempt. Memory: the units of
    one block.

    tell: takes a line about a folder of other work. anew: passes over the same job where it has ended.

    Raises: InvalidRuntime for a store or work that nodes cannot open or import; JobFailed for too many such folders.
    """
    StoredPlace.of(job.store)
    n_others = 0
    with held_folder("job") as scratch:
        path = scratch / "units"
        mine = _described(job, write_units(job.work, units(), path))
        while True:
            folder = JobFolder(job.store, job.id)
            found, why = _taken(job.work, folder, mine, path, anew=anew)
            if found is not None:
                return Submission(folder=folder, description=found)
            job = replace(job, attempt=job.attempt + 1)
            if why:
                n_others += 1
                name_other(folder, why, tell, n_others)


def created(job: Job[U, R], units: Callable[[], Iterable[U]]) -> Submission | None:
    """Submit a job; return None where its folder has a description. Raises: as `submitted`."""
    StoredPlace.of(job.store)
    folder = JobFolder(job.store, job.id)
    with held_folder("job") as scratch:
        path = scratch / "units"
        mine = _described(job, write_units(job.work, units(), path))
        return Submission(folder=folder, description=mine) if folder.create(mine, path) == mine else None


def recorded(folder: JobFolder, sha256: str) -> Submission | None:
    """Return a job whose description's SHA-256 was recorded elsewhere; None where its folder has no such one."""
    try:
        return Submission(folder=folder, description=folder.description_of(sha256))
    except (ObjectNotFound, Changed):
        return None


def name_other(folder: JobFolder, why: str, tell: Tell, n_others: int) -> None:
    """Name a folder of other work. Raises: JobFailed for one too many."""
    tell(
        f"{folder.key('')} in {folder.store.url} is left alone: {why}. The job goes on as its next attempt; look at "
        f"it with penstock jobs show {folder.id}, and at who may write to {FOLDER} there"
    )
    if n_others >= MAX_OTHERS:
        raise JobFailed(
            f"{n_others} folders in {folder.store.url}/{FOLDER} have ids of one job and hold other work, the last is "
            f"{folder.id}: {why}. Find out who may write there, and run penstock jobs clear ID for each"
        )


def own_folders(job: Job[Any, Any]) -> Iterator[JobFolder]:
    """Yield the folders of a job, of this attempt and later ones, that hold its work in this source tree."""
    code = source_hash(job.work.place)
    for attempt in range(job.attempt, job.attempt + MAX_OTHERS):
        folder = JobFolder(job.store, replace(job, attempt=attempt).id)
        try:
            found = folder.description()
        except Corrupt:  # somebody else's
            continue
        if found is None:
            return
        if (found.work, found.version, found.code) == (job.work.place, job.work.version, code):
            yield folder


def _described(job: Job[U, R], units: UnitsFile) -> JobDescription:
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


def _taken(
    work: Work[U, Any], folder: JobFolder, mine: JobDescription, path: Path, *, anew: bool
) -> tuple[JobDescription | None, str]:
    """Return the description to go on with, created where there is none.

    Or None and why the folder holds other work; "" for a job that has ended, where it is wanted anew.
    """
    try:
        found = folder.description()
        others = [] if found is None else _other_fields(mine, found)
        if found is not None and not others and not folder.has_units(found):
            folder.remove()  # who removed it was killed in the middle
            found = None
        if found is None:
            if folder.create(mine, path) == mine:
                return mine, ""
            return _taken(work, folder, mine, path, anew=anew)  # another process was first
        if anew and _has_ended(folder, found):
            return None, ""
        if not others and not _has_units_of(work, folder, mine, found, path):
            others = ["units"]
        if others:
            return None, f"it holds another job (other {', '.join(others)})"
        return folder.description_of(found.sha256), ""
    except (Changed, Corrupt) as error:
        return None, str(error)


def _other_fields(mine: JobDescription, found: JobDescription) -> list[str]:
    return [name for name in _COMPARED if to_json(getattr(mine, name)) != to_json(getattr(found, name))]


def _has_ended(folder: JobFolder, description: JobDescription) -> bool:
    return len(folder.done(description)) == len(description.blocks)


def _has_units_of(
    work: Work[U, Any], folder: JobFolder, mine: JobDescription, found: JobDescription, path: Path
) -> bool:
    """Return whether the stored units are this process's own but for what may differ. Costs a range per block then."""
    if (found.units, found.blocks, found.frames) == (mine.units, mine.blocks, mine.frames):
        return True
    if work.alike is None or [n for n, *_ in mine.blocks] != [n for n, *_ in found.blocks]:
        return False
    with path.open("rb") as file:
        for block, (_, _, nbytes) in enumerate(mine.blocks):
            own = [from_json(line, work.unit, str(path)) for line in from_frame(file.read(nbytes), str(path))]
            theirs = folder.units(found, block, work.unit)
            if [to_json(work.alike(one)) for one in own] != [to_json(work.alike(one)) for one in theirs]:
                return False
    return True
