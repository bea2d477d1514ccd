"""A dataset that you bring, and how its items become samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.random import Generator

ItemKeys = Sequence[str] | Callable[[int], str]
"""Names of items: one per ordinal, or a function of the ordinal."""


class Dataset(Protocol):
    """The methods that a source calls, as torch's map-style datasets have them."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """Return an item: a mapping, a tuple or a single value."""


@dataclass(slots=True, kw_only=True, eq=False)
class ItemsSource:
    """A dataset, and how its items become samples.

    If nothing except the plan refers to a large dataset, `dataset` becomes a function that opens the workers' copy.
    """

    dataset: Any
    """A `Dataset`, or a function without arguments that opens one in each process."""
    is_factory: bool
    """True if `dataset` is such a function."""
    fields: tuple[str, ...] | None = None
    """Field of each entry of a tuple; None names them "0", "1", ..."""
    keys: ItemKeys | None = None
    """Names of the items; None: their ordinals."""
    seeded: bool | Callable[[Any, Generator], object] = True
    """True seeds the global generators. A function seeds the dataset's own. False accepts draws that differ."""
    collate: Callable[[list[Any]], Any] | None = None
    """Joins the items of a rank's part of a step; None: the batch has fields only."""
