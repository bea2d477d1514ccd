"""The packing that a caller requests, and the part that the plan keeps: documents as sequences of one length."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidPlan
from ..random.plan_hash import whole

MAX_LENGTH_TOKENS = 2**24
POSITION_IDS, SEGMENT_IDS, LOSS_MASK = "position_ids", "segment_ids", "loss_mask"
"""Suffixes of the fields that packing adds to a batch: `<field>.position_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBy:
    """A request to pack documents, as `pack` returns it."""

    field: str
    """`.npy` field with a document's tokens."""
    length: int
    """Tokens per sequence."""
    pad_id: int
    """Padding token at the end of a sequence."""
    lengths: str | None
    """SQL expression for a document's number of tokens; None takes the number from the index."""
    checksums: bool
    """True stores checksums for the pieces in the root, so that loaders read only pieces."""
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
    root. Loaders then read only the pieces they need. The plan does not change. Only for tokens without `beside`.
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
    """The layout of a plan's packed sequences."""

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
        """(field, value without a token, dtype) for the tokens and each side field."""
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
