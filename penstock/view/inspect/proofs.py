"""Prove that a displayed batch is the one trained on, by its plan, bytes, code and tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loader.order.slots import rank_slice
from loader.run.replay import Functions
from loader.run.trail.trail import CodeFacts

from ...text import clean
from ...units import shorten_list
from ..json_record import JsonRecord
from ..replays.replayed_values import SlotValues
from ..replays.training import Row, Training, crcs
from ..shown_values import dataset_facts
from .shown_batch import ShownBatch

PartOf = Callable[[int, int], tuple[ShownBatch, str]]
"""(rank, world size) -> (that part of a step, recipe error or "")."""
WHOLE = 2**64
UNDECIDED = "the ledger lists substitutions of all runs of the plan: too many to single out this run's"
STAGES = {
    "trained": "values as trained: replayed, and proved",
    "transformed": "values after the transform of --recipe, not proved to equal the training's",
    "decoded": "decoded values, without a transform",
    "planned": "the order, without values: items of a dataset are made by --recipe",
}
"""Stage -> description. Only values replayed and proved are `trained`."""
NO_LEDGER = "the ledgers of this root lack these substitutions; for Loader(ledger=...): penstock trail verify --ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(JsonRecord):
    name: str
    """`planned`, `bytes`, `code` or `tensors`."""
    proved: bool | None
    """None if undecided."""
    text: str
    """Reason, or the compared facts."""


Verdict = tuple[bool | None, str]
"""(proved, text) of a proof."""


def proofs(
    training: Training, batch: ShownBatch, functions: Functions | None, trouble: str = ""
) -> tuple[Proof, ...]:
    """Return a batch's four proofs. trouble: recipe error, or ""."""
    recorded = training.stored_rows(batch.step)
    verdicts = {
        "planned": _plan_verdict(training, batch),
        "bytes": _bytes(training, batch, recorded),
        "code": _code(training, batch.step, functions, trouble),
        "tensors": _tensors(training, batch, recorded, functions, trouble),
    }
    return tuple(Proof(name=name, proved=proved, text=text) for name, (proved, text) in verdicts.items())


def batch_stage(training: Training, step: int, results: tuple[Proof, ...], *, recipe: bool) -> str:
    """Return a batch's key in `STAGES`. recipe: True if it produced the values."""
    start = training.start(step)
    proved = {one.name: one.proved for one in results}
    unproved = "transformed" if recipe else "decoded"
    if start is None or training.untrained(step) or (start.transforms and not recipe):
        return unproved
    same = proved["tensors"] or (proved["tensors"] is None and proved["code"])
    return "trained" if proved["bytes"] and same else unproved


def slot_stage(
    training: Training, values: SlotValues, functions: Functions | None, trouble: str, part: PartOf | None
) -> str:
    """Return a slot's key in `STAGES`.

    part: called only if the run log has tensor checksums; otherwise the digest, recomputed from indexes, decides.
    """
    step = values.step
    recipe = functions is not None and not trouble
    start = training.start(step)
    digests = training.part_digests(step)
    unproved = "transformed" if recipe else "decoded"
    if values.missing:
        return "planned"
    if start is None or not digests or (start.transforms and not recipe):
        return unproved
    if trouble or values.error or values.cut or not values.repeats:
        return unproved
    world_size = digests[0][1]
    n = training.plan(step).batch_size(step)
    matching = [one for one in digests if values.slot in _slots(n, one[0], world_size)]
    if not matching:
        return unproved
    rank, _, digest, _ = matching[0]
    recorded = training.stored_rows(step)
    rows = [row for row in recorded if (row["rank"], row["world_size"]) == (rank, world_size)]
    if any(map(crcs, rows)) or dataset_facts(training.plan(step)):  # the part's digest is one of items
        if part is None:
            return unproved
        batch, why = part(rank, world_size)
        return batch_stage(training, step, proofs(training, batch, functions, why), recipe=recipe)
    same = training.digest(step, rank, world_size) == digest
    if same and _code(training, step, functions, trouble)[0]:
        return "trained"
    return unproved


def _slots(n: int, rank: int, world_size: int) -> range:
    part = rank_slice(n, rank, world_size)
    return range(part.start, part.stop)


def _plan_verdict(training: Training, batch: ShownBatch) -> Verdict:
    plan = training.plan(batch.step)
    untrained = training.untrained(batch.step)
    verb = "would put" if untrained else "puts"
    text = f"plan {plan.hash[:14]} {verb} these samples into step {batch.step}"
    if untrained:
        text += f"; {untrained}"
    # For a run with a log, the plan proves nothing about a step that was not trained.
    return (None if untrained and training.trail else True), text


def _bytes(training: Training, batch: ShownBatch, recorded: list[Row]) -> Verdict:
    if batch.errors:
        return False, f"unreadable samples: slots {shorten_list(list(batch.errors))}"
    if batch.digest is None:
        return None, _not_made(batch, recorded)
    if not recorded:
        return _by_metrics(training, batch)
    own = [row for row in recorded if (row["rank"], row["world_size"]) == (batch.rank, batch.world_size)]
    if own:
        recorded_digests = {int(row["digest"]) for row in own}
        if batch.settled is None and batch.digest not in recorded_digests:
            return None, UNDECIDED
        whose = f"rank {batch.rank} of {batch.world_size}"
        if batch.settled is False and batch.digest not in recorded_digests:
            whose += f", with {own[-1]['substituted']} substituted slots: {NO_LEDGER}"
        return _compare({batch.digest}, recorded_digests, whose)
    # Digests add up over ranks, so the recorded ranks' digests can be recomputed from indexes and compared.
    digests = training.part_digests(batch.step)
    if not digests:
        return None, "the trail has this step only under another plan"
    world = digests[0][1]
    ranks = {rank: digest for rank, _, digest, _ in digests}
    if dataset_facts(training.plan(batch.step)):
        return _by_sum(batch, ranks, world)
    with training.settled_replay(batch.step) as replay:
        now = {rank: replay.digest(batch.step, rank, world) for rank in ranks}
        whole = None
        if len(ranks) == world:
            whole = replay.digest(batch.step)
    if whole is not None and whole != sum(now.values()) % WHOLE:
        return False, f"the digests of {world} ranks do not add up to the step's"
    if now != ranks:
        differ = [rank for rank in ranks if now[rank] != ranks[rank]]
        if batch.settled is None:
            return None, UNDECIDED
        return False, f"digests differ from the trail's at ranks {shorten_list(differ)} of {world}"
    n_ranks = "all"
    if len(ranks) != world:
        n_ranks = str(len(ranks))
    proved = True if len(ranks) == world else None
    return proved, f"digests of {n_ranks} ranks of {world} equal the trail's"


def _not_made(batch: ShownBatch, recorded: list[Row]) -> str:
    """Return why a part without its items has no digest, and the digest that the run log records."""
    names = ", ".join(clean(source, 80) for source in batch.missing)
    text = f"no digest: the items of {names} are not made"
    for row in recorded:
        if (row["rank"], row["world_size"]) == (batch.rank, batch.world_size):
            text += (
                f"; the trail records {int(row['digest']):016x} of rank {batch.rank} of {batch.world_size}"
            )
            break
    return text


def _by_sum(batch: ShownBatch, ranks: Mapping[int, int], world_size: int) -> Verdict:
    """Compare a whole step with the sum of its ranks' recorded digests: items of other parts are not made."""
    if batch.world_size == 1 and len(ranks) == world_size:
        recorded_sum = sum(ranks.values()) % WHOLE
        whose = f"{world_size} ranks together"
        return _compare({batch.digest or 0}, {recorded_sum}, whose)
    return None, f"the trail has parts of {world_size} ranks: open rank {min(ranks)} of {world_size}"


def _by_metrics(training: Training, batch: ShownBatch) -> Verdict:
    step = batch.step
    metrics = training.metrics
    if metrics is None or step not in metrics.digests:
        return None, training.missing(f"step {step}")
    rank = batch.rank
    world = batch.world_size
    fact = f"{clean(metrics.name, 100)} has digest {clean(metrics.digests[step], 40)}"
    assert batch.digest is not None
    if metrics.has_digest(step, batch.digest):
        return True, f"{fact}, as rank {rank} of {world}"
    if dataset_facts(training.plan(step)):
        return None, f"{fact}; this part's is {batch.digest:016x}: open the part that wrote it"
    if metrics.has_digest(step, training.digest(step, 0, 1)):
        return True, f"{fact}, as the whole step"
    if rank and metrics.has_digest(step, training.digest(step, 0, world)):
        return None, f"{fact}, as rank 0 of {world}"
    with training.open_replay(step) as replay:
        if replay.substituted(step):
            text = (
                f"{fact}, which differs; the ledger lists substitutions of the step by all runs of the plan"
            )
            return None, text
    text = (
        f"{fact}, which is neither the whole step's nor {batch.digest:016x} of rank {rank} of {world}; "
        "if another rank or world size wrote it, open that part"
    )
    return False, text


def _compare(now: set[int], recorded: set[int], whose: str) -> Verdict:
    now_text, recorded_text = (
        ", ".join(f"{one:016x}" for one in sorted(digests)) for digests in (now, recorded)
    )
    if now == recorded:
        return True, f"digest {now_text} equals the trail's of {whose}"
    if now & recorded:
        return (
            True,
            f"digest {now_text} is one of {len(recorded)} on the trail of {whose}: the step was repeated",
        )
    return False, f"digest {now_text}; the trail has {recorded_text} of {whose}"


def _code(training: Training, step: int, functions: Functions | None, trouble: str) -> Verdict:
    start = training.start(step)
    untrained = training.untrained(step)
    if start is None:
        return None, training.missing("its functions")
    if untrained:
        return None, untrained
    if functions is None:
        if trouble:
            return None, trouble
        if why := _needs_recipe(training, step):
            return None, why
    then = Functions(transforms=start.transforms, decoders=start.decoders, libraries=start.libraries)
    now = functions or training.functions(step)
    for what in Functions._fields:
        was = _facts(getattr(then, what))
        current = _facts(getattr(now, what))
        differ = [key for key in sorted({*was, *current}) if was.get(key) != current.get(key)]
        if differ:
            changes = ", ".join(
                f"{key}: {current.get(key, 'none')} now, {was.get(key, 'none')} then" for key in differ[:3]
            )
            more = ""
            if len(differ) > 3:
                more = f" and {len(differ) - 3} more"
            return False, f"{what} differ: {changes}{more}"
    return True, "the transform's module, the decoders and the libraries equal the training's"


def _needs_recipe(training: Training, step: int) -> str:
    """Return which of the training's functions need its recipe; "" if none does."""
    start = training.start(step)
    if start is None:
        return ""
    option = f"--recipe {start.recipe or 'module:function'}"
    if start.transforms:
        return f"the transform does not run without {option}"
    fields = training.fields_of_user_code(step)
    if not fields:
        return ""
    names = ", ".join(clean(name, 80) for name in fields[:3])
    more = ""
    if len(fields) > 3:
        more = f" and {len(fields) - 3} more"
    return f"the decoders of {names}{more} do not run without {option}"


def _facts(facts: Mapping[str, Any]) -> dict[str, str]:
    # A function's module is left out, because in a script it is `__main__`.
    texts = {}
    for key, fact in facts.items():
        if isinstance(fact, CodeFacts):
            texts[key or "all buckets"] = (
                f"{fact.name.rpartition(':')[2]} {fact.sha256[:12]} {fact.options}".strip()
            )
        elif isinstance(fact, Mapping):
            texts[key] = "; ".join(f"{label}={text}" for label, text in sorted(_facts(fact).items()))
        else:
            texts[key] = str(fact)
    return texts


def _tensors(
    training: Training, batch: ShownBatch, recorded: list[Row], functions: Functions | None, trouble: str
) -> Verdict:
    if not recorded:
        return None, "this step is not recorded"
    if batch.missing:
        return None, "items are not made"
    own = [row for row in recorded if (row["rank"], row["world_size"]) == (batch.rank, batch.world_size)]
    known = [checksums for row in own if (checksums := crcs(row))]
    if not known:
        ranks = sorted({(row["rank"], row["world_size"]) for row in recorded if crcs(row)})
        if ranks:
            return None, f"checksums are of rank {ranks[0][0]} of {ranks[0][1]}: open that part of the step"
        return None, "no checksums of this step: Trail(tensors_every=1) takes them at every step"
    if trouble:
        return None, trouble
    if any(one == dict(batch.crc32c) for one in known):
        return True, f"CRC-32C of {', '.join(sorted(batch.crc32c))} equal the trail's, bit for bit"
    if functions is None and (why := _needs_recipe(training, batch.step)):
        return None, why
    if batch.cut:
        fields = ", ".join(clean(name, 80) for name in batch.cut)
        return (
            None,
            f"{fields}: only the beginning of long audio is decoded, which has no checksum on the trail",
        )
    last = known[-1]
    differ = sorted(name for name in {*last, *batch.crc32c} if last.get(name) != batch.crc32c.get(name))
    return False, f"CRC-32C of {', '.join(differ)} differ from the trail's"
