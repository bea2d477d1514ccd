"""Raw objects of several files, each read as the concatenation of its files; the key is the first file's."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from loader.errors import Changed, ObjectNotFound
from loader.storage import Blob, ObjectInfo, Store
from loader.storage.store import Refuse, list_place, log_refusals

from ..sources import JOINED, companions

if TYPE_CHECKING:
    from loader.dataset.columnar.choices import ColumnarOptions
    from penstock.formats.importer import Readable

    from ..sources import Source

_log = logging.getLogger(__name__)


def raw_store(place: Store, source: "Source") -> Store:
    """Return a store of the source's raw objects: `place` itself unless objects have several files."""
    if source.format not in JOINED:
        return place
    return cast(Store, JoinedObjects(place, source.format, source.choices))


class _Listed(NamedTuple):
    """One listing of the files."""

    infos: Sequence[ObjectInfo]
    """All files."""
    files: Mapping[str, Sequence[ObjectInfo]]
    """Key of an object -> its files, that one first."""
    waiting: Mapping[str, str]
    """Key of an incomplete object -> a missing file."""


class JoinedObjects:
    """Store of raw objects with several files. Thread-safe.

    A listing covers the whole source, and reads metadata that this process has not read; other methods use the newest
    one.
    """

    def __init__(
        self,
        place: Store,
        format: str,
        options: "ColumnarOptions",
    ) -> None:
        """Open the store over the files in `place`. options: the source's reader options."""
        self.place = place
        self._format = format
        self._options = options
        self._lock = threading.Lock()
        self._listed: _Listed | None = None  # the newest; None before the first
        self._readable: Readable | None = None  # of `_listed`; None until it is needed

    def __reduce__(self) -> tuple[object, ...]:
        return JoinedObjects, (self.place, self._format, self._options)

    @property
    def url(self) -> str:
        """URL of the files, without secrets."""
        return self.place.url

    @property
    def variables(self) -> Sequence[str]:
        """Environment variables that another process needs to open the store."""
        variables = getattr(self.place, "variables", ())
        return tuple(variables)

    def readable(self) -> "Readable":
        """Return a reader for the listed objects. Reads metadata. Raises: InvalidStore; StoreError."""
        from penstock.formats.registry import joining_importer

        listed = self._newest_listing()
        infos = list(listed.infos)
        with self._lock:
            if self._readable is None:
                importer = joining_importer(self._format)
                self._readable = importer.find_complete_objects(self.place, infos, self._options)
            return self._readable

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield complete objects, like `Store.list`. Raises: InvalidStore for unreadable metadata; StoreError."""
        return self.list_place(prefix, start_after or "", log_refusals(self.url))

    def list_place(
        self,
        prefix: str,
        start_after: str,
        refuse: Refuse,
        *,
        seek: bool = False,
        outside: bool = False,
    ) -> Iterator[ObjectInfo]:
        """List like `loader.storage.store.list_place`, but always the whole source."""
        from penstock.formats.importer import joined

        infos = tuple(list_place(self.place, refuse=refuse, outside=outside))
        companion = companions(self._format)
        if companion and all(companion.search(info.key) for info in infos):
            return  # nothing landed yet, or only metadata
        listed = self._read_names(infos)
        if listed.waiting:
            key, file = min(listed.waiting.items())
            why = "%s: %d objects wait for missing files, the first is %s, without %s"
            _log.warning(why, self.url, len(listed.waiting), key, file)
        for info in infos:
            key = info.key
            is_outside = key <= start_after or not key.startswith(prefix)
            if is_outside or key in listed.waiting:
                continue
            parts = listed.files.get(key, [info])
            if parts:  # a file that maps to none is no object
                yield joined(parts)

    list_from = list

    def head(self, key: str) -> ObjectInfo:
        """Return the current size and change token of an object's files. Raises: ObjectNotFound."""
        from penstock.formats.importer import joined

        infos = self._heads(key)
        return joined(infos)

    def newest_file(self, key: str) -> str:
        """Return the key of the object's most recently written file. Raises: ObjectNotFound."""
        infos = self._heads(key)
        newest = max(infos, key=lambda info: info.modified_us or 0)
        return newest.key

    def files(self, key: str) -> tuple[str, ...]:
        """Return the keys of the object's other files, from the newest listing."""
        others = self._files(key)[1:]
        return tuple(info.key for info in others)

    def get(self, key: str) -> Blob:
        """Return the bytes of one file. Raises: ObjectNotFound."""
        return self.place.get(key)

    def get_range(
        self,
        key: str,
        offset: int,
        nbytes: int,
        etag: str | None = None,
    ) -> Blob:
        """Return exactly `nbytes` bytes of an object from `offset`. Raises: Changed; StoreError."""
        from penstock.formats.importer import joined

        files = self._files(key)
        if not files:
            return self.place.get_range(key, offset, nbytes, etag)
        whole = joined(files)
        if etag not in (None, whole.etag):
            raise Changed(
                f"{self.url}/{key}: a file of it was replaced after its discovery, and it lands again; "
                f"{self.newest_file(key)} was written last",
                what=self.newest_file(key),
                where=f"{self.url}/{key}",
                given=etag,
                accepted=whole.etag,
            )
        parts = list[bytes]()
        file_start = 0  # in the object
        for file in files:
            # The part of the range that lies in this file, from its first byte.
            begin = max(0, offset - file_start)
            end = min(file.nbytes, offset + nbytes - file_start)
            if begin < end:
                part = self.place.get_range(file.key, begin, end - begin, file.etag)
                parts.append(part.data)
            file_start += file.nbytes
        return Blob(b"".join(parts), whole.etag)

    def close(self) -> None:
        """Release connections."""
        self.place.close()

    def _files(self, key: str) -> Sequence[ObjectInfo]:
        """Return an object's files, its own first; () for a key of the newest listing that is no object."""
        listed = self._newest_listing()
        file = listed.waiting.get(key)
        if file:
            raise ObjectNotFound(
                f"{self.url}/{key} is incomplete: {file} is missing", what=file, where=f"{self.url}/{key}"
            )
        return listed.files.get(key, ())

    def _heads(self, key: str) -> Sequence[ObjectInfo]:
        """Return the files of an object as they are now. Costs a request per file."""
        return [self.place.head(name) for name in (key, *self.files(key))]

    def _newest_listing(self) -> _Listed:
        with self._lock:
            listed = self._listed
        if listed is not None:
            return listed
        infos = tuple(list_place(self.place))
        return self._read_names(infos)

    def _read_names(self, infos: Sequence[ObjectInfo]) -> _Listed:
        """Group all files into objects by the names in their metadata, and keep the result as the newest listing."""
        from penstock.formats.importer import group_files
        from penstock.formats.registry import joining_importer

        importer = joining_importer(self._format)
        names = importer.names_in(self.place, infos, self._options)
        by_key = {info.key: info for info in infos}
        files, waiting = group_files(names, by_key)
        listed = _Listed(infos=infos, files=files, waiting=waiting)
        with self._lock:
            self._listed = listed
            self._readable = None  # it is over the files of the earlier listing
        return listed
