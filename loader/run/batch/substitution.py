"""One entry of a rank's ledger: the corrupt sample, the address of its bytes, and its substitute."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ...dataset.shards.address import SampleAddress
from ...errors import Corrupt, DecodeFailed
from ...order.plan import Plan
from ...order.slots import Slots
from ...order.substitutes import substitutes
from ...redaction import redact
from ..recipe.rank_slots import LocatedSamples, RankSlots

Result = TypeVar("Result")
"""A sample, as the caller of `find_substitute` makes it."""

LEDGER_FORMAT = 1
MAX_ERROR_CHARS = 2000  # a decoder may quote its input


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """One failed attempt to fill a slot: the corrupt sample, and the sample tried instead.

    A packed sequence's document is masked instead: its `attempt` is 0 and its `substitute` is "".
    """

    step: int
    """Global step."""
    slot: int
    """Slot number in the global batch's canonical order."""
    source: str
    """Source name in the plan."""
    epoch: int
    """Epoch of the source, as in `explain`."""
    position: int
    """Position in the source's stream, as in `explain`."""
    attempt: int
    """1 to 8; 0 for a masked document."""
    stage: Literal["checksum", "decode"]
    """"checksum": the bytes differ from those written. "decode": the decoder rejected intact bytes."""
    error: str
    """Error message, without secrets, at most 2,000 characters."""
    address: SampleAddress
    """Address of the corrupt sample; from attempt 2 on, of the previous substitute."""
    substitute: str
    """Key of the sample used instead, from the same version; "" if there is none."""
    substitute_ordinal: int
    """Version ordinal of the sample used instead; -1 if there is none."""

    @property
    def identity(self) -> tuple[str | int, ...]:
        """Values that are equal whenever this substitution is made: all but the error's text."""
        at = self.address
        return (
            *(self.step, self.slot, self.attempt, self.source),
            *(at.version_id, at.ordinal, self.substitute_ordinal),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "format": LEDGER_FORMAT,
            "step": self.step,
            "slot": self.slot,
            "source": self.source,
            "epoch": self.epoch,
            "position": self.position,
            "attempt": self.attempt,
            "stage": self.stage,
            "error": self.error,
            **self.address.to_json(),
            "substitute": self.substitute,
            "substitute_ordinal": self.substitute_ordinal,
        }

    @staticmethod
    def from_json(line: Mapping[str, Any]) -> "Substitution":
        """Return the entry whose `to_json` is `line`. Raises: KeyError, TypeError, ValueError for other JSON."""
        own = ("step", "slot", "source", "epoch", "position", "attempt", "stage", "error")
        rest = ("substitute", "substitute_ordinal")
        return Substitution(
            **{name: line[name] for name in (*own, *rest)}, address=SampleAddress.from_json(line)
        )


def find_substitute(
    plan: Plan,
    step: int,
    slot: int,
    slots: Slots,
    row: int,
    bad: SampleAddress,
    error: Corrupt,
    make: Callable[[], tuple[Result | Corrupt, SampleAddress]],
) -> tuple[Result, list[Substitution]]:
    """Return the first readable substitute for a row's sample, and the substitutions tried.

    Writes each substitute into `slots`.

    slot: number in the global batch. bad: address of the row's own sample. error: the reason why it is unreadable.
    make: returns the sample that `slots` has in the row, or its error, with its address.

    Raises: `error`, if no substitute is readable.
    """
    source = int(slots.source[row])
    position = int(slots.position[row])
    tried_before = int(slots.attempt[row])  # by the plan, for a quarantined sample
    tried: list[Substitution] = []
    why = error
    candidates = substitutes(plan, step, source, position, tried_before)
    for attempt, view_ordinal, ordinal in candidates:
        slots.attempt[row] = attempt
        slots.view_ordinal[row] = view_ordinal
        slots.ordinal[row] = ordinal
        sample, address = make()
        substitution = Substitution(
            step=step,
            slot=slot,
            source=plan.source_names[source],
            epoch=int(slots.epoch[row]),
            position=position,
            attempt=attempt,
            stage=error_stage(why),
            error=error_text(why),
            address=bad,
            substitute=address.key,
            substitute_ordinal=ordinal,
        )
        tried.append(substitution)
        if not isinstance(sample, Corrupt):
            return sample, tried
        why = sample
        bad = address
    error.add_note(f"all of its substitutes are corrupt too, the last: {why}")
    raise error


def mask_document(
    plan: Plan, step: int, documents: Slots, number: int, slot: int, address: SampleAddress, error: Corrupt
) -> Substitution:
    """Return the entry for a corrupt document, masked in its sequence.

    documents: one slot per piece. number: index of the document's slot.
    """
    return Substitution(
        step=step,
        slot=slot,
        source=plan.source_names[int(documents.source[number])],
        epoch=int(documents.epoch[number]),
        position=int(documents.position[number]),
        attempt=0,
        stage=error_stage(error),
        error=error_text(error),
        address=address,
        substitute="",
        substitute_ordinal=-1,
    )


def mask_row(
    plan: Plan,
    rank_slots: RankSlots,
    row: int,
    address: SampleAddress,
    error: Corrupt,
) -> Substitution:
    """Mask a row whose sample a replay cannot read, and return the entry. Raises: `error` for the last valid row."""
    if rank_slots.valid.sum() == 1:
        raise error
    rank_slots.valid[row] = False
    return mask_document(
        plan,
        rank_slots.step_of(row),
        rank_slots.slots,
        row,
        int(rank_slots.number[row]),
        address,
        error,
    )


def in_order(substitutions: Iterable[Substitution]) -> list[Substitution]:
    """Return substitutions by step, slot and attempt, whichever sources they belong to."""
    return sorted(substitutions, key=_place)


def _place(substitution: Substitution) -> tuple[int, int, int]:
    return substitution.step, substitution.slot, substitution.attempt


def error_stage(error: Corrupt) -> Literal["checksum", "decode"]:
    if isinstance(error, DecodeFailed):
        return "decode"
    return "checksum"


def error_text(error: Corrupt) -> str:
    """Return the error's text for a ledger, shortened and without passwords or signatures."""
    return redact(str(error))[:MAX_ERROR_CHARS]


class UnreadableSample:
    """Sample `number` of `located`, which is corrupt. row: row of the batches that should have it."""

    __slots__ = ("error", "located", "number", "row")

    def __init__(
        self,
        located: LocatedSamples,
        number: int,
        error: Corrupt,
    ) -> None:
        self.row = int(located.rows[number])
        self.located = located
        self.number = number
        self.error = error

    @property
    def address(self) -> SampleAddress:
        return self.located.places.address(self.number)
