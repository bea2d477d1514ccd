"""The samples of one read: decoded, transformed and put into their rows in a loop that does little else."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...dataset.reading.places import SamplePlaces
from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder, placing
from ...modalities.video.request import VideoDecoder
from ...native import copy_bytes
from ...order.steps.slots import Slots
from ..batch.columns import BatchRow, Columns, FieldRows
from ..batch.step_metrics import StepMetrics
from ..recipe import generators
from ..recipe.decode import apply_transform, draws, failure
from ..recipe.rank_slots import Located
from ..recipe.recipe import Recipe
from ..recipe.video_reads import times_field
from .fetch import Payload
from .one_sample import OneSample

if TYPE_CHECKING:
    import numpy as np

RngOf = Callable[[int], "np.random.Generator"]
Call = tuple[Decoder | None, RngOf | None, FieldRows | None]
"""A field's decoder, the generators that it draws from, and the rows that it decodes into."""


class ManySamples:
    """Makes samples of a recipe; thread-safe. decoders: per source, by field.

    Threads that decode take turns with the interpreter's lock between two pictures, and wait for each other there. So
    the loop makes nothing that only an error or the slowest sample needs.
    """

    def __init__(
        self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], one_sample: OneSample
    ) -> None:
        self._recipe, self._decoders, self._one_sample = recipe, decoders, one_sample

    def __call__(
        self, slots: Slots, wanted: Located, payloads: dict[int, Payload], columns: Columns, seen: StepMetrics
    ) -> dict[int, Corrupt]:
        """Put the samples of one kind into the columns. Return number of each corrupt one -> why it is.

        payloads: by the numbers of the samples; taken out of it, so that bytes are not held once they are decoded.
        Raises: as `OneSample`.
        """
        by_field, bad = self._decoders[wanted.kind.sources[0]], dict[int, Corrupt]()
        if not any(isinstance(by_field.get(field), VideoDecoder) for field in wanted.kind.fields):
            self._loop(slots, wanted, payloads, columns, bad, seen)
            return bad
        for number in sorted(payloads):  # frames of a sample's videos are chosen together
            batch_row = BatchRow(columns, int(wanted.rows[number]))
            sample = self._one_sample(slots, wanted, number, payloads.pop(number), batch_row, seen)
            self._put(sample, wanted, number, batch_row, bad, seen)
        return bad

    def _loop(
        self,
        slots: Slots,
        wanted: Located,
        payloads: dict[int, Payload],
        columns: Columns,
        bad: dict[int, Corrupt],
        seen: StepMetrics,
    ) -> None:
        """Put the samples, whose fields are decoded one by one."""
        at, into, places = wanted.rows.tolist(), _Into(columns), wanted.places
        decode_s, transform_s, put_s = dict[int, float](), dict[int, float](), 0.0
        rows_of = dict[tuple[str, ...], list[int]]()  # by the fields of the samples
        transforms, source = self._one_sample.transforms, wanted.source.tolist()
        calls, rng_of, fields = self._calls(slots, wanted, into), None, wanted.kind.fields
        if self._recipe.transform is not None:
            rng_of, fields = generators.of_slots(self._recipe.plan, slots, wanted.rows), ()
        begun = perf_counter()
        try:
            for number in sorted(payloads):
                row = at[number]
                sample = _decoded(payloads.pop(number), number, row, calls, places)
                decoded = perf_counter()
                if isinstance(sample, dict):
                    decode_s[number] = decoded - begun
                    if rng_of is not None and (transform := transforms[source[number]]) is not None:
                        sample = apply_transform(transform, sample, places.at(number), rng_of(number))
                        transform_s[number], decoded = (now := perf_counter()) - decoded, now
                    for field, value in sample.items():
                        into[field].put(row, value)
                    rows_of.setdefault(fields or tuple(sample), []).append(row)
                    begun = perf_counter()
                    put_s += begun - decoded
                    continue
                if isinstance(sample, DecodeFailed):
                    batch_row = BatchRow(columns, row)
                    again = self._one_sample.again(slots, wanted, number, batch_row, seen)
                    self._put(again, wanted, number, batch_row, bad, seen)
                else:
                    bad[number] = sample
                begun = perf_counter()
        finally:
            self._tell("decode", wanted, at, decode_s, seen)
            if transform_s:
                self._tell("transform", wanted, at, transform_s, seen)
        begun = perf_counter()
        for rows in into.values():
            rows.finish()
        for names, filled in rows_of.items():
            columns.put_names(filled, names)
        seen.spent("collate", put_s + perf_counter() - begun)

    def names(self, wanted: Located, sample: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields of a sample of which some values may be in the columns already."""
        if self._recipe.transform is not None:
            return tuple(sample)
        fields = wanted.kind.fields
        if all(name in fields for name in sample):
            return fields
        with_times = (name for field in fields for name in (field, times_field(field)))
        return tuple(name for name in with_times if name in fields or name in sample)

    def _put(
        self,
        sample: dict[str, Any] | Corrupt,
        wanted: Located,
        number: int,
        batch_row: BatchRow,
        bad: dict[int, Corrupt],
        seen: StepMetrics,
    ) -> None:
        if isinstance(sample, Corrupt):
            bad[number] = sample
            return
        with seen.timed("collate"):
            batch_row.put(sample, self.names(wanted, sample))

    def _calls(self, slots: Slots, wanted: Located, into: "_Into") -> dict[str, Call]:
        """Return how each field is decoded."""
        by_field, calls = self._decoders[wanted.kind.sources[0]], dict[str, Call]()
        for field in wanted.kind.fields:
            decoder = by_field.get(field)
            in_rows = decoder is not None and placing(decoder) and self._recipe.transform is None
            drawing = decoder is not None and draws(decoder)
            rng_of = generators.of_slots(self._recipe.plan, slots, wanted.rows, field) if drawing else None
            calls[field] = decoder, rng_of, into[field] if in_rows else None
        return calls

    def _tell(
        self, stage: str, wanted: Located, at: list[int], took: Mapping[int, float], seen: StepMetrics
    ) -> None:
        """Tell the seconds of a stage, by the numbers of the samples, and the slowest sample of each step."""
        seen.spent(stage, sum(took.values()))
        slowest: dict[int, int] = {}
        for number, seconds in took.items():
            step = seen.steps[0] if seen.step_of is None else seen.step_of(at[number])
            if step not in slowest or seconds > took[slowest[step]]:
                slowest[step] = number
        names = self._recipe.plan.source_names
        for step, number in slowest.items():
            source = names[int(wanted.source[number])]
            seen.slow(stage, took[number], source, wanted.places.at(number).address, step)


class _Into(dict[str, FieldRows]):
    """Field -> where its values are put, made when it first comes up."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __missing__(self, field: str) -> FieldRows:
        rows = self[field] = FieldRows(self._columns, field)
        return rows


def _decoded(
    payload: Payload, number: int, row: int, calls: Mapping[str, Call], places: SamplePlaces
) -> dict[str, Any] | Corrupt:
    """Return the decoded fields of a sample, or why it is corrupt. Raises: errors that say nothing about the bytes."""
    sample: dict[str, Any] = {}
    for field, data in payload.items():
        decoder, rng_of, rows = calls[field]
        try:
            if rows is not None:  # decoders that place their result keep nothing of the bytes
                rows.row = row
                # A generator that has a name here is not used again for the next field.
                sample[field] = decoder(data, None if rng_of is None else rng_of(number), rows)  # type: ignore[call-arg, arg-type, misc]
                continue
            if type(data) is memoryview:
                data = copy_bytes(data)  # which a decoder may keep
            if decoder is None:
                sample[field] = data
            else:
                sample[field] = decoder(data, None if rng_of is None else rng_of(number))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - of a decoder of the user's
            said = failure(error, decoder, places.at(number), field)
            try:
                if not isinstance(said, Corrupt):
                    raise
                if said is not error:
                    said.__cause__ = error
                return said
            finally:
                del said  # else error and frame hold each other, and the sample
    return sample
