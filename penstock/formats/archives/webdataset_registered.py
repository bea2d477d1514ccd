"""WebDataset: tar archives of members `<key>.<field>`, read where they lie by their headers.

Keys and fields are those that the webdataset package sees: the key ends at the first dot of the file's name, and
fields are in lower case. Members of a sample may lie anywhere in their archive; webdataset takes neighbours for one.
The content of the member `json` is read too, as its values become columns.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from loader.dataset.columnar.json_members import FIELD, MOST_BYTES, JsonMembers
from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.storage import ObjectInfo, Span, Store

from ..reading.exported import Exported, Told, exported_at, metadata_member
from ..reading.sample import NO_METADATA, ForeignSample, ForeignTable, FoundObjects
from ..reading.window import Neighbours, Window
from .tar_headers import BLOCK_BYTES, HEADER_BYTES, Member, Members, each_of, walk

OBJECTS_PER_SHARD = 1
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_PLAIN = re.compile(r"(?:(?!__|\./)(?:[^\n]*/)?[^./\n]+\n)*")
"""Keys, each with an end of line behind it, that `named` gives of their members in whatever field."""
_SKIPPED = re.compile(r"__[^/]*__($|/)")
_PACKED = re.compile(r"\.(tgz|tbz2|txz|tzst|tar\.[a-z0-9]+)$")
"""Names of compressed archives, and of files beside archives: their first bytes say which."""
_MAGIC = re.compile(
    rb"\x1f\x8b|BZh[1-9]|\xfd7zXZ\0|\x28\xb5\x2f\xfd|\x04\x22\x4d\x18|LZIP|\x1f\x9d|\x5d\0\0|\x89LZO"
)
"""gzip, bzip2, xz, zstd, lz4, lzip, compress, lzma and lzop."""
_COMPRESSED = {"tgz", "tbz2", "txz", "tzst", "tar.gz", "tar.bz2", "tar.xz", "tar.zst"}
_ENDING = f".{FIELD}"
LOOKED_AT = 8
"""Objects of a name's ending whose first bytes are looked at."""


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the archives among the objects of a place.

    Files beside archives, such as `000.tar.idx` and `000.tar.md5`, are left alone. Costs a request for each of the
    first `LOOKED_AT` of each such ending. Raises: InvalidStore for compressed archives; StoreError.
    """
    _check_packed(store, infos)
    exported = exported_at(store, infos, "webdataset", "energon")
    members = None if exported else JsonMembers()
    return FoundObjects(
        [info for info in infos if info.key.lower().endswith(".tar")],
        partial(samples, store, exported, Neighbours(), members=members),
        members=members,
        seals=True,
    )


def _check_packed(store: Store, infos: Sequence[ObjectInfo]) -> None:
    """Raise InvalidStore for archives that are compressed, or have the name of such."""
    endings = dict[str, list[ObjectInfo]]()
    for info in infos:
        if found := _PACKED.search(info.key.lower()):
            endings.setdefault(found[1], []).append(info)
    for ending, some in endings.items():
        for one in [info for info in some if info.nbytes][:LOOKED_AT]:
            data = store.get_range(one.key, 0, min(one.nbytes, BLOCK_BYTES)).data
            many = f"{store.url}/{one.key} ({len(some)} such)"
            if _MAGIC.match(data):
                raise InvalidStore(
                    f"{many} is compressed: no member can be read by itself. Unpack the archives, leave "
                    "them out (--exclude), or import them: penstock import webdataset-compressed"
                )
            if ending in _COMPRESSED and data[257:262] == b"ustar":
                raise InvalidStore(
                    f"{many} is an archive that is not compressed, whatever its name says: rename it to .tar, or leave "
                    "it out (--exclude)"
                )


def samples(
    store: Store,
    exported: Exported | None,
    neighbours: Neighbours,
    info: ObjectInfo,
    members: JsonMembers | None = None,
) -> Iterator[ForeignSample | ForeignTable]:
    """Yield the samples of an archive, in the order of their first members; in one table where their fields are alike.

    Raises: as `tar_headers.members`; InvalidSample for a member that comes twice; Corrupt for metadata that is none.
    """
    window = Window(store, info, neighbours=neighbours)
    try:
        if exported:
            yield from samples_in(window, exported, None, lower=True)
            return
        names, places = list[str](), list[int]()
        told = ToldMembers(window, members, lower=True)
        for found in walk(window):
            names += found.names
            places += found.places
            told.read(found)
        if (table := _table(names, places, window.crcs())) is not None:
            yield table._replace(metadata=told.table()) if FIELD in table.fields else table
        else:
            yield from _grouped(window, each_of(names, places), None, lower=True, told=told)
    finally:
        window.close()


def _table(names: list[str], places: list[int], crcs: Sequence[int]) -> ForeignTable | None:
    """Return the samples of an archive; None where some have other fields, or the same in another order."""
    told = named(names[0]) if names else None
    if told is None:
        return None
    first, ending = told[0], f".{told[1]}"
    n = next((i for i, name in enumerate(names) if not name.startswith(f"{first}.")), len(names))
    fields = [name[len(first) + 1 :] for name in names[:n]]
    keys = [name[: -len(ending)] for name in names[::n]] if n else []
    alike = (
        names == [f"{key}.{field}" for key in keys for field in fields]
        and len(set(keys)) == len(keys)
        and len({field.lower() for field in fields}) == n
        and not any("/" in field for field in fields)
        and _PLAIN.fullmatch(every := "\n".join([*keys, ""]))
        and every.count("\n") == len(keys)
    )
    return ForeignTable(keys, tuple(field.lower() for field in fields), places, crcs) if alike else None


class ToldMembers:
    """Values of the JSON documents of an archive."""

    def __init__(self, window: Window, members: JsonMembers | None, *, lower: bool) -> None:
        """members: None reads nothing. lower: fields are in lower case."""
        self._window, self._lower = window, lower
        self._columns, self._starts = members.columns() if members else None, list[int]()

    def read(self, found: Members) -> None:
        """Read the documents among members that the walk has just found. Raises: Changed; StoreError."""
        if self._columns is None or _ENDING not in "\n".join(found.names).lower():
            return  # all names at once: most archives have no document
        for at in [at for at, name in enumerate(found.names) if name[-len(_ENDING) :].lower() == _ENDING]:
            told = named(found.names[at])
            if told is not None and (told[1].lower() if self._lower else told[1]) == FIELD:
                self.add(Span(*found.places[2 * at : 2 * at + 2]), self._window.aside)

    def add(self, at: Span, read: Callable[[int, int], bytes]) -> None:
        """Read a document. Raises: as `read`."""
        if self._columns is not None:
            self._starts.append(at.offset)
            self._columns.add(read(*at) if at.nbytes <= MOST_BYTES else None, self._window.name, at.offset)

    def table(self) -> pa.Table | None:
        """Return a row for each document, in order; None without columns."""
        return self._columns.table() if self._columns is not None else None

    def rows(self) -> dict[int, dict[str, Any]]:
        """Return first byte of a document -> its values."""
        table = self.table()
        return {} if table is None else dict(zip(self._starts, table.to_pylist(), strict=True))


def samples_in(
    window: Window, exported: Exported | None, members: JsonMembers | None, *, lower: bool
) -> Iterator[ForeignSample]:
    """Yield the samples of an archive by its headers. lower: fields are in lower case. Raises: as `samples`."""
    told = ToldMembers(window, members, lower=lower)

    def walked() -> Iterator[Member]:
        for found in walk(window):
            told.read(found)
            yield from each_of(found.names, found.places)

    return _grouped(window, walked(), exported, lower=lower, told=told)


def _grouped(
    window: Window,
    walked: Iterable[Member],
    exported: Exported | None,
    *,
    lower: bool,
    told: ToldMembers | None = None,
) -> Iterator[ForeignSample]:
    """Yield the samples of members. told: the values of their JSON documents. Raises: as `samples`."""
    found: dict[str, dict[str, Span]] = {}
    restored: dict[str, Told] = {}
    starts = list[int]()
    member_of = metadata_member(exported.fields) if exported else None
    for member in walked:
        starts.append(member.offset)
        if (told_name := named(member.name)) is None:
            continue
        key, field = told_name[0], told_name[1].lower() if lower else told_name[1]
        if (fields := found.get(key)) is None:
            fields = found[key] = {}
        if field in fields:
            before = fields[field].offset - BLOCK_BYTES
            raise InvalidSample(
                f"{window.name}, byte {member.header}: member {member.name!r} is also at byte {before}: "
                "webdataset refuses such an archive too. Write it again with one of them"
            )
        fields[field] = Span(member.offset, member.nbytes)
        if exported and field == member_of:
            restored[key] = metadata_at(window, exported, fields[field], key)
    crc_at = dict(zip(starts, window.crcs(), strict=False))  # there is one for each, or none
    rows = told.rows() if told else {}
    for key, fields in found.items():
        if exported and member_of:
            fields.pop(member_of, None)
        crcs = {name: crc_at[at.offset] for name, at in fields.items()} if crc_at else NO_METADATA
        metadata, source = restored.get(key, (NO_METADATA, NO_METADATA))
        if rows and FIELD in fields:
            metadata = rows.get(fields[FIELD].offset, NO_METADATA)
        yield ForeignSample(key, fields, metadata, source, crcs)


def named(name: str) -> tuple[str, str] | None:
    """Return key and field of a member; None for webdataset's own, and for a file without an extension."""
    if name.startswith("__") and _SKIPPED.match(name):
        return None
    begin = name.rfind("/") + 1
    dot = name.find(".", begin)
    if dot > begin:  # nearly all are so
        return name[:dot].removeprefix("./"), name[dot + 1 :]
    found = _KEY.fullmatch(name)
    return (found[1].removeprefix("./"), found[2]) if found else None


def metadata_at(window: Window, exported: Exported, at: Span, key: str) -> Told:
    """Return metadata and provenance of a sample from their member. Raises: Corrupt."""
    where = f"{window.name}, byte {at.offset}"
    if at.nbytes > HEADER_BYTES:
        raise Corrupt(
            f"{where}: metadata of {key!r} has {at.nbytes:,} bytes; at most {HEADER_BYTES:,} are read"
        )
    return exported.read(window.read(*at), where, key)
