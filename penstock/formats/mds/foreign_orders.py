"""Map the keys of another library's order to a version's ordinals, to continue its training."""

from collections.abc import Sequence

import numpy as np

from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.versions.version import Version
from loader.dataset.versions.view import View
from loader.errors import EmptyView, InvalidRuntime
from loader.order.random.keyed_permutation import I64
from loader.order.random.lanes import frozen_shape, locate

KEY, SOURCE_KEY = "key", "source_key"
"""Columns to look a key up in: the version's own, or the key that the sample had before."""


def ordinals_of(version: Version, keys: Sequence[str], by: str = KEY) -> I64:
    """Return int64 [len(keys)]: version ordinals of keys; -1 for an excluded sample.

    by: `KEY` or `SOURCE_KEY`. Reads these columns of every part, a few at a time. Memory: 8 bytes per key
    beside the keys.

    Raises: InvalidRuntime for a key that comes twice, that no sample has, or that several live samples have.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    key_array = pa.array(keys, pa.string())
    if (n_distinct := pc.count_distinct(key_array).as_py()) != len(keys):
        raise InvalidRuntime(
            f"{len(keys) - n_distinct} of {len(keys)} keys come more than once; name each once"
        )
    ordinals_found = np.full(len(keys), -2, np.int64)
    parts = version.parts
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    for table in get_tables(version.store, files, ["part", "row", by]):
        at = pc.fill_null(pc.index_in(table[by], value_set=key_array), -1).to_numpy()
        there = at >= 0
        positions, rows = parts.positions(table["part"])[there], table["row"].to_numpy()[there]
        at = at[there]
        for position in np.unique(positions).tolist():
            own = positions == position
            live = parts.live_members(position)
            ordinals = np.where(live, parts.first_ordinal[position] + np.cumsum(live) - 1, -1)[rows[own]]
            _keep(ordinals_found, at[own], ordinals, keys, by, version.name)
    unknown = np.flatnonzero(ordinals_found == -2)
    if len(unknown):
        other = SOURCE_KEY if by == KEY else KEY
        raise InvalidRuntime(
            f"{len(unknown)} of {len(keys)} keys are no sample's {by} in {version.name}, the first is "
            f"{keys[int(unknown[0])]!r}; compare with the column {other!r} (--by {other}), or name keys of this version"
        )
    return ordinals_found


def _keep(ordinals_found: I64, at: I64, ordinals: I64, keys: Sequence[str], by: str, name: str) -> None:
    """Write ordinals at the indices of their keys."""
    live = ordinals >= 0
    here, times = np.unique(at[live], return_counts=True)
    again = here[(times > 1) | (ordinals_found[here] >= 0)]
    if len(again):
        raise InvalidRuntime(
            f"{by} {keys[int(again[0])]!r} belongs to several samples of {name}: name samples by their key"
        )
    ordinals_found[at] = np.maximum(ordinals_found[at], -1)
    ordinals_found[at[live]] = ordinals[live]


def left_over(view: View, seen: I64, seed: int) -> I64:
    """Return the samples of a view except these, int64 version ordinals in a shuffled order.

    seen: int64 version ordinals; -1 is ignored. The order is L1 over the remaining samples, so neighbours are
    read together. Costs a byte per sample of the version.

    Raises: EmptyView if none remains.
    """
    members = view.members()
    members[seen[seen >= 0]] = False
    rest = np.flatnonzero(members).astype(np.int64)
    if not len(rest):
        raise EmptyView(f"every sample of {view!r} was seen: the epoch is over, plan the next one")
    shape = frozen_shape(len(rest), view.mean_sample_bytes, None, None)
    return rest[locate(shape, seed, view.version.dataset, 0, np.arange(len(rest), dtype=np.int64))]
