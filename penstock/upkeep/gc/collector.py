"""One collector pass over a root: find live clients and condemned objects; with `apply`, sweep.

    list data/ -> read the log -> find live clients -> abort dead ones -> find needed objects -> plan the rest -> sweep

The listing is older than the log, so a concurrent upload is never taken for garbage. Leases are read after the log, so
a reader that opened a version before its retirement is seen. Clients' clocks are never used.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa

from loader import Root
from loader.dataset import leases as renewal
from loader.dataset.leases import FOLDER as LEASES
from loader.dataset.leases import Leases
from loader.dataset.log.marker import is_primary
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.shards.shard import SEALS
from loader.errors import Conflict, InvalidRuntime, ObjectNotFound, VersionNotFound
from loader.storage.external_shards import FOREIGN

from .clients import FOLDERS, JOBS, Clients, Moment, check_name, now, own_name, read_clients
from .deleted_record import DeletedRecord, PrimaryRecord, swept_by_primary
from .needed import References, Tally, Unreadable, owners, protected, references, sorter
from .plan import CollectionPlan, listed, planned
from .report import CollectionReport
from .side_objects import SideObject, adopted, as_table, cards, heartbeats, hints, jobs, seals, unfinished
from .side_objects import leases as dead_leases
from .sweep import Caps, last_look, sweep

HOUR_S = 3600.0
GRACE_S = 72 * HOUR_S
SILENCE_S = 72 * HOUR_S
MAX_OBJECTS = 100_000
MAX_BYTES = 10 * 2**40
MOST = 2**63 - 1
"""Largest number in a plan, used as infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A collector's options. Numbers may be infinite. Raises: InvalidRuntime; InvalidName."""

    name: str | None = None
    """The collector's name, a different one on each machine; None: the host name."""
    grace_s: float = GRACE_S
    """Seconds between condemnation and deletion."""
    silence_s: float = SILENCE_S
    """Seconds after which a client with an unchanged heartbeat or lease is dead; at least two renewals."""
    max_objects: int = MAX_OBJECTS
    """Most objects that a sweep deletes."""
    max_bytes: int = MAX_BYTES
    """Most bytes that a sweep deletes."""
    dataset: str | None = None
    """The only dataset to sweep and abort in; None: all."""
    condemned: Collection[str] = field(default=())
    """Ids of retired versions to collect despite tags, aliases and leases."""

    def __post_init__(self) -> None:
        for name, most in (
            ("grace_s", MOST // 10**6),
            ("silence_s", MOST // 10**6),
            ("max_objects", MOST),
            ("max_bytes", MOST),
        ):
            value = getattr(self, name)
            if not value >= 0:  # rejects NaN too
                raise InvalidRuntime(f"{name} = {value}; 0 or more is needed")
            object.__setattr__(self, name, min(value, most))
        least = 2 * renewal.RENEW_EVERY_S
        if self.silence_s < least:
            raise InvalidRuntime(
                f"silence_s = {self.silence_s:g}; at least {least:g} is needed: clients renew every "
                f"{renewal.RENEW_EVERY_S:g} s"
            )
        object.__setattr__(self, "name", check_name(own_name() if self.name is None else self.name))


def collect(
    root: Root,
    options: Options | None = None,
    *,
    apply: bool = False,
    now_us: int | None = None,
    at: Moment | None = None,
) -> CollectionReport:
    """Run one collector pass: record signs and condemned objects. Any number of collectors may run at once.

    With `apply`, abort transactions of dead writers, and delete objects condemned for `grace_s`. A mirror loses only
    objects that its primary recorded as deleted.

    at: time on both clocks, by default this machine's. now_us: wall-clock time, if `at` is None.

    Costs listings of `data/`, adopted objects, seals, jobs (twice) and five small folders, or a walk if the store is a
    folder. Costs a request per kept version, open transaction, lease, and shards or registered-objects table. Memory:
    0.2 KB per referenced or condemned object.

    Raises: NotARoot; VersionNotFound for an unknown dataset; Corrupt or ObjectNotFound if a version's objects cannot be
    determined; Conflict if the root moved meanwhile.
    """
    options = options or Options()
    root = root.alone  # each mirror has its own leases, log and collector files
    name = str(options.name)
    at = at or (now() if now_us is None else Moment(at_us=now_us))
    grace_us, silence_us = int(options.grace_s * 1e6), int(options.silence_s * 1e6)
    with ExitStack() as stack:
        _check_dataset(
            root, root.log.refresh(), options.dataset
        )  # fails unless this is a root in a supported format
        listing = stack.enter_context(listed(root.store, "data/"))
        state, leases = root.log.refresh(), Leases(root.store)
        clients = read_clients(root.store, name, state, leases, at, silence_us)
        mirror = not is_primary(root.store, state)
        # Heartbeats are not copied to a mirror, so no transaction is aborted there.
        silent_here = (
            txn for txn in clients.silent_txns(state) if options.dataset in (None, state.txns[txn].dataset)
        )
        silent = [] if mirror else list(silent_here)
        if apply and silent:
            _abort(root, silent, clients)
            state = root.log.refresh()
            silent = [txn for txn in silent if state.txns[txn].status == "aborted"]
        kept, live = _kept(root, state, clients, options.condemned, mirror=mirror)
        owner_of = owners(
            root.store, state, kept, live.owners
        )  # before the sweep deletes the manifests that state it
        tally = Tally()

        def condemned() -> Iterator[pa.Table]:
            swept = swept_by_primary(root.store) if mirror else None
            side_objects: dict[str, Callable[[], Iterator[SideObject]]] = {
                "cards/": lambda: cards(root.store, state, kept, tally),
                FOREIGN: lambda: adopted(root.store, live, tally),
                "heartbeats/": lambda: heartbeats(root.store, state, tally),
                JOBS: lambda: jobs(root.store, clients, tally),
                LEASES: lambda: dead_leases(root.store, clients, tally),
                "log/": lambda: hints(root.store, tally),
                SEALS: lambda: seals(root.store, live, tally),
            }
            for folder in sorted([*FOLDERS, "data/"]):
                if folder == "data/":
                    pieces = map(sorter(state, kept, live, tally), listing.batches())
                    yield from map(swept, pieces) if swept else pieces
                    continue
                table = as_table(side_objects.get(folder, tuple)())
                if swept and folder in ("cards/", FOREIGN, SEALS):
                    table = swept(table)
                unfinished_files = as_table(unfinished(clients, folder))
                table = (
                    pa.concat_tables([table, unfinished_files]).sort_by("key")
                    if len(unfinished_files)
                    else table
                )
                yield _counted(table, tally)

        plan = stack.enter_context(planned(root.store, name, condemned(), at, grace_us))
        due = _due(plan, grace_us)
        caps = Caps(max_objects=options.max_objects, max_bytes=options.max_bytes, dataset=options.dataset)
        check = last_look(root, clients, leases, kept, options.condemned, mirror=mirror)
        record = (PrimaryRecord() if mirror else DeletedRecord(root, name)) if apply else None
        swept = sweep(root, plan, caps, grace_us, check, record, at.at_us)
    return CollectionReport(
        url=root.url,
        collector=name,
        applied=apply,
        grace_s=options.grace_s,
        tally=tally,
        due=due,
        owners=owner_of,
        silent=silent,
        swept=swept,
    )


def _check_dataset(root: Root, state: State, dataset: str | None) -> None:
    known = {txn.dataset for txn in state.txns.values()}
    if dataset is not None and dataset not in known:
        raise VersionNotFound(
            f"{root.url} has no dataset {dataset!r}; it has {', '.join(sorted(known)) or 'none'}", dataset=""
        )


def _kept(
    root: Root, state: State, clients: Clients, condemned: Collection[str], *, mirror: bool
) -> tuple[dict[str, VersionRecord], References]:
    while True:
        kept = protected(state, clients.living(clients.leases), condemned)
        try:
            lost = Unreadable(root.store, state, condemned, mirror=mirror)
            return kept, references(root.store, list(kept.values()), lost)
        except ObjectNotFound:
            before, state = state, root.log.refresh()
            if state.n == before.n:
                raise
            # The version may have been retired and collected meanwhile. The final check reads newer leases.


def _abort(root: Root, txns: Collection[str], clients: Clients) -> None:
    for txn in txns:
        try:
            root.log.abort(txn, f"no sign of life for {clients.silence_us // 3_600_000_000} h")
        except Conflict:  # the transaction was just committed, or the root moved
            continue


def _counted(table: pa.Table, tally: Tally) -> pa.Table:
    for row in (
        table.group_by(["dataset", "why"]).aggregate([("nbytes", "sum"), ("nbytes", "count")]).to_pylist()
    ):
        tally.add(row["dataset"], row["why"], row["nbytes_count"], row["nbytes_sum"])
    return table


def _due(plan: CollectionPlan, grace_us: int) -> dict[str, tuple[int, int]]:
    due: dict[str, tuple[int, int]] = {}
    for ripe in plan.due(grace_us):
        for row in ripe.group_by("dataset").aggregate([("nbytes", "sum"), ("nbytes", "count")]).to_pylist():
            objects, nbytes = due.get(row["dataset"], (0, 0))
            due[row["dataset"]] = objects + row["nbytes_count"], nbytes + row["nbytes_sum"]
    return due
