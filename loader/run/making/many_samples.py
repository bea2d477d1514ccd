"""Decode and transform the samples of one read into their rows; retry one whose bytes do not decode."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...dataset.reading.sample_places import SamplePlaces
from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder, draws, placing
from ...modalities.video.request import VideoDecoder
from ...native import copy_bytes
from ...order.slots import Slots
from ..batch.batch import step_metrics
from ..batch.columns import BatchRow, Columns, FieldRows
from ..recipe import generators
from ..recipe.decode import ReadyValue, apply_transform, decode_sample, failure
from ..recipe.rank_slots import LocatedSamples
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_packet_reads import times_field
from .fetch import Fetch, Payload, owned

if TYPE_CHECKING:
    import numpy as np


class OneSample:
    """Makes a recipe's samples, one at a time; thread-safe. decoders: per source, decoders by field."""

    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        fetch: Fetch,
    ) -> None:
        self._plan = recipe.plan
        self.transforms = [recipe.transform_of(source) for source in range(len(recipe.plan.sources))]
        self._decoders = decoders
        self._fetch = fetch

    def __call__(
        self,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        payload: Payload,
        batch_row: BatchRow | None,
    ) -> dict[str, Any] | Corrupt:
        """Return the sample, or its error if it is corrupt.

        A sample that does not decode is read and decoded once more; a wrong checksum was already read twice. batch_row:
        row for decoders to fill, without a transform.
        """
        sample = self._decode(
            slots,
            located,
            number,
            payload,
            batch_row,
        )
        if isinstance(sample, DecodeFailed):
            return self.again(slots, located, number, batch_row)
        return sample

    def again(
        self,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        batch_row: BatchRow | None,
    ) -> dict[str, Any] | Corrupt:
        """Read and decode a sample once more. Return it, or its error."""
        step_metrics().count("refetched")
        alone = self._fetch.locate.again(slots, int(located.rows[number]))
        fetched = self._fetch(slots, alone, None)
        # The digest covers the delivered bytes.
        for field, places in located.places.fields.items():
            places.crc32c[number] = alone.places.fields[field].crc32c[0]
        error = fetched.bad.get(0)
        if error is not None:
            return error
        return self._decode(
            slots,
            alone,
            0,
            fetched.payloads[0],
            batch_row,
        )

    def _decode(
        self,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        payload: Payload,
        batch_row: BatchRow | None,
    ) -> dict[str, Any] | Corrupt:
        metrics = step_metrics()
        at = located.places.at(number)
        row = int(located.rows[number])
        source = int(located.source[number])
        source_name = self._plan.source_names[source]
        transform = self.transforms[source]

        def rng_of(field: str) -> "np.random.Generator":
            place = generators.place_of(self._plan, slots, row)
            return generators.for_decoder(place, field)

        options: dict[str, Any] = {}
        if batch_row is not None and transform is None:
            options["place_of"] = batch_row.place_of
        try:
            start = perf_counter()
            data = {field: owned(value) for field, value in payload.items()}
            sample = decode_sample(
                data,
                at,
                self._decoders[source],
                rng_of,
                **options,
            )
            del data  # the transform may need the memory
            decoded = perf_counter()
            metrics.sample(
                "decode",
                decoded - start,
                source_name,
                at.address,
                row,
            )
            if transform is None:
                return sample
            place = generators.place_of(self._plan, slots, row)
            sample = apply_transform(transform, sample, at, generators.for_transform(place))
            metrics.sample(
                "transform",
                perf_counter() - decoded,
                source_name,
                at.address,
                row,
            )
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
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        one_sample: OneSample,
    ) -> None:
        self._recipe = recipe
        self._decoders = decoders
        self._one_sample = one_sample
        self._windowed = window_views(recipe.plan)

    def __call__(
        self,
        slots: Slots,
        located: LocatedSamples,
        payloads: dict[int, Payload],
        columns: Columns,
    ) -> dict[int, Corrupt]:
        """Store samples of one kind in the columns. Return number -> error for each corrupt one.

        payloads: emptied, so that bytes are freed once they are decoded.
        """
        bad: dict[int, Corrupt] = {}
        if not self._need_one_by_one(located):
            self._loop(
                slots,
                located,
                payloads,
                columns,
                bad,
            )
            return bad
        for number in sorted(payloads):
            batch_row = BatchRow(columns, int(located.rows[number]))
            sample = self._one_sample(
                slots,
                located,
                number,
                payloads.pop(number),
                batch_row,
            )
            self._put(
                sample,
                located,
                number,
                batch_row,
                bad,
            )
        return bad

    def _need_one_by_one(self, located: LocatedSamples) -> bool:
        """Return whether the samples are windows or have videos: a sample's frames are chosen together."""
        source = located.kind.sources[0]
        if self._windowed[source] is not None:
            return True
        decoders = self._decoders[source]
        return any(isinstance(decoders.get(field), VideoDecoder) for field in located.kind.fields)

    def _loop(
        self,
        slots: Slots,
        located: LocatedSamples,
        payloads: dict[int, Payload],
        columns: Columns,
        bad: dict[int, Corrupt],
    ) -> None:
        # Each call and line per sample holds the interpreter's lock, which all threads share: a test counts them.
        places = located.places
        row_of = located.rows.tolist()
        source_of = located.source.tolist()
        into = _Into(columns)
        decode_s: dict[int, float] = {}
        transform_s: dict[int, float] = {}
        put_s = 0.0
        rows_by_names: dict[tuple[str, ...], list[int]] = {}
        transforms = self._one_sample.transforms
        calls = self._calls(slots, located, into)
        rng_of: RngOf | None = None
        names = located.kind.names
        if self._recipe.transform is not None:
            rng_of = generators.of_slots(self._recipe.plan, slots, located.rows)
            names = ()  # each transform chooses its own
        begun = perf_counter()
        try:
            for number in sorted(payloads):
                row = row_of[number]
                sample = _decoded(payloads.pop(number), number, row, calls, places)
                decoded = perf_counter()
                if not isinstance(sample, dict):
                    self._retry(sample, slots, located, number, columns, bad)
                    begun = perf_counter()
                    continue
                decode_s[number] = decoded - begun
                if rng_of is not None and (transform := transforms[source_of[number]]) is not None:
                    sample = apply_transform(transform, sample, places.at(number), rng_of(number))
                    transformed = perf_counter()
                    transform_s[number] = transformed - decoded
                    decoded = transformed
                for field, value in sample.items():
                    into[field].put(row, value)
                rows_by_names.setdefault(names or tuple(sample), []).append(row)
                begun = perf_counter()
                put_s += begun - decoded
        finally:
            self._record_seconds("decode", located, decode_s)
            if transform_s:
                self._record_seconds("transform", located, transform_s)
        # Rows are marked as filled once per field, not once per value.
        begun = perf_counter()
        for rows in into.values():
            rows.finish()
        for sample_names, filled in rows_by_names.items():
            columns.put_names(filled, sample_names)
        step_metrics().spent("collate", put_s + perf_counter() - begun)

    def _retry(
        self,
        error: Corrupt,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        columns: Columns,
        bad: dict[int, Corrupt],
    ) -> None:
        if not isinstance(error, DecodeFailed):
            bad[number] = error
            return
        batch_row = BatchRow(columns, int(located.rows[number]))
        sample = self._one_sample.again(slots, located, number, batch_row)
        self._put(
            sample,
            located,
            number,
            batch_row,
            bad,
        )

    def names(self, located: LocatedSamples, sample: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of a sample's values in the order of a batch."""
        is_windowed = self._windowed[located.kind.sources[0]] is not None
        if self._recipe.transform is not None or is_windowed:
            return tuple(sample)
        names_of_kind = located.kind.names
        if all(name in names_of_kind for name in sample):
            return names_of_kind
        # Videos add the times of their frames, each after its field.
        names: list[str] = []
        for field in names_of_kind:
            names.append(field)
            times = times_field(field)
            if times in names_of_kind or times in sample:
                names.append(times)
        return tuple(names)

    def _put(
        self,
        sample: dict[str, Any] | Corrupt,
        located: LocatedSamples,
        number: int,
        batch_row: BatchRow,
        bad: dict[int, Corrupt],
    ) -> None:
        if isinstance(sample, Corrupt):
            bad[number] = sample
            return
        with step_metrics().timed("collate"):
            batch_row.put(sample, self.names(located, sample))

    def _calls(
        self,
        slots: Slots,
        located: LocatedSamples,
        into: "_Into",
    ) -> dict[str, Call]:
        decoders = self._decoders[located.kind.sources[0]]
        calls: dict[str, Call] = {}
        for field in located.kind.fields:
            decoder = decoders.get(field)
            rng_of: RngOf | None = None
            rows: FieldRows | None = None
            if decoder is not None:
                if draws(decoder):
                    rng_of = generators.of_slots(self._recipe.plan, slots, located.rows, field)
                if placing(decoder) and self._recipe.transform is None:
                    rows = into[field]
            calls[field] = (decoder, rng_of, rows)
        return calls

    def _record_seconds(
        self,
        stage: str,
        located: LocatedSamples,
        seconds: Mapping[int, float],
    ) -> None:
        """Record the seconds of a stage by sample number, and the slowest sample of each step."""
        metrics = step_metrics()
        metrics.spent(stage, sum(seconds.values()))
        slowest: dict[int, int] = {}  # step -> sample number
        for number, spent_s in seconds.items():
            step = metrics.steps[0]
            if metrics.step_of is not None:
                step = metrics.step_of(int(located.rows[number]))
            if step not in slowest or spent_s > seconds[slowest[step]]:
                slowest[step] = number
        source_names = self._recipe.plan.source_names
        for step, number in slowest.items():
            source = source_names[int(located.source[number])]
            address = located.places.at(number).address
            metrics.slow(
                stage,
                seconds[number],
                source,
                address,
                step,
            )


class _Into(dict[str, FieldRows]):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __missing__(self, field: str) -> FieldRows:
        rows = FieldRows(self._columns, field)
        self[field] = rows
        return rows


def _decoded(
    payload: Payload,
    number: int,
    row: int,
    calls: Mapping[str, Call],
    places: SamplePlaces,
) -> dict[str, Any] | Corrupt:
    sample: dict[str, Any] = {}
    for field, data in payload.items():
        if type(data) is ReadyValue:
            sample[field] = data.value
            continue
        decoder, rng_of, rows = calls[field]
        try:
            # A generator bound to a name could not be reset for the next field, so each call makes its own.
            if rows is not None:  # decoders that fill a row keep none of the bytes
                rows.row = row
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
