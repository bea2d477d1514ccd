"""A step by the trail alone: digests and notes, which remain where its samples cannot be shown."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from loader.errors import InvalidRuntime, PenstockError

from ...text import clean
from ..json_record import Record
from ..outage import DOWN
from ..replays.training import Training, crcs

ADVICE = (
    "The store does not answer. Check it and the network, then open the page again: nothing has to be started anew. "
    "Pages that need no store are shown meanwhile."
)
MOST_LINES = 32
"""Parts that are told in text, and slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPart(Record):
    """A rank's part of a step, as it was handed out once."""

    rank: int
    """Data-parallel rank."""
    world_size: int
    """Number of ranks."""
    digest: int
    """64-bit digest of the part."""
    substituted: int
    """Slots whose sample was substituted."""
    at_us: int
    """Time in UTC microseconds."""
    crc32c: Mapping[str, int]
    """Field -> CRC-32C of its tensor; empty where none were taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep(Record):
    """A step as the trail has it."""

    training: str
    """Run, or hash of a plan."""
    plan: str
    """Hash of the plan of the step; "" where only metrics have the step."""
    step: int
    """Global step."""
    parts: tuple[RecordedPart, ...]
    """Recorded parts, by rank and time."""
    notes: Mapping[str, float]
    """Notes of the training at this step, and its metrics."""
    largest: Mapping[int, Mapping[str, float]]
    """Slot -> note -> value, of the slots that are among the step's largest; of a slot's page of that slot alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord(Record):
    """An error in the place of a page."""

    error: str
    """Name of the error's class."""
    message: str
    """Its text."""
    advice: str
    """Something to do; "" where the text says it."""
    recorded: RecordedStep | None
    """The step by the trail, on pages of steps and slots; None where that has nothing."""


def recorded_step(training: Training, step: int, slot: int | None = None) -> RecordedStep | None:
    """Return a step as the trail and the metrics have it, None where they have nothing. No request.

    slot: the one whose notes are told; None for all.
    """
    rows, notes, start = training.recorded(step), training.notes(step), training.start(step)
    if not rows and not notes:
        return None
    largest = training.largest(step)
    return RecordedStep(
        training=training.name,
        plan="" if start is None else start.plan,
        step=step,
        parts=tuple(
            RecordedPart(
                rank=row["rank"],
                world_size=row["world_size"],
                digest=int(row["digest"]),
                substituted=row["substituted"],
                at_us=row["at_us"],
                crc32c=crcs(row),
            )
            for row in rows
        ),
        notes=notes,
        largest={one: told for one, told in sorted(largest.items()) if slot in (None, one)},
    )


@contextmanager
def told_by_trail(training: Training, step: int, slot: int | None = None) -> Iterator[None]:
    """Let an error inside bring what the trail has of a step: a note for people, and the record for `failure_record`.

    A caller's mistake brings nothing.
    """
    try:
        yield
    except InvalidRuntime:
        raise
    except PenstockError as error:
        recorded = recorded_step(training, step, slot)
        if recorded is None:
            raise
        own = copy(error)  # several pages may have failed by one error
        own.__dict__["recorded"] = recorded
        own.__notes__ = [*getattr(error, "__notes__", ()), *recorded_lines(recorded)]
        raise own from error


def failure_record(error: PenstockError) -> FailureRecord:
    """Return the record of an error in the place of a page."""
    return FailureRecord(
        error=type(error).__name__,
        message=clean(error, 2000),
        advice=ADVICE if isinstance(error, DOWN) else "",
        recorded=error.__dict__.get("recorded"),
    )


def recorded_lines(record: RecordedStep) -> list[str]:
    """Return the trail's facts of a step, a line per part and one for notes."""
    lines = [f"the trail of {clean(record.training, 80)} has of step {record.step}:"]
    for part in record.parts[:MOST_LINES]:
        substituted = f", {part.substituted} substituted" if part.substituted else ""
        lines.append(f"  rank {part.rank} of {part.world_size}: digest {part.digest:016x}{substituted}")
        if part.crc32c:
            told = ", ".join(f"{clean(name, 80)} {crc:08x}" for name, crc in sorted(part.crc32c.items()))
            lines.append(f"    CRC-32C of tensors: {told}")
    if len(record.parts) > MOST_LINES:
        lines.append(f"  and {len(record.parts) - MOST_LINES} more parts")
    if record.notes:
        told = ", ".join(f"{clean(name, 80)} = {value:.6g}" for name, value in sorted(record.notes.items()))
        lines.append(f"  notes: {told}")
    for slot, values in list(record.largest.items())[:MOST_LINES]:
        told = ", ".join(f"{clean(name, 80)} {value:.4g}" for name, value in sorted(values.items()))
        lines.append(f"  slot {slot}: {told}")
    if len(record.largest) > MOST_LINES:
        lines.append(f"  and {len(record.largest) - MOST_LINES} more slots with notes")
    return lines
