"""Edits of a sample's columns since it was written: the values, by whom and when."""

from dataclasses import dataclass

import loader

from ...text import clean
from ..json_record import Record

MOST_COLUMNS = 20
"""Edited columns of a version that are looked at, those of its last annotations first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnEdit(Record):
    """An edit of a column of a sample."""

    column: str
    """Name of the column."""
    value: str
    """The value that it got; "" for one that was taken away."""
    annotation: str
    """Name of the annotation."""
    author: str
    """Author of the edit."""
    at: str
    """Time of the edit in UTC."""


def column_edits(version: loader.Version, ordinal: int) -> tuple[ColumnEdit, ...]:
    """Return the edits of a sample's columns, by column, the oldest first.

    Costs, for each edited column, its annotations and the keys of the samples table. Raises: StoreError; Corrupt.
    """
    newest = [name for one in reversed(version.annotations) for name in one.columns]
    found: list[ColumnEdit] = []
    for column in list(dict.fromkeys(newest))[:MOST_COLUMNS]:
        edits = version.edits(column)
        names = edits.collect_schema().names()
        facts = {
            name: f"edit_{name}" if f"edit_{name}" in names else name
            for name in ("removed", "annotation", "annotated_by", "annotated_at")
        }
        found += [
            ColumnEdit(
                column=clean(column, 80),
                value="" if row[facts["removed"]] else clean(row[column], 400),
                annotation=clean(row[facts["annotation"]], 80),
                author=clean(row[facts["annotated_by"]], 80),
                at=f"{row[facts['annotated_at']]:%Y-%m-%d %H:%M:%S}",
            )
            for row in edits.collect().to_dicts()
            if row["ordinal"] == ordinal
        ]
    return tuple(found)
