"""MDS exports for MosaicML Streaming; key and metadata become columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.errors import InvalidSample
from loader.json_text import canonical_json

from .exporter import (
    ExportSample,
    ExportSelection,
    Loss,
    Outbox,
    WorkUnit,
    check_value,
    in_parcels,
    metadata_json,
    put_parcel,
)
from .reading.exported import KEY, METADATA

SHARD_BYTES = 64 * 2**20
"""Largest shard in bytes, unless one sample is larger; MDSWriter's default."""
_ENCODINGS = {"txt": "str", "json": "json"}
_ARRAYS = {
    **{f"{kind}{n}": f"{name}{8 * n}" for kind, name in (("u", "uint"), ("i", "int")) for n in (1, 2, 4, 8)},
    **{f"f{n}": f"float{8 * n}" for n in (2, 4, 8)},
}
_MOST_BYTES = 2**32 - 1


def losses(selection: ExportSelection) -> list[Loss]:
    """Return losses: keys and metadata whose column's name is already a field."""
    columns = [("keys", KEY)]
    if selection.columns:
        columns.append(("metadata", METADATA))
    losses = []
    for what, name in columns:
        if name in selection.fields:
            losses.append(Loss(what, f"its column would be {name!r}, which is a field: it is left out"))
    return losses


def units(selection: ExportSelection) -> list[WorkUnit]:
    return selection.by_part()


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    columns = _columns(selection, unit)
    encoded = (_encode(sample, columns) for sample in selection.samples(unit))
    shards = []
    for number, parcel in enumerate(in_parcels(encoded, SHARD_BYTES)):
        key = f"shard.{unit.number:06d}.{number:04d}.mds"
        shards.append(_put(key, parcel, columns, outbox))
    return {"shards": shards}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    shards = [shard for unit in facts for shard in unit["shards"]]
    outbox.put("index.json", canonical_json({"version": 2, "shards": shards}))


def _columns(selection: ExportSelection, unit: WorkUnit) -> dict[str, str]:
    """Return column -> encoding, by name."""
    columns = {}
    if KEY not in selection.fields:
        columns[KEY] = "str"
    if selection.columns and METADATA not in selection.fields:
        columns[METADATA] = "json"
    for name in unit.fields:
        word = name.rpartition(".")[2].lower()
        if word in _ARRAYS:
            columns[name] = f"ndarray:{_ARRAYS[word]}"
        else:
            columns[name] = _ENCODINGS.get(word, "bytes")
    # By name, as MDSWriter has them.
    return dict(sorted(columns.items()))


def _encode(sample: ExportSample, columns: dict[str, str]) -> bytes:
    values = []
    for name, encoding in columns.items():
        if name in sample.fields:
            values.append(_value(sample, name, encoding))
        else:
            values.append(sample.key.encode() if name == KEY else metadata_json(sample.columns))
    sizes = [len(value) for value in values]
    # Half of an offset's range: the sample joins a shard that has others.
    if sum(sizes) > _MOST_BYTES // 2:
        raise InvalidSample(
            f"sample {sample.key!r} has {sum(sizes):,} bytes; a shard of MDS holds 4 GiB at most"
        )
    return b"".join([np.array(sizes, "<u4").tobytes(), *values])


def _value(sample: ExportSample, name: str, encoding: str) -> bytes:
    is_array = encoding not in ("str", "json", "bytes")
    item = 1
    if is_array:
        item = int(name[-1])
    data = check_value(sample, name, "MDS", is_text=encoding in ("str", "json"), item=item)
    if not is_array:
        return data
    # One dimension, whose length has 8 bytes.
    return bytes([1 << 2 | 3]) + np.uint64(len(data) // item).tobytes() + data


def _put(key: str, samples: list[bytes], columns: dict[str, str], outbox: Outbox) -> dict[str, Any]:
    names = list(columns)
    header: dict[str, Any] = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": SHARD_BYTES,
        "version": 2,
    }
    nbytes = put_parcel(outbox, key, samples, canonical_json(header))
    raw = {"basename": key, "bytes": nbytes, "hashes": {}}
    return {**header, "raw_data": raw, "samples": len(samples), "zip_data": None}
