"""Raw objects of read formats where they landed, and the samples that an importer makes of them."""

from collections.abc import Iterator
from typing import cast

from loader.dataset.columnar.choices import Options
from loader.dataset.columnar.column_names import duplicate_key
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.names import key_hash
from loader.dataset.writing.spill import Sample
from loader.errors import PenstockError, Throttled, Transient
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.formats import FORMATS, importer_named
from penstock.formats.importing.importer import Importer, Readable
from penstock.formats.importing.read_units import ReadUnit, UnitReader
from penstock.formats.registration.selection import live_files

from ...joined_objects import JoinedObjects
from ...source_formats import JOINED, companions
from .sample_facts import OWN_COLUMNS
from .walked_objects import not_of, once_a_batch


class ReadPlace:
    """Raw objects of one format where they landed."""

    def __init__(self, files: Store, format: str, options: Options) -> None:
        """Costs a listing where others of the place tell of an object. files: their store. Raises: StoreError."""
        found = importer_named(format)
        assert found is not None, format
        self._importer: Importer = found
        joined = JoinedObjects(files, format, options) if format in JOINED else None
        self.landing = cast(Store, joined or files)
        self._files, self._format, self._options = files, format, options
        self.is_partitioned = FORMATS[format].is_partitioned
        self._all: Readable | PenstockError | None = None
        self._keys = frozenset[str]()
        self.has_members = False
        """True where an object was read whose JSON documents become columns."""
        self.members = JsonMembers()
        """Notes on values of JSON documents that became no column, of all objects that were read."""
        if companions(format):
            try:
                self._all = (
                    joined.readable()
                    if joined
                    else self._importer.find_objects(
                        files, live_files(files, format, list(list_place(files))), options
                    )
                )
                self._keys = frozenset(info.key for info in self._all.infos)
            except (Throttled, Transient):
                raise
            except PenstockError as error:
                self._all = error

    def readable(self, info: ObjectInfo) -> Readable:
        """Return the reader of an object. Raises: as the format; Unusable where it is not of the format."""
        if isinstance(self._all, PenstockError):
            raise self._all
        found = self._all or self._importer.find_objects(self._files, [info], self._options)
        if not (info.key in self._keys if self._all else found.infos):
            raise not_of(self._format)
        if found.members is not None:
            self.has_members = True
            found.members.leave_out(self._options.without, OWN_COLUMNS, self.members)
        return found

    def has_samples(self, info: ObjectInfo) -> bool:
        """Read an object to its end; return whether it holds a sample. Raises: as `samples`."""
        return sum(1 for _ in self.samples(info)) > 0

    def samples(self, info: ObjectInfo, readable: Readable | None = None) -> Iterator[Sample]:
        """Yield the samples of an object, checked. readable: its reader, where the caller has it.

        Raises: as the format; Unusable; DuplicateKey.
        """
        readable, seen = readable or self.readable(info), set[bytes]()
        reader = UnitReader(self._files, readable, self._options, (), [])
        for sample in reader(ReadUnit(info.key, list(readable.runs(info)))):
            if (hashed := key_hash(sample.key)) in seen:
                raise duplicate_key(sample.key, info.key)
            seen.add(hashed)
            yield sample


read_place = once_a_batch(ReadPlace)
