"""Indexes of MDS and LitData: one `index.json` per split, and a table of offsets per object."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.storage import ObjectInfo, Store

from .object_file import ForwardReader
from .sample import ForeignRun, ForeignSample, ForeignTable, FoundObjects
from .stated_counts import StatedCounts

Int64s = np.ndarray[Any, np.dtype[np.int64]]
INDEX = "index.json"
Reader = Callable[[ObjectInfo], Iterator[ForeignSample | ForeignTable | ForeignRun]]
Shard = TypeVar("Shard")


class IndexedFolder(NamedTuple):
    """A folder with an index."""

    prefix: str
    """"" for the dataset's root, "train/" for a split."""
    objects: Mapping[str, ObjectInfo]
    """Key without the prefix -> object with its full key."""

    @property
    def index_key(self) -> str:
        return f"{self.prefix}{INDEX}"

    @property
    def split(self) -> str:
        """Folder name; "" for the root."""
        return posixpath.basename(self.prefix.rstrip("/"))


def index_folders(infos: Sequence[ObjectInfo]) -> list[IndexedFolder]:
    """Return the outermost folders with an index, sorted by name."""
    indexes = [info.key for info in infos if posixpath.basename(info.key) == INDEX]
    prefixes = {key.removesuffix(INDEX) for key in indexes}
    objects: dict[str, dict[str, ObjectInfo]] = {}
    for info in infos:
        for prefix in _parent_prefixes(info.key):  # from the root down, so the outermost comes first
            if prefix in prefixes:
                objects.setdefault(prefix, {})[info.key.removeprefix(prefix)] = info
                break
    return [IndexedFolder(prefix, contents) for prefix, contents in sorted(objects.items())]


def read_indexes(
    store: Store, infos: Sequence[ObjectInfo], shards: re.Pattern[str], how: str
) -> Iterator[tuple[IndexedFolder, str, bytes]]:
    """Yield each folder, and its index's name and bytes. how: advice on creating an index.

    Raises: InvalidStore for shards without an index.
    """
    folders = index_folders(infos)
    for folder in folders:
        data = store.get(folder.index_key).data
        yield folder, f"{store.url}/{folder.index_key}", data
    if folders:
        return
    shard_keys = [info.key for info in infos if shards.search(info.key)]
    if shard_keys:
        message = (
            f"{store.url} has {len(shard_keys)} shards, such as {shard_keys[0]}, and no {INDEX}, which describes them: "
            f"fetch it too, or make it: {how}"
        )
        raise InvalidStore(message, what=INDEX, where=store.url, given=shard_keys[0])


def _parent_prefixes(key: str) -> Iterator[str]:
    yield ""
    for slash in re.finditer("/", key):
        yield key[: slash.end()]


def split_reader(
    folder: IndexedFolder, read: Callable[[Shard], Iterator[Any]], *, named: bool
) -> Callable[[Shard], Iterator[Any]]:
    """Return a reader that adds the split to samples, and the folder to keys unless `named`."""
    if not folder.prefix:
        return read
    key_prefix = ""
    if not named:
        key_prefix = folder.prefix
    split = {"split": folder.split}

    def samples(shard: Shard) -> Iterator[Any]:
        for sample in read(shard):
            source = {**split, **sample.source}
            if isinstance(sample, ForeignRun):
                yield sample._replace(prefix=f"{key_prefix}{sample.prefix}", source=source)
            else:
                yield sample._replace(key=f"{key_prefix}{sample.key}", source=source)

    return samples


def list_objects(
    infos: Sequence[ObjectInfo],
    readers: Mapping[str, Reader],
    stated: StatedCounts,
    left_out: set[str] | None = None,
) -> FoundObjects:
    """Return the objects that indexes list. readers: by object key. stated, left_out: for `FoundObjects`."""
    described = [info for info in infos if info.key in readers]
    return FoundObjects(described, lambda info: readers[info.key](info), stated=stated, left_out=left_out)


def compare_files(stated: StatedCounts, name: str, listed: Mapping[str, int], folder: IndexedFolder) -> None:
    """Record each missing object of an index. name: of the index. listed: key in the folder -> bytes."""
    for key, nbytes in listed.items():
        if key not in folder.objects:
            text = f"{name} lists {key} of {nbytes:,} bytes, and it is not there"
            stated.lacks(text, f"{folder.prefix}{key}")


def check_size(store: Store, info: ObjectInfo, nbytes: int) -> None:
    """Raise Corrupt if an object's size is not the index's."""
    if info.nbytes != nbytes:
        raise Corrupt(
            f"{store.url}/{info.key} has {info.nbytes:,} bytes, and its index gives {nbytes:,}",
            what="size",
            where=f"{store.url}/{info.key}",
            given=info.nbytes,
            accepted=nbytes,
        )


def read_offsets(reader: ForwardReader, n_samples: int, noun: str) -> Int64s:
    """Return sample offsets, and the last's end: int64 [n_samples + 1]. noun: for errors."""
    # uint32: the number of samples, an offset for each, and the end of the last.
    head = 4 * (n_samples + 2)
    if head > reader.nbytes:
        raise corrupt(reader, 0, f"the {noun} is cut: {n_samples} samples have {head} bytes of offsets")
    # int64 [n_samples + 2]: number of samples, their offsets, and the last's end.
    table = np.frombuffer(reader.read(0, head), "<u4").astype(np.int64)
    if table[0] != n_samples:
        raise corrupt(
            reader,
            0,
            f"the {noun} has {table[0]} samples, and its index gives {n_samples}",
            what=f"samples of the {noun}",
            given=int(table[0]),
            accepted=n_samples,
        )
    offsets = table[1:]
    # The first sample must lie after the table itself, hence `prepend`.
    wrong = np.flatnonzero(np.diff(offsets, prepend=head) < 0)
    if len(wrong):
        at = int(wrong[0])
        raise corrupt(
            reader,
            4 * (at + 1),
            f"the offset {offsets[at]} lies in front of the one before",
            what="offset",
            given=int(offsets[at]),
            accepted="an offset after the one before",
        )
    if offsets[-1] > reader.nbytes:
        raise corrupt(
            reader,
            head - 4,
            f"the last sample ends at {offsets[-1]}, and the object at {reader.nbytes}",
            what="end of the last sample",
            given=int(offsets[-1]),
            accepted=reader.nbytes,
        )
    return offsets


def check_apart(columns: Mapping[str, str], where: str) -> None:
    """Raise InvalidSample if two values need the same column. columns: value -> column."""
    names = dict[str, str]()
    for name, column in columns.items():
        if column in names:
            raise InvalidSample(
                f"{where}: the columns {names[column]!r} and {name!r} would both be the metadata column "
                f"{column!r}; write the dataset again with other names",
                what=column,
                where=where,
                given=[names[column], name],
                accepted="one column of a name",
            )
        names[column] = name


def corrupt(reader: ForwardReader, at: int, problem: str, **fields: object) -> Corrupt:
    where = f"{reader.name}, byte {at}"
    return Corrupt(f"{where}: {problem}", where=where, **fields)
