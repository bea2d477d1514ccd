"""Small datasets in other formats, to be damaged: one source for every registered or imported format."""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import google_crc32c
import h5py
import lance
import numpy as np
import pyarrow as pa
from mcap.writer import CompressionType, Writer
from pyarrow import ipc
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.typesys import Stores, get_typestore

import loader
from loader.modalities.video.packet_table import index_packets
from loader.storage import open_store
from penstock.formats.registry import EXPORTED, IMPORTED, REGISTERED
from penstock.formats.run_export import export

from .seeds import small_video

_KIND = "sensor_msgs/msg/JointState"
_VIDEO = "foxglove_msgs/msg/CompressedVideo"
_DEFINITION = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n"
_N = 8


def mcap_files() -> Iterator[tuple[str, bytes]]:
    """Yield a JSON file compressed with lz4, and a ROS 2 file with a video, compressed with zstd."""
    for name, compression in (("json.mcap", CompressionType.LZ4), ("ros.mcap", CompressionType.ZSTD)):
        sink = io.BytesIO()
        writer = Writer(sink, chunk_size=2000, compression=compression)
        writer.start()
        if name == "json.mcap":
            channel = writer.register_channel("/x", "json", writer.register_schema("T", "jsonschema", b"{}"))
            for i in range(_N):
                row = json.dumps({"speed": i / 3, "name": f"row {i}", "box": {"x": [i, 1]}}).encode()
                writer.add_message(channel, 10**9 + i, row, 10**9 + i)
        else:
            _add_ros(writer)
        writer.finish()  # type: ignore[no-untyped-call]
        yield name, sink.getvalue()


def _add_ros(writer: Writer) -> None:
    store = get_typestore(Stores.ROS2_HUMBLE)
    text = store.generate_msgdef(_KIND, ros_version=2)[0].encode()
    joints = writer.register_channel("/joints", "cdr", writer.register_schema(_KIND, "ros2msg", text))
    for i in range(_N):
        data = bytes(store.serialize_cdr(_joints(store.types, i), _KIND, little_endian=True))
        writer.add_message(joints, 10**9 + i, data, 10**9 + i)
    camera = writer.register_channel(
        "/camera", "cdr", writer.register_schema(_VIDEO, "ros2msg", _DEFINITION.encode())
    )
    for i, frame in enumerate(_frames()):
        padded = len(frame).to_bytes(4, "little") + frame + b"\0" * (-len(frame) % 4)
        data = b"\0\1\0\0" + bytes(8) + b"\1\0\0\0\0" + b"\0\0\0" + padded + b"\5\0\0\0h264\0"
        writer.add_message(camera, 10**9 + i * 10**7, data, 10**9 + i)


def _frames() -> list[bytes]:
    with av.open(io.BytesIO(small_video("h264.mp4")), "r") as container:
        pictures: Any = list(container.decode(video=0))[:_N]
    coder: Any = av.CodecContext.create("libx264", "w")
    coder.width, coder.height, coder.pix_fmt = pictures[0].width, pictures[0].height, "yuv420p"
    coder.time_base = pictures[0].time_base
    coder.options = {"tune": "zerolatency", "threads": "1"}
    packets = [packet for picture in pictures for packet in coder.encode(picture)]
    return [bytes(packet) for packet in [*packets, *coder.encode(None)]]


def bags() -> Iterator[tuple[str, bytes]]:
    """Yield a ROS 1 bag compressed with bz2, and two ROS 2 bags: a database and an MCAP file."""
    with TemporaryDirectory(prefix="fuzz-bags-") as folder:
        first = Ros1Writer(Path(folder) / "one.bag")
        first.set_compression(Ros1Writer.CompressionFormat.BZ2)
        _write(first, Stores.ROS1_NOETIC)
        for name, plugin in (("two", StoragePlugin.SQLITE3), ("three", StoragePlugin.MCAP)):
            _write(Ros2Writer(Path(folder) / name, version=9, storage_plugin=plugin), Stores.ROS2_HUMBLE)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(folder)), path.read_bytes()


def _write(writer: Any, stores: Stores) -> None:
    store = get_typestore(stores)
    ros1 = stores is Stores.ROS1_NOETIC
    with writer:
        connection = writer.add_connection("/joints", _KIND, typestore=store)
        for i in range(_N):
            message = _joints(store.types, i, **({"seq": i} if ros1 else {}))
            data = store.serialize_ros1(message, _KIND) if ros1 else store.serialize_cdr(message, _KIND)
            writer.write(connection, 10**9 + i, data)


def _joints(types: Any, number: int, **more: int) -> Any:
    stamp = types["builtin_interfaces/msg/Time"](sec=1, nanosec=number)
    return types[_KIND](
        header=types["std_msgs/msg/Header"](stamp=stamp, frame_id="base", **more),
        name=["hip", "knee"],
        position=np.arange(2.0) + number,
        velocity=np.zeros(number),
        effort=np.zeros(0),
    )


PLACE_FORMATS = tuple(sorted({*REGISTERED, *IMPORTED}))

_N = 12
_ROWS = [
    {"name": f"row {i}", "weight": i / 3, "ids": list(range(i % 4 + 1)), "box": {"x": i, "y": [i]}}
    for i in range(_N)
]


def write_places(folder: Path) -> list[Path]:
    """Write `<folder>/<format>` for every format, always with the same bytes; return the folders."""
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
    # The versions to export from: samples, only tokens, episodes with a video.
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
    video_bytes = small_video("h264.mp4")
    packets = index_packets(video_bytes)
    with root.write("episodes") as writer:
        for i in range(2):
            step = np.arange(16, dtype=np.float32)
            episode = {"fps": 25, "features": {}, "tasks": [{"task": "lift", "start": 0, "stop": 16}]}
            fields = {
                "front.mp4": video_bytes,
                "front.mp4.packets": packets,
                "state.npy": np.stack([step, step + i], 1),
                "state.ns.npy": np.arange(16) * 40_000_000,
                "episode.json": json.dumps(episode).encode(),
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
    integers = _message(3, _message(1, bytes([number, 127])))
    features = {b"name": _message(1, _message(1, b"row %d" % number)), b"ids": integers}
    entries = (_message(1, _message(1, name) + _message(2, value)) for name, value in features.items())
    return _message(1, b"".join(entries))


def _steps() -> Iterator[tuple[str, bytes]]:
    shapes = {"action": ({"dimensions": ["2"]}, "float32"), "is_last": ({}, "bool")}
    tensors = {name: {"tensor": {"shape": shape, "dtype": dtype}} for name, (shape, dtype) in shapes.items()}
    steps = {"sequence": {"feature": {"featuresDict": {"features": tensors}}}}
    yield "features.json", json.dumps({"featuresDict": {"features": {"steps": steps}}}).encode()
    actions = _message(2, _message(1, struct.pack("<4f", 0, 1, 2, 3)))
    features = {b"steps/action": actions, b"steps/is_last": _message(3, _message(1, b"\0\1"))}
    entries = (_message(1, _message(1, name) + _message(2, value)) for name, value in features.items())
    yield "d-train.tfrecord-00000-of-00001", 3 * _record(_message(1, b"".join(entries)))


def _message(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join(part + _masked(part) for part in (length, data))


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _fragment() -> Iterator[tuple[str, bytes]]:
    with TemporaryDirectory(prefix="fuzz-lance-") as folder:
        dataset = lance.write_dataset(pa.Table.from_pylist(_ROWS), folder)
        dataset.delete("name = 'row 3'")
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
"""Format that penstock does not write -> path and bytes of each object."""

_WRITTEN_AS: Mapping[str, str] = {"hf": "parquet"}
"""Format that penstock does not write -> written format with the same files."""

_SOURCES: Mapping[str, str] = {"lerobot": "episodes", "megatron": "tokens"}
"""Format that needs special samples -> dataset with them."""


def unwritten() -> set[str]:
    """Return formats without a source. The result is empty unless this module lacks a registered format."""
    return {
        name for name in PLACE_FORMATS if name not in _BY_HAND and _WRITTEN_AS.get(name, name) not in EXPORTED
    }


def objects_of(place: Path) -> dict[str, bytes]:
    """Return path -> bytes for a source, without files that only penstock's export adds."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and ".penstock" not in path.relative_to(place).parts
    }
