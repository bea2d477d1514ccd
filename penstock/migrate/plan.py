"""What bringing a mirror up to date would take: objects, bytes, requests, money; and lists for other tools."""

from dataclasses import asdict, dataclass, replace
from typing import Any, TextIO

from loader import Root
from loader.errors import PenstockError
from loader.storage import Store

from ..words import size
from .contents import new_items, new_versions
from .prices import Prices, prices_of
from .target import copied_entries
from .transfer import HELD_BYTES

PART_BYTES = 16 * 2**20
"""What a large object is uploaded and read in."""


@dataclass(slots=True)
class MigrationPlan:
    """reads, writes: requests to the source and the target; cost_usd: by `prices`, egress only where the bytes leave
    their provider."""

    source: str
    target: str
    versions: list[str]
    entries: int = 0
    objects: int = 0
    nbytes: int = 0
    reads: int = 0
    writes: int = 0
    egress_usd: float = 0.0
    requests_usd: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return (
            f"{self.source} -> {self.target}\n{len(self.versions)} versions, {self.objects} objects, "
            f"{size(self.nbytes)}, {self.entries} log entries\n"
            f"{self.reads} reads, {self.writes} writes; by list prices "
            f"{self.egress_usd:.2f} USD for egress, {self.requests_usd:.2f} USD for requests"
        )


def plan_migration(
    root: Root,
    target: Store,
    *,
    egress: float | None = None,
    rclone: TextIO | None = None,
    s5cmd: TextIO | None = None,
) -> MigrationPlan:
    """egress: USD per GB instead of the list price. rclone: gets paths for `rclone copy --files-from-raw`; s5cmd: gets
    commands for `s5cmd run`; both copy data alone: `penstock migrate run` then checks, and copies the log.

    Raises: as `copied_entries`; what reading a manifest or table of the source raises.
    """
    source, state = root.store, root.state
    after = copied_entries(source, target)
    names = [one.name for one in new_versions(state, after)]
    found = MigrationPlan(source=source.url, target=target.url, versions=names, entries=state.n - after)
    found.reads = found.writes = found.entries

    def failed(path: str, error: PenstockError) -> None:
        raise error

    for item in new_items(source, target, state, after, failed):
        nbytes = item.nbytes or 0
        found.objects += 1
        found.nbytes += nbytes
        parts = -(-nbytes // PART_BYTES)
        found.reads += 1 if nbytes <= HELD_BYTES else 1 + parts
        found.writes += 1 if nbytes <= HELD_BYTES else 2 + parts
        if rclone:
            rclone.write(f"{item.path}\n")
        if s5cmd:
            s5cmd.write(f'cp "{source.url}/{item.path}" "{target.url}/{item.path}"\n')
    _price(found, egress)
    return found


def _price(found: MigrationPlan, egress: float | None) -> None:
    here, there = prices_of(found.source), prices_of(found.target)
    leaves = Prices() if here == there and egress is None else here
    leaves = leaves if egress is None else replace(leaves, egress=egress)
    found.egress_usd = found.nbytes / 1e9 * leaves.egress
    found.requests_usd = (found.reads * here.read + found.writes * there.write) / 1000
