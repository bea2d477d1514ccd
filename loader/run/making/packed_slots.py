"""Make packed sequences from documents: fetch, decode, lay out, mask bad ones.

If the root has checksums for pieces, only the needed pieces of long documents are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...dataset.reading.places import Map
from ...dataset.reading.verified_bucket_reads import PartsOfField
from ...dataset.shards.address import FieldAddress, SampleAddress
from ...dataset.versions.pack import PieceChecks, checks_of
from ...errors import Corrupt, InvalidPlan
from ...modalities import Decoder, decoder_for
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.packing import PackedView
from ..batch.batch import step_metrics
from ..batch.collate import DeliveredSamples
from ..batch.columns import BatchRow, Columns
from ..batch.slot_ids import Keys
from ..batch.substitution import Substitution, masked
from ..recipe import generators
from ..recipe.decode import apply_transform
from ..recipe.document_pieces import SlotPieces, Values, laid_out, pieces_of, sequence_address, sequence_crc
from ..recipe.rank_slots import LocatedSamples, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch, Fetched
from .many_samples import OneSample

Addresses = Mapping[int, SampleAddress]
"""Piece number -> address of its document."""


class PieceReads:
    """Reads single pieces of documents; thread-safe.

    Documents are read whole if the caller sets a decoder, or there are fields beside the tokens.
    """

    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        fetch: Fetch,
    ) -> None:
        packing = recipe.plan.pack
        assert packing is not None
        self._field = packing.field
        self._length = packing.length
        self._dtype = np.dtype(packing.dtype)
        self._fetch = fetch
        # Per source: checksums of its documents' pieces; None if its documents are read whole.
        self._checks: list[PieceChecks | None] = []
        stored = recipe.stored  # computed anew at each access
        for number, packed in enumerate(_packed_views(recipe)):
            decoder = decoders[number].get(packing.field)
            has_default_decoder = decoder is decoder_for(packing.field)
            # Checksum tables record no SHA-256: with verify="sha256" documents are read whole.
            by_sha256 = stored[number].version.verify == "sha256"
            checks = None
            if has_default_decoder and not packing.side_fields and not by_sha256:
                checks = checks_of(packed)
            self._checks.append(checks)

    def __call__(self, pieces: SlotPieces, addresses: Addresses) -> dict[int, Values | Corrupt]:
        """Return piece number -> its tokens, or its error, for pieces that are read individually."""
        by_source: dict[int, dict[int, PartsOfField]] = {}
        for piece, address in addresses.items():
            request = self._request(pieces, piece, address)
            if request is not None:
                source = int(pieces.documents.source[piece])
                by_source.setdefault(source, {})[piece] = request
        values: dict[int, Values | Corrupt] = {}
        for source, requests in by_source.items():
            read = self._fetch.parts(source, list(requests.values()))
            for piece, data in zip(requests, read, strict=True):
                if isinstance(data, Corrupt):
                    values[piece] = data
                else:
                    (tokens,) = data  # one part was requested
                    values[piece] = (np.frombuffer(tokens, self._dtype),)
        return values

    def _request(
        self,
        pieces: SlotPieces,
        piece: int,
        address: SampleAddress,
    ) -> PartsOfField | None:
        """Return the read of one piece; None if its document is read whole."""
        of = pieces.of
        checks = self._checks[int(pieces.documents.source[piece])]
        if checks is None or of.tokens[piece] <= self._length:
            return None
        # Long documents are cut every `length` tokens.
        number_in_document = int(of.start[piece]) // self._length
        place = address.fields[self._field]
        part = checks.part(address.ordinal, number_in_document, place)
        nbytes = int(of.length[piece]) * self._dtype.itemsize
        if part is None or part.nbytes != nbytes:
            return None
        return PartsOfField(
            address=address,
            field=self._field,
            runs=[[part]],
            crc_source="the checksums of its pieces",
        )


class _Document(NamedTuple):
    """A document that was read whole: sample `number` of `located`."""

    located: LocatedSamples
    number: int
    fetched: Fetched

    @property
    def address(self) -> SampleAddress:
        return self.located.places.address(self.number)


class PackedSlots:
    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        fetch: Fetch,
        run: Map,
    ) -> None:
        assert recipe.plan.pack is not None
        self._recipe = recipe
        self._packing = recipe.plan.pack
        self._views = _packed_views(recipe)
        self._fetch = fetch
        self._run = run
        self._pieces = PieceReads(recipe, decoders, fetch)
        # The transform gets whole sequences, so documents are made without it.
        self._document = OneSample(replace(recipe, transform=None), decoders, fetch)

    def __call__(self, rank_slots: RankSlots, columns: Columns) -> DeliveredSamples:
        """Store the slots' sequences in the columns, and return them.

        Raises: Corrupt if nothing may be masked; InvalidPlan if a document's length or dtype differs from the plan's.
        """
        metrics = step_metrics()
        slots = rank_slots.slots
        with metrics.timed("address"):
            pieces = self._pieces_of(rank_slots)
            documents = self._located(pieces)
        substitutions: list[Substitution] = []
        values, crcs = self._values(rank_slots, pieces, documents, substitutions)
        keys = [""] * len(columns)
        sums = np.zeros(len(columns), np.int64)
        for row, pieces_of_row in _by_row(rank_slots, pieces).items():
            start = perf_counter()
            arrays = laid_out(self._packing, pieces.of, pieces_of_row, values)
            sample: dict[str, Any] = dict(arrays)
            view = self._views[slots.source[row]]
            address = sequence_address(view, int(slots.ordinal[row]))
            metrics.spent("collate", perf_counter() - start)
            if self._recipe.transform is not None:
                sample = self._transformed(slots, row, sample, address)
            BatchRow(columns, row).put(sample, tuple(sample))
            keys[row] = address.key
            sums[row] = sequence_crc(pieces.of, pieces_of_row, crcs)
        return DeliveredSamples(
            keys=Keys(lambda: keys),
            crcs=sums,
            substitutions=substitutions,
        )

    def crcs(self, rank_slots: RankSlots) -> I64:
        """Return the sequences' `DeliveredSamples.crcs`, assuming that no document is corrupt."""
        pieces = self._pieces_of(rank_slots)
        documents = self._located(pieces)
        for located in documents:
            self._fetch.fill_unknown_crcs(located)
        crcs: dict[int, list[int]] = {}
        for located in documents:
            for number, piece in enumerate(located.rows.tolist()):
                crcs[piece] = self._field_crcs(located.places.address(number).fields)
        sums = np.zeros(len(rank_slots), np.int64)
        for row, pieces_of_row in _by_row(rank_slots, pieces).items():
            sums[row] = sequence_crc(pieces.of, pieces_of_row, crcs)
        return sums

    def _pieces_of(self, rank_slots: RankSlots) -> SlotPieces:
        """Return the pieces of the one step's sequences, without the pieces that a recorded run masked."""
        (step,) = rank_slots.steps
        pieces = pieces_of(self._recipe.plan, step, rank_slots.slots, rank_slots.real_rows)
        recorded = self._recipe.recorded
        if recorded is None:
            return pieces
        slot_of_piece = rank_slots.number[pieces.slot]  # [pieces]: slot in the global batch
        was_masked = recorded.masked(step, slot_of_piece, pieces.of.document)
        return replace(pieces, held=pieces.held | was_masked)

    def _located(self, pieces: SlotPieces) -> list[LocatedSamples]:
        readable = np.flatnonzero(~pieces.held)
        return self._fetch.locate(pieces.documents, readable, self._run)

    def _field_crcs(self, fields: Mapping[str, FieldAddress]) -> list[int]:
        return [fields[field].crc32c for field, _, _ in self._packing.layout]

    def _values(
        self,
        rank_slots: RankSlots,
        pieces: SlotPieces,
        documents: Sequence[LocatedSamples],
        substitutions: list[Substitution],
    ) -> tuple[dict[int, Values], dict[int, list[int]]]:
        """Return (piece -> its values, piece -> CRC-32C of each field of its document), without corrupt pieces."""
        (step,) = rank_slots.steps
        addresses: dict[int, SampleAddress] = {}
        for located in documents:
            for number, piece in enumerate(located.rows.tolist()):
                addresses[piece] = located.places.address(number)
        read = self._read(pieces, documents, addresses)
        values: dict[int, Values] = {}
        crcs: dict[int, list[int]] = {}
        for piece, address in sorted(addresses.items()):
            value = read.pop(piece)
            fields = address.fields
            if isinstance(value, _Document):
                document = value
                value = self._decoded(pieces, piece, document)
                # The digest covers the delivered bytes. Both reads, the second after bytes that did not decode, may
                # have stored a checksum that was unknown.
                fields = document.address.fields
            if isinstance(value, Corrupt):
                if not self._recipe.substitute:
                    raise value
                slot = int(rank_slots.number[pieces.slot[piece]])
                substitution = masked(
                    self._recipe.plan,
                    step,
                    pieces.documents,
                    piece,
                    slot,
                    address,
                    value,
                )
                substitutions.append(substitution)
                continue
            values[piece] = value
            crcs[piece] = self._field_crcs(fields)
        return values, crcs

    def _read(
        self,
        pieces: SlotPieces,
        documents: Sequence[LocatedSamples],
        addresses: Addresses,
    ) -> dict[int, Values | Corrupt | _Document]:
        """Read single pieces where the root has their checksums, else their whole documents."""
        read: dict[int, Values | Corrupt | _Document] = {**self._pieces(pieces, addresses)}
        if read:
            rest = [piece for piece in addresses if piece not in read]
            documents = self._fetch.locate(pieces.documents, np.array(rest, np.int64), self._run)
        for located in documents:
            fetched = self._fetch(pieces.documents, located, None)
            for number, piece in enumerate(located.rows.tolist()):
                read[piece] = _Document(located, number, fetched)
        return read

    def _decoded(
        self,
        pieces: SlotPieces,
        piece: int,
        document: _Document,
    ) -> Values | Corrupt:
        located, number, fetched = document
        payload = fetched.payloads.pop(number, {})
        error = fetched.bad.get(number)
        if error is not None:
            return error
        sample = self._document(pieces.documents, located, number, payload, None)
        if isinstance(sample, Corrupt):
            return sample
        start = int(pieces.of.start[piece])
        stop = start + int(pieces.of.length[piece])
        n_tokens = int(pieces.of.tokens[piece])
        values: list[np.ndarray] = []
        for field, _, dtype in self._packing.layout:
            whole = _planned(sample[field], field, np.dtype(dtype), n_tokens, document)
            values.append(whole[start:stop])
        return tuple(values)

    def _transformed(
        self,
        slots: Slots,
        row: int,
        sample: dict[str, Any],
        address: SampleAddress,
    ) -> dict[str, Any]:
        transform = self._recipe.transform_of(int(slots.source[row]))
        assert transform is not None
        place = generators.place_of(self._recipe.plan, slots, row)
        _, source, _, _ = place
        start = perf_counter()
        sample = apply_transform(transform, sample, address, generators.for_transform(place))
        step_metrics().sample(
            "transform",
            perf_counter() - start,
            source,
            lambda: address,
            row,
        )
        return sample


def _packed_views(recipe: Recipe) -> list[PackedView]:
    views = [source.view for source in recipe.plan.sources.values()]
    return [view for view in views if isinstance(view, PackedView)]


def _by_row(rank_slots: RankSlots, pieces: SlotPieces) -> dict[int, list[int]]:
    """Return row -> numbers of its pieces, for each row with a sequence."""
    numbers: dict[int, list[int]] = {row: [] for row in rank_slots.real_rows.tolist()}
    for number, row in enumerate(pieces.slot.tolist()):
        numbers[row].append(number)
    return numbers


def _planned(
    value: object,
    field: str,
    dtype: np.dtype[Any],
    n: int,
    document: _Document,
) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        got = repr(type(value))
    elif value.shape == (n,) and value.dtype == dtype:
        return value
    else:
        got = f"{value.dtype} {list(value.shape)}"
    place = document.address.describe(field)
    raise InvalidPlan(
        f"{place} is {got}; it was packed as {dtype} [{n}]. Store the field of all documents in one dtype, with a "
        "value per token; correct the column of pack(lengths=); or leave such documents out with where()"
    )
