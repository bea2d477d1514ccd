"""MDS shards as MosaicML streaming writes them, made here of (column -> encoding) and encoded values."""

import json

import numpy as np

SIZES = {"int": 8} | {f"{kind}{8 * n}": n for kind in ("int", "uint", "float") for n in (1, 2, 4, 8)}


def encoding_size(encoding):
    kind, _, shape = encoding.rpartition(":")
    if shape and shape[0].isdigit():
        return int(np.prod(list(map(int, shape.split(",")))) * SIZES[kind.removeprefix("ndarray:")])
    return SIZES.get(encoding)


def shard(columns, rows, config=b"{}"):
    """Bytes of a shard; rows: column -> encoded value, each."""
    made = []
    for row in rows:
        values = [row[name] for name in sorted(columns)]
        sizes = [len(row[name]) for name in sorted(columns) if encoding_size(columns[name]) is None]
        made.append(np.array(sizes, "<u4").tobytes() + b"".join(values))
    offsets = np.cumsum([8 + 4 * len(made) + len(config), *map(len, made)])
    return np.array([len(made), *offsets], "<u4").tobytes() + config + b"".join(made)


def entry(name, data, columns, samples, **more):
    """A shard's line of the index."""
    names = sorted(columns)
    return {
        "version": 2,
        "format": "mds",
        "column_names": names,
        "column_encodings": [columns[one] for one in names],
        "column_sizes": [encoding_size(columns[one]) for one in names],
        "compression": None,
        "hashes": [],
        "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
        "samples": samples,
        "size_limit": 1 << 26,
        "zip_data": None,
        **more,
    }


def fill(folder, columns, *shards):
    """Write a dataset; shards: rows of each. Returns the index."""
    folder.mkdir(parents=True, exist_ok=True)
    index = {"version": 2, "shards": []}
    for number, rows in enumerate(shards):
        data = shard(columns, rows)
        (folder / f"shard.{number:05}.mds").write_bytes(data)
        index["shards"].append(entry(f"shard.{number:05}.mds", data, columns, len(rows)))
    put_index(folder, index)
    return index


def put_index(folder, index):
    (folder / "index.json").write_text(json.dumps(index))
