"""A version with bytes of its own from another format, in work units: a killed import is finished by doing it again.

Formats are those of `loader.foreign`. Their objects are walked as at registration, then the bytes are copied. The
version's id follows from the dataset's name, the options, and the objects' keys, sizes and change tokens.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from loader import Root, Version
from loader.dataset.changes import publish_registered
from loader.dataset.names import check_dataset_name
from loader.dataset.shards.part import Part
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.tables.foreign_objects import place_id
from loader.errors import EmptyVersion, InvalidRuntime, PenstockError
from loader.foreign import format_named
from loader.foreign.earlier import Difference, imported_difference
from loader.foreign.formats.sample import Found
from loader.foreign.groups import groups_of
from loader.foreign.register import check_apart, transaction
from loader.foreign.shard_rows import Rows, Shard, keys_of, rows_of, shards_of
from loader.storage import Store

from ..progress import progress
from .import_units import FOLDER, UnitWriter, rows_in, units_of
from .unit_threads import in_threads

WORKERS = 4
"""Units that are copied at once, unless told otherwise."""


@dataclass(slots=True, kw_only=True)
class Imported:
    """The result of an import."""

    name: str = ""
    """Name of the version; empty where there is none because of failures."""
    id: str = ""
    """Id of the version."""
    samples: int = 0
    """Samples of the version."""
    new: int = 0
    """Objects that no earlier version had."""
    replaced: int = 0
    """Objects that were written again since: their earlier samples are left out."""
    same: int = 0
    """Objects that are as they were."""
    others: int = 0
    """Objects of the place that are not of the format."""
    nbytes: int = 0
    """Bytes of fields that were copied."""
    skipped: int = 0
    """Parts that an earlier run had written."""
    failures: list[str] = field(default_factory=list)
    """Errors of objects and parts that could not be read or written."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the lines for people."""
        objects = f"objects: {self.new} new, {self.replaced} written again, {self.same} as before; {self.others} others"
        if self.failures:
            told = [f"  failed: {why}" for why in self.failures]
            return "\n".join(
                [*told, objects, "there is no version: repair or move these, and run the command again"]
            )
        return f"{self.name}  {self.id}\n{self.samples} samples with bytes of their own\n{objects} were left alone"


def import_place(
    root: Root,
    format: str,
    store: Store,
    dataset: str,
    *,
    without: Sequence[str] = (),
    shuffle: bool | None = None,
    workers: int = WORKERS,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Imported:
    """Publish a version with copies of the samples of a place, or the next one with those of its new objects.

    Samples of objects that were written again take the place of the earlier ones. Objects that are gone change nothing.

    without: Fields that are left out.
    shuffle: Lay the samples in the order of their keys' hashes. None does it where a file is a sample.
    workers: Threads, each with a part of its own.

    What fails is named, the rest goes on, and no version is published. Memory: some 1 KB per sample, and 8 MiB or one
    larger sample per thread.

    Raises: InvalidStore; InvalidRuntime; Conflict where the dataset is not of this place, or somebody published
    meanwhile; EmptyVersion; FieldMismatch; StoreError.
    """
    if workers < 1:
        raise InvalidRuntime(f"--workers {workers}: a number of threads above 0 is needed")
    check_dataset_name(dataset)
    chosen_format = format_named(format)
    check_apart(root.url, store.url)
    root.create()
    parent = root.open(newest.id) if (newest := root.state.newest(dataset)) else None
    listed = list(store.list())
    found = chosen_format.look(store, listed)
    infos = found.infos
    if not infos:
        raise EmptyVersion(f"{store.url} has no {format} object among {len(listed)}; nothing was imported")
    since = imported_difference(parent, store, infos)
    new, replaced = len(since.fresh) - len(since.replaced), len(since.replaced)
    report = Imported(new=new, replaced=replaced, same=since.same, others=len(listed) - len(infos))
    version = parent
    if since.fresh:
        each = chosen_format.OBJECTS_PER_SHARD
        chosen = {
            "format": format,
            "without": sorted(set(without)),
            "shuffle": each > 1 if shuffle is None else shuffle,
            "shard_bytes": shard_bytes,
        }
        version = _publish(root, dataset, found, each, store, parent, since, chosen, workers, report)
    if version is not None and not report.failures:
        report.name, report.id, report.samples = version.name, version.id, len(version)
    return report


def _publish(
    root: Root,
    dataset: str,
    found: Found,
    each: int,
    store: Store,
    parent: Version | None,
    since: Difference,
    chosen: dict[str, Any],
    workers: int,
    report: Imported,
) -> Version | None:
    """Return the version, or None where something failed."""
    walked = _walk(found, shards_of(since.fresh, each), chosen["without"], report.failures)
    if report.failures:
        return None
    if not walked:
        raise EmptyVersion(
            f"the {len(since.fresh)} objects of {store.url} hold no samples; nothing was imported"
        )
    rows = [one for _, one in walked]
    group_of = groups_of(rows, parent.manifest["groups"] if parent else {})
    units = units_of(rows_in(walked, keys_of(rows, since.keys)), chosen["shard_bytes"], chosen["shuffle"])
    place = place_id(store, since.fresh)
    txn = transaction(root, dataset, place, {"imported": chosen}, parent)
    parts: dict[int, Part] = {}
    with root.heartbeat(txn):
        made = in_threads(UnitWriter(root, txn, store, group_of), units, workers, report.failures)
        total = sum(len(unit.rows) for unit in units)
        for unit, part, was_there in progress(made, "import", lambda one: len(one[0].rows), total):
            parts[unit.number] = part
            report.nbytes += 0 if was_there else sum(row.nbytes for row in unit.rows)
            report.skipped += was_there
        if report.failures:
            return None
        return publish_registered(
            root,
            dataset,
            txn,
            f"data/{txn}/{FOLDER}",
            [parts[unit.number] for unit in units],
            None,
            None,
            facts={},
            parent=parent,
            left_out=since.left_out(parent),
            producer={"imported": chosen, "place": place},
            created_us=max(info.modified_us or 0 for info in since.fresh),
        )


def _walk(
    found: Found, shards: Sequence[Shard], without: Sequence[str], failures: list[str]
) -> list[tuple[Shard, Rows]]:
    """Return the rows of the objects, in order, each with its shard; name the objects that cannot be read."""

    def walk(shard: Shard) -> list[Rows]:
        try:
            return rows_of(shard, [found.samples(info) for info in shard.infos], without)
        except PenstockError as error:
            failures.append(str(error))
            return []

    with ThreadPoolExecutor(16, thread_name_prefix="penstock-walk") as pool:
        done = list(pool.map(walk, shards))
    failures.sort()
    return [(shard, rows) for shard, some in zip(shards, done, strict=True) for rows in some]
