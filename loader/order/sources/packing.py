"""Packing of documents into sequences of one length: the request, the part that the plan keeps, and the view."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import content_hash, whole
from .best_fit import PackTable
from .views import OrderView

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
