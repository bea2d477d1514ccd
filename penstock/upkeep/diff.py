"""`penstock diff`: differences between two versions, from their shards and stats tables."""

from dataclasses import dataclass
from typing import Any

from loader import Version
from loader.dataset.tables.parquet import TableFile, get_table, get_tables
from loader.dataset.tables.stats import merge

from ..exclusion_records import SLICE_REASON


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The differences between two versions. Each pair is (in a, in b)."""

    a: str
    """First version's name."""
    b: str
    """Second version's name."""
    samples: tuple[int, int]
    """Live samples."""
    nbytes: tuple[int, int]
    """Stored bytes of all groups."""
    parts_added: list[str]
    """Ids of parts that only b has."""
    parts_removed: list[str]
    """Ids of parts that only a has."""
    excluded: tuple[int, int]
    """Excluded rows."""
    groups_added: dict[str, list[str]]
    """Group that only b has -> its fields."""
    groups_removed: dict[str, list[str]]
    """Group that only a has -> its fields."""
    coverage: dict[str, tuple[int, int]]
    """Shared group whose row counts differ -> its row counts."""
    columns: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]]
    """Column whose statistics differ -> its statistics; None if a version lacks it."""
    slices: list[str]
    """Slices from which samples of b were excluded that are in a."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def diff(a: Version, b: Version) -> Diff:
    """Return the changes from a to b, by shards and stats tables: O(parts + columns)."""
    parts_a, parts_b = a.parts.ids.to_pylist(), b.parts.ids.to_pylist()
    groups_a, groups_b = a.manifest["groups"], b.manifest["groups"]
    columns_a, columns_b = column_statistics(a), column_statistics(b)
    names = sorted(columns_a.keys() | columns_b.keys())
    return Diff(
        a=a.name,
        b=b.name,
        samples=(len(a), len(b)),
        nbytes=(_nbytes(a), _nbytes(b)),
        parts_added=sorted(set(parts_b) - set(parts_a)),
        parts_removed=sorted(set(parts_a) - set(parts_b)),
        excluded=(a.manifest["n_rows"] - len(a), b.manifest["n_rows"] - len(b)),
        groups_added={
            name: sorted(groups_b[name]["field_nbytes"]) for name in sorted(groups_b.keys() - groups_a.keys())
        },
        groups_removed={
            name: sorted(groups_a[name]["field_nbytes"]) for name in sorted(groups_a.keys() - groups_b.keys())
        },
        coverage={
            name: (groups_a[name]["n_rows"], groups_b[name]["n_rows"])
            for name in sorted(groups_a.keys() & groups_b.keys())
            if groups_a[name]["n_rows"] != groups_b[name]["n_rows"]
        },
        columns={
            name: (columns_a.get(name), columns_b.get(name))
            for name in names
            if columns_a.get(name) != columns_b.get(name)
        },
        slices=sorted(_slices(b) - _slices(a)),
    )


def column_statistics(version: Version) -> dict[str, dict[str, Any]]:
    """Return column -> merged statistics, without the sketches."""
    tables = [get_table(version.store, TableFile.from_json(entry)) for entry in version.manifest["stats"]]
    merged = merge([row for table in tables for row in table.to_pylist()])
    shown = ("type", "n", "nulls", "nans", "zeros", "min", "max", "mean", "categories")
    return {
        name: {key: row[key] for key in shown if row.get(key) is not None} for name, row in merged.items()
    }


def _slices(version: Version) -> set[str]:
    """Return the slices that reasons of a version's exclusions name. Reads its tables of exclusions."""
    files = [TableFile.from_json(entry) for entry in version.manifest["exclusions"]]
    slices = set()
    for table in get_tables(version.store, files, ["reason"]):
        for reason in table["reason"].to_pylist():
            match = SLICE_REASON.fullmatch(reason or "")
            if match is not None:
                slices.add(match["slice"])
    return slices


def _nbytes(version: Version) -> int:
    return sum(group["nbytes"] for group in version.manifest["groups"].values())
