"""The plan: every condemned object, why, and how long the collector has seen it condemned.

collect/<name>/plan.parquet    key, nbytes, dataset, txn, why, age_us; in key order
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loader.dataset.tables.parquet import parse_table, table_facts
from loader.errors import FormatTooNew, ObjectNotFound
from loader.storage import Store
from loader.storage.disk.scratch import HeldFolder, on_scratch
from loader.storage.disk.unlisted_files import list_in_place
from loader.storage.store import ObjectInfo

from .clients import FOLDER, Moment, passed

LISTED_ROWS = 65_536
"""Objects per batch."""
SCHEMA = pa.schema([("key", pa.large_string()), ("nbytes", pa.int64()), ("link", pa.bool_())])


def scratch() -> AbstractContextManager[None]:
    """Return a context manager for writes to the local disk. Raises: StoreError if it is full."""
    meanwhile = "while penstock read a root; nothing was deleted"
    return on_scratch(None, meanwhile, room_for="the names of its objects", again="repeat it")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder. Raises: as `scratch`."""
    with scratch():
        folder = HeldFolder("collect")
    with closing(folder):
        yield folder.path


@contextmanager
def listed(store: Store, prefix: str) -> Iterator["Listing"]:
    """Yield a listing, whose file is deleted at the end.

    For a folder, it includes unfinished files, and links instead of their targets. Memory: `LISTED_ROWS` objects.
    Raises: StoreError.
    """
    with scratch_folder() as folder:
        path = folder / "listing.arrow"
        with scratch(), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            infos = iter(list_in_place(store, prefix))
            while rows := list(islice(infos, LISTED_ROWS)):
                writer.write_batch(as_batch(rows))
        yield Listing(path)


def as_batch(infos: Iterable[tuple[ObjectInfo, bool]]) -> pa.RecordBatch:
    """Return a batch with `SCHEMA`. infos: pairs of (object, whether it is a link)."""
    keys = []
    sizes = []
    links = []
    for info, is_link in infos:
        nbytes = info.nbytes
        if is_link:
            nbytes = 0  # a deleted link frees nothing
        keys.append(info.key)
        sizes.append(nbytes)
        links.append(is_link)
    columns = (keys, sizes, links)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


class Listing:
    """A listing, in key order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches with `SCHEMA`, up to `LISTED_ROWS` rows each."""
        with pa.memory_map(str(self._path)) as source:
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def stretch(ascending: pa.Array, keys: pa.Array) -> slice:
    """Return the slice of `ascending` that may contain elements of `keys`, which ascend too."""
    if not len(keys):
        return slice(0, 0)
    first_key = keys[0].as_py()
    last_key = keys[-1].as_py()
    start = _first(ascending, first_key)
    stop = _first(ascending, last_key + "\0")  # "\0" makes the smallest key above the last one
    return slice(start, stop)


def _first(ascending: pa.Array, key: str) -> int:
    low = 0
    high = len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle].as_py() < key:
            low = middle + 1
        else:
            high = middle
    return low


ROWS = 10_000
"""Condemned objects that are rechecked, recorded and deleted together."""
_TEXT = pa.large_string()
CONDEMNED = pa.schema(
    [("key", _TEXT), ("nbytes", pa.int64()), ("dataset", _TEXT), ("txn", _TEXT), ("why", _TEXT)]
)
logger = logging.getLogger(__name__)


class Before:
    """The ages of condemned objects in the previous plan. Memory: 0.1 KB per object."""

    def __init__(self, keys: pa.Array, ages: pa.Array) -> None:
        self._keys = keys
        self._ages = ages

    @staticmethod
    def read(store: Store, name: str, at: Moment, most_us: int) -> "Before":
        """Return the ages in the collector's last plan plus the time since; empty if missing or damaged.

        most_us: as for `passed`.
        """
        nothing = Before(pa.array([], _TEXT), pa.array([], pa.int64()))
        key = f"{FOLDER}{name}/plan.parquet"
        try:
            data = store.get(key).data
        except ObjectNotFound:
            return nothing
        try:
            table = parse_table(data, f"{store.url}/{key}", ["key", "age_us"]).combine_chunks()
            step = passed(Moment.from_json(table_facts(table)), at, most_us)
            if step is None or not table.num_rows:
                return nothing
            keys, ages = (column.chunk(0) for column in table.columns)
            return Before(keys.cast(_TEXT), pc.add(ages, step))
        except FormatTooNew:
            raise
        except (pa.ArrowException, ValueError, KeyError, TypeError) as error:  # Corrupt is a ValueError
            logger.warning("%s in %s cannot be read (%s): all grace periods restart", key, store.url, error)
            return nothing

    def ages(self, keys: pa.Array) -> pa.Array:
        """Return each key's age in microseconds, int64; 0 for new objects. keys: ascending."""
        known = stretch(self._keys, keys)
        at = pc.index_in(keys, value_set=self._keys[known])
        return pc.fill_null(self._ages[known].take(at), 0)


class CollectionPlan:
    """A plan in a local file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def due(self, grace_us: int) -> Iterator[pa.Table]:
        """Yield the objects condemned for `grace_us` or longer, at most `ROWS` at a time."""
        for batch in pq.ParquetFile(self._path, pre_buffer=False).iter_batches(
            batch_size=ROWS, use_threads=False
        ):
            table = pa.Table.from_batches([batch])
            ripe = table.filter(pc.greater_equal(table["age_us"], grace_us))
            if ripe.num_rows:
                yield ripe


@contextmanager
def planned(
    store: Store, name: str, condemned: Iterable[pa.Table], at: Moment, grace_us: int
) -> Iterator[CollectionPlan]:
    """Write the plan into the root for the next pass, and into a temporary file.

    condemned: tables with schema `CONDEMNED`, keys ascending throughout.
    """
    # Wall clocks of two runs may differ: one interval counts for half of the grace at most.
    before = Before.read(store, name, at, grace_us // 2)
    facts = {"penstock.table": "condemned", "penstock.schema": "1"}
    facts |= {f"penstock.{fact}": str(value) for fact, value in at.to_json().items()}
    schema = CONDEMNED.append(pa.field("age_us", pa.int64())).with_metadata(facts)
    with scratch_folder() as folder:
        path = folder / "plan.parquet"
        with (
            scratch(),
            pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            for table in condemned:
                if not table.num_rows:
                    continue
                keys = table["key"].combine_chunks()
                aged = table.append_column("age_us", before.ages(keys))
                writer.write_table(aged.cast(schema))
        # Before the sweep, so that a killed one loses no ages.
        store.put_file(f"{FOLDER}{name}/plan.parquet", str(path))
        yield CollectionPlan(path)
