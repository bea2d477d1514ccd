"""Fetch windows of episodes for a batch's slots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...dataset.shards.address import UNKNOWN_CRC
from ...errors import Corrupt
from ...modalities import Decoder
from ...order.plan import Plan
from ...order.sources.window_view import WindowView
from ...order.steps.slots import Slots
from ..recipe import generators
from ..recipe.rank_slots import LocatedSamples
from ..recipe.video_packet_reads import Readers
from ..recipe.window_reads import WindowReads


class WindowSlots:
    """Fetches windows of one source; thread-safe."""

    def __init__(self, plan: Plan, reads: WindowReads) -> None:
        self._plan, self._reads = plan, reads

    def __call__(
        self, slots: Slots, located: LocatedSamples, readers: Readers
    ) -> tuple[dict[int, dict[str, Any]], dict[int, Corrupt]]:
        """Return number -> the window's fields to decode, and number -> error. Notes unknown CRC-32Cs in `located`."""

        def rng_of(number: int, field: str) -> np.random.Generator:
            place = generators.place_of(self._plan, slots, int(located.rows[number]))
            return generators.for_decoder(place, field)

        places = located.places
        read, crcs = self._reads(slots.ordinal[located.rows], places.addresses(), rng_of, readers)
        for field, at in places.fields.items():
            for number in at.unknown.tolist():
                at.crc32c[number] = crcs[number].get(field, UNKNOWN_CRC)
        payloads, bad = dict[int, dict[str, Any]](), dict[int, Corrupt]()
        for number, window in enumerate(read):
            if isinstance(window, Corrupt):
                bad[number] = window
            else:
                payloads[number] = window
        return payloads, bad


def window_slots(
    plan: Plan, views: Sequence[WindowView | None], decoders: Sequence[Mapping[str, Decoder]]
) -> list[WindowSlots | None]:
    """Return the fetch of each source; None for sources without windows. Raises: InvalidRuntime."""
    return [
        None if view is None else WindowSlots(plan, WindowReads(view, own))
        for view, own in zip(views, decoders, strict=True)
    ]
