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
from ...order.sources.packing import PackedView, RaggedField
from ..batch.batch import step_metrics
from ..batch.collate import DeliveredSamples
from ..batch.columns import BatchRow, Columns
from ..batch.slot_ids import Keys
from ..batch.substitution import Substitution, masked
from ..recipe import generators
from ..recipe.decode import apply_transform
from ..recipe.document_pieces import (
    SlotPieces,
    Values,
    find_pieces,
    joined_rows,
    lay_out,
    sequence_address,
    sequence_crc,
)
from ..recipe.rank_slots import LocatedSamples, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch, Fetched
from .many_samples import OneSample
from .step_totals import PieceColumns, StepTotals, text_array

Addresses = Mapping[int, SampleAddress]
"""Piece number -> address of its document."""


class PieceReads:
    """Reads single pieces of documents; thread-safe.

    A piece can be read singly if the root has its checksum, the tokens have the default decoder, and no fields lie
    beside them. Other documents are read whole.
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
        """Return piece number -> its tokens, or its error, for the pieces that are read singly."""
        requests_by_source: dict[int, dict[int, PartsOfField]] = {}  # source -> piece number -> request
        for piece, address in addresses.items():
            request = self._request(pieces, piece, address)
            if request is not None:
                source = int(pieces.documents.source[piece])
                requests = requests_by_source.setdefault(source, {})
                requests[piece] = request

        values: dict[int, Values | Corrupt] = {}
        for source, requests in requests_by_source.items():
            parts_by_piece = self._fetch.parts(source, list(requests.values()))
            for piece, parts in zip(requests, parts_by_piece, strict=True):
                if isinstance(parts, Corrupt):
                    values[piece] = parts
                else:
                    (tokens,) = parts  # one part was requested
                    values[piece] = (np.frombuffer(tokens, self._dtype),)
        return values

    def _request(
        self,
        pieces: SlotPieces,
        piece: int,
        address: SampleAddress,
    ) -> PartsOfField | None:
        """Return the read of one piece; None if its document is read whole."""
        positions = pieces.positions
        checks = self._checks[int(pieces.documents.source[piece])]
        # Only split documents have checksums for their pieces.
        is_split = positions.tokens[piece] > self._length
        if checks is None or not is_split:
            return None
        # Long documents are cut every `length` tokens.
        number_in_document = int(positions.start[piece]) // self._length
        place = address.fields[self._field]
        part = checks.part(address.ordinal, number_in_document, place)
        nbytes = int(positions.length[piece]) * self._dtype.itemsize
        if part is None or part.nbytes != nbytes:  # no checksum, or one for other bytes
            return None
        return PartsOfField(
            address=address,
            field=self._field,
            runs=[[part]],
            crc_source="the checksums of its pieces",
        )


class _Document(NamedTuple):
    """A document that was read whole, and is not yet decoded: sample `number` of `located`."""

    located: LocatedSamples
    number: int
    fetched: Fetched
    """Data of all samples of `located`."""

    @property
    def address(self) -> SampleAddress:
        return self.located.places.address(self.number)


class _PieceResults(NamedTuple):
    """Results of reading a step's pieces, by piece number."""

    values: dict[int, Values]
    """Piece -> its values, without corrupt documents' pieces."""
    crcs: dict[int, list[int]]
    """Piece -> CRC-32C of each field of its document, without corrupt documents' pieces."""
    substitutions: list[Substitution]
    """An entry for each piece of a corrupt document."""


class PackedSlots:
    """Makes the packed sequences of a rank's slots; thread-safe.

    A sequence's documents are located as samples: `located.rows` are numbers of pieces, not rows of the batch.
    """

    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        fetch: Fetch,
        parallel_map: Map,
    ) -> None:
        assert recipe.plan.pack is not None
        self._recipe = recipe
        self._packing = recipe.plan.pack
        self._views = _packed_views(recipe)
        self._fetch = fetch
        self._map = parallel_map
        self._read_single_pieces = PieceReads(recipe, decoders, fetch)
        self._read_columns = PieceColumns(recipe, dict(self._packing.columns), parallel_map)
        self._totals = StepTotals(recipe, parallel_map)
        # The transform gets whole sequences, so documents are made without it.
        self._make_document = OneSample(replace(recipe, transform=None), decoders, fetch)

    def __call__(self, rank_slots: RankSlots, columns: Columns) -> DeliveredSamples:
        """Put the slots' sequences into the columns, and return what was delivered. rank_slots: of one step.

        Raises: Corrupt if nothing may be masked; InvalidPlan if a document's length or dtype differs from the plan's.
        """
        metrics = step_metrics()
        slots = rank_slots.slots
        with metrics.timed("address"):
            planned = self._planned_pieces(rank_slots)
            pieces = self._without_recorded(rank_slots, planned)
            documents = self._locate_documents(pieces)
            column_values = self._read_columns(pieces.documents)
            totals = self._totals(rank_slots, planned)
        results = self._read_pieces(rank_slots, pieces, documents)

        keys = [""] * len(columns)
        crcs = np.zeros(len(columns), np.int64)  # of the sequences
        for row, pieces_of_row in _pieces_by_row(rank_slots, pieces).items():
            start_s = perf_counter()
            arrays = lay_out(self._packing, pieces.positions, pieces_of_row, results.values)
            sample: dict[str, Any] = dict(arrays)
            sample |= joined_rows(self._packing, pieces.positions, pieces_of_row, results.values)
            for name, values in column_values.items():
                sample[name] = text_array(values[pieces_of_row])
            view = self._views[slots.source[row]]
            address = sequence_address(view, int(slots.ordinal[row]))
            metrics.spent("collate", perf_counter() - start_s)
            if self._recipe.transform is not None:
                sample = self._transform(slots, row, sample, address)
            BatchRow(columns, row).put(sample, tuple(sample))
            keys[row] = address.key
            crcs[row] = sequence_crc(pieces.positions, pieces_of_row, results.crcs)
        return DeliveredSamples(
            keys=Keys(lambda: keys),
            crcs=crcs,
            substitutions=results.substitutions,
            totals=totals,
        )

    def crcs(self, rank_slots: RankSlots) -> I64:
        """Return the sequences' `DeliveredSamples.crcs`, assuming that no document is corrupt."""
        pieces = self._without_recorded(rank_slots, self._planned_pieces(rank_slots))
        documents = self._locate_documents(pieces)
        document_crcs: dict[int, list[int]] = {}  # piece -> CRC-32C of each field of its document
        for located in documents:
            self._fetch.fill_unknown_crcs(located)
            for number, piece in enumerate(located.rows.tolist()):
                document_crcs[piece] = self._field_crcs(located.places.address(number).fields)
        crcs = np.zeros(len(rank_slots), np.int64)
        for row, pieces_of_row in _pieces_by_row(rank_slots, pieces).items():
            crcs[row] = sequence_crc(pieces.positions, pieces_of_row, document_crcs)
        return crcs

    def _planned_pieces(self, rank_slots: RankSlots) -> SlotPieces:
        """Return the pieces of one step's sequences. Masked: quarantined ones."""
        (step,) = rank_slots.steps
        return find_pieces(self._recipe.plan, step, rank_slots.slots, rank_slots.real_rows)

    def _without_recorded(self, rank_slots: RankSlots, pieces: SlotPieces) -> SlotPieces:
        """Return the pieces with those masked, too, that a recorded run masked."""
        (step,) = rank_slots.steps
        recorded = self._recipe.recorded
        if recorded is None:
            return pieces
        slot_of_piece = rank_slots.number[pieces.slot]  # [pieces]: slot in the global batch
        was_masked = recorded.masked(step, slot_of_piece, pieces.positions.document)
        return replace(pieces, is_masked=pieces.is_masked | was_masked)

    def _locate_documents(self, pieces: SlotPieces) -> list[LocatedSamples]:
        readable = np.flatnonzero(~pieces.is_masked)
        return self._fetch.locate(pieces.documents, readable, self._map)

    def _field_crcs(self, fields: Mapping[str, FieldAddress]) -> list[int]:
        return [fields[field].crc32c for field in self._packing.fields]

    def _read_pieces(
        self,
        rank_slots: RankSlots,
        pieces: SlotPieces,
        documents: Sequence[LocatedSamples],
    ) -> _PieceResults:
        """Read and decode pieces. Mask corrupt documents. Raises: Corrupt if the recipe masks none."""
        (step,) = rank_slots.steps
        addresses: dict[int, SampleAddress] = {}
        for located in documents:
            for number, piece in enumerate(located.rows.tolist()):
                addresses[piece] = located.places.address(number)
        raw_results = self._read(pieces, documents, addresses)

        results = _PieceResults({}, {}, [])
        for piece, address in sorted(addresses.items()):
            value = raw_results.pop(piece)  # frees a document's bytes once it is decoded
            fields = address.fields
            if isinstance(value, _Document):
                document = value
                value = self._decode(pieces, piece, document)
                # The digest covers the delivered bytes. Both reads, the second after bytes that did not decode, may
                # have stored a checksum that was unknown.
                fields = document.address.fields
            if not isinstance(value, Corrupt):
                results.values[piece] = value
                results.crcs[piece] = self._field_crcs(fields)
                continue
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
            results.substitutions.append(substitution)
        return results

    def _read(
        self,
        pieces: SlotPieces,
        documents: Sequence[LocatedSamples],
        addresses: Addresses,
    ) -> dict[int, Values | Corrupt | _Document]:
        """Read pieces singly where that is possible, else their whole documents. Return the result of each piece.

        documents: the documents of all pieces; their rows are numbers of pieces.
        """
        results: dict[int, Values | Corrupt | _Document] = {}
        results |= self._read_single_pieces(pieces, addresses)
        whole_documents = documents
        if results:
            # Locate only the others, so that no document is read for pieces that are there already.
            other_pieces = [piece for piece in addresses if piece not in results]
            rows = np.array(other_pieces, np.int64)
            whole_documents = self._fetch.locate(pieces.documents, rows, self._map)
        for located in whole_documents:
            fetched = self._fetch(pieces.documents, located, None)
            for number, piece in enumerate(located.rows.tolist()):
                results[piece] = _Document(located, number, fetched)
        return results

    def _decode(
        self,
        pieces: SlotPieces,
        piece: int,
        document: _Document,
    ) -> Values | Corrupt:
        """Decode a document; return a piece of each of its fields, or its error. Takes its payload out of `fetched`."""
        located, number, fetched = document
        payload = fetched.payloads.pop(number, {})
        error = fetched.bad.get(number)
        if error is not None:
            return error
        sample = self._make_document(pieces.documents, located, number, payload, None)
        if isinstance(sample, Corrupt):
            return sample
        start = int(pieces.positions.start[piece])
        stop = start + int(pieces.positions.length[piece])
        n_tokens = int(pieces.positions.tokens[piece])
        values: list[np.ndarray] = []
        for field, _, dtype in self._packing.layout:
            shape = (n_tokens, *self._packing.shapes.get(field, ()))
            array = _check_array(sample[field], field, np.dtype(dtype), shape, document)
            values.append(array[start:stop])
        for ragged in self._packing.ragged:
            name, _, _ = ragged
            rows = sample[name]
            _check_rows(rows, ragged, document)
            values.append(rows)
        return tuple(values)

    def _transform(
        self,
        slots: Slots,
        row: int,
        sample: dict[str, Any],
        address: SampleAddress,
    ) -> dict[str, Any]:
        transform = self._recipe.transform_of(int(slots.source[row]))
        assert transform is not None
        place = generators.position_of(self._recipe.plan, slots, row)
        _, source, _, _ = place
        start_s = perf_counter()
        sample = apply_transform(transform, sample, address, generators.for_transform(place))
        step_metrics().sample(
            "transform",
            perf_counter() - start_s,
            source,
            lambda: address,
            row,
        )
        return sample


def _packed_views(recipe: Recipe) -> list[PackedView]:
    views = [source.view for source in recipe.plan.sources.values()]
    return [view for view in views if isinstance(view, PackedView)]


def _pieces_by_row(rank_slots: RankSlots, pieces: SlotPieces) -> dict[int, list[int]]:
    """Return row -> numbers of its pieces, for each row with a sequence."""
    numbers: dict[int, list[int]] = {row: [] for row in rank_slots.real_rows.tolist()}
    for number, row in enumerate(pieces.slot.tolist()):
        numbers[row].append(number)
    return numbers


def _check_array(
    value: object,
    field: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    document: _Document,
) -> np.ndarray:
    """Return a document's field. Raises: InvalidPlan unless it is an array of this shape, as it was packed."""
    if isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype:
        return value
    raise _other_format(value, field, f"{dtype} {list(shape)}", document)


def _check_rows(
    value: Any,
    ragged: RaggedField,
    document: _Document,
) -> None:
    """Raise InvalidPlan unless a value is an array of the planned dtype and row shape, with any number of rows."""
    name, dtype_name, row_shape = ragged
    dtype = np.dtype(dtype_name)
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    if is_array and value.dtype == dtype and value.shape[1:] == row_shape:
        return
    row_sizes = "".join(f", {size}" for size in row_shape)
    raise _other_format(value, name, f"{dtype} [*{row_sizes}]", document)


def _other_format(
    value: object,
    field: str,
    planned: str,
    document: _Document,
) -> InvalidPlan:
    """Return the error for a document whose field is not as it was packed. planned: its dtype and shape."""
    got = repr(type(value))
    if isinstance(value, np.ndarray):
        got = f"{value.dtype} {list(value.shape)}"
    place = document.address.describe(field)
    return InvalidPlan(
        f"{place} is {got}; it was packed as {planned}. Store the field of all documents in one dtype and row shape, "
        "beside tokens with a value or row per token; correct the column of pack(lengths=); or leave such documents "
        "out with where()"
    )
