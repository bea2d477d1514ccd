"""Packing of documents into sequences of one length: the request, the table, the plan's part, and the view.

Documents are packed in blocks of 2^14, in the view's order. Inside a block, packing is best-fit decreasing: the longest
document comes first, and each goes into the fullest sequence that still has room. It cuts only documents longer than a
sequence (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).
"""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import content_hash, whole
from .views import OrderView

BLOCK_DOCUMENTS = 2**14
_HASHED_ROWS = 2**16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentPieces:
    row: I64
    """Index of the piece's sequence in the request."""
    place: I64
    """The piece's number in its sequence, from 0."""
    document: I64
    """Version ordinal of its document."""
    start: I64
    """First token's offset in its document."""
    length: I64
    """Tokens in the piece."""
    at: I64
    """Position in its sequence where it begins."""
    tokens: I64
    """Tokens in the whole document."""

    def __len__(self) -> int:
        return len(self.row)


class PackTable:
    """The pieces in each sequence. Takes 20 bytes per piece and 8 per sequence; read-only."""

    def __init__(self, sequence: I64, document: I64, start: I64, length: I64) -> None:
        """Build a table from int64 arrays, a row per piece as `DocumentPieces`; `sequence` ascends without gaps."""
        n = int(sequence[-1]) + 1 if len(sequence) else 0
        self._first = np.searchsorted(sequence, np.arange(n + 1))
        self._document = document
        self._start, self._length = start.astype(np.uint32), length.astype(np.uint32)
        self._tokens = np.bincount(document, length).astype(np.uint32)[document]

    def __len__(self) -> int:
        return len(self._first) - 1

    @property
    def n_pieces(self) -> int:
        return len(self._document)

    @property
    def n_tokens(self) -> int:
        return int(self._length.sum(dtype=np.int64))

    def pieces(self, sequences: I64) -> DocumentPieces:
        """Return the pieces of these sequences (int64), in the order of the argument. O(pieces)."""
        first = self._first[sequences]
        count = self._first[sequences + 1] - first
        before = np.cumsum(count) - count
        place = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(before, count)
        rows = np.repeat(first, count) + place
        length = self._length[rows].astype(np.int64)
        ends = np.cumsum(length)
        begun = np.concatenate([np.zeros(1, np.int64), ends])[before]  # tokens before each sequence's first
        return DocumentPieces(
            row=np.repeat(np.arange(len(sequences), dtype=np.int64), count),
            place=place,
            document=self._document[rows],
            start=self._start[rows].astype(np.int64),
            length=length,
            at=ends - length - np.repeat(begun, count),
            tokens=self._tokens[rows].astype(np.int64),
        )

    def sequences_of(self, document: int) -> list[int]:
        """Return the sequences that contain pieces of a document (version ordinal), ascending. O(pieces)."""
        pieces = np.flatnonzero(self._document == document)
        sequences: list[int] = np.unique(np.searchsorted(self._first, pieces, side="right") - 1).tolist()
        return sequences

    def longer_than(self, length: int) -> tuple[I64, I64]:
        """Return int64 arrays: documents with more than `length` tokens, ascending, and their token counts."""
        rows = np.flatnonzero(self._tokens > length)
        documents, at = np.unique(self._document[rows], return_index=True)
        return documents, self._tokens[rows[at]].astype(np.int64)

    def rows(self, first: int, stop: int) -> I64:
        """Return rows `first` to `stop` as int64 [stop - first, 4]: sequence, document, start, length."""
        number = np.arange(first, min(stop, self.n_pieces), dtype=np.int64)
        sequence = np.searchsorted(self._first, number, side="right") - 1
        here = slice(first, stop)
        return np.column_stack(
            [sequence, self._document[here], self._start[here], self._length[here]]
        ).astype(np.int64)

    @cached_property
    def sha256(self) -> str:
        """sha256, in hex, of all rows (sequence, document, start, length) as little-endian int64."""
        digest = hashlib.sha256()
        for first in range(0, self.n_pieces, _HASHED_ROWS):
            digest.update(self.rows(first, first + _HASHED_ROWS).astype("<i8").tobytes())
        return digest.hexdigest()


def pack_documents(documents: I64, tokens: I64, length: int) -> PackTable:
    """Pack documents into sequences; return the table.

    documents: int64 [N], version ordinals in the view's order.
    tokens: int64 [N], tokens per document, >= 0. A document without tokens is in no sequence.
    length: tokens per sequence.
    """
    parts, n = [], 0
    for first in range(0, len(documents), BLOCK_DOCUMENTS):
        block = slice(first, first + BLOCK_DOCUMENTS)
        sequence, local, start, tokens_used = pack_block(tokens[block], length)
        parts.append((sequence + n, documents[block][local], start, tokens_used))
        n += int(sequence[-1]) + 1 if len(sequence) else 0
    empty = np.zeros(0, np.int64)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [empty] * 4
    return PackTable(*columns)


def pack_block(tokens: I64, length: int) -> tuple[I64, I64, I64, I64]:
    """Return (sequence, document, start, length) for every piece of a block, documents numbered from 0."""
    number = np.arange(len(tokens), dtype=np.int64)
    filled = tokens // length  # sequences that hold only this document
    rest = tokens - filled * length
    with_rest = np.flatnonzero(rest)
    fitted = best_fit(rest[with_rest], length)
    whole = np.repeat(number, filled)
    start = (np.arange(len(whole), dtype=np.int64) - np.repeat(np.cumsum(filled) - filled, filled)) * length
    document = np.concatenate([whole, with_rest])
    start = np.concatenate([start, filled[with_rest] * length])
    tokens_used = np.concatenate([np.full(len(whole), length, np.int64), rest[with_rest]])
    bins = np.concatenate([np.arange(len(whole), dtype=np.int64) - len(whole), fitted])
    order = np.lexsort((start, document))
    _, first, of = np.unique(bins[order], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    sequence = rank[of]
    order = order[np.argsort(sequence, kind="stable")]
    return np.sort(sequence), document[order], start[order], tokens_used[order]


def best_fit(sizes: I64, capacity: int) -> I64:
    """Return the bin of each size (1 <= size <= capacity), bins numbered as they are opened. O(n log n).

    Sizes are placed in descending order, equal ones in input order. Each goes into the bin with the least sufficient
    room; among equal bins, the one opened first.
    """
    bits = len(sizes).bit_length()
    room: list[int] = []  # (tokens left << bits) + bin, ascending: one number sorts faster than a pair
    opened = 0
    order = np.argsort(-sizes, kind="stable")
    placed = []
    for size in sizes[order].tolist():
        at = bisect_left(room, size << bits)
        if at < len(room):
            room_left = room.pop(at)
        else:
            room_left = (capacity << bits) + opened
            opened += 1
        rest_of_room = room_left - (size << bits)
        if rest_of_room >> bits:
            insort(room, rest_of_room)
        placed.append(room_left & ((1 << bits) - 1))
    out = np.empty(len(sizes), np.int64)
    out[order] = placed
    return out


MAX_LENGTH_TOKENS = 2**24
POSITION_IDS, SEGMENT_IDS, LOSS_MASK = "position_ids", "segment_ids", "loss_mask"
"""Suffixes of the fields that packing adds to a batch: `<field>.position_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBy:
    field: str
    """`.npy` field with a document's tokens."""
    length: int
    """Tokens per sequence."""
    pad_id: int
    """Padding token at the end of a sequence."""
    lengths: str | None
    """SQL expression for a document's number of tokens; None takes the number from the index."""
    checksums: bool
    """True stores checksums for the pieces in the root."""
    side_fields: tuple[tuple[str, int], ...]
    """(other `.npy` field, its value at positions without a token) pairs."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field, *(name for name, _ in self.side_fields))


def pack(
    field: str,
    length: int,
    *,
    pad_id: int = 0,
    lengths: str | None = None,
    checksums: bool = False,
    beside: Mapping[str, int] | None = None,
) -> PackBy:
    """Return a request to pack token documents into sequences of one length, each a slot of a batch.

    field: an `.npy` field with a document's tokens: one dimension, one integer dtype.
    length: tokens per sequence. Longer documents are split; nothing is dropped.
    pad_id: padding token at the end of a sequence.
    lengths: SQL expression on the samples table for a document's number of tokens, such as "n_tokens". By default the
    number follows from the field's bytes in the index.
    checksums: True reads every document that is split, once and whole, now, and stores checksums for its pieces in the
    root. Loaders then read only the pieces that they need. Only for tokens without `beside`.
    beside: other `.npy` fields with a value per token, such as labels, a loss mask or weights, cut and laid out like
    the tokens. Maps each to the whole number (or truth value) for positions without a token: `{"labels.npy": -100,
    "loss.npy": False}`.

    Raises: InvalidPlan.
    """
    if not isinstance(field, str) or not field:
        raise InvalidPlan(f"pack({field!r}): the name of an .npy field is needed, such as 'tokens.npy'")
    if lengths is not None and (not isinstance(lengths, str) or not lengths.strip()):
        raise InvalidPlan(f"pack(lengths={lengths!r}): an SQL expression on the samples table is needed")
    if not isinstance(checksums, bool):
        raise InvalidPlan(f"pack(checksums={checksums!r}): True or False is needed")
    others = _side_fields(field, beside)
    if others and checksums:
        raise InvalidPlan(
            f"pack(checksums=True, beside={beside!r}): only tokens are read by the piece; leave one of the two out"
        )
    return PackBy(
        field=field,
        length=whole("pack: length", length, 1, MAX_LENGTH_TOKENS),
        pad_id=whole("pack: pad_id", pad_id, -(2**63), 2**64 - 1),
        lengths=lengths,
        checksums=checksums,
        side_fields=others,
    )


def _side_fields(field: str, asked: object) -> tuple[tuple[str, int], ...]:
    if asked is None:
        return ()
    names_made = [f"{field}.{one}" for one in (POSITION_IDS, SEGMENT_IDS, LOSS_MASK)]
    if not isinstance(asked, Mapping) or not all(isinstance(name, str) and name for name in asked):
        raise InvalidPlan(
            f"pack(beside={asked!r}): fields and the whole number that stands where there is no token are needed, such "
            'as {"labels.npy": -100}'
        )
    clashing = [name for name in asked if name in (field, *names_made)]
    if clashing:
        raise InvalidPlan(
            f"pack(beside=): {clashing[0]!r} is the tokens' own; name another field of the documents"
        )
    fills = {name: int(fill) if isinstance(fill, bool) else fill for name, fill in asked.items()}
    return tuple(
        (name, whole(f"pack: beside[{name!r}]", fill, -(2**63), 2**64 - 1)) for name, fill in fills.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideField:
    """A field laid out like the tokens."""

    field: str
    """Name of the `.npy` field."""
    fill: int
    """Value at positions without a token."""
    dtype: str
    """dtype as numpy writes it (`<u2`)."""

    def __post_init__(self) -> None:
        kind = _dtype(self.dtype)
        if kind.kind not in "biuf":
            raise InvalidPlan(
                f"pack: field {self.field!r} holds {kind}; beside tokens stand numbers or truth values"
            )
        if kind.kind != "f" and not _holds(kind, self.fill):
            raise InvalidPlan(
                f"pack: beside = {self.fill!r} does not fit into {kind}, the dtype of {self.field!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    field: str
    """`.npy` field with the tokens."""
    length: int
    """Tokens per sequence."""
    pad_id: int
    """Padding token at the end of a sequence."""
    dtype: str
    """dtype of the tokens as numpy writes it (`<u2`)."""
    side_fields: tuple[SideField, ...] = ()
    """Fields laid out like the tokens."""

    @property
    def layout(self) -> tuple[tuple[str, int, str], ...]:
        return (
            (self.field, self.pad_id, self.dtype),
            *((one.field, one.fill, one.dtype) for one in self.side_fields),
        )

    def __post_init__(self) -> None:
        kind = _dtype(self.dtype)
        if kind.kind not in "iu":
            raise InvalidPlan(
                f"pack: field {self.field!r} holds {kind}; tokens are whole numbers, such as uint16"
            )
        if not _holds(kind, self.pad_id):
            held = np.iinfo(kind)
            raise InvalidPlan(
                f"pack: pad_id = {self.pad_id} does not fit into {kind}, the dtype of {self.field!r}: {held.min} to "
                f"{held.max} do"
            )

    def to_json(self) -> dict[str, Any]:
        own = {"field": self.field, "length": self.length, "pad_id": self.pad_id, "dtype": self.dtype}
        sides = [{"field": one.field, "fill": one.fill, "dtype": one.dtype} for one in self.side_fields]
        return {**own, "beside": sides} if sides else own

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Packing":
        try:
            own = {name: body[name] for name in ("field", "length", "pad_id", "dtype")}
            return Packing(**own, side_fields=tuple(SideField(**one) for one in body.get("beside", ())))
        except (KeyError, TypeError) as error:
            raise InvalidPlan(f"the plan's JSON is damaged: pack = {body!r} ({error})") from None


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        raise InvalidPlan(f"pack: dtype = {name!r} is none") from None


def _holds(kind: np.dtype[Any], number: int) -> bool:
    if kind.kind == "b":
        return number in (0, 1)
    held = np.iinfo(kind)
    return bool(held.min <= number <= held.max)


class PackedView:
    """A view whose samples are packed sequences of documents; immutable.

    documents: the view that is packed. asked: the request. table, table_sha256: the pieces in each sequence, and their
    hash.
    """

    def __init__(
        self, documents: OrderView, asked: PackBy, dtypes: Mapping[str, str], table: PackTable
    ) -> None:
        """Create the view. dtypes: dtype of each field that `asked` names.

        Raises: InvalidPlan if tokens are not whole numbers, or a pad_id or fill does not fit its dtype.
        """
        self.documents, self.asked, self.table = documents, asked, table
        self.packing = Packing(
            field=asked.field,
            length=asked.length,
            pad_id=asked.pad_id,
            dtype=dtypes[asked.field],
            side_fields=tuple(
                SideField(field=name, fill=fill, dtype=dtypes[name]) for name, fill in asked.side_fields
            ),
        )
        self.table_sha256 = table.sha256

    def __repr__(self) -> str:
        return f"PackedView({self.documents!r}, {len(self)} sequences of {self.packing.length})"

    def __len__(self) -> int:
        return len(self.table)

    @property
    def id(self) -> str:
        """Content hash of the documents' view and the table; independent of a sequence's layout."""
        return content_hash("w", {"documents": self.documents.id, **self._made_of()})

    @property
    def identity(self) -> str:
        """The documents' version, the field and the table: with its number, a sequence's permanent name."""
        named = "\n".join([self.documents.identity, self.asked.field, self.table_sha256])
        return "k-" + hashlib.sha256(named.encode()).hexdigest()

    @property
    def mean_sample_bytes(self) -> int:
        return self.packing.length * sum(np.dtype(dtype).itemsize for _, _, dtype in self.packing.layout)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "packed",
            "documents": self.documents.spec(),
            "lengths": self.asked.lengths,
            **self._made_of(),
        }

    def version_ordinals(self, x: I64) -> I64:
        return x

    def keys(self, version_ordinals: I64) -> list[str]:
        return [sequence_key(number) for number in version_ordinals.tolist()]

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return version ordinals of documents, which quarantine lists name."""
        return self.documents.ordinals(keys)

    @property
    def efficiency(self) -> float:
        return self.table.n_tokens / max(1, len(self) * self.packing.length)

    def _made_of(self) -> dict[str, Any]:
        return {"field": self.asked.field, "length": self.asked.length, "table": self.table_sha256}


def sequence_key(number: int) -> str:
    return f"sequence-{number:012d}"
