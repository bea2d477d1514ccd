"""Turn scalar members of a JSON field into metadata columns, as img2dataset's output needs.

Other values stay in the field. Types are unified here within one archive, and over all samples by `agreed_columns`.
"""

from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import Any

import pyarrow as pa

from ...json_text import DamagedJson, is_text, parse_members
from ..names import COLUMN
from ..tables.any_columns import MOST_COLUMNS, agreed_types, as_agreed, table_of_any
from .column_names import MOST_TEXT_BYTES, metadata_name

FIELD = "json"
"""Field whose members become columns. Also the prefix for members with reserved names."""
MOST_BYTES = 64 * 2**10
MIXED = "columns are text, or keep the dataset's type, since kinds of values mix"
_ROWS = 1024
_PLACES = 2**17
_NAMES = 4096
"""Most members of one archive whose columns are remembered."""


class JsonMembers:
    """Settings for reading a location's JSON documents, and counts of values that became no column. Thread-safe."""

    def __init__(self) -> None:
        self._without, self._reserved = frozenset[str](), frozenset[str]()
        self._kinds = dict[str, type]()
        self._lock, self._notes, self._places = Lock(), dict[str, tuple[int, str]](), set[int]()

    def leave_out(
        self,
        without: Collection[str],
        reserved: Collection[str] = (),
        into: "JsonMembers | None" = None,
    ) -> None:
        """Leave out members or columns; `FIELD` leaves out all.

        reserved: columns that get the prefix. into: another object, which receives the counts.
        """
        self._without, self._reserved = frozenset(without), frozenset(reserved)
        if into is not None:
            self._lock, self._notes = into._lock, into._notes
            self._places, self._kinds = into._places, into._kinds

    def columns(self) -> "JsonColumns | None":
        return None if FIELD in self._without else JsonColumns(self)

    def column_of(self, name: str) -> str:
        """Return a member's column; "" if it is left out or its name is too long."""
        column = metadata_name(name, FIELD)
        if column in self._reserved:
            column = f"{FIELD}_{column}"
        if name in self._without or column in self._without:
            return ""
        if not COLUMN.match(column):
            self.note("names are too long for columns", f"{name[:80]!r}")
            return ""
        return column

    def note(self, what: str, where: str) -> None:
        """Count a value that became no column, once per location: some archives are read twice."""
        with self._lock:
            if (hashed := hash((what, where))) in self._places:
                return
            if len(self._places) < _PLACES:
                self._places.add(hashed)
        self.count(what, where)

    def count(self, what: str, example: str, n: int = 1) -> None:
        """Count values that became no column. Keeps the smallest example, so that thread order does not matter."""
        with self._lock:
            before, least = self._notes.get(what, (0, example))
            self._notes[what] = before + n, min(least, example)

    @property
    def notes(self) -> dict[str, tuple[int, str]]:
        return dict(self._notes)

    def lines(self) -> list[str]:
        lines = []
        for what, (n, example) in sorted(self._notes.items()):
            front = "json: " if not what.startswith("files of") else ""  # other members are no values
            lines.append(f"{front}{n} {what}, such as {example}")
        return lines

    def check_kind(self, column: str, kind: type) -> None:
        """Note a column whose values have another type in another archive."""
        first = self._kinds.setdefault(column, kind) if len(self._kinds) < _NAMES else kind
        if first is not kind and {first, kind} != {int, float}:
            self.note(MIXED, column)

    def agreed(self, tables: Sequence[pa.Table], known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return column -> common type of all tables. known: columns in the dataset's newest manifest."""
        there = {name: one["type"] for name, one in known.items() if one["type"] != "null"}
        n_known = sum(one["group"] == "metadata" for one in known.values())
        types, left_out = agreed_types(tables, there, MOST_COLUMNS - n_known)
        for name in sorted(name for name, kind in types.items() if kind == "string" and name not in there):
            kinds = {str(one.schema.field(name).type) for one in tables if name in one.column_names}
            if not kinds <= {"null", "string"}:
                self.note(MIXED, name)
        if left_out:
            self.count(f"columns are beyond the {MOST_COLUMNS} of a dataset", min(left_out), len(left_out))
        return types

    def as_agreed(self, table: pa.Table, types: Mapping[str, str]) -> pa.Table:
        """Return a table cast to these types, without other columns. Keys and provenance stay."""
        agreed, lost = as_agreed(table, types)
        for name, (n, value) in lost.items():
            self.count(
                f"values of {name} are no {types[name]}, which the dataset has, and are null",
                repr(value[:80]),
                n,
            )
        return agreed


class JsonColumns:
    """Columns from one archive's JSON documents, in document order."""

    def __init__(self, members: JsonMembers) -> None:
        self._members = members
        self._rows, self._chunks = list[dict[str, Any]](), list[tuple[pa.Table, int]]()
        self._column_of, self._kind_of = dict[str, str](), dict[str, type]()
        self._mixed = dict[str, str]()

    def add(self, data: bytes | None, of: str, at: int) -> None:
        """Add the next sample's document; None if it exceeds `MOST_BYTES`.

        of, at: archive name and the document's first byte, for notes.
        """
        self._rows.append(self.row(data, of, at))
        if len(self._rows) == _ROWS:
            self._settle()

    def row(self, data: bytes | None, of: str, at: int) -> dict[str, Any]:
        if data is None:
            self._members.note(f"documents have more than {MOST_BYTES:,} bytes", f"{of}, byte {at}")
            return {}
        try:
            return self._values(parse_members(data), of, at)
        except DamagedJson as error:
            self._members.note("documents are no JSON objects", f"{of}, byte {at}: {error}")
            return {}

    def table(self) -> pa.Table | None:
        self._settle()
        if not self._kind_of:
            return None
        types, _ = agreed_types((table for table, _ in self._chunks), {}, MOST_COLUMNS)
        for name, where in self._mixed.items():
            if types[name] == "string":
                self._members.note("columns of archives are text, since kinds of values mix", where)
        names, every = sorted(types), list[pa.Table]()
        for table, n in self._chunks:
            agreed, _ = as_agreed(table, types)
            there = {name: agreed[name] if name in agreed.column_names else pa.nulls(n) for name in names}
            every.append(pa.table(there))
        return pa.concat_tables(every, promote_options="default").combine_chunks()

    def _values(self, members: Mapping[str, Any], of: str, at: int) -> dict[str, Any]:
        row = dict[str, Any]()
        for name, value in members.items():
            if value is None or value.__class__ is list or value.__class__ is dict:
                continue
            if value.__class__ is str and not _is_short(value):
                why = f"texts are longer than {MOST_TEXT_BYTES:,} bytes, or are no UTF-8"
                self._members.note(why, f"{of}, byte {at}: {name[:80]!r}")
                continue
            if (column := self._column_of.get(name)) is None:
                column = self._members.column_of(name)
                if len(self._column_of) < _NAMES:
                    self._column_of[name] = column
            if not column:
                continue
            if column in row:
                self._members.note(
                    "names are one column with another name", f"{of}, byte {at}: {name[:80]!r}"
                )
                if column != name:
                    continue
            if column not in self._kind_of:
                if len(self._kind_of) == MOST_COLUMNS:
                    why = f"values are beyond the {MOST_COLUMNS} columns of an archive"
                    self._members.note(why, f"{of}, byte {at}: {name[:80]!r}")
                    continue
                self._kind_of[column] = value.__class__
                self._members.check_kind(column, value.__class__)
            elif self._kind_of[column] is not value.__class__ and column not in self._mixed:
                self._mixed[column] = f"{column} at {of}, byte {at}"
            row[column] = value
        return row

    def _settle(self) -> None:
        if self._rows:
            self._chunks.append((table_of_any(self._rows), len(self._rows)))
            self._rows = []


def _is_short(text: str) -> bool:
    if len(text) > MOST_TEXT_BYTES:
        return False
    return text.isascii() or (is_text(text) and len(text.encode()) <= MOST_TEXT_BYTES)
