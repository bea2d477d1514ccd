"""Make packed sequences from documents: fetch, lay out, mask bad ones. Decode only documents with unusual headers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...dataset.reading.sample_places import Map, run_starts
from ...dataset.reading.verified_gathers import GatheredBytes
from ...dataset.shards.address import SampleAddress
from ...errors import Corrupt, InvalidPlan
from ...modalities import Decoder, find_decoder
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.packing import sequence_key
from ..batch.batch import step_metrics
from ..batch.columns import BatchRow, Columns
from ..batch.finish import DeliveredSamples
from ..batch.slot_ids import Keys
from ..batch.substitution import Substitution, mask_document
from ..recipe import slot_generators
from ..recipe.decode import Payload, apply_transform
from ..recipe.document_pieces import SlotPieces, find_pieces, sequence_address, sequence_crcs
from ..recipe.rank_slots import LocatedSamples, RankSlots
from ..recipe.recipe import Recipe
from .fetch import Fetch, Fetched
from .many_samples import OneSample
from .piece_columns import PieceColumns, text_array
from .piece_reads import PieceReads, SinglePiece, packed_views
from .ragged_rows import match_rows
from .sequence_rows import SequenceRows, Values
from .step_totals import StepTotals


class _Document(NamedTuple):
    """A document that was read whole, and is not yet decoded: sample `number` of `located`."""

    located: LocatedSamples
    number: int
    fetched: Fetched
    """Data of some samples of `located`."""

    @property
    def address(self) -> SampleAddress:
        return self.located.places.address(self.number)


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
        self._views = packed_views(recipe)
        self._fetch = fetch
        self._map = parallel_map
        self._read_single_pieces = PieceReads(recipe, decoders, fetch)
        self._read_columns = PieceColumns(recipe, dict(self._packing.columns), parallel_map)
        self._totals = StepTotals(recipe, parallel_map)
        # Per source: whether all fields have the default decoders, so that documents need no call each.
        self._is_plain: list[bool] = []
        for own in decoders:
            fields = self._packing.fields
            self._is_plain.append(all(own.get(field) is find_decoder(field) for field in fields))
        # The transform gets whole sequences, so documents are made without it.
        self._make_document = OneSample(replace(recipe, transform=None), decoders, fetch)

    def __call__(self, rank_slots: RankSlots, columns: Columns) -> DeliveredSamples:
        """Put the slots' sequences into the columns, and return what was delivered. rank_slots: of one step.

        Raises: Corrupt if nothing may be masked; InvalidPlan if a document's length or dtype differs from the plan's.
        """
        metrics = step_metrics()
        slots = rank_slots.slots
        with metrics.time_stage("address"):
            planned = self._plan_pieces(rank_slots)
            pieces = self._without_recorded(rank_slots, planned)
            documents = self._locate_documents(pieces)
            column_values = self._read_columns(pieces.documents)
            totals = self._totals(rank_slots, planned)
        sequence_columns = columns
        if self._recipe.transform is not None:
            sequence_columns = Columns(len(columns))
        with metrics.time_stage("collate"):
            rows = SequenceRows(self._packing, pieces, sequence_columns)
        substitutions = self._read_pieces(rank_slots, pieces, documents, rows)

        with metrics.time_stage("collate"):
            rows.number()
            field_crcs = self._field_crcs(pieces, documents)
            crcs = sequence_crcs(len(columns), pieces, rows.has_values, field_crcs)
        real_rows = rank_slots.real_rows
        keys = [""] * len(columns)
        for row in real_rows.tolist():
            keys[row] = sequence_key(int(slots.ordinal[row]))
        lists_by_row = _lists_by_row(pieces, column_values, rows)
        if self._recipe.transform is None:
            rows.put_rows(real_rows, (*rows.lists(range(0)), *column_values))
            for row, lists in lists_by_row.items():
                for name, values in lists.items():
                    columns.put(row, name, values)
        else:
            for row in real_rows.tolist():
                sample = rows.sample(row) | lists_by_row.get(row, {})
                sample = self._transform(slots, row, sample)
                BatchRow(columns, row).put(sample, tuple(sample))
        return DeliveredSamples(
            keys=Keys(lambda: keys),
            crcs=crcs,
            substitutions=substitutions,
            totals=totals,
        )

    def crcs(self, rank_slots: RankSlots) -> I64:
        """Return the sequences' `DeliveredSamples.crcs`, assuming that no document is corrupt."""
        pieces = self._without_recorded(rank_slots, self._plan_pieces(rank_slots))
        documents = self._locate_documents(pieces)
        for located in documents:
            self._fetch.fill_unknown_crcs(located)
        field_crcs = self._field_crcs(pieces, documents)
        return sequence_crcs(len(rank_slots), pieces, ~pieces.is_masked, field_crcs)

    def _plan_pieces(self, rank_slots: RankSlots) -> SlotPieces:
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

    def _field_crcs(
        self,
        pieces: SlotPieces,
        documents: Sequence[LocatedSamples],
    ) -> I64:
        """Return int64 [pieces, fields]: the CRC-32C of each field of a piece's document; 0 if it is masked."""
        fields = self._packing.fields
        crcs = np.zeros((len(pieces.slot), len(fields)), np.int64)
        for located in documents:
            for column, field in enumerate(fields):
                crcs[located.rows, column] = located.places.fields[field].crc32c
        return crcs

    def _read_pieces(
        self,
        rank_slots: RankSlots,
        pieces: SlotPieces,
        documents: list[LocatedSamples],
        rows: SequenceRows,
    ) -> list[Substitution]:
        """Put the pieces into their rows; return an entry for each piece of a corrupt document, which stays masked.

        documents: the documents of all pieces; their rows are numbers of pieces. Those read whole are located anew.

        Raises: Corrupt if the recipe masks none.
        """
        (step,) = rank_slots.steps
        others: dict[int, SinglePiece | _Document] = {}  # piece -> what is not in its row yet
        others |= self._read_single_pieces(pieces, documents)
        whole_documents: Sequence[LocatedSamples] = documents
        if others:
            # Locate only the others, so that no document is read for pieces that are there already.
            is_whole = ~pieces.is_masked
            is_whole[list(others)] = False
            whole_documents = self._fetch.locate(pieces.documents, np.flatnonzero(is_whole), self._map)
        for located in whole_documents:
            others |= self._read_documents(pieces, located, rows)
        if whole_documents is not documents:
            documents += whole_documents  # a read may have stored checksums that were unknown

        substitutions: list[Substitution] = []
        for piece in sorted(others):
            read = others.pop(piece)  # frees a document's bytes once it is decoded
            if isinstance(read, SinglePiece):
                values = read.values
            else:
                values = self._decode(pieces, piece, read)
            if not isinstance(values, Corrupt):
                rows.put(piece, values)
                continue
            if not self._recipe.substitute:
                raise values
            rows.mask(piece)
            slot = int(rank_slots.number[pieces.slot[piece]])
            substitution = mask_document(
                self._recipe.plan,
                step,
                pieces.documents,
                piece,
                slot,
                read.address,
                values,
            )
            substitutions.append(substitution)
        return substitutions

    def _read_documents(
        self,
        pieces: SlotPieces,
        located: LocatedSamples,
        rows: SequenceRows,
    ) -> dict[int, _Document]:
        """Read documents whole and put their pieces into the rows. Return piece -> its document, for the others."""
        documents: dict[int, _Document] = {}
        if not self._is_plain[located.kind.sources[0]]:
            fetched = self._fetch(pieces.documents, located, None)
            for number, piece in enumerate(located.rows.tolist()):
                documents[piece] = _Document(located, number, fetched)
            return documents

        gathered, fetched = self._fetch.together(located)
        with step_metrics().time_stage("collate"):
            n_copied = np.zeros(
                len(rows.has_values), np.int64
            )  # [pieces]: fields that are in the piece's row
            for field, data in gathered.items():
                copied = rows.copy(field, data, located.rows[data.numbers])
                n_copied[copied] += 1
            is_complete = n_copied[located.rows] == len(gathered)
            rows.has_values[located.rows[is_complete]] = True
        for number in np.flatnonzero(~is_complete).tolist():
            fetched.payloads[number] = _payload(gathered, fetched, number)
            documents[int(located.rows[number])] = _Document(located, number, fetched)
        return documents

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
            name, ragged_dtype, row_shape = ragged
            rows = match_rows(ragged, sample[name])
            if rows is None:
                row_sizes = "".join(f", {size}" for size in row_shape)
                planned = f"{np.dtype(ragged_dtype)} [*{row_sizes}]"
                raise _other_format(sample[name], name, planned, document)
            values.append(rows)
        return tuple(values)

    def _transform(
        self,
        slots: Slots,
        row: int,
        sample: dict[str, Any],
    ) -> dict[str, Any]:
        """Return a sequence after its source's transform. row: of the batch. Records how long the transform takes."""
        source = int(slots.source[row])  # index in the plan
        view = self._views[source]
        address = sequence_address(view, int(slots.ordinal[row]))
        transform = self._recipe.source_transform(source)
        assert transform is not None
        key = slot_generators.generator_key(self._recipe.plan, slots, row)
        rng = slot_generators.transform_generator(key)
        source_name = self._recipe.plan.source_names[source]
        start_s = perf_counter()
        sample = apply_transform(transform, sample, address, rng)
        seconds = perf_counter() - start_s
        step_metrics().sample(
            "transform",
            seconds,
            source_name,
            lambda: address,  # made only for the slowest samples
            row,
        )
        return sample


def _lists_by_row(
    pieces: SlotPieces,
    column_values: Mapping[str, np.ndarray],
    sequence_rows: SequenceRows,
) -> dict[int, dict[str, np.ndarray]]:
    """Return row -> field -> what a list has of its sequence: columns and ragged fields.

    column_values: [pieces] each.
    """
    if not column_values and not sequence_rows.lists(range(0)):
        return {}
    # A sequence's pieces are neighbours.
    first_pieces = run_starts(pieces.slot)
    rows = pieces.slot[first_pieces].tolist()
    bounds = [*first_pieces.tolist(), len(pieces.slot)]
    lists: dict[int, dict[str, np.ndarray]] = {}
    for row, (first, stop) in zip(rows, pairwise(bounds), strict=True):
        lists[row] = sequence_rows.lists(range(first, stop))
        for name, values in column_values.items():
            lists[row][name] = text_array(values[first:stop])
    return lists


def _payload(
    gathered: Mapping[str, GatheredBytes],
    fetched: Fetched,
    number: int,
) -> Payload:
    """Return the fields of a sample that has no error, in the order of `gather_columns`."""
    read_again = fetched.payloads.get(number, {})
    payload: Payload = {}
    for field, data in gathered.items():
        if field in read_again:
            payload[field] = read_again[field]
            continue
        for index in np.flatnonzero(data.numbers == number).tolist():
            begin = int(data.begin[index])
            payload[field] = data.memory.data[begin : begin + int(data.sizes[index])]
    return payload


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
        "out with where()",
        what=field,
        where=place,
        given=got,
        accepted=planned,
    )
