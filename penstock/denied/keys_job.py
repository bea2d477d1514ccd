"""Search keys tables on a cluster, a unit each, by marks: a bucket keeps a job's folder, so no name is sent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader import Root
from loader.dataset.log.state import Deny
from loader.dataset.publishing.apply_denies import DenyEntries
from loader.dataset.root import root_in_store
from loader.errors import TakedownNotFound

from ..compute.attach import outcomes_anew
from ..compute.cluster import Cluster
from ..compute.work import Node, StoredPlace, Work
from ..progress import progress
from .hashed_names import Marks, dataset_marks
from .keys_tables import DeniedRows, KeysFile, KeysTables, denied_rows, shared_marks
from .record import read_record

StoredRows = list[tuple[str, int, int]]
"""(part, row, takedown) of each denied row."""
READ_BYTES_PER_S = 5e6
"""Estimated bytes per second at which a process reads and hashes a keys table."""
SLOWEST_BYTES_PER_S = 2e4
"""A table read more slowly than this, after an hour of grace, fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysUnit:
    """A keys table to search."""

    root: str
    """URL of the root."""
    n: int
    """Number of the takedown."""
    newest: int
    """Number of the newest takedown to consider."""
    dataset: str
    """Dataset of the table."""
    file: dict[str, Any]
    """Path, size, hash and columns of the table, from a manifest."""
    marks: list[str] | None = None
    """Marks of the names to remove, besides recorded ones; None in the first pass."""
    denied: StoredRows | None = None
    """Rows in the table that any takedown denies; None in the first pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysResult:
    """Result for one table."""

    own: StoredRows | None = None
    """Rows that this takedown denies; None if not requested."""
    every: StoredRows | None = None
    """Rows that any takedown denies; None if not requested."""
    shared: list[str] | None = None
    """Marks of names that remaining rows share; None if not requested."""
    error: str = ""
    """Type of the error, or ""."""


def look_at_keys(unit: KeysUnit, node: Node) -> KeysResult:
    """Return a table's denied rows; for a unit with marks, the marks of names that still occur in it."""
    try:
        return _examine_unit(unit, node)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - its text may quote a cell; the waiting process reads again and raises
        return KeysResult(error=type(error).__name__)


def _examine_unit(unit: KeysUnit, node: Node) -> KeysResult:
    store = node.open(unit.root)
    denies = [one for one in root_in_store(store).state.denies if one.n <= unit.newest]
    deny = next((one for one in denies if one.n == unit.n), None)
    if deny is None:
        raise TakedownNotFound(f"{store.url} has no takedown {unit.n}")
    if unit.marks is None or unit.denied is None:
        rows = denied_rows(store, deny, denies, unit.dataset, unit.file)
        return KeysResult(own=_store_rows(rows.own), every=_store_rows(rows.every))
    known = {*unit.marks, *read_record(store, unit.n).marks.get(unit.dataset, ())}
    marks = dataset_marks(deny, unit.dataset, (), known)
    return KeysResult(shared=sorted(shared_marks(store, marks, unit.file, _rows(unit.denied))))


def _store_rows(rows: DenyEntries) -> StoredRows:
    return [(part, row, n) for part, members in rows.items() for row, n in members.items()]


def _rows(stored: StoredRows) -> DenyEntries:
    rows: DenyEntries = {}
    for part, row, n in stored:
        rows.setdefault(part, {})[row] = n
    return rows


def _cost_s(unit: KeysUnit) -> float:
    return float(unit.file["nbytes"]) / READ_BYTES_PER_S


def _limit_s(unit: KeysUnit) -> float:
    return 3600.0 + float(unit.file["nbytes"]) / SLOWEST_BYTES_PER_S


LOOK_AT_KEYS = Work(
    name="takedown-keys",
    version="1",
    function=look_at_keys,
    unit=KeysUnit,
    result=KeysResult,
    timeout_s=_limit_s,
    cost_s=_cost_s,
)


class KeysTablesOnCluster(KeysTables):
    """Keys tables of a root, read on a cluster; a table that fails there is read here."""

    def __init__(self, root: Root, deny: Deny, cluster: Cluster) -> None:
        super().__init__(root, deny)
        self._cluster = cluster

    def denied(self, dataset: str, files: Sequence[KeysFile]) -> Iterator[DeniedRows]:
        units = [self._unit(dataset, file) for file in files]
        for file, result in zip(files, self._results(dataset, units), strict=True):
            if result.own is None or result.every is None:
                yield from super().denied(dataset, [file])
            else:
                yield DeniedRows(own=_rows(result.own), every=_rows(result.every))

    def shared(
        self, marks: Marks, files: Sequence[KeysFile], denied: Mapping[str, DeniedRows]
    ) -> Iterator[set[str]]:
        dataset = marks.dataset
        recorded_marks = read_record(self.root.store, self.deny.n).marks.get(dataset, ())
        # Workers read the recorded marks themselves.
        unrecorded_marks = sorted(marks.denied_marks.difference(recorded_marks))
        units = []
        for file in files:
            denied_rows_of_file = _store_rows(denied[file["path"]].every)
            units.append(self._unit(dataset, file, unrecorded_marks, denied_rows_of_file))
        for file, result in zip(files, self._results(dataset, units), strict=True):
            if result.shared is None:
                yield from super().shared(marks, [file], denied)
            else:
                yield set(result.shared)

    def _unit(
        self,
        dataset: str,
        file: KeysFile,
        marks: list[str] | None = None,
        denied: StoredRows | None = None,
    ) -> KeysUnit:
        # All units consider the same takedowns, even if another one is logged while they run.
        newest_deny_n = max(deny.n for deny in self.root.state.denies)
        return KeysUnit(
            root=StoredPlace.of(self.root.store).url,
            n=self.deny.n,
            newest=newest_deny_n,
            dataset=dataset,
            file={name: file[name] for name in ("path", "nbytes", "sha256", "n_rows", "columns")},
            marks=marks,
            denied=denied,
        )

    def _results(self, dataset: str, units: Sequence[KeysUnit]) -> Iterator[KeysResult]:
        if not units:
            return
        about = f"takedown {self.deny.n}: keys of {dataset}"
        outcomes = outcomes_anew(LOOK_AT_KEYS, units, self._cluster, store=self.root.store, about=about)
        for outcome in progress(outcomes, about, total=len(units)):
            yield outcome.value or KeysResult()
