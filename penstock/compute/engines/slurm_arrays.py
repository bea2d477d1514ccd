"""Arrays of Slurm that an attempt is submitted as."""

from dataclasses import dataclass

ELEMENTS_PER_SLOT = 4
"""Elements per slot; a runner that finishes early takes another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Part of an attempt that Slurm accepts as one array."""

    first: int
    """Number in the attempt of the array's first element."""
    size: int
    """Number of elements."""
    at_once: int
    """Most concurrent elements."""


def attempt_arrays(n_blocks: int, slots: int, array_max: int) -> list[Array]:
    """Return an attempt's arrays: four elements per slot, at most one per block."""
    n_elements = min(n_blocks, ELEMENTS_PER_SLOT * slots)
    at_once = min(slots, n_elements)
    arrays = []
    for first in range(0, n_elements, array_max):
        end = min(first + array_max, n_elements)
        # The arrays' shares add up to the limit.
        share = at_once * end // n_elements - at_once * first // n_elements
        arrays.append(Array(first=first, size=end - first, at_once=max(1, share)))
    return arrays
