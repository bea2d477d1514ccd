"""Tar archives as WebDataset has them: members of a sample side by side, and its metadata as one of them."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from loader.dataset.shards.shard import BLOCK_BYTES, member_header
from loader.storage import Span

from ..exporting.exporter import Loss
from ..exporting.outbox import Outbox
from ..exporting.selection import Selection, WorkUnit, metadata_json
from ..reading.exported import MEMBERS, metadata_member
from ..reading.window import Window
from .tar_headers import members, plain_members
from .webdataset_registered import named


class Place(NamedTuple):
    """A member's place in its archive."""

    name: str
    """Name of the field."""
    header: bytes
    """Its header."""
    offset: int
    """First byte of its content."""
    nbytes: int
    """Bytes of its content."""


def metadata_loss(selection: Selection) -> list[Loss]:
    """Return metadata without a name left."""
    if not selection.columns or metadata_member(selection.fields) is not None:
        return []
    taken = " and ".join(map(repr, MEMBERS))
    return [Loss("metadata", f"its member would be one of {taken}, which are fields: it is left out")]


def places(key: str, sizes: Mapping[str, int], at: int) -> list[Place]:
    """Return the members of a sample that begins at a byte, names sorted. sizes: field -> nbytes."""
    out = []
    for name, nbytes in sorted(sizes.items()):
        header = member_header(f"{key}.{name}", nbytes)
        at += len(header)
        out.append(Place(name, header, at, nbytes))
        at += nbytes + -nbytes % BLOCK_BYTES
    return out


def end_of(members: list[Place], start: int) -> int:
    """Return the first byte behind a sample."""
    return members[-1].offset + members[-1].nbytes + -members[-1].nbytes % BLOCK_BYTES if members else start


def put_archive(selection: Selection, unit: WorkUnit, outbox: Outbox, name: str) -> list[int]:
    """Put an archive, and return the first byte of each sample, and that of its end. Raises: Corrupt; StoreError."""
    member, starts = metadata_member(selection.fields), [0]
    with outbox.file(name) as file:
        for sample in selection.samples(unit):
            fields = dict(sample.fields)
            if member and sample.columns:
                fields[member] = metadata_json(sample.columns)
            for place in places(sample.key, {one: len(data) for one, data in fields.items()}, file.nbytes):
                file.write(place.header)
                file.write(fields[place.name])
                file.write(bytes(-place.nbytes % BLOCK_BYTES))
            starts.append(file.nbytes)
        file.write(bytes(2 * BLOCK_BYTES))
    return starts


def remaining(window: Window, keys: Collection[str]) -> Iterator[Span]:
    """Yield the runs of an archive without the members of samples that have other keys. Raises: as `members`."""
    start = at = 0
    for member in members(window.read, window.nbytes, window.name, partial(plain_members, window)):
        end = member.offset + member.nbytes + -member.nbytes % BLOCK_BYTES
        if (told := named(member.name)) is not None and told[0] not in keys:
            stop = _behind_globals(window, at, member.header)
            if stop > start:
                yield Span(start, stop - start)
            start = end
        at = end
    yield Span(start, window.nbytes - start)


def _behind_globals(window: Window, at: int, header: int) -> int:
    """Return the first byte behind the headers of pax that are of all members that follow, in front of a member's."""
    while at < header and (block := window.read(at, BLOCK_BYTES))[156:157] == b"g":
        nbytes = int(block[124:135], 8)
        at += BLOCK_BYTES + nbytes + -nbytes % BLOCK_BYTES
    return at
