"""Packing of documents into sequences of one length: the request, the plan's part, and the view."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import checked_int, content_hash
from .pack_table import PackTable
from .views import OrderView

MAX_LENGTH_TOKENS = 2**24
LOWEST_FILL = -(2**63)  # of int64
HIGHEST_FILL = 2**64 - 1  # of uint64
POSITION_IDS = "position_ids"
SEGMENT_IDS = "segment_ids"
LOSS_MASK = "loss_mask"
"""Suffixes of the fields that packing adds to a batch: `<field>.position_ids`."""
_NEW_FIELDS = (POSITION_IDS, SEGMENT_IDS, LOSS_MASK)


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

    @property
    def rule(self) -> dict[str, Any]:
        """JSON of a stored view that keeps documents whole; {} for one that splits long ones."""
        body: dict[str, Any] = {}
        if not self.split:
            body["split"] = False
        if self.together is not None:
            body["together"] = self.together
        return body

    @property
    def fields(self) -> tuple[str, ...]:
        side_names = [name for name, _ in self.side_fields]
        return (self.field, *side_names)


def pack(
    field: str,
    length: int,
    *,
    pad_id: int = 0,
    lengths: str | None = None,
    checksums: bool = False,
    beside: Mapping[str, int] | None = None,
    together: str | None = None,
    split: bool = True,
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
    together: column of the samples table. Documents with one value, such as a preference pair, share a sequence and
    stay next to each other; none is split. For pairs and small groups: a group must fit into a sequence.
    split: False splits no document. Documents longer than `length` are then refused.

    Raises: InvalidPlan.
    """
    if not isinstance(field, str) or not field:
        raise InvalidPlan(f"pack({field!r}): the name of an .npy field is needed, such as 'tokens.npy'")
    if lengths is not None and (not isinstance(lengths, str) or not lengths.strip()):
        raise InvalidPlan(f"pack(lengths={lengths!r}): an SQL expression on the samples table is needed")
    if not isinstance(checksums, bool):
        raise InvalidPlan(f"pack(checksums={checksums!r}): True or False is needed")
    side_fields = _side_fields(field, beside)
    if side_fields and checksums:
        raise InvalidPlan(
            f"pack(checksums=True, beside={beside!r}): only tokens are read by the piece; leave one of the two out"
        )
    if together is not None and (not isinstance(together, str) or not together):
        raise InvalidPlan(f"pack(together={together!r}): the name of a column is needed, such as 'pair_id'")
    if not isinstance(split, bool):
        raise InvalidPlan(f"pack(split={split!r}): True or False is needed")
    if checksums and (together is not None or not split):
        raise InvalidPlan("pack(checksums=True) is for split documents, and here none is split; leave it out")
    return PackBy(
        field=field,
        length=checked_int("pack: length", length, 1, MAX_LENGTH_TOKENS),
        pad_id=checked_int("pack: pad_id", pad_id, LOWEST_FILL, HIGHEST_FILL),
        lengths=lengths,
        checksums=checksums,
        side_fields=side_fields,
        together=together,
        split=split and together is None,
    )


def _side_fields(field: str, request: object) -> tuple[tuple[str, int], ...]:
    """Return (field, fill) pairs from `pack(beside=)`, checked."""
    if request is None:
        return ()
    if not isinstance(request, Mapping) or not all(isinstance(name, str) and name for name in request):
        raise InvalidPlan(
            f"pack(beside={request!r}): fields and the whole number that stands where there is no token are needed, "
            'such as {"labels.npy": -100}'
        )

    token_fields = [field]
    token_fields += [f"{field}.{suffix}" for suffix in _NEW_FIELDS]
    for name in request:
        if name in token_fields:
            raise InvalidPlan(
                f"pack(beside=): {name!r} is the tokens' own; name another field of the documents"
            )

    side_fields = []
    for name, fill in request.items():
        if isinstance(fill, bool):
            fill = int(fill)  # `checked_int` refuses truth values
        number = checked_int(f"pack: beside[{name!r}]", fill, LOWEST_FILL, HIGHEST_FILL)
        side_fields.append((name, number))
    return tuple(side_fields)


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
        dtype = _dtype(self.dtype)
        if dtype.kind not in "biuf":
            raise InvalidPlan(
                f"pack: field {self.field!r} holds {dtype}; beside tokens stand numbers or truth values"
            )
        if dtype.kind != "f" and not _fits(self.fill, dtype):
            raise InvalidPlan(
                f"pack: beside = {self.fill!r} does not fit into {dtype}, the dtype of {self.field!r}"
            )

    @property
    def layout(self) -> tuple[str, int, str]:
        return (self.field, self.fill, self.dtype)

    def to_json(self) -> dict[str, Any]:
        return {
            "field": self.field,
            "fill": self.fill,
            "dtype": self.dtype,
        }


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

    def __post_init__(self) -> None:
        dtype = _dtype(self.dtype)
        if dtype.kind not in "iu":
            raise InvalidPlan(
                f"pack: field {self.field!r} holds {dtype}; tokens are whole numbers, such as uint16"
            )
        if not _fits(self.pad_id, dtype):
            bounds = np.iinfo(dtype)
            raise InvalidPlan(
                f"pack: pad_id = {self.pad_id} does not fit into {dtype}, the dtype of {self.field!r}: {bounds.min} to "
                f"{bounds.max} do"
            )

    @property
    def layout(self) -> tuple[tuple[str, int, str], ...]:
        """(field, fill, dtype) of the tokens, then of each side field."""
        tokens = (self.field, self.pad_id, self.dtype)
        sides = [side.layout for side in self.side_fields]
        return (tokens, *sides)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "field": self.field,
            "length": self.length,
            "pad_id": self.pad_id,
            "dtype": self.dtype,
        }
        if self.side_fields:
            body["beside"] = [side.to_json() for side in self.side_fields]
        return body

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Packing":
        try:
            own = {name: body[name] for name in ("field", "length", "pad_id", "dtype")}
            side_fields = [SideField(**side) for side in body.get("beside", ())]
            return Packing(**own, side_fields=tuple(side_fields))
        except (KeyError, TypeError) as error:
            raise InvalidPlan(f"the plan's JSON is damaged: pack = {body!r} ({error})") from None


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        raise InvalidPlan(
            f"pack: dtype = {name!r} is no numpy dtype; write it as numpy does, such as '<u2'"
        ) from None


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
    ) -> None:
        """Create the view. dtypes: dtype of each field that `request` names.

        Raises: InvalidPlan if tokens are not whole numbers, or a pad_id or fill does not fit its dtype.
        """
        side_fields = []
        for name, fill in request.side_fields:
            side_fields.append(SideField(field=name, fill=fill, dtype=dtypes[name]))
        self.documents = documents
        self.request = request
        self.table = table
        self.packing = Packing(
            field=request.field,
            length=request.length,
            pad_id=request.pad_id,
            dtype=dtypes[request.field],
            side_fields=tuple(side_fields),
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
        for _, _, dtype in self.packing.layout:
            bytes_per_position += np.dtype(dtype).itemsize
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
