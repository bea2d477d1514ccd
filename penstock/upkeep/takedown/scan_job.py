"""Scan lists of objects for a proof on a cluster, without sending a name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loader import Root
from loader.dataset.log.state import Deny
from loader.dataset.root import root_in_store
from loader.dataset.tables.parquet import parse_table
from loader.storage import ObjectInfo, Store

from ...compute.attach import outcomes_anew
from ...compute.cluster import Cluster
from ...compute.job_json import to_json
from ...compute.work import Node, StoredPlace, Work
from ...denied.find import Findings
from ...denied.hashed_names import Marks, dataset_marks
from ...denied.keys_tables import name_columns
from ...denied.record import TakedownRecord, read_record
from ...progress import progress
from .scan import Scan
from .takedown_run import deny_entry

OBJECTS = 256
"""Most objects per unit."""
NBYTES = 64 * 2**20
"""Most bytes per unit; a larger object is a unit of its own. Not above `run_records.MOST_BYTES`."""
READ_BYTES_PER_S = 20e6
"""Estimated bytes per second that a process scans."""
OBJECT_S = 0.01
"""Estimated overhead per object, in seconds."""
SLOWEST_BYTES_PER_S = 1e5
"""Bytes per second. A unit scanned more slowly fails, after an hour of grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMarks:
    """One dataset's marks (hashed denied names), without the names."""

    dataset: str
    """Dataset name."""
    more: list[str]
    """Marks besides the recorded ones."""
    others: list[str]
    """Marks of shared names."""
    named_in: dict[str, list[int]]
    """Table path -> numbers of its rows with the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanUnit:
    """One unit of work: objects to scan."""

    root: str
    """Root URL."""
    n: int
    """Takedown number."""
    marks: list[StoredMarks]
    """Marks of every dataset."""
    paths: list[str]
    """Object paths."""
    nbytes: int
    """Total size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Result of one unit."""

    verdicts: list[str | None]
    """`Scan.verdict` for each object."""
    error: str = ""
    """Error type, or ""."""


def scan_objects(unit: ScanUnit, node: Node) -> ScanResult:
    try:
        scan = _scan(unit, node)
        return ScanResult(verdicts=[scan.verdict(path, unit.nbytes) for path in unit.paths])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - its text may quote a name; the waiting process scans again and raises
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
"""This worker process's scan, for one takedown at a time."""


def _scan(unit: ScanUnit, node: Node) -> Scan:
    key = to_json([unit.root, unit.n, unit.marks])
    if key not in _scans:
        root = root_in_store(node.open(unit.root))
        deny = deny_entry(root, unit.n)
        record = read_record(root.store, unit.n)
        _scans.clear()
        _scans[key] = Scan(
            root, record, {one.dataset: _marks(root.store, deny, record, one) for one in unit.marks}
        )
    return _scans[key]


def _marks(store: Store, deny: Deny, record: TakedownRecord, stored: StoredMarks) -> Marks:
    known = {*stored.more, *record.marks.get(stored.dataset, ())}
    marks = dataset_marks(deny, stored.dataset, (), known, stored.others)
    names: set[str] = set()
    for path, rows in stored.named_in.items():
        # Read from the root's own tables, so that no unit carries a name.
        table = parse_table(store.get(path).data, path).take(rows)
        for name in name_columns(table):
            names.update(table[name].drop_null().to_pylist())
    return marks.adding(name for name in names if marks.mark(name) in known)


def scan_on_cluster(
    cluster: Cluster,
    root: Root,
    record: TakedownRecord,
    findings: Sequence[Findings],
    infos: Iterable[ObjectInfo],
) -> Iterator[tuple[str, str | None]]:
    """Yield (path, verdict) for each object, in order. Units that fail on the cluster are scanned here."""
    marks = {one.dataset: one.marks for one in findings}
    units = list(_units(root, record, findings, infos))
    if not units:
        return
    here = None
    outcomes = outcomes_anew(SCAN, units, cluster, store=root.store, about=f"takedown {record.n}: scan")
    shown = progress(outcomes, f"prove {record.n}: scan", total=len(units))
    for unit, outcome in zip(units, shown, strict=True):
        verdicts = outcome.value.verdicts if outcome.value else []
        # A failed unit has none. Here, an error may quote names.
        if len(verdicts) != len(unit.paths):
            here = here or Scan(root, record, marks)
            verdicts = [here.verdict(path, unit.nbytes) for path in unit.paths]
        yield from zip(unit.paths, verdicts, strict=True)


def _units(
    root: Root, record: TakedownRecord, findings: Sequence[Findings], infos: Iterable[ObjectInfo]
) -> Iterator[ScanUnit]:
    url = StoredPlace.of(root.store).url
    marks = [_store_marks(one, record.marks) for one in findings]
    run: list[ObjectInfo] = []
    nbytes = 0

    def unit() -> ScanUnit:
        return ScanUnit(root=url, n=record.n, marks=marks, paths=[one.key for one in run], nbytes=nbytes)

    for info in infos:
        if run and (len(run) == OBJECTS or nbytes + info.nbytes > NBYTES):
            yield unit()
            run = []
            nbytes = 0
        run.append(info)
        nbytes += info.nbytes
    if run:
        yield unit()


def _store_marks(findings: Findings, on_record: Mapping[str, Sequence[str]]) -> StoredMarks:
    marks = findings.marks
    return StoredMarks(
        dataset=findings.dataset,
        more=sorted(marks.denied_marks.difference(on_record.get(findings.dataset, ()))),
        others=sorted(marks.others),
        named_in={path: rows for path, rows in findings.named_in.items() if rows},
    )
