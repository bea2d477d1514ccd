"""Proofs that a batch shown is the batch that was trained on: planned, bytes, code, tensors.

Each of them is proved, disproved, or could not be tried, and says why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loader.order.steps.slots import rank_slice
from loader.run.replay import Functions
from loader.run.trail.start_record import CodeFacts

from ...text import clean
from ...units import shortened
from ..json_record import Record
from ..replays.replayed_values import SlotValues
from ..replays.training import Row, Training, crcs
from .shown_batch import ShownBatch

PartOf = Callable[[int, int], tuple[ShownBatch, str]]
"""Function of a rank and a world size, for that part of a step and the reason why it is without the recipe."""
WHOLE = 2**64
UNDECIDED = "the ledger lists substitutions of all runs of the plan: too many to tell which this run had"
STAGES = {
    "trained": "values as trained: replayed, and proved",
    "transformed": "values after the transform of --recipe, not proved to be those of the training",
    "decoded": "decoded values, without a transform",
}
"""Stage -> the same in words. `trained` is said of what was replayed and proved, and of nothing else."""
NO_LEDGER = "the ledgers of this root have no such substitutions. Of Loader(ledger=...): penstock trail verify --ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Record):
    """One proof."""

    name: str
    """`planned`, `bytes`, `code` or `tensors`."""
    proved: bool | None
    """True, False, or None where it could not be tried."""
    text: str
    """The reason, or the thing that was compared."""


def proofs(
    training: Training, batch: ShownBatch, functions: Functions | None, trouble: str = ""
) -> tuple[Proof, ...]:
    """Return the four proofs of a batch. functions: facts of the recipe; None where none was given.

    trouble: the reason why `batch` is not of the recipe.
    """
    recorded = training.recorded(batch.step)
    return (
        _planned(training, batch),
        _bytes(training, batch, recorded),
        _code(training, batch.step, functions, trouble),
        _tensors(training, batch, recorded, functions, trouble),
    )


def stage_of(training: Training, step: int, found: tuple[Proof, ...], *, recipe: bool) -> str:
    """Return the stage of a batch's values: one of `STAGES`. recipe: True where its functions made them."""
    start, proved = training.start(step), {one.name: one.proved for one in found}
    unproved = "transformed" if recipe else "decoded"
    if start is None or training.untrained(step) or (start.transforms and not recipe):
        return unproved
    same = proved["tensors"] or (proved["tensors"] is None and proved["code"])
    return "trained" if proved["bytes"] and same else unproved


def slot_stage(
    training: Training, values: SlotValues, functions: Functions | None, trouble: str, part: PartOf | None
) -> str:
    """Return the stage of a slot's values. part: makes a rank's part of the step, with the reason why without recipe.

    The part is made only where the trail has checksums of its tensors; else the digest is, from indexes alone.
    """
    step, recipe = values.step, functions is not None and not trouble
    start, told = training.start(step), training.told(step)
    unproved = "transformed" if recipe else "decoded"
    if start is None or not told or (start.transforms and not recipe):
        return unproved
    if trouble or values.error or values.cut or not values.repeats:
        return unproved
    world_size, n = told[0][1], training.plan(step).batch_size(step)
    mine = [one for one in told if values.slot in _slots(n, one[0], world_size)]
    if not mine:
        return unproved
    rank, _, digest, _ = mine[0]
    rows = [row for row in training.recorded(step) if (row["rank"], row["world_size"]) == (rank, world_size)]
    if any(map(crcs, rows)):
        if part is None:
            return unproved
        batch, why = part(rank, world_size)
        return stage_of(training, step, proofs(training, batch, functions, why), recipe=recipe)
    same = training.digest(step, rank, world_size) == digest
    return "trained" if same and _code(training, step, functions, trouble).proved else unproved


def _slots(n: int, rank: int, world_size: int) -> range:
    part = rank_slice(n, rank, world_size)
    return range(part.start, part.stop)


def _planned(training: Training, batch: ShownBatch) -> Proof:
    plan, untrained = training.plan(batch.step), training.untrained(batch.step)
    verb = "would put" if untrained else "puts"
    text = f"plan {plan.hash[:14]} {verb} these samples into step {batch.step}"
    if untrained:
        text += f"; {untrained}"
    # The question for a run with a trail is the batch that was trained on, and there is none.
    return Proof(name="planned", proved=None if untrained and training.trail else True, text=text)


def _bytes(training: Training, batch: ShownBatch, recorded: list[Row]) -> Proof:
    def proof(proved: bool | None, text: str) -> Proof:
        return Proof(name="bytes", proved=proved, text=text)

    if batch.errors:
        return proof(False, f"samples cannot be read any more: slots {shortened(list(batch.errors))}")
    if not recorded:
        return _by_metrics(training, batch)
    mine = [row for row in recorded if (row["rank"], row["world_size"]) == (batch.rank, batch.world_size)]
    if mine:
        wanted = {int(row["digest"]) for row in mine}
        if batch.settled is None and batch.digest not in wanted:
            return proof(None, UNDECIDED)
        whose = f"rank {batch.rank} of {batch.world_size}"
        if batch.settled is False and batch.digest not in wanted:
            whose += f", with {mine[-1]['substituted']} substituted slots: {NO_LEDGER}"
        return _compared(proof, {batch.digest}, wanted, whose)
    # A digest is a sum over ranks: those that are recorded are made anew, from indexes alone.
    told = training.told(batch.step)
    if not told:
        return proof(None, "what the trail has of this step is of another plan")
    world = told[0][1]
    ranks = {rank: digest for rank, _, digest, _ in told}
    with training.settled(batch.step) as replay:
        now = {rank: replay.digest(batch.step, rank, world) for rank in ranks}
        whole = replay.digest(batch.step) if len(ranks) == world else None
    if whole is not None and whole != sum(now.values()) % WHOLE:
        return proof(False, f"the digests of {world} ranks do not add up to the step's")
    if now != ranks:
        differ = [rank for rank in ranks if now[rank] != ranks[rank]]
        if batch.settled is None:
            return proof(None, UNDECIDED)
        return proof(False, f"digests differ from the trail's at ranks {shortened(differ)} of {world}")
    n_told = "all" if len(ranks) == world else str(len(ranks))
    proved = True if len(ranks) == world else None
    return proof(proved, f"digests of {n_told} ranks of {world} are the trail's")


def _by_metrics(training: Training, batch: ShownBatch) -> Proof:
    """Return the proof of a step that no trail has: a metrics file may have the digest of this part, or of the step."""
    step, metrics = batch.step, training.metrics
    if metrics is None or step not in metrics.digests:
        return Proof(name="bytes", proved=None, text=training.missing(f"step {step}"))
    rank, world = batch.rank, batch.world_size
    told = f"{clean(metrics.name, 100)} has digest {clean(metrics.digests[step], 40)}"
    if metrics.has_digest(step, batch.digest):
        return Proof(name="bytes", proved=True, text=f"{told}, that of rank {rank} of {world}")
    if metrics.has_digest(step, training.digest(step, 0, 1)):
        return Proof(name="bytes", proved=True, text=f"{told}, that of the whole step")
    if rank and metrics.has_digest(step, training.digest(step, 0, world)):
        return Proof(name="bytes", proved=None, text=f"{told}, that of rank 0 of {world}")
    with training.using(step) as replay:
        if replay.substituted(step):
            text = f"{told}, another one; the ledger lists substitutions of the step, of all runs of the plan"
            return Proof(name="bytes", proved=None, text=text)
    text = (
        f"{told}, neither the whole step's nor that of rank {rank} of {world}, {batch.digest:016x}; where another "
        "rank or world size wrote it, show that part"
    )
    return Proof(name="bytes", proved=False, text=text)


def _compared(
    proof: Callable[[bool | None, str], Proof], now: set[int], wanted: set[int], whose: str
) -> Proof:
    told, then = (", ".join(f"{one:016x}" for one in sorted(some)) for some in (now, wanted))
    if now == wanted:
        return proof(True, f"digest {told} is the one that the trail has of {whose}")
    if now & wanted:
        return proof(
            True, f"digest {told} is one of {len(wanted)} that the trail has of {whose}: it was repeated"
        )
    return proof(False, f"digest {told}; the trail has {then} of {whose}")


def _code(training: Training, step: int, functions: Functions | None, trouble: str) -> Proof:
    def proof(proved: bool | None, text: str) -> Proof:
        return Proof(name="code", proved=proved, text=text)

    start, untrained = training.start(step), training.untrained(step)
    if start is None:
        return proof(None, training.missing("its functions"))
    if untrained:
        return proof(None, untrained)
    if functions is None:
        if trouble:
            return proof(None, trouble)
        if start.transforms:
            return proof(
                None, f"the transform is not run without --recipe {start.recipe or 'module:function'}"
            )
    then = Functions(transforms=start.transforms, decoders=start.decoders, libraries=start.libraries)
    now = functions or training.functions(step)
    for what in Functions._fields:
        was, found = _facts(getattr(then, what)), _facts(getattr(now, what))
        differ = [key for key in sorted({*was, *found}) if was.get(key) != found.get(key)]
        if differ:
            told = ", ".join(
                f"{key}: {found.get(key, 'none')} now, {was.get(key, 'none')} then" for key in differ[:3]
            )
            more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
            return proof(False, f"{what} differ: {told}{more}")
    return proof(True, "the transform's module, the decoders and the libraries are those of the training")


def _facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> facts in words. A function's module is left out: that of a script is `__main__`."""
    told = {}
    for key, one in found.items():
        if isinstance(one, CodeFacts):
            told[key or "all buckets"] = (
                f"{one.name.rpartition(':')[2]} {one.sha256[:12]} {one.options}".strip()
            )
        elif isinstance(one, Mapping):
            told[key] = "; ".join(f"{label}={text}" for label, text in sorted(_facts(one).items()))
        else:
            told[key] = str(one)
    return told


def _tensors(
    training: Training, batch: ShownBatch, recorded: list[Row], functions: Functions | None, trouble: str
) -> Proof:
    def proof(proved: bool | None, text: str) -> Proof:
        return Proof(name="tensors", proved=proved, text=text)

    if not recorded:
        return proof(None, "nothing is recorded of this step")
    own = [row for row in recorded if (row["rank"], row["world_size"]) == (batch.rank, batch.world_size)]
    known = [found for row in own if (found := crcs(row))]
    if not known:
        ranks = sorted({(row["rank"], row["world_size"]) for row in recorded if crcs(row)})
        if ranks:
            return proof(
                None, f"checksums are of rank {ranks[0][0]} of {ranks[0][1]}: look at that part of the step"
            )
        return proof(None, "no checksums of this step: Trail(tensors_every=1) takes them at every step")
    if trouble:
        return proof(None, trouble)
    if any(one == dict(batch.crc32c) for one in known):
        return proof(
            True, f"CRC-32C of {', '.join(sorted(batch.crc32c))} are the trail's: bit for bit the same"
        )
    start = training.start(batch.step)
    if functions is None and start is not None and start.transforms:
        return proof(None, "the transform is not run without --recipe")
    if batch.cut:
        told = ", ".join(clean(name, 80) for name in batch.cut)
        return proof(
            None, f"{told}: of long sounds the beginning is decoded, which has no checksum on the trail"
        )
    last = known[-1]
    differ = sorted(name for name in {*last, *batch.crc32c} if last.get(name) != batch.crc32c.get(name))
    return proof(False, f"CRC-32C of {', '.join(differ)} differ from the trail's")
