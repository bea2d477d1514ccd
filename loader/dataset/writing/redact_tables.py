"""Write redacted copies of the samples table: values of given samples become null, and keys placeholders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...storage import Store
from ..tables.manifest import SamplesFile
from ..tables.parquet import TableFile, get_table, get_tables, put_named_table, table_facts
from ..tables.stats import column_stats

KeysAfterRedaction = dict[str, dict[int, str]]
"""Part id -> row to redact -> its key afterwards."""


def redact_samples(
    store: Store,
    prefix: str,
    files: Sequence[SamplesFile],
    rows: KeysAfterRedaction,
) -> tuple[SamplesFile, ...]:
    """Return samples files in which these rows are null except for the key. Files without such rows are unchanged."""
    redacted_files = []
    for file in files:
        table = get_table(store, file.file)
        redacted = redact_rows(table, positions_to_redact(table, rows))
        if redacted is table:  # no row to redact
            redacted_files.append(file)
            continue
        kind = table_facts(table)["table"]
        redacted_table = put_named_table(
            store,
            prefix,
            redacted,
            kind,
        )
        redacted_files.append(replace(file, file=redacted_table))
    return tuple(redacted_files)


def positions_to_redact(table: pa.Table, rows: KeysAfterRedaction) -> dict[int, str]:
    """Return position in the table -> new key, for the rows to redact. table: has the columns part and row."""
    if not rows:
        return {}
    new_keys = {}
    parts = table["part"].to_pylist()
    part_rows = table["row"].to_pylist()
    for position, (part, row) in enumerate(zip(parts, part_rows, strict=True)):
        if row in rows.get(part, ()):
            new_keys[position] = rows[part][row]
    return new_keys


def redact_rows(table: pa.Table, redacted: Mapping[int, str]) -> pa.Table:
    """Return the table with nulls in these rows, except part, row and the new key.

    redacted: from `positions_to_redact`; if it is empty, the result is `table` itself.
    """
    if not redacted:
        return table
    is_redacted = np.zeros(table.num_rows, bool)
    is_redacted[list(redacted)] = True
    for position, name in enumerate(table.column_names):
        if name in ("part", "row"):
            continue
        if name == "key":
            values = table[name].to_pylist()
            for row, new_key in redacted.items():
                values[row] = new_key
        else:
            values = _with_nulls(table[name], is_redacted)
        field = table.schema.field(name)
        column = pa.chunked_array([pa.array(values, field.type)])
        table = table.set_column(position, field, column)
    return table


def _with_nulls(column: pa.ChunkedArray, is_null: "np.ndarray[Any, np.dtype[np.bool_]]") -> pa.Array:
    # Taking with a null index gives null, for every type.
    positions = pa.array(np.arange(len(is_null)), mask=is_null)
    return column.combine_chunks().take(positions)


def redact_stats(
    store: Store,
    prefix: str,
    samples: Sequence[TableFile],
) -> TableFile:
    """Write statistics of these tables, which are redacted already."""
    statistics = [column_stats(table) for table in get_tables(store, samples)]
    return put_named_table(
        store,
        prefix,
        pa.concat_tables(statistics),
        "stats",
    )
