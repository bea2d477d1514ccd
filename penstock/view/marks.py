"""Warnings for steps and slots that no single value shows, such as duplicates or a wrong split."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import loader
from loader.dataset.shards.address import SampleAddress
from loader.dataset.tables.annotations import select_files
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.tables.stats import finite_count, merge
from loader.dataset.versions.sample_rows import live_row, sample_rows
from loader.errors import PenstockError

from ..text import clean
from ..units import number
from .json_record import JsonRecord
from .kinds.kind import WEIGHTS as OF_VALUES
from .kinds.kind import Mark
from .replays.metrics_file import Spread

SIGMAS = 4.0
"""Standard deviations from which a metric or column value gets a mark."""
MIN_STEPS = 16
"""Fewest values to judge a metric's spread."""
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
"""Weight by mark, for values, steps and slots; the worst weighs the most."""
_ONE_SAMPLE = 30
"""Weight of equal values that come from one sample."""
MIN_SAMPLES = 32
"""Fewest values to judge a column."""
_LEAST_SHARE = 1e-9
"""Variance over mean square below which it is only rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark(JsonRecord):
    """A warning about a step or some slots."""

    name: str
    """Stable name."""
    text: str
    """One line."""
    weight: int
    """Larger is worse."""
    slots: tuple[int, ...] = ()
    """Global slots; empty for the whole step."""
    field: str = ""
    """Affected field, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """Facts from which marks are derived."""

    slot: int
    """Global slot."""
    key: str
    """Sample key."""
    hashes: Mapping[str, bytes]
    """Field -> hash of its value as trained; not of small values."""
    marks: Mapping[str, Sequence[Mark]]
    """Values' marks, by field."""
    provenance: Mapping[str, str]
    """Its sample's provenance columns."""
    error: str = ""
    """Read error, or ""."""


def step_mark(name: str, text: str, slots: Iterable[int] = (), field: str = "") -> StepMark:
    return StepMark(name=name, text=text, weight=WEIGHTS[name], slots=tuple(slots), field=field)


def count_text(n: int, noun: str, plural: str = "") -> str:
    """Return text such as '1 sample' or '1,200 samples'. plural: "" is the noun with an s."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {plural or noun + 's'}"


def rank_marks(slots: Sequence[SlotFacts], notes: Iterable[StepMark] = ()) -> tuple[StepMark, ...]:
    """Return all marks of a batch, worst first. notes: marks of metrics."""
    marks = [
        *notes,
        *_unreadable(slots),
        *_field_marks(slots),
        *_equal(slots),
        *_repetition_marks(slots),
        *_splits(slots),
    ]
    return tuple(sorted(marks, key=lambda mark: (-mark.weight, mark.slots, mark.field)))


def note_marks(step: int, notes: Mapping[str, float], spreads: Mapping[str, Spread]) -> list[StepMark]:
    """Return a mark per metric that is not finite or far from the run's median."""
    marks = []
    for name, value in notes.items():
        label = clean(name, 80)
        if not np.isfinite(value):
            marks.append(step_mark("note_not_finite", f"{label} = {value} at step {step}"))
            continue
        known = spreads.get(name)
        if known is None or known.n < MIN_STEPS or not known.sigma > 0:
            continue
        # From the median: one spike would move a mean, and hide itself.
        far = abs(value - known.median) / known.sigma
        if far > SIGMAS:
            text = f"{label} = {value:.4g}, {far:.0f} sigma from the run's median {known.median:.4g}"
            marks.append(step_mark("note_far", text))
    return marks


def _unreadable(slots: Sequence[SlotFacts]) -> list[StepMark]:
    return [step_mark("unreadable", clean(slot.error, 400), [slot.slot]) for slot in slots if slot.error]


def _field_marks(slots: Sequence[SlotFacts]) -> list[StepMark]:
    """Return the marks of the fields' values, one per kind and field, in the words of its first slot."""
    groups: dict[tuple[str, str], list[tuple[int, Mark]]] = defaultdict(list)
    for slot in slots:
        for field, marks in slot.marks.items():
            for mark in marks:
                groups[mark.name, field].append((slot.slot, mark))
    results = []
    for (name, field), group in groups.items():
        _, first = group[0]
        text = first.text
        if len(group) > 1:
            more = count_text(len(group) - 1, "more slot")
            text = f"{text} (and {more})"
        results.append(
            StepMark(
                name=name,
                text=text,
                weight=max(mark.weight for _, mark in group),
                slots=tuple(slot for slot, _ in group),
                field=field,
            )
        )
    return results


def _equal(slots: Sequence[SlotFacts]) -> list[StepMark]:
    same: dict[tuple[str, bytes], list[SlotFacts]] = defaultdict(list)
    for slot in slots:
        for field, value_hash in slot.hashes.items():
            same[field, value_hash].append(slot)
    marks = []
    for (field, _), group in same.items():
        keys = {slot.key for slot in group}
        if len(group) > 1:
            which = (
                f"of {len(keys)} samples are equal"
                if len(keys) > 1
                else f"are one sample, {clean(group[0].key, 80)}"
            )
            text = f"{clean(field, 80)}: the values of {len(group)} slots {which}"
            equal = step_mark("equal_values", text, (slot.slot for slot in group), field)
            # A sampler may draw one sample twice; two samples with equal bytes are a fault of the data.
            marks.append(equal if len(keys) > 1 else replace(equal, weight=_ONE_SAMPLE))
    return marks


def _repetition_marks(slots: Sequence[SlotFacts]) -> list[StepMark]:
    marks = []
    for name, column, what in (
        ("same_raw", "raw_sha256", "raw object"),
        ("same_subject", "subject", "subject"),
    ):
        groups: dict[str, list[SlotFacts]] = defaultdict(list)
        for slot in slots:
            if value := slot.provenance.get(column):
                groups[value].append(slot)
        for value, group in groups.items():
            if len({slot.key for slot in group}) > 1:
                which = group[0].provenance.get("raw_key", value) if column == "raw_sha256" else value
                text = f"{len(group)} slots come from one {what}, {clean(which, 120)}"
                marks.append(step_mark(name, text, (slot.slot for slot in group)))
    return marks


def _splits(slots: Sequence[SlotFacts]) -> list[StepMark]:
    groups: dict[str, list[int]] = defaultdict(list)
    for slot in slots:
        split = slot.provenance.get("split", "")
        # Datasets without splits have "" everywhere.
        if split and split != "train":
            groups[split].append(slot.slot)
    return [
        step_mark(
            "other_split",
            f"{count_text(len(numbers), 'sample')} of the split {clean(split, 80)}, not of train",
            numbers,
        )
        for split, numbers in groups.items()
    ]


ColumnSpread = tuple[float, float]
_KNOWN: WeakKeyDictionary[loader.Version, dict[str, ColumnSpread]] = WeakKeyDictionary()


def column_spreads(version: loader.Version) -> Mapping[str, ColumnSpread]:
    """Return numeric column -> (mean, standard deviation) over the version, excluded samples too.

    Reads the statistics, once per open version. Constant columns are left out.
    """
    if version not in _KNOWN:
        files = [TableFile.from_json(entry) for entry in version.manifest["stats"]]
        rows = merge(row for table in get_tables(version.store, files) for row in table.to_pylist())
        _KNOWN[version] = {name: spread for name, row in rows.items() if (spread := _spread(row)) is not None}
    return _KNOWN[version]


def _spread(row: Mapping[str, Any]) -> ColumnSpread | None:
    n_finite = finite_count(row)  # which the sums cover
    if row["sum_squares"] is None or n_finite < MIN_SAMPLES:
        return None
    mean = row["sum"] / n_finite
    square = row["sum_squares"] / n_finite
    # By sums, which manifests store: two large numbers may cancel, hence the bound below.
    variance = square - mean * mean
    if variance <= _LEAST_SHARE * square:
        return None
    return mean, math.sqrt(variance)


def far_marks(version: loader.Version, row: Mapping[str, Any], slots: tuple[int, ...] = ()) -> list[StepMark]:
    """Return a mark per column more than 4 standard deviations from the version's mean, farthest first.

    row: column -> value, of `live_row`.
    """
    marks = []
    for name, (mean, sigma) in column_spreads(version).items():
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        far = abs(value - mean) / sigma
        if far > SIGMAS:
            text = f"column {clean(name, 80)} = {number(value)}, {far:.0f} sigma from the version's mean {number(mean)}"
            marks.append((-far, step_mark("column_far", text, slots, name)))
    return [mark for _, mark in sorted(marks, key=lambda pair: pair[0])]


def step_marks(version: loader.Version, at: Mapping[int, SampleAddress]) -> list[StepMark]:
    """Return a mark per column with outliers among a step's samples, or one if the table is unreadable.

    at: slot -> sample address. Annotated columns would be read whole, so only slot pages examine them.
    """
    try:
        marks = [mark for row, slot in _read_rows(version, at) for mark in far_marks(version, row, (slot,))]
    except PenstockError as error:
        return [_columns_unreadable(error, tuple(at))]
    by_column: dict[str, list[StepMark]] = {}
    for mark in marks:
        by_column.setdefault(mark.field, []).append(mark)
    out = []
    for group in by_column.values():
        more = ""
        if len(group) > 1:
            more = f" (and {count_text(len(group) - 1, 'more slot')})"
        slots = tuple(slot for mark in group for slot in mark.slots)
        out.append(replace(group[0], text=group[0].text + more, slots=slots))
    return out


def _read_rows(
    version: loader.Version, at: Mapping[int, SampleAddress]
) -> Iterator[tuple[dict[str, Any], int]]:
    entries = version.manifest["samples"]
    annotated = {name for entry in select_files(entries, None, annotations=True) for name in entry["columns"]}
    names = [name for name in column_spreads(version) if name not in annotated]
    files = select_files(entries, names, annotations=False)
    slots = list(at)
    addresses = list(at.values())
    for group in sorted({entry["group"] for entry in files}):
        of_group = [one for one in select_files(entries, None, annotations=False) if one["group"] == group]
        # A group that some parts lack has no row for their samples.
        if sum(one["n_rows"] for one in of_group) == int(version.parts.n_rows.sum()):
            for place, row in sample_rows(version, addresses, group, names):
                yield row, slots[place]


def slot_columns(
    version: loader.Version, ordinal: int, slot: int
) -> tuple[Mapping[str, Any], list[StepMark]]:
    """Return (column -> value, a mark per outlier among them). Unreadable columns are {}, and one mark."""
    try:
        row = live_row(version, ordinal)
        return row, far_marks(version, row, (slot,))
    except PenstockError as error:
        return {}, [_columns_unreadable(error, (slot,))]


def _columns_unreadable(error: PenstockError, slots: tuple[int, ...]) -> StepMark:
    text = f"the samples table cannot be read: {clean(error, 300)}"
    return step_mark("columns_unreadable", text, slots)
