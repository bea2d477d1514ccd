"""Faults of a batch that no single value shows: equal values, one raw object twice, splits, unusual notes.

Marks of single values come from their kinds; `ranked` puts all of a step together, the worst first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...text import clean
from ..json_record import Record
from ..kinds.kind import WEIGHTS as OF_VALUES
from ..kinds.kind import Mark
from ..replays.note_spread import Spread

SIGMAS = 4.0
"""A note this many standard deviations from the run's middle is marked."""
MIN_STEPS = 16
"""Steps with a note, below which nothing is said of its spread."""


WEIGHTS = {
    **OF_VALUES,
    "note_not_finite": 95,
    "not_a_function": 90,
    "other_split": 80,
    "equal_values": 70,
    "note_far": 60,
    "not_restored": 45,
    "same_raw": 40,
    "column_far": 25,
    "columns_unreadable": 25,
    "same_subject": 20,
}
"""Name -> weight of every mark, those of values and those of steps and slots; the worst has the largest."""
_ONE_SAMPLE = 30
"""Weight of equal values that are one sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark(Record):
    """A mark, with the slots that it is about."""

    name: str
    """Name of the mark."""
    text: str
    """The fault in words."""
    weight: int
    """The larger, the worse."""
    slots: tuple[int, ...] = ()
    """Slots of the global batch; none where it is about the step."""
    field: str = ""
    """Field that it is about; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faced:
    """The parts of a slot that marks look at."""

    slot: int
    """Number of the slot in the global batch."""
    key: str
    """Key of its sample."""
    hashes: Mapping[str, bytes]
    """Field -> hash of its value as trained; none for small values."""
    marks: Mapping[str, Sequence[Mark]]
    """Field -> marks of its kind."""
    provenance: Mapping[str, str]
    """Provenance columns of its sample."""
    error: str = ""
    """The reason why it cannot be read; "" where it can."""


def step_mark(name: str, text: str, slots: Iterable[int] = (), field: str = "") -> StepMark:
    """Return a mark with the weight that its name has."""
    return StepMark(name=name, text=text, weight=WEIGHTS[name], slots=tuple(slots), field=field)


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def ranked(slots: Sequence[Faced], notes: Iterable[StepMark] = ()) -> tuple[StepMark, ...]:
    """Return every mark of a batch, the worst first."""
    found = [
        *notes,
        *_unreadable(slots),
        *_of_kinds(slots),
        *_equal(slots),
        *_repeated(slots),
        *_splits(slots),
    ]
    return tuple(sorted(found, key=lambda one: (-one.weight, one.slots, one.field)))


def note_marks(step: int, notes: Mapping[str, float], spreads: Mapping[str, Spread]) -> list[StepMark]:
    """Return a mark per note of a step that is not finite, or far from the run's other steps.

    spreads: note -> the spread of its values over the run.
    """
    found = []
    for name, value in notes.items():
        label = clean(name, 80)
        if not np.isfinite(value):
            found.append(step_mark("note_not_finite", f"{label} = {value} at step {step}"))
            continue
        known = spreads.get(name)
        if known is None or known.n < MIN_STEPS or not known.sigma > 0:
            continue
        far = abs(value - known.median) / known.sigma
        if far > SIGMAS:
            text = f"{label} = {value:.4g}, {far:.0f} sigma from the run's median {known.median:.4g}"
            found.append(step_mark("note_far", text))
    return found


def _unreadable(slots: Sequence[Faced]) -> list[StepMark]:
    return [step_mark("unreadable", clean(one.error, 400), [one.slot]) for one in slots if one.error]


def _of_kinds(slots: Sequence[Faced]) -> list[StepMark]:
    """Return the marks of single values, those of one name and field together."""
    together: dict[tuple[str, str], list[tuple[int, Mark]]] = defaultdict(list)
    for one in slots:
        for field, marks in one.marks.items():
            for mark in marks:
                together[mark.name, field].append((one.slot, mark))
    return [
        StepMark(
            name=name,
            text=of[0][1].text
            if len(of) == 1
            else f"{of[0][1].text} (and {counted(len(of) - 1, 'more slot')})",
            weight=max(mark.weight for _, mark in of),
            slots=tuple(slot for slot, _ in of),
            field=field,
        )
        for (name, field), of in together.items()
    ]


def _equal(slots: Sequence[Faced]) -> list[StepMark]:
    """Return a mark per value, bit for bit the same, that different samples brought. Small values are often equal."""
    same: dict[tuple[str, bytes], list[Faced]] = defaultdict(list)
    for one in slots:
        for field, found_hash in one.hashes.items():
            same[field, found_hash].append(one)
    found = []
    for (field, _), ones in same.items():
        keys = {one.key for one in ones}
        if len(ones) > 1:
            what = (
                f"of {len(keys)} samples are equal"
                if len(keys) > 1
                else f"are one sample, {clean(ones[0].key, 80)}"
            )
            text = f"{clean(field, 80)}: the values of {len(ones)} slots {what}"
            equal = step_mark("equal_values", text, (one.slot for one in ones), field)
            found.append(equal if len(keys) > 1 else replace(equal, weight=_ONE_SAMPLE))
    return found


def _repeated(slots: Sequence[Faced]) -> list[StepMark]:
    """Return a mark per raw object or subject that several samples of the batch come from."""
    found = []
    for name, column, what in (
        ("same_raw", "raw_sha256", "raw object"),
        ("same_subject", "subject", "subject"),
    ):
        groups: dict[str, list[Faced]] = defaultdict(list)
        for one in slots:
            if value := one.provenance.get(column):
                groups[value].append(one)
        for value, ones in groups.items():
            if len({one.key for one in ones}) > 1:
                which = ones[0].provenance.get("raw_key", value) if column == "raw_sha256" else value
                text = f"{len(ones)} slots come from one {what}, {clean(which, 120)}"
                found.append(step_mark(name, text, (one.slot for one in ones)))
    return found


def _splits(slots: Sequence[Faced]) -> list[StepMark]:
    """Return a mark per split other than train."""
    groups: dict[str, list[int]] = defaultdict(list)
    for one in slots:
        split = one.provenance.get("split", "")
        if split and split != "train":
            groups[split].append(one.slot)
    return [
        step_mark(
            "other_split",
            f"{counted(len(numbers), 'sample')} of the split {clean(split, 80)}, not of train",
            numbers,
        )
        for split, numbers in groups.items()
    ]
