"""Deletes what has been condemned for long enough, after a last look at each piece of it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader import Root
from loader.dataset.history import VersionRecord
from loader.dataset.lease import Leases

from ..progress import progress
from .life import Life
from .live import protected, references
from .mirror import PrimaryRecord
from .plan import Plan
from .swept import Record

Check = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How much a sweep deletes at most, and of which dataset alone."""

    max_objects: int
    max_bytes: int
    dataset: str | None = None


@dataclass(slots=True)
class Swept:
    """objects, nbytes: deleted, or in a dry run what would be; why: reason -> objects; records: keys of the record;
    spared: objects that the last look found to be needed again; capped: whether more was due than the caps allow."""

    objects: int = 0
    nbytes: int = 0
    why: dict[str, int] = field(default_factory=dict)
    records: list[str] = field(default_factory=list)
    spared: int = 0
    capped: bool = False


def sweep(
    root: Root,
    plan: Plan,
    caps: Caps,
    grace_us: int,
    check: Check,
    record: Record | PrimaryRecord | None,
    at_us: int,
) -> Swept:
    """Delete what is due, `ROWS` at a time: looked at again, put on record, deleted. record: None deletes nothing and
    tells what would be. Killed at any moment it leaves what is left for the next sweep. Raises: StoreError."""
    done = Swept()
    for ripe in progress(plan.due(grace_us), "sweep", lambda table: table.num_rows, caps.max_objects):
        if caps.dataset is not None:
            ripe = ripe.filter(pc.equal(ripe["dataset"], caps.dataset))
        mine = _within(ripe, caps, done)
        checked = check(mine)
        done.spared += mine.num_rows - checked.num_rows
        if record is not None and checked.num_rows:
            if key := record.append(checked, at_us):
                done.records.append(key)
            root.store.delete_many(checked["key"].to_pylist())
        done.objects += checked.num_rows
        done.nbytes += pc.sum(checked["nbytes"]).as_py() or 0
        for one in pc.value_counts(checked["why"]).to_pylist():
            done.why[one["values"]] = done.why.get(one["values"], 0) + one["counts"]
        if done.capped:
            break
    return done


def _within(ripe: pa.Table, caps: Caps, done: Swept) -> pa.Table:
    """As much of it as the caps leave room for."""
    total = np.cumsum(ripe["nbytes"].to_numpy()) + done.nbytes
    fits = min(int(np.searchsorted(total, caps.max_bytes, "right")), caps.max_objects - done.objects)
    done.capped = fits < ripe.num_rows
    return ripe.slice(0, fits)


def last_look(
    root: Root, life: Life, leases: Leases, kept: Mapping[str, VersionRecord], condemned: Collection[str]
) -> Check:
    """What is still not needed of a piece of the plan: the log and the leases are read again before each. kept:
    versions that stayed when the plan was made; condemned: as for `protected`. A listing and a request, where nothing
    moved."""

    def check(ripe: pa.Table) -> pa.Table:
        state = root.log.refresh()
        living = life.living(leases.read())
        now = protected(state, living, condemned)
        back = [record for id, record in now.items() if id not in kept]
        needed = [one.key for one in living] + [
            key for key in ripe["key"].to_pylist() if key.startswith("cards/") and _card_of(key) in now
        ]
        wanted = pa.array(needed, pa.large_string())
        if back:
            wanted = pa.concat_arrays([wanted, references(root.store, back).paths])
        return ripe.filter(pc.invert(pc.is_in(ripe["key"], value_set=wanted)))

    return check


def _card_of(key: str) -> str:
    """The version whose card this is."""
    return key.split("/")[2].partition("-")[2]
