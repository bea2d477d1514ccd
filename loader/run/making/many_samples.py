"""The samples of one read: decoded into their rows in a loop that does little else, or one by one."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ...errors import Corrupt
from ...modalities import Decoder, placing
from ...order.steps.slots import Slots
from ..batch.columns import BatchRow, Columns
from ..batch.step_metrics import StepMetrics
from ..recipe.decode import draws
from ..recipe.rank_slots import Located
from ..recipe.recipe import Recipe
from ..recipe.video_reads import times_field
from .fetch import Payload, whole
from .one_sample import OneSample


class ManySamples:
    """Makes samples of a recipe; thread-safe. decoders: per source, by field.

    Threads that decode take turns with the interpreter's lock between two pictures, and wait for each other there. So
    decoders of ours that take nothing but bytes are called in a row, without a transform.
    """

    def __init__(
        self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], one_sample: OneSample
    ) -> None:
        self._recipe, self._one_sample = recipe, one_sample
        self._plain = [
            {
                field: (decoder, placing(decoder))
                for field, decoder in by_field.items()
                if recipe.transform is None and not draws(decoder)
            }
            for by_field in decoders
        ]

    def __call__(
        self, slots: Slots, wanted: Located, payloads: dict[int, Payload], columns: Columns, seen: StepMetrics
    ) -> dict[int, Corrupt]:
        """Put the samples of one kind into the columns. Return number of each corrupt one -> why it is.

        payloads: by the numbers of the samples; taken out of it, so that bytes are not held once they are decoded.
        Raises: as `OneSample`.
        """
        bad: dict[int, Corrupt] = {}
        took: dict[int, float] = {}
        fields, at, placing_s = wanted.kind.fields, wanted.rows.tolist(), 0.0
        calls: dict[str, tuple[Decoder, _Rows | None]] = {
            field: (decoder, _Rows(columns, field) if in_rows else None)
            for field, (decoder, in_rows) in self._plain[wanted.kind.sources[0]].items()
        }
        for number in sorted(payloads):
            payload, row = payloads.pop(number), at[number]
            start = perf_counter()
            if _decoded(payload, row, columns, calls):
                took[number] = perf_counter() - start
                continue
            batch_row = BatchRow(columns, row)
            sample = self._one_sample(slots, wanted, number, payload, batch_row, seen)
            if isinstance(sample, Corrupt):
                bad[number] = sample
                continue
            start = perf_counter()
            batch_row.put(sample, self.names(wanted, sample))
            placing_s += perf_counter() - start
        start = perf_counter()
        for field, (_, rows) in calls.items():
            if rows is not None and rows.filled:
                columns.put_rows(field, rows.filled)
        columns.put_names([at[number] for number in took], fields)
        seen.spent("collate", placing_s + perf_counter() - start)
        self._tell(wanted, at, took, seen)
        return bad

    def names(self, wanted: Located, sample: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields of a sample of which some values may be in the columns already."""
        if self._recipe.transform is not None:
            return tuple(sample)
        fields = wanted.kind.fields
        if all(name in fields for name in sample):
            return fields
        with_times = (name for field in fields for name in (field, times_field(field)))
        return tuple(name for name in with_times if name in fields or name in sample)

    def _tell(self, wanted: Located, at: list[int], took: Mapping[int, float], seen: StepMetrics) -> None:
        """Tell the seconds of decoding, by the numbers of the samples, and the slowest sample of each step."""
        seen.spent("decode", sum(took.values()))
        slowest: dict[int, int] = {}
        for number, seconds in took.items():
            step = seen.steps[0] if seen.step_of is None else seen.step_of(at[number])
            if step not in slowest or seconds > took[slowest[step]]:
                slowest[step] = number
        names = self._recipe.plan.source_names
        for step, number in slowest.items():
            source = names[int(wanted.source[number])]
            seen.slow("decode", took[number], source, wanted.places.at(number).address, step)


class _Rows:
    """Offers the row that is next to a decoder. filled: rows of samples whose value lies there."""

    __slots__ = ("_columns", "_field", "filled", "given", "row")

    def __init__(self, columns: Columns, field: str) -> None:
        self._columns, self._field = columns, field
        self.row, self.filled = 0, list[int]()
        self.given: np.ndarray | None = None

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        rows = self._columns.rows(self._field, shape, dtype)
        self.given = None if rows is None else rows[self.row, ...]  # also of rank 0 an array, not a number
        return self.given


def _decoded(
    payload: Payload, row: int, columns: Columns, calls: Mapping[str, tuple[Decoder, _Rows | None]]
) -> bool:
    """Put the values of a sample whose fields all have a decoder in `calls`; False where one has not, or fails."""
    filled = list[_Rows]()
    try:
        for field, data in payload.items():
            decoder, rows = calls[field]
            if rows is None:
                columns.put(row, field, decoder(whole(data), None))  # type: ignore[arg-type]
                continue
            rows.row = row  # decoders that place their result keep nothing of the bytes
            value = decoder(data, None, rows)  # type: ignore[call-arg, arg-type]
            if value is rows.given:
                filled.append(rows)
            else:
                columns.put(row, field, value)
    except Exception:  # noqa: BLE001 - decoded again by itself, which says what is wrong, and where
        return False
    for rows in filled:
        rows.filled.append(row)
    return True
