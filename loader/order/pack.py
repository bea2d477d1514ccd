"""What a caller asks of packing, and what of it the plan keeps: how token sequences of one length come of documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidPlan
from .whole import whole

MAX_LENGTH_TOKENS = 2**24
POSITION_IDS, SEGMENT_IDS, LOSS_MASK = "position_ids", "segment_ids", "loss_mask"
"""The fields of a packed batch beside its tokens, each behind the field's name and a dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBy:
    """See `pack`."""

    field: str
    length: int
    pad_id: int
    lengths: str | None
    checksums: bool


def pack(
    field: str, length: int, *, pad_id: int = 0, lengths: str | None = None, checksums: bool = False
) -> PackBy:
    """How documents of tokens become sequences of one length, each a slot of a batch.

    field: an `.npy` field with the tokens of a document, of one dimension and one integer dtype. length: tokens of a
    sequence. Documents that are longer are split; nothing is dropped. pad_id: what stands behind a sequence's last
    token. lengths: an SQL expression on the samples table that is a document's number of tokens, such as "n_tokens";
    without it the number follows from the bytes that the index has of the field. checksums: read every document that is
    split once, whole, now, and keep its pieces' checksums in the root: loaders then read only pieces that they need. It
    changes how documents are read, not the plan.

    Raises: InvalidPlan.
    """
    if not isinstance(field, str) or not field:
        raise InvalidPlan(f"pack({field!r}): the name of an .npy field is needed, such as 'tokens.npy'")
    if lengths is not None and (not isinstance(lengths, str) or not lengths.strip()):
        raise InvalidPlan(f"pack(lengths={lengths!r}): an SQL expression on the samples table is needed")
    if not isinstance(checksums, bool):
        raise InvalidPlan(f"pack(checksums={checksums!r}): True or False is needed")
    return PackBy(
        field=field,
        length=whole("pack: length", length, 1, MAX_LENGTH_TOKENS),
        pad_id=whole("pack: pad_id", pad_id, -(2**63), 2**64 - 1),
        lengths=lengths,
        checksums=checksums,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How a plan's packed sequences are laid out. dtype: of the tokens, as numpy writes it (`<u2`)."""

    field: str
    length: int
    pad_id: int
    dtype: str

    def __post_init__(self) -> None:
        try:
            kind = np.dtype(self.dtype)
        except TypeError:
            raise InvalidPlan(f"pack: dtype = {self.dtype!r} is none") from None
        if kind.kind not in "iu":
            raise InvalidPlan(
                f"pack: field {self.field!r} holds {kind}; tokens are whole numbers, such as uint16"
            )
        held = np.iinfo(kind)
        if not held.min <= self.pad_id <= held.max:
            raise InvalidPlan(
                f"pack: pad_id = {self.pad_id} does not fit into {kind}, the dtype of {self.field!r}: {held.min} to "
                f"{held.max} do"
            )

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "length": self.length, "pad_id": self.pad_id, "dtype": self.dtype}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Packing":
        """Raises: InvalidPlan for JSON that is no packing."""
        try:
            return Packing(**{name: body[name] for name in ("field", "length", "pad_id", "dtype")})
        except (KeyError, TypeError) as error:
            raise InvalidPlan(f"the plan's JSON is damaged: pack = {body!r} ({error})") from None
