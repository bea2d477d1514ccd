"""Make items that draw the same numbers wherever they are made, and leave the training's generators as they are.

Before an item, the global generators are seeded from (seed, source, epoch, ordinal). Seeding all three costs 9 us, as
much as several small items, so a generator is seeded only once items were seen to move it. After each batch its state
is compared, for 60 us in all. If it moved, it is put back, and the batch is made again with that generator seeded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .global_generators import GENERATORS, GlobalGenerator, State

Words = Sequence[tuple[int, int]]
"""Two 64-bit numbers for each item."""


class ItemSeeds:
    """Seeds the global generators for one source's items. Used by one thread at a time."""

    def __init__(self) -> None:
        self._drawn: list[GlobalGenerator] = []
        """Generators that an item was seen to move."""

    @property
    def names(self) -> list[str]:
        """Names of the generators that items draw from."""
        return [generator.name for generator in self._drawn]

    def make(
        self,
        n: int,
        words: Callable[[], Words],
        make_all: Callable[[], list[Any]],
        make_one: Callable[[int], Any],
    ) -> list[Any]:
        """Return n items, each with its own draws.

        words: returns the numbers that seed each item. make_all: makes all items at once, while none draws. make_one:
        makes one item, by its number in the batch. Raises: their errors; the generators have their former state.
        """
        with _preserve_states() as states:
            while True:
                items = self._items(n, words, make_all, make_one)
                moved = self._find_moved(states)
                if not moved:
                    return items
                for generator in moved:
                    if generator in states:
                        generator.restore(states[generator])
                self._drawn += moved

    def _items(
        self,
        n: int,
        words: Callable[[], Words],
        make_all: Callable[[], list[Any]],
        make_one: Callable[[int], Any],
    ) -> list[Any]:
        if not self._drawn:
            return make_all()
        items = []
        for number, words_of_item in zip(range(n), words(), strict=True):
            for generator in self._drawn:
                generator.seed(words_of_item)
            items.append(make_one(number))
        return items

    def _find_moved(self, states: dict[GlobalGenerator, State]) -> list[GlobalGenerator]:
        """Return generators that items moved, and that were not seeded."""
        moved = []
        for generator in GENERATORS:
            if generator in self._drawn or not generator.is_loaded():
                continue
            # An item imported the module: whether it drew from it is unknown.
            if generator not in states or not generator.has_state(states[generator]):
                moved.append(generator)
        return moved


@contextmanager
def _preserve_states() -> Iterator[dict[GlobalGenerator, State]]:
    """Put all global generators back afterwards; yields the state of each that is loaded."""
    states = {generator: generator.state() for generator in GENERATORS if generator.is_loaded()}
    try:
        yield states
    finally:
        for generator, state in states.items():
            generator.restore(state)
