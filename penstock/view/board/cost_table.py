"""Cost of datasets, as `penstock usage --by dataset` and the metrics have it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import loader
from loader.dataset.log.state import newest_live

from ...metrics.cost_reader import SINCE_US, CostReader
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


def cost_table(root: loader.Root) -> CostTable:
    """Return the cost of a root's datasets now. Reads all manifests and runs' records. Raises: PenstockError."""
    now_s = time.time()
    reader = CostReader(root, None)
    problems = reader.read(now_s)
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
