"""Headers of a tar archive (ustar, GNU, pax), read without payloads. Data that readers would misread is an error."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple
from zlib import adler32

import numpy as np

from loader.errors import Corrupt, InvalidSample
from loader.native import UNKNOWN_CRC, tar_contents

from ..reading.object_file import ForwardReader

BLOCK_BYTES = 512
HEADER_BYTES = 1 << 20
"""Longest name or pax record, in bytes."""
TAIL_BYTES = 64 * 2**10
"""Bytes checked after an archive's end, where writers pad with zeros."""

Read = Callable[[int, int], bytes]
"""(offset, nbytes) -> bytes; fewer only at the object's end."""


class TarMembers(NamedTuple):
    """Consecutive files of an archive."""

    names: list[str]
    """Paths as stored; bytes that are not UTF-8 become lone surrogates."""
    places: list[int]
    """[offset, nbytes, offset, ...] of the contents."""
    crcs: list[int]
    """CRC-32C of each content, or `UNKNOWN_CRC`."""
    end: int
    """Offset after the last file's padding."""


Many = Callable[[int], TarMembers]
"""(offset) -> buffered files with plain headers from there on; may be empty."""

_PLAIN = re.compile(rb"[0-7]{6}\0 ", re.DOTALL)
_NUMBER = re.compile(rb"[0-7]+")
_PAX = re.compile(rb"(\d{1,20}) ([^=]+)=")
_LINKS = {b"1": "a hard link", b"2": "a symbolic link"}
_OTHERS = {
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    b"S": "a sparse file",
    b"M": "a part of a file that began in another volume",
    b"V": "a volume's name",
    b"N": "an old GNU name",
    b"D": "a GNU dump of a directory",
}


class TarMember(NamedTuple):
    name: str
    """Path as stored; bytes that are not UTF-8 become lone surrogates."""
    offset: int
    """Content's offset."""
    nbytes: int
    """Content's length in bytes."""

    @property
    def header(self) -> int:
        return self.offset - BLOCK_BYTES


def members(read: Read, nbytes: int, name: str, many: Many | None = None) -> Iterator[TarMember]:
    for run in runs(read, nbytes, name, many):
        yield from iterate_members(run.names, run.places)


def iterate_members(names: Sequence[str], places: Sequence[int]) -> Iterator[TarMember]:
    return map(TarMember, names, places[::2], places[1::2])


def runs(read: Read, nbytes: int, name: str, many: Many | None = None) -> Iterator[TarMembers]:
    """Yield an archive's regular files in runs. name: object's name for errors. many: fast path for plain headers.

    Raises: Corrupt if the archive is damaged or data follows its end; InvalidSample for a member that is not a regular
    file.
    """
    at = 0
    for_next: dict[str, bytes] = {}  # pax records of the next member
    for_all: dict[str, bytes] = {}  # pax records of all members that follow
    while True:
        is_plain = not for_all and not for_next
        if many and is_plain:
            run = many(at)
            if run.names:
                at = run.end
                yield run
        block = read(at, BLOCK_BYTES)
        if len(block) < BLOCK_BYTES:
            message = f"the archive is cut: it ends at byte {nbytes} without its two blocks of zeros"
            raise _corrupt(name, at, message, what="end", given=nbytes, accepted="two blocks of zeros")
        if not block[0] and not any(block):
            _check_end(read, at, nbytes, name)
            return
        header = at
        size = _check_size(block, name, at)
        kind = block[156:157]
        at += BLOCK_BYTES
        if kind in (b"x", b"X", b"g", b"L", b"K"):
            data = _content(read, header, size, nbytes, name)
            at += _pad(size)
            if kind == b"g":
                for_all |= _records(data, name, header)
            elif kind in (b"x", b"X"):
                for_next |= _records(data, name, header)
            elif kind == b"L":
                for_next["path"] = data.rstrip(b"\0")
            continue
        path = _path(block)
        if kind != b"0" or not is_plain:  # nearly all headers are plain
            records = {**for_all, **for_next}
            for_next = {}
            path = records.get("path") or path
            if "size" in records:
                size = _decimal(records["size"], name, header)
            if _is_folder(path, kind, records, name, header):
                continue
        if at + size > nbytes:
            shown = path.decode(errors="backslashreplace")
            message = (
                f"member {shown!r} has {size:,} bytes, and the object ends after {nbytes - at:,} of them"
            )
            raise _corrupt(name, header, message, what=shown, given=nbytes - at, accepted=size)
        place = [at, size]
        at += _pad(size)
        yield TarMembers([path.decode("utf-8", "surrogateescape")], place, [UNKNOWN_CRC], at)


def _is_folder(path: bytes, kind: bytes, records: Mapping[str, bytes], name: str, header: int) -> bool:
    """Return whether a member is a folder. Raises: InvalidSample if it is neither that nor a regular file."""
    is_sparse = any(record.startswith("GNU.sparse") for record in records)
    if is_sparse or kind in _OTHERS:
        refusal = _OTHERS.get(kind, "a sparse file")
    elif kind in _LINKS:
        refusal = _LINKS[kind]
    elif kind == b"5":
        return True
    elif kind == b"\0":  # a file in the oldest form, which has no kind for folders
        return path.endswith(b"/")
    elif kind in (b"0", b"7"):  # 7 is a contiguous file
        return False
    else:
        refusal = f"of type {kind!r}"
    raise _refusal(name, header, path.decode(errors="backslashreplace"), refusal)


def walk(reader: ForwardReader) -> Iterator[TarMembers]:
    """Yield the regular files of a reader's archive, with checksums of the contents that were read."""
    for run in runs(reader.read, reader.nbytes, reader.name, partial(plain_members, reader)):
        reader.sum(run.places, run.crcs)
        yield run


def plain_members(reader: ForwardReader, at: int) -> TarMembers:
    """Return the files buffered from byte `at` on."""
    buffer, start = reader.at_hand()
    names, table, end = tar_contents(buffer, at - start, reader.nbytes - start, reader.sums)
    rows = np.frombuffer(table, np.int64).reshape(-1, 3)  # [members, 3]: offset, nbytes, CRC-32C
    reader.served(len(rows))
    places = rows[:, :2].flatten()  # a copy: [offset, nbytes, offset, ...]
    places[::2] += start
    member_names = names.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return TarMembers(member_names, places.tolist(), rows[:, 2].tolist(), end + start)


def is_header(block: bytes, path: str, nbytes: int) -> bool:
    """Return whether a block is a file's header. Paths over 100 bytes and sizes from 8 GiB are not compared."""
    try:
        size = _check_size(block, "", 0)
    except Corrupt:
        return False
    raw_path = path.encode("utf-8", "surrogateescape")
    if len(raw_path) <= 100 and _path(block) != raw_path:
        return False
    if nbytes >= 8 * 2**30 and size == 0:  # a pax record has the size
        return True
    return size == nbytes


def _check_size(block: bytes, name: str, at: int) -> int:
    """Return a header's size field. Raises: Corrupt if its checksum or size is wrong."""
    total = _sum(block[:256]) + _sum(block[256:])
    # Nearly all checksum fields have the common form, whose sum is known: one comparison is enough.
    if total != _total(block[148:156]) and not _has_other_checksum(block, total):
        what = "it is not a tar archive" if at == 0 else "the header there is damaged"
        message = f"{what}: the checksum of a header is wrong"
        raise _corrupt(name, at, message, what="header", accepted="a tar header with its checksum")
    field = block[124:136]
    if field[0] == 0x80:  # a binary number, which GNU tar writes from 8 GiB on
        size = int.from_bytes(field[1:], "big")
    elif field[0] == 0xFF:  # a negative one
        size = -1
    else:
        size = _octal(field)
    if size < 0:
        raise _corrupt(name, at, f"the header there has the size {field!r}, which is not a number of bytes")
    return size


def _has_other_checksum(block: bytes, total: int) -> bool:
    """Return whether a checksum field in any form agrees, also as the sum of signed bytes that old writers made."""
    checksum = _octal(block[148:156])
    unsigned = total - _sum(block[148:156]) + 8 * 32  # the field counts as blanks
    if checksum == unsigned:
        return True
    n_negative = sum(byte > 127 for byte in block[:148] + block[156:])
    return checksum == unsigned - 256 * n_negative


def _sum(data: bytes) -> int:
    """Return the sum of at most 256 bytes; Adler-32 is fast."""
    return adler32(data, 0) & 0xFFFF


@lru_cache(4096)
def _total(checksum: bytes) -> int:
    """Return the header's byte sum from a checksum field in the common form, else -1."""
    if not _PLAIN.fullmatch(checksum):
        return -1
    checksum_sum = int(checksum[:6], 8)
    return checksum_sum + _sum(checksum) - 8 * 32  # the checksum counts its own field as blanks


def _octal(field: bytes) -> int:
    """Return an octal field's value; 0 if empty, -1 if invalid."""
    if field[-1] in (0, 32) and _NUMBER.fullmatch(field[:-1]):
        return int(field[:-1], 8)
    text = field.split(b"\0", 1)[0].strip(b" ")
    if not text:
        return 0
    if not _NUMBER.fullmatch(text):
        return -1
    return int(text, 8)


def _decimal(text: bytes, name: str, at: int) -> int:
    if not text.isdigit() or len(text) > 20:
        raise _corrupt(name, at, f"a pax record there has size={text[:40]!r}, which is not a number of bytes")
    return int(text)


def _path(block: bytes) -> bytes:
    path = block[:100].split(b"\0", 1)[0]
    if block[345] and block[257:263] == b"ustar\0":  # GNU's own format uses these bytes for something else
        prefix = block[345:500].split(b"\0", 1)[0]
        return prefix + b"/" + path
    return path


def _content(read: Read, at: int, size: int, nbytes: int, name: str) -> bytes:
    if size > HEADER_BYTES:
        message = f"an extended header there has {size:,} bytes; at most {HEADER_BYTES:,} are read"
        raise _corrupt(name, at, message, what="extended header", given=size, accepted=HEADER_BYTES)
    data = read(at + BLOCK_BYTES, size)
    if len(data) < size:
        raise _corrupt(name, at, f"the archive is cut: an extended header there ends after byte {nbytes}")
    return data


def _records(data: bytes, name: str, header: int) -> dict[str, bytes]:
    """Return the records of a pax header, each `<nbytes> <name>=<value>` and a line feed."""
    records: dict[str, bytes] = {}
    start = 0
    while start < len(data) and data[start] != 0:
        match = _PAX.match(data, start)
        if match is None:
            raise _corrupt(name, header, "the pax header there is damaged")
        end = start + int(match[1])
        if not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise _corrupt(name, header, "the pax header there is damaged", what="pax header")
        records[match[2].decode(errors="replace")] = data[match.end() : end - 1]
        start = end
    return records


def _check_end(read: Read, at: int, nbytes: int, name: str) -> None:
    tail = read(at, min(TAIL_BYTES, nbytes - at))
    n_zeros = len(tail) - len(tail.lstrip(b"\0"))
    if n_zeros < len(tail):
        next_block = (at + n_zeros) // BLOCK_BYTES * BLOCK_BYTES
        message = (
            f"the archive ends there, and the object goes on at byte {next_block}: archives that were joined are read "
            "only to the first end. Join them with tar --concatenate, or keep them apart"
        )
        raise _corrupt(name, at, message, what="end", given=next_block, accepted="no data after the end")
    if len(tail) < 2 * BLOCK_BYTES:
        message = "the archive is cut: one of its two last blocks of zeros is missing"
        raise _corrupt(name, at, message, what="end", accepted="two blocks of zeros")


def _pad(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def _corrupt(name: str, at: int, problem: str, **fields: object) -> Corrupt:
    where = f"{name}, byte {at}"
    return Corrupt(f"{where}: {problem}", where=where, **fields)


def _refusal(name: str, at: int, member: str, kind: str) -> InvalidSample:
    where = f"{name}, byte {at}"
    message = (
        f"{where}: member {member!r} is {kind}; only regular files are samples' fields. Write the archive "
        "again without it"
    )
    return InvalidSample(message, what=member, where=where, given=kind, accepted="regular files")
