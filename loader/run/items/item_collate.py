"""Call your `collate` with the items of a step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import InvalidRuntime
from ...order.plan import Plan
from ...order.random.generators import collate_words
from ...order.sources.items_view import ItemsView
from ..recipe.recipe import Recipe
from .item_seeds import ItemSeeds, Words
from .open_dataset import ITEM_TURN


class ItemCollate:
    """Joins the items of one rank's part of a step.

    The global generators are seeded for it as for items: MixUp draws the same numbers after a resume.
    """

    def __init__(
        self,
        plan: Plan,
        source_name: str,
        collate: Callable[[list[Any]], Any],
    ) -> None:
        self._plan = plan
        self._name = source_name
        self._collate = collate
        self._seeds = ItemSeeds()

    def __call__(
        self,
        step: int,
        slot: int,
        items: Sequence[Any],
    ) -> Any:
        """Return the function's result. slot: first slot of the part. Raises: the function's errors, with a note."""

        def words() -> Words:
            slots = np.array([slot], np.int64)
            return collate_words(
                self._plan.seed,
                self._name,
                step,
                slots,
            )

        def make(number: int) -> Any:
            return self._collate(list(items))

        try:
            with ITEM_TURN:
                (result,) = self._seeds.make(
                    1,
                    words,
                    lambda: [make(0)],
                    make,
                )
        except Exception as error:
            error.add_note(
                f"while collate joined {len(items)} items of source {self._name!r} for step {step}"
            )
            raise
        return result


def item_collate(recipe: Recipe) -> ItemCollate | None:
    """Return the recipe's `collate`, if there is one. Raises: InvalidRuntime for a mixture."""
    plan = recipe.plan
    for name, source in plan.sources.items():
        view = source.view
        if not isinstance(view, ItemsView) or view.source is None or view.source.collate is None:
            continue
        if len(plan.sources) > 1:
            raise InvalidRuntime(
                f"source {name!r} has collate=, and the plan {len(plan.sources)} sources: a batch of a mixture has "
                "samples of several. Leave collate= out, and join the batch's fields in the training's loop, or pad "
                "in Loader(transform=)",
                what="collate",
                where=f"source {name!r}",
                given=len(plan.sources),
                accepted="a plan of 1 source",
            )
        return ItemCollate(plan, name, view.source.collate)
    return None
