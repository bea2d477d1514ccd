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
from ..recipe import slot_generators
from ..recipe.decode import Payload, ReadyValue, apply_transform, decode_sample, failure, own_data
from ..recipe.rank_slots import LocatedSamples
from ..recipe.recipe import Recipe, window_views
from ..recipe.video_groups import times_field
from .fetch import Fetch

if TYPE_CHECKING:
    import numpy as np


class OneSample:
    """Makes a recipe's samples, one at a time; thread-safe. decoders: per source, decoders by field.

    In all calls, `number` is a sample's index in `located`.
    """

    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        fetch: Fetch,
    ) -> None:
        self._plan = recipe.plan
        self.transforms = [recipe.source_transform(source) for source in range(len(recipe.plan.sources))]
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

        A sample that does not decode is read and decoded once more. (Bytes with a wrong checksum were read twice.)

        batch_row: row for decoders to fill; not used with a transform. None: decoders return new arrays.
        """
        sample = self._decode(
            slots,
            located,
            number,
            payload,
            batch_row,
        )
        if isinstance(sample, DecodeFailed):
            return self.read_again(slots, located, number, batch_row)
        return sample

    def read_again(
        self,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        batch_row: BatchRow | None,
    ) -> dict[str, Any] | Corrupt:
        """Read and decode a sample once more. Return it, or its error.

        Stores the checksums of the second read in `located.places`.
        """
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
        """Decode and transform a sample, and record both in the step's metrics. Return it, or its error."""
        metrics = step_metrics()
        at = located.places.at(number)
        row = int(located.rows[number])
        source = int(located.source[number])
        source_name = self._plan.source_names[source]
        transform = self.transforms[source]

        def field_rng(field: str) -> "np.random.Generator":
            key = slot_generators.generator_key(self._plan, slots, row)
            return slot_generators.decoder_generator(key, field)

        options: dict[str, Any] = {}
        # A transform may change or drop what is decoded: before one, nothing may be written into the columns.
        if batch_row is not None and transform is None:
            options["place_of"] = batch_row.value_memory
        try:
            start_s = perf_counter()
            data = {field: own_data(value) for field, value in payload.items()}
            sample = decode_sample(
                data,
                at,
                self._decoders[source],
                field_rng,
                **options,
            )
            del data  # the transform may need the memory
            decode_end_s = perf_counter()
            metrics.sample(
                "decode",
                decode_end_s - start_s,
                source_name,
                at.address,
                row,
            )
            if transform is None:
                return sample

            key = slot_generators.generator_key(self._plan, slots, row)
            sample = apply_transform(transform, sample, at, slot_generators.transform_generator(key))
            metrics.sample(
                "transform",
                perf_counter() - decode_end_s,
                source_name,
                at.address,
                row,
            )
            return sample
        except Corrupt as error:
            return error


NumberRng = Callable[[int], "np.random.Generator"]
"""Sample number -> its generator."""
FieldCall = tuple[Decoder | None, NumberRng | None, FieldRows | None]
"""A field's decoder, its generators if it draws, and the rows that it decodes into if it can."""


class ManySamples:
    """Makes many of a recipe's samples; thread-safe. decoders: per source, decoders by field.

    Makes them field by field, not sample by sample: threads contend for the interpreter's lock between two images, so
    few Python steps lie there.
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
        """Put samples of one kind into the columns. Return number -> error for each corrupt one.

        Empties `payloads`, so that bytes are freed once they are decoded.
        """
        if not self._need_one_by_one(located):
            return self._make_all(slots, located, payloads, columns)
        bad: dict[int, Corrupt] = {}
        for number in sorted(payloads):
            batch_row = BatchRow(columns, int(located.rows[number]))
            sample = self._one_sample(
                slots,
                located,
                number,
                payloads.pop(number),
                batch_row,
            )
            if isinstance(sample, Corrupt):
                bad[number] = sample
            else:
                self._put(sample, located, batch_row)
        return bad

    def _need_one_by_one(self, located: LocatedSamples) -> bool:
        """Return whether the samples are windows or have videos: a sample's frames are chosen together."""
        source = located.kind.sources[0]
        if self._windowed[source] is not None:
            return True
        decoders = self._decoders[source]
        return any(isinstance(decoders.get(field), VideoDecoder) for field in located.kind.fields)

    def _make_all(
        self,
        slots: Slots,
        located: LocatedSamples,
        payloads: dict[int, Payload],
        columns: Columns,
    ) -> dict[int, Corrupt]:
        """Make the samples in one loop. Arguments and result: as for `__call__`."""
        # Each call and line per sample holds the interpreter's lock, which all threads share: a test counts them.
        places = located.places
        row_of = located.rows.tolist()  # by number
        source_of = located.source.tolist()
        field_rows = _FieldRowsByName(columns)
        bad: dict[int, Corrupt] = {}
        decode_s: dict[int, float] = {}
        transform_s: dict[int, float] = {}
        put_s = 0.0
        rows_by_names: dict[tuple[str, ...], list[int]] = {}
        transforms = self._one_sample.transforms
        calls = self._field_calls(slots, located, field_rows)
        transform_rng: NumberRng | None = None
        names = located.kind.names
        if self._recipe.transform is not None:
            transform_rng = slot_generators.sample_generators(self._recipe.plan, slots, located.rows)
            names = ()  # each transform chooses its own
        start_s = perf_counter()
        try:
            for number in sorted(payloads):
                row = row_of[number]
                sample = _decode_payload(payloads.pop(number), number, row, calls, places)
                end_s = perf_counter()
                if not isinstance(sample, dict):
                    error = self._retry(sample, slots, located, number, columns)
                    if error is not None:
                        bad[number] = error
                    start_s = perf_counter()
                    continue
                decode_s[number] = end_s - start_s
                if transform_rng is not None and (transform := transforms[source_of[number]]) is not None:
                    sample = apply_transform(transform, sample, places.at(number), transform_rng(number))
                    transform_end_s = perf_counter()
                    transform_s[number] = transform_end_s - end_s
                    end_s = transform_end_s
                for field, value in sample.items():
                    field_rows[field].put(row, value)
                rows_by_names.setdefault(names or tuple(sample), []).append(row)
                start_s = perf_counter()
                put_s += start_s - end_s
        finally:
            self._record_seconds("decode", located, decode_s)
            if transform_s:
                self._record_seconds("transform", located, transform_s)
        # Rows are marked as filled once per field, not once per value.
        start_s = perf_counter()
        for rows in field_rows.values():
            rows.finish()
        for sample_names, filled_rows in rows_by_names.items():
            columns.put_names(filled_rows, sample_names)
        step_metrics().add_seconds("collate", put_s + perf_counter() - start_s)
        return bad

    def _retry(
        self,
        error: Corrupt,
        slots: Slots,
        located: LocatedSamples,
        number: int,
        columns: Columns,
    ) -> Corrupt | None:
        """Read a sample that did not decode once more, and put it into the columns. Return its error if that fails."""
        if not isinstance(error, DecodeFailed):
            return error
        batch_row = BatchRow(columns, int(located.rows[number]))
        sample = self._one_sample.read_again(slots, located, number, batch_row)
        if isinstance(sample, Corrupt):
            return sample
        self._put(sample, located, batch_row)
        return None

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
        sample: dict[str, Any],
        located: LocatedSamples,
        batch_row: BatchRow,
    ) -> None:
        with step_metrics().time_stage("collate"):
            batch_row.put(sample, self.names(located, sample))

    def _field_calls(
        self,
        slots: Slots,
        located: LocatedSamples,
        field_rows: "_FieldRowsByName",
    ) -> dict[str, FieldCall]:
        """Return field -> how to decode it."""
        decoders = self._decoders[located.kind.sources[0]]  # all sources of the kind have the same ones
        calls: dict[str, FieldCall] = {}
        for field in located.kind.fields:
            decoder = decoders.get(field)
            field_rng: NumberRng | None = None
            rows: FieldRows | None = None
            if decoder is not None:
                if draws(decoder):
                    field_rng = slot_generators.sample_generators(
                        self._recipe.plan, slots, located.rows, field
                    )
                # A transform may change or drop what is decoded, so only without one it goes into the rows at once.
                if placing(decoder) and self._recipe.transform is None:
                    rows = field_rows[field]
            calls[field] = (decoder, field_rng, rows)
        return calls

    def _record_seconds(
        self,
        stage: str,
        located: LocatedSamples,
        seconds: Mapping[int, float],
    ) -> None:
        """Record the seconds of a stage, and the slowest sample of each step. seconds: by sample number."""
        metrics = step_metrics()
        metrics.add_seconds(stage, sum(seconds.values()))
        slowest: dict[int, int] = {}  # step -> sample number
        for number, spent_s in seconds.items():
            step = metrics.steps[0]
            if metrics.step_of is not None:  # several steps are made together
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


class _FieldRowsByName(dict[str, FieldRows]):
    """Field -> its rows of the columns, created at the first look-up."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __missing__(self, field: str) -> FieldRows:
        rows = FieldRows(self._columns, field)
        self[field] = rows
        return rows


def _decode_payload(
    payload: Payload,
    number: int,
    row: int,
    calls: Mapping[str, FieldCall],
    places: SamplePlaces,
) -> dict[str, Any] | Corrupt:
    """Return field -> value of a sample, or its error. Raises: errors that are not about its bytes (`failure`)."""
    sample: dict[str, Any] = {}
    for field, data in payload.items():
        if type(data) is ReadyValue:
            sample[field] = data.value
            continue
        decoder, field_rng, rows = calls[field]
        try:
            # No name keeps a generator: `philox_generator` resets it for the next field only if nothing else holds it.
            if rows is not None:  # decoders that fill a row keep none of the bytes
                rows.row = row
                sample[field] = decoder(data, None if field_rng is None else field_rng(number), rows)  # type: ignore[call-arg, arg-type, misc]
                continue
            if type(data) is memoryview:
                data = copy_bytes(data)  # a decoder may keep the copy
            if decoder is None:
                sample[field] = data
            else:
                sample[field] = decoder(data, None if field_rng is None else field_rng(number))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - from the user's decoder
            reported = failure(error, decoder, places.at(number), field)
            try:
                if not isinstance(reported, Corrupt):
                    raise
                if reported is not error:  # as `raise reported from error` does
                    reported.__cause__ = error
                return reported
            finally:
                del reported  # otherwise error and frame hold each other, and the sample
    return sample
