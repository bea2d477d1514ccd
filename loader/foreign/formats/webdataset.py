"""WebDataset: tar archives of members `<key>.<field>`, read where they lie by their headers alone.

Keys and fields are those that the webdataset package sees: the key ends at the first dot of the file's name, and
fields are in lower case. Members of a sample may lie anywhere in their archive; webdataset takes neighbours for one.
"""

import re
from collections.abc import Iterator
from functools import partial

from ...errors import InvalidSample, InvalidStore
from ...storage import ObjectInfo, Span, Store
from .sample import ForeignSample, Found
from .tar_headers import BLOCK_BYTES, members
from .window import Window

OBJECTS_PER_SHARD = 1
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_SKIPPED = re.compile(r"__[^/]*__($|/)")
_PACKED = re.compile(r"\.(tgz|tar\.[a-z0-9]+)$")


def look(store: Store, infos: list[ObjectInfo]) -> Found:
    """Return the archives among the objects of a place. Raises: InvalidStore for compressed ones."""
    packed = [info.key for info in infos if _PACKED.search(info.key.lower())]
    if packed:
        raise InvalidStore(
            f"{store.url}/{packed[0]} ({len(packed)} such) is compressed: no member can be read by itself. Unpack "
            "the archives, or copy their samples with a writer (root.write)"
        )
    return Found([info for info in infos if info.key.lower().endswith(".tar")], partial(samples, store))


def samples(store: Store, info: ObjectInfo) -> Iterator[ForeignSample]:
    """Yield the samples of an archive, in the order of their first members.

    Raises: as `tar_headers.members`; InvalidSample for a member that comes twice.
    """
    window = Window(store, info)
    try:
        found: dict[str, dict[str, Span]] = {}
        for member in members(window.read, window.nbytes, window.name):
            if _SKIPPED.match(member.name) or (named := _KEY.fullmatch(member.name)) is None:
                continue  # webdataset's own, and files without an extension: it passes over both
            key, field = named[1].removeprefix("./"), named[2].lower()
            fields = found.setdefault(key, {})
            if field in fields:
                before = fields[field].offset - BLOCK_BYTES
                raise InvalidSample(
                    f"{window.name}, byte {member.header}: member {member.name!r} is also at byte {before}: "
                    "webdataset refuses such an archive too. Write it again with one of them"
                )
            fields[field] = Span(member.offset, member.nbytes)
    finally:
        window.close()
    for key, fields in found.items():
        yield ForeignSample(key, fields)
