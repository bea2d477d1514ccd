"""Small data sets in the formats of others, to damage: a place of every format that is registered or imported."""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import google_crc32c
import h5py
import lance
import numpy as np
import pyarrow as pa
from pyarrow import ipc

import loader
from loader.modalities.video.packet_table import index_packets
from loader.storage import open_store
from penstock.formats import EXPORTED, IMPORTED, REGISTERED
from penstock.formats.run_export import export

from .log_places import bags, mcap_files
from .seeds import small_video

PLACE_FORMATS = tuple(sorted({*REGISTERED, *IMPORTED}))

_N = 12
_ROWS = [
    {"name": f"row {i}", "weight": i / 3, "ids": list(range(i % 4 + 1)), "box": {"x": i, "y": [i]}}
    for i in range(_N)
]


def write_places(folder: Path) -> list[Path]:
    """Make `<folder>/<format>` for every format, with the same bytes every time, and return them."""
    with loader.Root(folder / "root") as root:
        _fill(root)
        for name in PLACE_FORMATS:
            if name in _BY_HAND:
                for path, data in _BY_HAND[name]():
                    (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name / path).write_bytes(data)
                continue
            source = root.open(_SOURCES.get(name, "samples"))
            done = export(source, _WRITTEN_AS.get(name, name), open_store(folder / name), lossy=True)
            if done.failures:
                raise RuntimeError(f"{name}: {done.failures}")
    return [folder / name for name in PLACE_FORMATS]


def _fill(root: loader.Root) -> None:
    """Write the versions that places are exported from: samples, tokens alone, episodes with a video."""
    rng = np.random.default_rng(5)
    with root.write("samples", part_samples=5) as writer:
        for i in range(_N):
            fields: dict[str, Any] = {
                "jpg": rng.bytes(700 + 90 * i),
                "txt": f"caption {i}",
                "json": json.dumps(_ROWS[i]).encode(),
                "tokens.u2": np.arange(i + 3, dtype="u2").tobytes(),
            }
            split = "train" if i % 3 else "val"
            writer.add(
                f"sample-{i:02}", fields, metadata={"weight": i / 3, "number": i}, source={"split": split}
            )
    with root.write("tokens") as writer:
        for i in range(_N):
            writer.add(f"{i:02}", {"tokens.u2": np.arange(i + 3, dtype="u2").tobytes()})
    film = small_video("h264.mp4")
    packets = index_packets(film)
    with root.write("episodes") as writer:
        for i in range(2):
            step = np.arange(16, dtype=np.float32)
            told = {"fps": 25, "features": {}, "tasks": [{"task": "lift", "start": 0, "stop": 16}]}
            fields = {
                "front.mp4": film,
                "front.mp4.packets": packets,
                "state.npy": np.stack([step, step + i], 1),
                "state.ns.npy": np.arange(16) * 40_000_000,
                "episode.json": json.dumps(told).encode(),
            }
            writer.add(f"episode_{i:06}", fields)


def _json_arrays() -> Iterator[tuple[str, bytes]]:
    yield "array.json", json.dumps(_ROWS).encode()
    yield "lines.json", "".join(json.dumps(row) + "\n" for row in _ROWS).encode()


def _jsonl() -> Iterator[tuple[str, bytes]]:
    lines = "".join(json.dumps(row) + "\n" for row in _ROWS).encode()
    yield "plain.jsonl", lines
    yield "packed.jsonl.gz", gzip.compress(lines, mtime=0)
    yield "packed.ndjson.zst", _zstd(lines)


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue())


def _csv() -> Iterator[tuple[str, bytes]]:
    lines = "name,weight\n" + "".join(f'"row, {i}",{i / 3}\n' for i in range(_N))
    yield "plain.csv", lines.encode()
    yield "packed.csv.gz", gzip.compress(lines.encode(), mtime=0)


def _arrow() -> Iterator[tuple[str, bytes]]:
    table = pa.table({"name": [row["name"] for row in _ROWS], "ids": [row["ids"] for row in _ROWS]})
    for path, make in (("file.arrow", ipc.new_file), ("stream.arrow", ipc.new_stream)):
        sink = io.BytesIO()
        with make(sink, table.schema) as out:
            out.write_table(table, max_chunksize=5)
        yield path, sink.getvalue()


def _archives() -> Iterator[tuple[str, bytes]]:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as out:
        for i in range(_N):
            for field, data in (("jpg", bytes([i]) * 900), ("cls", b"%d" % i)):
                member = tarfile.TarInfo(f"a/{i:02}.{field}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    yield "a.tar.gz", gzip.compress(sink.getvalue(), mtime=0)
    yield "b.tar.zst", _zstd(sink.getvalue())


def _records() -> Iterator[tuple[str, bytes]]:
    yield "a.tfrecord", b"".join(_record(_example(i)) for i in range(_N))


def _shards() -> Iterator[tuple[str, bytes]]:
    """Yield one shard of MDS with a column of texts, compressed, and its index."""
    rows = [f"row {i}".encode() for i in range(_N)]
    ends = np.cumsum([8 + 4 * _N, *map(len, rows)])
    raw = np.array([_N, *ends], "<u4").tobytes() + b"".join(rows)
    packed = _zstd(raw)
    shard = {
        "version": 2,
        "format": "mds",
        "column_names": ["text"],
        "column_encodings": ["str"],
        "column_sizes": [None],
        "compression": "zstd",
        "raw_data": {"basename": "a.mds", "bytes": len(raw)},
        "samples": _N,
        "zip_data": {"basename": "a.mds.zstd", "bytes": len(packed)},
    }
    yield "a.mds.zstd", packed
    yield "index.json", json.dumps({"version": 2, "shards": [shard]}).encode()


def _chunk() -> Iterator[tuple[str, bytes]]:
    """Yield one chunk of LitData with a leaf of text, compressed as a whole, and its index."""
    rows = [f"row {i}".encode() for i in range(_N)]
    items = [struct.pack("<I", len(row)) + row for row in rows]
    ends = np.cumsum([4 * (_N + 2), *map(len, items)])
    raw = np.array([_N, *ends], "<u4").tobytes() + b"".join(items)
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    config = {"compression": "zstd", "data_format": ["str"], "data_spec": json.dumps([1, leaf])}
    chunk = {"filename": "a.zstd.bin", "chunk_bytes": len(raw), "chunk_size": _N, "dim": None}
    yield "a.zstd.bin", _zstd(raw)
    yield "index.json", json.dumps({"chunks": [chunk], "config": config}).encode()


def _example(number: int) -> bytes:
    """Return a tf.train.Example with a name and two integers."""
    integers = _message(3, _message(1, bytes([number, 127])))
    features = {b"name": _message(1, _message(1, b"row %d" % number)), b"ids": integers}
    entries = (_message(1, _message(1, name) + _message(2, value)) for name, value in features.items())
    return _message(1, b"".join(entries))


def _steps() -> Iterator[tuple[str, bytes]]:
    """Yield a dataset of RLDS: three episodes of two steps, with an action of two numbers and a flag."""
    shapes = {"action": ({"dimensions": ["2"]}, "float32"), "is_last": ({}, "bool")}
    tensors = {name: {"tensor": {"shape": shape, "dtype": dtype}} for name, (shape, dtype) in shapes.items()}
    steps = {"sequence": {"feature": {"featuresDict": {"features": tensors}}}}
    yield "features.json", json.dumps({"featuresDict": {"features": {"steps": steps}}}).encode()
    actions = _message(2, _message(1, struct.pack("<4f", 0, 1, 2, 3)))
    features = {b"steps/action": actions, b"steps/is_last": _message(3, _message(1, b"\0\1"))}
    entries = (_message(1, _message(1, name) + _message(2, value)) for name, value in features.items())
    yield "d-train.tfrecord-00000-of-00001", 3 * _record(_message(1, b"".join(entries)))


def _message(number: int, data: bytes) -> bytes:
    """Return a field of protobuf, of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


def _record(data: bytes) -> bytes:
    """Return a record of TFRecord: its length and its bytes, each with a masked checksum behind it."""
    length = struct.pack("<Q", len(data))
    return b"".join(part + _masked(part) for part in (length, data))


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _fragment() -> Iterator[tuple[str, bytes]]:
    """Yield a dataset of Lance with one fragment; names of its files are drawn by Lance."""
    with TemporaryDirectory(prefix="fuzz-lance-") as folder:
        made = lance.write_dataset(pa.Table.from_pylist(_ROWS), folder)
        made.delete("name = 'row 3'")
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(folder)), path.read_bytes()


def _demonstrations() -> Iterator[tuple[str, bytes]]:
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        for number in range(3):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = number + 1
            demo["actions"] = np.ones((number + 1, 7), np.float32)
            pictures = np.zeros((number + 1, 8, 8, 3), np.uint8)
            demo.create_dataset("obs/image", data=pictures, compression="gzip")
    yield "demos.hdf5", sink.getvalue()


_BY_HAND: Mapping[str, Callable[[], Iterator[tuple[str, bytes]]]] = {
    "arrow": _arrow,
    "csv": _csv,
    "json": _json_arrays,
    "jsonl": _jsonl,
    "lance": _fragment,
    "litdata-compressed": _chunk,
    "mcap": mcap_files,
    "mds-compressed": _shards,
    "rlds": _steps,
    "robomimic": _demonstrations,
    "rosbag": bags,
    "tfrecord": _records,
    "webdataset-compressed": _archives,
}
"""Format that we do not write -> path and bytes of each object."""

_WRITTEN_AS: Mapping[str, str] = {"hf": "parquet"}
"""Format of the same files as another, which we write."""

_SOURCES: Mapping[str, str] = {"lerobot": "episodes", "megatron": "tokens"}
"""Format that holds no samples of any kind -> dataset of its own."""


def unwritten() -> set[str]:
    """Return the formats without a place: none, or the registries have a line that this module lacks."""
    return {
        name for name in PLACE_FORMATS if name not in _BY_HAND and _WRITTEN_AS.get(name, name) not in EXPORTED
    }


def objects_of(place: Path) -> dict[str, bytes]:
    """Return path -> bytes of a place, without the notes of our own export."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and ".penstock" not in path.relative_to(place).parts
    }
