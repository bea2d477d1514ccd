"""Who is alive, as far as a collector can tell: open transactions and leases whose counters move."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from loader.dataset.heartbeat import read_heartbeat
from loader.dataset.history import State
from loader.dataset.lease import FOLDER as LEASES
from loader.dataset.lease import LeaseRecord, Leases
from loader.errors import InvalidName
from loader.storage import Store

from .clock import Moment, passed
from .notes import Said, Signs, read_signs, write_signs

READ_AHEAD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What was seen at a look. silence_us: who has said the same for so long is dead."""

    signs: Signs
    leases: Sequence[LeaseRecord]
    silence_us: int

    def is_dead(self, key: str, said: Said) -> bool:
        """Whether the sign of life has long been silent, and says the same still."""
        known = self.signs.said.get(key)
        return known is not None and known[0] == said and known[1] >= self.silence_us

    def living(self, leases: Sequence[LeaseRecord]) -> list[LeaseRecord]:
        """Of leases as they are now, those that count."""
        return [one for one in leases if not self.is_dead(one.key, _said(one))]

    def dead(self) -> list[LeaseRecord]:
        """Leases that claim nothing any more."""
        return [one for one in self.leases if self.is_dead(one.key, _said(one))]

    def silent_txns(self, state: State) -> list[str]:
        """Open transactions that nobody works on."""
        return [
            txn
            for txn in open_txns(state)
            if (known := self.signs.said.get(_key(txn))) is not None and known[1] >= self.silence_us
        ]


def open_txns(state: State) -> list[str]:
    """Those neither committed nor aborted."""
    return [txn.txn for txn in state.txns.values() if txn.status == "open"]


def look(store: Store, name: str, state: State, leases: Leases, at: Moment, silence_us: int) -> Life:
    """See who is alive, after `state` was read, and note it under the collector's name. A lease that was seen at the
    look before is asked for, listed or not. A request per open transaction, per lease, and three more. Raises:
    StoreError."""
    before = read_signs(store, name)
    there, txns = leases.read(key for key in before.said if key.startswith(LEASES)), open_txns(state)
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-collect") as pool:
        beats = list(pool.map(lambda txn: _beat(store, txn), txns))
    said: dict[str, Said] = {one.key: _said(one) for one in there}
    said |= dict(zip(map(_key, txns), beats, strict=True))
    life = Life(signs=before.after(said, at, silence_us // 2), leases=there, silence_us=silence_us)
    write_signs(store, name, life.signs)
    return life


def silent_s(signs: Signs, lease: LeaseRecord, now: Moment) -> float | None:
    """For how long a collector has not seen a lease move; 0 when it moved since its last look, None when it never saw
    it."""
    known = signs.said.get(lease.key)
    if known is None:
        return None
    return 0.0 if known[0] != _said(lease) else (known[1] + (passed(signs.at, now, 2**63) or 0)) / 1e6


def _said(lease: LeaseRecord) -> Said:
    return f"{lease.beat} {lease.holder}"


def _key(txn: str) -> str:
    return f"heartbeats/{txn}.json"


def _beat(store: Store, txn: str) -> Said:
    try:
        beat = read_heartbeat(store, txn)
    except InvalidName:  # a name of the caller's that no heartbeat can have
        beat = None
    return f"{beat.beat} {beat.holder}" if beat else ""
