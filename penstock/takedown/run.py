"""`penstock takedown run`: what is to be done for a deny entry, and doing it.

What was found goes on record, then the version without the samples is committed, then those that had them are retired,
then what no version protects is rewritten or deleted. Each step finds what is left to do from what is stored, so a run
that was killed is run again. The bytes of retired versions go when a collector sweeps them.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from loader import Root
from loader.dataset.history import Deny
from loader.dataset.publish import open_record
from loader.errors import VersionNotFound
from loader.storage import is_there

from ..progress import progress
from .derived import derived_edits, page_edits
from .edits import do
from .find import Found, all_datasets, find
from .leftovers import left_over, part_samples
from .lifecycle import lifecycle_edits
from .marks import Marks, mark, marks_of
from .record import Place, Record, add_to_record, read_record
from .rewrite import publish_redacted, zeroed
from .whole import Whole, over_whole


@dataclass(slots=True)
class Ran:
    """What was found, and with `applied` done. samples: by dataset; new, retired: names of versions; touched: objects
    that were rewritten or deleted; uris: of raw objects at their source, which stay."""

    n: int
    applied: bool
    samples: dict[str, int] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    uris: list[str] = field(default_factory=list)
    waiting: int = 0

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        n = sum(self.samples.values())
        lines = [
            f"takedown {self.n}: {n} samples" + "".join(f", {k} in {d}" for d, k in self.samples.items())
        ]
        if not self.applied:
            lines.append("  nothing was changed: --apply does it" if n else "  nothing to do in any version")
        lines += [f"  published {name}" for name in self.new] + [f"  retired {name}" for name in self.retired]
        if self.touched:
            lines.append(f"  rewrote or deleted {len(self.touched)} objects of no version")
        if self.waiting:
            lines.append(f"  {self.waiting} objects wait for a collector: penstock gc sweep")
        lines += [f"  raw object, at its source: {uri}" for uri in self.uris]
        return "\n".join(lines)


def deny_entry(root: Root, n: int) -> Deny:
    """The takedown of this number. Raises: VersionNotFound, naming those that there are."""
    for deny in root.state.denies:
        if deny.n == n:
            return deny
    there = ", ".join(str(deny.n) for deny in root.state.denies) or "none"
    raise VersionNotFound(
        f"{root.url} has no takedown {n}; it has {there}. penstock takedown request makes one"
    )


def run_takedown(root: Root, n: int, *, apply: bool, delete_raw: Callable[[str], None] | None = None) -> Ran:
    """Find, and with `apply` redact. delete_raw: is given the URI of each raw object that nothing else was cut of.

    Reads the keys of every version, and writes each shard that has one of the samples once. Raises: VersionNotFound for
    a takedown that was not requested; Corrupt; StoreError; Fenced.
    """
    deny = deny_entry(root, n)
    ran = Ran(n=n, applied=apply)
    for dataset in progress(all_datasets(root), f"takedown {n}"):
        _dataset(root, dataset, deny, ran, delete_raw)
    ran.waiting = sum(
        1 for place in read_record(root.store, n).having("absent") if is_there(root.store, place["path"])
    )
    return ran


def _dataset(
    root: Root, dataset: str, deny: Deny, ran: Ran, delete_raw: Callable[[str], None] | None
) -> None:
    found = find(root, dataset, deny)
    known = read_record(root.store, deny.n).marks.get(dataset, ())
    marks = marks_of(deny.salt, dataset, found.names, deny.hashes, known)
    ran.samples |= {dataset: sum(map(len, found.rows.values()))} if found.rows else {}
    ran.uris += sorted(found.uris)
    if not ran.applied:
        return
    _note(root, found, deny, marks, delete_raw is not None)
    for uri in sorted(found.uris) if delete_raw else ():
        assert delete_raw is not None
        delete_raw(uri)
    while (record := publish_redacted(root, dataset, deny, marks)) is not None:
        ran.new.append(record.name)
    found = find(root, dataset, deny)  # again: what others published meanwhile
    _note(root, found, deny, marks, delete_raw is not None)
    _zeros(root, found, deny)
    for record in found.versions:
        if root.record(record.id, retired=True).retired is None:
            root.log.retire(dataset, record.number, f"takedown (log entry {deny.n})")
            ran.retired.append(record.name)
    ids = read_record(root.store, deny.n).versions()
    had = [record for record in root.state.versions(dataset) if record.id in ids]
    ran.touched += do(root.store, deny.n, dataset, derived_edits(root.store, had, marks))
    add_to_record(root.store, deny.n, left_over(root, dataset, marks))
    instead = _replaced(root, dataset, found) | part_samples(root, dataset, found.rows, marks)
    lifecycle = lifecycle_edits(root.store, dataset, marks, instead)
    if had or lifecycle.puts or lifecycle.deletes:  # before the tables that tell so are rewritten
        ran.touched += do(root.store, deny.n, dataset, page_edits(root.store, dataset))
    ran.touched += do(root.store, deny.n, dataset, lifecycle)


def _note(root: Root, found: Found, deny: Deny, marks: Marks, deletes_raw: bool) -> Record:
    """Everything on record, before anything is changed."""
    raw: Iterable[Place] = (
        {
            "check": "raw",
            "what": "raw object at its source",
            "of": found.dataset,
            "mark": mark(deny.salt, found.dataset, uri),
            "deleted": deletes_raw,
        }
        for uri in sorted(found.uris)
    )
    own = {one for one in marks.hashes if one not in deny.hashes}
    return add_to_record(root.store, deny.n, [*found.places, *raw], {found.dataset: own} if own else {})


def _zeros(root: Root, found: Found, deny: Deny) -> None:
    newest = root.state.newest(found.dataset)
    if newest is None or not found.rows or newest.id in {one.id for one in found.versions}:
        return
    add_to_record(root.store, deny.n, zeroed(open_record(root.store, newest), found.rows))


def _replaced(root: Root, dataset: str, found: Found) -> dict[str, dict[str, Any]]:
    """Path of a shard with samples that are taken down -> the row of the newest version's shard in its place."""
    newest = root.state.newest(dataset)
    if newest is None or not found.rows:
        return {}
    version = open_record(root.store, newest)
    now = {
        (shard["part"], shard["group"]): shard
        for shard in version.parts.shard_rows().to_pylist()
        if shard["part"] in found.rows
    }

    def replaced(versions: Whole) -> dict[str, dict[str, Any]]:
        old: dict[str, dict[str, Any]] = {}
        for _, earlier in versions:
            for shard in earlier.parts.shard_rows().to_pylist():
                new = now.get((shard["part"], shard["group"]))
                if new is not None and new["path"] != shard["path"]:
                    old[shard["path"]] = new
        return old

    return over_whole(root, dataset, replaced)
