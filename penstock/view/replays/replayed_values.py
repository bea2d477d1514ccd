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
"""Function (plan, values) -> what the caller needs. For a `RecipeProcess`, it must be picklable."""
PartDigest = tuple[int, int, int, int]
"""A recorded part of a step, for `Replay.settle`: (rank, world size, digest, number of substituted slots)."""
Texts = Mapping[str, Mapping[int, str]]
"""Field -> token -> decoded text, for fields with a tokenizer in the recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A plan, and the training options that affect replayed values."""

    plan: str
    """Plan hash."""
    framework: str = "numpy"
    """Array library."""
    epochs: int | None = None
    """The Loader's `epochs`. Later slots are padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotValues:
    """One slot of a step, decoded and transformed."""

    step: int
    """Global step."""
    slot: int
    """Global slot."""
    source: str
    """Source name in the plan."""
    epoch: int
    """Epoch of the source."""
    position: int
    """Position in the source's stream."""
    attempt: int
    """0 if planned; else the substitute's number."""
    address: SampleAddress
    """Location of the sample's bytes; without fields for a packed sequence."""
    decoded: Mapping[str, Any] = field(repr=False)
    """Field -> value before the transform; empty if the sample is unreadable."""
    trained: Mapping[str, Any] = field(repr=False)
    """Field -> value after the transform; empty if there is no transform."""
    draws: tuple[str, ...] = ()
    """Random draws that the transform made from the sample's generator, as text."""
    repeats: bool = True
    """True if a second run of the transform gave equal values."""
    error: str = ""
    """Reason that `decoded` or `trained` is empty, or ""."""
    settled: bool | None = True
    """Result of `Replay.settle`: True if the run's substitutions are known."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Image field in `trained` -> its placement in the decoded image."""
    texts: Texts = field(default_factory=dict)
    """Decoded text of its tokens."""
    restored: Mapping[str, str] = field(default_factory=dict)
    """Field in `decoded` -> text decoded from all its tokens, without special tokens."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Partly decoded field -> text about its length."""


TakeValues = Callable[[int, Mapping[str, Any], Texts], None]
"""Function (slot within the part, values of some of its fields, texts of their tokens) -> None."""


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
        """See `BatchValues`."""

    @property
    def digest(self) -> int:
        """See `BatchValues`. This and the following properties are known after `each`."""

    @property
    def crc32c(self) -> Mapping[str, int]:
        """Field -> CRC-32C of the batched field."""

    @property
    def ids(self) -> list[tuple[str, str] | None]:
        """(source, key) per slot; None for padding."""

    @property
    def errors(self) -> Mapping[int, str]:
        """Slot of the global batch -> read error of its sample."""

    @property
    def cut(self) -> Mapping[int, Mapping[str, str]]:
        """Slot of the part -> partly decoded field -> text about its length."""

    def source(self, slot: int) -> str:
        """Return the source of a slot in the part."""

    def names(self) -> list[str]:
        """Return every field, in order of first appearance."""

    def each(self, take: TakeValues) -> None:
        """Pass every slot's values to `take`, in one or two calls per slot."""

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        """Return field -> CRC-32C of a slot's values, computed like `tensor_crcs`."""

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Replay some slots, and pass their large values to `take`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchValues:
    """A rank's part of a step, with the values of the training's `Batch`."""

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
    """Field -> CRC-32C of the batched field, as a run log records it."""
    ids: list[tuple[str, str] | None]
    """(source, key) per slot; None for padding."""
    slots: list[Mapping[str, Any]] = field(repr=False)
    """Field -> value after the transform, per slot. Values are views of the batch; empty for padding."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Slot of the global batch -> read error of its sample."""
    settled: bool | None = True
    """Result of `Replay.settle`: True if the run's substitutions are known."""
    texts: Texts = field(default_factory=dict)
    """Decoded text of its tokens."""
    cut: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """See `PartValues`; always empty."""

    def source(self, slot: int) -> str:
        """Return the source of a slot in the part; "" for padding."""
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
    """Return the values with tensors as arrays, because unpickling a tensor would import torch."""
    decoded, trained = (
        {name: _detached(value) for name, value in sample.items()}
        for sample in (values.decoded, values.trained)
    )
    return replace(values, decoded=decoded, trained=trained)


def batch_itself(plan: "loader.Plan", values: BatchValues) -> BatchValues:
    """Return the values as separate arrays, because pickling a tensor's view would pickle its whole batch."""
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
