"""Read the messages of bags: of ROS 1 files by their index, of ROS 2 databases in the order of their times."""

import bz2
import io
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loader.errors import InvalidSample

from .log_message import MAX_CHUNK_BYTES, Channel, LogMessage, damage_named

_BEGIN = b"#ROSBAG V2.0\n"


class _Opened:
    """An open file, in the form of the path that rosbags expects."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def exists(self) -> bool:
        return True

    def open(self, mode: str) -> Any:
        return self._file


def ros1_messages(file: io.RawIOBase, where: str) -> Iterator[LogMessage]:
    """Yield the messages of a ROS 1 bag. Raises: Corrupt; InvalidSample; StoreError; MissingDependency."""
    with damage_named(where):
        from rosbags.rosbag1 import Reader

        buffered = io.BufferedReader(file, 2**16)
        if buffered.read(len(_BEGIN)) != _BEGIN:  # rosbags would search for the end of the line, however far
            raise ValueError("it is no bag of version 2.0")
        buffered.seek(0)
        path: Any = _Opened(buffered)
        with Reader(path) as reader:
            unpack = _unpackers()
            for at, chunk in reader.chunks.items():
                reader.chunks[at] = chunk._replace(decompressor=unpack.get(chunk.decompressor, _plain))
            channels = {
                one.id: Channel(one.topic, "ros1", one.msgtype, "ros1msg", one.msgdef.data.encode())
                for one in reader.connections
            }
            for connection, log_time, data in reader.messages():
                yield LogMessage(channels[connection.id], log_time, data)


def _unpackers() -> dict[Any, Callable[[bytes], bytes]]:
    """Return rosbags' function of a codec -> ours, which limits its output."""
    import lz4.frame
    from rosbags.rosbag1.reader import decompressors

    def limited(make: Callable[[], Any]) -> Callable[[bytes], bytes]:
        def unpack(data: bytes) -> bytes:
            packed = make()
            plain = packed.decompress(data, max_length=MAX_CHUNK_BYTES + 1)
            if len(plain) > MAX_CHUNK_BYTES:
                raise InvalidSample(f"it has a chunk of more than {MAX_CHUNK_BYTES:,} bytes")
            if not packed.eof:
                raise ValueError("a packed chunk is cut")
            return bytes(plain)

        return unpack

    return {
        decompressors["bz2"]: limited(bz2.BZ2Decompressor),
        decompressors["lz4"]: limited(lz4.frame.LZ4FrameDecompressor),
    }


def _plain(data: bytes) -> bytes:
    return data


def ros2_database_messages(path: Path, where: str) -> Iterator[LogMessage]:
    """Yield the messages of a ROS 2 database. Raises: Corrupt; InvalidSample; MissingDependency."""
    with damage_named(where):
        from rosbags.interfaces import MessageDefinitionFormat
        from rosbags.rosbag2 import Reader

        _check_tables(path)
        encodings = {MessageDefinitionFormat.MSG: "ros2msg", MessageDefinitionFormat.IDL: "ros2idl"}
        with Reader(path) as reader:
            channels = {}
            for connection in reader.connections:
                ext: Any = connection.ext
                encoding = encodings.get(connection.msgdef.format, "")
                channels[connection.id] = Channel(
                    connection.topic,
                    ext.serialization_format,
                    connection.msgtype,
                    encoding,
                    connection.msgdef.data.encode(),
                )
            for connection, log_time, data in reader.messages(list(reader.connections)):
                yield LogMessage(channels[connection.id], log_time, bytes(memoryview(data)))


def _check_tables(path: Path) -> None:
    """Raise ValueError for a database with views or the like: a view may never end."""
    database = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    try:
        others = database.execute(
            "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
        ).fetchall()
    finally:
        database.close()
    if others:
        raise ValueError(f"it has views, triggers or virtual tables, which no bag has: {others[0][0]!r}")
