"""The documents of a packed sequence, and the totals of a packed step, from the plan's table of pieces."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader
from loader.api.explain import explain_slots
from loader.dataset.versions.pack_columns import DocumentColumns
from loader.order.slots import Slots
from loader.order.sources.pack_table import DocumentPieces
from loader.order.sources.packing import LOSS_MASK, SEGMENT_IDS, PackedView
from loader.rollouts.rollout_fields import MASK, TOKENS
from loader.run.recipe.document_pieces import find_pieces

from ...text import clean
from ..json_record import JsonRecord
from ..kinds.array_values import as_array
from ..replays.replayed_values import SlotValues
from ..replays.training import Training
from ..shown_values import version_of

MOST_DOCUMENTS = 500
"""Most documents of a sequence that are listed."""
MOST_PIECES = 2**17
"""Most documents of a step whose columns are summed."""

Int64s = NDArray[np.int64]


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class PackedDocument(JsonRecord):
    """A document of a packed sequence, or a piece of one."""

    segment: int
    """Its value in `<field>.segment_ids`, from 1."""
    key: str
    ordinal: int
    """Index in the version."""
    first: int
    """First position in the sequence."""
    n_tokens: int
    """Tokens in the sequence."""
    start: int
    """First of these tokens in the document."""
    n_document_tokens: int
    """Tokens of the whole document."""
    n_sampled: int | None
    """Tokens in the sequence that its mask keeps; None without a mask."""
    is_masked: bool
    """True if the sequence has padding in its place: quarantined, or not readable."""
    counts_first: bool
    """True if the loss counts its first token, which would be predicted from another document."""
    columns: Mapping[str, str]
    """Column of `pack(columns=)` -> value."""


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class PackedSequence(JsonRecord):
    length: int
    """Positions."""
    n_tokens: int
    """Positions with a token, as planned."""
    n_documents: int
    """All documents, also those beyond the listed ones."""
    documents: tuple[PackedDocument, ...]
    """In order."""


def read_sequence(plan: "loader.Plan", values: SlotValues) -> PackedSequence | None:
    """Return a slot's documents, or None if the slot is not a packed sequence."""
    return _sequence(plan, values.source, values.address.ordinal, values.decoded)


def plan_sequence(training: Training, step: int, slot: int) -> tuple[PackedSequence, str] | None:
    """Return (a slot's documents, name of their version) without a value of them; None for a slot of samples."""
    plan = training.plan(step)
    slots = training.slots(step, slot, plan.batch_size(step))
    (explained,) = explain_slots(plan, step, slots, np.arange(1), slot)
    sequence = _sequence(plan, explained.source, explained.address.ordinal, {})
    version = version_of(plan, explained.source)
    if sequence is None or version is None:
        return None
    return sequence, version.name


def _sequence(
    plan: "loader.Plan",
    source: str,
    ordinal: int,
    decoded: Mapping[str, Any],
) -> PackedSequence | None:
    view = plan.sources[source].view
    version = version_of(plan, source)
    if not isinstance(view, PackedView) or version is None:
        return None
    pieces = view.table.pieces(np.array([ordinal], np.int64))
    n_shown = min(len(pieces), MOST_DOCUMENTS)
    keys = version.keys(pieces.document[:n_shown])
    described = _Described(
        view,
        pieces,
        decoded,
    )
    documents = [described.document(number, keys[number]) for number in range(n_shown)]
    return PackedSequence(
        length=view.packing.length,
        n_tokens=int(pieces.length.sum()),
        n_documents=len(pieces),
        documents=tuple(documents),
    )


class _Described:
    """A sequence's decoded arrays that say something about its documents. An array of another shape is left out."""

    def __init__(
        self,
        view: PackedView,
        pieces: DocumentPieces,
        decoded: Mapping[str, Any],
    ) -> None:
        field = view.packing.field
        self._pieces = pieces
        self._decoded = decoded
        self._length = view.packing.length
        self._columns = [name for name, _ in view.packing.columns]
        self._segments = self._array(f"{field}.{SEGMENT_IDS}")
        self._loss = self._array(f"{field}.{LOSS_MASK}")
        self._mask = self._array(field.removesuffix(TOKENS) + MASK)

    def document(
        self,
        number: int,
        key: str,
    ) -> PackedDocument:
        """Return a document. number: of its piece in the sequence."""
        pieces = self._pieces
        first = int(pieces.offset_in_sequence[number])
        n_tokens = int(pieces.length[number])
        own = slice(first, first + n_tokens)
        # The batch has padding in the place of a document that was left out.
        is_masked = self._segments is not None and not self._segments[own].any()
        n_sampled = None
        if self._mask is not None and not is_masked:
            n_sampled = int(np.count_nonzero(self._mask[own]))
        counts_first = self._loss is not None and n_tokens > 0 and bool(self._loss[first])
        columns = {}
        for name in self._columns:
            value = self._column(name, number)
            if value is not None:
                columns[clean(name, 80)] = value
        return PackedDocument(
            segment=number + 1,
            key=key,
            ordinal=int(pieces.document[number]),
            first=first,
            n_tokens=n_tokens,
            start=int(pieces.start[number]),
            n_document_tokens=int(pieces.tokens[number]),
            n_sampled=n_sampled,
            is_masked=is_masked,
            counts_first=counts_first,
            columns=columns,
        )

    def _array(self, name: str) -> NDArray[Any] | None:
        array = as_array(self._decoded.get(name))
        if array is None or array.shape != (self._length,):
            return None
        return array

    def _column(
        self,
        name: str,
        number: int,
    ) -> str | None:
        values = self._decoded.get(name)
        if not isinstance(values, np.ndarray) or values.shape != (len(self._pieces),):
            return None
        return clean(values[number], 120)


def count_totals(
    plan: "loader.Plan",
    step: int,
    slots: Slots,
) -> dict[str, int]:
    """Return a packed step's documents, tokens and sums of columns, as `Batch.totals`; {} if it is not packed.

    slots: of all ranks. Beyond `MOST_PIECES` documents, columns are not summed.
    """
    packing = plan.pack
    if packing is None:
        return {}
    rows = np.flatnonzero(slots.valid)
    pieces = find_pieces(
        plan,
        step,
        slots,
        rows,
    )
    is_read = ~pieces.is_masked  # [pieces]
    totals = {
        "documents": int(is_read.sum()),
        "tokens": int(pieces.positions.length[is_read].sum()),
    }
    if len(is_read) > MOST_PIECES:
        return totals
    summed = packing.sum_columns
    types = {name: kind for name, kind in packing.columns if name in summed}
    totals |= dict.fromkeys(types, 0)
    for number, source in enumerate(plan.sources):
        version = version_of(plan, source)
        is_own = is_read & (pieces.documents.source == number)
        if version is None or not types or not is_own.any():
            continue
        read = DocumentColumns(version, types)
        for name, values in read(pieces.documents.ordinal[is_own], map).items():
            totals[name] += sum(values.tolist())  # exact, whatever the size of the numbers
    return totals
