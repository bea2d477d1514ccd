"""Read record batches of an Arrow IPC file or stream in one thread.

Arrow decompresses a record batch whole, whatever lengths its buffers declare: 59 KB took 1.6 GiB. So the header and the
decoded length that begins each buffer are read first (https://arrow.apache.org/docs/format/Columnar.html).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from ...errors import InvalidSample
from ...limits import MAX_ARROW_BATCH_BYTES, MAX_ARROW_RATIO, MIN_ARROW_BATCH_BYTES, limit_message

MAGIC = b"ARROW1"
"""First bytes of an IPC file; a stream begins differently."""
_DICTIONARY = 2
_BATCH = 3
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
    source: pa.NativeFile,
    begin: bytes,
    name: str,
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
    """Return the head of the first record batch, and go back to the beginning."""
    starts = [0]
    if begin.startswith(MAGIC):
        _, starts = _blocks(source)
    head = None
    for start in starts:
        head = _first_batch(source, start)
        if head is not None:
            break
    source.seek(0)
    return head


def _first_batch(source: pa.NativeFile, start: int) -> MessageHead | None:
    for head in _heads(source, start):
        if head.kind == _BATCH:
            return head
    return None


def _of_file(
    file: pa.ipc.RecordBatchFileReader,
    source: pa.NativeFile,
    name: str,
) -> Iterator[pa.RecordBatch]:
    dictionaries, batches = _blocks(source)
    if len(batches) != file.num_record_batches:
        raise pa.ArrowInvalid(
            f"its footer has {len(batches)} record batches, Arrow finds {file.num_record_batches}"
        )
    # Arrow reads all dictionaries with the first batch.
    for start in dictionaries:
        _check(message_head(source, start), start, name)
    for number, start in enumerate(batches):
        _check(message_head(source, start), start, name)
        yield file.get_batch(number)


def _of_stream(
    stream: pa.ipc.RecordBatchStreamReader,
    source: pa.NativeFile,
    name: str,
) -> Iterator[pa.RecordBatch]:
    while True:
        # Arrow reads up to the next batch: the heads up to there are checked first.
        batch_start = source.tell()
        message_start = batch_start
        for head in _heads(source, batch_start):
            _check(head, message_start, name)
            message_start = head.end
            if head.kind == _BATCH:
                break
        source.seek(batch_start)
        try:
            yield stream.read_next_batch()
        except StopIteration:
            return


def _check(
    head: MessageHead | None,
    start: int,
    name: str,
) -> None:
    if head is None:
        return
    most_by_ratio = max(MIN_ARROW_BATCH_BYTES, MAX_ARROW_RATIO * head.nbytes)
    most = min(MAX_ARROW_BATCH_BYTES, most_by_ratio)
    if head.decoded_nbytes > most:
        what = f"{name}: the record batch at byte {start} of {head.nbytes:,} bytes"
        advice = "Write it anew in smaller record batches"
        raise InvalidSample(limit_message(what, head.decoded_nbytes, "decompressed bytes", most, advice))


def _heads(source: pa.NativeFile, start: int) -> Iterator[MessageHead]:
    while (head := message_head(source, start)) is not None:
        yield head
        start = head.end


def message_head(source: pa.NativeFile, start: int) -> MessageHead | None:
    """Return the head of the message that begins at byte `start`; None at the end. Raises: ArrowInvalid."""
    source.seek(start)
    prefix = source.read(8)
    prefix_nbytes = 4  # files from before 2019 have only the length
    if prefix[:4] == _CONTINUES:
        prefix_nbytes = 8
    if len(prefix) < prefix_nbytes:
        return None
    (length,) = struct.unpack_from("<i", prefix, prefix_nbytes - 4)
    if length <= 0:
        return None
    header_start = start + prefix_nbytes
    source.seek(header_start)
    data = source.read(length)
    body_start = header_start + length
    try:
        head, buffers = _parse_head(data, body_start)
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"the message at byte {start} is damaged: {error}") from error
    if not head.is_compressed:
        return head

    decoded_nbytes = 0
    for offset, nbytes in buffers:
        # A buffer begins with its decoded length; -1 stands for a buffer that is stored as it is.
        if nbytes >= 8 and 0 <= offset <= head.nbytes:
            source.seek(body_start + offset)
            stated = source.read(8).ljust(8, b"\0")
            (stated_nbytes,) = struct.unpack("<q", stated)
            decoded_nbytes += stated_nbytes if stated_nbytes >= 0 else nbytes
    return head._replace(decoded_nbytes=decoded_nbytes)


def _parse_head(data: bytes, body_start: int) -> tuple[MessageHead, list[tuple[int, int]]]:
    """Return (head, [(offset in the body, bytes)] of compressed buffers). Raises: struct.error; IndexError.

    Message.fbs numbers the members: 1 is a message's type, 2 its header, 3 its body's length; 2 is a record batch's
    buffers, 3 its compression; 1 is a dictionary's record batch.
    """
    message = _root(data)
    kind = data[_member_position(data, message, 1)]
    nbytes = 0
    if length_at := _member_position(data, message, 3):
        (nbytes,) = struct.unpack_from("<q", data, length_at)
    plain = MessageHead(
        kind,
        max(0, nbytes),
        body_start + max(0, nbytes),
        is_compressed=False,
        decoded_nbytes=0,
    )
    if kind not in (_DICTIONARY, _BATCH) or nbytes < 0:
        return plain, []

    batch = _table(data, message, 2)
    if kind == _DICTIONARY:
        batch = _table(data, batch, 1)
    has_compression = _member_position(data, batch, 3) != 0
    if not has_compression:
        return plain._replace(decoded_nbytes=nbytes), []
    vector = _table(data, batch, 2)
    (n,) = struct.unpack_from("<I", data, vector)
    buffers: list[tuple[int, int]] = []
    for number in range(n):
        offset, buffer_nbytes = struct.unpack_from("<qq", data, vector + 4 + 16 * number)
        buffers.append((offset, buffer_nbytes))
    return plain._replace(is_compressed=True), buffers


def _blocks(source: pa.NativeFile) -> tuple[list[int], list[int]]:
    """Return the first bytes of (dictionaries, record batches), from an IPC file's footer."""
    size = source.size()
    source.seek(max(0, size - 10))
    tail = source.read(10)  # the footer's length and the magic
    try:
        (length,) = struct.unpack_from("<i", tail)
        source.seek(max(0, size - 10 - length))
        data = source.read(max(0, length))
        footer = _root(data)
        dictionaries = _block_starts(data, footer, 2)
        batches = _block_starts(data, footer, 3)
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"its footer is damaged: {error}") from error
    return dictionaries, batches


def _block_starts(
    data: bytes,
    footer: int,
    number: int,
) -> list[int]:
    if not _member_position(data, footer, number):
        return []
    vector = _table(data, footer, number)
    (n,) = struct.unpack_from("<I", data, vector)
    starts = []
    for block in range(n):
        (start,) = struct.unpack_from("<q", data, vector + 4 + 24 * block)
        starts.append(start)
    return starts


def _root(data: bytes) -> int:
    """Return where a flatbuffer's root table is."""
    (offset,) = struct.unpack_from("<I", data)
    return int(offset)


def _member_position(
    data: bytes,
    table: int,
    number: int,
) -> int:
    """Return where a member of a flatbuffer's table is; 0 if the table lacks it."""
    (vtable_distance,) = struct.unpack_from("<i", data, table)
    vtable = table - vtable_distance
    (vtable_nbytes,) = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * number
    if slot >= vtable_nbytes:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + slot)
    if not offset:
        return 0
    return int(table + offset)


def _table(
    data: bytes,
    table: int,
    number: int,
) -> int:
    """Return where the table or vector is that a member refers to."""
    member = _member_position(data, table, number)
    (distance,) = struct.unpack_from("<I", data, member)
    return int(member + distance)
