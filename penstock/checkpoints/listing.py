"""What checkpoints are under a root, complete or not, and whether their bytes are what was written. Without torch."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from loader.storage import Store

from .marker import Checkpoint, Stored, read, runs, steps
from .retention import remains
from .several import several

_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One step of a run. found: what its marker says, or None; problem: why it cannot be loaded, or ""; unfinished: it
    has no marker; nbytes: of all its objects that are there."""

    run: str
    step: int
    found: Checkpoint | None
    problem: str
    unfinished: bool
    nbytes: int


def listed(store: Store, run: str | None = None) -> Iterator[Listed]:
    """Every step of a run, or of all, with a marker or with parts; by run and step.

    Two listings for each run and a request for each marker. Raises: StoreError.
    """
    for name in [run] if run is not None else list(runs(store)):
        sizes: dict[int, dict[str, int]] = {step: {} for step in steps(store, name)}
        committed = set(sizes)
        for step, one in remains(store, name):
            sizes.setdefault(step, {})[one.key] = one.nbytes
        for step in sorted(sizes):
            yield _look(store, name, step, sizes[step], step in committed)


def damaged(store: Store, checkpoints: Iterable[Checkpoint]) -> Iterator[tuple[Checkpoint, Stored, str]]:
    """(checkpoint, object, what is wrong or "") of every object, read whole, a few at once; 1 MiB of memory each.

    Raises: StoreError other than ObjectNotFound.
    """
    objects = ((checkpoint, one) for checkpoint in checkpoints for one in checkpoint.objects)
    return several(lambda pair: (*pair, _problem(store, pair[0].key(pair[1]), pair[1])), objects)


def _look(store: Store, run: str, step: int, sizes: dict[str, int], committed: bool) -> Listed:
    found, nbytes = None, sum(sizes.values())
    problem = "no marker: being written, or a save that was killed"
    if committed:
        try:
            found = read(store, run, step)
            wrong = [one for one in found.objects if sizes.get(found.key(one)) != one.nbytes]
            problem = (
                f"{len(wrong)} of {len(found.objects)} objects are missing or of another size"
                if wrong
                else ""
            )
        except (Corrupt, FormatTooNew) as error:
            problem = str(error)
    return Listed(run=run, step=step, found=found, problem=problem, unfinished=not committed, nbytes=nbytes)


def _problem(store: Store, key: str, one: Stored) -> str:
    digest, nbytes = hashlib.sha256(), 0
    try:
        with store.open_stream(key) as stream:
            while data := stream.read(_READ_BYTES):
                digest.update(data)
                nbytes += len(data)
    except ObjectNotFound:
        return "it is not there"
    if nbytes != one.nbytes:
        return f"it has {nbytes} bytes, and {one.nbytes} were written"
    return "" if digest.hexdigest() == one.sha256 else "its SHA-256 is not that of what was written"
