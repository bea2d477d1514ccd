"""A listing of `data/` in a file on this machine's disk, read piece by piece."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa

from loader.storage import Store
from loader.storage.disk.scratch import HeldFolder, on_scratch
from loader.storage.disk.unlisted_files import list_in_place
from loader.storage.store import ObjectInfo

ROWS = 65_536
"""Objects per batch."""
SCHEMA = pa.schema([("key", pa.large_string()), ("nbytes", pa.int64()), ("link", pa.bool_())])


def scratch() -> AbstractContextManager[None]:
    """Return a context for writes on this machine's disk. Raises: StoreError if there is no room."""
    meanwhile = "while a root was looked at; nothing was deleted"
    return on_scratch(None, meanwhile, room_for="the names of its objects", again="look again")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder. Raises: as `scratch`."""
    with scratch():
        folder = HeldFolder("collect")
    with closing(folder):
        yield folder.path


@contextmanager
def listed(store: Store, prefix: str) -> Iterator["Listing"]:
    """Yield a listing; its file is deleted at the end.

    In a folder it includes unfinished files, and links instead of their targets. Memory: `ROWS` objects. Raises:
    StoreError.
    """
    with scratch_folder() as folder:
        path = folder / "listing.arrow"
        with scratch(), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            infos = iter(list_in_place(store, prefix))
            while rows := list(islice(infos, ROWS)):
                writer.write_batch(as_batch(rows))
        yield Listing(path)


def as_batch(infos: Iterable[tuple[ObjectInfo, bool]]) -> pa.RecordBatch:
    """Return a batch of `SCHEMA`. infos: (object, whether it is a link)."""
    rows = [(info.key, 0 if link else info.nbytes, link) for info, link in infos]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


class Listing:
    """A listing, in key order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of `SCHEMA`, up to `ROWS` rows each."""
        with pa.memory_map(str(self._path)) as source:
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def stretch(ascending: pa.Array, keys: pa.Array) -> slice:
    """Return the slice of an ascending array in which another's elements may lie."""
    if not len(keys):
        return slice(0, 0)
    return slice(_first(ascending, keys[0].as_py()), _first(ascending, keys[-1].as_py() + "\0"))


def _first(ascending: pa.Array, key: str) -> int:
    """Return the number of elements less than `key`."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle].as_py() < key:
            low = middle + 1
        else:
            high = middle
    return low
