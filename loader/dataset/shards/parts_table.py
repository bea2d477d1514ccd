"""Look up a version's parts: the part and row of an ordinal, and each group's shard.

A million shards take 25 MB of arrays and 100 MB of Parquet rows (300 MB decoded). Part names, 45 MB, are decoded on
request. Finding n ordinals costs O(n log parts).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, FieldNotFound, InvalidRuntime
from ..tables.parquet import codes, integers, string_array, take_rows
from .bitmap import Bools, Int64s, SelectTable, pack, unpack
from .numbered_rows import ShardRows

CACHE_NAMES = 4096
"""Most cached part names."""
MISSING = -1
"""Stands for the shard of a part that lacks a group."""
FEW_SHARDS = 2**14
"""Shards up to which comparing names in Python is faster than importing Arrow's functions (40 ms)."""

EXCLUSIONS_SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("bitmap", pa.binary()),
        ("n_rows", pa.int64()),
        ("reason", pa.string()),
    ]
)


class PartsTable:
    """Parts of one version, built from its `shards` and `exclusions` tables. Read-only; thread-safe."""

    def __init__(
        self,
        shards: ShardRows,
        exclusions: Sequence[pa.Table],
        name: str,
    ) -> None:
        self._shards = shards
        self._name = name
        self._names: dict[int, str] = {}  # part position -> its id, for ids that were requested lately

        # All int64 [shards]. `group`: index into `groups`. `shard_rows`: row count. `part`: position of the part.
        self.groups, group, shard_rows = _groups_and_rows(shards)
        # `part` and `_first_shard` are None if the version has one group: then shard i is the only shard of part i.
        part, self._first_shard = _parts(
            shards,
            group,
            n_groups=len(self.groups),
        )
        self.n_rows = self._rows_of_parts(part, shard_rows)

        self._shard_of: dict[str, Int64s] = {}  # group -> [parts]: its shard, or MISSING
        for index, group_name in enumerate(self.groups):
            is_in_group = group == index  # bool [shards]
            shards_of_group = np.flatnonzero(is_in_group)
            self._shard_of[group_name] = self._shard_of_parts(part, shards_of_group)

        self.live_rows = self._live_rows(exclusions)
        self.n_live = self._live_counts()
        self.first_ordinal = np.zeros(len(self) + 1, np.int64)
        np.cumsum(
            self.n_live,
            out=self.first_ordinal[1:],
        )

    def __len__(self) -> int:
        return len(self.n_rows)

    @cached_property
    def ids(self) -> pa.Array:
        """Part ids, in the version's order."""
        table = self._shards.columns("part")
        names = table["part"].combine_chunks()
        if self._first_shard is None:
            return names
        return take_rows(names, self._first_shard)

    def id(self, position: int) -> str:
        """Return a part's id."""
        name = self._names.get(position)
        if name is not None:
            return name

        shard = position
        if self._first_shard is not None:
            first_shard = self._first_shard[position]
            shard = int(first_shard)
        part_name: str = self._shards.value("part", shard)

        if len(self._names) >= CACHE_NAMES:
            self._names.clear()
        self._names[position] = part_name
        return part_name

    def _rows_of_parts(
        self,
        part: Int64s | None,
        shard_rows: Int64s,
    ) -> Int64s:
        """Return int64 [parts]. part: int64 [shards]. Raises: Corrupt if two shards of a part disagree."""
        if part is None or self._first_shard is None:
            return shard_rows
        n_rows = shard_rows[self._first_shard]  # [parts]
        expected = n_rows[part]  # [shards]
        differs = expected != shard_rows
        if differs.any():
            first_different = np.argmax(differs)
            position = int(part[first_different])
            bad = self.id(position)
            raise Corrupt(f"{self._name}: the shards of part {bad} do not have the same number of rows")
        return n_rows

    def _shard_of_parts(
        self,
        part: Int64s | None,
        shards_of_group: Int64s,
    ) -> Int64s:
        """Return int64 [parts]: each part's shard in one group, or MISSING."""
        if part is None:
            return shards_of_group  # one group: shard i belongs to part i
        shard_of = np.full(
            len(self),
            MISSING,
            np.int64,
        )
        positions = part[shards_of_group]
        shard_of[positions] = shards_of_group
        return shard_of

    def _live_counts(self) -> Int64s:
        """Return int64 [parts]: live rows."""
        if not self.live_rows:
            return self.n_rows  # without a copy: a million parts take 8 MB
        n_live = self.n_rows.copy()
        for position, table in self.live_rows.items():
            n_live[position] = len(table)
        return n_live

    def _live_rows(self, exclusions: Sequence[pa.Table]) -> dict[int, SelectTable]:
        """Return part -> its live rows, for parts with exclusions."""
        excluded: dict[int, Bools] = {}
        for table in exclusions:
            positions = self.positions(table["part"])
            entries = zip(
                positions.tolist(),
                table.to_pylist(),
                strict=True,
            )
            for position, entry in entries:
                rows = unpack(entry["bitmap"], entry["n_rows"])  # bool [n_rows]: excluded
                # A part may have rows in several tables: later exclusions add to earlier ones.
                if position in excluded:
                    rows = excluded[position] | rows
                excluded[position] = rows

        live_rows: dict[int, SelectTable] = {}
        for position, rows in excluded.items():
            is_live = ~rows
            live_bits = pack(is_live)
            live_rows[position] = SelectTable(live_bits, len(rows))
        return live_rows

    def positions(self, parts: pa.Array | pa.ChunkedArray | Sequence[str]) -> Int64s:
        """Return these parts' positions in the version's order. Raises: Corrupt for an unknown part."""
        import pyarrow.compute as pc  # 40 ms, saved at startup

        if isinstance(parts, pa.ChunkedArray):
            ids = parts
        elif isinstance(parts, pa.Array):
            ids = pa.chunked_array([parts])
        else:
            ids = pa.chunked_array([string_array(parts)])

        index = pc.index_in(ids, value_set=self.ids)
        if index.null_count:
            is_unknown = index.is_null()
            unknown_ids = ids.filter(is_unknown)
            unknown = unknown_ids[0].as_py()
            raise Corrupt(
                f"{self._name}: a table names part {unknown!r}, which no shard of the version has",
                what="part",
                where=self._name,
                given=unknown,
            )
        return integers(index)

    def part_ids(self, positions: Sequence[int]) -> list[str]:
        """Return the ids of parts at these positions; for a few of many parts, whose names are not all decoded."""
        if len(positions) <= CACHE_NAMES:
            return [self.id(position) for position in positions]
        ids = self.ids
        return [ids[position].as_py() for position in positions]

    def position(self, part: str) -> int:
        positions = self.positions([part])
        return int(positions[0])

    def locate(self, ordinals: Int64s) -> tuple[Int64s, Int64s]:
        """Return (part position, row in the part) for live ordinals, int64 [n] each. Raises: InvalidRuntime."""
        n_ordinals = int(self.first_ordinal[-1])
        is_below = ordinals < 0
        is_above = ordinals >= n_ordinals
        is_outside = is_below | is_above
        if is_outside.any():
            outside = ordinals[is_outside]
            first_outside = int(outside[0])
            last = n_ordinals - 1
            raise InvalidRuntime(
                f"{self._name} has no ordinal {first_outside}; its samples are 0 to {last}",
                what="ordinal",
                where=self._name,
                given=first_outside,
                accepted=[0, last],
            )
        return locate(
            self.first_ordinal,
            self.live_rows,
            ordinals,
        )

    def live_members(self, position: int) -> Bools:
        """Return bool [n_rows] for one part: True for a live row."""
        n_rows = int(self.n_rows[position])
        if position not in self.live_rows:
            return np.ones(n_rows, bool)
        live_rows = self.live_rows[position]
        return unpack(live_rows.packed(), n_rows)

    def live_ordinals(self, positions: Int64s, rows: Int64s) -> Int64s:
        """Return int64 [n]: live ordinals of rows of parts, -1 for excluded rows. The inverse of `locate`.

        positions, rows: int64 [n]; each row exists in its part.
        """
        ordinals: Int64s = self.first_ordinal[positions] + rows
        if not self.live_rows:
            return ordinals
        order = np.argsort(positions, kind="stable")
        ordered = positions[order]
        for position in self.with_exclusions:
            first, end = np.searchsorted(ordered, [position, position + 1]).tolist()
            if first == end:
                continue
            of_part = order[first:end]
            is_live = self.live_members(position)  # [rows of the part]
            n_before = np.cumsum(is_live) - 1  # [rows]: live rows before a live row; unused for others
            own_rows = rows[of_part]
            live = self.first_ordinal[position] + n_before[own_rows]
            ordinals[of_part] = np.where(is_live[own_rows], live, -1)
        return ordinals

    @property
    def with_exclusions(self) -> list[int]:
        """Positions of the parts with exclusions."""
        return sorted(self.live_rows)

    @property
    def has_exclusions(self) -> bool:
        return bool(self.live_rows)

    def has_group(self, group: str) -> Bools:
        """Return bool [parts]: whether each part has a shard of the group."""
        if group not in self._shard_of:
            return np.zeros(len(self), bool)
        shard_of_parts = self._shard_of[group]
        present: Bools = shard_of_parts != MISSING
        return present

    def has_live_group(self, group: str) -> Bools:
        """Return bool [live samples]: whether each sample's part has a shard of the group."""
        has_group = self.has_group(group)
        return np.repeat(has_group, self.n_live)

    def shard(
        self,
        group: str,
        position: int,
    ) -> dict[str, Any]:
        """Return a part's row of the shards table for one group. Raises: FieldNotFound if the part lacks the group."""
        number = MISSING
        if group in self._shard_of:
            shard_of_parts = self._shard_of[group]
            number = int(shard_of_parts[position])
        if number == MISSING:
            raise FieldNotFound(
                f"{self._name}: part {self.id(position)} has no group {group!r}; "
                "select its fields with where_present=True to leave such parts out, "
                "or add the group with root.add_group",
                what="group",
                where=f"{self._name}: part {self.id(position)}",
                given=group,
            )
        return self._shards.row(number)

    def shard_content(self, path: str) -> tuple[str, int] | None:
        """Return (SHA-256 hex, bytes) of the shard at a path, or None."""
        row = self.find_shard(path)
        if row is None:
            return None
        return row["sha256"], row["nbytes"]

    def find_shard(self, path: str) -> dict[str, Any] | None:
        """Return the first row of the shards table with this path, or None. O(shards) once per file of the table.

        Groups of registered samples, and parts of other fields, share a path.
        """
        first_row = 0
        for file in self._shards.files:
            for local in file.path_rows(path):
                row = self._shards.row(first_row + local)
                if row["path"] == path:
                    return row
            first_row += file.n_rows
        return None

    def shard_nbytes(self, group: str) -> list[int]:
        """Return the size of each shard of the group, in the order of the parts."""
        table = self._shards.columns("nbytes")
        nbytes = integers(table["nbytes"])  # [shards], of all groups
        shards_of_group = self._shards_of_group(group)
        nbytes_of_group: list[int] = nbytes[shards_of_group].tolist()
        return nbytes_of_group

    def shard_contents(self, group: str) -> list[tuple[str, str, int]]:
        """Return (path, SHA-256 hex, bytes) of each shard of the group, in the order of the parts."""
        rows = self.shard_columns(group, "path", "sha256", "nbytes")
        return [(row["path"], row["sha256"], row["nbytes"]) for row in rows]

    def shard_columns(
        self,
        group: str,
        *names: str,
    ) -> list[dict[str, Any]]:
        """Return columns of each shard of the group, in the order of the parts; earlier releases lack some."""
        table = self._shards.columns(*names)
        shards_of_group = self._shards_of_group(group)
        return list(table.take(shards_of_group).to_pylist())

    def _shards_of_group(self, group: str) -> Int64s:
        """Return int64 [shards of the group], in the order of the parts."""
        if group not in self._shard_of:
            return np.empty(0, np.int64)
        shard_of_parts = self._shard_of[group]
        is_present = shard_of_parts != MISSING
        shards_of_group: Int64s = shard_of_parts[is_present]
        return shards_of_group

    def shard_rows(self) -> pa.Table:
        """Return the whole `shards` table, in the manifest's order: 300 bytes per shard."""
        return self._shards.columns()


def _groups_and_rows(shards: ShardRows) -> tuple[list[str], Int64s, Int64s]:
    """Return (groups in order of their first shard, group number per shard, row count per shard)."""
    is_few = len(shards) <= FEW_SHARDS
    numbers: dict[str, int] = {}  # group -> its number
    group = np.empty(len(shards), np.int64)
    n_rows = np.empty(len(shards), np.int64)
    start = 0
    for file in shards.files:
        end = start + file.n_rows
        own_names, own_number, own_rows = file.groups(is_few=is_few)
        own_numbers = []
        for name in own_names:
            next_number = len(numbers)
            own_numbers.append(numbers.setdefault(name, next_number))
        by_own_number = np.array(own_numbers, np.int64)
        group[start:end] = by_own_number[own_number]
        n_rows[start:end] = own_rows
        start = end

    groups = list(numbers)
    return groups, group, n_rows


def _parts(
    shards: ShardRows,
    group: Int64s,
    n_groups: int,
) -> tuple[Int64s | None, Int64s | None]:
    """Return (int64 [shards]: part position, int64 [parts]: first shard); (None, None) if each part has one shard."""
    # If every shard has the same group, no part occurs twice, and no names are decoded.
    if n_groups <= 1:
        return None, None

    is_first = shards.part_changes(is_few=len(shards) <= FEW_SHARDS)
    stretch = np.cumsum(is_first) - 1  # [shards]: number of the stretch of equal names
    stretch_start = np.flatnonzero(is_first)  # [stretches]

    # Shards of a part are adjacent, unless a group was added later. A part has at most one shard of a group. So if
    # some group occurs once in every stretch of names, no two stretches belong to one part: each stretch is a part.
    every_stretch = np.arange(len(stretch_start))
    for number in range(n_groups):
        is_of_group = group == number
        stretches_of_group = stretch[is_of_group]
        if np.array_equal(stretches_of_group, every_stretch):
            return stretch, stretch_start

    # Otherwise all names are compared.
    table = shards.columns("part")
    names, part = codes(table["part"])
    n_shards = len(part)
    first_shard = np.full(
        len(names),
        n_shards,
        np.int64,
    )
    np.minimum.at(  # the lowest shard number of each part
        first_shard,
        part,
        np.arange(n_shards),
    )
    return part, first_shard


def locate(
    first: Int64s,
    live_rows: Mapping[int, SelectTable],
    ordinals: Int64s,
) -> tuple[Int64s, Int64s]:
    """Return (part position, row in the part) for ordinals, int64 [n] each. O(n log parts + n).

    first: int64 [parts + 1], ascending: first ordinal of each part, then the number of ordinals. live_rows: part ->
    live rows, for parts with exclusions.
    """
    part = np.searchsorted(first, ordinals, side="right") - 1
    first_of_part = first[part]
    row = ordinals - first_of_part  # [n]: number of the row among the part's live rows
    if not live_rows:
        return part, row

    positions = set(part.tolist())
    for position in sorted(positions):
        if position not in live_rows:  # all rows of the part are live
            continue
        is_of_part = part == position
        of_part = np.flatnonzero(is_of_part)
        row[of_part] = live_rows[position].select(row[of_part])
    return part, row
