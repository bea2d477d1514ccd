"""The interface of importers. A new format implements `Importer`, and has a row in `registry.FORMATS`."""

import hashlib
import json
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from loader.dataset.columnar.choices import NO_OPTIONS, ColumnarOptions, ReadSample
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.json_members import JsonMembers
from loader.errors import Changed, Corrupt, InvalidRuntime, NotSupported
from loader.keywords import did_you_mean
from loader.storage import ObjectInfo, Store

from .reading.sample import NO_METADATA, ForeignSample, ObjectColumns
from .reading.stated_counts import StatedCounts

__all__ = [
    "NO_OPTIONS",
    "ColumnarOptions",
    "ImportRun",
    "Importer",
    "JoiningImporter",
    "KnownNames",
    "ReadSample",
    "Readable",
    "check_options",
    "group_files",
    "joined",
    "list_runs",
    "of_first_readable",
    "with_bytes",
]
T = TypeVar("T")
MOST_PLACES = 64
"""Most sources whose file names are cached."""


class ImportRun(NamedTuple):
    """Consecutive samples of one object."""

    info: ObjectInfo
    """The samples' object."""
    first: int = 0
    """Format's own index of the first sample."""
    stop: int = 0
    """Index after the last."""
    nbytes: int = 0
    """Approximate bytes of the fields."""


class Readable(NamedTuple):
    """A source's objects of one format; thread-safe."""

    infos: list[ObjectInfo]
    """Objects as listed."""
    runs: Callable[[ObjectInfo], Iterable[ImportRun]]
    """Returns an object's runs. Raises: Corrupt."""
    samples: Callable[[ImportRun], Iterator[ReadSample]]
    """Yields a run's samples. Raises: Corrupt; InvalidSample."""
    labels: Sequence[str] | None = None
    """Class names that `cls` indexes, or None."""
    facts: Mapping[str, Mapping[str, Any]] = NO_METADATA
    """Field -> its facts, for `Root.publish`."""
    stated: StatedCounts | None = None
    """Counts that the source states; None if the format states none itself."""
    columns: ColumnAgreement | None = None
    """Checks that table objects agree on their columns, or None."""
    members: JsonMembers | None = None
    """Reads JSON members into columns, or None."""
    known: Container[str] | None = None
    """Keys of the source's other files that the format reads, or that were not chosen; None: see `Format.known`."""
    notes: Callable[[], Sequence[str]] | None = None
    """Returns what was left out of the samples read so far, or None."""

    def with_columns(self, columns: ObjectColumns) -> "Readable":
        """Return a copy with column values that follow from an object's key."""
        read = self.samples

        def samples(run: ImportRun) -> Iterator[ReadSample]:
            for sample in read(run):
                yield sample._replace(metadata=columns.joined(run.info.key, sample.metadata))

        return self._replace(samples=samples)


class Importer(Protocol):
    """A module that imports a format."""

    OPTIONS: frozenset[str]
    """Accepted options: "key", "fields", "episodes" or "clocks"."""

    def find_readable(self, store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
        """Return the listed objects of the format. Raises: InvalidStore; Corrupt."""


class JoiningImporter(Importer, Protocol):
    """A module that imports a format with several files per sample."""

    def names_in(
        self, store: Store, infos: Sequence[ObjectInfo], options: ColumnarOptions
    ) -> Mapping[str, Sequence[str]]:
        """Return object key -> keys of its files, its own first; cached. Raises: InvalidStore.

        Objects that need no other file may be absent. A file that maps to no keys is not an object.
        """

    def find_complete_objects(
        self, store: Store, infos: list[ObjectInfo], options: ColumnarOptions
    ) -> Readable:
        """Return `find_readable`'s objects that lack no file. Raises: InvalidStore."""


EPISODES_OF = "--episodes is for lerobot, which numbers its episodes; choose objects with --include"
CLOCKS = "log_time", "stamp"
"""Clocks of a topic of a robot log."""
EVERY_TOPIC = "*"
"""Name in `ColumnarOptions.clocks` of all topics that it does not name."""


def check_options(format: str, importer: Importer | None, options: ColumnarOptions) -> None:
    """Raise InvalidRuntime for an option that the format does not accept. importer: None for `REGISTERED`."""
    accepted = importer.OPTIONS if importer else frozenset[str]()
    why = f"for tables, whose columns it names; {format} has its own keys and fields"
    for name, flag, message in (
        ("key", "--key", f"--key is {why}"),
        ("fields", "--field", f"--field is {why}"),
        ("episodes", "--episodes", EPISODES_OF),
        (
            "clocks",
            "--clock",
            f"--clock is for mcap and rosbag, whose topics have two clocks; {format} has its own times",
        ),
    ):
        if getattr(options, name) and name not in accepted:
            raise InvalidRuntime(message, what=flag, given=format)
    for topic, clock in options.clocks.items():
        if clock not in CLOCKS:
            near = did_you_mean(clock, CLOCKS)
            text = f"clock {clock!r} of topic {topic!r}; accepted: {' or '.join(CLOCKS)}{near}"
            raise InvalidRuntime(text, what="--clock", where=topic, given=clock, accepted=CLOCKS)
        if not topic.strip("/"):
            raise InvalidRuntime(
                f"topic {topic!r} with the clock {clock!r}; give its name, or {EVERY_TOPIC!r} for all"
            )


def of_first_readable(infos: Iterable[ObjectInfo], read: Callable[[ObjectInfo], T]) -> T | None:
    """Return `read` of the first readable object, or None."""
    for info in infos:
        try:
            return read(info)
        # The reader of its samples reports a damaged object.
        except (Corrupt, Changed, NotSupported):
            continue
    return None


def group_files(
    names: Mapping[str, Sequence[str]], there: Mapping[str, ObjectInfo]
) -> tuple[dict[str, list[ObjectInfo]], dict[str, str]]:
    """Return each complete object's files, and each other object's first missing file, by key.

    names: of `JoiningImporter.names_in`. there: existing files by key.
    """
    files: dict[str, list[ObjectInfo]] = {}
    waiting: dict[str, str] = {}
    for key, keys in names.items():
        missing = [name for name in keys if name not in there]
        if missing:
            waiting[key] = missing[0]
        else:
            files[key] = [there[name] for name in keys]
    return files, waiting


class KnownNames(Generic[T]):
    """Cache of file names in a dataset's metadata, which each tick of a source needs."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[tuple[str, str], ...], T]] = {}

    def of(self, place: Hashable, metadata: Iterable[ObjectInfo], read: Callable[[], T]) -> T:
        """Return `read`'s result, cached for a source until an ETag in `metadata` changes."""
        now = tuple((one.key, one.etag) for one in metadata)
        known = self._known.get(place)
        # Without an ETag, a change would go unnoticed.
        if known is None or known[0] != now or not all(etag for _, etag in now):
            known = now, read()
            if len(self._known) >= MOST_PLACES:
                # All at once: a process has few sources, so a full cache is rare.
                self._known.clear()
            self._known[place] = known
        return known[1]


def joined(files: Sequence[ObjectInfo]) -> ObjectInfo:
    """Return several files as one object, with the first's key and an ETag that covers all."""
    if len(files) == 1:
        return files[0]
    files_json = json.dumps([[one.key, one.etag] for one in files])
    return replace(
        files[0],
        nbytes=sum(one.nbytes for one in files),
        etag=hashlib.sha256(files_json.encode()).hexdigest(),
        modified_us=max((one.modified_us for one in files if one.modified_us is not None), default=None),
    )


class ListedShard(Protocol):
    """An index's entry for an object."""

    @property
    def nbytes(self) -> int: ...

    @property
    def n_samples(self) -> int: ...


def list_runs(
    infos: Sequence[ObjectInfo],
    listed: Mapping[str, ListedShard],
    readers: Mapping[str, Callable[[ImportRun], Iterator[ReadSample]]],
    stated: StatedCounts,
) -> Readable:
    """Return the objects that indexes list, one run each. readers: by object key."""
    return Readable(
        [info for info in infos if info.key in listed],
        lambda info: [ImportRun(info, 0, listed[info.key].n_samples, listed[info.key].nbytes)],
        lambda run: readers[run.info.key](run),
        stated=stated,
    )


def with_bytes(sample: ForeignSample, data: bytes) -> ReadSample:
    """Return a sample with its bytes. data: the whole object."""
    fields = {name: data[at.offset : at.offset + at.nbytes] for name, at in sample.fields.items()}
    return ReadSample(sample.key, fields, sample.metadata, sample.source)
