"""The sample of a training's step that a search starts from."""

import math
import re

import loader
from loader.errors import InvalidRuntime

from ..replays.training import Training
from ..shown_values import version_of

LOSS = "loss"
_STEP = re.compile(r"[0-9]{1,18}", re.ASCII)


def parse_run_step(like: str) -> tuple[str, int] | None:
    """Return the run and step that `RUN@STEP` names; None for other texts. A key may have this form, too."""
    run, at, step = like.rpartition("@")
    if not at or not run or not _STEP.fullmatch(step):
        return None
    return run, int(step)


def worst_key(
    training: Training,
    step: int,
    dataset: str,
    slot: int | None = None,
) -> str:
    """Return the key of a slot of a step; None is the slot whose metric is not finite, or else largest.

    Raises: InvalidRuntime for a step without per-sample metrics, and for a sample of another dataset; as
    `loader.explain`.
    """
    run = training.name
    if slot is None:
        slot = worst_slot(training.largest(step))
        if slot is None:
            raise InvalidRuntime(
                f"step {step} of {run} has no per-sample metric: pass --slot N, or record the next training with "
                'note(per_sample={"loss": losses})'
            )
    plan = loader.plan_of(training.root, run, step)
    (explanation,) = loader.explain(plan, step, slot=slot)
    if explanation.dataset is not None or explanation.pieces:
        raise InvalidRuntime(
            f"slot {slot} of {run}@{step} is not a stored sample but of a dataset or a packed sequence: pass a key"
        )
    key = explanation.address.key
    version = version_of(plan, explanation.source)
    if version is None or version.dataset != dataset:
        # Two datasets may have the same keys.
        raise InvalidRuntime(
            f"slot {slot} of {run}@{step} is {key!r} of another dataset, not of {dataset}: pass a step with a sample "
            f"of {dataset}, or a key"
        )
    return key


def worst_slot(largest: dict[int, dict[str, float]]) -> int | None:
    """Return the slot with a value that is not finite, or else the largest one, of the loss if that is recorded.

    largest: slot -> metric -> value.
    """
    names = {name for metrics in largest.values() for name in metrics}
    # The loss comes first, then the others by name.
    ordered = sorted(names - {LOSS})
    if LOSS in names:
        ordered.insert(0, LOSS)
    ranked = []
    for slot, metrics in largest.items():
        for name, value in metrics.items():
            is_finite = math.isfinite(value)
            size = 0.0
            if is_finite:
                size = value
            entry = (
                is_finite,
                ordered.index(name),
                -size,
                slot,
            )
            ranked.append(entry)
    if not ranked:
        return None
    *_, slot = min(ranked)
    return slot
