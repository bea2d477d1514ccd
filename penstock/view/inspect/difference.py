"""The difference of two versions: counts, groups, columns, and the samples that one has and the other has not."""

from dataclasses import dataclass

import loader

from ...upkeep.diff import Diff, diff
from ..json_record import Record

MOST_SAMPLES = 200
"""Samples that are listed of each side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Record):
    """The difference of two versions, a and b."""

    counts: Diff
    """The difference that tables tell which are small for any data."""
    left_out: tuple[tuple[int, str], ...]
    """(ordinal in a, key) of samples that only a has; the first 200."""
    added: tuple[tuple[int, str], ...]
    """(ordinal in b, key) of samples that only b has; the first 200."""
    n_left_out: int
    """Samples that only a has."""
    n_added: int
    """Samples that only b has."""


def difference(a: "loader.Version", b: "loader.Version") -> Difference:
    """Return the changes from a to b. Costs the key columns of both."""
    keys = [one.samples().select("ordinal", "key").collect() for one in (a, b)]
    gone = keys[0].join(keys[1], on="key", how="anti", maintain_order="left")
    new = keys[1].join(keys[0], on="key", how="anti", maintain_order="left")
    return Difference(
        counts=diff(a, b),
        left_out=tuple(gone.head(MOST_SAMPLES).iter_rows()),
        added=tuple(new.head(MOST_SAMPLES).iter_rows()),
        n_left_out=gone.height,
        n_added=new.height,
    )
