"""One sample from its bytes: decoded, transformed, and tried once more where it does not decode."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder
from ...order.steps.slots import Slots
from ..batch.columns import BatchRow
from ..batch.step_metrics import StepMetrics
from ..recipe import generators
from ..recipe.decode import apply_transform, decode_sample
from ..recipe.rank_slots import Located
from ..recipe.recipe import Recipe
from .fetch import Fetch, Payload, whole


class OneSample:
    """Makes samples of a recipe, one at a time; thread-safe. decoders: per source, by field."""

    def __init__(self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], fetch: Fetch) -> None:
        self._plan = recipe.plan
        self.transforms = [recipe.transform_of(source) for source in range(len(recipe.views))]
        """Transform of each source; None for none."""
        self._decoders, self._fetch = decoders, fetch

    def __call__(
        self,
        slots: Slots,
        wanted: Located,
        number: int,
        payload: Payload,
        batch_row: BatchRow | None,
        seen: StepMetrics,
    ) -> dict[str, Any] | Corrupt:
        """Return the sample, or why it is corrupt.

        One that does not decode is read and decoded once more; one whose checksum is wrong was read twice already.
        batch_row: rows where decoders may put their values, unless there is a transform. Raises: TransformFailed;
        errors of a store that does not answer.
        """
        found = self._made(slots, wanted, number, payload, batch_row, seen)
        return (
            self.again(slots, wanted, number, batch_row, seen) if isinstance(found, DecodeFailed) else found
        )

    def again(
        self, slots: Slots, wanted: Located, number: int, batch_row: BatchRow | None, seen: StepMetrics
    ) -> dict[str, Any] | Corrupt:
        """Return a sample that did not decode, read once more, or why it is corrupt. Raises: as a call."""
        seen.count("refetched")
        alone = self._fetch.locate.again(slots, int(wanted.rows[number]))
        again = self._fetch(slots, alone, None, seen)
        for field, places in wanted.places.fields.items():  # the digest is of what is delivered
            places.crc32c[number] = alone.places.fields[field].crc32c[0]
        return again.bad.get(0) or self._made(slots, alone, 0, again.payloads[0], batch_row, seen)

    def _made(
        self,
        slots: Slots,
        wanted: Located,
        number: int,
        payload: Payload,
        batch_row: BatchRow | None,
        seen: StepMetrics,
    ) -> dict[str, Any] | Corrupt:
        at, row, of = wanted.places.at(number), int(wanted.rows[number]), int(wanted.source[number])
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
