"""Rows of memory held against the CRC-32C that each shall have: neighbours by one checksum over all of them."""

from collections.abc import Sequence

import numpy as np
from google_crc32c import extend

from .crc_linear import U32, joined_crcs
from .sample_places import Int64s

ROWS_AT_ONCE = 64
"""Of a block at most: the tables that say what its checksum shall be take 4 KiB a row."""


class RowChecks:
    """Takes rows as they are filled, block by block, while they are in the processor's cache.

    memory: uint8 [any, nbytes], contiguous. crcs: uint32 [n], of the rows in the order in which `add` is told of them.
    A block whose checksum is right is wrong with a probability of 2^-32, as a row by itself would be.
    """

    def __init__(self, memory: np.ndarray, crcs: U32) -> None:
        self._memory, self._crcs = memory, crcs
        self._n = 0
        # Of blocks of so many rows: number and place of the first one, checksum of all.
        self._sums: dict[int, list[tuple[int, int, int]]] = {}
        self._wrong: list[int] = []

    def add(self, rows: Int64s) -> None:
        """The next rows, ascending: those are filled. Quick where they are neighbours, and most blocks of one size."""
        first, low, high = self._n, int(rows[0]), int(rows[-1]) + 1
        self._n += len(rows)
        if high - low == len(rows):
            self._sums.setdefault(len(rows), []).append((first, low, extend(0, self._memory[low:high])))
        else:
            self._check_each(first, rows.tolist())

    def wrong(self) -> Int64s:
        """Of those added so far, counted from 0, the ones that are not as they shall be."""
        for n, blocks in self._sums.items():
            crcs = self._crcs[np.add.outer([first for first, *_ in blocks], np.arange(n))]
            for wanted, (first, row, found) in zip(
                joined_crcs(crcs, self._memory.shape[1]).tolist(), blocks, strict=True
            ):
                if found != wanted:
                    self._check_each(first, range(row, row + n))
        self._sums.clear()
        return np.array(self._wrong, np.int64)

    def _check_each(self, first: int, rows: Sequence[int]) -> None:
        wanted = self._crcs[first : first + len(rows)].tolist()
        self._wrong += [
            first + i
            for i, (row, crc) in enumerate(zip(rows, wanted, strict=True))
            if extend(0, self._memory[row]) != crc
        ]
