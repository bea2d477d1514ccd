"""List and verify the checkpoints under a root. Does not need torch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from loader.errors import CheckpointNotFound, Corrupt, FormatTooNew
from loader.storage import Store
from loader.storage.mirror import primary_store

from ..units import second
from .marker import Checkpoint, StoredObject, object_problem, read, runs, steps
from .ranks import map_in_order
from .retention import remains
from .set_aside import is_record, read_record

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
    set_aside: bool = False
    """Was set aside; another checkpoint of the step may be a row of its own."""


def list_steps(store: Store, run: str | None = None) -> Iterator[ListedStep]:
    """Yield steps with a marker or parts, in one run or in all.

    Costs two listings per run and one request per marker. With mirrors, reads the primary. Raises: CheckpointNotFound;
    StoreError.
    """
    store = primary_store(store)
    for name in [run] if run is not None else list(runs(store)):
        sizes: dict[int, dict[str, int]] = {step: {} for step in finished_steps(store, name)}
        committed = set(sizes)
        # Listed after the markers: a save that commits meanwhile then looks unfinished, never damaged.
        for step, leftover in remains(store, name):
            sizes.setdefault(step, {})[leftover.key] = leftover.nbytes
        for step in sorted(sizes):
            aside = [key for key in sizes[step] if is_record(key)]
            for key in aside:
                yield _set_aside(store, name, step, key, sizes[step])
            # The objects that remain after the rows above belong to a save of its own, running or finished.
            if not aside or sizes[step] or step in committed:
                yield _list_step(store, name, step, sizes[step], step in committed)


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


def check_objects(
    store: Store, checkpoints: Iterable[Checkpoint]
) -> Iterator[tuple[Checkpoint, StoredObject, str]]:
    """Yield (checkpoint, object, problem or ""). Reads whole objects in 1 MiB blocks.

    With mirrors, reads the primary. Raises: StoreError.
    """
    store = primary_store(store)
    objects = ((checkpoint, one) for checkpoint in checkpoints for one in checkpoint.objects)

    def check(pair: tuple[Checkpoint, StoredObject]) -> tuple[Checkpoint, StoredObject, str]:
        checkpoint, stored = pair
        return checkpoint, stored, object_problem(store, checkpoint.key(stored), stored)

    return map_in_order(check, objects)


def _set_aside(store: Store, run: str, step: int, key: str, sizes: dict[str, int]) -> ListedStep:
    """Return the row of a checkpoint that was set aside, and take its objects out of `sizes`."""
    nbytes = sizes.pop(key)
    try:
        record = read_record(store, key)
        names = record.names
        problem = f"set aside by {record.by} {second(record.at_us)}: {record.reason}"
    except Corrupt as error:
        names = frozenset()
        problem = f"set aside: {error}"
    folder = key.rpartition("/")[0]
    nbytes += sum(sizes.pop(f"{folder}/{name}", 0) for name in names)
    return ListedStep(
        run=run, step=step, checkpoint=None, problem=problem, unfinished=True, nbytes=nbytes, set_aside=True
    )


def _list_step(store: Store, run: str, step: int, sizes: dict[str, int], committed: bool) -> ListedStep:
    """Return the row of a step. sizes: key -> bytes of its objects, by a listing. committed: it has a marker."""
    checkpoint = None
    nbytes = sum(sizes.values())
    problem = "no marker: the save is running, or was killed"
    if committed:
        try:
            checkpoint = read(store, run, step)
            # Sizes come from the listing at no cost. `check_objects` also reads the bytes.
            wrong = [one for one in checkpoint.objects if sizes.get(checkpoint.key(one)) != one.nbytes]
            problem = ""
            if wrong:
                problem = f"{len(wrong)} of {len(checkpoint.objects)} objects are missing or of another size"
        except (Corrupt, FormatTooNew) as error:
            problem = str(error)
    return ListedStep(
        run=run, step=step, checkpoint=checkpoint, problem=problem, unfinished=not committed, nbytes=nbytes
    )
