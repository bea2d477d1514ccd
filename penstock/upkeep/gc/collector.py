"""One collector pass over a root: find live clients and condemned objects; with `apply`, sweep.

    list data/ -> read the log -> find live clients -> abort dead ones -> find needed objects -> plan the rest -> sweep

The listing is older than the log, so a concurrent upload is never garbage. Leases are read after the log, so a reader
that opened a version before its retirement is seen. Clients' clocks are never used.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from loader import Root
from loader.dataset.log import leases as renewal
from loader.dataset.log.leases import FOLDER as LEASES
from loader.dataset.log.leases import Leases
from loader.dataset.log.marker import is_primary
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.shards.seals import SEALS
from loader.errors import Conflict, InvalidRuntime, ObjectNotFound, VersionNotFound
from loader.storage.external_shards import FOREIGN as FOREIGN_FOLDER

from ...units import size
from .clients import FOLDERS, JOBS, Clients, Moment, check_name, now, own_name, read_clients
from .deleted_record import DeletedRecord, PrimaryRecord, primary_filter
from .needed import (
    FOREIGN,
    LIVE,
    OPEN,
    WHY,
    References,
    Tally,
    Unreadable,
    owners,
    protected,
    references,
    sorter,
)
from .plan import CollectionPlan, listed, planned
from .sweep import (
    Caps,
    SideObject,
    SweepResult,
    abandoned_files,
    as_table,
    cards,
    heartbeats,
    hints,
    jobs,
    last_look,
    orphan_adopted,
    orphan_shingle_tables,
    seals,
    segments,
    sweep,
)
from .sweep import leases as dead_leases

PRICES_USD = {
    "s3": 0.023,
    "gs": 0.020,
    "gcs": 0.020,
    "az": 0.018,
    "abfs": 0.018,
    "abfss": 0.018,
    "adl": 0.018,
}
"""US dollars per GiB and month, by URL scheme; 0 for others.

List prices of 2025: S3 Standard us-east-1, GCS Standard us-central1, Azure Blob Hot LRS East US.
"""
_STAYS = {WHY[FOREIGN], WHY[OPEN], WHY[LIVE]}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    url: str
    """Root URL."""
    collector: str
    """Collector's name."""
    applied: bool
    """True if objects were deleted; False for a dry run."""
    grace_s: float
    """Seconds between condemnation and deletion."""
    tally: Tally
    """Counts and sizes of all objects."""
    due: Mapping[str, tuple[int, int]]
    """Dataset -> (objects, bytes) that may be deleted now."""
    owners: Mapping[str, str]
    """Dataset -> owner."""
    silent: Sequence[str]
    """Open transactions of dead writers; aborted if `applied`."""
    swept: SweepResult

    def price_usd(self, price: float | None) -> float:
        """Return US dollars per GiB and month: the given price, or the provider's."""
        if price is None:
            return PRICES_USD.get(urlsplit(self.url).scheme, 0.0)
        return price

    def rows(self, price: float | None = None) -> list[dict[str, Any]]:
        """Return a row per dataset: owner, objects and bytes by state, condemned objects' price in USD per month.

        The dataset is "" for objects outside any.
        """
        rows = []
        for dataset in sorted({dataset for dataset, _ in self.tally.sums}):
            sums_here = {what: sums for (of, what), sums in self.tally.sums.items() if of == dataset}
            condemned = [sums for what, sums in sums_here.items() if what not in _STAYS]
            nbytes = sum(n for _, n in condemned)
            if not condemned and not {WHY[LIVE], WHY[OPEN]} & sums_here.keys():
                continue  # foreign objects only
            parts = {
                "live": sums_here.get(WHY[LIVE], (0, 0)),
                "open": sums_here.get(WHY[OPEN], (0, 0)),
                "condemned": (sum(n for n, _ in condemned), nbytes),
                "due": self.due.get(dataset, (0, 0)),
            }
            row: dict[str, Any] = {"dataset": dataset, "owner": self.owners.get(dataset, "")}
            for name, (objects, held) in parts.items():
                row |= {f"{name}_objects": objects, f"{name}_bytes": held}
            row["condemned_usd_per_month"] = round(nbytes / 2**30 * self.price_usd(price), 4)
            row["why"] = {what: sums[0] for what, sums in sorted(sums_here.items()) if what not in _STAYS}
            rows.append(row)
        return rows

    def to_json(self, price: float | None = None) -> dict[str, Any]:
        foreign = self.tally.sums.get(("", WHY[FOREIGN]), (0, 0))
        return {
            "root": self.url,
            "collector": self.collector,
            "applied": self.applied,
            "grace_s": self.grace_s,
            "usd_per_gib_month": self.price_usd(price),
            "datasets": self.rows(price),
            "silent_transactions": list(self.silent),
            "foreign": {"objects": foreign[0], "bytes": foreign[1], "some": list(self.tally.foreign)},
            "swept": {
                "objects": self.swept.objects,
                "bytes": self.swept.nbytes,
                "why": dict(sorted(self.swept.why.items())),
                "records": list(self.swept.records),
                "spared": self.swept.spared,
                "capped": self.swept.capped,
                "too_large": {"objects": self.swept.n_too_large, "some": dict(self.swept.too_large)},
                "refused": {"objects": self.swept.n_refused, "some": dict(self.swept.refused)},
            },
        }

    def to_text(self, price: float | None = None) -> str:
        """Return a table, then silent transactions and foreign objects."""
        lines = [
            f"{'dataset':<20} {'owner':<12} {'live':>18} {'condemned':>18} {'due':>18} {'USD/month':>10}"
        ]
        for row in self.rows(price):
            cells = [
                f"{row[f'{name}_objects']} / {size(row[f'{name}_bytes'])}"
                for name in ("live", "condemned", "due")
            ]
            lines.append(
                f"{row['dataset'] or '-':<20} {row['owner'] or '-':<12} "
                + " ".join(f"{cell:>18}" for cell in cells)
                + f" {row['condemned_usd_per_month']:>10.2f}"
            )
            lines += [f"    {count:>8} {what}" for what, count in row["why"].items()]
        aborted = "aborted" if self.applied else "would be aborted"
        lines += [f"transaction {txn}: no sign of life, {aborted}" for txn in self.silent]
        objects, nbytes = self.tally.sums.get(("", WHY[FOREIGN]), (0, 0))
        if objects:
            named = self.tally.foreign[:5]
            more = ""
            if objects > len(named):
                more = f" and {objects - len(named)} more"
            lines.append(f"{objects} foreign objects ({size(nbytes)}) are ignored: {', '.join(named)}{more}")
        return "\n".join(lines)

    def sweep_text(self) -> str:
        """Return the sweep's readable result."""
        done = self.swept
        what = "deleted" if self.applied else "would be deleted (--apply does it)"
        more = "; more is due than the caps allow: run it again" if done.capped else ""
        spared = ""
        if done.spared:
            spared = f"; {done.spared} were needed again"
        large = ""
        if done.n_too_large:
            large = f"; {done.n_too_large} are larger than --max-bytes, and stay"
        refused = ""
        if done.n_refused:
            refused = f"; {done.n_refused} could not be deleted:"
        first = f"{done.objects} objects, {size(done.nbytes)} {what}{spared}{more}{large}{refused}"
        return "\n".join([first, *(f"{key}: {why}" for key, why in done.refused.items())])


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
    """Collector's name, a different one on each machine; None: the host name."""
    grace_s: float = GRACE_S
    """Seconds between condemnation and deletion."""
    silence_s: float = SILENCE_S
    """Seconds without a change after which a client counts as dead; at least two renewals."""
    max_objects: int = MAX_OBJECTS
    """Most objects that a sweep deletes."""
    max_bytes: int = MAX_BYTES
    """Most bytes that a sweep deletes."""
    dataset: str | None = None
    """Only dataset to sweep and abort in; None: all."""
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
                message = f"{name} = {value}; 0 or more is needed"
                raise InvalidRuntime(message, what=name, given=value, accepted="0 or more")
            object.__setattr__(self, name, min(value, most))
        # A client may lose one renewal to a slow store.
        least = 2 * renewal.RENEW_EVERY_S
        if self.silence_s < least:
            raise InvalidRuntime(
                f"silence_s = {self.silence_s:g}; at least {least:g} is needed: clients renew every "
                f"{renewal.RENEW_EVERY_S:g} s",
                what="silence_s",
                given=self.silence_s,
                accepted=least,
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
    grace_us = int(options.grace_s * 1e6)
    silence_us = int(options.silence_s * 1e6)
    with ExitStack() as stack:
        _check_dataset(
            root, root.log.refresh(), options.dataset
        )  # fails unless this is a root in a supported format
        listing = stack.enter_context(listed(root.store, "data/"))
        state = root.log.refresh()
        leases = Leases(root.store)
        clients = read_clients(root.store, name, state, leases, at, silence_us)
        mirror = not is_primary(root.store, state)
        # Heartbeats are not copied to a mirror, so no transaction is aborted there.
        silent_here = (
            txn for txn in clients.silent_txns(state) if options.dataset in (None, state.txns[txn].dataset)
        )
        silent = [] if mirror else list(silent_here)
        # Before objects are sorted: a writer that returns can then no longer commit its own.
        if apply and silent:
            _abort(root, silent, clients)
            state = root.log.refresh()
            # Others were committed in the last moment.
            silent = [txn for txn in silent if state.txns[txn].status == "aborted"]
        kept, live = _kept_references(root, state, clients, options.condemned, mirror=mirror)
        owner_of = owners(
            root.store, state, kept, live.owners
        )  # before the sweep deletes the manifests that state it
        tally = Tally()

        def condemn() -> Iterator[pa.Table]:
            swept = None
            # Migrations copy data before the log, so that new objects look unneeded to a mirror.
            if mirror:
                swept = primary_filter(root.store)
            side_objects: dict[str, Callable[[], Iterator[SideObject]]] = {
                "cards/": lambda: cards(root.store, state, kept, tally),
                FOREIGN_FOLDER: lambda: orphan_adopted(root.store, live, tally),
                "heartbeats/": lambda: heartbeats(root.store, state, tally),
                JOBS: lambda: jobs(root.store, clients, tally),
                LEASES: lambda: dead_leases(root.store, clients, tally),
                "log/": lambda: hints(root.store, tally),
                "maps/": lambda: segments(root.store, "maps/", live, tally),
                "protected/": lambda: orphan_shingle_tables(root.store, state, kept, tally),
                "search/": lambda: segments(root.store, "search/", live, tally),
                SEALS: lambda: seals(root.store, live, tally),
            }
            # In key order: the next pass finds ages in the plan by bisection.
            for folder in sorted([*FOLDERS, "data/"]):
                if folder == "data/":
                    pieces = map(sorter(state, kept, live, tally), listing.batches())
                    yield from map(swept, pieces) if swept else pieces
                    continue
                table = as_table(side_objects.get(folder, tuple)())
                if swept and folder in ("cards/", "protected/", FOREIGN_FOLDER, SEALS):
                    table = swept(table)
                unfinished_files = as_table(abandoned_files(clients, folder))
                table = (
                    pa.concat_tables([table, unfinished_files]).sort_by("key")
                    if len(unfinished_files)
                    else table
                )
                yield _count(table, tally)

        plan = stack.enter_context(planned(root.store, name, condemn(), at, grace_us))
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


def _kept_references(
    root: Root, state: State, clients: Clients, condemned: Collection[str], *, mirror: bool
) -> tuple[dict[str, VersionRecord], References]:
    while True:
        kept = protected(state, clients.living(clients.leases), condemned)
        try:
            lost = Unreadable(root.store, state, condemned, mirror=mirror)
            return kept, references(root.store, list(kept.values()), lost)
        except ObjectNotFound:
            before = state
            state = root.log.refresh()
            if state.n == before.n:
                raise
            # The version may have been retired and collected meanwhile. The final check reads newer leases.


def _abort(root: Root, txns: Collection[str], clients: Clients) -> None:
    for txn in txns:
        try:
            root.log.abort(txn, f"no sign of life for {clients.silence_us // 3_600_000_000} h")
        except Conflict:  # the transaction was just committed, or the root moved
            continue


def _count(table: pa.Table, tally: Tally) -> pa.Table:
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
