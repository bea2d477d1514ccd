"""WebDataset exports: one tar archive per part, with metadata as a `.json` member."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from loader.dataset.shards.shard import BLOCK_BYTES, member_header
from loader.storage import ByteRange

from ..exporter import ExportSelection, Loss, Outbox, WorkUnit, metadata_json
from ..reading.exported import MEMBERS, metadata_member
from ..reading.object_file import ObjectWindow
from .tar_headers import members, plain_members
from .webdataset import named


def losses(selection: ExportSelection) -> list[Loss]:
    """Field names that webdataset changes, and metadata whose member name is a field."""
    out = [
        Loss(f"field {name!r}", f"webdataset reads extensions in lower case: it becomes {name.lower()!r}")
        for name in selection.fields
        if name != name.lower()
    ]
    return out + metadata_loss(selection)


def units(selection: ExportSelection) -> list[WorkUnit]:
    return selection.by_part()


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    put_archive(selection, unit, outbox, f"{unit.number:06d}.tar")
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write nothing: archives need no index."""


class MemberPlace(NamedTuple):
    name: str
    """Field name."""
    header: bytes
    """Complete tar header."""
    offset: int
    """Content's offset."""
    nbytes: int
    """Content's length in bytes."""


def metadata_loss(selection: ExportSelection) -> list[Loss]:
    """Return a loss if both names of the metadata member are fields."""
    if not selection.columns or metadata_member(selection.fields) is not None:
        return []
    names = " and ".join(map(repr, MEMBERS))
    return [Loss("metadata", f"its member would be one of {names}, which are fields: it is left out")]


def places(key: str, sizes: Mapping[str, int], at: int) -> list[MemberPlace]:
    """Return a sample's members by name, from byte `at` on. sizes: field -> nbytes."""
    out = []
    for name, nbytes in sorted(sizes.items()):
        header = member_header(f"{key}.{name}", nbytes)
        at += len(header)
        out.append(MemberPlace(name, header, at, nbytes))
        at += nbytes + -nbytes % BLOCK_BYTES
    return out


def end_of(members: list[MemberPlace], start: int) -> int:
    return members[-1].offset + members[-1].nbytes + -members[-1].nbytes % BLOCK_BYTES if members else start


def put_archive(selection: ExportSelection, unit: WorkUnit, outbox: Outbox, name: str) -> list[int]:
    """Return each written sample's offset, and the end of the last."""
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


def remaining(window: ObjectWindow, keys: Collection[str]) -> Iterator[ByteRange]:
    """Yield an archive's byte ranges without the members of samples not in `keys`."""
    start = at = 0
    for member in members(window.read, window.nbytes, window.name, partial(plain_members, window)):
        end = member.offset + member.nbytes + -member.nbytes % BLOCK_BYTES
        if (key_and_field := named(member.name)) is not None and key_and_field[0] not in keys:
            stop = _behind_globals(window, at, member.header)
            if stop > start:
                yield ByteRange(start, stop - start)
            start = end
        at = end
    yield ByteRange(start, window.nbytes - start)


def _behind_globals(window: ObjectWindow, at: int, header: int) -> int:
    """Return the offset after the global pax headers before a member, which apply to all later members."""
    while at < header and (block := window.read(at, BLOCK_BYTES))[156:157] == b"g":
        nbytes = int(block[124:135], 8)
        at += BLOCK_BYTES + nbytes + -nbytes % BLOCK_BYTES
    return at
