"""Reporting intervals: once a minute all ranks gather what they did and waited for.

The first rank stores it as one table, below "windows/": stored names stay.

A row is bytes of one length, so a single collective carries numbers and names; no step waits for it.
"""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.errors import Corrupt
from loader.run.batch.batch import MAKING, SlowSample
from loader.run.metrics import STAGES, stage_seconds

from ..units import utc_us
from .agreement import Collective
from .batch_source import BatchSource

if TYPE_CHECKING:
    import pyarrow as pa

    import loader

EVERY_S = 60.0
"""Seconds from one interval to the next."""
NO_RECORD, RECORD, DUE = range(3)
"""Values that ranks exchange: no rank keeps a record, one does, and an interval is due."""
SECONDS = (*MAKING, "handover", "room", "copy")
"""Stages of the loader with a column of seconds, such as `fetch_s`."""
COUNTS = {
    "samples": "consumed_samples_total",
    "bytes": "fetched_bytes_total",
    "retries": "retries_total",
    "refetched": "refetched_total",
    "damaged_pages": "cache_corrupt_total",
    "substituted": "substituted_total",
    "requests": "requests_total",
}
"""Column -> counter of `Loader.metrics`."""
ADDED = "requests"
"""Column that intervals of earlier releases lack: it counts as 0 there."""
SLOW_TEXTS = ("stage", "source", "key", "version", "path")
"""Texts of the interval's slowest sample."""
TABLE = "training-window"
ROW = np.dtype(
    [
        ("rank", "<i4"),
        ("node", "S64"),
        ("first_step", "<i8"),
        ("end_step", "<i8"),
        ("begun_us", "<i8"),
        ("ended_us", "<i8"),
        *((name, "<f8") for name in ("step_s", "wait_s", *(f"{stage}_s" for stage in SECONDS))),
        *((name, "<i8") for name in COUNTS),
        ("slow_read_s", "<f8"),
        ("slow_step", "<i8"),
        ("slow_wait_s", "<f8"),
        ("slow_s", "<f8"),
        ("slow_offset", "<i8"),
        ("slow_nbytes", "<i8"),
        ("slow_sample", "S320"),
    ]
)
"""Row of a rank; `slow_sample` holds `SLOW_TEXTS`, joined by NUL, or nothing if they are too long."""


class Intervals:
    """Numbers of this rank since the last interval. The training's thread calls it, each rank as often as the others.

    device: the default group's device; None for a single process.
    put: stores the rows of an interval, on the rank that keeps the record; None on others.
    """

    def __init__(self, rank: int, node: str, device: Any | None, put: Callable[[bytes], None] | None) -> None:
        self._rank = rank
        self._node = node.encode()[:64]
        self._put = put
        self._collective = None if device is None else Collective(device)
        self._batches: BatchSource | None = None
        self._slow: tuple[float, float, SlowSample] | None = None
        self._next_s = monotonic() + EVERY_S

    def begin(self, batches: BatchSource, step: int) -> None:
        """Count from this step on, whose batch has come."""
        self._batches = batches
        self._reset(step)

    def _reset(self, step: int) -> None:
        assert self._batches is not None
        self._first_step = step
        self._begun_us = utc_us()
        self._step_s = 0.0
        self._before = self._batches.metrics()
        self._slow = None

    def batch(self, batch: "loader.Batch") -> None:
        """Note the slowest sample of a batch that came."""
        if (slow := batch.slowest) is not None:
            entry = batch.wait_s, slow.seconds, slow
            if self._slow is None or entry[:2] > self._slow[:2]:
                self._slow = entry

    def step(self, seconds: float) -> None:
        """Add the seconds of a step."""
        self._step_s += seconds
        if self._collective is not None and self._collective.is_done():
            self._finish()

    def offer(self) -> int:
        """Return this rank's value to exchange: DUE once a minute on the rank with the record."""
        if self._put is None:
            return NO_RECORD
        if monotonic() < self._next_s:
            return RECORD
        self._next_s = monotonic() + EVERY_S
        return DUE

    def gather(self, step: int) -> None:
        """Begin an interval that ends before this step, unless it has no step."""
        if self._batches is None or step <= self._first_step:
            return
        row = self._row(step).tobytes()
        self._reset(step)
        if self._collective is not None:
            self._finish()
            self._collective.gather(row)
        elif self._put is not None:
            self._put(row)

    def close(self) -> None:
        """Wait for the interval on its way: a group may not end before."""
        self._finish()

    def _finish(self) -> None:
        rows = None
        if self._collective is not None:
            rows = self._collective.result()
        if rows is not None and self._put is not None:
            self._put(rows.numpy().tobytes())

    def _row(self, step: int) -> "np.ndarray[Any, Any]":
        assert self._batches is not None
        metrics = self._batches.metrics()
        seconds = stage_seconds(metrics, self._before)
        row = np.zeros(1, ROW)
        row["rank"] = self._rank
        row["node"] = self._node
        row["first_step"] = self._first_step
        row["end_step"] = step
        row["begun_us"] = self._begun_us
        row["ended_us"] = utc_us()
        row["step_s"] = self._step_s
        row["wait_s"] = seconds["consumer"]
        for stage in SECONDS:
            name = f"{STAGES[stage]}_sum"
            row[f"{stage}_s"] = metrics[name] - self._before[name]
        for column, counter in COUNTS.items():
            row[column] = metrics[counter] - self._before[counter]
        row["slow_read_s"] = metrics["read_latency_seconds"]
        if self._slow is not None:
            wait_s, _, slow = self._slow
            row["slow_step"] = slow.step
            row["slow_wait_s"] = wait_s
            row["slow_s"] = slow.seconds
            row["slow_offset"] = slow.offset
            row["slow_nbytes"] = slow.nbytes
            texts = "\0".join(getattr(slow, name) for name in SLOW_TEXTS).encode()
            # numpy would cut longer texts without an error.
            if len(texts) <= ROW["slow_sample"].itemsize:
                row["slow_sample"] = texts
        return row


def interval_bytes(rows: bytes) -> tuple[int, bytes]:
    """Return the step after an interval, and its Parquet table, from the gathered rows."""
    import pyarrow as pa

    from loader.dataset.tables.parquet import table_bytes

    ranks = np.frombuffer(rows, ROW)
    columns: dict[str, pa.Array] = {}
    for name in ROW.names or ():
        values = np.ascontiguousarray(ranks[name])
        if name == "slow_sample":
            texts = [value.decode(errors="replace").split("\0") for value in values.tolist()]
            whole = [[*parts, *[""] * len(SLOW_TEXTS)][: len(SLOW_TEXTS)] for parts in texts]
            for number, text in enumerate(SLOW_TEXTS):
                columns[f"slow_{text}"] = pa.array([parts[number] for parts in whole], pa.string())
        elif values.dtype.kind == "S":
            decoded = [value.decode(errors="replace") for value in values.tolist()]
            columns[name] = pa.array(decoded, pa.string())
        else:
            columns[name] = pa.Array.from_buffers(
                _arrow_type(name), len(values), [None, pa.py_buffer(values)]
            )
    return int(ranks["end_step"].max()), table_bytes(pa.table(columns), TABLE)


MOST_ROW_BYTES = 128 * 2**20
"""Most bytes of rows in memory at once: a row has about 330, and far fewer in its file."""


class TooManyRows(Corrupt):
    """Intervals whose rows take more memory than a run's do."""


class IntervalSum(NamedTuple):
    """Sums of an interval, for goodput and usage: one for all of its ranks."""

    attempt: int
    """Number of the start."""
    end_step: int
    """Step after its last one."""
    ended_us: int
    """UTC microseconds of its end, by the clock of the first rank's node, as events have them."""
    wait_s: float
    """Longest time that a rank waited for data, in s."""
    step_s: float
    """Longest time of a rank's steps, in s."""
    nodes: int
    """Number of nodes."""
    nbytes: int = 0
    """Bytes that its ranks read."""
    requests: int = 0
    """Requests of its ranks to stores; 0 in intervals of earlier releases."""


IntervalValues = Mapping[str, NDArray[Any]]
"""Columns of one interval: `_VALUES`, a value per rank."""
_VALUES = ["rank", "node", "ended_us", "end_step", "wait_s", "step_s", "slow_read_s", "bytes", ADDED]


def interval_values(data: bytes, where: str) -> IntervalValues:
    """Return the columns of a stored interval, for sums and for signs against nodes. Raises: TooManyRows; Corrupt."""
    # All columns take three times as long: most of the others are texts.
    table = _table(data, where, _VALUES)
    if table.nbytes > MOST_ROW_BYTES:
        raise TooManyRows(f"{where} has more than {MOST_ROW_BYTES:,} bytes in memory")
    return _columns(table)


def interval_sum(
    attempt: int,
    end_step: int,
    columns: IntervalValues,
    where: str,
) -> IntervalSum:
    """Return the sums of a stored interval. Raises: Corrupt."""
    if not all(np.isfinite(columns[name]).all() for name in ("wait_s", "step_s")):
        message = f"{where} is not a table of intervals: its seconds are not numbers"
        raise Corrupt(message, what="seconds", where=where, accepted="numbers")
    return IntervalSum(
        attempt=attempt,
        end_step=end_step,
        ended_us=int(columns["ended_us"][np.argmin(columns["rank"])]),
        wait_s=float(columns["wait_s"].max()),
        step_s=float(columns["step_s"].max()),
        nodes=len(set(columns["node"])),
        nbytes=_total(columns["bytes"]),
        requests=_total(columns[ADDED]),
    )


def _total(counts: NDArray[Any]) -> int:
    """Return a sum, of which a forged table may have one beyond 64 bits."""
    return sum(max(0, count) for count in counts.tolist())


def interval_columns(tables: Mapping[int, list[bytes]], where: str) -> dict[str, NDArray[Any]]:
    """Return the rows of intervals as columns, `attempt` among them; none without intervals.

    tables: Number of a start -> its intervals, in order. Raises: TooManyRows if they take too much memory; Corrupt.
    """
    import pyarrow as pa

    parsed: list[pa.Table] = []
    nbytes = 0
    for attempt, datas in tables.items():
        for data in datas:
            table = _table(data, where, _column_names())
            nbytes += table.nbytes
            if nbytes > MOST_ROW_BYTES:
                message = f"{where} has intervals of more than {MOST_ROW_BYTES:,} bytes in memory"
                raise TooManyRows(message, what="windows", where=where, accepted=MOST_ROW_BYTES)
            parsed.append(table.append_column("attempt", pa.array([attempt] * len(table), pa.int64())))
    return _columns(pa.concat_tables(parsed)) if parsed else {}


def _table(data: bytes, where: str, names: list[str]) -> "pa.Table":
    """Return columns of a stored interval, of the types and without the gaps that `interval_bytes` writes."""
    import pyarrow as pa

    from loader.dataset.tables.small_tables import parse_small_table

    table = parse_small_table(data, where, names)
    if ADDED in names and ADDED not in table.column_names:
        table = table.append_column(ADDED, pa.array([0] * len(table), pa.int64()))
    try:
        table = table.select(names).cast(pa.schema([(name, _arrow_type(name)) for name in names]))
    except (KeyError, pa.ArrowException) as error:
        raise Corrupt(
            f"{where} is not a table of intervals: {error}",
            what="table of intervals",
            where=where,
            given=str(error),
        ) from error
    if not len(table) or any(column.null_count for column in table.columns):
        message = f"{where} is not a table of intervals: it has no row, or a row without a value"
        raise Corrupt(message, what="rows", where=where, accepted="rows with a value each")
    return table


def _columns(table: "pa.Table") -> dict[str, NDArray[Any]]:
    return {name: table[name].to_numpy() for name in table.column_names}


def _arrow_type(name: str) -> "pa.DataType":
    import pyarrow as pa

    if name not in (ROW.names or ()) or ROW[name].kind == "S":
        return pa.string()
    return {"i4": pa.int32(), "i8": pa.int64(), "f8": pa.float64()}[ROW[name].str[1:]]


def _column_names() -> list[str]:
    names = [name for name in ROW.names or () if name != "slow_sample"]
    return [*names, *(f"slow_{text}" for text in SLOW_TEXTS)]
