"""Lists of a version's samples for a training that began elsewhere: keys of another format become ordinals."""

from collections.abc import Sequence

import numpy as np

from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.versions.version import Version
from loader.dataset.versions.view import View
from loader.errors import EmptyView, InvalidRuntime
from loader.order.random.keyed_permutation import I64
from loader.order.random.lanes import frozen_shape, locate

KEY, SOURCE_KEY = "key", "source_key"
"""Columns that a key may stand in: the version's own, and the key that the sample had before."""


def ordinals_of(version: Version, keys: Sequence[str], by: str = KEY) -> I64:
    """Return int64 [len(keys)]: version ordinals of keys; -1 for a sample that is excluded.

    by: `KEY` or `SOURCE_KEY`. Reads these columns of every run, a few at a time; 8 bytes per key beside the keys.

    Raises: InvalidRuntime for a key that comes twice, that no sample has, or that several live samples have.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(keys, pa.string())
    if (given := pc.count_distinct(wanted).as_py()) != len(keys):
        raise InvalidRuntime(f"{len(keys) - given} of {len(keys)} keys come more than once; name each once")
    found = np.full(len(keys), -2, np.int64)
    parts = version.parts
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    for table in get_tables(version.store, files, ["part", "row", by]):
        at = pc.fill_null(pc.index_in(table[by], value_set=wanted), -1).to_numpy()
        there = at >= 0
        positions, rows = parts.positions(table["part"])[there], table["row"].to_numpy()[there]
        at = at[there]
        for position in np.unique(positions).tolist():
            mine = positions == position
            live = parts.live_members(position)
            ordinals = np.where(live, parts.first_ordinal[position] + np.cumsum(live) - 1, -1)[rows[mine]]
            _keep(found, at[mine], ordinals, keys, by, version.name)
    unknown = np.flatnonzero(found == -2)
    if len(unknown):
        other = SOURCE_KEY if by == KEY else KEY
        raise InvalidRuntime(
            f"{len(unknown)} of {len(keys)} keys are no sample's {by} in {version.name}, the first is "
            f"{keys[int(unknown[0])]!r}; compare with the column {other!r} (--by {other}), or name keys of this version"
        )
    return found


def _keep(found: I64, at: I64, ordinals: I64, keys: Sequence[str], by: str, name: str) -> None:
    """Write ordinals at the places of their keys. Raises: InvalidRuntime for a key of several live samples."""
    live = ordinals >= 0
    here, times = np.unique(at[live], return_counts=True)
    again = here[(times > 1) | (found[here] >= 0)]
    if len(again):
        raise InvalidRuntime(
            f"{by} {keys[int(again[0])]!r} is that of several samples of {name}: name samples by their key"
        )
    found[at] = np.maximum(found[at], -1)
    found[at[live]] = ordinals[live]


def left_over(view: View, seen: I64, seed: int) -> I64:
    """Return the samples of a view that are not among these, int64 version ordinals in a shuffled order.

    seen: int64 version ordinals; -1 stands for none. The order is L1's over those that are left, so that neighbours are
    read together. Costs a byte per sample of the version.

    Raises: EmptyView where none is left.
    """
    members = view.members()
    members[seen[seen >= 0]] = False
    left = np.flatnonzero(members).astype(np.int64)
    if not len(left):
        raise EmptyView(f"every sample of {view!r} was seen: the epoch is over, plan the next one")
    shape = frozen_shape(len(left), view.mean_sample_bytes, None, None)
    return left[locate(shape, seed, view.version.dataset, 0, np.arange(len(left), dtype=np.int64))]
