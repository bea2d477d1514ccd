"""The verbs of `loader.native` in Python: their specification, and the way where no compiler was.

`_native.c` has the same verbs in C, which hold no interpreter lock while they touch sample bytes. A property test holds
both equal, byte for byte and error for error.
"""

import os
from collections.abc import Sequence
from mmap import mmap
from time import perf_counter

import google_crc32c
import numpy as np
from numpy.typing import NDArray

RIGHT, WRONG, UNREAD = 0, 1, 2
"""Status of an item: as it shall be; other bytes; not to be read, or not whole."""

Buffer = bytes | bytearray | memoryview | np.ndarray
"""Contiguous bytes."""
OpenFile = tuple[int, Buffer | mmap | None]
"""Descriptor of a file, and a map of all its bytes or None. A map only makes it faster: nobody else writes there."""
Int64s = NDArray[np.int64]
Status = NDArray[np.uint8]


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C (RFC 3720, appendix B.4) of bytes that follow bytes whose checksum is `crc`; 0: of none."""
    return int(google_crc32c.extend(crc, np.frombuffer(data, np.uint8) if len(data) else b""))


def gather_rows(
    files: Sequence[OpenFile],
    which: Int64s,
    begin: Int64s,
    head: bytes,
    rows: Int64s,
    memory: np.ndarray,
    row_bytes: int,
    crcs: Int64s,
    status: Status,
) -> float:
    """Read values into rows of memory, verified; return the seconds that checking took.

    Item i lies in `files[which[i]]` from byte `begin[i]` on: `head`, and then the
    `row_bytes` bytes of row `rows[i]` of `memory`. `status[i]` becomes RIGHT, or:

    - WRONG where the item does not begin with `head`, or its CRC-32C (head and value) is not `crcs[i]`;
    - UNREAD where the file cannot be read, or ends before.

    memory: uint8, contiguous. rows: each at most once; one that is not RIGHT holds anything.

    Raises: ValueError for a file or row that is not there, or an array of another length than `which`; then nothing
    was read.
    """
    _check_arrays(files, which, begin=begin, rows=rows, crcs=crcs, status=status)
    into = np.frombuffer(memory, np.uint8)
    if row_bytes < 1 or len(into) % row_bytes:
        raise ValueError(f"memory: {len(into)} bytes are no rows of {row_bytes}")
    into = into.reshape(-1, row_bytes)
    for i, row in enumerate(rows.tolist()):
        if not 0 <= row < len(into):
            raise ValueError(f"item {i}: row {row} of {len(into)}")
    checked_s = 0.0
    for i, (file, start, row) in enumerate(zip(which.tolist(), begin.tolist(), rows.tolist(), strict=True)):
        data = _read(files[file][0], start, len(head) + row_bytes)
        if data is None:
            status[i] = UNREAD
            continue
        into[row] = np.frombuffer(data, np.uint8)[len(head) :]
        checking = perf_counter()
        status[i] = RIGHT if data.startswith(head) and crc32c(data) == crcs[i] else WRONG
        checked_s += perf_counter() - checking
    return checked_s


def gather_bytes(
    files: Sequence[OpenFile], which: Int64s, begin: Int64s, nbytes: Int64s, crcs: Int64s, status: Status
) -> tuple[list[bytes], float]:
    """Return byte strings, verified, and the seconds that checking took.

    Item i is the `nbytes[i]` bytes of the file `files[which[i]]` from `begin[i]` on. `status[i]` becomes RIGHT, WRONG
    where its CRC-32C is not `crcs[i]`, or UNREAD: then its bytes are anything.

    Raises: ValueError for a file that is not there, a negative size, or an array of another length than `which`.
    """
    _check_arrays(files, which, begin=begin, nbytes=nbytes, crcs=crcs, status=status)
    for i, size in enumerate(nbytes.tolist()):
        if size < 0:
            raise ValueError(f"item {i}: {size} bytes")
    out = [
        _read(files[file][0], start, size)
        for file, start, size in zip(which.tolist(), begin.tolist(), nbytes.tolist(), strict=True)
    ]
    checking = perf_counter()
    for i, data in enumerate(out):
        status[i] = UNREAD if data is None else WRONG if crc32c(data) != crcs[i] else RIGHT
    return [data or b"" for data in out], perf_counter() - checking


def instructions() -> str:
    """Return the name of the means by which checksums are computed."""
    return f"google-crc32c ({google_crc32c.implementation})"


def _read(file: int, begin: int, nbytes: int) -> bytes | None:
    """Return bytes of a file; None where it cannot be read, or ends before."""
    parts, done = list[bytes](), 0
    while done < nbytes:
        try:
            parts.append(os.pread(file, min(nbytes - done, 2**30), begin + done))
        except (OSError, OverflowError):
            return None
        if not parts[-1]:
            return None
        done += len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_arrays(files: Sequence[OpenFile], which: Int64s, **arrays: np.ndarray) -> None:
    for name, array in arrays.items():
        expected = len(which) * (1 if name == "status" else 8)
        if array.nbytes != expected:
            raise ValueError(f"{name}: {array.nbytes} bytes, not {expected}")
    for i, file in enumerate(which.tolist()):
        if not 0 <= file < len(files):
            raise ValueError(f"item {i}: file {file} of {len(files)}")
