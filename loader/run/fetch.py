"""The bytes of samples, read and verified, counted per step."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..dataset.address import SampleAddress
from ..dataset.read import Map, OnCorrupt, PartsOfField, read_fields, read_parts
from ..errors import Corrupt
from ..modalities import Decoder
from ..order.slots import Slots
from ..storage import RangeReader
from . import draws
from .node_reads import NodeReads
from .recipe import Recipe
from .step_metrics import StepMetrics
from .video_reads import BareClip, Group, Readers, read_samples

Fetched = dict[str, bytes | BareClip] | Corrupt
"""Field -> what there is to decode, or why the sample cannot be read."""


class Fetch:
    """Reads samples of a recipe's views. Keeps the ETags of the shards that it has read; thread-safe.

    videos: per view, the groups of its video fields (`video_reads.groups_of`).
    """

    def __init__(
        self,
        recipe: Recipe,
        decoders: Mapping[str, Decoder],
        videos: Sequence[Sequence[Group]],
        reads: NodeReads,
        run: Map,
    ) -> None:
        self._plan, self._views = recipe.plan, recipe.views
        self._decoders, self._videos, self._reads, self._run = decoders, videos, reads, run
        self._pins: dict[str, str] = {}

    def __call__(
        self, slots: Slots, addresses: Mapping[int, SampleAddress], seen: StepMetrics
    ) -> dict[int, Fetched]:
        """slot -> what was read of it. Raises: what reading raises, except Corrupt."""
        with seen.timed_fetch():
            data: dict[int, Fetched] = {}
            for index, view in enumerate(self._views):
                mine = [slot for slot in addresses if slots.source[slot] == index]
                places = partial(self._place, slots, mine)
                read = read_samples(
                    view,
                    self._videos[index],
                    self._decoders,
                    [addresses[slot] for slot in mine],
                    lambda i, field, places=places: draws.for_decoder(places(i), field),  # type: ignore[misc]
                    self._readers(self._reads[index], self._plan.source_names[index], seen),
                )
                data.update(zip(mine, read, strict=True))
            return data

    def parts(
        self, view: int, wanted: Sequence[PartsOfField], seen: StepMetrics
    ) -> list[list[bytes | memoryview] | Corrupt]:
        """The parts of each item of `wanted`, all of one view, or why it is corrupt. Raises: as `__call__` does."""
        bad: dict[int, Corrupt] = {}
        with seen.timed_fetch():
            readers = self._readers(self._reads[view], self._plan.source_names[view], seen)
            read = readers.parts(wanted, bad.setdefault)
        return [bad.get(number, parts) for number, parts in enumerate(read)]

    def _place(self, slots: Slots, mine: Sequence[int], number: int) -> draws.Place:
        return draws.place_of(self._plan, slots, mine[number])

    def _readers(self, store: RangeReader, source: str, seen: StepMetrics) -> Readers:
        """How to read from a store, and count what was read."""
        how: dict[str, Any] = {
            "pins": self._pins,
            "run": self._run,
            "on_refetch": partial(seen.count, "refetched"),
            "on_read": partial(seen.read, source),
        }

        def fields(addresses: Sequence[SampleAddress], on_corrupt: OnCorrupt) -> list[dict[str, bytes]]:
            read = read_fields(store, addresses, on_corrupt=on_corrupt, **how)
            seen.count("fetched_bytes", sum(len(data) for one in read for data in one.values()))
            return read

        def parts(wanted: Sequence[PartsOfField], on_corrupt: OnCorrupt) -> list[list[bytes | memoryview]]:
            read = read_parts(store, wanted, on_corrupt=on_corrupt, **how)
            seen.count("fetched_bytes", sum(len(data) for one in read for data in one))
            return read

        return Readers(fields=fields, parts=parts, run=self._run)
