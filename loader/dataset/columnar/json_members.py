"""Turn scalar members of a JSON field into metadata columns, as img2dataset's output needs.

Other values stay in the field. Types are unified here within one archive, and over all samples by `JsonMembers.agreed`.
"""

from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import Any

import pyarrow as pa

from ...json_text import DamagedJson, is_text, parse_members
from ..names import COLUMN
from ..tables.any_columns import MOST_COLUMNS, cast_to_types, common_types, table_of_any
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
        self._without: frozenset[str] = frozenset()
        self._reserved: frozenset[str] = frozenset()
        self._kinds: dict[str, type] = {}  # column -> kind of its first value
        self._notes: dict[str, tuple[int, str]] = {}  # reason -> (number of values, smallest example)
        self._places: set[int] = set()  # hashes of reasons with their locations
        self._lock = Lock()

    def leave_out(
        self,
        without: Collection[str],
        reserved: Collection[str] = (),
        into: "JsonMembers | None" = None,
    ) -> None:
        """Leave out members or columns; `FIELD` leaves out all.

        reserved: columns that get the prefix. into: another object, which receives the counts.
        """
        self._without = frozenset(without)
        self._reserved = frozenset(reserved)
        if into is not None:
            self._lock = into._lock
            self._notes = into._notes
            self._places = into._places
            self._kinds = into._kinds

    def columns(self) -> "JsonColumns | None":
        if FIELD in self._without:
            return None
        return JsonColumns(self)

    def member_column(self, name: str) -> str:
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
        place = hash((what, where))  # a number: locations of many values fit in memory
        with self._lock:
            if place in self._places:
                return
            if len(self._places) < _PLACES:
                self._places.add(place)
        self.count(what, where)

    def count(
        self,
        what: str,
        example: str,
        n: int = 1,
    ) -> None:
        """Count values that became no column. Keeps the smallest example, so that thread order does not matter."""
        with self._lock:
            earlier_n, earlier_example = self._notes.get(what, (0, example))
            self._notes[what] = (earlier_n + n, min(earlier_example, example))

    @property
    def notes(self) -> dict[str, tuple[int, str]]:
        return dict(self._notes)

    def lines(self) -> list[str]:
        lines = []
        for what, (n, example) in sorted(self._notes.items()):
            line = f"{n} {what}, such as {example}"
            if not what.startswith("files of"):  # other members are not values
                line = f"json: {line}"
            lines.append(line)
        return lines

    def check_kind(self, column: str, kind: type) -> None:
        """Note a column whose values have another type in another archive."""
        if len(self._kinds) >= _NAMES:
            return
        first = self._kinds.setdefault(column, kind)
        if first is not kind and {first, kind} != {int, float}:
            self.note(MIXED, column)

    def agreed(
        self,
        tables: Sequence[pa.Table],
        known: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, str]:
        """Return column -> common type of all tables. known: columns in the dataset's newest manifest."""
        known_types: dict[str, str] = {}
        n_metadata = 0
        for name, column in known.items():
            if column["type"] != "null":
                known_types[name] = column["type"]
            if column["group"] == "metadata":
                n_metadata += 1
        types, left_out = common_types(tables, known_types, MOST_COLUMNS - n_metadata)

        for name in sorted(types):
            if types[name] != "string" or name in known_types:
                continue
            kinds = {str(table.schema.field(name).type) for table in tables if name in table.column_names}
            if not kinds <= {"null", "string"}:
                self.note(MIXED, name)
        if left_out:
            reason = f"columns are beyond the {MOST_COLUMNS} of a dataset"
            self.count(reason, min(left_out), len(left_out))
        return types

    def as_agreed(self, table: pa.Table, types: Mapping[str, str]) -> pa.Table:
        """Return a table cast to these types, without other columns. Keys and provenance stay."""
        agreed, lost = cast_to_types(table, types)
        for name, (n, value) in lost.items():
            reason = f"values of {name} are not {types[name]}, which the dataset has, and are null"
            self.count(reason, repr(value[:80]), n)
        return agreed


class JsonColumns:
    """Columns from one archive's JSON documents, in document order."""

    def __init__(self, members: JsonMembers) -> None:
        self._members = members
        self._rows: list[dict[str, Any]] = []
        self._chunks: list[tuple[pa.Table, int]] = []  # (columns of earlier rows, number of rows)
        self._column_of: dict[str, str] = {}  # member -> column, or ""
        self._kind_of: dict[str, type] = {}  # column -> kind of its first value
        self._mixed: dict[str, str] = {}  # column -> where its second kind first occurs

    def add(
        self,
        data: bytes | None,
        of: str,
        at: int,
    ) -> None:
        """Add the next sample's document; None if it exceeds `MOST_BYTES`.

        of, at: archive name and the document's first byte, for notes.
        """
        self._rows.append(self.row(data, of, at))
        if len(self._rows) == _ROWS:
            self._settle()

    def row(
        self,
        data: bytes | None,
        of: str,
        at: int,
    ) -> dict[str, Any]:
        if data is None:
            self._members.note(f"documents have more than {MOST_BYTES:,} bytes", f"{of}, byte {at}")
            return {}
        try:
            members = parse_members(data)
        except DamagedJson as error:
            self._members.note("documents are not JSON objects", f"{of}, byte {at}: {error}")
            return {}
        return self._values(members, of, at)

    def table(self) -> pa.Table | None:
        self._settle()
        if not self._kind_of:
            return None
        tables = [table for table, _ in self._chunks]
        types, _ = common_types(tables, {}, MOST_COLUMNS)
        for name, where in self._mixed.items():
            if types[name] == "string":
                self._members.note("columns of archives are text, since kinds of values mix", where)
        agreed_tables = []
        for table, n in self._chunks:
            agreed, _ = cast_to_types(table, types)
            columns = {}
            for name in sorted(types):
                if name in agreed.column_names:
                    columns[name] = agreed[name]
                else:
                    columns[name] = pa.nulls(n)
            agreed_tables.append(pa.table(columns))
        # Types agree by now; only columns of nulls still differ.
        whole = pa.concat_tables(agreed_tables, promote_options="default")
        return whole.combine_chunks()

    def _values(
        self,
        members: Mapping[str, Any],
        of: str,
        at: int,
    ) -> dict[str, Any]:
        """Return column -> value, of members that become columns."""
        row: dict[str, Any] = {}
        for name, value in members.items():
            kind = value.__class__
            if value is None or kind is list or kind is dict:
                continue
            if kind is str and not _is_short(value):
                why = f"texts are longer than {MOST_TEXT_BYTES:,} bytes, or are not UTF-8"
                self._note(why, name, of, at)
                continue
            # Looked up here, and not in a method: most members come in every document.
            column = self._column_of.get(name)
            if column is None:
                column = self._new_column(name)
            if not column:
                continue
            if column in row:
                self._note("names are one column with another name", name, of, at)
                if column != name:  # the member of exactly this name applies
                    continue
            first_kind = self._kind_of.get(column)
            if first_kind is None:
                if len(self._kind_of) == MOST_COLUMNS:
                    why = f"values are beyond the {MOST_COLUMNS} columns of an archive"
                    self._note(why, name, of, at)
                    continue
                self._kind_of[column] = kind
                self._members.check_kind(column, kind)
            elif first_kind is not kind and column not in self._mixed:
                self._mixed[column] = f"{column} at {of}, byte {at}"
            row[column] = value
        return row

    def _new_column(self, name: str) -> str:
        column = self._members.member_column(name)
        if len(self._column_of) < _NAMES:
            self._column_of[name] = column
        return column

    def _note(
        self,
        why: str,
        name: str,
        of: str,
        at: int,
    ) -> None:
        self._members.note(why, f"{of}, byte {at}: {name[:80]!r}")

    def _settle(self) -> None:
        """Turn the rows so far into columns, which take less memory."""
        if self._rows:
            table = table_of_any(self._rows)
            self._chunks.append((table, len(self._rows)))
            self._rows = []


def _is_short(text: str) -> bool:
    if len(text) > MOST_TEXT_BYTES:
        return False
    return text.isascii() or (is_text(text) and len(text.encode()) <= MOST_TEXT_BYTES)
