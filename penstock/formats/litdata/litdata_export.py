"""LitData exports: each sample maps its fields, `key`, `metadata`, and `absent`, the fields that it lacks."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.errors import InvalidSample
from loader.json_text import canonical_json

from ..exporter import ExportSample, ExportSelection, Loss, Outbox, WorkUnit, metadata_json
from ..reading.exported import KEY, METADATA
from .litdata_index import ABSENT, DTYPES
from .litdata_leaves import NULL

CHUNK_BYTES = 64 * 2**20
"""Largest chunk in bytes, unless one sample is larger."""
_TEXTS = {"txt": "str", "json": "json"}
_FLAT = DTYPES["numpy"][:11]
_MOST_BYTES = 2**31
_LEAF = {"type": None, "context": None, "children_spec": list[Any]()}


def losses(selection: ExportSelection) -> list[Loss]:
    """Return keys, metadata and absent fields whose leaf's name is already a field."""
    own = [
        ("keys", KEY, True),
        ("metadata", METADATA, selection.columns),
        ("absence", ABSENT, selection.partial),
    ]
    return [
        Loss(what, f"its leaf would be {name!r}, which is a field: it is left out")
        for what, name, needed in own
        if name in selection.fields and needed
    ]


def units(selection: ExportSelection) -> list[WorkUnit]:
    return selection.by_part()


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    leaves = _leaves(selection)
    chunks, held, nbytes = list[dict[str, Any]](), list[bytes](), 0
    for sample in selection.samples(unit):
        data = _encoded(sample, leaves, selection.fields)
        if held and nbytes + len(data) > CHUNK_BYTES:
            chunks.append(_put(f"chunk-{unit.number}-{len(chunks)}.bin", held, outbox))
            held, nbytes = [], 0
        held.append(data)
        nbytes += len(data)
    chunks.append(_put(f"chunk-{unit.number}-{len(chunks)}.bin", held, outbox))
    return {"chunks": chunks}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    leaves = _leaves(selection)
    names = json.dumps(list(leaves))
    tree = {"type": "builtins.dict", "context": names, "children_spec": [_LEAF] * len(leaves)}
    config = {
        "chunk_bytes": CHUNK_BYTES,
        "chunk_size": None,
        "compression": None,
        "data_format": list(leaves.values()),
        "data_spec": json.dumps([1, tree]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    chunks = [chunk for unit in facts for chunk in unit["chunks"]]
    outbox.put("index.json", canonical_json({"chunks": chunks, "config": config}))


def _leaves(selection: ExportSelection) -> dict[str, str]:
    leaves = {} if KEY in selection.fields else {KEY: "str"}
    if selection.columns and METADATA not in selection.fields:
        leaves[METADATA] = "json"
    if selection.partial and ABSENT not in selection.fields:
        leaves[ABSENT] = "json"
    for name in selection.fields:
        word = name.rpartition(".")[2].lower()
        leaves[name] = _TEXTS.get(word) or (
            f"no_header_numpy:{_FLAT.index(word)}" if word in _FLAT else "bytes"
        )
    return leaves


def _encoded(sample: ExportSample, leaves: dict[str, str], fields: Sequence[str]) -> bytes:
    values = list[bytes]()
    for name, encoding in leaves.items():
        if name in sample.fields:
            values.append(_value(sample, name, encoding))
        elif name in fields:
            values.append(NULL if encoding == "json" else b"")
        elif name == KEY:
            values.append(sample.key.encode())
        elif name == METADATA:
            values.append(_document(metadata_json(sample.columns)))
        else:
            values.append(_document(canonical_json([one for one in fields if one not in sample.fields])))
    sizes = [len(value) for value in values]
    if sum(sizes) > _MOST_BYTES:
        raise InvalidSample(
            f"sample {sample.key!r} has {sum(sizes):,} bytes; a chunk of LitData holds 4 GiB at most"
        )
    return b"".join([np.array(sizes, "<u4").tobytes(), *values])


def _value(sample: ExportSample, name: str, encoding: str) -> bytes:
    data = sample.fields[name]
    if encoding in _TEXTS.values():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise InvalidSample(
                f"sample {sample.key!r}: {name} is no UTF-8 ({error}), which LitData needs; leave it out (--without)"
            ) from error
    elif encoding != "bytes" and len(data) % int(name[-1]):
        raise InvalidSample(
            f"sample {sample.key!r}: {name} has {len(data)} bytes, no whole values; leave it out (--without)"
        )
    return _document(data) if encoding == "json" else data


def _document(data: bytes) -> bytes:
    return struct.pack("<BI", 0, len(data)) + data


def _put(key: str, samples: list[bytes], outbox: Outbox) -> dict[str, Any]:
    offsets = np.cumsum([4 * (len(samples) + 2), *map(len, samples)])
    with outbox.file(key) as file:
        file.write(np.array([len(samples), *offsets], "<u4").tobytes())
        for data in samples:
            file.write(data)
        nbytes = file.nbytes
    return {"chunk_bytes": nbytes, "chunk_size": len(samples), "dim": None, "filename": key}
