"""Read some columns of numbers and the metrics of a run log's object, whose size is checked before it is parsed."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from ...dataset.tables.parquet import UNREADABLE, parse_table
from ...errors import Corrupt, FormatTooNew
from ...modalities.fields import is_machine_fault
from .step_rows import NOTE

MOST_OBJECT_BYTES = 8 * 2**20
"""Most stored bytes of an object."""
MOST_NUMBERS = 2**23
"""Most rows times columns of an object: a forged one of 8 MiB may unpack to gigabytes."""


def row_numbers(data: bytes, where: str, required: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the required columns, in these types, and all metrics as float64.

    where: the object's name, for messages. Raises: Corrupt if a required column is missing or lacks a value;
    FormatTooNew.
    """
    try:
        # Not the schema of its footer: the two refer to each other, and wait for the garbage collector.
        reader = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        types = dict(required)
        for field in reader.schema_arrow:
            if not field.name.startswith(NOTE):
                continue
            if not pa.types.is_primitive(field.type):
                raise ValueError("a metric is not a number")
            types[field.name] = pa.float64()
        names = list(types)
        n_rows = reader.metadata.num_rows
        if n_rows * len(names) > MOST_NUMBERS:
            raise ValueError(f"{n_rows:,} rows with {len(names)} columns")
        table = parse_table(data, where, names)
        table = table.select(names)
        table = table.cast(pa.schema(types))
        for name in required:
            if table[name].null_count:
                raise ValueError(f"a step lacks its {name}")
    except FormatTooNew:
        raise
    except (KeyError, *UNREADABLE) as error:
        if is_machine_fault(error):
            raise
        raise Corrupt(
            f"{where} is not a table of a trail ({error}); restore or delete it",
            what="table",
            where=where,
            given=str(error),
        ) from error
    return table
