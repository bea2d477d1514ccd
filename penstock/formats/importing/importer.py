"""The interface of an importer: the bytes of its samples are not spans of an object, so it cannot be registered."""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from loader.dataset.columnar.choices import NO_OPTIONS, Options, ReadSample
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.columnar.partitions import Partitions
from loader.errors import Changed, Corrupt, InvalidRuntime, NotSupported
from loader.storage import ObjectInfo, Store

from ..reading.sample import NO_METADATA

__all__ = [
    "NO_OPTIONS",
    "Importer",
    "JoiningImporter",
    "KnownNames",
    "Options",
    "ReadSample",
    "Readable",
    "Run",
    "check_options",
    "files_of",
    "joined",
    "of_first_sound",
]
T = TypeVar("T")
MOST_PLACES = 64
"""Places whose names are known, at most."""


class Run(NamedTuple):
    """Neighbouring samples of one object."""

    info: ObjectInfo
    """The object."""
    first: int = 0
    """Place of the first sample, as the format counts."""
    stop: int = 0
    """Place behind the last one."""
    nbytes: int = 0
    """Bytes of their fields, estimated."""


class Readable(NamedTuple):
    """The objects of a place that are of a format, and their reader; used by many threads."""

    infos: list[ObjectInfo]
    """The objects, as they were listed."""
    runs: Callable[[ObjectInfo], Iterable[Run]]
    """The runs of an object, in order; they follow from the object alone. Raises: Corrupt; Changed; StoreError."""
    samples: Callable[[Run], Iterator[ReadSample]]
    """The samples of a run, in order, one at a time. Raises: Corrupt; InvalidSample; Changed; StoreError."""
    labels: Sequence[str] | None = None
    """Names of the classes that `cls` numbers; None where the format tells none."""
    facts: Mapping[str, Mapping[str, Any]] = NO_METADATA
    """Field -> facts of it, as `Root.publish` takes them."""
    lacking: Sequence[str] = ()
    """Objects that an index lists and that are not there, in words."""
    left_out: Sequence[str] = ()
    """Features of the place that are not read yet."""
    columns: ColumnAgreement | None = None
    """Fields and metadata that columns of tables become, of objects that were read; None of other formats."""
    members: JsonMembers | None = None
    """Reading of the members of JSON documents, which become columns; None of other formats."""

    def with_partitions(self, partitions: Partitions) -> "Readable":
        """Return tables, whose samples have the columns of their folders too."""
        read = self.samples

        def samples(run: Run) -> Iterator[ReadSample]:
            for one in read(run):
                yield one._replace(metadata=partitions.joined(run.info.key, one.metadata))

        return self._replace(samples=samples)


class Importer(Protocol):
    """A module of `importers`."""

    OPTIONS: frozenset[str]
    """Options that the format takes: of "key", "fields" and "episodes"."""

    def find_objects(self, store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
        """Return those of the listed objects that are of the format. Raises: InvalidStore; Corrupt; StoreError."""


class JoiningImporter(Importer, Protocol):
    """A module of `importers` whose objects lie in several files."""

    def names_in(
        self, store: Store, infos: Sequence[ObjectInfo], options: Options
    ) -> Mapping[str, Sequence[str]]:
        """Return key of an object -> keys of its files, that of the object first; objects of one file may be left out.

        A file without any is no object.

        Costs a read of the metadata that this process has not read yet. Raises: InvalidStore; StoreError.
        """

    def find_complete_objects(self, store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
        """Return as `find_objects`, without the objects of which a file is not there. Raises: InvalidStore; StoreError."""


EPISODES_OF = "--episodes is for lerobot, which numbers its episodes; choose objects with --include"
"""Message about an option that another format was given."""


def check_options(format: str, importer: Importer | None, options: Options) -> None:
    """Raise InvalidRuntime for an option that the format does not take. importer: None for a registered format."""
    taken = importer.OPTIONS if importer else frozenset[str]()
    why = f"for tables, whose columns it names; {format} has its own keys and fields"
    for name, said in (
        ("key", f"--key is {why}"),
        ("fields", f"--field is {why}"),
        ("episodes", EPISODES_OF),
    ):
        if getattr(options, name) and name not in taken:
            raise InvalidRuntime(said)


def of_first_sound(infos: Iterable[ObjectInfo], read: Callable[[ObjectInfo], T]) -> T | None:
    """Return what `read` gives of the first object that can be read, None without one: a reader tells the others."""
    for info in infos:
        try:
            return read(info)
        except (Corrupt, Changed, NotSupported):
            continue
    return None


def files_of(
    names: Mapping[str, Sequence[str]], there: Mapping[str, ObjectInfo]
) -> tuple[dict[str, list[ObjectInfo]], dict[str, str]]:
    """Return the files of each object that is whole, and of each other one the first file that is not there.

    names: as `JoiningImporter.names_in`. there: the place's files, by key.
    """
    files, waiting = dict[str, list[ObjectInfo]](), dict[str, str]()
    for key, wanted in names.items():
        if missing := next((one for one in wanted if one not in there), None):
            waiting[key] = missing
        else:
            files[key] = [there[one] for one in wanted]
    return files, waiting


class KnownNames(Generic[T]):
    """Names that metadata of places told when this process read them last: each tick of a source asks again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[tuple[str, str], ...], T]] = {}

    def of(self, place: Hashable, metadata: Iterable[ObjectInfo], read: Callable[[], T]) -> T:
        """Return what `read` gave while these metadata were as they are. It is asked always where one has no token."""
        now = tuple((one.key, one.etag) for one in metadata)
        known = self._known.get(place)
        if known is None or known[0] != now or not all(etag for _, etag in now):
            known = now, read()
            if len(self._known) >= MOST_PLACES:
                self._known.clear()
            self._known[place] = known
        return known[1]


def joined(files: Sequence[ObjectInfo]) -> ObjectInfo:
    """Return several files as one object: by the key of the first, and changed where any of them is."""
    if len(files) == 1:
        return files[0]
    told = json.dumps([[one.key, one.etag] for one in files])
    return replace(
        files[0],
        nbytes=sum(one.nbytes for one in files),
        etag=hashlib.sha256(told.encode()).hexdigest(),
        modified_us=max((one.modified_us for one in files if one.modified_us is not None), default=None),
    )
