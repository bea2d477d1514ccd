"""Values of a slot and of a rank's batch, and functions that run where the values are."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import loader
from loader.dataset.shards.address import SampleAddress
from loader.run.trail.slot_columns import tensor_crcs

from .image_placement import Placement

V = TypeVar("V")
T = TypeVar("T")
Take = Callable[["loader.Plan", V], T]
"""Function of a plan and values that returns the needed part. One for a `RecipeProcess` must be picklable."""
PartDigest = tuple[int, int, int, int]
"""A part of a step on a trail: (rank, world size, digest, substituted slots), for `Replay.settle`."""
Texts = Mapping[str, Mapping[int, str]]
"""Field -> token -> its text, for fields with a tokenizer in the recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A plan, and the options of a training that change its replayed values."""

    plan: str
    """Plan hash."""
    framework: str = "numpy"
    """Library of the arrays."""
    epochs: int | None = None
    """`epochs` of the Loader; later slots are padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotValues:
    """One slot of a step, decoded and trained."""

    step: int
    """Global step."""
    slot: int
    """Global slot."""
    source: str
    """Source in the plan."""
    epoch: int
    """Epoch of the source."""
    position: int
    """Position in the source's stream."""
    attempt: int
    """0, or the number of the substitute."""
    address: SampleAddress
    """Location of the sample's bytes; a packed sequence has no fields."""
    decoded: Mapping[str, Any] = field(repr=False)
    """Field -> value before the transform; empty if the sample is unreadable."""
    trained: Mapping[str, Any] = field(repr=False)
    """Field -> value after the transform; empty without one."""
    draws: tuple[str, ...] = ()
    """Random draws of the transform from the sample's generator, as text."""
    repeats: bool = True
    """True if a second run of the transform gave equal values."""
    error: str = ""
    """Why `decoded` or `trained` is empty."""
    settled: bool | None = True
    """True if the substitutions of the run are known; False or None as `Replay.settle`."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Image field of `trained` -> its position in the decoded image."""
    texts: Texts = field(default_factory=dict)
    """Texts of its tokens."""
    restored: Mapping[str, str] = field(default_factory=dict)
    """Field of `decoded` -> text of all its tokens, without special ones."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Partly decoded field -> length text."""


TakeValues = Callable[[int, Mapping[str, Any], Texts], None]
"""Function of a slot of a part (from 0), values of some of its fields, and texts of their tokens."""


class PartValues(Protocol):
    """A rank's part of a step, with the values of one slot in memory at a time."""

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
        """First slot in the global batch."""

    @property
    def settled(self) -> bool | None:
        """As in `BatchValues`."""

    @property
    def digest(self) -> int:
        """As in `BatchValues`. This and the following are known after `each`."""

    @property
    def crc32c(self) -> Mapping[str, int]:
        """Field -> CRC-32C of its column."""

    @property
    def ids(self) -> list[tuple[str, str] | None]:
        """(source, key) per slot; None at padding."""

    @property
    def errors(self) -> Mapping[int, str]:
        """Slot of the global batch -> why its sample is unreadable."""

    @property
    def cut(self) -> Mapping[int, Mapping[str, str]]:
        """Slot of the part -> partly decoded field -> length text."""

    def source(self, slot: int) -> str:
        """Return the source of a slot of the part."""

    def names(self) -> list[str]:
        """Return every field, in order of first appearance."""

    def each(self, take: TakeValues) -> None:
        """Pass the values of every slot to `take`, in one or two calls per slot."""

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        """Return field -> CRC-32C of values of a slot, as `tensor_crcs`."""

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Pass the large values of some slots again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchValues:
    """A rank's part of a step, as the training's `Batch` held it."""

    step: int
    """Global step."""
    rank: int
    """Rank."""
    world_size: int
    """Number of ranks."""
    first_slot: int
    """First slot, over all ranks."""
    digest: int
    """64-bit digest of the samples."""
    crc32c: Mapping[str, int]
    """Field -> CRC-32C of its column, as a trail records it."""
    ids: list[tuple[str, str] | None]
    """(source, key) per slot; None at padding."""
    slots: list[Mapping[str, Any]] = field(repr=False)
    """Per slot, field -> value after the transform, a view of the batch's; empty at padding."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Slot of the global batch -> why its sample is unreadable."""
    settled: bool | None = True
    """True if the substitutions of the run are known; False or None as `Replay.settle`."""
    texts: Texts = field(default_factory=dict)
    """Texts of its tokens."""
    cut: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """As in `PartValues`; empty."""

    def source(self, slot: int) -> str:
        """Return the source of a slot of the part; "" at padding."""
        sample_id = self.ids[slot]
        return sample_id[0] if sample_id else ""

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for sample in self.slots for name in sample))

    def each(self, take: TakeValues) -> None:
        self.again(range(len(self.slots)), take)

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        return tensor_crcs(sample)

    def again(self, slots: Container[int], take: TakeValues) -> None:
        for slot, sample in enumerate(self.slots):
            if slot in slots:
                take(slot, sample, self.texts)


def itself(plan: "loader.Plan", values: V) -> V:
    """Return the values unchanged."""
    return values


def slot_itself(plan: "loader.Plan", values: SlotValues) -> SlotValues:
    """Return the values with arrays for tensors: unpickling a tensor imports torch."""
    decoded, trained = (
        {name: _detached(value) for name, value in sample.items()}
        for sample in (values.decoded, values.trained)
    )
    return replace(values, decoded=decoded, trained=trained)


def batch_itself(plan: "loader.Plan", values: BatchValues) -> BatchValues:
    """Return the values as separate arrays: pickling a view of a tensor would pickle its batch."""
    slots: list[Mapping[str, Any]] = [
        {name: _detached(value) for name, value in sample.items()} for sample in values.slots
    ]
    return replace(values, slots=slots)


def _detached(value: Any) -> Any:
    if not hasattr(value, "clone"):
        return value
    copy = value.detach().clone()
    try:
        return copy.numpy(force=True)
    except TypeError:  # numpy has no bfloat16
        return copy
