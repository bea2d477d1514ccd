"""WebDataset: register and export archives, and import compressed ones.

A member is `<key>.<field>`: the key ends at the file name's first dot, field names become lower case. A sample's
members may be anywhere in an archive, but are consecutive in a compressed one. Values of the member `json` become
metadata columns. An export is one archive per part, with metadata as a `.json` member.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from loader.dataset.columnar.json_members import FIELD, MOST_BYTES, JsonColumns, JsonMembers
from loader.dataset.shards.tar_headers import member_header
from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.storage import ByteRange, ObjectInfo, Store

from ..exporter import ExportSelection, Loss, Outbox, WorkUnit, metadata_json
from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.exported import MEMBERS, Exported, SampleColumns, find_export, metadata_member
from ..reading.object_file import ByteStream, ForwardReader, Neighbours, open_object
from ..reading.sample import NO_METADATA, ForeignSample, ForeignTable, FoundObjects
from .field_names import MACOS, FieldNames, is_of_macos
from .tar_headers import (
    BLOCK_BYTES,
    HEADER_BYTES,
    TarMember,
    TarMembers,
    iterate_members,
    members,
    walk,
)

OBJECTS_PER_SHARD = 1
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_PLAIN = re.compile(r"(?:(?!__|\./)(?:[^\n]*/)?[^./\n]+\n)*")
"""Keys, each with a line feed, that `named` returns unchanged."""
_SKIPPED = re.compile(r"__[^/]*__($|/)")
_PACKED = re.compile(r"\.(tgz|tbz2|txz|tzst|tar\.[a-z0-9]+)$")
"""Endings of compressed archives, and of files that accompany archives."""
_MAGIC = re.compile(
    rb"\x1f\x8b|BZh[1-9]|\xfd7zXZ\0|\x28\xb5\x2f\xfd|\x04\x22\x4d\x18|LZIP|\x1f\x9d|\x5d\0\0|\x89LZO"
)
"""Magic numbers of gzip, bzip2, xz, zstd, lz4, lzip, compress, lzma and lzop."""
_COMPRESSED = {"tgz", "tbz2", "txz", "tzst", "tar.gz", "tar.bz2", "tar.xz", "tar.zst"}
_ENDING = f".{FIELD}"
LOOKED_AT = 8
"""Most objects per ending whose first bytes are checked."""


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the archives. Raises: InvalidStore for compressed ones.

    Costs a request for each of the first `LOOKED_AT` objects per ending that may be compressed.
    """
    _check_packed(store, infos)
    exported = find_export(store, infos, "webdataset", "energon")
    members = None
    if not exported:
        members = JsonMembers()
    return FoundObjects(
        [info for info in infos if info.key.lower().endswith(".tar")],
        partial(samples, store, exported, Neighbours(), FieldNames(), members=members),
        members=members,
        seals=True,
    )


def _check_packed(store: Store, infos: Sequence[ObjectInfo]) -> None:
    endings = dict[str, list[ObjectInfo]]()
    for info in infos:
        if match := _PACKED.search(info.key.lower()):
            endings.setdefault(match[1], []).append(info)
    for ending, objects in endings.items():
        for info in [info for info in objects if info.nbytes][:LOOKED_AT]:
            data = store.get_range(info.key, 0, min(info.nbytes, BLOCK_BYTES)).data
            many = f"{store.url}/{info.key} ({len(objects)} such)"
            if _MAGIC.match(data):
                message = (
                    f"{many} is compressed: no member can be read by itself. Unpack the archives, leave "
                    "them out (--exclude), or import them: penstock import webdataset-compressed"
                )
                raise InvalidStore(message, what="compression", where=many, accepted="a tar archive")
            if ending in _COMPRESSED and data[257:262] == b"ustar":
                message = (
                    f"{many} is an uncompressed archive, despite its name: rename it to .tar, or leave it out "
                    "(--exclude)"
                )
                raise InvalidStore(message, what="name", where=many, accepted=".tar")


def samples(
    store: Store,
    exported: Exported | None,
    neighbours: Neighbours,
    field_names: FieldNames,
    info: ObjectInfo,
    members: JsonMembers | None = None,
) -> Iterator[ForeignSample | ForeignTable]:
    """Yield an archive's samples by first member, or one table if all have the same fields.

    Raises: InvalidSample for a duplicate member.
    """
    reader = ForwardReader(store, info, neighbours=neighbours)
    try:
        if exported:
            yield from archive_samples(reader, exported, None, field_names, lower=True)
            return
        names, places = list[str](), list[int]()
        documents = JsonDocuments(reader, members, lower=True)
        for run in walk(reader):
            names += run.names
            places += run.places
            documents.read(run)
        if (table := _table(names, places, reader.crcs())) is not None:
            for field in table.fields:
                field_names.add(field, f"{table.keys[0]}.{field}")
            yield table._replace(metadata=documents.table()) if FIELD in table.fields else table
        else:
            members_there = iterate_members(names, places)
            yield from _group_members(
                reader, members_there, None, field_names, lower=True, documents=documents
            )
    finally:
        reader.close()


def _table(names: list[str], places: list[int], crcs: Sequence[int]) -> ForeignTable | None:
    """Return the members as a table, None unless all samples have the same fields in the same order."""
    key_and_field = None
    if names:
        key_and_field = split_member_name(names[0])
    if key_and_field is None:
        return None
    first_key, first_field = key_and_field
    n_fields = next((n for n, name in enumerate(names) if not name.startswith(f"{first_key}.")), len(names))
    # Guess the table from the first sample's members and each sample's first member, then compare all names with it.
    fields = [name[len(first_key) + 1 :] for name in names[:n_fields]]
    keys = [name[: -len(first_field) - 1] for name in names[::n_fields]] if n_fields else []
    key_lines = "\n".join([*keys, ""])
    is_table = (
        names == [f"{key}.{field}" for key in keys for field in fields]
        and len(set(keys)) == len(keys)
        and len({field.lower() for field in fields}) == n_fields
        and not any("/" in field for field in fields)
        and _PLAIN.fullmatch(key_lines)
        and key_lines.count("\n") == len(keys)  # no key has a line feed
    )
    return ForeignTable(keys, tuple(field.lower() for field in fields), places, crcs) if is_table else None


class JsonDocuments:
    def __init__(self, reader: ForwardReader, members: JsonMembers | None, *, lower: bool) -> None:
        """members: the import's JSON options, or None. lower: True to lower-case field names."""
        self._reader, self._lower, self._members = reader, lower, members
        self._columns, self._starts = members.columns() if members else None, list[int]()

    def note(self, what: str, member: str) -> None:
        """Note a member that is not a field."""
        if self._members is not None:
            self._members.note(what, f"{member!r} of {self._reader.name}")

    def read(self, run: TarMembers) -> None:
        if self._columns is None or _ENDING not in "\n".join(run.names).lower():
            return  # one test for all names, because most archives have no JSON
        for at in [at for at, name in enumerate(run.names) if name[-len(_ENDING) :].lower() == _ENDING]:
            key_and_field = split_member_name(run.names[at])
            if (
                key_and_field is not None
                and (key_and_field[1].lower() if self._lower else key_and_field[1]) == FIELD
            ):
                self.add(ByteRange(*run.places[2 * at : 2 * at + 2]), self._reader.aside)

    def add(self, at: ByteRange, read: Callable[[int, int], bytes]) -> None:
        if self._columns is not None:
            self._starts.append(at.offset)
            self._columns.add(read(*at) if at.nbytes <= MOST_BYTES else None, self._reader.name, at.offset)

    def table(self) -> pa.Table | None:
        """Return one row per JSON member in order; None if JSON is skipped."""
        return self._columns.table() if self._columns is not None else None

    def rows(self) -> dict[int, dict[str, Any]]:
        """Return each JSON member's offset -> its values."""
        table = self.table()
        return {} if table is None else dict(zip(self._starts, table.to_pylist(), strict=True))


def archive_samples(
    reader: ForwardReader,
    exported: Exported | None,
    members: JsonMembers | None,
    field_names: FieldNames,
    *,
    lower: bool,
) -> Iterator[ForeignSample]:
    """Yield an archive's samples. lower: True to lower-case field names."""
    documents = JsonDocuments(reader, members, lower=lower)

    def walked() -> Iterator[TarMember]:
        for run in walk(reader):
            documents.read(run)
            yield from iterate_members(run.names, run.places)

    return _group_members(reader, walked(), exported, field_names, lower=lower, documents=documents)


def _group_members(
    reader: ForwardReader,
    walked: Iterable[TarMember],
    exported: Exported | None,
    field_names: FieldNames,
    *,
    lower: bool,
    documents: JsonDocuments | None = None,
) -> Iterator[ForeignSample]:
    fields_of: dict[str, dict[str, ByteRange]] = {}
    restored: dict[str, SampleColumns] = {}
    starts = list[int]()
    member_of = None
    if exported:
        member_of = metadata_member(exported.fields)
    for member in walked:
        starts.append(member.offset)
        if (key_and_field := split_member_name(member.name)) is None:
            if documents is not None and is_of_macos(member.name):
                documents.note(MACOS, member.name)
            continue
        key, field = key_and_field[0], key_and_field[1].lower() if lower else key_and_field[1]
        field_names.add(field, member.name)
        if (fields := fields_of.get(key)) is None:
            fields = fields_of[key] = {}
        if field in fields:
            before = fields[field].offset - BLOCK_BYTES
            raise InvalidSample(
                f"{reader.name}, byte {member.header}: member {member.name!r} is also at byte {before}: "
                "webdataset refuses such an archive too. Write it again with one of them",
                what=member.name,
                where=f"{reader.name}, byte {member.header}",
                given=before,
                accepted="one member of a name",
            )
        fields[field] = ByteRange(member.offset, member.nbytes)
        if exported and field == member_of:
            restored[key] = read_metadata(reader, exported, fields[field], key)
    crc_at = dict(zip(starts, reader.crcs(), strict=False))  # one checksum per member, or none at all
    rows = documents.rows() if documents else {}
    for key, fields in fields_of.items():
        if exported and member_of:
            fields.pop(member_of, None)
        crcs = {name: crc_at[at.offset] for name, at in fields.items()} if crc_at else NO_METADATA
        metadata, source = restored.get(key, (NO_METADATA, NO_METADATA))
        if rows and FIELD in fields:
            metadata = rows.get(fields[FIELD].offset, NO_METADATA)
        yield ForeignSample(key, fields, metadata, source, crcs)


def split_member_name(name: str) -> tuple[str, str] | None:
    """Return a member's (key, field); None for files of webdataset and macOS, and names without an extension."""
    if name.startswith("__") and _SKIPPED.match(name):
        return None
    # Three quick tests first, because nearly no name passes one.
    if ("._" in name or ".DS" in name or "__MAC" in name) and is_of_macos(name):
        return None
    begin = name.rfind("/") + 1
    dot = name.find(".", begin)
    if dot > begin:  # nearly all names
        return name[:dot].removeprefix("./"), name[dot + 1 :]
    match = _KEY.fullmatch(name)
    return (match[1].removeprefix("./"), match[2]) if match else None


def read_metadata(reader: ForwardReader, exported: Exported, at: ByteRange, key: str) -> SampleColumns:
    """Return a sample's columns. at: its metadata member."""
    where = f"{reader.name}, byte {at.offset}"
    if at.nbytes > HEADER_BYTES:
        raise Corrupt(
            f"{where}: metadata of {key!r} has {at.nbytes:,} bytes; at most {HEADER_BYTES:,} are read"
        )
    return exported.read(reader.read(*at), where, key)


OPTIONS = frozenset[str]()
SAMPLE_BYTES = 2**30
"""Largest sample in memory, in bytes."""
_PACKED_NAME = re.compile(r"\.(?:tar\.(gz|bz2|xz|zst)|(tgz|tbz2|txz))$")
_CODECS = {"gz": "gzip", "tgz": "gzip", "tbz2": "bz2", "txz": "xz", "zst": "zstd"}
"""File name ending -> Arrow's name, if it differs."""


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    archives = [info for info in infos if _PACKED_NAME.search(info.key.lower())]
    members = JsonMembers()
    members.leave_out(options.without)
    read = partial(_samples, store, members, FieldNames())
    return Readable(archives, lambda info: [ImportRun(info, nbytes=info.nbytes)], read, members=members)


def _samples(
    store: Store, members: JsonMembers, field_names: FieldNames, run: ImportRun
) -> Iterator[ReadSample]:
    match = _PACKED_NAME.search(run.info.key.lower())
    assert match is not None  # `find_readable` chose the object by it
    ending = match[match.lastindex or 0]
    with open_object(store, run.info) as file:
        stream = ByteStream(file, _CODECS.get(ending, ending), run.info.nbytes)
        yield from stream_samples(stream, field_names, members, members.columns())


def stream_samples(
    stream: ByteStream, field_names: FieldNames, documents: JsonMembers, columns: JsonColumns | None
) -> Iterator[ReadSample]:
    """Yield an archive's samples in one forward pass. documents: notes other members. columns: of JSON, or None."""
    key, fields, nbytes = "", dict[str, bytes](), 0  # of the sample that is being read
    keys = set[str]()  # of all samples so far
    metadata = NO_METADATA
    blocks = _Blocks(stream)
    for member in members(blocks.read, stream.most, stream.name):
        if (key_and_field := split_member_name(member.name)) is None:
            if is_of_macos(member.name):
                documents.note(MACOS, f"{member.name!r} of {stream.name}")
            continue
        where = f"{stream.name}, byte {member.header} of the archive"
        if key_and_field[0] != key or not fields:  # the first member of the next sample
            if fields:
                yield ReadSample(key, fields, metadata)
            key, fields, nbytes, metadata = key_and_field[0], {}, 0, NO_METADATA
            if key in keys:
                raise InvalidSample(
                    f"{where}: members of sample {key!r} lie apart; unpack the archive, and import it as webdataset"
                )
            keys.add(key)
        field = key_and_field[1].lower()
        field_names.add(field, member.name)
        nbytes += member.nbytes
        if nbytes > SAMPLE_BYTES:
            raise InvalidSample(
                f"{where}: sample {key!r} has more than {SAMPLE_BYTES:,} bytes; unpack the archive, and import it as "
                "webdataset"
            )
        if field in fields:
            raise InvalidSample(
                f"{where}: member {member.name!r} is there twice: webdataset refuses such an archive too. Write it "
                "again with one of them"
            )
        fields[field] = data = blocks.read(member.offset, member.nbytes)
        if field == FIELD and columns is not None:
            metadata = columns.row(data if len(data) <= MOST_BYTES else None, stream.name, member.offset)
    stream.skip(stream.most)  # reaches the checksum of the compressed stream
    if fields:
        yield ReadSample(key, fields, metadata)


class _Blocks:
    """Reads at increasing offsets; keeps the last block of one header, since the check of the end reads it again."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self._at, self._header = stream, 0, b""

    def read(self, offset: int, nbytes: int) -> bytes:
        if self._header and offset == self._at:
            return self._header + self._stream.read(nbytes - BLOCK_BYTES)
        self._stream.skip(offset - self._stream.at)
        data = b""
        if self._stream.at == offset:
            data = self._stream.read(nbytes)
        if len(data) < nbytes:
            raise Corrupt(
                f"{self._stream.name}, byte {offset} of the archive: it is cut, {len(data):,} of {nbytes:,} bytes are "
                "there"
            )
        self._at, self._header = offset, data if nbytes == BLOCK_BYTES else b""
        return data


def losses(selection: ExportSelection) -> list[Loss]:
    """Return field names that webdataset changes, and metadata whose member name is a field."""
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


def members_end(members: list[MemberPlace], start: int) -> int:
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
