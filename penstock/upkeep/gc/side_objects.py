"""Find condemned objects outside `data/`: cards, adopted objects, seals, heartbeats, jobs, leases, hints and leftovers.

Objects with other names are foreign.
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

from .clients import JOBS, Clients, job_folder
from .needed import References, Tally
from .plan import LISTED_ROWS

_CARD = re.compile(r"cards/([^/]+)/[0-9]{6}-(v-[0-9a-f]{64})/[^/]+")
_SEAL = re.compile(rf"{SEALS}[0-9a-f]{{64}}\.parquet")
_ADOPTED = re.compile(rf"{FOREIGN}[0-9a-f]{{32}}/.+", re.DOTALL)
_HEARTBEAT = re.compile(r"heartbeats/[^/]+\.json")
SideObject = tuple[ObjectInfo, str, str, str]
"""(condemned object, its dataset or "", its transaction or "", reason)."""


def cards(store: Store, state: State, kept: Mapping[str, object], tally: Tally) -> Iterator[SideObject]:
    """Yield cards of deleted versions. Costs a listing."""
    for info in _in_place(store, "cards/", tally):
        match = _CARD.fullmatch(info.key)
        record = state.by_id(match[2]) if match else None
        if record is None:
            tally.add_foreign([info.key], info.nbytes)
        elif record.id not in kept:
            yield info, record.dataset, record.txn, "card of a retired version"


def adopted(store: Store, live: References, tally: Tally) -> Iterator[SideObject]:
    """Yield adopted objects that no kept version needs. Costs a listing."""
    return _unneeded(store, FOREIGN, _ADOPTED, "adopted object of no version", live, tally)


def seals(store: Store, live: References, tally: Tally) -> Iterator[SideObject]:
    """Yield seals that no kept version needs. Costs a listing."""
    return _unneeded(store, SEALS, _SEAL, "seal of no version", live, tally)


def _unneeded(
    store: Store, prefix: str, ours: re.Pattern[str], why: str, live: References, tally: Tally
) -> Iterator[SideObject]:
    infos = _in_place(store, prefix, tally)
    while batch := list(islice(infos, LISTED_ROWS)):
        needed = live.within(pa.array([info.key for info in batch], pa.large_string())).to_pylist()
        for info, is_needed in zip(batch, needed, strict=True):
            if not ours.fullmatch(info.key):
                tally.add_foreign([info.key], info.nbytes)
            elif not is_needed:
                yield info, "", "", why


def heartbeats(store: Store, state: State, tally: Tally) -> Iterator[SideObject]:
    """Yield heartbeats of finished transactions, and objects left by the doctor's probes. Costs a listing."""
    for info in _in_place(store, "heartbeats/", tally):
        txn = state.txns.get(info.key.removeprefix("heartbeats/").removesuffix(".json"))
        if txn is not None and txn.status != "open":
            yield info, txn.dataset, txn.txn, "heartbeat of a transaction that is over"
        elif txn is None and info.key.startswith(PROBES) and not _HEARTBEAT.fullmatch(info.key):
            yield info, "", "", "probe"
        elif txn is None:
            tally.add_foreign([info.key], info.nbytes)


def jobs(store: Store, clients: Clients, tally: Tally) -> Iterator[SideObject]:
    """Yield objects in dead data jobs' folders. Costs a listing."""
    dead = clients.dead_jobs()
    for info in _in_place(store, JOBS, tally):
        folder = job_folder(info.key)
        if not folder:
            tally.add_foreign([info.key], info.nbytes)
        elif folder in dead:
            yield info, "", "", "job without a live process"


def leases(store: Store, clients: Clients, tally: Tally) -> Iterator[SideObject]:
    """Yield leases of dead readers. Costs a listing."""
    dead = {one.key for one in clients.dead()}
    for info in _in_place(store, "leases/", tally):
        if info.key in dead:
            yield info, "", "", "lease of a silent reader"


def hints(store: Store, tally: Tally) -> Iterator[SideObject]:
    """Yield all hints except the newest few. Costs one listing, or two if there are old hints."""
    if old := old_hints(store):
        here = {info.key for info in _in_place(store, "log/state-", tally)}
        yield from ((info, "", "", "old hint") for info in old if info.key in here)


def unfinished(clients: Clients, folder: str) -> Iterator[SideObject]:
    """Yield unfinished files that killed writers left in a folder. Costs no request."""
    for info in clients.files_of_dead():
        if info.key.startswith(folder):
            yield info, "", "", "file that a killed writer had not finished"


def _in_place(store: Store, prefix: str, tally: Tally) -> Iterator[ObjectInfo]:
    for info, link in list_in_place(store, prefix):
        if link:
            tally.add_foreign([info.key])
        elif not is_unfinished(info.key):
            yield info


def as_table(objects: Iterable[SideObject]) -> pa.Table:
    """Return a table with columns key, nbytes, dataset, txn, why."""
    rows = [(info.key, info.nbytes, dataset, txn, why) for info, dataset, txn, why in objects]
    names, text = ("key", "nbytes", "dataset", "txn", "why"), pa.large_string()
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return pa.table(
        {
            name: pa.array(column, pa.int64() if name == "nbytes" else text)
            for name, column in zip(names, columns, strict=True)
        }
    )
