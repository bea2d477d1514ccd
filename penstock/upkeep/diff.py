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
    n_a = len(a)
    n_b = len(b)
    excluded = (a.manifest["n_rows"] - n_a, b.manifest["n_rows"] - n_b)
    parts_a = set(a.parts.ids.to_pylist())
    parts_b = set(b.parts.ids.to_pylist())
    groups_a = a.manifest["groups"]
    groups_b = b.manifest["groups"]
    # Shared groups only: another one is added or removed as a whole.
    coverage = {}
    for name in sorted(groups_a.keys() & groups_b.keys()):
        rows = (groups_a[name]["n_rows"], groups_b[name]["n_rows"])
        if rows[0] != rows[1]:
            coverage[name] = rows
    columns_a = column_statistics(a)
    columns_b = column_statistics(b)
    columns = {}
    for name in sorted(columns_a.keys() | columns_b.keys()):
        statistics = (columns_a.get(name), columns_b.get(name))
        if statistics[0] != statistics[1]:
            columns[name] = statistics
    return Diff(
        a=a.name,
        b=b.name,
        samples=(n_a, n_b),
        nbytes=(_nbytes(a), _nbytes(b)),
        parts_added=sorted(parts_b - parts_a),
        parts_removed=sorted(parts_a - parts_b),
        excluded=excluded,
        groups_added=_further_groups(groups_b, groups_a),
        groups_removed=_further_groups(groups_a, groups_b),
        coverage=coverage,
        columns=columns,
        slices=sorted(_slices(b) - _slices(a)),
    )


def _further_groups(groups: dict[str, Any], others: dict[str, Any]) -> dict[str, list[str]]:
    """Return group -> its fields, of groups that the others lack."""
    names = sorted(groups.keys() - others.keys())
    return {name: sorted(groups[name]["field_nbytes"]) for name in names}


def column_statistics(version: Version) -> dict[str, dict[str, Any]]:
    """Return column -> merged statistics, without the sketches."""
    rows = []
    for entry in version.manifest["stats"]:
        table = get_table(version.store, TableFile.from_json(entry))
        rows += table.to_pylist()
    shown = ("type", "n", "nulls", "nans", "zeros", "min", "max", "mean", "categories")
    statistics = {}
    for name, row in merge(rows).items():
        statistics[name] = {key: row[key] for key in shown if row.get(key) is not None}
    return statistics


def _slices(version: Version) -> set[str]:
    """Return the slices that reasons of a version's exclusions name. Reads its tables of exclusions."""
    files = [TableFile.from_json(entry) for entry in version.manifest["exclusions"]]
    slices = set()
    for table in get_tables(version.store, files, ["reason"]):
        for reason in table["reason"].to_pylist():
            # A person's own text, or none, names no slice.
            match = SLICE_REASON.fullmatch(reason or "")
            if match is not None:
                slices.add(match["slice"])
    return slices


def _nbytes(version: Version) -> int:
    return sum(group["nbytes"] for group in version.manifest["groups"].values())
