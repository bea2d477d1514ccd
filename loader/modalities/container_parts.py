"""Walk and write the boxes of an MP4; walk the chunks of a RIFF, AIFF or CAF file, and write a RIFF's."""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .fields import Buffer

Read = Callable[[int, int], bytes | bytearray | memoryview]
"""Returns the bytes at an offset: `read(offset, nbytes)`, fewer at the end of the file."""

_BOX_HEAD = struct.Struct(">I4s")
_LONG_SIZE = struct.Struct(">Q")


def boxes(
    read: Read,
    at: int,
    stop: int,
) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield (kind, offset, start, end) of each box from `at` to `stop`.

    start, end: of its body; the end may lie beyond the file. A head that is cut or states too small a size ends the
    walk. Plain tuples: named ones cost a video with 30 boxes 7 us.
    """
    while at + 8 <= stop:
        head = read(at, 16)
        if len(head) < 8:
            return
        nbytes, kind = _BOX_HEAD.unpack_from(head)
        start = at + 8
        if nbytes == 1 and len(head) == 16:
            (nbytes,) = _LONG_SIZE.unpack_from(head, 8)
            start = at + 16
        end = at + nbytes
        if nbytes == 0:  # the box extends to the end
            end = stop
        if end < start or start > stop:
            return
        yield kind, at, start, end
        at = end


def memory_reader(data: Buffer) -> Read:
    """Return a function that slices `data`: a slice of a mapped file is a copy, so the file can be closed."""

    def read(at: int, nbytes: int) -> bytes | bytearray | memoryview:
        end = at + nbytes
        return data[at:end]

    return read


def box(kind: bytes, *content: bytes | int) -> bytes:
    """Return a box; an int in its content takes four bytes."""
    body = bytearray()
    for part in content:
        if isinstance(part, int):
            body += part.to_bytes(4, "big")
        else:
            body += part
    nbytes = _BOX_HEAD.size + len(body)
    head = _BOX_HEAD.pack(nbytes, kind)
    return head + body


def chunks(
    data: Buffer,
    at: int,
    form: str,
) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start, end) of each chunk's content; the end may lie beyond the file.

    form: of a chunk's head, for `struct`. Contents after heads of 8 bytes are padded to an even size.
    """
    head_bytes = struct.calcsize(form)
    while at + head_bytes <= len(data):
        start = at + head_bytes
        head = bytes(data[at:start])
        name, nbytes = struct.unpack(form, head)
        if nbytes < 0:  # a CAF's last chunk extends to the end
            yield name, start, start
            return
        end = start + nbytes
        yield name, start, end
        at = end
        if head_bytes == 8:
            padding = nbytes % 2
            at += padding


RIFF_HEAD = "<4sI"
"""Form of a RIFF chunk's head, for `chunks`."""


def riff_chunk(name: bytes, body: bytes) -> bytes:
    """Return a RIFF chunk, without the byte that pads an odd one."""
    nbytes = len(body)
    head = struct.pack(RIFF_HEAD, name, nbytes)
    return head + body


class LongSizes(NamedTuple):
    """Sizes of 64 bits, for files above 4 GiB (EBU Tech 3306)."""

    riff: int
    """Bytes after the file's first head."""
    data: int
    """Bytes of the data chunk."""


def long_sizes(data: Buffer) -> LongSizes | None:
    """Return the sizes in a WAV's ds64 chunk, which comes first; None if there is none."""
    if bytes(data[12:16]) != b"ds64":
        return None
    sizes = bytes(data[20:36])  # after the head of the file (12 bytes) and of the chunk (8)
    if len(sizes) < 16:
        return None
    riff, data_nbytes = struct.unpack("<QQ", sizes)
    return LongSizes(riff, data_nbytes)
