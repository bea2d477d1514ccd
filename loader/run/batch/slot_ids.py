"""Sources and keys of a batch's slots, listed on demand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = list[tuple[str, str] | None]


class Keys:
    """Keys of the rows of batches made together, listed on first use."""

    def __init__(self, listed: Callable[[], list[str]]) -> None:
        self._listed: Callable[[], list[str]] | list[str] = listed

    def __call__(self) -> list[str]:
        if not isinstance(self._listed, list):
            self._listed = self._listed()
        return self._listed


@dataclass(slots=True, kw_only=True, eq=False)  # a frozen one takes twice as long to create
class SlotIds:
    """Sources and keys of slots. Immutable."""

    names: Sequence[str]
    """Names of the plan's sources."""
    source: NDArray[np.int32]
    """int32 [slots]: index into `names`; -1 at padding."""
    keys: Keys
    """Keys of all rows made together."""
    rows: slice
    """The slots' rows in `keys`."""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        source: NDArray[np.int32],
        keys: list[str],
    ) -> "SlotIds":
        every_row = slice(0, len(keys))
        listed = Keys(lambda: keys)
        return cls(
            names=names,
            source=source,
            keys=listed,
            rows=every_row,
        )

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, slots: slice) -> "SlotIds":
        first, stop, _ = slots.indices(len(self))
        rows = slice(self.rows.start + first, self.rows.start + stop)
        return SlotIds(
            names=self.names,
            source=self.source[slots],
            keys=self.keys,
            rows=rows,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (
            self.names,
            self.source,
            self.list_keys(),
        )
        return SlotIds.of, arguments

    def list_keys(self) -> list[str]:
        return self.keys()[self.rows]

    def listed(self) -> Ids:
        """Return (source, key) per slot, None at padding; a new list."""
        pairs: Ids = []
        for source, key in zip(self.source.tolist(), self.list_keys(), strict=True):
            if source >= 0:
                pairs.append((self.names[source], key))
            else:
                pairs.append(None)
        return pairs
