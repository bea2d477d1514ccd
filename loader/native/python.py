"""Python versions of the functions in `loader.native`: their specification, and the fallback."""

import hashlib
import os
import struct
from collections.abc import Sequence
from itertools import pairwise
from mmap import mmap
from time import perf_counter
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

RIGHT = 0
WRONG = 1
UNREAD = 2
"""Status of an item: as expected; wrong bytes; unreadable or incomplete."""
UNKNOWN_CRC = -1
SHA_BLOCK_BYTES = 64
MAX_SIDE = 2**20
"""Longest side, in pixels, that `resample` accepts."""
MAX_SHRUNK = 8
SUMS_TOGETHER = 2**14  # row sums that `resample` holds at once, unless eight rows have more

Buffer = bytes | bytearray | memoryview | np.ndarray
"""Contiguous bytes."""
IN_MEMORY = -1
"""Descriptor that stands for bytes in memory, with no file."""
OpenFile = tuple[int, Buffer | mmap | None]
"""(file descriptor, memory map of the whole file for speed or None); or (IN_MEMORY, the bytes)."""
Int64s = NDArray[np.int64]
Status = NDArray[np.uint8]


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C (RFC 3720, appendix B.4) of `data` appended to bytes whose checksum is `crc`."""
    if not len(data):
        return crc  # numpy refuses an empty buffer
    octets = np.frombuffer(data, np.uint8)
    return int(google_crc32c.extend(crc, octets))


def crc32c_each(
    values: list[Any],
    crc: int,
    alike: bool,
) -> list[int] | None:
    """Return the CRC-32C of each value's bytes, appended to bytes whose checksum is `crc`.

    None if a value has no contiguous bytes. alike: also None unless all values have one type, format and shape.
    """
    crcs: list[int] = []
    layouts: set[tuple[object, ...]] = set()
    for value in values:
        try:
            data = memoryview(value)
        except (TypeError, ValueError, BufferError):
            return None
        layouts.add((type(value), data.format, data.shape))
        if not data.c_contiguous:
            return None
        if alike and len(layouts) > 1:
            return None
        crcs.append(crc32c(data.tobytes(), crc))
    return crcs


def gather(
    files: Sequence[OpenFile],
    which: Int64s,
    begin: Int64s,
    nbytes: Int64s,
    head: bytes,
    memory: np.ndarray,
    at: Int64s,
    crcs: Int64s,
    status: Status,
) -> float:
    """Read items from files into memory and verify them; return the seconds spent on checksums.

    Item i is the `nbytes[i]` bytes of `files[which[i]]` from byte `begin[i]` on. It begins with `head`; the rest goes
    to `memory` from byte `at[i]` on. `status[i]` becomes RIGHT, or:

    - WRONG if the item does not begin with `head`, or the CRC-32C of all its bytes is not `crcs[i]`;
    - UNREAD if the file cannot be read or is too short.

    The memory of items that are not RIGHT is arbitrary. If `crcs[i]` is `UNKNOWN_CRC`, the actual checksum replaces it.

    memory: uint8, contiguous. Items may be in any order, without overlap.

    Raises: ValueError if a file number is out of range, an item is smaller than the head or outside the memory, or an
    array's length differs from `which`'s.
    """
    into = np.frombuffer(memory, np.uint8)
    _check(files, len(head), len(into), which, begin=begin, nbytes=nbytes, at=at, crcs=crcs, status=status)
    checked_s = 0.0
    columns = (which.tolist(), begin.tolist(), nbytes.tolist(), at.tolist())
    for i, (file, start, size, place) in enumerate(zip(*columns, strict=True)):
        data = _read(files[file], start, size)
        if data is None:
            status[i] = UNREAD
            continue
        body = np.frombuffer(data, np.uint8)[len(head) :]
        into[place : place + len(body)] = body
        check_start_s = perf_counter()
        status[i] = WRONG
        if data.startswith(head) and _has_crc(crcs, i, crc32c(data)):
            status[i] = RIGHT
        checked_s += perf_counter() - check_start_s
    return checked_s


def _has_crc(crcs: Int64s, i: int, crc: int) -> bool:
    if crcs[i] == UNKNOWN_CRC:
        crcs[i] = crc
    return bool(crcs[i] == crc)


class PagedSha256:
    def __init__(self, page_bytes: int) -> None:
        """Check the page size. Raises: ValueError unless a page is a multiple of 64 bytes."""
        if page_bytes < SHA_BLOCK_BYTES or page_bytes % SHA_BLOCK_BYTES:
            raise ValueError(f"pages of {page_bytes} bytes, not of whole blocks of 64")
        self._page_bytes = page_bytes
        self._nbytes = 0
        self._all = hashlib.sha256()

    def update(self, data: bytes | bytearray | memoryview) -> bytes:
        """Hash the bytes, and return the digests of their pages. Only the last call may end inside a page.

        Raises: ValueError if the bytes are not a multiple of 64, or follow an incomplete page.
        """
        if len(data) % SHA_BLOCK_BYTES or self._nbytes % self._page_bytes:
            raise ValueError(
                f"{len(data)} bytes behind {self._nbytes}: not of whole blocks of 64, or behind a part of a page"
            )
        self._nbytes += len(data)
        self._all.update(data)
        view = memoryview(data)  # slices of it copy nothing
        digests = []
        for begin in range(0, len(view), self._page_bytes):
            page = view[begin : begin + self._page_bytes]
            digests.append(hashlib.sha256(page).digest())
        return b"".join(digests)

    def digest(self) -> bytes:
        return self._all.digest()


def copy_bytes(data: Buffer) -> bytes:
    return bytes(data)


NpyHead = tuple[bytes, bytes, int]
"""(bytes before a document's number of rows, bytes after it, bytes of the whole header).

Spaces and a line feed fill the header. (b"", b"", 0) stands for documents without one.
"""


def copy_pieces(
    memory: Buffer,
    begin: Int64s,
    nbytes: Int64s,
    rows: Int64s,
    first: Int64s,
    length: Int64s,
    at: Int64s,
    head: NpyHead,
    row_nbytes: int,
    into: np.ndarray,
    status: Status,
) -> None:
    """Copy pieces of documents to their places in sequences.

    Document i is the `nbytes[i]` bytes of `memory` from byte `begin[i]` on: a header, and `rows[i]` rows of
    `row_nbytes` bytes. Its piece is the `length[i]` rows from row `first[i]` on; they go to `into` from row `at[i]`.
    `status[i]` becomes RIGHT; or WRONG if the document has another header or size, and then nothing of it is copied.

    into: contiguous, of any dtype; `row_nbytes` bytes of it are a row.

    Raises: ValueError if a document lies outside the memory, a piece outside its document, a place outside `into`, or
    an array's length differs from `status`'s.
    """
    before, after, head_nbytes = head
    if head_nbytes < 0 or row_nbytes < 1:
        raise ValueError(f"a head of {head_nbytes} bytes, and rows of {row_nbytes}")
    arrays = {"begin": begin, "nbytes": nbytes, "rows": rows, "first": first, "length": length, "at": at}
    for name, array in arrays.items():
        _check_nbytes(name, array, 8 * len(status))
    data = bytes(memory)
    places = np.frombuffer(into, np.uint8)
    n_rows = places.nbytes // row_nbytes
    columns = [array.tolist() for array in arrays.values()]
    pieces = list(zip(*columns, strict=True))
    for i, (start, size, n, begin_row, count, place) in enumerate(pieces):
        if start < 0 or size < 0 or start > len(data) - size:
            raise ValueError(f"piece {i}: document of {size} bytes from byte {start} of {len(data)}")
        if begin_row < 0 or count < 0 or begin_row > n - count:
            raise ValueError(f"piece {i}: {count} rows from row {begin_row} of {n}")
        _check_place(i, count, place, n_rows)
    # A second loop: an invalid piece must raise before anything is copied.
    for i, (start, size, n, begin_row, count, place) in enumerate(pieces):
        expected = b""
        if head_nbytes > 0:
            text = before + b"%d" % n + after
            expected = text.ljust(head_nbytes - 1) + b"\n"
        document = data[start : start + size]
        has_size = size == head_nbytes + n * row_nbytes
        if not has_size or document[:head_nbytes] != expected:
            status[i] = WRONG
            continue
        status[i] = RIGHT
        from_byte = head_nbytes + begin_row * row_nbytes
        values = document[from_byte : from_byte + count * row_nbytes]
        to_byte = place * row_nbytes
        places[to_byte : to_byte + len(values)] = np.frombuffer(values, np.uint8)


def number_pieces(
    at: Int64s,
    length: Int64s,
    segment: Int64s,
    position_ids: NDArray[np.int32],
    segment_ids: NDArray[np.int32],
    loss_mask: NDArray[np.bool_],
) -> None:
    """Write numbers beside the rows of pieces; piece i is the `length[i]` rows from row `at[i]` on.

    position_ids: receives 0, 1, 2 ... in each piece. segment_ids: receives `segment[i]`. loss_mask: receives False for
    a piece's first row, and True for the others. All contiguous, of one number of values.

    Raises: ValueError if a piece lies outside these arrays, or an array's length differs from the first one's.
    """
    n_rows = position_ids.size
    _check_nbytes("length", length, at.nbytes)
    _check_nbytes("segment", segment, at.nbytes)
    _check_nbytes("segment_ids", segment_ids, 4 * n_rows)
    _check_nbytes("loss_mask", loss_mask, n_rows)
    positions = np.frombuffer(position_ids, np.int32)
    segments = np.frombuffer(segment_ids, np.int32)
    losses = np.frombuffer(loss_mask, np.bool_)
    pieces = list(zip(at.tolist(), length.tolist(), segment.tolist(), strict=True))
    for i, (place, count, _) in enumerate(pieces):
        _check_place(i, count, place, n_rows)
    # A second loop: an invalid piece must raise before anything is written.
    for place, count, number in pieces:
        stop = place + count
        positions[place:stop] = np.arange(count, dtype=np.int32)
        segments[place:stop] = number
        losses[place:stop] = True
        losses[place : place + min(count, 1)] = False


def _check_nbytes(name: str, array: np.ndarray, nbytes: int) -> None:
    if array.nbytes != nbytes:
        raise ValueError(f"{name}: {array.nbytes} bytes, not {nbytes}")


def _check_place(i: int, count: int, place: int, n_rows: int) -> None:
    if count < 0 or place < 0 or place > n_rows - count:
        raise ValueError(f"piece {i}: {count} rows to row {place} of {n_rows}")


def hash_numbers(head: bytes, numbers: Int64s, tail: bytes, into: NDArray[np.uint64]) -> None:
    """Write 64 bits of each number's BLAKE2b (digest size 8, little endian) into a uint64 [n] array.

    The hashed text is the head, the number as `order.random.keyed_permutation.encode_field` writes it, and the tail.
    numbers: int64 [n]. Raises: ValueError if `into` has another length.
    """
    _check_nbytes("into", into, numbers.nbytes)
    digests = []
    for number in numbers.tolist():
        text = b"i%d" % number
        length = struct.pack("<I", len(text))
        digest = hashlib.blake2b(head + length + text + tail, digest_size=8)
        digests.append(digest.digest())
    into[:] = np.frombuffer(b"".join(digests), "<u8")


def hash_texts(ends: Buffer, data: Buffer, into: Int64s) -> None:
    """Write the first 8 bytes of each text's BLAKE2b-128, little endian, without the last bit, into an int64 [n] array.

    Text i is the bytes from `ends[i]` to `ends[i + 1]` of the data, as in Arrow. ends: int32 [n + 1].

    Raises: ValueError for other lengths, or texts that are not consecutive in the data.
    """
    at = np.frombuffer(ends, np.int32)
    _check_nbytes("ends", at, 4 * (len(into) + 1))
    if at[0] < 0 or at[-1] > len(data) or (np.diff(at) < 0).any():
        raise ValueError("ends: texts do not lie in the data one behind the other")
    every = bytes(data)
    words = []
    for begin, end in pairwise(at.tolist()):
        digest = hashlib.blake2b(every[begin:end], digest_size=16)
        words.append(digest.digest()[:8])
    # Without the last bit, every number fits an int64.
    into[:] = np.frombuffer(b"".join(words), "<u8") >> 1


def tar_contents(file: OpenFile, at: int, nbytes: int, sums: bool) -> tuple[bytes, bytes, int]:
    """Return names and positions of members from byte `at` to the first header that is not plain, and the next byte.

    Each name ends with a NUL. Positions are int64 [members, 3]: first byte, size and CRC-32C of each content. The
    checksum is `UNKNOWN_CRC` if `sums` is False, for content not wholly in memory, and in a file from the first skipped
    (large) content on. The caller reads all other headers; in Python, that is all headers.

    file: read by descriptor or from memory, never both. nbytes: size of the archive.
    """
    return b"", b"", at


def resample(
    source: Buffer,
    shape: tuple[int, int, int],
    shrunk: int,
    box: tuple[int, int, int, int],
    into: np.ndarray,
    size: tuple[int, int],
    flip: bool,
) -> None:
    """Resample a box of pixels to a given size in integer arithmetic: rows first, then columns.

    Each output pixel weights the box's pixels by a triangle around its centre. The triangle reaches one output pixel to
    each side, or one source pixel if that is larger. Row sums are rounded to 1/128, column sums to 1.

    source: uint8 of `shape` (height, width, channels), an image whose sides were divided by `shrunk` and rounded up.
    box: (top, left, height, width) in px before that division. A source pixel counts if part of it is in the box.
    into: uint8 (height, width, channels) of `size` (height, width). flip: True swaps left and right.

    Raises: ValueError for other numbers of bytes, a box outside the image, sides beyond MAX_SIDE, or channels other
    than 1, 3 and 4.
    """
    height, width, channels = shape
    box_top, box_left, box_height, box_width = box
    out_height, out_width = size
    _check_side("rows", height, shrunk, box_top, box_height, out_height)
    _check_side("columns", width, shrunk, box_left, box_width, out_width)
    if channels not in (1, 3, 4):
        raise ValueError(f"{channels} channels; 1, 3 and 4 are accepted")
    pixels = np.frombuffer(source, np.uint8)
    out = np.frombuffer(into, np.uint8)
    _check_nbytes("source", pixels, height * width * channels)
    _check_nbytes("into", out, out_height * out_width * channels)
    row_places, row_weights = _taps(box_top, box_height, shrunk, out_height)  # [taps, out_height]
    column_places, column_weights = _taps(box_left, box_width, shrunk, out_width)  # [taps, out_width]
    first_column = box_left // shrunk
    end_column = -(-(box_left + box_width) // shrunk)
    column_places = column_places - first_column
    rows = pixels.reshape(shape)[:, first_column:end_column]  # [height, columns, channels]
    result = out.reshape(out_height, out_width, channels)
    # A few output rows at a time: their sums stay in the processor's cache.
    together = max(8, SUMS_TOGETHER // rows[0].size)
    for begin in range(0, out_height, together):
        end = min(begin + together, out_height)
        # Weights sum to 2**14. 64 is half of 2**7, so the shift rounds to 1/128 of a level.
        sums = np.full((end - begin, *rows.shape[1:]), 64, np.int32)
        for places, weights in zip(row_places, row_weights, strict=True):
            sums += weights[begin:end, None, None] * rows[places[begin:end]]
        sums >>= 7
        # 2**20 is half of 2**21: the shift rounds to a level.
        filtered = np.full((end - begin, out_width, channels), 2**20, np.int32)
        for places, weights in zip(column_places, column_weights, strict=True):
            filtered += weights[:, None] * sums[:, places]
        filtered >>= 21
        if flip:
            filtered = filtered[:, ::-1]
        result[begin:end] = filtered


def _check_side(name: str, px: int, shrunk: int, begin: int, length: int, n: int) -> None:
    if not (1 <= px <= MAX_SIDE and 1 <= n <= MAX_SIDE and 1 <= shrunk <= MAX_SHRUNK):
        accepted = f"1 to {MAX_SIDE} px are accepted, and 1 to {MAX_SHRUNK}"
        raise ValueError(f"{name}: {px} px shrunk by {shrunk} to {n} px; {accepted}")
    if begin < 0 or not 1 <= length <= px * shrunk - begin:
        raise ValueError(f"{name}: {length} px from {begin} on, of {px * shrunk}")


def _taps(begin: int, length: int, shrunk: int, n: int) -> tuple[Int64s, NDArray[np.int32]]:
    """Return each output pixel's source pixels and their weights: [taps, n]; weights sum to 2**14.

    A triangle filter, as wide as an output pixel. Coordinates are in units of 1 / (2 n) px of the unshrunk source.
    """
    pixel = 2 * n * shrunk  # width of a source pixel
    centres = 2 * begin * n + (2 * np.arange(n) + 1) * length  # [n]: of the output pixels
    reach = max(2 * length, pixel)
    first = begin // shrunk  # source pixels [first, end) have a part of the length
    end = -(-(begin + length) // shrunk)
    most = min(2 * reach // pixel + 2, end - first)  # + 2: both ends of the reach may lie inside a pixel
    first_places = np.maximum((centres - reach) // pixel, first)
    places = first_places + np.arange(most)[:, None]  # [taps, n]
    distances = np.abs(centres - (2 * places + 1) * (pixel // 2))
    raw = np.maximum(reach - distances, 0)
    raw[(places < first) | (places >= end)] = 0
    sums = raw.cumsum(axis=0)
    # Rounded to the nearest multiple of 1 / 2**14. Rounded single weights would not sum to 2**14.
    rounded = (sums * 2**15 + sums[-1]) // (2 * sums[-1])
    weights = np.diff(rounded, axis=0, prepend=0).astype(np.int32)
    return places.clip(first, end - 1), weights


def ignore_strangers(number: int, parent: int, ancestor: int) -> None:
    """Do nothing: Python's handlers do not get the sender of a signal, so a covered child obeys everybody."""


def share_marks() -> None:
    """Do nothing: without C no child asks for marks."""


def mark_ended(pid: int, is_ended: bool) -> None:
    """Do nothing: without C no child asks for marks."""


def instructions() -> str:
    return f"google-crc32c ({google_crc32c.implementation})"


def _read(opened: OpenFile, begin: int, nbytes: int) -> bytes | None:
    file, data = opened
    if file == IN_MEMORY and data is not None:
        if not 0 <= begin <= len(data) - nbytes:
            return None
        return np.frombuffer(data, np.uint8)[begin : begin + nbytes].tobytes()
    parts = list[bytes]()
    done = 0
    while done < nbytes:
        try:
            parts.append(os.pread(file, min(nbytes - done, 2**30), begin + done))
        except (OSError, OverflowError):
            return None
        if not parts[-1]:
            return None
        done += len(parts[-1])
    return b"".join(parts)


def _check(files: Sequence[OpenFile], n_head: int, room: int, which: Int64s, **arrays: np.ndarray) -> None:
    for name, array in arrays.items():
        item_nbytes = 8
        if name == "status":
            item_nbytes = 1
        _check_nbytes(name, array, item_nbytes * len(which))
    columns = (which.tolist(), arrays["nbytes"].tolist(), arrays["at"].tolist())
    for i, (file, size, place) in enumerate(zip(*columns, strict=True)):
        if not 0 <= file < len(files):
            raise ValueError(f"item {i}: file {file} of {len(files)}")
        if size < n_head or not 0 <= place <= room or size - n_head > room - place:
            raise ValueError(f"item {i}: {size} bytes, {n_head} of them head, to byte {place} of {room}")
