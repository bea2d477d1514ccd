"""What else goes, beside `data/`: cards of versions that went, signs of life of the dead, hints nobody reads."""

import re
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from loader.dataset.hints import old_hints
from loader.dataset.history import State
from loader.dataset.marker import PROBES
from loader.storage import Store
from loader.storage.store import ObjectInfo

from .life import Life
from .sort_out import Tally

_CARD = re.compile(r"cards/([^/]+)/[0-9]{6}-(v-[0-9a-f]{64})/[^/]+")
_HEARTBEAT = re.compile(r"heartbeats/[^/]+\.json")
Gone = tuple[ObjectInfo, str, str, str]
"""An object that goes: itself, its dataset, its transaction, and why; "" where there is none."""


def cards(store: Store, state: State, kept: Mapping[str, object], tally: Tally) -> Iterator[Gone]:
    """Of versions that do not stay. A listing. What is no card of a version of this root is counted as foreign."""
    for info in store.list("cards/"):
        found = _CARD.fullmatch(info.key)
        record = state.by_id(found[2]) if found else None
        if record is None:
            tally.add_foreign([info.key], info.nbytes)
        elif record.id not in kept:
            yield info, record.dataset, record.txn, "card of a retired version"


def signs_of_the_dead(store: Store, state: State, life: Life, tally: Tally) -> Iterator[Gone]:
    """Heartbeats of transactions that are over, what probes of the store left behind, and leases that have long been
    silent. Two listings."""
    for info in store.list("heartbeats/"):
        txn = state.txns.get(info.key.removeprefix("heartbeats/").removesuffix(".json"))
        if txn is not None and txn.status != "open":
            yield info, txn.dataset, txn.txn, "heartbeat of a transaction that is over"
        elif txn is None and info.key.startswith(PROBES) and not _HEARTBEAT.fullmatch(info.key):
            yield info, "", "", "probe"
        elif txn is None:
            tally.add_foreign([info.key], info.nbytes)
    dead = {one.key for one in life.dead()}
    for info in store.list("leases/"):
        if info.key in dead:
            yield info, "", "", "lease of a silent reader"


def hints(store: Store) -> Iterator[Gone]:
    """All but the newest few. A listing."""
    for info in old_hints(store):
        yield info, "", "", "old hint"


def as_table(gone: Iterable[Gone]) -> pa.Table:
    """key, nbytes, dataset, txn, why."""
    rows = [(info.key, info.nbytes, dataset, txn, why) for info, dataset, txn, why in gone]
    names, text = ("key", "nbytes", "dataset", "txn", "why"), pa.large_string()
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return pa.table(
        {
            name: pa.array(column, pa.int64() if name == "nbytes" else text)
            for name, column in zip(names, columns, strict=True)
        }
    )
