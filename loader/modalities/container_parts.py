"""Walk the boxes of an MP4 and the chunks of a RIFF, AIFF or CAF file."""

import struct
from collections.abc import Callable, Iterator

from .fields import Buffer

Read = Callable[[int, int], bytes | bytearray | memoryview]
"""Returns the bytes at an offset: `read(offset, nbytes)`, fewer at the end of the file."""

_BOX_HEAD = struct.Struct(">I4s")
_LONG_SIZE = struct.Struct(">Q")


def boxes(read: Read, at: int, stop: int) -> Iterator[tuple[bytes, int, int, int]]:
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
    return lambda at, nbytes: data[at : at + nbytes]


def chunks(data: Buffer, at: int, form: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start, end) of each chunk's content; the end may lie beyond the file.

    form: of a chunk's head, for `struct`. Contents after heads of 8 bytes are padded to an even size.
    """
    head_bytes = struct.calcsize(form)
    while at + head_bytes <= len(data):
        head = bytes(data[at : at + head_bytes])
        name, nbytes = struct.unpack(form, head)
        start = at + head_bytes
        yield name, start, start + max(nbytes, 0)
        if nbytes < 0:  # a CAF's last chunk extends to the end
            return
        at = start + nbytes
        if head_bytes == 8:
            at += nbytes % 2
