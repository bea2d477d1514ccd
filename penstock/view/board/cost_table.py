"""Cost of datasets, as `penstock usage --by dataset` and the metrics have it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

import loader
from loader.dataset.log.state import newest_live

from ...metrics.cost_reader import EVERY_S, SINCE_US, CostReader
from ...units import DAY_US
from ...usage.cost import CostRow
from ..json_record import JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable(JsonRecord):
    rows: tuple[CostRow, ...]
    """The datasets, the one with most stored bytes first."""
    newest: Mapping[str, int]
    """Dataset -> number of its newest version that is not retired."""
    days: int
    """Trainings of these days count."""
    problems: tuple[str, ...]
    """Runs' records that could not be read."""
    read_us: int
    """When the root was read, in UTC microseconds."""


class DatasetCosts:
    """Reads the cost of a root's datasets once an hour. Thread-safe."""

    def __init__(self) -> None:
        self.known: CostTable | None = None
        """The newest one; None until the first reading."""
        self._lock = Lock()

    def read(self, root: loader.Root) -> CostTable:
        """Return the cost, read at most an hour ago. Raises: PenstockError."""
        with self._lock:  # two requests at once read it once
            known = self.known
            if known is None or time.time() - known.read_us / 1e6 > EVERY_S:
                known = cost_table(root)
            self.known = known
            return known


def cost_table(root: loader.Root) -> CostTable:
    """Return the cost of a root's datasets now. Reads all manifests and runs' records. Raises: PenstockError."""
    now_s = time.time()
    reader = CostReader(root, None)
    problems = reader.read_rows(now_s)
    newest: dict[str, int] = {}
    for dataset, versions in root.state.datasets.items():
        record = newest_live(versions)
        if record is not None:
            newest[dataset] = record.number
    return CostTable(
        rows=tuple(reader.rows),
        newest=newest,
        days=SINCE_US // DAY_US,
        problems=tuple(problems),
        read_us=round(now_s * 1e6),
    )
