"""Decode samples of a version in storage order: for inspection, not training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ...errors import DecodeFailed
from ...modalities import find_decoder
from ..reading.verified_bucket_reads import read_fields
from .sample_rows import live_row
from .samples_table import Int64s, import_polars

if TYPE_CHECKING:
    import polars

    from ..reading.sample_places import VersionData

KEY = "__key__"
"""Name of the key in a sample; no field name may start with it."""
VIDEO = frozenset(("mp4", "mov", "webm", "mkv", "run"))
"""Extensions whose values stay bytes: the caller chooses frames, loader.video(frames=8)(data, None)."""
BLOCK = 64  # samples whose bytes are in memory together
SHOWN_CHARACTERS = 200


def select_numbers(index: object, n: int) -> Int64s:
    """Return the numbers that an index, slice or integer array selects from `n`. Raises: IndexError; TypeError."""
    if isinstance(index, slice):
        return np.arange(*index.indices(n), dtype=np.int64)
    if _is_array(index):
        return _select_by_array(index, n)
    # A bool is an index for Python, and a mistake here.
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(
            f"[{index!r}]: samples are numbered from 0; pass an integer, a slice or an array of integers"
        )
    number = index.__index__()
    is_inside = -n <= number < n
    if not is_inside:
        raise IndexError(f"[{number}]: there are {n} samples")
    return np.array([number % n], np.int64)


def _is_array(index: object) -> TypeGuard["np.ndarray[Any, Any]"]:
    return isinstance(index, np.ndarray) and index.ndim > 0


def _select_by_array(
    index: "np.ndarray[Any, Any]",
    n: int,
) -> Int64s:
    """Return the numbers from 0 to n - 1 of an array of integers; negative ones count from the end."""
    is_whole = index.dtype.kind in "iu"
    if not is_whole or index.ndim != 1:
        shape = list(index.shape)
        raise TypeError(
            f"[{index.dtype} of shape {shape}]: pass an array of integers with one dimension. "
            "For a mask, pass np.flatnonzero(mask)"
        )
    is_outside = (index < -n) | (index >= n)
    outside = index[is_outside]
    if len(outside):
        raise IndexError(f"[{outside[0]}]: there are {n} samples")
    numbers = index.astype(np.int64)
    return numbers % n


def select_samples(
    index: object,
    n: int,
    read: Callable[[Int64s], Iterable[dict[str, Any]]],
) -> Any:
    """Return the sample of an integer, or the list of a slice's or an array's. Reads each distinct sample once.

    read: int64 [m], ascending numbers from 0 to `n` -> their samples.
    """
    numbers = select_numbers(index, n)
    # positions: int64 [len(numbers)], of each number in `distinct`.
    distinct, positions = np.unique(numbers, return_inverse=True)
    samples = list(read(distinct))
    has_many = isinstance(index, slice) or _is_array(index)
    if has_many:
        return [samples[position] for position in positions.tolist()]
    return samples[0]


def decoded(
    version: "VersionData",
    fields: Sequence[str],
    ordinals: Int64s,
) -> Iterator[dict[str, Any]]:
    """Yield `KEY` and field -> value for live ordinals, decoded by extension; absent fields are left out.

    Videos stay bytes. Raises: DecodeFailed, with version, key and field; Corrupt; StoreError.
    """
    for start in range(0, len(ordinals), BLOCK):
        block = ordinals[start : start + BLOCK]
        keys = version.keys(block)
        for key, data in zip(keys, _read_stored(version, fields, block), strict=True):
            sample: dict[str, Any] = {KEY: key}
            for field, field_bytes in data.items():
                sample[field] = _decode(
                    version,
                    key,
                    field,
                    field_bytes,
                )
            yield sample


def decode_table(
    version: "VersionData",
    fields: Sequence[str],
    ordinals: Int64s,
) -> "polars.DataFrame":
    """Return one row per live ordinal: ordinal, key, fields (long values as sizes), and samples-table columns.

    Raises: as `decoded`; MissingDependency.
    """
    pl = import_polars()
    rows = []
    for ordinal, data in zip(ordinals.tolist(), _read_stored(version, fields, ordinals), strict=True):
        columns = live_row(version, ordinal)
        row = {"ordinal": ordinal, "key": columns["key"]}
        for field, field_bytes in data.items():
            row[field] = _cell(field, field_bytes)
        del columns["part"]
        del columns["row"]
        row.update(columns)
        rows.append(row)
    table: polars.DataFrame = pl.DataFrame(rows, infer_schema_length=None)
    return table


def _read_stored(
    version: "VersionData",
    fields: Sequence[str],
    ordinals: Int64s,
) -> list[dict[str, bytes]]:
    """Return field -> bytes of each live ordinal, without fields that its part lacks."""
    positions, _ = version.parts.locate(ordinals)
    has_field = {}  # field -> bool [len(ordinals)]
    for field in fields:
        group = version.group_of(field)
        has_field[field] = version.parts.has_group(group)[positions]
    rows_by_fields: dict[tuple[str, ...], list[int]] = {}
    for row in range(len(ordinals)):
        row_fields = tuple(field for field in fields if has_field[field][row])
        rows_by_fields.setdefault(row_fields, []).append(row)

    samples: list[dict[str, bytes]] = [{} for _ in range(len(ordinals))]
    for row_fields, rows in rows_by_fields.items():
        if not row_fields:
            continue
        addresses = version.address(ordinals[rows], row_fields)
        fields_of_rows = read_fields(version.shard_store, addresses)
        for row, data in zip(rows, fields_of_rows, strict=True):
            samples[row] = {field: data[field] for field in row_fields}
    return samples


def _decode(
    version: "VersionData",
    key: str,
    field: str,
    data: bytes,
) -> Any:
    if _extension(field) in VIDEO:
        return data
    try:
        return find_decoder(field)(data, None)
    except DecodeFailed as error:
        raise DecodeFailed(
            f"{version.name}, sample {key!r}, field {field!r}: {error}",
            what=field,
            where=f"{version.name}, sample {key!r}",
            given=error.given,
            accepted=error.accepted,
        ) from error


def _cell(field: str, data: bytes) -> object:
    if _extension(field) not in ("cls", "txt", "json"):
        return f"{len(data):,} bytes"
    try:
        value = find_decoder(field)(data, None)
    except DecodeFailed:
        return "damaged"
    if isinstance(value, int):
        return value
    return str(value)[:SHOWN_CHARACTERS]


def _extension(field: str) -> str:
    _, _, extension = field.rpartition(".")
    return extension.lower()
