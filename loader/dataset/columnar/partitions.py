"""Columns named by folders, as Hive and Spark write them: `lang=de/part-0.parquet` has the column `lang`."""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from ...errors import InvalidSample
from ..names import check_column
from .column_names import metadata_name

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""Numbers whose text comes back. One of 19 digits may be no int64."""


class Partitions:
    """Partition columns of a location's objects: int64 where all values are whole numbers, else text."""

    def __init__(self, keys: Iterable[str], without: Container[str] = (), texts: Iterable[str] = ()) -> None:
        """keys: of all objects. without: columns to leave out. texts: columns that the dataset has as text."""
        known = set(texts)
        for key in keys:
            known |= {
                metadata_name(name)
                for name, value in _pairs(key)
                if not (value is None or _WHOLE.fullmatch(value))
            }
        self.texts, self._without = frozenset(known), without

    def columns(self, key: str) -> Mapping[str, Any]:
        """Return column -> value from an object's folders. Raises: InvalidSample for a column that comes twice."""
        out, named = dict[str, Any](), dict[str, str]()
        for name, value in _pairs(key):
            column = check_column(metadata_name(name), frozenset())
            if name in self._without or column in self._without:
                continue
            if column in named:
                raise InvalidSample(
                    f"{key}: its folders name the column {column!r} twice, by {named[column]!r} and {name!r}: move the "
                    f"object, or leave the column out (--without {name})"
                )
            named[column] = name
            if value is not None:
                out[column] = value if column in self.texts else int(value)
        return out

    def joined(self, key: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row's metadata with its folders' columns. Raises: InvalidSample if the two disagree."""
        columns = self.columns(key)
        for column, value in columns.items():
            if column in metadata and str(metadata[column]) != str(value):
                raise InvalidSample(
                    f"{key}: its folder has {column} = {value!r}, and a row has a column of that name with "
                    f"{metadata[column]!r}: rename the folder, or leave both out (--without {column})"
                )
        return {**columns, **metadata} if columns else metadata


def text_columns(columns: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the text columns of a dataset. columns: of its newest manifest."""
    return {name for name, one in columns.items() if one["type"] == "string"}


def _pairs(key: str) -> Iterable[tuple[str, str | None]]:
    if "=" not in key:
        return
    for folder in key.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name:
            yield unquote(name), None if value == _NULL else unquote(value)
