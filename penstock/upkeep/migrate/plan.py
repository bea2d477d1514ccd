"""Estimate the cost of updating a mirror, and list the objects for other copy tools."""

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from loader import Root
from loader.errors import PenstockError
from loader.storage import Store

from ...units import size
from ..copying.copy_one import count_copy_requests
from ..copying.items import Item
from ..copying.journal import Journal
from .contents import missing_records, new_items, new_versions
from .mirror_update import last_copied_entry
from .prefix_copy import FOLDER, check_places, missing_items


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A provider's list prices in US dollars: standard storage in a US region, first tier."""

    egress: float = 0.0
    """Per GB (1e9 bytes) that leaves the provider."""
    read: float = 0.0
    """Per 1,000 reads."""
    write: float = 0.0
    """Per 1,000 writes."""


BY_SCHEME = {
    **dict.fromkeys(("s3", "s3a"), Prices(egress=0.09, read=0.0004, write=0.005)),
    **dict.fromkeys(("gs", "gcs"), Prices(egress=0.12, read=0.0004, write=0.005)),
    **dict.fromkeys(("az", "abfs", "abfss"), Prices(egress=0.087, read=0.0005, write=0.0065)),
}


def provider_prices(url: str) -> Prices:
    """Return the prices of a URL's provider; zeros if it is a disk or unknown."""
    return BY_SCHEME.get(url.partition("://")[0], Prices())


@dataclass(slots=True)
class MigrationPlan:
    """The cost of a migration."""

    source: str
    """Source URL."""
    target: str
    """Target URL."""
    versions: list[str] | None = None
    """Names of the versions to copy; None for a plain prefix."""
    entries: int = 0
    """Log entries to copy."""
    objects: int = 0
    """Objects to copy, without log entries."""
    nbytes: int = 0
    """Total bytes of the objects whose size is known."""
    reads: int = 0
    """Requests to the source."""
    writes: int = 0
    """Requests to the target."""
    egress_usd: float = 0.0
    """Cost of egress, US dollars."""
    requests_usd: float = 0.0
    """Cost of requests, US dollars."""
    unlisted: list[str] = field(default_factory=list)
    """Keys with a line break, which cannot be listed for other tools."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, item: Item, rclone: TextIO | None = None, s5cmd: TextIO | None = None) -> None:
        """Add an object to the totals and lists."""
        reads, writes = count_copy_requests(item.nbytes)
        self.objects += 1
        self.nbytes += item.nbytes or 0
        self.reads += reads
        self.writes += writes
        if not (rclone or s5cmd):
            return
        if "\n" in item.path or "\r" in item.path:  # a line break would split or change the key
            self.unlisted.append(item.path)
            return
        if rclone:
            rclone.write(f"{item.path}\n")
        if s5cmd:
            both = (_quote(f"{place}/{item.path}") for place in (self.source, self.target))
            s5cmd.write(f"cp --raw {' '.join(both)}\n")  # --raw: `*`, `?` and `[` are characters of a key

    def price(self, egress: float | None) -> None:
        """Set the costs. egress: USD per GB; None: the list price."""
        here = provider_prices(self.source)
        there = provider_prices(self.target)
        usd_per_gb = here.egress
        if egress is not None:
            usd_per_gb = egress
        elif here == there:
            usd_per_gb = Prices().egress  # one provider: most copies stay in a region, where egress is free
        self.egress_usd = self.nbytes / 1e9 * usd_per_gb
        self.requests_usd = (self.reads * here.read + self.writes * there.write) / 1000

    def to_text(self) -> str:
        of_root = ""
        if self.versions is not None:
            of_root = f"{len(self.versions)} versions, "
        log = ""
        if self.versions is not None:
            log = f", {self.entries} log entries"
        unlisted = ""
        if self.unlisted:
            unlisted = (
                f"\n{len(self.unlisted)} keys have a line break and are in no list (the first: {self.unlisted[0]!r}): "
                "rename them at the source; `penstock migrate run` refuses them too"
            )
        return (
            f"{self.source} -> {self.target}\n{of_root}{self.objects} objects, {size(self.nbytes)}{log}\n"
            f"{self.reads} reads, {self.writes} writes; by list prices "
            f"{self.egress_usd:.2f} USD for egress, {self.requests_usd:.2f} USD for requests{unlisted}"
        )


def plan_migration(
    root: Root,
    target: Store,
    *,
    egress: float | None = None,
    rclone: TextIO | None = None,
    s5cmd: TextIO | None = None,
) -> MigrationPlan:
    """Return the cost of updating the mirror at `target`.

    The lists cover only data. After another tool has copied it, `penstock migrate run` checks it and copies the log.

    egress: USD per GB; None: the list price. rclone: file that receives paths for `rclone copy --files-from-raw`.
    s5cmd: file that receives commands for `s5cmd run`.

    Raises: as `last_copied_entry`; as reading the source's manifests and tables.
    """
    source = root.store
    state = root.state
    after = last_copied_entry(source, target)
    names = [one.name for one in new_versions(state, after)]
    plan = MigrationPlan(source=source.url, target=target.url, versions=names, entries=state.n - after)
    plan.reads = plan.writes = plan.entries

    def failed(path: str, error: PenstockError) -> None:
        raise error

    for item in new_items(source, target, state, after, failed, lambda *_: None):
        plan.add(item, rclone, s5cmd)
    for item in missing_records(source, target):
        plan.add(item, None, None)  # another tool could copy a record before its plan
    plan.price(egress)
    return plan


def plan_prefix(
    source: Store,
    target: Store,
    *,
    scratch: str | None = None,
    egress: float | None = None,
    rclone: TextIO | None = None,
    s5cmd: TextIO | None = None,
) -> MigrationPlan:
    """Return the cost of copying a plain prefix, from two listings. Raises: as `check_places`; as listing."""
    check_places(source, target)
    plan = MigrationPlan(source=source.url, target=target.url)
    with Journal(target, FOLDER, scratch) as journal:
        for item in missing_items(source, target, journal):
            plan.add(item, rclone, s5cmd)
    plan.price(egress)
    return plan


def _quote(url: str) -> str:
    """Return a URL as one word for `s5cmd run`."""
    # s5cmd cuts a line at ` #` even between quotes, so those two characters are kept apart.
    return shlex.quote(url).replace(" #", " '\"#\"'")
