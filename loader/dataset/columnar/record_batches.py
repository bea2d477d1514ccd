"""Read record batches of an Arrow IPC file or stream in one thread.

Arrow decompresses a record batch whole, whatever lengths its buffers declare: 59 KB took 1.6 GiB. So the header and the
decoded length that begins each buffer are read first (https://arrow.apache.org/docs/format/Columnar.html).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from ...errors import InvalidSample
from ...limits import MAX_ARROW_BATCH_BYTES, MAX_ARROW_RATIO, MIN_ARROW_BATCH_BYTES, beyond

MAGIC = b"ARROW1"
"""First bytes of an IPC file; a stream begins differently."""
_DICTIONARY, _BATCH = 2, 3
_CONTINUES = b"\xff\xff\xff\xff"


class MessageHead(NamedTuple):
    """A message's header and the size of its body."""

    kind: int
    """Message type: 3 is a record batch."""
    nbytes: int
    """Stored bytes of the body."""
    end: int
    """First byte after the message."""
    is_compressed: bool
    """True if the buffers are compressed."""
    decoded_nbytes: int
    """Decompressed bytes of the body, according to the lengths before its buffers."""


def record_batches(
    source: pa.NativeFile, begin: bytes, name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return (schema, record batches). begin: first bytes of `source`. name: object name for messages.

    Raises: ArrowException; InvalidSample for an oversized batch, before it is decompressed.
    """
    options = pa.ipc.IpcReadOptions(use_threads=False)
    if begin.startswith(MAGIC):
        file = pa.ipc.open_file(source, options=options)
        return file.schema, _of_file(file, source, name)
    stream = pa.ipc.open_stream(source, options=options)
    return stream.schema, _of_stream(stream, source, name)


def first_head(source: pa.NativeFile, begin: bytes) -> MessageHead | None:
    starts = _blocks(source)[1] if begin.startswith(MAGIC) else [0]
    heads = (head for at in starts for head in _heads(source, at))
    head = next((one for one in heads if one.kind == _BATCH), None)
    source.seek(0)
    return head


def _of_file(
    file: pa.ipc.RecordBatchFileReader, source: pa.NativeFile, name: str
) -> Iterator[pa.RecordBatch]:
    dictionaries, batches = _blocks(source)
    if len(batches) != file.num_record_batches:
        raise pa.ArrowInvalid(
            f"its footer has {len(batches)} record batches, Arrow finds {file.num_record_batches}"
        )
    for at in dictionaries:
        _check(message_head(source, at), at, name)
    for number, at in enumerate(batches):
        _check(message_head(source, at), at, name)
        yield file.get_batch(number)


def _of_stream(
    stream: pa.ipc.RecordBatchStreamReader, source: pa.NativeFile, name: str
) -> Iterator[pa.RecordBatch]:
    while True:
        at = start = source.tell()
        for head in _heads(source, start):
            _check(head, at, name)
            at = head.end
            if head.kind == _BATCH:
                break
        source.seek(start)
        try:
            yield stream.read_next_batch()
        except StopIteration:
            return


def _check(head: MessageHead | None, at: int, name: str) -> None:
    if head is None:
        return
    most = min(MAX_ARROW_BATCH_BYTES, max(MIN_ARROW_BATCH_BYTES, MAX_ARROW_RATIO * head.nbytes))
    if head.decoded_nbytes > most:
        what = f"{name}: the record batch at byte {at} of {head.nbytes:,} bytes"
        advice = "Write it anew in smaller record batches"
        raise InvalidSample(beyond(what, head.decoded_nbytes, "decompressed bytes", most, advice))


def _heads(source: pa.NativeFile, at: int) -> Iterator[MessageHead]:
    while (head := message_head(source, at)) is not None:
        yield head
        at = head.end


def message_head(source: pa.NativeFile, at: int) -> MessageHead | None:
    """Return the head of the message that begins at byte `at`; None at the end. Raises: ArrowInvalid."""
    source.seek(at)
    prefix = source.read(8)
    start = at + 8 if prefix[:4] == _CONTINUES else at + 4  # files from before 2019 have only the length
    if len(prefix) < start - at:
        return None
    (length,) = struct.unpack_from("<i", prefix, start - at - 4)
    if length <= 0:
        return None
    source.seek(start)
    data = source.read(length)
    try:
        message = _root(data)
        kind = data[_at(data, message, 1)]
        nbytes = struct.unpack_from("<q", data, _at(data, message, 3))[0] if _at(data, message, 3) else 0
        body = start + length
        if kind not in (_DICTIONARY, _BATCH) or nbytes < 0:
            return MessageHead(kind, max(0, nbytes), body + max(0, nbytes), False, 0)
        batch = _table(data, message, 2)
        if kind == _DICTIONARY:
            batch = _table(data, batch, 1)
        if not _at(data, batch, 3):  # no compression
            return MessageHead(kind, nbytes, body + nbytes, False, nbytes)
        vector = _table(data, batch, 2)
        (n,) = struct.unpack_from("<I", data, vector)
        buffers = [struct.unpack_from("<qq", data, vector + 4 + 16 * i) for i in range(n)]
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"the message at byte {at} is damaged: {error}") from error
    decoded = 0
    for offset, size in buffers:
        if size >= 8 and 0 <= offset <= nbytes:
            source.seek(body + offset)
            (prefix_nbytes,) = struct.unpack("<q", source.read(8).ljust(8, b"\0"))
            decoded += prefix_nbytes if prefix_nbytes >= 0 else size
    return MessageHead(kind, nbytes, body + nbytes, True, decoded)


def _blocks(source: pa.NativeFile) -> tuple[list[int], list[int]]:
    size = source.size()
    source.seek(max(0, size - 10))
    tail = source.read(10)
    try:
        (length,) = struct.unpack_from("<i", tail)
        source.seek(max(0, size - 10 - length))
        data = source.read(max(0, length))
        footer = _root(data)
        blocks = list[list[int]]()
        for number in (2, 3):
            blocks.append([])
            if _at(data, footer, number):
                vector = _table(data, footer, number)
                (n,) = struct.unpack_from("<I", data, vector)
                blocks[-1] = [struct.unpack_from("<q", data, vector + 4 + 24 * i)[0] for i in range(n)]
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"its footer is damaged: {error}") from error
    return blocks[0], blocks[1]


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data)[0])


def _at(data: bytes, table: int, number: int) -> int:
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
    return int(table + offset) if offset else 0


def _table(data: bytes, table: int, number: int) -> int:
    at = _at(data, table, number)
    return int(at + struct.unpack_from("<I", data, at)[0])
