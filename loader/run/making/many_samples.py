"""Decode and transform the samples of one read into their rows; retry one whose bytes do not decode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dataset.reading.sample_places import SamplePlaces
from ...dataset.reading.verified_bucket_reads import Map
from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder, draws, placing
from ...modalities.video.request import VideoDecoder
from ...native import copy_bytes
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...storage.threads import DaemonPool
from ..batch.batch import StepMetrics
from ..batch.collate import DeliveredSamples, delivered_of, masked_row
from ..batch.columns import BatchRow, Columns, FieldRows
from ..recipe import generators
from ..recipe.decode import ReadyValue, apply_transform, decode_sample, failure
from ..recipe.rank_slots import LocatedSamples, RankSlots
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_packet_reads import times_field
from .fetch import Fetch, Payload, whole

if TYPE_CHECKING:
    import numpy as np


class OneSample:
    """Makes a recipe's samples, one at a time; thread-safe. decoders: per source, decoders by field."""

    def __init__(self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], fetch: Fetch) -> None:
        self._plan = recipe.plan
        self.transforms = [recipe.transform_of(source) for source in range(len(recipe.views))]
        self._decoders, self._fetch = decoders, fetch

    def __call__(
        self,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        payload: Payload,
        batch_row: BatchRow | None,
        seen: StepMetrics,
    ) -> dict[str, Any] | Corrupt:
        """Return the sample, or its error if it is corrupt.

        A sample that does not decode is read and decoded once more; a wrong checksum was already read twice. batch_row:
        row for decoders to fill, without a transform.
        """
        sample = self._decode(slots, located, number, payload, batch_row, seen)
        return (
            self.again(slots, located, number, batch_row, seen)
            if isinstance(sample, DecodeFailed)
            else sample
        )

    def again(
        self,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        batch_row: BatchRow | None,
        seen: StepMetrics,
    ) -> dict[str, Any] | Corrupt:
        seen.count("refetched")
        alone = self._fetch.locate.again(slots, int(located.rows[number]))
        again = self._fetch(slots, alone, None, seen)
        for field, places in located.places.fields.items():  # the digest covers the delivered bytes
            places.crc32c[number] = alone.places.fields[field].crc32c[0]
        return again.bad.get(0) or self._decode(slots, alone, 0, again.payloads[0], batch_row, seen)

    def _decode(
        self,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        payload: Payload,
        batch_row: BatchRow | None,
        seen: StepMetrics,
    ) -> dict[str, Any] | Corrupt:
        at, row, of = located.places.at(number), int(located.rows[number]), int(located.source[number])
        source, transform = self._plan.source_names[of], self.transforms[of]

        def key() -> generators.Place:
            return generators.place_of(self._plan, slots, row)

        how: dict[str, Any] = {} if batch_row is None or transform else {"place_of": batch_row.place_of}
        try:
            start = perf_counter()
            sample = decode_sample(
                {field: whole(data) for field, data in payload.items()},
                at,
                self._decoders[of],
                lambda field: generators.for_decoder(key(), field),
                **how,
            )
            decoded = perf_counter()
            seen.sample("decode", decoded - start, source, at.address, row)
            if transform is None:
                return sample
            sample = apply_transform(transform, sample, at, generators.for_transform(key()))
            seen.sample("transform", perf_counter() - decoded, source, at.address, row)
            return sample
        except Corrupt as error:
            return error


RngOf = Callable[[int], "np.random.Generator"]
Call = tuple[Decoder | None, RngOf | None, FieldRows | None]
"""A field's decoder, its generators, and the rows that it decodes into."""


class ManySamples:
    """Makes many of a recipe's samples; thread-safe. decoders: per source, decoders by field.

    Decoding threads contend for the interpreter's lock between two images.
    """

    def __init__(
        self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], one_sample: OneSample
    ) -> None:
        self._recipe, self._decoders, self._one_sample = recipe, decoders, one_sample
        self._windowed = window_views(recipe.plan)

    def __call__(
        self,
        slots: Slots,
        located: LocatedSamples,
        payloads: dict[int, Payload],
        columns: Columns,
        seen: StepMetrics,
    ) -> dict[int, Corrupt]:
        """Store samples of one kind in the columns. Return number -> error for each corrupt one.

        payloads: emptied, so that bytes are freed once they are decoded.
        """
        by_field, bad = self._decoders[located.kind.sources[0]], dict[int, Corrupt]()
        windowed = self._windowed[located.kind.sources[0]] is not None
        if not windowed and not any(
            isinstance(by_field.get(field), VideoDecoder) for field in located.kind.fields
        ):
            self._loop(slots, located, payloads, columns, bad, seen)
            return bad
        for number in sorted(payloads):  # frames of a sample's videos are chosen together
            batch_row = BatchRow(columns, int(located.rows[number]))
            sample = self._one_sample(slots, located, number, payloads.pop(number), batch_row, seen)
            self._put(sample, located, number, batch_row, bad, seen)
        return bad

    def _loop(
        self,
        slots: Slots,
        located: LocatedSamples,
        payloads: dict[int, Payload],
        columns: Columns,
        bad: dict[int, Corrupt],
        seen: StepMetrics,
    ) -> None:
        at, into, places = located.rows.tolist(), _Into(columns), located.places
        decode_s, transform_s, put_s = dict[int, float](), dict[int, float](), 0.0
        rows_of = dict[tuple[str, ...], list[int]]()  # rows by their samples' field names
        transforms, source = self._one_sample.transforms, located.source.tolist()
        calls = self._calls(slots, located, into)
        rng_of, fields = None, located.kind.names
        if self._recipe.transform is not None:
            rng_of, fields = generators.of_slots(self._recipe.plan, slots, located.rows), ()
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
                    again = self._one_sample.again(slots, located, number, batch_row, seen)
                    self._put(again, located, number, batch_row, bad, seen)
                else:
                    bad[number] = sample
                begun = perf_counter()
        finally:
            self._tell("decode", located, at, decode_s, seen)
            if transform_s:
                self._tell("transform", located, at, transform_s, seen)
        begun = perf_counter()
        for rows in into.values():
            rows.finish()
        for names, filled in rows_of.items():
            columns.put_names(filled, names)
        seen.spent("collate", put_s + perf_counter() - begun)

    def names(self, located: LocatedSamples, sample: Mapping[str, Any]) -> tuple[str, ...]:
        if self._recipe.transform is not None or self._windowed[located.kind.sources[0]] is not None:
            return tuple(sample)
        fields = located.kind.names
        if all(name in fields for name in sample):
            return fields
        with_times = (name for field in fields for name in (field, times_field(field)))
        return tuple(name for name in with_times if name in fields or name in sample)

    def _put(
        self,
        sample: dict[str, Any] | Corrupt,
        located: LocatedSamples,
        number: int,
        batch_row: BatchRow,
        bad: dict[int, Corrupt],
        seen: StepMetrics,
    ) -> None:
        if isinstance(sample, Corrupt):
            bad[number] = sample
            return
        with seen.timed("collate"):
            batch_row.put(sample, self.names(located, sample))

    def _calls(self, slots: Slots, located: LocatedSamples, into: "_Into") -> dict[str, Call]:
        by_field, calls = self._decoders[located.kind.sources[0]], dict[str, Call]()
        for field in located.kind.fields:
            decoder = by_field.get(field)
            in_rows = decoder is not None and placing(decoder) and self._recipe.transform is None
            drawing = decoder is not None and draws(decoder)
            rng_of = generators.of_slots(self._recipe.plan, slots, located.rows, field) if drawing else None
            calls[field] = decoder, rng_of, into[field] if in_rows else None
        return calls

    def _tell(
        self, stage: str, located: LocatedSamples, at: list[int], took: Mapping[int, float], seen: StepMetrics
    ) -> None:
        seen.spent(stage, sum(took.values()))
        slowest: dict[int, int] = {}
        for number, seconds in took.items():
            step = seen.steps[0] if seen.step_of is None else seen.step_of(at[number])
            if step not in slowest or seconds > took[slowest[step]]:
                slowest[step] = number
        names = self._recipe.plan.source_names
        for step, number in slowest.items():
            source = names[int(located.source[number])]
            seen.slow(stage, took[number], source, located.places.at(number).address, step)


class _Into(dict[str, FieldRows]):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __missing__(self, field: str) -> FieldRows:
        rows = self[field] = FieldRows(self._columns, field)
        return rows


def _decoded(
    payload: Payload, number: int, row: int, calls: Mapping[str, Call], places: SamplePlaces
) -> dict[str, Any] | Corrupt:
    sample: dict[str, Any] = {}
    for field, data in payload.items():
        if type(data) is ReadyValue:
            sample[field] = data.value
            continue
        decoder, rng_of, rows = calls[field]
        try:
            if rows is not None:  # decoders that fill a row keep none of the bytes
                rows.row = row
                # (a generator bound to a name here could not be reset for the next field)
                sample[field] = decoder(data, None if rng_of is None else rng_of(number), rows)  # type: ignore[call-arg, arg-type, misc]
                continue
            if type(data) is memoryview:
                data = copy_bytes(data)  # which a decoder may keep
            if decoder is None:
                sample[field] = data
            else:
                sample[field] = decoder(data, None if rng_of is None else rng_of(number))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - from the user's decoder
            reported = failure(error, decoder, places.at(number), field)
            try:
                if not isinstance(reported, Corrupt):
                    raise
                if reported is not error:
                    reported.__cause__ = error
                return reported
            finally:
                del reported  # otherwise error and frame hold each other, and the sample
    return sample


MOST_STORED_BYTES = 2**26
"""Stored bytes that are read together, unless one sample is larger."""
MOST_AHEAD_BYTES = 2**20
"""Largest stored size of a sample that is made while the previous one is used."""

TakeSample = Callable[[int, dict[str, Any]], object]
"""Function of a row and its sample (field -> value)."""


class EachSample:
    """Makes a replayed recipe's samples, in order.

    Memory: MOST_STORED_BYTES, a decoded sample, and the next one up to MOST_AHEAD_BYTES.
    """

    def __init__(
        self, recipe: Recipe, fetch: Fetch, one_sample: OneSample, samples: ManySamples, run: Map
    ) -> None:
        self._recipe, self._fetch, self._run = recipe, fetch, run
        self._one_sample, self._names = one_sample, samples.names

    def __call__(self, rank_slots: RankSlots, take: TakeSample, seen: StepMetrics) -> DeliveredSamples:
        """Pass every sample in the slots to `take`; return the samples delivered, unreadable ones masked.

        Raises: Corrupt if none is readable; errors of `take`.
        """
        delivered: list[LocatedSamples] = []
        bad: list[tuple[int, LocatedSamples, int, Corrupt]] = []

        def give(located: LocatedSamples, number: int, sample: dict[str, Any] | Corrupt) -> None:
            row = int(located.rows[number])
            if isinstance(sample, Corrupt):
                bad.append((row, located, number, sample))
            else:
                take(row, {name: sample[name] for name in self._names(located, sample)})

        with DaemonPool(1, "penstock-sample") as pool:
            for rows in self._together(rank_slots):
                for located in self._fetch.locate(rank_slots.slots, rows, self._run):
                    delivered.append(located)
                    self._each(rank_slots, located, partial(give, located), pool, seen)
        substitutions = []
        bad.sort(key=itemgetter(0))
        for row, located, number, error in bad:
            substitutions.append(masked_row(self._recipe, rank_slots, located, number, error))
            rank_slots.valid[row] = False
        return delivered_of(len(rank_slots), delivered, substitutions)

    def _each(
        self,
        rank_slots: RankSlots,
        located: LocatedSamples,
        give: Callable[[int, dict[str, Any] | Corrupt], None],
        pool: DaemonPool,
        seen: StepMetrics,
    ) -> None:
        fetched, n = self._fetch(rank_slots.slots, located, None, seen), len(located.rows)
        small = _nbytes(located) <= MOST_AHEAD_BYTES
        ahead: Future[dict[str, Any] | Corrupt] | None = None

        def sample_of(number: int) -> dict[str, Any] | Corrupt:
            payload = fetched.payloads.pop(number, {})
            return fetched.bad.get(number) or self._one_sample(
                rank_slots.slots, located, number, payload, None, seen
            )

        for number in range(n):
            sample = (
                sample_of(number) if ahead is None else ahead.result()
            )  # the previous sample is freed by now
            ahead = pool.submit(sample_of, number + 1) if number + 1 < n and small[number + 1] else None
            give(number, sample)

    def _together(self, rank_slots: RankSlots) -> Iterator[I64]:
        nbytes = np.zeros(len(rank_slots), np.int64)
        for located in self._fetch.locate(rank_slots.slots, rank_slots.real_rows, self._run):
            nbytes[located.rows] = _nbytes(located)
        rows, before = rank_slots.real_rows, np.cumsum(nbytes[rank_slots.real_rows])
        while len(rows):
            n = max(1, int(np.searchsorted(before, MOST_STORED_BYTES, "right")))
            yield rows[:n]
            rows, before = rows[n:], before[n:] - before[n - 1]


def _nbytes(located: LocatedSamples) -> I64:
    total: I64 = np.sum([at.nbytes for at in located.places.fields.values()], axis=0, dtype=np.int64)
    return total
