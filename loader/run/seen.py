"""One slot of a step: its sample as decoded, as it left the transform, and the draws that the transform made."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..dataset.shards.address import SampleAddress
from ..errors import PenstockError
from ..order.plan import Plan
from ..order.random.generators import sample_rng_key
from ..order.sources.packed_view import PackedView
from ..order.steps.slots import Slots
from .recipe import generators
from .recipe.decode import Transform, apply_transform
from .recipe.document_pieces import sequence_address
from .recipe.recipe import stored_view
from .trail.tensor_crcs import array_bytes

Sample = dict[str, Any]
MAX_DRAWS = 32
"""Draws that are told."""
_MAX_LETTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """One slot of a step, as the training got it."""

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
    decoded: Sample = field(repr=False)
    """Field -> value, before the transform; empty where the sample cannot be read."""
    trained: Sample = field(repr=False)
    """Field -> value after the transform; empty where there is none."""
    draws: tuple[str, ...] = ()
    """Calls of the sample's generator by the transform, such as 'integers(0, 57) = 23': the first 32, and then how many
    there are besides."""
    repeats: bool = True
    """True where a second run of the transform gave the same values. Else it is no function of its sample."""
    error: PenstockError | None = None
    """The reason why `decoded` or `trained` is empty."""
    transformed: Callable[[Sample], Sample] = field(default=dict, repr=False)
    """Applies the transform to another sample, with the generator of this one. Raises: TransformFailed."""

    def __str__(self) -> str:
        how = f", substitute {self.attempt}" if self.attempt else ""
        return f"step {self.step} slot {self.slot}: {self.address.describe()}{how}"


def address_of(plan: Plan, slots: Slots, row: int) -> SampleAddress:
    """Return the place of the sample that a slot holds. Costs a look-up in the indexes."""
    view, ordinal = list(plan.sources.values())[int(slots.source[row])].view, int(slots.ordinal[row])
    if isinstance(view, PackedView):
        return sequence_address(view, ordinal)
    stored = stored_view(view)
    assert stored is not None  # `Recipe` takes no other
    (address,) = stored.version.address(np.array([ordinal], np.int64), stored.fields)
    return address


def seen(
    plan: Plan,
    step: int,
    number: int,
    slots: Slots,
    decoded: Sample | PenstockError,
    transform: Transform | None,
) -> Seen:
    """Return one slot. slots: it alone. decoded: the sample, or why there is none."""
    key = generators.place_of(plan, slots, 0)
    address = address_of(plan, slots, 0)

    def transformed(sample: Sample, rng: np.random.Generator | None = None) -> Sample:
        if transform is None:
            return sample
        return apply_transform(transform, sample, address, rng or sample_rng_key(*key))

    facts: dict[str, Any] = {
        "step": step,
        "slot": number,
        "source": plan.source_names[int(slots.source[0])],
        "epoch": int(slots.epoch[0]),
        "position": int(slots.position[0]),
        "attempt": int(slots.attempt[0]),
        "address": address,
        "transformed": transformed,
    }
    if isinstance(decoded, PenstockError):
        return Seen(**facts, decoded={}, trained={}, error=decoded)
    rng = _Recording(sample_rng_key(*key).bit_generator)
    try:
        trained = transformed(copy.deepcopy(decoded), rng)
        again = transformed(copy.deepcopy(decoded))
    except PenstockError as error:
        return Seen(**facts, decoded=decoded, trained={}, draws=rng.listed(), error=error)
    return Seen(**facts, decoded=decoded, trained=trained, draws=rng.listed(), repeats=_same(trained, again))


class _Recording(np.random.Generator):
    """A generator that writes down what is drawn from it."""

    def __init__(self, bits: np.random.BitGenerator) -> None:
        super().__init__(bits)
        self.draws: list[str] = []
        self.n_draws = 0

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if (
            name.startswith("_")
            or name in ("draws", "n_draws", "listed", "bit_generator")
            or not callable(attribute)
        ):
            return attribute

        def drawn(*args: Any, **named: Any) -> Any:
            value = attribute(*args, **named)
            self.n_draws += 1
            if len(self.draws) < MAX_DRAWS:
                words = [*map(repr, args), *(f"{key}={one!r}" for key, one in named.items())]
                self.draws.append(f"{name}({_short(', '.join(words))}) = {_short(str(value))}")
            return value

        return drawn

    def listed(self) -> tuple[str, ...]:
        """Return the first draws, and how many there are besides."""
        more = self.n_draws - len(self.draws)
        return (*self.draws, f"and {more:,} more") if more else tuple(self.draws)


def _short(text: str) -> str:
    line = " ".join(text[: 4 * _MAX_LETTERS].split())
    return line if len(line) <= _MAX_LETTERS else f"{line[: _MAX_LETTERS - 1]}…"


def _same(a: Any, b: Any) -> bool:
    """Return whether two values of a sample are alike, bit for bit."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "__array__") and hasattr(b, "__array__"):
        if type(a) is not type(b) or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        try:
            return np.array_equal(array_bytes(a), array_bytes(b))
        except TypeError:  # an array of objects
            return bool(np.asarray(a).tolist() == np.asarray(b).tolist())
    return bool(a == b) or (a != a and b != b)
