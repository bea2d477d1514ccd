"""Read JSON objects of a root, and iterate every text in tables and JSON."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader.errors import Corrupt
from loader.json_text import DamagedJson, parse_json_object


def json_object(data: bytes, path: str, url: str) -> dict[str, Any]:
    """Return the JSON object at a path of the store at `url`. Raises: Corrupt."""
    try:
        return parse_json_object(data)
    except DamagedJson as error:
        raise Corrupt(
            f"{url}/{path} is no JSON object ({error}); restore it from a mirror, or delete it"
        ) from error


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, names of entries included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield name
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def cell_texts(table: pa.Table) -> Iterator[str]:
    """Yield every distinct text in a table, also in lists and categories."""
    for name in table.column_names:
        column = table[name]
        if pa.types.is_string(column.type):
            yield from pc.unique(column).drop_null().to_pylist()
        elif pa.types.is_nested(column.type):
            yield from _nested(column.to_pylist())


def _nested(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _nested(item)
    else:
        yield from texts(value)
