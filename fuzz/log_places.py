"""Logs of robots to damage: MCAP files and bags, each written by its own library."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
from mcap.writer import CompressionType, Writer
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.typesys import Stores, get_typestore

from .seeds import small_video

_KIND = "sensor_msgs/msg/JointState"
_VIDEO = "foxglove_msgs/msg/CompressedVideo"
_DEFINITION = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n"
_N = 8


def mcap_files() -> Iterator[tuple[str, bytes]]:
    """Yield one file of JSON, packed with lz4, and one of ROS 2 with a video, packed with zstd."""
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
    """Return the frames of a video without reordering, as its encoder gave them."""
    with av.open(io.BytesIO(small_video("h264.mp4")), "r") as container:
        pictures: Any = list(container.decode(video=0))[:_N]
    coder: Any = av.CodecContext.create("libx264", "w")
    coder.width, coder.height, coder.pix_fmt = pictures[0].width, pictures[0].height, "yuv420p"
    coder.time_base = pictures[0].time_base
    coder.options = {"tune": "zerolatency", "threads": "1"}
    packets = [packet for picture in pictures for packet in coder.encode(picture)]
    return [bytes(packet) for packet in [*packets, *coder.encode(None)]]


def bags() -> Iterator[tuple[str, bytes]]:
    """Yield a bag of ROS 1, packed with bz2, and two of ROS 2, a database and an MCAP file."""
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
