"""A view of packed sequences, numbered 0..N-1, which L1 shuffles in a plan with packing."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..random.keyed_permutation import I64
from ..random.plan_hash import content_hash
from .best_fit import PackTable
from .packing import PackBy, Packing, SideField
from .views import OrderView


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
        """Share of the sequences' positions that hold a token."""
        return self.table.n_tokens / max(1, len(self) * self.packing.length)

    def _made_of(self) -> dict[str, Any]:
        return {"field": self.asked.field, "length": self.asked.length, "table": self.table_sha256}


def sequence_key(number: int) -> str:
    return f"sequence-{number:012d}"
