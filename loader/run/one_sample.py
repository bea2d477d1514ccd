"""One sample from its bytes: decoded, transformed, and tried once more where it does not decode."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from ..dataset.address import SampleAddress
from ..errors import Corrupt, DecodeFailed
from ..modalities import Decoder
from ..order.slots import Slots
from . import draws
from .decode import apply_transform, decode_sample
from .fetch import Fetch, Fetched
from .recipe import Recipe
from .step_metrics import StepMetrics


class OneSample:
    """Makes samples of a recipe, one at a time; thread-safe."""

    def __init__(self, recipe: Recipe, decoders: Mapping[str, Decoder], fetch: Fetch) -> None:
        self._plan, self._transform = recipe.plan, recipe.transform
        self._decoders, self._fetch = decoders, fetch

    def __call__(
        self, slots: Slots, slot: int, address: SampleAddress, fetched: Fetched, seen: StepMetrics
    ) -> dict[str, Any] | Corrupt:
        """The sample, or why it is corrupt. One that does not decode is read and decoded once more; one whose
        checksum is wrong was read twice already. Raises: TransformFailed; what reading raises of a store that does
        not answer."""
        place = draws.place_of(self._plan, slots, slot)
        found = self._decoded(place, address, fetched, seen)
        if isinstance(found, DecodeFailed):
            seen.count("refetched")
            again = self._fetch(slots, {slot: address}, seen)[slot]
            found = self._decoded(place, address, again, seen)
        return found

    def _decoded(
        self, place: draws.Place, address: SampleAddress, fetched: Fetched, seen: StepMetrics
    ) -> dict[str, Any] | Corrupt:
        if isinstance(fetched, Corrupt):
            return fetched
        try:
            start = perf_counter()
            sample = decode_sample(
                fetched, address, self._decoders, lambda field: draws.for_decoder(place, field)
            )
            decoded = perf_counter()
            seen.spent("decode", decoded - start)
            seen.slow("decode", decoded - start, place[1], lambda: address)
            if self._transform is None:
                return sample
            sample = apply_transform(self._transform, sample, address, draws.for_transform(place))
            transform_s = perf_counter() - decoded
            seen.spent("transform", transform_s)
            seen.slow("transform", transform_s, place[1], lambda: address)
            return sample
        except Corrupt as error:
            return error
