"""Export WebDataset: a tar archive per part, with metadata as a `.json` member."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from loader.dataset.shards.shard import BLOCK_BYTES, member_header
from loader.storage import Span

from ..export_selection import ExportSelection, WorkUnit, metadata_json
from ..exporter import Loss, Outbox
from ..reading.exported import MEMBERS, metadata_member
from ..reading.window import ObjectWindow
from .tar_headers import members, plain_members
from .webdataset_registered import named


def losses(selection: ExportSelection) -> list[Loss]:
    """Return fields whose names webdataset changes, and metadata without a free name."""
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
    """Put nothing: archives need no index."""


class MemberPlace(NamedTuple):
    """A member's place in its archive."""

    name: str
    """Name of the field."""
    header: bytes
    """Bytes of its header."""
    offset: int
    """First byte of its content."""
    nbytes: int
    """Bytes of its content."""


def metadata_loss(selection: ExportSelection) -> list[Loss]:
    """Return metadata without a free name."""
    if not selection.columns or metadata_member(selection.fields) is not None:
        return []
    names = " and ".join(map(repr, MEMBERS))
    return [Loss("metadata", f"its member would be one of {names}, which are fields: it is left out")]


def places(key: str, sizes: Mapping[str, int], at: int) -> list[MemberPlace]:
    """Return the members of a sample that begins at byte `at`, sorted by name. sizes: field -> nbytes."""
    out = []
    for name, nbytes in sorted(sizes.items()):
        header = member_header(f"{key}.{name}", nbytes)
        at += len(header)
        out.append(MemberPlace(name, header, at, nbytes))
        at += nbytes + -nbytes % BLOCK_BYTES
    return out


def end_of(members: list[MemberPlace], start: int) -> int:
    """Return the offset of the byte behind a sample."""
    return members[-1].offset + members[-1].nbytes + -members[-1].nbytes % BLOCK_BYTES if members else start


def put_archive(selection: ExportSelection, unit: WorkUnit, outbox: Outbox, name: str) -> list[int]:
    """Put an archive; return the first byte of each sample, and the end of the last."""
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


def remaining(window: ObjectWindow, keys: Collection[str]) -> Iterator[Span]:
    """Yield the byte ranges of an archive without the members of other samples."""
    start = at = 0
    for member in members(window.read, window.nbytes, window.name, partial(plain_members, window)):
        end = member.offset + member.nbytes + -member.nbytes % BLOCK_BYTES
        if (key_and_field := named(member.name)) is not None and key_and_field[0] not in keys:
            stop = _behind_globals(window, at, member.header)
            if stop > start:
                yield Span(start, stop - start)
            start = end
        at = end
    yield Span(start, window.nbytes - start)


def _behind_globals(window: ObjectWindow, at: int, header: int) -> int:
    """Return the offset behind the global pax headers in front of a member, which apply to all later members."""
    while at < header and (block := window.read(at, BLOCK_BYTES))[156:157] == b"g":
        nbytes = int(block[124:135], 8)
        at += BLOCK_BYTES + nbytes + -nbytes % BLOCK_BYTES
    return at
