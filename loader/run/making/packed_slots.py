"""Make packed sequences from documents: fetch, decode, lay out, mask bad ones.

If the root has checksums for pieces, only the needed pieces of long documents are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...dataset.reading.verified_bucket_reads import Map, PartsOfField
from ...dataset.shards.address import SampleAddress
from ...dataset.versions.pack import checks_of
from ...errors import Corrupt, InvalidPlan
from ...modalities import Decoder, decoder_for
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.packing import PackedView
from ..batch.batch import Keys, StepMetrics
from ..batch.collate import DeliveredSamples
from ..batch.columns import BatchRow, Columns
from ..batch.substitution import Substitution, masked
from ..recipe import generators
from ..recipe.decode import apply_transform
from ..recipe.document_pieces import SlotPieces, Values, laid_out, pieces_of, sequence_address, sequence_crc
from ..recipe.rank_slots import LocatedSamples, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch, Fetched
from .many_samples import OneSample


class PieceReads:
    """Reads single pieces of documents; thread-safe.

    Documents are read whole if the caller sets a decoder, or there are fields beside the tokens.
    """

    def __init__(self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], fetch: Fetch) -> None:
        packing = recipe.plan.pack
        assert packing is not None
        self._field, self._length = packing.field, packing.length
        self._dtype, self._fetch = np.dtype(packing.dtype), fetch
        views = [
            source.view for source in recipe.plan.sources.values() if isinstance(source.view, PackedView)
        ]
        ours = [
            own.get(packing.field) is decoder_for(packing.field) and not packing.side_fields
            for own in decoders
        ]
        # Checksum tables record no SHA-256: with verify="sha256" documents are read whole.
        proved = [view.version.verify == "sha256" for view in recipe.views]
        self._checks = [
            checks_of(view) if own and not by_sha256 else None
            for view, own, by_sha256 in zip(views, ours, proved, strict=True)
        ]

    def __call__(
        self, pieces: SlotPieces, addresses: Mapping[int, SampleAddress], seen: StepMetrics
    ) -> dict[int, Values | Corrupt]:
        """Return piece number -> its tokens, or its error, for pieces that are read individually."""
        by_field: dict[int, dict[int, PartsOfField]] = {}
        for number, address in addresses.items():
            source, of = int(pieces.documents.source[number]), pieces.of
            checks, start = self._checks[source], int(of.start[number])
            if checks is None or of.tokens[number] <= self._length:
                continue
            part = checks.part(address.ordinal, start // self._length, address.fields[self._field])
            if part is not None and part.nbytes == of.length[number] * self._dtype.itemsize:
                by_field.setdefault(source, {})[number] = PartsOfField(
                    address, self._field, [[part]], "the checksums of its pieces"
                )
        out: dict[int, Values | Corrupt] = {}
        for source, numbers in by_field.items():
            read = self._fetch.parts(source, list(numbers.values()), seen)
            for number, data in zip(numbers, read, strict=True):
                out[number] = data if isinstance(data, Corrupt) else (np.frombuffer(data[0], self._dtype),)
        return out


class _Document(NamedTuple):
    located: LocatedSamples
    number: int
    fetched: Fetched


class PackedSlots:
    def __init__(
        self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], fetch: Fetch, run: Map
    ) -> None:
        self._recipe, self._fetch, self._run = recipe, fetch, run
        self._pieces = PieceReads(recipe, decoders, fetch)
        self._document = OneSample(replace(recipe, transform=None), decoders, fetch)

    def __call__(self, rank_slots: RankSlots, columns: Columns, seen: StepMetrics) -> DeliveredSamples:
        """Store the slots' sequences in the columns, and return them.

        Raises: Corrupt if nothing may be masked; InvalidPlan if a document's length or dtype differs from the plan's.
        """
        plan, packing = self._recipe.plan, self._recipe.plan.pack
        assert packing is not None
        with seen.timed("address"):
            (step,) = rank_slots.steps
            pieces = self._recorded(rank_slots, pieces_of(plan, step, rank_slots.slots, rank_slots.real_rows))
            documents = self._located(pieces)
        substitutions: list[Substitution] = []
        values, crcs = self._values(rank_slots, pieces, documents, substitutions, seen)
        numbers: dict[int, list[int]] = {row: [] for row in rank_slots.real_rows.tolist()}
        for number, row in enumerate(pieces.slot.tolist()):
            numbers[row].append(number)
        views = [source.view for source in plan.sources.values() if isinstance(source.view, PackedView)]
        keys, sums = [""] * len(columns), np.zeros(len(columns), np.int64)
        for row, pieces_of_row in numbers.items():
            start = perf_counter()
            sample: dict[str, Any] = dict(laid_out(packing, pieces.of, pieces_of_row, values))
            address = sequence_address(
                views[rank_slots.slots.source[row]], int(rank_slots.slots.ordinal[row])
            )
            seen.spent("collate", perf_counter() - start)
            if self._recipe.transform is not None:
                sample = self._transformed(rank_slots.slots, row, sample, address, seen)
            BatchRow(columns, row).put(sample, tuple(sample))
            keys[row], sums[row] = address.key, sequence_crc(pieces.of, pieces_of_row, crcs)
        return DeliveredSamples(keys=Keys(lambda: keys), crcs=sums, substitutions=substitutions)

    def crcs(self, rank_slots: RankSlots) -> I64:
        """Return the sequences' `DeliveredSamples.crcs`, assuming that no document is corrupt."""
        plan = self._recipe.plan
        assert plan.pack is not None
        pieces = self._recorded(
            rank_slots, pieces_of(plan, rank_slots.steps[0], rank_slots.slots, rank_slots.real_rows)
        )
        located = self._located(pieces)
        for of_source in located:
            self._fetch.learn(of_source, StepMetrics(rank_slots.steps))
        crcs = {
            piece: [int(of_source.places.fields[field].crc32c[number]) for field, _, _ in plan.pack.layout]
            for of_source in located
            for number, piece in enumerate(of_source.rows.tolist())
        }
        sums = np.zeros(len(rank_slots), np.int64)
        for row in rank_slots.real_rows.tolist():
            sums[row] = sequence_crc(pieces.of, np.flatnonzero(pieces.slot == row).tolist(), crcs)
        return sums

    def _recorded(self, rank_slots: RankSlots, pieces: SlotPieces) -> SlotPieces:
        recorded = self._recipe.recorded
        if recorded is None:
            return pieces
        was_masked = recorded.masked(rank_slots.steps[0], rank_slots.number[pieces.slot], pieces.of.document)
        return replace(pieces, held=pieces.held | was_masked)

    def _located(self, pieces: SlotPieces) -> list[LocatedSamples]:
        return self._fetch.locate(pieces.documents, np.flatnonzero(~pieces.held), self._run)

    def _values(
        self,
        rank_slots: RankSlots,
        pieces: SlotPieces,
        documents: Sequence[LocatedSamples],
        substitutions: list[Substitution],
        seen: StepMetrics,
    ) -> tuple[dict[int, Values], dict[int, list[int]]]:
        plan = self._recipe.plan
        assert plan.pack is not None
        values: dict[int, Values] = {}
        crcs: dict[int, list[int]] = {}
        addresses = {
            piece: located.places.address(number)
            for located in documents
            for number, piece in enumerate(located.rows.tolist())
        }
        read: dict[int, Values | Corrupt | _Document] = {**self._pieces(pieces, addresses, seen)}
        if read:  # these are not read whole
            whole = np.array([piece for piece in addresses if piece not in read], np.int64)
            documents = self._fetch.locate(pieces.documents, whole, self._run)
        for located in documents:
            fetched = self._fetch(pieces.documents, located, None, seen)
            read.update(
                (piece, _Document(located, number, fetched))
                for number, piece in enumerate(located.rows.tolist())
            )
        for piece, address in sorted(addresses.items()):
            value, places = read.pop(piece), address.fields
            if isinstance(value, _Document):
                places = value.located.places.address(
                    value.number
                ).fields  # with the checksums of the bytes just read
                value = self._decoded(pieces, piece, value, seen)
            if isinstance(value, Corrupt):
                if not self._recipe.substitute:
                    raise value
                slot = int(rank_slots.number[pieces.slot[piece]])
                substitutions.append(
                    masked(plan, rank_slots.steps[0], pieces.documents, piece, slot, address, value)
                )
                continue
            values[piece] = value
            crcs[piece] = [places[field].crc32c for field, _, _ in plan.pack.layout]
        return values, crcs

    def _decoded(
        self, pieces: SlotPieces, piece: int, read: "_Document", seen: StepMetrics
    ) -> Values | Corrupt:
        packing, (located, number, fetched) = self._recipe.plan.pack, read
        assert packing is not None
        payload = fetched.payloads.pop(number, {})
        value = fetched.bad.get(number) or self._document(
            pieces.documents, located, number, payload, None, seen
        )
        if isinstance(value, Corrupt):
            return value
        start, address = int(pieces.of.start[piece]), located.places.address(number)
        here, n = slice(start, start + int(pieces.of.length[piece])), int(pieces.of.tokens[piece])
        return tuple(
            _planned(value[field], field, np.dtype(dtype), n, address)[here]
            for field, _, dtype in packing.layout
        )

    def _transformed(
        self, slots: Slots, slot: int, sample: dict[str, Any], address: SampleAddress, seen: StepMetrics
    ) -> dict[str, Any]:
        transform = self._recipe.transform_of(int(slots.source[slot]))
        place = generators.place_of(self._recipe.plan, slots, slot)
        assert transform is not None
        start = perf_counter()
        sample = apply_transform(transform, sample, address, generators.for_transform(place))
        seen.sample("transform", perf_counter() - start, place[1], lambda: address, slot)
        return sample


def _planned(value: object, field: str, dtype: np.dtype[Any], n: int, address: SampleAddress) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.shape == (n,) and value.dtype == dtype:
        return value
    got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else repr(type(value))
    raise InvalidPlan(
        f"{address.describe(field)} is {got}; it was packed as {dtype} [{n}]. Store the field of all documents in one "
        "dtype, with a value per token; correct the column of pack(lengths=); or leave such documents out with where()"
    )
