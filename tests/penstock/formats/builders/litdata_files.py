"""LitData's chunks and index as LitData writes them, made here of a tree of encodings and encoded leaves."""

import json
import struct

import numpy as np
import pyarrow as pa

LEAF = {"type": None, "context": None, "children_spec": []}


def spec(tree):
    """The tree of a sample as torch dumps it; a leaf is a text, its encoding."""
    if isinstance(tree, str):
        return LEAF
    children = list(tree.values()) if isinstance(tree, dict) else tree
    context = json.dumps(list(tree) if isinstance(tree, dict) else None)
    kind = f"builtins.{type(tree).__name__}"
    return {"type": kind, "context": context, "children_spec": [spec(one) for one in children]}


def encodings(tree):
    if isinstance(tree, str):
        return [tree]
    return [leaf for one in (tree.values() if isinstance(tree, dict) else tree) for leaf in encodings(one)]


def item(leaves):
    """Bytes of a sample."""
    return np.array([len(leaf) for leaf in leaves], "<u4").tobytes() + b"".join(leaves)


def chunk(items):
    """Bytes of a chunk of samples."""
    offsets = np.cumsum([4 * (len(items) + 2), *map(len, items)])
    return np.array([len(items), *offsets], "<u4").tobytes() + b"".join(items)


def table_chunk(rows, stream=False, compression=None):
    """Bytes of a chunk whose samples are the rows of a table."""
    table, sink = pa.Table.from_pylist(rows), pa.BufferOutputStream()
    writer = pa.ipc.new_stream if stream else pa.ipc.new_file
    with writer(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
        for first in range(0, len(rows), 2):
            out.write_table(table.slice(first, 2))
    data = sink.getvalue().to_pybytes()
    return chunk([b""] * len(rows)) + data + struct.pack("<I", len(data)) + b"LDARW01\0"


def fill(folder, tree, *chunks, dims=None, **config):
    """Write a dataset; chunks: (samples, bytes) of each. Returns the index."""
    folder.mkdir(parents=True, exist_ok=True)
    index = {
        "chunks": [],
        "config": {
            "chunk_bytes": 64000000,
            "chunk_size": None,
            "compression": None,
            "data_format": encodings(tree),
            "data_spec": json.dumps([1, spec(tree)]),
            "encryption": None,
            "item_loader": "PyTreeLoader",
            **config,
        },
        "updated_at": "1795565780.8997383",
    }
    for number, (n, data) in enumerate(chunks):
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(data)
        told = {"chunk_bytes": len(data), "chunk_size": n, "dim": dims[number] if dims else None}
        index["chunks"].append({**told, "filename": name})
    put_index(folder, index)
    return index


def samples(folder, tree, *chunks, **config):
    """Write a dataset; chunks: samples of each, a sample its encoded leaves."""
    return fill(folder, tree, *((len(rows), chunk([item(row) for row in rows])) for rows in chunks), **config)


def put_index(folder, index):
    (folder / "index.json").write_text(json.dumps(index))


def json_leaf(value):
    """A value as a leaf of JSON has it: lists of one kind and mappings in a form of their own."""
    if value is None:
        return b"\x0b"
    if isinstance(value, bool):
        return bytes([10, value])
    if isinstance(value, str):
        return b"\x07" + text(value)
    if isinstance(value, int):
        return struct.pack("<Bq", 8, value)
    if isinstance(value, float):
        return struct.pack("<Bd", 9, value)
    if isinstance(value, dict):
        return struct.pack("<BI", 5, len(value)) + b"".join(text(k) + json_leaf(v) for k, v in value.items())
    kinds = {type(one) for one in value}
    if kinds <= {str}:
        return struct.pack("<BI", 1, len(value)) + b"".join(map(text, value))
    for kind, tag, dtype in ((int, 2, "<i8"), (float, 3, "<f8"), (bool, 4, "u1")):
        if kinds == {kind}:
            return struct.pack("<BI", tag, len(value)) + np.array(value, dtype).tobytes()
    data = json.dumps(value, ensure_ascii=False).encode()
    return struct.pack("<BI", 0, len(data)) + data


def records(rows):
    """Mappings of scalars with the same keys, as a leaf of JSON has them."""
    tags = {7: 0x11, 8: 0x12, 9: 0x13, 10: 0x14, 11: 0x10}
    out = struct.pack("<BII", 6, len(rows), len(rows[0])) + b"".join(map(text, rows[0]))
    for row in rows:
        for key in rows[0]:
            data = json_leaf(row[key])
            out += bytes([tags[data[0]]]) + data[1:]
    return out


def text(value):
    data = value.encode()
    return struct.pack("<I", len(data)) + data


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


def compress_chunk(data, each=2):
    """A chunk whose samples are compressed some together."""
    n, *offsets = np.frombuffer(data, "<u4", struct.unpack_from("<I", data)[0] + 2).tolist()
    starts = range(0, n, each)
    frames, table, at = [], b"", 24 + 4 * (n + 1) + 24 * len(starts)
    for first in starts:
        end = min(n, first + each)
        raw = data[offsets[first] : offsets[end]]
        frames.append(zstd(raw))
        table += struct.pack("<IIQII", first, end - first, at, len(frames[-1]), len(raw))
        at += len(frames[-1])
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, n, each, len(starts))
    return head + (np.array(offsets, "<u4") - offsets[0]).tobytes() + table + b"".join(frames)


def by_sample(data):
    """A chunk whose samples are compressed one by one."""
    n, *offsets = np.frombuffer(data, "<u4", struct.unpack_from("<I", data)[0] + 2).tolist()
    return chunk([zstd(data[offsets[i] : offsets[i + 1]]) for i in range(n)])
