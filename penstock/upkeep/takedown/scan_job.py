"""Scan for a proof on a cluster: a unit is a run of objects.

As in `penstock/denied/keys_job.py`, no name travels. A worker derives the names from the record, from marks, and from
the rows of tables that its unit counts.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loader import Root
from loader.dataset.log.state import Deny
from loader.dataset.root import root_over
from loader.dataset.tables.parquet import parse_table
from loader.storage import ObjectInfo, Store

from ...compute.attach import outcomes_anew
from ...compute.cluster import Cluster
from ...compute.job import Job
from ...compute.plain import to_json
from ...compute.work import Node, StoredPlace, Work
from ...denied.find import Found
from ...denied.hashed_names import Marks, marks_of
from ...denied.keys_tables import name_columns
from ...denied.record import Record, read_record
from ...progress import progress
from .run import deny_entry
from .scan import Scan

OBJECTS = 256
"""Objects of a unit, at most."""
NBYTES = 64 * 2**20
"""Bytes of a unit, at most; an object with more is a unit of its own."""
READ_BYTES_PER_S = 20e6
"""Bytes that a process looks at in a second, about: by this units are cut into blocks."""
OBJECT_S = 0.01
"""Seconds that an object takes beside its bytes, about."""
SLOWEST_BYTES_PER_S = 1e5
"""A unit that is looked at slower than this, after an hour of grace, is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMarks:
    """Marks of a dataset without the names."""

    dataset: str
    """Name of the dataset."""
    more: list[str]
    """Marks of the names, beside those on record."""
    others: list[str]
    """Marks of names that something which stays has too."""
    named_in: dict[str, list[int]]
    """Path of a table -> numbers of its rows that have the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanUnit:
    """Objects to look at."""

    root: str
    """URL of the root."""
    n: int
    """Number of the takedown."""
    marks: list[StoredMarks]
    """Marks of every dataset."""
    paths: list[str]
    """Paths of the objects."""
    nbytes: int
    """Their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Result of a look."""

    verdicts: list[str | None]
    """`Scan.verdict` of each object."""
    error: str = ""
    """Type of the error that ended it; "" for none."""


def scan_objects(unit: ScanUnit, node: Node) -> ScanResult:
    """Return the verdict on each object."""
    try:
        look = _scan(unit, node)
        return ScanResult(verdicts=[look.verdict(path) for path in unit.paths])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - its text may quote a name; who waits looks again, and raises
        return ScanResult(verdicts=[], error=type(error).__name__)


def _cost_s(unit: ScanUnit) -> float:
    return len(unit.paths) * OBJECT_S + unit.nbytes / READ_BYTES_PER_S


def _limit_s(unit: ScanUnit) -> float:
    return 3600.0 + unit.nbytes / SLOWEST_BYTES_PER_S


SCAN = Work(
    name="takedown-scan",
    version="1",
    function=scan_objects,
    unit=ScanUnit,
    result=ScanResult,
    timeout_s=_limit_s,
    cost_s=_cost_s,
)

_scans: dict[bytes, Scan] = {}
"""A worker process looks at objects of one takedown, one after the other."""


def _scan(unit: ScanUnit, node: Node) -> Scan:
    key = to_json([unit.root, unit.n, unit.marks])
    if key not in _scans:
        root = root_over(node.open(unit.root))
        deny, record = deny_entry(root, unit.n), read_record(root.store, unit.n)
        _scans.clear()
        _scans[key] = Scan(
            root, record, {one.dataset: _marks(root.store, deny, record, one) for one in unit.marks}
        )
    return _scans[key]


def _marks(store: Store, deny: Deny, record: Record, stored: StoredMarks) -> Marks:
    """Return the marks with those names that are still there."""
    known = {*stored.more, *record.marks.get(stored.dataset, ())}
    marks = marks_of(deny, stored.dataset, (), known, stored.others)
    names: set[str] = set()
    for path, rows in stored.named_in.items():
        table = parse_table(store.get(path).data, path).take(rows)
        for name in name_columns(table):
            names.update(table[name].drop_null().to_pylist())
    return marks.adding(name for name in names if marks.mark(name) in known)


def scan_on(
    cluster: Cluster, root: Root, record: Record, found: Sequence[Found], infos: Iterable[ObjectInfo]
) -> Iterator[tuple[str, str | None]]:
    """Yield (path, verdict) of each object, in their order, as `Scan.verdicts`.

    Objects that a machine could not look at are looked at here, which raises the reason. Raises: as `outcomes_anew`.
    """
    marks = {one.dataset: one.marks for one in found}
    units = list(_units(root, record, found, infos))
    if not units:
        return
    words = hashlib.sha256()
    for unit in units:
        words.update(to_json(unit))
    job = Job(
        store=root.store,
        work=SCAN,
        about=f"takedown {record.n}: scan",
        fingerprint=words.hexdigest(),
        stores=[root.store],
    )
    here = None
    outcomes = progress(outcomes_anew(job, units, cluster), f"prove {record.n}: scan", total=len(units))
    for unit, outcome in zip(units, outcomes, strict=True):
        verdicts = outcome.value.verdicts if outcome.value else []
        if len(verdicts) != len(unit.paths):
            here = here or Scan(root, record, marks)
            verdicts = [here.verdict(path) for path in unit.paths]
        yield from zip(unit.paths, verdicts, strict=True)


def _units(
    root: Root, record: Record, found: Sequence[Found], infos: Iterable[ObjectInfo]
) -> Iterator[ScanUnit]:
    url, marks = StoredPlace.of(root.store).url, [_stored(one, record.marks) for one in found]
    run: list[ObjectInfo] = []
    nbytes = 0

    def unit() -> ScanUnit:
        return ScanUnit(root=url, n=record.n, marks=marks, paths=[one.key for one in run], nbytes=nbytes)

    for info in infos:
        if run and (len(run) == OBJECTS or nbytes + info.nbytes > NBYTES):
            yield unit()
            run, nbytes = [], 0
        run.append(info)
        nbytes += info.nbytes
    if run:
        yield unit()


def _stored(found: Found, on_record: Mapping[str, Sequence[str]]) -> StoredMarks:
    marks = found.marks
    return StoredMarks(
        dataset=found.dataset,
        more=sorted(marks.hashes.difference(on_record.get(found.dataset, ()))),
        others=sorted(marks.others),
        named_in={path: rows for path, rows in found.named_in.items() if rows},
    )
