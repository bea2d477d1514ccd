"""A step according to its run log: digests and metrics, which outlast its samples."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass

from loader.errors import Corrupt, InvalidRuntime, PenstockError

from ...text import clean
from ..json_record import JsonRecord
from ..outage import DOWN
from ..replays.training import Training, crcs, largest_values

ADVICE = (
    "The store does not respond. Check it and the network, then open the page again; nothing needs a restart. "
    "Pages that need no store still open."
)
MOST_LINES = 32
"""Most parts, and slots, listed as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPart(JsonRecord):
    """One delivery of a rank's part of a step."""

    rank: int
    world_size: int
    """Number of ranks."""
    digest: int
    """64-bit digest."""
    substituted: int
    """Substituted slots."""
    at_us: int
    """UTC microseconds."""
    crc32c: Mapping[str, int]
    """Field -> tensor's CRC-32C, if computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep(JsonRecord):
    training: str
    """Run name or plan hash."""
    plan: str
    """Hash; "" if only the metrics have the step."""
    step: int
    """Global step."""
    parts: tuple[RecordedPart, ...]
    """By rank and time."""
    notes: Mapping[str, float]
    """Metric -> value."""
    largest: Mapping[int, Mapping[str, float]]
    """Slot -> metric -> value, of the step's largest; on a slot's page, only its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord(JsonRecord):
    """An error shown instead of a page."""

    error: str
    """Class name."""
    message: str
    """Error message."""
    advice: str
    """Remedy; "" if the message has it."""
    recorded: RecordedStep | None
    """The step's recorded facts, on step and slot pages."""


def read_step(
    training: Training, step: int, slot: int | None = None, *, is_down: bool = False
) -> RecordedStep | None:
    """Return a step's recorded facts, or None. slot: limits per-slot metrics to it.

    is_down: whether the store does not respond. Then it makes no request, and may lack samples and checksums.
    """
    rows = training.rows(step)
    if not is_down:
        with suppress(*DOWN, Corrupt):
            rows = training.stored_rows(step)
    notes = training.notes(step)
    start = training.start(step)
    if not rows and not notes:
        return None
    largest = largest_values(rows)
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
        largest={number: values for number, values in sorted(largest.items()) if slot in (None, number)},
    )


@contextmanager
def attach_recorded_step(training: Training, step: int, slot: int | None = None) -> Iterator[None]:
    """Attach a step's recorded facts to any error raised inside, except InvalidRuntime."""
    try:
        yield
    except InvalidRuntime:
        raise
    except PenstockError as error:
        recorded = read_step(training, step, slot, is_down=isinstance(error, DOWN))
        if recorded is None:
            raise
        own = copy(error)  # several pages may share this error
        own.__dict__["recorded"] = recorded
        own.__notes__ = [*getattr(error, "__notes__", ()), *step_lines(recorded)]
        raise own from error


def failure_record(error: PenstockError) -> FailureRecord:
    return FailureRecord(
        error=type(error).__name__,
        message=clean(error, 2000),
        advice=ADVICE if isinstance(error, DOWN) else "",
        recorded=error.__dict__.get("recorded"),
    )


def step_lines(record: RecordedStep) -> list[str]:
    """Return a step's recorded facts as text."""
    lines = [f"the trail of {clean(record.training, 80)} has of step {record.step}:"]
    for part in record.parts[:MOST_LINES]:
        substituted = ""
        if part.substituted:
            substituted = f", {part.substituted} substituted"
        lines.append(f"  rank {part.rank} of {part.world_size}: digest {part.digest:016x}{substituted}")
        if part.crc32c:
            text = ", ".join(f"{clean(name, 80)} {crc:08x}" for name, crc in sorted(part.crc32c.items()))
            lines.append(f"    CRC-32C of tensors: {text}")
    if len(record.parts) > MOST_LINES:
        lines.append(f"  and {len(record.parts) - MOST_LINES} more parts")
    if record.notes:
        text = ", ".join(f"{clean(name, 80)} = {value:.6g}" for name, value in sorted(record.notes.items()))
        lines.append(f"  notes: {text}")
    for slot, values in list(record.largest.items())[:MOST_LINES]:
        text = ", ".join(f"{clean(name, 80)} {value:.4g}" for name, value in sorted(values.items()))
        lines.append(f"  slot {slot}: {text}")
    if len(record.largest) > MOST_LINES:
        lines.append(f"  and {len(record.largest) - MOST_LINES} more slots with notes")
    return lines
