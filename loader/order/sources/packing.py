"""Packing of documents into sequences of one length: the request, the plan's part, and the view."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ...errors import InvalidPlan
from ...keywords import is_whole_number
from ..random.keyed_permutation import I64
from ..random.plan_hash import content_hash
from .pack_table import PackTable
from .views import OrderView

MAX_LENGTH_TOKENS = 2**24
MAX_FIELD_BYTES = 2**31  # of one field in a sequence
LOWEST_FILL = -(2**63)  # of int64
HIGHEST_FILL = 2**64 - 1  # of uint64
POSITION_IDS = "position_ids"
SEGMENT_IDS = "segment_ids"
LOSS_MASK = "loss_mask"
"""Suffixes of the fields that packing adds to a batch: `<field>.position_ids`."""
NEW_FIELDS = (POSITION_IDS, SEGMENT_IDS, LOSS_MASK)
STARTS = "starts.npy"
"""Field of a stored sequence: int32 [n + 1], first position of each piece, then the number of filled positions."""
ORDINAL = "ordinal"
"""Column of `pack(columns=)` that no table has: the document's ordinal in its version."""
TOTALS = ("documents", "tokens")
"""Names in `Batch.totals` that no column may have."""
COLUMN_TYPES = MappingProxyType({"bool": "?", "int64": "<i8", "double": "<f8", "string": "O"})
"""Arrow types of columns that batches can have -> the dtype of their arrays."""


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
    together: str | None = None
    """Column; documents with one value share a sequence. None packs each document by itself."""
    split: bool = True
    """False cuts no document; always with `together`."""
    columns: tuple[str, ...] = ()
    """Columns of the samples table, or ORDINAL, that a batch has per document."""
    ragged: tuple[str, ...] = ()
    """Other `.npy` fields, with any number of rows per document."""

    @property
    def rule(self) -> dict[str, Any]:
        """JSON that a stored view has for the arguments of plan format 2; {} without them."""
        body: dict[str, Any] = {}
        if not self.split:
            body["split"] = False
        if self.together is not None:
            body["together"] = self.together
        if self.columns:
            body["columns"] = list(self.columns)
        if self.ragged:
            body["ragged"] = list(self.ragged)
        return body

    @property
    def side_names(self) -> tuple[str, ...]:
        """Fields beside the tokens."""
        return tuple(name for name, _ in self.side_fields)

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field, *self.side_names, *self.ragged)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideField:
    """A field laid out like the tokens."""

    field: str
    """Name of the `.npy` field."""
    fill: int
    """Value at positions without a token."""
    dtype: str
    """dtype as numpy writes it (`<u2`)."""
    shape: tuple[int, ...] = ()
    """Shape of a token's row, such as (layers, k); () for one value."""

    def __post_init__(self) -> None:
        dtype = _dtype(self.dtype)
        if dtype.kind not in "biuf":
            raise InvalidPlan(
                f"pack: field {self.field!r} holds {dtype}; beside tokens stand numbers or truth values"
            )
        if dtype.kind != "f" and not _fits(self.fill, dtype):
            message = f"pack: beside = {self.fill!r} does not fit into {dtype}, the dtype of {self.field!r}"
            raise InvalidPlan(message, what="beside", where=self.field, given=self.fill)

    @property
    def row_nbytes(self) -> int:
        """Bytes of a token's row."""
        value_nbytes = np.dtype(self.dtype).itemsize
        return value_nbytes * prod(self.shape)

    @property
    def layout(self) -> tuple[str, int, str]:
        return (self.field, self.fill, self.dtype)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "field": self.field,
            "fill": self.fill,
            "dtype": self.dtype,
        }
        if self.shape:
            body["shape"] = list(self.shape)
        return body


RaggedField: TypeAlias = tuple[str, str, tuple[int, ...]]
"""(name, dtype as numpy writes it, shape of a row) of a field with any number of rows per document."""


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
    columns: tuple[tuple[str, str], ...] = ()
    """(column, its type in `COLUMN_TYPES`) pairs: values that a batch has per document."""
    ragged: tuple[RaggedField, ...] = ()
    """Fields with any number of rows per document."""

    def __post_init__(self) -> None:
        for name, kind in self.columns:
            if kind not in COLUMN_TYPES:
                raise InvalidPlan(
                    f"pack: column {name!r} is {kind!r}; batches can have columns of {', '.join(COLUMN_TYPES)}",
                    what=f"column {name!r}",
                    given=kind,
                    accepted=list(COLUMN_TYPES),
                )
        for name, dtype_name, _ in self.ragged:
            ragged_dtype = _dtype(dtype_name)
            if ragged_dtype.kind not in "biuf":
                kind = str(ragged_dtype)
                text = f"pack: field {name!r} holds {kind}; ragged are fields of numbers or truth values"
                raise InvalidPlan(text, what=name, given=kind, accepted="numbers or truth values")
        dtype = _dtype(self.dtype)
        if dtype.kind not in "iu":
            text = f"pack: field {self.field!r} holds {dtype}; tokens are whole numbers, such as uint16"
            raise InvalidPlan(text, what=self.field, given=str(dtype), accepted="whole numbers")
        if not _fits(self.pad_id, dtype):
            bounds = np.iinfo(dtype)
            text = f"pack: pad_id = {self.pad_id} does not fit into {dtype}, the dtype of {self.field!r}"
            text += f": {bounds.min} to {bounds.max} do"
            raise InvalidPlan(text, what="pad_id", given=self.pad_id, accepted=[bounds.min, bounds.max])

    @property
    def list_fields(self) -> frozenset[str]:
        """Fields of a batch that are lists with an array per sequence."""
        names = [name for name, _ in self.columns]
        for name, _, _ in self.ragged:
            names.append(name)
            names.append(f"{name}.{SEGMENT_IDS}")
        return frozenset(names)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that are read of a document, in the order of its checksums."""
        names = [name for name, _, _ in self.layout]
        names += [name for name, _, _ in self.ragged]
        return tuple(names)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Field beside the tokens -> shape of a token's row, for fields with more than one value per token."""
        shapes: dict[str, tuple[int, ...]] = {}
        for side in self.side_fields:
            if side.shape:
                shapes |= {side.field: side.shape}
        return shapes

    @property
    def sum_columns(self) -> tuple[str, ...]:
        """Columns that `Batch.totals` sums: whole numbers and truth values. An ordinal is a name, not a quantity."""
        names = []
        for name, kind in self.columns:
            is_summed = kind in ("int64", "bool")
            if is_summed and name != ORDINAL:
                names.append(name)
        return tuple(names)

    @property
    def layout(self) -> tuple[tuple[str, int, str], ...]:
        """(field, fill, dtype) of the tokens, then of each side field."""
        tokens = (self.field, self.pad_id, self.dtype)
        sides = [side.layout for side in self.side_fields]
        return (tokens, *sides)

    def without_fills(self) -> "Packing":
        """Return the packing with zeros in place of padding, its side fields sorted by name."""
        side_fields = [replace(side, fill=0) for side in self.side_fields]
        side_fields.sort(key=lambda side: side.field)
        return replace(
            self,
            pad_id=0,
            side_fields=tuple(side_fields),
        )

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "field": self.field,
            "length": self.length,
            "pad_id": self.pad_id,
            "dtype": self.dtype,
        }
        if self.side_fields:
            body["beside"] = [side.to_json() for side in self.side_fields]
        if self.columns:
            body["columns"] = [[name, kind] for name, kind in self.columns]
        if self.ragged:
            body["ragged"] = []
            for name, dtype, shape in self.ragged:
                entry = {
                    "field": name,
                    "dtype": dtype,
                    "shape": list(shape),
                }
                body["ragged"].append(entry)
        return body

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Packing":
        try:
            own = {name: body[name] for name in ("field", "length", "pad_id", "dtype")}
            others = [*body.get("beside", ()), *body.get("ragged", ())]
            names = [other["field"] for other in others]
            names.append(own["field"])
            if not all(isinstance(name, str) for name in names):
                raise TypeError("a field's name is not text")
            side_fields = [SideField(**_with_shape(side)) for side in body.get("beside", ())]
            ragged = []
            for entry in body.get("ragged", ()):
                checked = _with_shape(entry)
                ragged_field = (
                    checked["field"],
                    checked["dtype"],
                    checked["shape"],
                )
                ragged.append(ragged_field)
            columns = [(str(pair[0]), str(pair[1])) for pair in body.get("columns", ())]
            return Packing(
                **own,
                side_fields=tuple(side_fields),
                columns=tuple(columns),
                ragged=tuple(ragged),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise InvalidPlan(
                f"the plan's JSON is damaged: pack = {body!r} ({error})", what="pack", given=body
            ) from None


def _check_nbytes(side: SideField, length: int) -> None:
    """Raise InvalidPlan if a sequence would take too much memory: an array's header may state any row shape."""
    nbytes = length * side.row_nbytes
    if nbytes <= MAX_FIELD_BYTES:
        return
    text = (
        f"pack: a sequence of {length} tokens has {nbytes:,} bytes of {side.field!r} {[length, *side.shape]}; "
        f"accepted are up to {MAX_FIELD_BYTES:,}: pack shorter sequences, or store the field with smaller rows"
    )
    raise InvalidPlan(text, what=side.field, given=nbytes, accepted=MAX_FIELD_BYTES)


def _with_shape(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's JSON with its shape as a tuple. Raises: TypeError for damaged JSON."""
    fields = dict(body)
    if "shape" in fields:
        shape = tuple(fields["shape"])
        for size in shape:
            if not is_whole_number(size, 0):
                raise TypeError(f"shape = {shape!r}")
        fields["shape"] = shape
    return fields


def _dtype(name: str) -> np.dtype[Any]:
    dtype = None
    if isinstance(name, str):  # numpy takes None for float64
        with suppress(TypeError):
            dtype = np.dtype(name)
    if dtype is None:
        raise InvalidPlan(
            f"pack: dtype = {name!r} is not a numpy dtype; write it as numpy does, such as '<u2'",
            what="dtype",
            where="pack",
            given=name,
        )
    return dtype


def _fits(number: int, dtype: np.dtype[Any]) -> bool:
    """Return whether an integer or bool dtype has the number."""
    if dtype.kind == "b":
        return number in (0, 1)
    bounds = np.iinfo(dtype)
    return bool(bounds.min <= number <= bounds.max)


class PackedView:
    """A view whose samples are packed sequences of documents; immutable.

    documents: the view that is packed. request: what was packed, and how. table, table_sha256: the pieces in each
    sequence, and their hash.
    """

    def __init__(
        self,
        documents: OrderView,
        request: PackBy,
        dtypes: Mapping[str, str],
        table: PackTable,
        *,
        shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        column_types: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create the view.

        dtypes: dtype of each field that `request` names. shapes: shape of a row, for fields with an array per row.
        column_types: Arrow type of each column.

        Raises: InvalidPlan if tokens are not whole numbers, or a pad_id or fill does not fit its dtype.
        """
        side_fields = []
        for name, fill in request.side_fields:
            side = SideField(
                field=name,
                fill=fill,
                dtype=dtypes[name],
                shape=shapes.get(name, ()),
            )
            _check_nbytes(side, request.length)
            side_fields.append(side)
        ragged = []
        for name in request.ragged:
            row_shape = shapes.get(name, ())
            ragged.append((name, dtypes[name], row_shape))
        columns = [(name, column_types[name]) for name in request.columns]
        self.documents = documents
        self.request = request
        self.table = table
        self.packing = Packing(
            field=request.field,
            length=request.length,
            pad_id=request.pad_id,
            dtype=dtypes[request.field],
            side_fields=tuple(side_fields),
            columns=tuple(columns),
            ragged=tuple(ragged),
        )
        self.table_sha256 = table.sha256

    def __repr__(self) -> str:
        return f"PackedView({self.documents!r}, {len(self)} sequences of {self.packing.length})"

    def __len__(self) -> int:
        return len(self.table)

    @property
    def id(self) -> str:
        """Content hash of the documents' view and the table; independent of a sequence's layout."""
        content = {"documents": self.documents.id, **self._content()}
        return content_hash("w", content)

    @property
    def identity(self) -> str:
        """Hash of the documents' version, the field and the table; with a number it names a sequence permanently."""
        words = [
            self.documents.identity,
            self.request.field,
            self.table_sha256,
        ]
        text = "\n".join(words)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"k-{digest}"

    @property
    def mean_sample_bytes(self) -> int:
        bytes_per_position = 0
        for field, _, dtype in self.packing.layout:
            row_shape = self.packing.shapes.get(field, ())
            value_nbytes = np.dtype(dtype).itemsize
            bytes_per_position += value_nbytes * prod(row_shape)
        return self.packing.length * bytes_per_position

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "packed",
            "documents": self.documents.spec(),
            "lengths": self.request.lengths,
            **self.request.rule,
            **self._content(),
        }

    def version_ordinals(self, x: I64) -> I64:
        return x  # a version has no ordinals for sequences: their numbers stand for them

    def keys(self, version_ordinals: I64) -> list[str]:
        return [sequence_key(number) for number in version_ordinals.tolist()]

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return version ordinals of documents, which quarantine lists name."""
        return self.documents.ordinals(keys)

    @property
    def efficiency(self) -> float:
        """Share of positions that hold a token."""
        n_positions = len(self) * self.packing.length
        return self.table.n_tokens / max(1, n_positions)

    def _content(self) -> dict[str, Any]:
        """Return what decides the sequences, besides the documents."""
        return {
            "field": self.request.field,
            "length": self.request.length,
            "table": self.table_sha256,
        }


def sequence_key(number: int) -> str:
    return f"sequence-{number:012d}"
