"""Choose a dataset's versions that a policy retires, and retire them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from loader import Root
from loader.dataset.log.entries import entry_key, parse
from loader.dataset.log.leases import Leases
from loader.dataset.log.rules import Done, decide_retire
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.tables.manifest import read_manifest
from loader.errors import VersionNotFound
from loader.keywords import check_whole_number
from loader.storage.threads import DaemonPool

READ_AHEAD = 16
WITNESSES = 32
"""Newest retired versions whose times bound later ones."""
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The versions that a dataset keeps.

    A version stays if any field, a tag, alias, hold, lease or open transaction keeps it.

    Its time is its publisher's clock, corrected by log order (`_times`). Raises: InvalidRuntime.
    """

    last: int
    """Number of newest versions to keep."""
    monthly: int = 0
    """Number of latest months (UTC); the last version of each is kept."""
    days: int = 0
    """Age in days up to which every version is kept."""

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("monthly", 0), ("days", 0)):
            value = getattr(self, name)
            check_whole_number(name, value, least)

    def __str__(self) -> str:
        rules = [f"last {self.last}"]
        if self.monthly:
            rules.append(f"{self.monthly} monthly")
        if self.days:
            rules.append(f"{self.days} days")
        return ", ".join(rules)


def retirements(
    state: State,
    dataset: str,
    policy: Policy,
    *,
    leased: Collection[str],
    created_us: Mapping[str, int],
    now_us: int,
) -> list[VersionRecord]:
    """Return the versions that the policy retires, oldest first.

    leased: ids of leased versions. created_us: id -> creation time. A version missing there counts as new, or is
    ignored if it is retired.
    """
    versions = state.versions(dataset)
    alive = [one for one in versions if one.retired is None]
    numbers = {ref.number for ref in state.refs.values() if ref.dataset == dataset}
    numbers |= {hold.number for hold in state.holds if hold.dataset == dataset}
    keep = {one.id for one in alive if one.number in numbers}
    keep |= {one.id for one in alive[-policy.last :]}
    keep |= set(leased)
    keep |= {txn.parent for txn in state.txns.values() if txn.status == "open" and txn.parent}
    times = _times(versions, created_us, now_us)
    if policy.days:
        for id, time in times.items():
            age_us = now_us - max(time.stated_us, time.latest_us)
            if age_us < policy.days * _DAY_US:
                keep.add(id)
    if policy.monthly:
        keep |= _one_a_month(times, policy.monthly)
    return [one for one in alive if one.id not in keep]


class _Time(NamedTuple):
    """A version's creation time, in microseconds of UTC."""

    stated_us: int
    """By its publisher's clock."""
    latest_us: int
    """Latest possible time: the stated one, if the clock is plausible."""


def _times(versions: Sequence[VersionRecord], created_us: Mapping[str, int], now_us: int) -> dict[str, _Time]:
    """Return id -> creation time of each version that is not retired."""
    # The two times differ if the clock is evidently wrong: its time is in the future, or before an earlier version's.
    # Such a version existed when the next version with a plausible clock was made, or exists now. The policy uses this
    # bound, so a new version with a slow clock stays. Versions after one with a fast clock stay until its time has
    # passed.
    alive = {one.id for one in versions if one.retired is None}
    stated = {}
    for version in versions:
        if version.id in alive or version.id in created_us:
            us = created_us.get(version.id, now_us)
            # Clamped to a calendar's range: if a clock is off by ages, its exact time does not matter.
            stated[version.id] = min(max(us, 0), now_us + _DAY_US)
    plausible = set()
    previous_us = min(stated.values(), default=now_us)
    for id, us in stated.items():
        if previous_us <= us <= now_us:
            previous_us = us
            plausible.add(id)
    times = {}
    next_us = now_us
    for id, us in reversed(stated.items()):
        if id in plausible:
            next_us = us
        times[id] = _Time(us, next_us)
    return {id: times[id] for id in stated if id in alive}


def _one_a_month(times: Mapping[str, _Time], months: int) -> set[str]:
    """Return the id of the last version in each of the latest `months` months."""
    # A version with a doubtful clock replaces no other. A month's last such version also stays, if it may belong there.
    plausible = {}
    for id, time in times.items():
        if time.stated_us == time.latest_us:
            plausible[_month(time.stated_us)] = id
    latest_months = sorted(plausible, reverse=True)[:months]
    doubtful = {}
    for id, time in times.items():
        if time.stated_us == time.latest_us:
            continue
        if len(latest_months) < months or _month(time.latest_us) >= latest_months[-1]:
            doubtful[_month(time.stated_us)] = id
    return {*(plausible[month] for month in latest_months), *doubtful.values()}


def _month(us: int) -> tuple[int, int]:
    at = datetime.fromtimestamp(us / 1e6, UTC)
    return at.year, at.month


def retire_by_policy(
    root: Root, dataset: str, policy: Policy, *, now_us: int, apply: bool = False
) -> list[VersionRecord]:
    """Retire the versions that the policy does not keep; with apply=False only return them.

    Costs a request per unretired version, lease and witness (`WITNESSES`), and a listing of leases and a log entry per
    retirement. Raises: VersionNotFound; Corrupt; StoreError.
    """
    root = root.alone  # each mirror has its own leases
    state = root.state
    if not state.versions(dataset):
        raise VersionNotFound(
            f"{root.url} has no dataset {dataset!r}; it has {', '.join(root.datasets()) or 'none'}",
            dataset="",
            what="dataset",
            where=root.url,
            given=dataset,
            accepted=root.datasets(),
        )
    leases = Leases(root.store)
    created_us = _creation_times(root, state.versions(dataset))

    def chosen(state: State) -> list[VersionRecord]:
        leased = {id for lease in leases.read() for id in lease.versions}
        return retirements(state, dataset, policy, leased=leased, created_us=created_us, now_us=now_us)

    def retire_next(state: State) -> Mapping[str, object] | Done[object]:
        # Recheck on the log state that the entry extends: a reader may open, hold or name the version meanwhile.
        versions = chosen(state)
        if not versions:
            return Done(None)
        return decide_retire(state, dataset, versions[0].number, f"retention: {policy}")

    versions = chosen(state)
    if not apply:
        return versions
    retired = []
    while (outcome := root.log.append(retire_next)).entry is not None:
        number = int(str(outcome.entry.body["number"]))
        record = outcome.state.version(dataset, number)
        if record is not None:
            retired.append(record)
    return retired


def _creation_times(root: Root, versions: Sequence[VersionRecord]) -> dict[str, int]:
    """Return id -> creation time of the versions that are not retired, and of the newest retired ones."""

    def created(record: VersionRecord) -> int:
        # Its manifest may be gone, but the log's entry stays.
        if record.retired is not None:
            data = root.store.get(entry_key(record.n)).data
            return parse(record.n, data).at_us
        manifest = read_manifest(root.store, record.manifest, record.sha256)
        return int(manifest["created_us"])

    alive = [one for one in versions if one.retired is None]
    retired = [one for one in versions if one.retired is not None]
    records = [*alive, *retired[-WITNESSES:]]
    ids = [one.id for one in records]
    with DaemonPool(READ_AHEAD, "penstock-collect") as pool:
        times_us = pool.map(created, records)
        return dict(zip(ids, times_us, strict=True))
