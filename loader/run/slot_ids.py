"""What the slots of a batch hold, as (source, key): put together when somebody looks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = list[tuple[str, str] | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotIds:
    """Per slot: source, the number of its source in `names`; keys; valid, False at padding. Nothing of it changes."""

    names: Sequence[str]
    source: NDArray[np.int32]
    keys: Sequence[str]
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, slots: slice) -> "SlotIds":
        """Those of some slots, in the same memory."""
        return SlotIds(
            names=self.names, source=self.source[slots], keys=self.keys[slots], valid=self.valid[slots]
        )

    def listed(self) -> Ids:
        """(source, key) per slot, None at padding; a list of the caller's own."""
        names = self.names
        return [
            (names[source], key) if valid else None
            for source, key, valid in zip(self.source.tolist(), self.keys, self.valid.tolist(), strict=True)
        ]
