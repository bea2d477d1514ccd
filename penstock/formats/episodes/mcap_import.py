"""MCAP files: each is a sample, its topics are fields. Every checksum is verified."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from loader.errors import Corrupt, InvalidSample, MissingDependency
from loader.storage import ObjectInfo, Store

from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import ObjectFile
from ..reading.stated_counts import StatedCounts
from .episode import EpisodeBuilder
from .message_decoders import MAX_CHUNK_BYTES, MAX_FIELD_BYTES, LogChannel, LogMessage, damage_named

OPTIONS = frozenset({"clocks"})
_ENDING = ".mcap"
_PIECE_BYTES = 2**22


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the MCAP files. Raises: MissingDependency if mcap is not installed."""
    if find_spec("mcap") is None:
        raise MissingDependency("MCAP files are read by mcap: pip install 'penstock-data[mcap]'")
    files = [info for info in infos if info.key.lower().endswith(_ENDING)]
    stated = StatedCounts()
    return Readable(files, _runs, partial(_samples, store, options, stated), stated=stated)


def _runs(info: ObjectInfo) -> list[ImportRun]:
    return [ImportRun(info, 0, 1, info.nbytes)]


def _samples(
    store: Store, options: ColumnarOptions, stated: StatedCounts, run: ImportRun
) -> Iterator[ReadSample]:
    with ObjectFile(store, run.info) as file:
        episode = EpisodeBuilder(file.path, options.without, options.clocks)
        for message in mcap_messages(file, file.path, stated):
            episode.add(message)
    yield episode.sample(run.info.key.rpartition(".")[0])


def mcap_messages(file: io.RawIOBase, where: str, stated: StatedCounts) -> Iterator[LogMessage]:
    n_stated = n_there = 0
    with damage_named(where), _end_named(file, where):
        from mcap.records import Channel as ChannelRecord
        from mcap.records import Message, Schema, Statistics

        schemas = dict[int, Any]()
        channels = dict[int, LogChannel]()
        for record in _records(file):
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, ChannelRecord):
                schema = None
                if record.schema_id:
                    schema = schemas[record.schema_id]
                channels[record.id] = LogChannel(
                    record.topic,
                    record.message_encoding,
                    schema.name if schema else "",
                    schema.encoding if schema else "",
                    schema.data if schema else b"",
                )
            elif isinstance(record, Message):
                n_there += 1
                yield LogMessage(channels[record.channel_id], record.log_time, record.data)
            elif isinstance(record, Statistics):
                n_stated = record.message_count
    stated.compare(f"{where}, in its statistics,", "messages", n_stated, n_there)


@contextmanager
def _end_named(file: io.RawIOBase, where: str) -> Iterator[None]:
    from mcap.exceptions import EndOfFile

    try:
        yield
    except (EndOfFile, struct.error) as error:
        if file.read(1):  # the file continues
            raise
        raise Corrupt(
            f"{where}: it ends in the middle of a record, because its recorder was killed or the copy is incomplete. "
            "Copy it again, or save what is whole: mcap recover FILE -o RECOVERED"
        ) from error


def _records(file: io.RawIOBase) -> Iterator[Any]:
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader, breakup_chunk

    buffered: Any = _BoundedReader(file, 2**16)  # the library reads a few bytes at a time
    reader = StreamReader(buffered, emit_chunks=True, validate_crcs=True, record_size_limit=MAX_FIELD_BYTES)
    for record in reader.records:
        if isinstance(record, Chunk):
            # Decompressed here, since the library accepts any declared size.
            plain = replace(record, compression="", data=_unpack(record))
            yield from breakup_chunk(plain, validate_crc=True)
        else:
            yield record


class _BoundedReader(io.BufferedReader):
    """Allocates what a file has: the library asks for any size that a record states."""

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes. Raises: ValueError above MAX_FIELD_BYTES."""
        if size is None or size <= _PIECE_BYTES:
            return super().read(size)
        if size > MAX_FIELD_BYTES:
            raise ValueError(
                f"a record states a part of {size:,} bytes; at most {MAX_FIELD_BYTES:,} are read"
            )
        data = bytearray()
        while len(data) < size:
            piece = super().read(min(_PIECE_BYTES, size - len(data)))
            if not piece:
                break
            data += piece
        return bytes(data)


def _unpack(chunk: Any) -> bytes:
    size = chunk.uncompressed_size
    if size > MAX_CHUNK_BYTES:
        raise InvalidSample(f"it has a chunk of {size:,} bytes; at most {MAX_CHUNK_BYTES:,} are read")
    if chunk.compression == "":
        data = chunk.data
    elif chunk.compression == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor(max_window_size=MAX_CHUNK_BYTES).stream_reader(chunk.data) as packed:
            data = packed.read(size + 1)
    elif chunk.compression == "lz4":
        import lz4.frame

        data = lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=size + 1)
    else:
        raise InvalidSample(f"its chunks are packed with {chunk.compression!r}; read are zstd and lz4")
    if len(data) != size:
        raise ValueError(f"a chunk of {size:,} bytes has others")
    return bytes(data)
