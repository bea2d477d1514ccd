"""A source whose raw objects an importer reads; and the audit of objects that contain samples."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from loader.dataset.columnar.choices import ColumnarOptions
from loader.dataset.columnar.column_names import duplicate_key
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.names import key_hash
from loader.dataset.writing.spill import Sample
from loader.errors import PenstockError, Throttled, Transient
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.formats import FORMATS, importer_named
from penstock.formats.importer import Importer, Readable
from penstock.formats.importing.read_units import ReadUnit, UnitReader
from penstock.formats.registration.selection import live_files

from ...joined_objects import JoinedObjects
from ...media.media_table import media_row
from ...media.unit import dropped
from ...source_formats import JOINED, companions, read_formats
from .sample_facts import OWN_COLUMNS, Row
from .walked_objects import landed_info, not_of, once_a_batch, refused_where_unreadable, walked_place


class ReadPlace:
    """Raw objects of a read format, in their source."""

    def __init__(self, files: Store, format: str, options: ColumnarOptions) -> None:
        """Open the source. Costs a listing if other files describe an object."""
        importer = importer_named(format)
        assert importer is not None, format
        self._importer: Importer = importer
        joined = JoinedObjects(files, format, options) if format in JOINED else None
        self.landing = cast(Store, joined or files)
        self._files, self._format, self._options = files, format, options
        self.is_partitioned = FORMATS[format].is_partitioned
        self._all: Readable | PenstockError | None = None
        self._keys = frozenset[str]()
        self.has_members = False
        """True once an object was read whose JSON documents become columns."""
        self.members = JsonMembers()
        """JSON values that became no column, over all objects read."""
        if companions(format):
            try:
                self._all = (
                    joined.readable()
                    if joined
                    else self._importer.find_readable(
                        files, live_files(files, format, list(list_place(files))), options
                    )
                )
                self._keys = frozenset(info.key for info in self._all.infos)
            except (Throttled, Transient):
                raise
            except PenstockError as error:
                self._all = error

    def readable(self, info: ObjectInfo) -> Readable:
        """Return an object's reader. Raises: Unusable if the object is not of the format; errors of the format."""
        if isinstance(self._all, PenstockError):
            raise self._all
        readable = self._all or self._importer.find_readable(self._files, [info], self._options)
        if not (info.key in self._keys if self._all else readable.infos):
            raise not_of(self._format)
        if readable.members is not None:
            self.has_members = True
            readable.members.leave_out(self._options.without, OWN_COLUMNS, self.members)
        return readable

    def has_samples(self, info: ObjectInfo) -> bool:
        """Read an object to its end; return whether it has a sample."""
        return sum(1 for _ in self.samples(info)) > 0

    def samples(self, info: ObjectInfo, readable: Readable | None = None) -> Iterator[Sample]:
        """Yield an object's samples, checked. readable: its reader, if the caller already has it.

        Raises: Unusable; DuplicateKey; errors of the format.
        """
        readable, seen = readable or self.readable(info), set[bytes]()
        reader = UnitReader(self._files, readable, self._options, (), [])
        for sample in reader(ReadUnit(info.key, list(readable.runs(info)))):
            if (hashed := key_hash(sample.key)) in seen:
                raise duplicate_key(sample.key, info.key)
            seen.add(hashed)
            yield sample


read_place = once_a_batch(ReadPlace)


def audit_samples(landing: Store, raw: Row, format: str, choices: Mapping[str, Any], batch: str) -> Row:
    """Return an object's row of `media`, after walking or reading its samples to the end.

    choices: reader options, as `ColumnarOptions.to_json`. batch: id of one audit, which lists a source only once.

    Raises: Unusable; Fault; Throttled; Transient.
    """
    with refused_where_unreadable("probe"):
        place_of = read_place if format in read_formats() else walked_place
        source = place_of(batch, landing, format, ColumnarOptions.from_json(dict(choices)))
        if not source.has_samples(landed_info(source.landing, raw)):
            raise dropped("probe", "no_samples", "it holds no sample")
    facts = {"mime": raw["mime"], "kind": format, "nbytes": raw["nbytes"], "container": format}
    return media_row(facts) | {"key": raw["key"], "sha256": raw["sha256"]}
