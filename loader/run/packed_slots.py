"""Packed sequences from their documents: fetched, decoded and laid out; what is known or found to be bad is masked."""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from ..dataset.address import SampleAddress
from ..dataset.read import Map
from ..errors import Corrupt, InvalidPlan
from ..modalities import Decoder
from ..order.keys import I64
from ..order.packed_view import PackedView
from ..order.slots import Slots
from . import draws
from .addresses import addresses_of, sequence_address
from .collate import BatchRows
from .decode import apply_transform
from .delivered import Delivered
from .fetch import Fetch
from .one_sample import OneSample
from .piece_reads import PieceReads
from .pieces import SlotPieces, laid_out, pieces_of, sequence_crc
from .rank_slots import RankSlots
from .recipe import Recipe
from .step_metrics import StepMetrics
from .substitution import Substitution, masked


class PackedSlots:
    """Makes the packed sequences of a recipe; thread-safe."""

    def __init__(self, recipe: Recipe, decoders: Mapping[str, Decoder], fetch: Fetch, run: Map) -> None:
        self._recipe, self._views, self._fetch, self._run = recipe, recipe.views, fetch, run
        self._pieces = PieceReads(recipe, decoders, fetch)
        self._document = OneSample(replace(recipe, transform=None), decoders, fetch)

    def addresses(self, step: int, slots: Slots, wanted: I64) -> list[SampleAddress]:
        """Where the documents of these slots lie."""
        pieces = pieces_of(self._recipe.plan, step, slots, wanted)
        return list(self._addresses(pieces).values())

    def __call__(
        self, mine: RankSlots, rows: BatchRows, substitutions: list[Substitution], seen: StepMetrics
    ) -> Delivered:
        """The sequences of the wanted slots; those of the rank's own lie in the batch's memory. Raises: Corrupt where
        nothing may be masked; InvalidPlan for a document that is not the length, or the dtype, that was planned;
        TransformFailed; what reading raises."""
        plan, packing = self._recipe.plan, self._recipe.plan.pack
        assert packing is not None
        with seen.timed("address"):
            pieces = pieces_of(plan, seen.step, mine.slots, mine.wanted)
            addresses = self._addresses(pieces)
        tokens, crcs = self._tokens(pieces, addresses, substitutions, seen)
        numbers: dict[int, list[int]] = {slot: [] for slot in mine.wanted.tolist()}
        for number, slot in enumerate(pieces.slot.tolist()):
            numbers[slot].append(number)
        views = [one.view for one in plan.sources.values() if isinstance(one.view, PackedView)]
        first, out = int(mine.mine[0]), Delivered(samples={}, keys={}, crcs={})
        for slot, some in numbers.items():
            start = perf_counter()
            sample: dict[str, Any] = dict(laid_out(packing, pieces.of, some, tokens))
            address = sequence_address(views[mine.slots.source[slot]], int(mine.slots.ordinal[slot]))
            seen.spent("collate", perf_counter() - start)
            if self._recipe.transform is not None:
                sample = self._transformed(mine.slots, slot, sample, address, seen)
            out.samples[slot] = rows.take(slot - first, sample) if 0 <= slot - first < len(rows) else sample
            out.keys[slot], out.crcs[slot] = address.key, sequence_crc(pieces.of, some, crcs)
        return out

    def _addresses(self, pieces: SlotPieces) -> dict[int, SampleAddress]:
        return addresses_of(self._views, pieces.documents, np.flatnonzero(~pieces.held), self._run)

    def _tokens(
        self,
        pieces: SlotPieces,
        addresses: dict[int, SampleAddress],
        substitutions: list[Substitution],
        seen: StepMetrics,
    ) -> tuple[dict[int, np.ndarray], dict[int, int]]:
        """Number of a piece -> its tokens, and the CRC-32C of its document's field. Those masked are in neither."""
        plan = self._recipe.plan
        assert plan.pack is not None
        tokens: dict[int, np.ndarray] = {}
        crcs: dict[int, int] = {}
        alone = self._pieces(pieces, addresses, seen)
        whole = {number: address for number, address in addresses.items() if number not in alone}
        data = self._fetch(pieces.documents, whole, seen)
        for number, address in addresses.items():
            found: np.ndarray | dict[str, Any] | Corrupt = (
                alone[number]
                if number in alone
                else self._document(pieces.documents, number, address, data.pop(number), seen)
            )
            if isinstance(found, Corrupt):
                if not self._recipe.substitute:
                    raise found
                substitutions.append(
                    masked(
                        plan, seen.step, pieces.documents, number, int(pieces.slot[number]), address, found
                    )
                )
                continue
            if isinstance(found, dict):
                start = int(pieces.of.start[number])
                found = self._planned(found[plan.pack.field], pieces, number, address)
                found = found[start : start + int(pieces.of.length[number])]
            tokens[number] = found
            crcs[number] = address.fields[plan.pack.field].crc32c
        return tokens, crcs

    def _planned(self, array: object, pieces: SlotPieces, number: int, address: SampleAddress) -> np.ndarray:
        """The tokens of a document, which are as many as the table says. Raises: InvalidPlan."""
        packing = self._recipe.plan.pack
        assert packing is not None
        wanted, n = np.dtype(packing.dtype), int(pieces.of.tokens[number])
        if isinstance(array, np.ndarray) and array.shape == (n,) and array.dtype == wanted:
            return array
        got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else repr(type(array))
        raise InvalidPlan(
            f"{address.describe(packing.field)} is {got}; it was packed as {wanted} [{n}]. Store all documents in one "
            "dtype, correct the column of pack(lengths=), or leave such documents out with where()"
        )

    def _transformed(
        self, slots: Slots, slot: int, sample: dict[str, Any], address: SampleAddress, seen: StepMetrics
    ) -> dict[str, Any]:
        transform, place = self._recipe.transform, draws.place_of(self._recipe.plan, slots, slot)
        assert transform is not None
        start = perf_counter()
        sample = apply_transform(transform, sample, address, draws.for_transform(place))
        transform_s = perf_counter() - start
        seen.spent("transform", transform_s)
        seen.slow("transform", transform_s, place[1], lambda: address)
        return sample
