"""What annotations must come to, said again with dicts: a version's columns, its statistics, and who is refused."""

import copy
import itertools
from dataclasses import dataclass, field

import pyarrow as pa

import loader
from loader.dataset.tables import stats
from loader.dataset.tables.parquet import TableFile, get_table
from loader.errors import Conflict

KINDS = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_()}
_numbers = itertools.count()


@dataclass
class Said:
    """A version. cells: column -> key -> value, of all cells that a file of the column has."""

    live: list = field(default_factory=list)
    cells: dict = field(default_factory=dict)

    def write(self, rows):
        self.live += rows
        for column in {column for row in rows.values() for column in row}:
            self.cells.setdefault(column, {}).update({key: row.get(column) for key, row in rows.items()})

    def said(self, rows, remove):
        """(key, column, value) of what rows say of live samples."""
        return [
            (key, column, value)
            for key, row in rows.items()
            for column, value in row.items()
            if key in self.live and (value is not None or remove)
        ]

    def annotate(self, rows, said):
        for column in {column for row in rows.values() for column in row}:
            held = self.cells.setdefault(column, {})
            for key in dict.fromkeys(key for key, _, _ in said):
                held.setdefault(key, None)
        for key, column, value in said:
            self.cells[column][key] = value


def run(script):
    """Do what a script says and compare after every step, of a long one after some. Raises: AssertionError."""
    root = loader.Root(f"memory://annotated-{next(_numbers)}")
    versions = []  # of the model, as they were published
    often = 1 if len(script) < 12 else 3
    for verb, *what in script:
        now = copy.deepcopy(versions[-1]) if versions else Said()
        if verb == "write":
            write(root, now, *what)
        elif verb == "exclude":
            if what[0] not in now.live or len(now.live) == 1:
                continue
            root.exclude("d", what, reason="x")
            now.live.remove(what[0])
        elif not annotate(root, versions, now, *what):
            continue
        versions.append(now)
        assert len(root.versions("d")) == len(versions)
        if len(versions) % often == 0:
            compare(root.open("d"), now)
    for number in range(1, len(versions) + 1, often):
        columns_are(root.open(f"d@{number}"), versions[number - 1])
    compare(root.open("d"), versions[-1])


def write(root, now, rows):
    with root.write("d", part_samples=2) as writer:
        for key, row in rows.items():
            writer.add(key, {"cls": 1}, metadata=row)
    now.write(rows)


def annotate(root, versions, now, back, rows, remove):
    """Whether there is something to annotate, and nobody said something else since the version that it is made from."""
    base = versions[max(0, len(versions) - 1 - back)]
    number = versions.index(base) + 1
    said = base.said(rows, remove)
    if not said:
        return False

    def value(version, key, column):
        return version.cells.get(column, {}).get(key)

    other = [one for one in said if value(base, one[0], one[1]) != value(now, one[0], one[1])]
    arguments = (f"d@{number}", "labels", rows)
    try:
        root.annotate(*arguments, author="ann", nulls="remove" if remove else "keep")
    except Conflict:
        assert other, f"refused, and nobody had said anything else: {said}"
        return False
    assert not other, f"published over what somebody else had said: {other}"
    now.annotate(rows, said)
    return True


def compare(version, now):
    columns_are(version, now)
    rows = [
        row
        for entry in version.manifest["stats"]
        for row in get_table(version.store, TableFile.from_json(entry)).to_pylist()
    ]
    found = stats.merge(rows)
    for column, cells in now.cells.items():
        if all(value is None for value in cells.values()):
            assert found[column]["n"] == found[column]["nulls"] == len(cells), column
            continue
        table = pa.table({column: pa.array(cells.values(), KINDS[column])})
        expected = stats.merge(stats.column_stats(table).to_pylist())[column]
        for one in (found[column], expected):
            one["categories"] = one["categories"] or None
            one["nans"], one["zeros"] = one["nans"] or 0, one["zeros"] or 0
        assert found[column] == expected, column


def columns_are(version, now):
    frame = version.samples().collect()
    assert sorted(frame["key"]) == sorted(now.live)
    for column, cells in now.cells.items():
        found = dict(zip(frame["key"], frame[column], strict=True))
        assert found == {key: cells.get(key) for key in now.live}, column
        assert dict(version.samples().select("key", column).collect().iter_rows()) == found
