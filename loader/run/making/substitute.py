"""Another sample in place of a corrupt one, by the plan's rule, on record."""

from typing import Any

from ...dataset.reading.verified_bucket_reads import Map
from ...errors import Corrupt
from ...order.steps.slots import substitutes
from ..batch.batch import StepMetrics
from ..batch.columns import BatchRow
from ..batch.substitution import Substitution, error_text, stage_of
from ..recipe.rank_slots import Located, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch
from .many_samples import OneSample


class Substitute:
    """Finds and makes substitutes of a recipe's corrupt samples; thread-safe."""

    def __init__(self, recipe: Recipe, fetch: Fetch, one_sample: OneSample, run: Map) -> None:
        self._recipe = recipe
        self._fetch, self._one_sample, self._run = fetch, one_sample, run

    def __call__(
        self,
        rank_slots: RankSlots,
        located: Located,
        number: int,
        error: Corrupt,
        batch_row: BatchRow,
        seen: StepMetrics,
    ) -> tuple[Located, dict[str, Any], list[Substitution]]:
        """Return the first sample that can stand in for a slot's, by itself, its values, and the substitutions tried.

        It takes the slot in `rank_slots`. Raises: the slot's own error, where none can or none may.
        """
        if not self._recipe.substitute:
            raise error
        plan, slots = self._recipe.plan, rank_slots.slots
        row, source = int(located.rows[number]), int(located.source[number])
        step, position = rank_slots.step_of(row), int(slots.position[row])
        substitutions: list[Substitution] = []
        why, bad = error, located.places.address(number)
        for attempt, view_ordinal, ordinal in substitutes(
            plan, step, source, position, int(slots.attempt[row])
        ):
            slots.attempt[row], slots.view_ordinal[row], slots.ordinal[row] = attempt, view_ordinal, ordinal
            with seen.timed("address"):
                alone = self._fetch.locate.again(slots, row, self._run)
            substitutions.append(
                Substitution(
                    step=step,
                    slot=int(rank_slots.number[row]),
                    source=plan.source_names[source],
                    epoch=int(slots.epoch[row]),
                    position=position,
                    attempt=attempt,
                    stage=stage_of(why),
                    error=error_text(why),
                    address=bad,
                    substitute=alone.places.key(0),
                    substitute_ordinal=ordinal,
                )
            )
            fetched = self._fetch(slots, alone, None, seen)
            sample = fetched.bad.get(0) or self._one_sample(
                slots, alone, 0, fetched.payloads[0], batch_row, seen
            )
            if not isinstance(sample, Corrupt):
                return alone, sample, substitutions
            why, bad = sample, alone.places.address(0)
        error.add_note(f"all of its substitutes are corrupt too, the last: {why}")
        raise error
