"""Values of one slot and of a rank's batch, and functions that are carried out where they are."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import loader
from loader.dataset.shards.address import SampleAddress
from loader.run.trail.slot_columns import tensor_crcs

from .picture_placement import Placement

V = TypeVar("V")
T = TypeVar("T")
Take = Callable[["loader.Plan", V], T]
"""Function of a plan and of values, for the part of them that is wanted. One for a `RecipeProcess` can be pickled."""
Told = tuple[int, int, int, int]
"""A part of a step on a trail: (rank, world size, digest, substituted slots), as `Replay.settle` takes it."""
Texts = Mapping[str, Mapping[int, str]]
"""Field -> token -> its text, of the fields that the recipe has a tokenizer for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A plan, and the options of a training that change what a look at it makes."""

    plan: str
    """Hash of the plan."""
    framework: str = "numpy"
    """Library of the arrays."""
    epochs: int | None = None
    """`epochs` of the Loader, behind which slots are padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotValues:
    """One slot of a step, decoded and trained."""

    step: int
    """Global step."""
    slot: int
    """Number of the slot in the global batch."""
    source: str
    """Name of the plan's source."""
    epoch: int
    """Epoch of the source."""
    position: int
    """Position in the source's stream."""
    attempt: int
    """0, or the number of the substitute."""
    address: SampleAddress
    """Place of the sample's bytes; a packed sequence has no fields."""
    decoded: Mapping[str, Any] = field(repr=False)
    """Field -> value before the transform; empty where the sample cannot be read."""
    trained: Mapping[str, Any] = field(repr=False)
    """Field -> value after the transform; empty where there is none."""
    draws: tuple[str, ...] = ()
    """Draws of the transform from the sample's generator, in words."""
    repeats: bool = True
    """True where a second run of the transform gave the same values."""
    error: str = ""
    """The reason why `decoded` or `trained` is empty."""
    settled: bool | None = True
    """True where the substitutions that the run had are found; False, or None, as `Replay.settle`."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Field of `trained` that holds a picture -> its place in the decoded picture of that name."""
    texts: Texts = field(default_factory=dict)
    """Texts of its tokens."""
    restored: Mapping[str, str] = field(default_factory=dict)
    """Field of `decoded` -> text of its tokens, decoded at once without special ones."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Field whose beginning alone was decoded -> its length in words."""


TakeValues = Callable[[int, Mapping[str, Any], Texts], None]
"""Function of a slot of a part, from 0, of values of some of its fields, and of the texts of their tokens."""


class PartValues(Protocol):
    """A rank's part of a step, of which the values of one slot are in memory at a time."""

    @property
    def step(self) -> int:
        """Global step."""

    @property
    def rank(self) -> int:
        """Data-parallel rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def first_slot(self) -> int:
        """Number of the first slot in the global batch."""

    @property
    def settled(self) -> bool | None:
        """As in `BatchValues`."""

    @property
    def digest(self) -> int:
        """As in `BatchValues`; known after `each`, as all that follow."""

    @property
    def crc32c(self) -> Mapping[str, int]:
        """Field -> CRC-32C of its column."""

    @property
    def ids(self) -> list[tuple[str, str] | None]:
        """(source, key) per slot; None at padding."""

    @property
    def errors(self) -> Mapping[int, str]:
        """Slot of the global batch -> the reason why its sample cannot be read any more."""

    @property
    def cut(self) -> Mapping[int, Mapping[str, str]]:
        """Slot of the part -> field whose beginning alone was decoded -> its length in words."""

    def source(self, slot: int) -> str:
        """Return the source of a slot of the part that `each` gives."""

    def names(self) -> list[str]:
        """Return every field, in the order in which the samples brought them up."""

    def each(self, take: TakeValues) -> None:
        """Give the values of every slot to `take`, those of a slot at once or in two calls. None is kept."""

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        """Return field -> CRC-32C of some values that `each` gave of a slot, as `tensor_crcs`."""

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Give the values of some slots once more: those that take memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchValues:
    """A rank's part of a step, as the training's `Batch` held it."""

    step: int
    """Global step."""
    rank: int
    """Data-parallel rank."""
    world_size: int
    """Number of ranks."""
    first_slot: int
    """Number of the first slot in the global batch."""
    digest: int
    """64-bit digest of the samples that were read."""
    crc32c: Mapping[str, int]
    """Field -> CRC-32C of its column, as a trail records it."""
    ids: list[tuple[str, str] | None]
    """(source, key) per slot; None at padding."""
    slots: list[Mapping[str, Any]] = field(repr=False)
    """Per slot, field -> its value after the transform, a view of the batch's; empty at padding."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Slot of the global batch -> the reason why its sample cannot be read any more."""
    settled: bool | None = True
    """True where the substitutions that the run had are found; False, or None, as `Replay.settle`."""
    texts: Texts = field(default_factory=dict)
    """Texts of its tokens."""
    cut: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Slot of the part -> field whose beginning alone was decoded -> its length in words: of none, of a whole batch."""

    def source(self, slot: int) -> str:
        """Return the source of a slot of the part; "" at padding."""
        who = self.ids[slot]
        return who[0] if who else ""

    def names(self) -> list[str]:
        """Return every field, in the order in which the slots have them."""
        return list(dict.fromkeys(name for sample in self.slots for name in sample))

    def each(self, take: TakeValues) -> None:
        """Give the values of every slot to `take`."""
        self.again(range(len(self.slots)), take)

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        """Return field -> CRC-32C of values."""
        return tensor_crcs(sample)

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Give the values of some slots to `take`."""
        for slot, sample in enumerate(self.slots):
            if slot in slots:
                take(slot, sample, self.texts)


def itself(plan: "loader.Plan", values: V) -> V:
    """Return the values: a `Take` of everything."""
    return values


def slot_itself(plan: "loader.Plan", values: SlotValues) -> SlotValues:
    """Return the values, with arrays for tensors: to read a pickled tensor is to import torch."""
    decoded, trained = (
        {name: _alone(value) for name, value in sample.items()} for sample in (values.decoded, values.trained)
    )
    return replace(values, decoded=decoded, trained=trained)


def batch_itself(plan: "loader.Plan", values: BatchValues) -> BatchValues:
    """Return the values as arrays, each with memory of its own: a view of a tensor travels with its whole batch."""
    slots: list[Mapping[str, Any]] = [
        {name: _alone(value) for name, value in sample.items()} for sample in values.slots
    ]
    return replace(values, slots=slots)


def _alone(value: Any) -> Any:
    if not hasattr(value, "clone"):
        return value
    alone = value.detach().clone()
    try:
        return alone.numpy(force=True)
    except TypeError:  # numpy has no bfloat16
        return alone
