"""Copy an archive without the members of some samples."""

from collections.abc import Collection, Iterator
from functools import partial

from loader.storage import ByteRange

from ..reading.object_file import ForwardReader
from .field_names import is_of_macos
from .tar_headers import BLOCK_BYTES, members, plain_members
from .webdataset import split_member_name


def remaining(reader: ForwardReader, keys: Collection[str]) -> Iterator[ByteRange]:
    """Yield an archive's byte ranges without the members of samples not in `keys`."""
    start = 0  # of the range that goes on
    at = 0  # end of the last member
    for member in members(reader.read, reader.nbytes, reader.name, partial(plain_members, reader)):
        end = member.offset + member.nbytes + -member.nbytes % BLOCK_BYTES
        key_and_field = split_member_name(member.name)
        is_left_out = is_of_macos(member.name) or (key_and_field is not None and key_and_field[0] not in keys)
        # A resource file of macOS may contain a preview of a sample that is left out.
        if is_left_out:
            # Global pax headers before the member apply to later members too.
            stop = _end_of_global_headers(reader, at, member.header)
            if stop > start:
                yield ByteRange(start, stop - start)
            start = end
        at = end
    yield ByteRange(start, reader.nbytes - start)


def _end_of_global_headers(reader: ForwardReader, at: int, header: int) -> int:
    """Return the offset after the global pax headers before a member, which apply to all later members."""
    while at < header and (block := reader.read(at, BLOCK_BYTES))[156:157] == b"g":
        nbytes = int(block[124:135], 8)
        at += BLOCK_BYTES + nbytes + -nbytes % BLOCK_BYTES
    return at
