"""How many bytes a field has in every live sample: from the indexes alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Corrupt
from .index import IndexFile, IndexPlace
from .parquet import READ_AHEAD

if TYPE_CHECKING:
    from .version import Version

Int64s = np.ndarray[Any, np.dtype[np.int64]]


def field_nbytes(version: "Version", field: str) -> Iterator[Int64s]:
    """int64 per part of the version, in order: a value per live sample, -1 in parts that lack the field's group.
    Reads every index of the group whole, a few at a time. Raises: Corrupt; ObjectNotFound."""
    group, parts = version.group_of(field), version.parts
    present = parts.has_group(group)

    def of_part(position: int) -> Int64s:
        live = parts.live_members(position)
        if not present[position]:
            return np.full(int(live.sum()), -1, np.int64)
        place = IndexPlace.of(parts.shard(group, position))
        index = IndexFile(version.store, place, whole=True)
        sizes = index.column(f"{field}_nbytes")
        if len(sizes) != len(live):
            raise Corrupt(
                f"{index.name} has {len(sizes)} rows, its part has {len(live)}; restore it from a mirror"
            )
        return sizes[live]

    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-index") as pool:
        for first in range(0, len(parts), READ_AHEAD):
            yield from pool.map(of_part, range(first, min(first + READ_AHEAD, len(parts))))
