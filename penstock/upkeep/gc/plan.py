"""The plan: every condemned object, why, and how long the collector has seen it condemned.

    collect/<name>/plan.parquet    key, nbytes, dataset, txn, why, age_us; in key order

Written anew at each look: known objects grow older, others begin at 0.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loader.dataset.tables.parquet import parse_table, table_facts
from loader.errors import FormatTooNew, ObjectNotFound
from loader.storage import Store

from .clients import FOLDER
from .clock import Moment, passed
from .listing import scratch, scratch_folder, stretch

ROWS = 10_000
"""Condemned objects that are checked again, recorded and deleted together."""
_TEXT = pa.large_string()
CONDEMNED = pa.schema(
    [("key", _TEXT), ("nbytes", pa.int64()), ("dataset", _TEXT), ("txn", _TEXT), ("why", _TEXT)]
)
logger = logging.getLogger(__name__)


class Before:
    """The ages of condemned objects in the previous plan. Memory: 0.1 KB per object."""

    def __init__(self, keys: pa.Array, ages: pa.Array) -> None:
        self._keys, self._ages = keys, ages

    @staticmethod
    def read(store: Store, name: str, at: Moment, most_us: int) -> "Before":
        """Return the ages of the collector's plan plus the time that passed; none if it is missing or damaged.

        most_us: as for `passed`. Raises: FormatTooNew; StoreError.
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
            logger.warning("%s in %s cannot be read (%s): every grace begins again", key, store.url, error)
            return nothing

    def ages(self, keys: pa.Array) -> pa.Array:
        """Return int64 us for each of `keys` (ascending); 0 for new objects."""
        known = stretch(self._keys, keys)
        at = pc.index_in(keys, value_set=self._keys[known])
        return pc.fill_null(self._ages[known].take(at), 0)


class Plan:
    """A plan in a file on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def due(self, grace_us: int) -> Iterator[pa.Table]:
        """Yield the objects condemned for so long, at most `ROWS` at a time."""
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
) -> Iterator[Plan]:
    """Write the plan into the root for the next look, and into a temporary file.

    condemned: tables of `CONDEMNED`, keys ascending over all. Raises: StoreError.
    """
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
        store.put_file(f"{FOLDER}{name}/plan.parquet", str(path))
        yield Plan(path)
