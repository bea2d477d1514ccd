"""Classify the objects under `data/`, from a listing and the log: their dataset, and why they may be deleted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.log.state import State, Txn
from loader.storage.store import UNFINISHED

from .needed import References

OURS = (
    r"^data/(?P<txn>[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<attempt>[^/]+)/"
    rf"(?:manifest-[0-9a-f]{{16}}\.json|[^/]+\.tar|[^/]+\.parquet|{UNFINISHED})$"
)
"""Matches every key that a writer creates under `data/`, including a folder's unfinished files."""
FOREIGN, OPEN, LIVE, RETIRED, ABORTED, LEFTOVER = range(6)
WHY = ("foreign", "open transaction", "live", "retired version", "aborted transaction", "leftover")
_FOREIGN = ("", FOREIGN)
_NOTHING = (0, 0)


@dataclass(slots=True)
class Tally:
    """Counts and sizes of the listed objects."""

    sums: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(dataset or "", state in `WHY` or reason of a side object) -> (objects, bytes)."""
    foreign: list[str] = field(default_factory=list)
    """Keys of the first twenty objects that penstock did not write."""

    def add(self, dataset: str, what: str, objects: int, nbytes: int) -> None:
        before = self.sums.get((dataset, what), _NOTHING)
        self.sums[dataset, what] = before[0] + objects, before[1] + nbytes

    def add_foreign(self, keys: list[str], nbytes: int = 0) -> None:
        """Count foreign objects, and keep the first twenty keys."""
        self.add("", WHY[FOREIGN], len(keys), nbytes)
        self.foreign += keys[: 20 - len(self.foreign)]


def sorter(
    state: State, kept: Mapping[str, object], live: References, tally: Tally
) -> Callable[[pa.RecordBatch], pa.Table]:
    """Return a function that counts a piece of a listing and returns its condemned objects.

    Its table has the columns key, nbytes, dataset, txn and why. Links are foreign. Takes 1 s per million objects.
    kept: ids of the versions that stay.
    """
    fates: dict[str, tuple[str, int]] = {}

    def fate_of(txn: str) -> tuple[str, int]:
        if txn not in fates:
            known = state.txns.get(txn)
            fates[txn] = _FOREIGN if known is None else (known.dataset, _fate(known, state, kept))
        return fates[txn]

    def sort_out(batch: pa.RecordBatch) -> pa.Table:
        keys, sizes = batch.column("key"), batch.column("nbytes")
        txns = pc.struct_field(pc.extract_regex(keys, OURS), "txn").dictionary_encode()
        names: list[str] = txns.dictionary.to_pylist()
        fates_of_txns = [fate_of(name) for name in names]
        at = txns.indices.fill_null(len(names)).to_numpy()
        fate = np.array([what for _, what in fates_of_txns] + [FOREIGN], np.int8)[at]
        fate[batch.column("link").to_numpy(zero_copy_only=False)] = FOREIGN
        fate[(fate != FOREIGN) & live.within(keys).to_numpy(zero_copy_only=False)] = LIVE
        numbers: dict[str, int] = {}
        of = np.array(
            [numbers.setdefault(dataset, len(numbers)) for dataset, _ in [*fates_of_txns, _FOREIGN]]
        )[at]
        datasets = list(numbers)
        _count(tally, datasets, of, fate, sizes.to_numpy())
        foreign = np.flatnonzero(fate == FOREIGN)
        if len(foreign):
            tally.add_foreign(keys.take(foreign).to_pylist(), pc.sum(sizes.take(foreign)).as_py())
        condemned = np.flatnonzero(fate > LIVE)
        return pa.table(
            {
                "key": keys.take(condemned),
                "nbytes": sizes.take(condemned),
                "dataset": pa.array(datasets, pa.large_string()).take(pa.array(of[condemned])),
                "txn": txns.take(condemned).cast(pa.large_string()),
                "why": pa.array(np.array(WHY, object)[fate[condemned]], pa.large_string()),
            }
        )

    return sort_out


def _fate(txn: Txn, state: State, kept: Mapping[str, object]) -> int:
    if txn.status == "open":
        return OPEN
    version = state.committed(txn.txn)
    if version is None:
        return ABORTED
    return LEFTOVER if version.id in kept else RETIRED


def _count(tally: Tally, datasets: list[str], of: np.ndarray, fate: np.ndarray, nbytes: np.ndarray) -> None:
    kind = of * len(WHY) + fate
    objects, total = np.bincount(kind), np.zeros(len(datasets) * len(WHY), np.int64)
    np.add.at(total, kind, nbytes)  # weights of bincount are floats, which lose bytes beyond 2^53
    for number in np.flatnonzero(objects).tolist():
        dataset, what = divmod(number, len(WHY))
        if what != FOREIGN:
            tally.add(datasets[dataset], WHY[what], int(objects[number]), int(total[number]))
