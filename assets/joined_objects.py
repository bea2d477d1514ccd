"""A place whose raw objects lie in several files: each is seen as one object, its files one behind the other.

Size, change token and SHA-256 of such an object are of all of its files, so that a file which is replaced makes another
object. Its key is that of its first file; the format's metadata name the others (`names_in`).
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from loader.errors import Changed, ObjectNotFound
from loader.storage import Blob, ObjectInfo, Store
from loader.storage.store import Refuse, list_place, log_refusals

from .source_formats import JOINED, companions

if TYPE_CHECKING:
    from loader.dataset.columnar.choices import Options
    from penstock.formats.importing.importer import Readable

    from .sources import Source

_log = logging.getLogger(__name__)


def raw_objects_in(place: Store, source: "Source") -> Store:
    """Return a place as the raw objects of its source are seen: itself, unless they lie in several files."""
    if source.format not in JOINED:
        return place
    return cast(Store, JoinedObjects(place, source.format, source.choices))


class _Listed(NamedTuple):
    """The files of a place, as they were listed."""

    infos: Sequence[ObjectInfo]
    """All files."""
    files: Mapping[str, Sequence[ObjectInfo]]
    """Key of an object -> its files, that of the object first."""
    waiting: Mapping[str, str]
    """Key of an object that is not whole -> a file of it that is not there."""


class JoinedObjects:
    """Reads a place of raw objects that lie in several files; used by many threads.

    A listing costs one of the whole place, and metadata that this process has not read yet. Other reads go by the
    newest listing.
    """

    def __init__(self, place: Store, format: str, options: "Options") -> None:
        """place: of the files. options: the choices of the source."""
        self.place = place
        self._format, self._options = format, options
        self._lock = threading.Lock()
        self._listed: _Listed | None = None
        self._readable: Readable | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return JoinedObjects, (self.place, self._format, self._options)

    @property
    def url(self) -> str:
        """Place of the files, without secrets."""
        return self.place.url

    @property
    def variables(self) -> Sequence[str]:
        """Environment variables that another process needs to open the place."""
        return tuple(getattr(self.place, "variables", ()))

    def readable(self) -> "Readable":
        """Return the reader of the objects, as they were listed last.

        Costs a read of the metadata. Raises: InvalidStore; StoreError.
        """
        from penstock.formats import joining_importer

        listed = self._now()
        with self._lock:
            if self._readable is None:
                find = joining_importer(self._format).find_complete_objects
                self._readable = find(self.place, [*listed.infos], self._options)
            return self._readable

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects as `Store.list`, but for those of which a file is not there yet.

        Raises: InvalidStore for metadata that cannot be read; StoreError.
        """
        return self.list_place(prefix, start_after or "", log_refusals(self.url))

    def list_place(
        self, prefix: str, start_after: str, refuse: Refuse, *, seek: bool = False, outside: bool = False
    ) -> Iterator[ObjectInfo]:
        """List as `refusals.list_place`: the whole place is always listed."""
        from penstock.formats.importing.importer import joined

        files = list_place(self.place, refuse=refuse, outside=outside)
        infos, beside = tuple(files), companions(self._format)
        if beside and all(beside.search(info.key) for info in infos):
            return  # nothing landed yet, or metadata alone
        found = self._look(infos)
        if found.waiting:
            key, file = min(found.waiting.items())
            why = "%s: %d objects wait for files of theirs, the first is %s, without %s"
            _log.warning(why, self.url, len(found.waiting), key, file)
        for info in infos:
            wanted = info.key > start_after and info.key.startswith(prefix) and info.key not in found.waiting
            if wanted and (parts := found.files.get(info.key, [info])):
                yield joined(parts)

    list_from = list

    def head(self, key: str) -> ObjectInfo:
        """Return size and change token of an object, all of its files as they are now. Raises: ObjectNotFound."""
        from penstock.formats.importing.importer import joined

        return joined(self._heads(key))

    def written_last(self, key: str) -> str:
        """Return the key of the file of an object that was written last, as they are now. Raises: ObjectNotFound."""
        return max(self._heads(key), key=lambda one: one.modified_us or 0).key

    def files(self, key: str) -> tuple[str, ...]:
        """Return the keys of the further files of an object, as it was listed; none where it is one file."""
        return tuple(one.key for one in self._files(key)[1:])

    def get(self, key: str) -> Blob:
        """Return a file of the place. Raises: ObjectNotFound."""
        return self.place.get(key)

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return exactly `nbytes` bytes of an object from `offset`. Raises: Changed; StoreError."""
        from penstock.formats.importing.importer import joined

        files = self._files(key)
        if not files:
            return self.place.get_range(key, offset, nbytes, etag)
        if etag not in (None, joined(files).etag):
            raise Changed(
                f"{self.url}/{key}: a file of it was replaced since it was discovered, and it lands again; "
                f"{self.written_last(key)} was written last"
            )
        parts, at = [], 0
        for file in files:
            begin, end = max(offset - at, 0), min(offset + nbytes - at, file.nbytes)
            if begin < end:
                parts.append(self.place.get_range(file.key, begin, end - begin, file.etag).data)
            at += file.nbytes
        return Blob(b"".join(parts), joined(files).etag)

    def close(self) -> None:
        """Release connections."""
        self.place.close()

    def _files(self, key: str) -> Sequence[ObjectInfo]:
        """Return the files of an object as they were listed; none for a key that is no such object.

        Raises: ObjectNotFound, with the file that was not there.
        """
        listed = self._now()
        if file := listed.waiting.get(key):
            raise ObjectNotFound(f"{self.url}/{key} is not whole: {file} is not there")
        return listed.files.get(key, ())

    def _heads(self, key: str) -> Sequence[ObjectInfo]:
        """Return the files of an object as they are now. Raises: ObjectNotFound."""
        return [self.place.head(name) for name in (key, *self.files(key))]

    def _now(self) -> _Listed:
        """Return the newest listing."""
        with self._lock:
            found = self._listed
        return found or self._look(tuple(list_place(self.place)))

    def _look(self, infos: Sequence[ObjectInfo]) -> _Listed:
        from penstock.formats import joining_importer
        from penstock.formats.importing.importer import files_of

        names = joining_importer(self._format).names_in(self.place, infos, self._options)
        found = _Listed(infos, *files_of(names, {info.key: info for info in infos}))
        with self._lock:
            self._listed, self._readable = found, None
        return found
