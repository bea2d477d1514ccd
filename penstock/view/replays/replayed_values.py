"""Replayed values of a slot or a rank's batch, and functions that run in the process with the values."""

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
"""(plan, values) -> what the caller needs; picklable for a `RecipeProcess`."""
PartDigest = tuple[int, int, int, int]
"""For `Replay.settle`: (rank, world size, digest, substituted slots)."""
Texts = Mapping[str, Mapping[int, str]]
"""Field -> token -> text, of the recipe's tokenizers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A plan and the options that affect replayed values."""

    plan: str
    """Plan hash."""
    framework: str = "numpy"
    """Array library."""
    epochs: int | None = None
    """The Loader's; later slots are padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotValues:
    """A slot, decoded and transformed."""

    step: int
    """Global step."""
    slot: int
    """Global slot."""
    source: str
    """Source name in the plan."""
    epoch: int
    """Epoch of the source."""
    position: int
    """In the source's stream."""
    attempt: int
    """0 if planned; else the substitute's number."""
    address: SampleAddress
    """Its bytes; without fields for a packed sequence."""
    decoded: Mapping[str, Any] = field(repr=False)
    """Fields before the transform; empty if unreadable."""
    trained: Mapping[str, Any] = field(repr=False)
    """Fields after the transform, if there is one."""
    draws: tuple[str, ...] = ()
    """From the sample's generator, by the transform, as text."""
    repeats: bool = True
    """True if a second transform gave equal values."""
    error: str = ""
    """Why `decoded` or `trained` is empty, or ""."""
    settled: bool | None = True
    """`Replay.settle`: True if substitutions are known."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Image field in `trained` -> place in the decoded image."""
    texts: Texts = field(default_factory=dict)
    """Its tokens'."""
    restored: Mapping[str, str] = field(default_factory=dict)
    """Field -> text of all its tokens, without special ones."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Partly decoded field -> text about its length."""


TakeValues = Callable[[int, Mapping[str, Any], Texts], None]
"""(slot within the part, values of some fields, their tokens' texts) -> None."""


class PartValues(Protocol):
    """A rank's part of a step, one slot's values in memory at a time."""

    @property
    def step(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def first_slot(self) -> int:
        """In the global batch."""

    @property
    def settled(self) -> bool | None: ...

    @property
    def digest(self) -> int:
        """See `BatchValues`. This and the following are known after `each`."""

    @property
    def crc32c(self) -> Mapping[str, int]:
        """Each batched field's."""

    @property
    def ids(self) -> list[tuple[str, str] | None]:
        """(source, key) per slot; None for padding."""

    @property
    def errors(self) -> Mapping[int, str]:
        """Global slot -> read error."""

    @property
    def cut(self) -> Mapping[int, Mapping[str, str]]:
        """Slot of the part -> partly decoded field -> text about its length."""

    def source(self, slot: int) -> str: ...

    def names(self) -> list[str]:
        """Return every field, by first appearance."""

    def each(self, take: TakeValues) -> None:
        """Pass every slot's values to `take`, in one or two calls per slot."""

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        """Return field -> CRC-32C of a slot, as `tensor_crcs`."""

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Replay some slots, and pass their large values to `take`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchValues:
    """A rank's part of a step, as the training's `Batch`."""

    step: int
    """Global step."""
    rank: int
    """Rank."""
    world_size: int
    """Number of ranks."""
    first_slot: int
    """Over all ranks."""
    digest: int
    """Samples' 64-bit digest."""
    crc32c: Mapping[str, int]
    """Each batched field's, as a run log records it."""
    ids: list[tuple[str, str] | None]
    """(source, key) per slot; None for padding."""
    slots: list[Mapping[str, Any]] = field(repr=False)
    """Field -> transformed value, per slot: views of the batch; empty for padding."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Global slot -> read error."""
    settled: bool | None = True
    """`Replay.settle`: True if substitutions are known."""
    texts: Texts = field(default_factory=dict)
    """Decoded text of its tokens."""
    cut: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Always empty; see `PartValues`."""

    def source(self, slot: int) -> str:
        """Return a slot's; "" for padding."""
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
    return values


def slot_itself(plan: "loader.Plan", values: SlotValues) -> SlotValues:
    """Return tensors as arrays, because unpickling a tensor would import torch."""
    decoded, trained = (
        {name: _detached(value) for name, value in sample.items()}
        for sample in (values.decoded, values.trained)
    )
    return replace(values, decoded=decoded, trained=trained)


def batch_itself(plan: "loader.Plan", values: BatchValues) -> BatchValues:
    """Return separate arrays, because pickling a tensor's view would pickle its whole batch."""
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
