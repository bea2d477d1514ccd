"""Rules that MDS and LitData share: an `index.json`, or one a split, offsets in front, names of fields and columns."""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.storage import ObjectInfo, Store

from .sample import ForeignRun, ForeignSample, ForeignTable, FoundObjects
from .window import Window

Int64s = np.ndarray[Any, np.dtype[np.int64]]
INDEX = "index.json"
Reader = Callable[[ObjectInfo], Iterator[ForeignSample | ForeignTable | ForeignRun]]
Of = TypeVar("Of")


class Folder(NamedTuple):
    """A folder with an index, and what lies in it."""

    prefix: str
    """Text in front of its keys: "" of the place itself, "train/" of a split."""
    objects: Mapping[str, ObjectInfo]
    """Key behind the prefix -> the object, as the place has it."""

    @property
    def index_key(self) -> str:
        """Key of its index in the place."""
        return f"{self.prefix}{INDEX}"

    @property
    def split(self) -> str:
        """The folder's name, which is the split of its samples; "" of the place itself."""
        return posixpath.basename(self.prefix.rstrip("/"))


def folders_in(infos: Sequence[ObjectInfo]) -> list[Folder]:
    """Return the folders of a place that have an index, and are in no other such folder; by name."""
    tops = {info.key.removesuffix(INDEX) for info in infos if posixpath.basename(info.key) == INDEX}
    objects: dict[str, dict[str, ObjectInfo]] = {}
    for info in infos:
        top = next((one for one in _above(info.key) if one in tops), None)
        if top is not None:
            objects.setdefault(top, {})[info.key.removeprefix(top)] = info
    return [Folder(top, some) for top, some in sorted(objects.items())]


def check_indexed(store: Store, infos: Sequence[ObjectInfo], shards: re.Pattern[str], how: str) -> None:
    """Raise InvalidStore for a place that has shards, and no index at all.

    shards: names of shards. how: the way to make an index.
    """
    if any(posixpath.basename(info.key) == INDEX for info in infos):
        return
    if found := [info.key for info in infos if shards.search(info.key)]:
        raise InvalidStore(
            f"{store.url} has {len(found)} shards, such as {found[0]}, and no {INDEX}, which tells what they hold: "
            f"fetch it too, or make it: {how}"
        )


def _above(key: str) -> Iterator[str]:
    """Yield the folders that an object is in, from the place itself on, as text in front of its key."""
    yield ""
    for slash in re.finditer("/", key):
        yield key[: slash.end()]


def split_reader(
    folder: Folder, read: Callable[[Of], Iterator[Any]], *, named: bool
) -> Callable[[Of], Iterator[Any]]:
    """Return a reader of samples that tells their split, unless they do, and has the folder in front of their keys.

    named: keys are the samples' own, no numbers, and stay.
    """
    if not folder.prefix:
        return read
    front, split = "" if named else folder.prefix, {"split": folder.split}

    def samples(of: Of) -> Iterator[Any]:
        for one in read(of):
            if isinstance(one, ForeignRun):
                yield one._replace(prefix=f"{front}{one.prefix}", source=split)
            else:
                told = {**split, **one.source} if one.source else split
                yield one._replace(key=f"{front}{one.key}", source=told)

    return samples


def found_in(
    infos: Sequence[ObjectInfo], readers: Mapping[str, Reader], lacking: Sequence[str]
) -> FoundObjects:
    """Return the objects that indexes tell of. readers: key of each -> its reader. lacking: as `FoundObjects`."""
    mine = [info for info in infos if info.key in readers]
    return FoundObjects(mine, lambda info: readers[info.key](info), lacking=lacking)


def lacking_of(name: str, listed: Mapping[str, int], there: Collection[str]) -> list[str]:
    """Return what an index lists and is not there, in words. name: of the index. listed: key -> bytes."""
    return [
        f"{name} lists {key} of {nbytes:,} bytes, and it is not there"
        for key, nbytes in listed.items()
        if key not in there
    ]


def check_size(store: Store, info: ObjectInfo, nbytes: int) -> None:
    """Raise Corrupt for an object that has not the size that its index says."""
    if info.nbytes != nbytes:
        raise Corrupt(f"{store.url}/{info.key} has {info.nbytes:,} bytes, and its index says {nbytes:,}")


def offsets_in(window: Window, n_samples: int, noun: str) -> Int64s:
    """Return the first byte of each sample, and the end of the last, int64 [n_samples + 1]. Raises: Corrupt.

    noun: "shard" or "chunk", for errors.
    """
    head = 4 * (n_samples + 2)
    if head > window.nbytes:
        raise corrupt(window, 0, f"the {noun} is cut: {n_samples} samples have {head} bytes of offsets")
    table = np.frombuffer(window.read(0, head), "<u4").astype(np.int64)
    if table[0] != n_samples:
        raise corrupt(window, 0, f"the {noun} has {table[0]} samples, and its index says {n_samples}")
    offsets = table[1:]
    wrong = np.flatnonzero(np.diff(offsets, prepend=head) < 0)
    if len(wrong):
        at = int(wrong[0])
        raise corrupt(window, 4 * (at + 1), f"the offset {offsets[at]} lies in front of the one before")
    if offsets[-1] > window.nbytes:
        raise corrupt(
            window, head - 4, f"the last sample ends at {offsets[-1]}, and the object at {window.nbytes}"
        )
    return offsets


def check_apart(columns: Mapping[str, str], where: str) -> None:
    """Raise InvalidSample where two values would be one metadata column. columns: name of a value -> its column."""
    taken = dict[str, str]()
    for name, mine in columns.items():
        if mine in taken:
            raise InvalidSample(
                f"{where}: the columns {taken[mine]!r} and {name!r} would both be the metadata column "
                f"{mine!r}; write the dataset again with other names"
            )
        taken[mine] = name


def corrupt(window: Window, at: int, what: str) -> Corrupt:
    """Return the error of a damaged byte."""
    return Corrupt(f"{window.name}, byte {at}: {what}")
