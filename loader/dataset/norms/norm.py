"""A norm: statistics of fields per dimension, and how they are stored.

    norms/<hash>.parquet        field, dim, n, total, squares, low, high, bins, counts; a row per dimension

`total` and `squares` are whole numbers in hexadecimal, in units of 2^-1074 and 2^-2148. `bins` (uint32) and `counts`
(int64) are little-endian. The metadata has the shapes of the fields and the name of the transform.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import Corrupt, FieldMismatch
from ...json_text import DamagedJson, parse_json
from ..tables.parquet import parse_stored, table_bytes, table_facts
from .quantiles import ValueCounts, added
from .sums import ExactSums

F64 = NDArray[np.float64]
_BITS = 20
MODES = ("std", "minmax", "quantile")
"""(x - mean) / std; from the least to the greatest value, or from q01 to q99, as -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldNorm:
    """Statistics of one field, per dimension."""

    shape: tuple[int, ...]
    """Shape of one value of the field."""
    sums: tuple[ExactSums, ...]
    """Exact sums of each dimension, in C order."""
    counts: ValueCounts
    """Counts of the values of all dimensions."""

    def __add__(self, other: "FieldNorm") -> "FieldNorm":
        """Return the statistics of the values of both. Raises: FieldMismatch for another shape."""
        if self.shape != other.shape:
            raise FieldMismatch(
                f"values of the shapes {list(self.shape)} and {list(other.shape)} have no common norm"
            )
        sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
        return FieldNorm(shape=self.shape, sums=sums, counts=self.counts + other.counts)

    @property
    def n(self) -> int:
        """Number of values of each dimension."""
        return self.sums[0].n if self.sums else 0

    @property
    def mean(self) -> F64:
        """float64, shaped as a value: the nearest to the true mean."""
        return self._shaped([one.mean for one in self.sums])

    @property
    def std(self) -> F64:
        """float64, shaped as a value: the nearest to the true deviation of all values."""
        return self._shaped([one.std for one in self.sums])

    @property
    def min(self) -> F64:
        """float64, shaped as a value."""
        return self._shaped([one.low for one in self.sums])

    @property
    def max(self) -> F64:
        """float64, shaped as a value."""
        return self._shaped([one.high for one in self.sums])

    def quantile(self, q: float) -> F64:
        """Return float64, shaped as a value: of rank floor(q * (n - 1)), within 2^-11 of its magnitude."""
        values = [self.counts.quantile(dim, q) for dim in range(len(self.sums))]
        return np.clip(self._shaped(values), self.min, self.max)

    def scale(self, mode: str) -> tuple[F64, F64]:
        """Return (offset, factor) of a mode: (x - offset) * factor is the normalised value; 0 where all are equal."""
        if mode == "std":
            offset, width = self.mean, self.std
        elif mode in MODES:
            low, high = (
                (self.min, self.max) if mode == "minmax" else (self.quantile(0.01), self.quantile(0.99))
            )
            offset, width = (low + high) / 2, (high - low) / 2
            if mode == "quantile" and ((width == 0) & (self.min < self.max)).any():
                raise FieldMismatch(
                    "q01 and q99 of a dimension are one value, within 2^-11 of it: normalise by 'std' or 'minmax'"
                )
        else:
            raise ValueError(f"mode = {mode!r}; accepted: {', '.join(map(repr, MODES))}")
        return offset, np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)

    def _shaped(self, values: list[float]) -> F64:
        return np.array(values, np.float64).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Norm:
    """Statistics of what windows deliver, in the space of their transform."""

    fields: Mapping[str, FieldNorm]
    """Field -> its statistics."""
    transform: str
    """Name and version of the transform that was applied first; "" for none."""
    version: str
    """Id of the version whose windows it is of."""
    path: str
    """Place in the root."""
    function: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    """The transform; None for none."""

    def __getitem__(self, field: str) -> FieldNorm:
        """Return a field's statistics. Raises: FieldMismatch for a field that the norm lacks."""
        if field not in self.fields:
            raise FieldMismatch(f"the norm {self.path} has {', '.join(self.fields)}, not {field!r}")
        return self.fields[field]


def norm_bytes(norm: Norm) -> bytes:
    """Return a norm as its Parquet file."""
    rows: dict[str, list[object]] = {name: [] for name in _COLUMNS.names}
    for field, of_field in norm.fields.items():
        for dim, sums in enumerate(of_field.sums):
            first, stop = np.searchsorted(of_field.counts.bins, [dim << _BITS, (dim + 1) << _BITS])
            values = (field, dim, sums.n, f"{sums.total:x}", f"{sums.squares:x}", sums.low, sums.high)
            bins = of_field.counts.bins[first:stop].astype("<u4").tobytes()
            counts = of_field.counts.counts[first:stop].astype("<i8").tobytes()
            for name, value in zip(_COLUMNS.names, (*values, bins, counts), strict=True):
                rows[name].append(value)
    table = pa.table(rows, schema=_COLUMNS)
    facts = {
        "path": norm.path,
        "shapes": json.dumps({field: list(one.shape) for field, one in norm.fields.items()}),
        "transform": norm.transform,
        "version": norm.version,
        "content_sha256": _sha256(table),
    }
    return table_bytes(table, "norm", facts=facts)


def parse_norm(data: bytes, path: str, where: str) -> Norm:
    """Return the norm in a file. Raises: Corrupt."""
    table = parse_stored(data, path, where)
    facts = table_facts(table)
    try:
        if (
            not table.schema.equals(_COLUMNS, check_metadata=False)
            or _sha256(table) != facts["content_sha256"]
        ):
            raise ValueError("its content differs from its checksum")
        shapes = parse_json(facts["shapes"])
        fields: dict[str, FieldNorm] = {}
        rows = table.to_pylist()
        for field, shape in shapes.items():
            own = [row for row in rows if row["field"] == field]
            sums = tuple(
                ExactSums(row["n"], int(row["total"], 16), int(row["squares"], 16), row["low"], row["high"])
                for row in own
            )
            counts = added(
                ValueCounts(np.frombuffer(row["bins"], "<u4"), np.frombuffer(row["counts"], "<i8"))
                for row in own
            )
            fields[field] = FieldNorm(shape=tuple(shape), sums=sums, counts=counts)
        return Norm(fields=fields, transform=facts["transform"], version=facts["version"], path=path)
    except (KeyError, ValueError, TypeError, AttributeError, DamagedJson) as error:
        raise Corrupt(f"{where} is no norm: {error}; delete it, it is made again") from error


_COLUMNS = pa.schema(
    [
        pa.field("field", pa.string(), nullable=False),
        pa.field("dim", pa.int32(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("total", pa.string(), nullable=False),
        pa.field("squares", pa.string(), nullable=False),
        pa.field("low", pa.float64(), nullable=False),
        pa.field("high", pa.float64(), nullable=False),
        pa.field("bins", pa.binary(), nullable=False),
        pa.field("counts", pa.binary(), nullable=False),
    ]
)


def _sha256(table: pa.Table) -> str:
    digest = hashlib.sha256()
    for row in table.to_pylist():
        digest.update(repr(tuple(row.values())).encode())
    return digest.hexdigest()
