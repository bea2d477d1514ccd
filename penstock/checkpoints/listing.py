"""List and verify the checkpoints under a root. Does not need torch."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from loader.errors import CheckpointNotFound, Corrupt, FormatTooNew, ObjectNotFound
from loader.storage import Store
from loader.storage.mirror import primary_of

from .marker import Checkpoint, StoredObject, read, runs, steps
from .ranks import several
from .retention import remains

_READ_BYTES = 2**20
_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStep:
    """One step of a run."""

    run: str
    """The run's name."""
    step: int
    """Completed steps."""
    checkpoint: Checkpoint | None
    """Its marker's content; None if missing or unreadable."""
    problem: str
    """Why it cannot be loaded, or ""."""
    unfinished: bool
    """Has no marker."""
    nbytes: int
    """Bytes of its objects."""


def listed_steps(store: Store, run: str | None = None) -> Iterator[ListedStep]:
    """Yield steps with a marker or parts, in one run or in all.

    Costs two listings per run and one request per marker. With mirrors, reads the primary. Raises: CheckpointNotFound;
    StoreError.
    """
    store = primary_of(store)
    for name in [run] if run is not None else list(runs(store)):
        sizes: dict[int, dict[str, int]] = {step: {} for step in finished_steps(store, name)}
        committed = set(sizes)
        for step, leftover in remains(store, name):
            sizes.setdefault(step, {})[leftover.key] = leftover.nbytes
        for step in sorted(sizes):
            yield _listed_step(store, name, step, sizes[step], step in committed)


def finished_steps(store: Store, run: str) -> list[int]:
    """Return a run's steps that have a marker, ascending; empty during the first save.

    Raises: CheckpointNotFound if the run has no objects.
    """
    finished_steps = steps(store, run)
    if not finished_steps and next(store.list(f"checkpoints/{run}/"), None) is None:
        there = list(islice(runs(store), _NAMED + 1))
        named = ", ".join(there[:_NAMED]) + (" ..." if len(there) > _NAMED else "")
        raise CheckpointNotFound(
            f"{store.url} has no run {run!r}; its runs: {named or 'none'}. Check the name, and that --root is "
            "the root that the training saves to"
        )
    return finished_steps


def checked_objects(
    store: Store, checkpoints: Iterable[Checkpoint]
) -> Iterator[tuple[Checkpoint, StoredObject, str]]:
    """Yield (checkpoint, object, problem or ""). Reads whole objects in 1 MiB blocks.

    With mirrors, reads the primary. Raises: StoreError.
    """
    store = primary_of(store)
    objects = ((checkpoint, one) for checkpoint in checkpoints for one in checkpoint.objects)
    return several(lambda pair: (*pair, _problem(store, pair[0].key(pair[1]), pair[1])), objects)


def _listed_step(store: Store, run: str, step: int, sizes: dict[str, int], committed: bool) -> ListedStep:
    checkpoint, nbytes = None, sum(sizes.values())
    problem = "no marker: the save is running, or was killed"
    if committed:
        try:
            checkpoint = read(store, run, step)
            wrong = [one for one in checkpoint.objects if sizes.get(checkpoint.key(one)) != one.nbytes]
            problem = (
                f"{len(wrong)} of {len(checkpoint.objects)} objects are missing or of another size"
                if wrong
                else ""
            )
        except (Corrupt, FormatTooNew) as error:
            problem = str(error)
    return ListedStep(
        run=run, step=step, checkpoint=checkpoint, problem=problem, unfinished=not committed, nbytes=nbytes
    )


def _problem(store: Store, key: str, stored: StoredObject) -> str:
    digest, nbytes = hashlib.sha256(), 0
    try:
        with store.open_stream(key) as stream:
            while data := stream.read(_READ_BYTES):
                digest.update(data)
                nbytes += len(data)
    except ObjectNotFound:
        return "the object is missing"
    if nbytes != stored.nbytes:
        return f"it has {nbytes} bytes; {stored.nbytes} were written"
    return "" if digest.hexdigest() == stored.sha256 else "its SHA-256 differs from the recorded one"
