"""Copy checkpoints between stores: every object is hashed on its way, and the marker comes last.

A killed copy leaves objects without a marker, which no reader sees; the next one hashes these and copies the rest. A
claim beside them keeps a training that saves there from deleting them as leftovers.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from loader.dataset.root import Root
from loader.errors import AlreadyExists, CheckpointNotFound, Conflict, Corrupt, PenstockError
from loader.storage import Store, is_there
from loader.storage.mirror import primary_store

from ..checkpoints import marker
from ..checkpoints.listing import finished_steps
from ..checkpoints.marker import Checkpoint, StoredObject
from ..checkpoints.ranks import AT_ONCE, map_in_order
from ..checkpoints.retention import COPYING
from ..places import check_apart
from ..progress import progress
from ..upkeep.copying.copy_many import copy_here
from ..upkeep.copying.copy_one import Transfer
from ..upkeep.copying.items import Item, Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCopy:
    """A checkpoint that the target has now."""

    run: str
    """Run name."""
    step: int
    """Number of completed steps."""
    objects: int
    """Number of its objects."""
    copied: int
    """Number of objects that this call copied; the others were there, and intact."""
    nbytes: int
    """Bytes of the copied objects."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def copy_checkpoints(
    source: Store, target: Root, run: str, step: int | None = None
) -> Iterator[CheckpointCopy]:
    """Copy a step of a run, or all its steps, and yield each once the target has it. Makes the target a root.

    Memory: four parts of 64 MiB; a larger part passes through a local file. Steps of a run only go up: one below the
    target's newest is not copied, unless the target has it.

    Costs per step a few requests and listings, and per part one read and one write.

    Raises: CheckpointNotFound; Corrupt for a part that differs from its marker, which is not copied; Conflict if the
    target has another checkpoint of the step, or a later one; StoreError.
    """
    source = primary_store(source)
    store = primary_store(target.store)
    check_apart(source, store, "Name another root for the copies")
    steps = [step] if step is not None else finished_steps(source, run)
    if not steps:
        raise CheckpointNotFound(f"{source.url}: run {run!r} has no finished checkpoint yet")
    target.create()
    for number in steps:
        yield _copy(source, store, marker.read(source, run, number))


def _copy(source: Store, target: Store, checkpoint: Checkpoint) -> CheckpointCopy:
    run = checkpoint.run
    step = checkpoint.step
    data = marker.encode(checkpoint)
    if odd := [part.name for part in checkpoint.objects if "/" in part.name]:
        raise Corrupt(
            f"{source.url}: step {step} of run {run!r} names {odd[0]!r}, which is not a part's name",
            what="name of a part",
            where=f"{source.url}: step {step} of run {run!r}",
            given=odd[0],
        )
    key = marker.marker_key(run, step)
    claim = marker.part_key(run, step, COPYING)
    if is_there(target, key):
        _check_same(target, key, data)
        if _is_whole(target, checkpoint):
            target.delete_many([claim])
            return CheckpointCopy(run=run, step=step, objects=len(checkpoint.objects), copied=0, nbytes=0)
        # A marker whose parts are gone must not stand while they are copied again.
        target.delete_many([key])
    _check_newest(target, checkpoint)
    # Before the parts: without it a training that saves there takes them for leftovers.
    target.put(claim, b"")
    transfer = Transfer(source, target, Pace())
    failures = list[PenstockError]()
    missing = _missing(target, checkpoint, transfer)
    items = (
        Item(path=checkpoint.key(part), nbytes=part.nbytes, digest=f"sha256:{part.sha256}")
        for part in missing
    )
    arrivals = copy_here(items, transfer, lambda path, error, nbytes: failures.append(error), at_once=AT_ONCE)
    nbytes = sum(part.nbytes for part in missing)
    for _ in progress(arrivals, f"{run} step {step}", size=lambda copied: copied.nbytes, total=nbytes):
        if failures:
            break
    if failures:
        raise failures[0]
    # Once more: a training may have saved a later step during the copy.
    _check_newest(target, checkpoint)
    try:
        target.put_if_absent(key, data)
    except AlreadyExists:
        _check_same(target, key, data)
    else:
        _check_or_withdraw(target, checkpoint)
    target.delete_many([claim])
    return CheckpointCopy(
        run=run, step=step, objects=len(checkpoint.objects), copied=len(missing), nbytes=nbytes
    )


def _missing(target: Store, checkpoint: Checkpoint, transfer: Transfer) -> list[StoredObject]:
    """Return the objects that the target lacks; deletes damaged ones, which no marker names."""
    prefix = marker.part_key(checkpoint.run, checkpoint.step, "")
    present = {info.key for info in target.list(prefix)}

    def is_intact(part: StoredObject) -> bool:
        return transfer.digest(target, checkpoint.key(part)) == f"sha256:{part.sha256}"

    there = [part for part in checkpoint.objects if checkpoint.key(part) in present]
    # A killed copy may have left a part whose bytes changed since: hash it before it counts.
    damaged = {part for part, intact in zip(there, map_in_order(is_intact, there), strict=True) if not intact}
    target.delete_many(checkpoint.key(part) for part in damaged)
    return [part for part in checkpoint.objects if checkpoint.key(part) not in present or part in damaged]


def _check_same(target: Store, key: str, data: bytes) -> None:
    if target.get(key).data != data:
        raise Conflict(
            f"{target.url}/{key} is another checkpoint of this step: copy to another root, or delete it there",
            where=f"{target.url}/{key}",
            accepted="the same checkpoint",
        )


def _check_newest(target: Store, checkpoint: Checkpoint) -> None:
    newest = max(marker.steps(target, checkpoint.run), default=-1)
    if newest > checkpoint.step:
        raise Conflict(
            f"{target.url}: run {checkpoint.run!r} has a checkpoint of step {newest}, and its steps only go up; step "
            f"{checkpoint.step} was not copied: copy it to another root",
            what="step",
            where=f"{target.url}: run {checkpoint.run!r}",
            given=checkpoint.step,
            accepted=f"above {newest}",
        )


def _check_or_withdraw(target: Store, checkpoint: Checkpoint) -> None:
    """Delete the marker unless the copy is whole: a training of an earlier release may have deleted its parts."""
    try:
        _check_newest(target, checkpoint)
        if not _is_whole(target, checkpoint):
            raise Conflict(
                f"{target.url}: parts of step {checkpoint.step} of run {checkpoint.run!r} were deleted"
            )
    except BaseException:
        target.delete_many([marker.marker_key(checkpoint.run, checkpoint.step)])
        raise


def _is_whole(target: Store, checkpoint: Checkpoint) -> bool:
    """Return whether all objects are there, by one listing."""
    infos = target.list(marker.part_key(checkpoint.run, checkpoint.step, ""))
    sizes = {info.key: info.nbytes for info in infos}
    return all(sizes.get(checkpoint.key(part)) == part.nbytes for part in checkpoint.objects)
