"""Another sample in place of a corrupt one, by the plan's rule, on record."""

from typing import Any

import numpy as np

from ..dataset.address import SampleAddress
from ..dataset.read import Map
from ..errors import Corrupt
from ..order.slots import Slots
from ..order.substitutes import substitutes
from .addresses import addresses_of
from .fetch import Fetch
from .one_sample import OneSample
from .recipe import Recipe
from .step_metrics import StepMetrics
from .substitution import Substitution, error_text, stage_of


class Substitute:
    """Finds and makes substitutes of a recipe's corrupt samples; thread-safe."""

    def __init__(self, recipe: Recipe, fetch: Fetch, one_sample: OneSample, run: Map) -> None:
        self._recipe, self._views = recipe, recipe.views
        self._fetch, self._one_sample, self._run = fetch, one_sample, run

    def __call__(
        self,
        slots: Slots,
        slot: int,
        addresses: dict[int, SampleAddress],
        error: Corrupt,
        substitutions: list[Substitution],
        seen: StepMetrics,
    ) -> dict[str, Any]:
        """The first sample that can stand in for a slot's; it takes its place in `slots` and `addresses`. Raises: the
        slot's own error, where none can or none may."""
        if not self._recipe.substitute:
            raise error
        plan, source, position = self._recipe.plan, int(slots.source[slot]), int(slots.position[slot])
        why = error
        for attempt, view_ordinal, ordinal in substitutes(
            plan, seen.step, source, position, int(slots.attempt[slot])
        ):
            bad = addresses[slot]
            slots.attempt[slot], slots.view_ordinal[slot], slots.ordinal[slot] = (
                attempt,
                view_ordinal,
                ordinal,
            )
            with seen.timed("address"):
                addresses.update(addresses_of(self._views, slots, np.array([slot], np.int64), self._run))
            substitutions.append(
                Substitution(
                    step=seen.step,
                    slot=slot,
                    source=plan.source_names[source],
                    epoch=int(slots.epoch[slot]),
                    position=position,
                    attempt=attempt,
                    stage=stage_of(why),
                    error=error_text(why),
                    address=bad,
                    substitute=addresses[slot].key,
                    substitute_ordinal=ordinal,
                )
            )
            fetched = self._fetch(slots, {slot: addresses[slot]}, seen)[slot]
            sample = self._one_sample(slots, slot, addresses[slot], fetched, seen)
            if not isinstance(sample, Corrupt):
                return sample
            why = sample
        error.add_note(f"all of its substitutes are corrupt too, the last: {why}")
        raise error
