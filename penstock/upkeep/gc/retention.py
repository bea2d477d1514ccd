"""Choose a dataset's versions that a policy retires, and retire them."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from loader import Root
from loader.dataset.leases import Leases
from loader.dataset.log.entries import entry_key, parse
from loader.dataset.log.rules import Done, decide_retire
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.tables.manifest import read_manifest
from loader.errors import InvalidRuntime, VersionNotFound

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
            if type(value) is not int or value < least:
                raise InvalidRuntime(
                    f"{name} = {value!r} in a policy; a whole number of at least {least} is needed"
                )

    def __str__(self) -> str:
        more = [f"{self.monthly} monthly" if self.monthly else "", f"{self.days} days" if self.days else ""]
        return ", ".join(filter(None, [f"last {self.last}", *more]))


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
    alive = [one for one in state.versions(dataset) if one.retired is None]
    named = {ref.number for ref in state.refs.values() if ref.dataset == dataset}
    held = {hold.number for hold in state.holds if hold.dataset == dataset}
    parents = {txn.parent for txn in state.txns.values() if txn.status == "open"}
    kept = {one.id for one in alive if one.number in named | held or one.id in leased or one.id in parents}
    kept |= {one.id for one in alive[-policy.last :]}
    said_us, latest_us = _times(state.versions(dataset), created_us, now_us)
    if policy.days:
        youngest = {id: max(said_us[id], latest_us[id]) for id in said_us}
        kept |= {id for id, us in youngest.items() if now_us - us < policy.days * _DAY_US}
    if policy.monthly:
        kept |= _one_a_month(said_us, latest_us, policy.monthly)
    return [one for one in alive if one.id not in kept]


def _times(
    versions: Sequence[VersionRecord], created_us: Mapping[str, int], now_us: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Return id -> creation time by its publisher's clock, and id -> latest possible time."""
    # The two differ if the clock is evidently wrong: its time is in the future, or before an earlier version's. Such a
    # version existed when the next version with a plausible clock was made, or exists now. The policy uses this bound,
    # so a new version with a slow clock stays. Versions after one with a fast clock stay until its time has passed.
    alive = {one.id for one in versions if one.retired is None}
    known = [one.id for one in versions if one.id in alive or one.id in created_us]
    # Clamped to a calendar's range: if a clock is off by ages, its exact time does not matter.
    stated = {id: min(max(created_us.get(id, now_us), 0), now_us + _DAY_US) for id in known}
    sure, before_us = set(), min(stated.values(), default=now_us)
    for id, us in stated.items():
        if before_us <= us <= now_us:
            before_us = us
            sure.add(id)
    latest, next_us = {}, now_us
    for id in reversed(stated):
        next_us = stated[id] if id in sure else next_us
        latest[id] = next_us
    return {id: us for id, us in stated.items() if id in alive}, {
        id: latest[id] for id in stated if id in alive
    }


def _one_a_month(said_us: Mapping[str, int], latest_us: Mapping[str, int], months: int) -> set[str]:
    """Return the id of the last version in each of the latest `months` months."""
    # A version with a doubtful clock replaces no other. A month's last such version also stays, if it may belong there.
    sure = {_month(us): id for id, us in said_us.items() if us == latest_us[id]}
    since = sorted(sure, reverse=True)[:months]
    doubtful = {
        _month(us): id
        for id, us in said_us.items()
        if us != latest_us[id] and (len(since) < months or _month(latest_us[id]) >= since[-1])
    }
    return {*(sure[month] for month in since), *doubtful.values()}


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
        )
    leases = Leases(root.store)
    created_us = _created(root, state.versions(dataset))

    def chosen(state: State) -> list[VersionRecord]:
        leased = {id for lease in leases.read() for id in lease.versions}
        return retirements(state, dataset, policy, leased=leased, created_us=created_us, now_us=now_us)

    def retire_next(state: State) -> Mapping[str, object] | Done[object]:
        # Recheck on the log state that the entry extends: a reader may open, hold or name the version meanwhile.
        versions = chosen(state)
        return (
            decide_retire(state, dataset, versions[0].number, f"retention: {policy}")
            if versions
            else Done(None)
        )

    versions = chosen(state)
    if not apply:
        return versions
    done = []
    while (outcome := root.log.append(retire_next)).entry is not None:
        record = outcome.state.version(dataset, int(str(outcome.entry.body["number"])))
        done += [record] if record else []
    return done


def _created(root: Root, versions: Sequence[VersionRecord]) -> dict[str, int]:

    def created(record: VersionRecord) -> int:
        if record.retired is not None:
            return parse(record.n, root.store.get(entry_key(record.n)).data).at_us
        return int(read_manifest(root.store, record.manifest, record.sha256)["created_us"])

    retired = [one for one in versions if one.retired is not None][-WITNESSES:]
    records = [*(one for one in versions if one.retired is None), *retired]
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-collect") as pool:
        return dict(zip((one.id for one in records), pool.map(created, records), strict=True))
