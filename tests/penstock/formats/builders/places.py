"""Further forms of each format, beside the plain ones of `fuzz.places`."""

import bz2
import gzip
import json
import lzma
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import img2dataset, lerobot_files, litdata_files, mds_files, megatron_files, tars

TEXTS = {"train": [b"a", b"bb", b"ccc"], "val": [b"d", b"dd"], "de/train": [b"ee", b"f"]}
"""Folder -> texts of a split, of which the last lies in an object of its own."""
VALUES = [1, 2, 2**53 + 1, 0.5, "x", True, None, 7]
"""Values of several kinds, of which two archives hold two each."""


def put(path: Path, data: bytes) -> None:
    """Write a file with the time of the archives of `tars`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    tars.set_time(path)


def table(path: Path, columns: Any, schema: Any = None, **how: Any) -> None:
    """Write a file of Parquet."""
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), out, **how)
    put(path, out.getvalue().to_pybytes())


def arrow(path: Path, columns: Any, stream: bool = True, rows: int = 3, **how: Any) -> None:
    """Write a file of Arrow IPC in record batches of so many rows."""
    table, out = pa.table(columns), pa.BufferOutputStream()
    kind = pa.ipc.new_stream if stream else pa.ipc.new_file
    with kind(out, table.schema, options=pa.ipc.IpcWriteOptions(**how)) as writer:
        writer.write_table(table, max_chunksize=rows)
    put(path, out.getvalue().to_pybytes())


def documents(folder: Path, values: Any = VALUES, each: int = 2) -> Path:
    """Write archives whose documents have values of several kinds, as img2dataset lays them out."""
    for at in range(0, len(values), each):
        some = range(at, min(at + each, len(values)))
        members = [img2dataset.members(i, {"v": values[i], "w": i, "nested": {}}) for i in some]
        tars.fill(folder, {f"{at}.tar": [one for sample in members for one in sample]})
    return folder


def split(format: str, folder: Path, texts: list[bytes]) -> None:
    """Write a dataset of two objects with an index, the second with the last text. format: also `tokens`."""
    some = texts[:-1], texts[-1:]
    if format == "mds":
        mds_files.fill(folder, {"text": "bytes"}, *([{"text": one} for one in rows] for rows in some))
    elif format == "litdata":
        litdata_files.samples(folder, {"text": "bytes"}, *([[one] for one in rows] for rows in some))
    else:
        chunks = [(len(rows), litdata_files.chunk(rows)) for rows in some]
        sizes = [sum(map(len, rows)) for rows in some]
        how = {"dims": sizes, "item_loader": "TokensLoader"}
        litdata_files.fill(folder, "no_header_numpy:4", *chunks, **how)


def splits(format: str) -> Callable[[Path], object]:
    """Write three splits, two of one name."""
    return lambda place: [split(format, place / name, texts) for name, texts in TEXTS.items()]


def _leaves(folder: Path) -> None:
    tree = {"n": "int", "text": "str", "tok": "tensor", "told": "json"}
    head = struct.pack(">III", 11, 1, 2)
    rows = [
        [np.int64(i).tobytes(), b"t" * i, head + bytes([i, 1]), litdata_files.json_leaf({"a": ["b", i]})]
        for i in range(8)
    ]
    litdata_files.samples(folder, tree, rows[:5], rows[5:])


def _table(folder: Path, **config: str) -> None:
    rows = [{"n": i, "text": "t" * i, "ids": [i] * i} for i in range(8)]
    how = {"compression": config.get("ipc_compression")}
    parts = [(len(some), litdata_files.table_chunk(some, **how)) for some in (rows[:5], rows[5:])]
    litdata_files.fill(folder, {"n": "int", "text": "str"}, *parts, **config)


def _write_compressed(format: str, fill: Callable[[Path], object], how: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        fill(plain := folder.with_name(f"{folder.name}-plain"))
        compress(format, how, plain, folder)

    return write


def _arrays(folder: Path) -> None:
    columns = {"n": "int", "text": "str", "big": "str_int", "tokens": "ndarray:uint16", "any": "ndarray"}
    rows = [
        {
            "n": np.int64(i).tobytes(),
            "text": b"t" * i,
            "big": b"%d" % i,
            "tokens": bytes([1 << 2, i + 1]) + np.arange(i + 1, dtype="<u2").tobytes(),
            "any": bytes([16, 4, 2, 1, 0, 2, i]),
        }
        for i in range(8)
    ]
    mds_files.fill(folder, columns, rows[:5], rows[5:])


def _pairs(folder: Path) -> None:
    megatron_files.fill(folder, "a.b/web_text_document", "u2", megatron_files.number_documents(30))
    megatron_files.fill(folder, "sub/b", "i4", [[[1], [2, 3]], [], [[]], [[4, 5, 6]]], [0, 1, 0, 1])


def _folders(folder: Path) -> None:
    names = "lang=de/year=2024", "lang=p%74/year=2025", "lang=__HIVE_DEFAULT_PARTITION__/year=-3"
    for number, name in enumerate(names):
        images = [{"bytes": data, "path": "x"} for data in (b"\xff\xd8\xff1", b"\x89PNG\r\n\x1a\n2")]
        columns = {
            "b": [b"1", b"2", b"3"],
            "image": pa.array([*images, None], pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "ids": pa.array([[1, 2], [], [3]], pa.list_(pa.uint16())),
            "box": [{"a": [1]}, None, {"a": [2]}],
            "n": [number, 2, 3],
        }
        table(folder / name / "a.parquet", columns, row_group_size=2)


def _write_state(folder: Path) -> None:
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    put(folder / "dataset_dict.json", b'{"splits": ["train", "test"]}')
    for name in ("train", "test"):
        put(folder / name / "state.json", json.dumps(state).encode())
        arrow(folder / name / "data-00000-of-00001.arrow", {"b": [name.encode() * 99], "split": ["mine"]})
        arrow(folder / name / "cache-1.arrow", {"b": [b"of a filter"], "split": ["mine"]})


def _write_joint_episodes(folder: Path) -> None:
    old = folder.with_name(f"{folder.name}-apart")
    lerobot_files.v30(folder, lerobot_files.write_language(lerobot_files.v21(old, b_frames=2, gop=100)))
    lerobot_files.declare(folder)


PLACES: Mapping[str, Callable[[Path], object]] = {
    "hf.saved": _write_state,
    "lerobot.joined": _write_joint_episodes,
    "litdata-compressed.batch": _write_compressed("litdata", _leaves, "batch"),
    "litdata-compressed.sample": _write_compressed("litdata", _leaves, "sample"),
    "litdata-compressed.table": lambda folder: _table(folder, ipc_compression="zstd"),
    "litdata.leaves": _leaves,
    "litdata.splits": splits("litdata"),
    "litdata.table": _table,
    "litdata.tokens": splits("tokens"),
    "mds.arrays": _arrays,
    "mds.splits": splits("mds"),
    "megatron.pairs": _pairs,
    "parquet.folders": _folders,
    "webdataset-compressed.documents": _write_compressed("webdataset", documents, "tar.gz"),
    "webdataset.documents": documents,
}
"""`<format>.<form>` -> the function that writes it into a folder."""


def packer(name: str) -> Callable[[bytes], bytes]:
    """Return what compresses as a stream of pyarrow's codec."""

    def pack(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as out:
            out.write(data)
        return bytes(sink.getvalue())

    return pack


def halves(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return what compresses as two streams, one behind the other."""
    return lambda data: pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :])


PACKED: Mapping[str, Mapping[str, Callable[[bytes], bytes]]] = {
    "webdataset": {
        "tar.gz": halves(gzip.compress),
        "tgz": halves(gzip.compress),
        "tar.bz2": halves(bz2.compress),
        "tar.xz": halves(lzma.compress),
        "tar.zst": halves(packer("zstd")),
    },
    "mds": {
        "zstd:7": packer("zstd"),
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "br:11": packer("brotli"),
        "snappy": lambda data: pa.Codec("snappy").compress(data, asbytes=True),
    },
    "litdata": {
        "chunk": litdata_files.zstd,
        "batch": litdata_files.compress_chunk,
        "sample": litdata_files.by_sample,
    },
}
"""Format -> ending, codec or level of its compressed form -> the function that compresses an object."""


def compress(format: str, how: str, place: Path, target: Path) -> Path:
    """Write a place of webdataset, MDS or LitData anew as the compressed format has it; return the folder."""
    pack = PACKED[format][how]
    for path in sorted(one for one in place.rglob("*") if one.is_file()):
        at, data = target / path.relative_to(place), path.read_bytes()
        if format == "webdataset":
            put(at.with_name(f"{path.stem}.{how}"), pack(data))
        elif path.name != "index.json":
            put(at.with_name(f"{path.name}.{how}") if format == "mds" else at, pack(data))
        else:
            index = json.loads(data)
            for one in index.get("shards", ()):
                name, shard = (
                    f"{one['raw_data']['basename']}.{how}",
                    path.parent / one["raw_data"]["basename"],
                )
                nbytes = len(pack(shard.read_bytes()))
                one |= {"compression": how, "zip_data": {"basename": name, "bytes": nbytes, "hashes": {}}}
            if "config" in index:
                index["config"] |= {"compression": "zstd", "compression_level": how}
                for one in index["chunks"] if how != "chunk" else ():
                    one["chunk_bytes"] = len(pack((path.parent / one["filename"]).read_bytes()))
            put(at, json.dumps(index).encode())
    return target
