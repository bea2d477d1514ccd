"""Headers of a shard's members, as POSIX tar stores them.

Members are ustar (mode 0644, no owner, mtime 0). A name over 100 bytes that no `/` splits into 155 + 100 gets a pax
extended header, which tarfile, GNU tar, bsdtar and webdataset read.
"""

import hashlib
from collections.abc import Sequence
from typing import Any
from zlib import adler32

import numpy as np

from .bitmap import Int64s

BLOCK_BYTES = 512

Uint8s = np.ndarray[Any, np.dtype[np.uint8]]

_NAME_BYTES = 100
_PREFIX_BYTES = 155
_NAME = slice(0, _NAME_BYTES)
_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)
_TYPE = slice(156, 157)
_PREFIX_AT = 345
END_BLOCKS = bytes(2 * BLOCK_BYTES)
_EMPTY = (
    bytes(_NAME_BYTES)
    + b"0000644\0"  # mode
    + b"0000000\0" * 2  # user, group
    + b"00000000000\0" * 2  # size, mtime
    + b" " * 8  # checksum, whose own bytes count as spaces
    + bytes(101)  # type, link
    + b"ustar\x0000"
    + bytes(247)  # names of user and group, device, prefix
)
_FILE = b"0"
_PAX = b"x"
_BETWEEN = _EMPTY[_NAME.stop : _SIZE.start]
_BEHIND = _EMPTY[_SIZE.stop :]
_COMMON_SUM = sum(_BETWEEN) + sum(_BEHIND) + sum(_FILE)
"""Sum of a file's header without its name and its size."""


def member_header(name: str, nbytes: int) -> bytes:
    """Return the blocks before a member's payload of `nbytes`: one, or several for a name that needs pax."""
    raw = name.encode()
    split = _split(raw)
    if split is not None:
        prefix, rest = split
        return _block(
            name=rest,
            prefix=prefix,
            nbytes=nbytes,
            kind=_FILE,
        )

    # A reader without pax sees the name's hash in its place, which is unique in the shard.
    record = _pax_record(b"path", raw)
    record_nbytes = len(record)
    padding = bytes(-record_nbytes % BLOCK_BYTES)
    sha256 = hashlib.sha256(raw)
    stub = sha256.hexdigest().encode()
    pax_block = _block(
        name=b"pax/" + stub,
        prefix=b"",
        nbytes=record_nbytes,
        kind=_PAX,
    )
    member_block = _block(
        name=stub,
        prefix=b"",
        nbytes=nbytes,
        kind=_FILE,
    )
    return pax_block + record + padding + member_block


def member_headers(
    names: Sequence[str],
    nbytes: Int64s,
) -> tuple[Uint8s, Int64s]:
    """Return (uint8 [blocks, 512]: the headers of all members; int64 [n]: blocks of each header)."""
    joined = "\0".join(names).encode()  # one call encodes all; no name has a NUL
    raw = joined.split(b"\0")
    longest = max(map(len, raw))
    if longest > _NAME_BYTES:
        return _headers_one_by_one(names, nbytes)

    n = len(raw)
    blocks = _empty_headers(n)
    padded_names = np.array(raw, f"S{_NAME_BYTES}")
    octets = padded_names.view(np.uint8)
    name_octets = octets.reshape(n, _NAME_BYTES)
    blocks[:, _NAME] = name_octets
    size_digits = _octal(nbytes, 11)
    blocks[:, _SIZE] = size_digits

    # Only the name and the size differ from member to member, so that only their bytes are added up.
    size_sums = size_digits.sum(axis=1)
    name_sums = name_octets.sum(
        axis=1,
        dtype=np.int64,
    )
    checksums = name_sums + size_sums + _COMMON_SUM  # [n]
    blocks[:, _CHECKSUM] = _octal(checksums, 6)

    n_blocks = np.ones(n, np.int64)
    return blocks, n_blocks


def _headers_one_by_one(
    names: Sequence[str],
    nbytes: Int64s,
) -> tuple[Uint8s, Int64s]:
    """Return the result of `member_headers` for names of which some are long: their headers have several blocks."""
    headers: list[bytes] = []
    for name, member_nbytes in zip(names, nbytes.tolist(), strict=True):
        header = member_header(name, member_nbytes)
        headers.append(header)

    octets = np.frombuffer(b"".join(headers), np.uint8)
    blocks = octets.reshape(-1, BLOCK_BYTES)
    header_nbytes = np.fromiter(map(len, headers), np.int64)
    n_blocks = header_nbytes // BLOCK_BYTES
    return blocks, n_blocks


def _empty_headers(n: int) -> Uint8s:
    """Return uint8 [n, 512]: headers of files without a name and of no bytes."""
    template = _block(
        name=b"",
        prefix=b"",
        nbytes=0,
        kind=_FILE,
    )
    octets = np.frombuffer(template, np.uint8)
    return np.tile(octets, (n, 1))


def _octal(numbers: Int64s, digits: int) -> Int64s:
    """Return int64 [n, digits]: ASCII octal digits, most significant first."""
    n_bits = 3 * (digits - 1)  # right of the most significant digit
    shift = np.arange(n_bits, -1, -3)
    shifted = numbers[:, None] >> shift
    digit = shifted & 7
    return digit + ord("0")


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) as ustar stores them, or None if the name does not fit."""
    if len(raw) <= _NAME_BYTES:
        return b"", raw
    first_cut = len(raw) - _NAME_BYTES - 1  # from here on the name still fits
    cut = raw.find(b"/", first_cut)
    is_last = cut + 1 == len(raw)  # nothing is left for the name
    if 0 < cut <= _PREFIX_BYTES and not is_last:
        return raw[:cut], raw[cut + 1 :]
    return None


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    body = b" " + keyword + b"=" + value + b"\n"
    # The record begins with its length, whose own digits count: a longer length may need one more digit.
    length = len(body)
    while True:
        digits = b"%d" % length
        record = digits + body
        if len(record) == length:
            return record
        length = len(record)


def _block(
    name: bytes,
    prefix: bytes,
    nbytes: int,
    kind: bytes,
) -> bytes:
    """Return one header block, with its checksum."""
    block = bytearray(_EMPTY)
    block[: len(name)] = name
    block[_SIZE] = b"%011o" % nbytes
    block[_TYPE] = kind
    prefix_end = _PREFIX_AT + len(prefix)
    block[_PREFIX_AT:prefix_end] = prefix

    # Adler-32 contains a byte sum modulo 65,521, enough for 256 bytes, and is fast.
    first_half = adler32(block[:256], 0) & 0xFFFF
    second_half = adler32(block[256:], 0) & 0xFFFF
    checksum = first_half + second_half
    block[_CHECKSUM] = b"%06o" % checksum
    block[154:156] = b"\0 "
    return bytes(block)
