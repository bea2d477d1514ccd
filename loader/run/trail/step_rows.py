"""Rows of a run log: each delivered step, its metrics, and their Parquet columns."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...dataset.tables.parquet import UNREADABLE, table_bytes
from ...errors import Corrupt, InvalidRuntime
from ...modalities.fields import is_machine_fault

TABLE = "trail"
"""Kind of its Parquet tables."""
LARGEST = 16
"""Slots kept per per-sample metric: those with the largest values."""
NOTE, CRC = "note.", "crc."
"""Prefixes of columns: `note.loss` is the metric `loss`, `crc.jpg` the checksum of field `jpg`."""
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("at_us", pa.int64()),
        ("digest", pa.uint64()),
        ("substituted", pa.int64()),
        ("wait_us", pa.int64()),
        ("start", pa.string()),
        (
            "largest",
            pa.list_(pa.struct([("note", pa.string()), ("slot", pa.int64()), ("value", pa.float64())])),
        ),
    ]
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerSample:
    """A per-sample metric for consecutive slots."""

    values: Any
    """One number per slot: an array or tensor, or a list."""
    first_slot: int
    """Slot of the first value, in the global batch."""
    real: "np.ndarray[Any, np.dtype[np.bool_]]"
    """bool [slots]: False at padding."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepRow:
    """One rank's step. `rows_table` turns metrics into numbers."""

    step: int
    """Global step."""
    at_us: int
    """Time of delivery in UTC microseconds."""
    digest: int
    """`batch.digest` of the rank's whole part."""
    substituted: int
    """Number of slots whose sample was substituted or masked."""
    wait_us: int
    """Microseconds that training waited."""
    crcs: Mapping[str, int] | None = None
    """Field -> checksum of the rank's whole part, or None."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Metric -> number."""
    per_sample: dict[tuple[str, int], PerSample] = field(default_factory=dict)
    """(metric, its first slot) -> values."""
    changed: bool = True
    """False once the row is written."""


def copy_row(row: StepRow) -> StepRow:
    return replace(row, notes=dict(row.notes), per_sample=dict(row.per_sample))


def snapshot(name: str, value: Any) -> Any:
    """Return a snapshot of a metric's value, still on its device: does not wait.

    Raises: InvalidRuntime for anything but a number, or an array or tensor of rank 0.
    """
    if isinstance(value, bool | int | float):
        return value
    if getattr(value, "ndim", 0) or not hasattr(value, "__float__"):
        raise InvalidRuntime(
            f"note({name}={value!r:.200}): a number is needed, or an array or tensor without dimensions; one value per "
            f"sample is note(per_sample={{{name!r}: values}})",
            what=f"note {name!r}",
            given=value,
            accepted="a number",
        )
    return _as_now(value)


def snapshot_per_sample(name: str, values: Any, n_slots: int) -> Any:
    """Return a snapshot of a per-sample metric. Raises: InvalidRuntime unless it has one value per slot."""
    shape = getattr(values, "shape", None)
    if shape is None and isinstance(values, Sequence) and not isinstance(values, str | bytes):
        shape = (len(values),)
    if shape is None or tuple(shape) != (n_slots,):
        if shape is None:
            description = type(values).__name__
        else:
            description = f"shape {tuple(shape)}"
        raise InvalidRuntime(
            f"note(per_sample={{{name!r}: ...}}) has {description}; one number for each of the {n_slots} slots of the "
            "batch handed out last is needed",
            what=f"note {name!r}",
            given=description,
            accepted=f"{n_slots} numbers",
        )
    return _as_now(values)


def _as_now(value: Any) -> Any:
    if hasattr(value, "detach"):
        now = value.detach().clone()
        if getattr(now, "is_cuda", False):
            return _OnGpu(now)
        return now
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return list(value)
    return value


class _OnGpu:
    def __init__(self, now: Any) -> None:
        import torch

        self._now = now
        self._ready = torch.cuda.current_stream(now.device).record_event()

    def fetched(self) -> Any:
        self._ready.synchronize()
        return self._now

    def __float__(self) -> float:
        return float(self.fetched())


def rows_bytes(rows: Sequence[StepRow], start: str) -> bytes:
    """Return an object of a run log: the rows as Parquet. start: id of the start record."""
    # A run has an object a minute. Without dictionaries, and with LZ4, each is read in half the time of zstd's: most
    # of it is the set-up of a page's decoder. The two columns that grow evenly are stored as differences.
    return table_bytes(
        rows_table(rows, start),
        TABLE,
        compression="lz4",
        use_dictionary=False,
        column_encoding={"step": "DELTA_BINARY_PACKED", "at_us": "DELTA_BINARY_PACKED"},
    )


def rows_table(rows: Sequence[StepRow], start: str) -> pa.Table:
    """Return the rows as columns: `SCHEMA`, one per metric, and one per field with a checksum.

    start: id of the start record.
    """
    own = {
        name: [getattr(row, name) for row in rows]
        for name in SCHEMA.names
        if name not in ("start", "largest")
    }
    columns: dict[str, pa.Array] = {
        name: pa.array(values, SCHEMA.field(name).type) for name, values in own.items()
    }
    columns["start"] = pa.array([start] * len(rows), pa.string())
    columns["largest"] = pa.array(list(map(_largest, rows)), SCHEMA.field("largest").type)
    metrics = [_numbers(row) for row in rows]
    crcs = [row.crcs or {} for row in rows]
    for prefix, dtype, numbers in ((NOTE, pa.float64(), metrics), (CRC, pa.uint32(), crcs)):
        # A row has its own metrics and fields: the others are null.
        names = set().union(*numbers)
        for name in sorted(names):
            columns[prefix + name] = pa.array([of_row.get(name) for of_row in numbers], dtype)
    return pa.table(columns)


def cast_rows(table: pa.Table, name: str, without: Collection[str] = ()) -> pa.Table:
    """Return the known columns of a run log's table, cast to the types of `rows_table`.

    name: the object's name, for messages. without: columns that the table lacks on purpose. Raises: Corrupt if a column
    is missing or has another type.
    """
    fields = [field for field in SCHEMA if field.name not in without]
    for prefix, dtype in ((NOTE, pa.float64()), (CRC, pa.uint32())):
        fields += [pa.field(column, dtype) for column in table.column_names if column.startswith(prefix)]
    schema = pa.schema(fields)
    try:
        chosen = table.select(schema.names)
        if chosen.schema.equals(schema):  # a cast to the same types takes as long as parsing a column
            return chosen
        return chosen.cast(schema)
    except (KeyError, *UNREADABLE) as error:
        if is_machine_fault(error):
            raise
        raise Corrupt(
            f"{name} is not a table of a trail ({error}); restore or delete it",
            what="table",
            where=name,
            given=str(error),
        ) from error


def empty_columns(table: pa.Table) -> list[str]:
    """Return the columns of `SCHEMA` in a table that lack a value: every row has all of them."""
    names = [name for name in table.column_names if name in SCHEMA.names]
    return [name for name in names if _nulls(table[name])]


def _nulls(column: pa.ChunkedArray) -> int:
    if not len(column):
        return 0
    if pa.types.is_list(column.type):
        inside = [chunk.flatten() for chunk in column.chunks]
        return _nulls(pa.chunked_array(inside)) + int(column.null_count)
    if pa.types.is_struct(column.type):
        return sum(map(_nulls, column.flatten())) + int(column.null_count)
    return int(column.null_count)


def _numbers(row: StepRow) -> dict[str, float]:
    numbers = {}
    for name, value in row.notes.items():
        try:
            numbers[name] = float(value)
        except Exception as error:  # noqa: BLE001 - the training's own object must not cost the other rows
            _log.warning("step %d: the note %s is not a number (%s)", row.step, name, error)
    return numbers


def _largest(row: StepRow) -> list[dict[str, Any]]:
    lists = []
    for note in sorted({name for name, _ in row.per_sample}):
        parts = [one for (name, _), one in row.per_sample.items() if name == note]
        try:
            values = np.concatenate([_floats(one.values)[one.real] for one in parts])
        except Exception as error:  # noqa: BLE001 - as of a note
            _log.warning("step %d: the note %s is not a number per sample (%s)", row.step, note, error)
            continue
        slots = np.concatenate([one.first_slot + one.real.nonzero()[0] for one in parts])
        order = np.lexsort((slots, -np.nan_to_num(values, nan=np.inf), ~np.isnan(values)))[:LARGEST]
        lists += [
            {"note": note, "slot": slot, "value": value}
            for slot, value in zip(slots[order].tolist(), values[order].tolist(), strict=True)
        ]
    return lists


def _floats(values: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
    if isinstance(values, _OnGpu):
        values = values.fetched()
    if hasattr(values, "detach"):
        values = values.cpu().double().numpy()
    return np.asarray(values, np.float64)
