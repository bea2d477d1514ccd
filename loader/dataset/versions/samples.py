"""Samples of a version, read and decoded in storage order: to look at, not to train on."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DecodeFailed
from ...modalities import decoder_for
from ..reading.verified_bucket_reads import read_fields

if TYPE_CHECKING:
    import polars

    from .version import Version

Int64s = np.ndarray[Any, np.dtype[np.int64]]
KEY = "__key__"
"""Name of the key in a sample; no field may begin so."""
VIDEO = frozenset(("mp4", "mov", "webm", "mkv", "run"))
BLOCK = 64
SHOWN_CHARACTERS = 200


def picked(index: object, n: int) -> Int64s:
    """Return the numbers that an index or slice picks of `n`. Raises: IndexError; TypeError."""
    if isinstance(index, slice):
        return np.arange(*index.indices(n), dtype=np.int64)
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(f"[{index!r}]: samples are numbered from 0; pass an integer or a slice")
    at = index.__index__()
    if not -n <= at < n:
        raise IndexError(f"[{at}]: there are {n} samples")
    return np.array([at % n], np.int64)


def decoded(version: "Version", fields: Sequence[str], ordinals: Int64s) -> Iterator[dict[str, Any]]:
    """Yield `KEY` and field -> value of live ordinals, decoded by extension; absent fields are left out.

    Videos stay bytes. Raises: DecodeFailed, with version, key and field; Corrupt; StoreError.
    """
    for start in range(0, len(ordinals), BLOCK):
        block = ordinals[start : start + BLOCK]
        for key, data in zip(version.keys(block), _stored(version, fields, block), strict=True):
            yield {KEY: key, **{field: _value(version, key, field, data[field]) for field in data}}


def table_of(version: "Version", fields: Sequence[str], ordinals: Int64s) -> "polars.DataFrame":
    """Return a row per live ordinal: ordinal, key, fields (long values by size), and columns of the samples table.

    Raises: as `decoded`; MissingDependency.
    """
    from .samples_table import import_polars, live_row

    pl = import_polars()
    rows = []
    for ordinal, data in zip(ordinals.tolist(), _stored(version, fields, ordinals), strict=True):
        facts = live_row(version, ordinal)
        cells = {field: _cell(field, data[field]) for field in data}
        shown = {name: value for name, value in facts.items() if name not in ("part", "row")}
        rows.append({"ordinal": ordinal, "key": facts["key"], **cells, **shown})
    table: polars.DataFrame = pl.DataFrame(rows, infer_schema_length=None)
    return table


def _stored(version: "Version", fields: Sequence[str], ordinals: Int64s) -> list[dict[str, bytes]]:
    groups = {field: version.group_of(field) for field in fields}
    part, _ = version.parts.locate(ordinals)
    has = {group: version.parts.has_group(group)[part] for group in set(groups.values())}
    of_each = [tuple(field for field in fields if has[groups[field]][row]) for row in range(len(ordinals))]
    samples: list[dict[str, bytes]] = [{} for _ in of_each]
    for names in filter(None, set(of_each)):
        rows = [row for row, own_names in enumerate(of_each) if own_names == names]
        read = read_fields(version.shard_store, version.address(ordinals[rows], names))
        for row, data in zip(rows, read, strict=True):
            samples[row] = {field: data[field] for field in names}
    return samples


def _value(version: "Version", key: str, field: str, data: bytes) -> Any:
    if _extension(field) in VIDEO:  # which frames is the caller's choice: loader.video(frames=8)(data, None)
        return data
    try:
        return decoder_for(field)(data, None)
    except DecodeFailed as error:
        raise DecodeFailed(f"{version.name}, sample {key!r}, field {field!r}: {error}") from error


def _cell(field: str, data: bytes) -> object:
    if _extension(field) not in ("cls", "txt", "json"):
        return f"{len(data):,} bytes"
    try:
        value = decoder_for(field)(data, None)
    except DecodeFailed:
        return "damaged"
    return value if isinstance(value, int) else str(value)[:SHOWN_CHARACTERS]


def _extension(field: str) -> str:
    return field.rpartition(".")[2].lower()
