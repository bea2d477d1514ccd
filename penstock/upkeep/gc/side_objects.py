"""Objects beside `data/` that go.

They are cards of versions that went, adopted objects and seals that no version needs, and signs of life of the dead.
It also deletes dead data jobs, unused hints, and unfinished files of killed writers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import pyarrow as pa

from loader.dataset.log.marker import PROBES
from loader.dataset.log.snapshots import old_hints
from loader.dataset.log.state import State
from loader.dataset.shards.shard import SEALS
from loader.storage import Store
from loader.storage.disk.unlisted_files import is_unfinished, list_in_place
from loader.storage.external_shards import FOREIGN
from loader.storage.store import ObjectInfo

from .classify import Tally
from .clients import JOBS, Clients, job_folder
from .listing import ROWS
from .needed import References

_CARD = re.compile(r"cards/([^/]+)/[0-9]{6}-(v-[0-9a-f]{64})/[^/]+")
_SEAL = re.compile(rf"{SEALS}[0-9a-f]{{64}}\.parquet")
_ADOPTED = re.compile(rf"{FOREIGN}[0-9a-f]{{32}}/.+", re.DOTALL)
_HEARTBEAT = re.compile(r"heartbeats/[^/]+\.json")
Gone = tuple[ObjectInfo, str, str, str]
"""An object that goes: itself, its dataset, its transaction, and why; "" where there is none."""


def cards(store: Store, state: State, kept: Mapping[str, object], tally: Tally) -> Iterator[Gone]:
    """Yield cards of versions that do not stay. A listing. Objects that are no card of a version here are foreign."""
    for info in _in_place(store, "cards/", tally):
        found = _CARD.fullmatch(info.key)
        record = state.by_id(found[2]) if found else None
        if record is None:
            tally.add_foreign([info.key], info.nbytes)
        elif record.id not in kept:
            yield info, record.dataset, record.txn, "card of a retired version"


def adopted(store: Store, live: References, tally: Tally) -> Iterator[Gone]:
    """Yield adopted objects of no version that stays. A listing. Objects with other names are foreign."""
    return _unneeded(store, FOREIGN, _ADOPTED, "adopted object of no version", live, tally)


def seals(store: Store, live: References, tally: Tally) -> Iterator[Gone]:
    """Yield seals of no index of a version that stays. A listing. Objects with other names are foreign."""
    return _unneeded(store, SEALS, _SEAL, "seal of no version", live, tally)


def _unneeded(
    store: Store, prefix: str, ours: re.Pattern[str], why: str, live: References, tally: Tally
) -> Iterator[Gone]:
    infos = _in_place(store, prefix, tally)
    while some := list(islice(infos, ROWS)):
        needed = live.within(pa.array([info.key for info in some], pa.large_string())).to_pylist()
        for info, is_needed in zip(some, needed, strict=True):
            if not ours.fullmatch(info.key):
                tally.add_foreign([info.key], info.nbytes)
            elif not is_needed:
                yield info, "", "", why


def heartbeats(store: Store, state: State, tally: Tally) -> Iterator[Gone]:
    """Yield heartbeats of transactions that are over, and leftovers of probes. A listing."""
    for info in _in_place(store, "heartbeats/", tally):
        txn = state.txns.get(info.key.removeprefix("heartbeats/").removesuffix(".json"))
        if txn is not None and txn.status != "open":
            yield info, txn.dataset, txn.txn, "heartbeat of a transaction that is over"
        elif txn is None and info.key.startswith(PROBES) and not _HEARTBEAT.fullmatch(info.key):
            yield info, "", "", "probe"
        elif txn is None:
            tally.add_foreign([info.key], info.nbytes)


def jobs(store: Store, clients: Clients, tally: Tally) -> Iterator[Gone]:
    """Yield folders of dead data jobs. A listing. Objects with other names are foreign."""
    left = clients.left_jobs()
    for info in _in_place(store, JOBS, tally):
        folder = job_folder(info.key)
        if not folder:
            tally.add_foreign([info.key], info.nbytes)
        elif folder in left:
            yield info, "", "", "job that nobody works on"


def leases(store: Store, clients: Clients, tally: Tally) -> Iterator[Gone]:
    """Yield leases that have long been silent. A listing."""
    dead = {one.key for one in clients.dead()}
    for info in _in_place(store, "leases/", tally):
        if info.key in dead:
            yield info, "", "", "lease of a silent reader"


def hints(store: Store, tally: Tally) -> Iterator[Gone]:
    """Yield all hints but the newest few. A listing, and another one where there are more."""
    if old := old_hints(store):
        here = {info.key for info in _in_place(store, "log/state-", tally)}
        yield from ((info, "", "", "old hint") for info in old if info.key in here)


def unfinished(clients: Clients, folder: str) -> Iterator[Gone]:
    """Yield files of a folder whose writers were killed. No request."""
    for info in clients.left_files():
        if info.key.startswith(folder):
            yield info, "", "", "file that a killed writer had not finished"


def _in_place(store: Store, prefix: str, tally: Tally) -> Iterator[ObjectInfo]:
    """Yield a listing; links are counted as foreign, and nothing behind them is looked at."""
    for info, link in list_in_place(store, prefix):
        if link:
            tally.add_foreign([info.key])
        elif not is_unfinished(info.key):
            yield info


def as_table(gone: Iterable[Gone]) -> pa.Table:
    """Return a table: key, nbytes, dataset, txn, why."""
    rows = [(info.key, info.nbytes, dataset, txn, why) for info, dataset, txn, why in gone]
    names, text = ("key", "nbytes", "dataset", "txn", "why"), pa.large_string()
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return pa.table(
        {
            name: pa.array(column, pa.int64() if name == "nbytes" else text)
            for name, column in zip(names, columns, strict=True)
        }
    )
