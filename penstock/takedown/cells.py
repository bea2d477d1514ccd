"""Names of samples that are taken down, in the cells of tables and in JSON: taken out, what is left stays."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .marks import NAMING, Marks

OWN = frozenset(
    {"key", "raw_key", "uri", "raw_uri", "sha256", "raw_sha256", "unit_id", "source_key", "subject"}
)
"""Columns of a lifecycle table that say whose row it is."""


def scrub(table: pa.Table, marks: Marks, keep: frozenset[str] = frozenset({"key"})) -> pa.Table:
    """The table without names in columns that name other samples or say why; the table itself where it has none.

    A cell that is a name becomes null, in a reason only the name goes. keep: columns that are left alone.
    """
    for position, field in enumerate(table.schema):
        if pa.types.is_string(field.type) and NAMING.search(field.name) and field.name not in keep:
            values = pc.unique(table[field.name]).drop_null().to_pylist()
            if named := {value for value in values if marks.names(value)}:
                new = {value: None if marks.has(value) else marks.without(value) for value in named}
                cells = [new.get(cell, cell) for cell in table[field.name].to_pylist()]
                table = table.set_column(position, field, pa.chunked_array([pa.array(cells, field.type)]))
    return table


def without_rows(table: pa.Table, marks: Marks) -> pa.Table:
    """A lifecycle table without the rows of samples or raw objects that are taken down, and without their names in the
    others; the table itself where there is nothing of them."""
    names = [name for name in table.column_names if name in OWN or name in ("in_id", "out_id")]
    gone = [False] * table.num_rows
    for name in names:
        if pa.types.is_string(table.schema.field(name).type):
            cells = table[name].to_pylist()
            gone = [
                was or (cell is not None and marks.has(cell)) for was, cell in zip(gone, cells, strict=True)
            ]
    left = table.filter(pa.array([not one for one in gone], pa.bool_())) if any(gone) else table
    return scrub(left, marks, keep=frozenset())


def scrubbed(value: Any, marks: Marks) -> Any:
    """JSON without the names: an entry or item that is one goes, in other texts the name does."""
    if isinstance(value, str):
        return marks.without(value) if marks.names(value) else value
    if isinstance(value, Mapping):
        return {name: scrubbed(one, marks) for name, one in value.items() if not marks.has(name)}
    if isinstance(value, list):
        return [scrubbed(one, marks) for one in value if not (isinstance(one, str) and marks.has(one))]
    return value


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of entries included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield name
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)


def cell_texts(table: pa.Table) -> Iterator[str]:
    """Every distinct text in a table: of columns of text, of lists of them, and names of categories."""
    for name in table.column_names:
        column = table[name]
        if pa.types.is_string(column.type):
            yield from pc.unique(column).drop_null().to_pylist()
        elif pa.types.is_nested(column.type):
            yield from _nested(column.to_pylist())


def _nested(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _nested(one)
    else:
        yield from texts(value)
