"""Which versions of a dataset a policy retires: a pure function, and its application."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from loader import Root
from loader.dataset.decide import Done, decide_retire
from loader.dataset.history import State, VersionRecord
from loader.dataset.lease import list_leases
from loader.dataset.manifest import read_manifest
from loader.errors import InvalidRuntime, VersionNotFound

READ_AHEAD = 16
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a dataset keeps, each by its own right: its `last` versions; of each of its `monthly` latest months (UTC)
    that have versions, the last one; those younger than `days`. What has a tag or an alias, is held, leased, or the
    parent of an open transaction is always kept. Raises: InvalidRuntime."""

    last: int
    monthly: int = 0
    days: int = 0

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
    """The versions that the policy retires, oldest first. leased: ids; created_us: id -> when its manifest says it was
    made; a version that is not there is new."""
    alive = [one for one in state.versions(dataset) if one.retired is None]
    named = {ref.number for ref in state.refs.values() if ref.dataset == dataset}
    held = {hold.number for hold in state.holds if hold.dataset == dataset}
    parents = {txn.parent for txn in state.txns.values() if txn.status == "open"}
    kept = {one.id for one in alive if one.number in named | held or one.id in leased or one.id in parents}
    kept |= {one.id for one in alive[-policy.last :]}
    if policy.days:
        kept |= {one.id for one in alive if now_us - created_us.get(one.id, now_us) < policy.days * _DAY_US}
    of_month: dict[tuple[int, int], str] = {}
    for one in alive:
        made = datetime.fromtimestamp(created_us.get(one.id, now_us) / 1e6, UTC)
        of_month[made.year, made.month] = one.id
    kept |= {of_month[month] for month in sorted(of_month, reverse=True)[: policy.monthly]}
    return [one for one in alive if one.id not in kept]


def retire_by_policy(
    root: Root, dataset: str, policy: Policy, *, now_us: int, apply: bool = False
) -> list[VersionRecord]:
    """Retire what the policy says, or with apply=False only tell. A request per version that is not retired, one per
    lease, and an entry of the log per version. Raises: VersionNotFound; Corrupt; StoreError."""
    state = root.state
    alive = [one for one in state.versions(dataset) if one.retired is None]
    if not state.versions(dataset):
        raise VersionNotFound(
            f"{root.url} has no dataset {dataset!r}; it has {', '.join(root.datasets()) or 'none'}"
        )
    leased = {id for lease in list_leases(root.store) for id in lease.versions}
    created_us = _created(root, alive)

    def chosen(state: State) -> list[VersionRecord]:
        return retirements(state, dataset, policy, leased=leased, created_us=created_us, now_us=now_us)

    def retire_next(state: State) -> Mapping[str, object] | Done[object]:
        # Asked again of the log that the entry is appended to: somebody may hold or name the version meanwhile.
        found = chosen(state)
        return decide_retire(state, dataset, found[0].number, f"retention: {policy}") if found else Done(None)

    found = chosen(state)
    if not apply:
        return found
    done = []
    while (outcome := root.log.append(retire_next)).entry is not None:
        record = outcome.state.version(dataset, int(str(outcome.entry.body["number"])))
        done += [record] if record else []
    return done


def _created(root: Root, records: Sequence[VersionRecord]) -> dict[str, int]:
    def created(record: VersionRecord) -> int:
        return int(read_manifest(root.store, record.manifest, record.sha256)["created_us"])

    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-collect") as pool:
        return dict(zip((one.id for one in records), pool.map(created, records), strict=True))
