"""Cost of datasets and owners: stored bytes, and the requests, bytes and GPU-hours of trainings that read them.

Stored bytes come from manifests and tables (`stored.py`), the rest from starts of trainings and their intervals. A
start that read two versions counts for both. Reads of other programs, of the pipeline and of evaluations are not
recorded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .prices import PriceTable
from .stored import StoredBytes
from .totals import HOUR_S, StartUsage, share_inside

CostKey = Literal["dataset", "owner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """Cost of one dataset or owner."""

    name: str
    """Its name; "" for versions without an owner."""
    versions: int = 0
    """Stored versions."""
    nbytes: int = 0
    """Bytes in the root that no older version of another row names."""
    registered: int = 0
    """Registered bytes, which stay in their owner's store."""
    frees: int = 0
    """Bytes in the root that retiring all of its versions would free."""
    requests: float = 0.0
    """Requests of trainings that read it."""
    read_nbytes: float = 0.0
    """Bytes that these trainings read, of all their versions."""
    gpu_hours: float = 0.0
    """GPU-hours that these trainings had."""

    def to_json(self, prices: PriceTable | None) -> dict[str, Any]:
        """Return the figures, and their prices if there are any."""
        body = asdict(self)
        body["requests"] = round(self.requests)
        body["read_nbytes"] = round(self.read_nbytes)
        body["gpu_hours"] = round(self.gpu_hours, 3)
        if prices is None:
            return body
        read = prices.training_price(
            self.gpu_hours,
            self.requests,
            self.read_nbytes,
        )
        body["currency"] = prices.currency
        body["stored_price_per_month"] = round(prices.storage_price(self.nbytes), 4)
        body["freed_price_per_month"] = round(prices.storage_price(self.frees), 4)
        body["read_price"] = round(read, 4)
        return body


def group_costs(
    by: CostKey,
    stored: StoredBytes,
    starts: Iterable[StartUsage],
    since_us: int,
    until_us: int,
) -> list[CostRow]:
    """Return a row per dataset or owner, the one with most stored bytes first.

    since_us, until_us: period of the trainings, UTC microseconds. A version that is no longer stored counts for its
    dataset, and for no owner.
    """
    owners = {version.name: version.owner for version in stored.versions}
    reads: dict[str, _TrainingReads] = {}
    for start in starts:
        share = share_inside(start, since_us, until_us)
        for name in _names(by, start.versions, owners):
            if name not in reads:
                reads[name] = _TrainingReads()
            reads[name].add(start, share)
    rows = list[CostRow]()
    for stored_row in stored.rows(by):
        # Zeros if no training read it.
        own = reads.pop(stored_row.name, _TrainingReads())
        row = CostRow(
            name=stored_row.name,
            versions=stored_row.versions,
            nbytes=stored_row.nbytes,
            registered=stored_row.registered,
            frees=stored_row.frees,
            requests=own.requests,
            read_nbytes=own.nbytes,
            gpu_hours=own.gpu_s / HOUR_S,
        )
        rows.append(row)
    # The rest were read by trainings, but none of their versions is stored any more.
    for name, own in reads.items():
        row = CostRow(
            name=name,
            requests=own.requests,
            read_nbytes=own.nbytes,
            gpu_hours=own.gpu_s / HOUR_S,
        )
        rows.append(row)
    return sorted(rows, key=_most_bytes)


class _TrainingReads:
    """Sums of the trainings that read one dataset, or versions of one owner."""

    def __init__(self) -> None:
        self.requests = 0.0
        self.nbytes = 0.0
        self.gpu_s = 0.0

    def add(self, start: StartUsage, share: float) -> None:
        """Add a share of a start, from 0 to 1."""
        if start.begun_us is None:  # a job that never started read nothing
            return
        seconds = (start.ended_us - start.begun_us) / 1e6
        self.requests += share * start.requests
        self.nbytes += share * start.read_nbytes
        self.gpu_s += share * seconds * start.gpus


def _names(by: CostKey, versions: Iterable[str], owners: Mapping[str, str]) -> set[str]:
    """Return the rows in which a start counts: once in each, however many of its versions the row has."""
    if by == "owner":
        return {owners.get(version, "") for version in versions}
    names = set[str]()
    for version in versions:
        dataset, _, _ = version.partition("@")
        names.add(dataset)
    return names


def _most_bytes(row: CostRow) -> tuple[int, float, str]:
    return -row.nbytes, -row.gpu_hours, row.name
