"""Read the columns of the rows that no step of a run has decided, from the tables of a version."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..dataset.shards.parts_table import PartsTable
from ..dataset.tables.parquet import integers, take_rows
from ..dataset.versions.sample_rows import columns_of_rows
from ..dataset.versions.version import Version
from ..errors import Corrupt, InvalidSample, PlanMismatch
from .cursor import Cursor, range_rows, ranges_by_part
from .decide import GroupChoice, Verdict

Int64s = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_ROWS = 4096
"""Rows that are read together. A decision reads no further than it must: a backlog may hold millions."""
PLACES = ("part", "row", "ordinal", "transaction")
"""Columns of a row's position: its part, its row there, its ordinal in the version, its transaction's first part."""
NEEDED = ("group_id", "policy_min")
"""Columns that decide: each row must have a value."""
COUNTED = ("env", "n_tokens", "reward")
"""Columns that decide nothing: a decision counts by them, and a user reads them."""


def check_continues(version: Version, cursor: Cursor, run: str) -> bool:
    """Return whether a version has all parts that a run has decided.

    Raises: PlanMismatch if other parts have taken their numbers: then rows would be skipped.
    """
    parts = version.parts
    if len(parts) < cursor.parts:
        return False
    if not cursor.parts:
        return True
    last = parts.id(cursor.parts - 1)
    if last != cursor.last:
        raise PlanMismatch(
            f"{version.name} has the part {last!r} where run {run!r} decided the rollouts of "
            f"{cursor.last!r}, under version {cursor.version}: that version was retired, and this one does not "
            "continue it. Give the run another name; like= and until= repeat its steps",
            what=f"part {last!r}",
            where=version.name,
            given=cursor.last,
        )
    return True


def read_undecided(
    version: Version,
    cursor: Cursor,
    block_rows: int = BLOCK_ROWS,
) -> Iterator[tuple[pa.Table, int]]:
    """Yield (undecided live rows so far, parts that these are all of), a block of whole transactions at a time.

    Columns: part, row, ordinal, transaction (int64), group_id, policy_min, env, n_tokens, reward. A group lies in one
    transaction, so each of its rows is in one block.

    Raises: InvalidSample for a row without group_id or policy_min; Corrupt.
    """
    parts = version.parts
    read: list[pa.Table] = []
    for positions in _blocks(parts, cursor, block_rows):
        rows = _rows_of_parts(version, cursor, positions)
        read.append(rows)
        last = positions[-1]
        yield pa.concat_tables(read), last + 1


def _blocks(parts: PartsTable, cursor: Cursor, block_rows: int) -> Iterator[list[int]]:
    """Yield positions of parts with undecided rows, block by block; a transaction's parts are in one block.

    block_rows: rows of a block, exceeded until its last transaction is complete.
    """
    block: list[int] = []
    n_rows = 0
    transaction = None
    new_parts = range(cursor.parts, len(parts))
    for position in [*sorted(cursor.ranges), *new_parts]:
        own = part_transaction(parts, position)
        if n_rows >= block_rows and own != transaction:
            yield block
            block = []
            n_rows = 0
        transaction = own
        block.append(position)
        n_part_rows = parts.n_rows[position]
        n_rows += int(n_part_rows)
    if block:
        yield block


def part_transaction(parts: PartsTable, position: int) -> str:
    """Return the id of the transaction that wrote a part."""
    part = parts.id(position)
    transaction, _, _ = part.rpartition("-")  # a part is named <transaction>-<name>
    return transaction


def _rows_of_parts(
    version: Version,
    cursor: Cursor,
    positions: list[int],
) -> pa.Table:
    """Return the undecided live rows of neighbouring parts, as `read_undecided` yields them."""
    parts = version.parts
    none = np.zeros(0, np.int64)  # `concatenate` needs an array
    places: dict[str, list[Int64s]] = {}  # name -> int64 [rows of a part] for each part
    for name in PLACES:
        places[name] = [none]
    first_position = -1  # of the transaction's first part in the block
    transaction = None
    for position in positions:
        own = part_transaction(parts, position)
        if own != transaction:
            transaction = own
            first_position = position
        rows, ordinals = _open_rows(version, cursor, position)
        n_rows = len(rows)
        part = np.full(n_rows, position)
        first = np.full(n_rows, first_position)
        places["part"].append(part)
        places["row"].append(rows)
        places["ordinal"].append(ordinals)
        places["transaction"].append(first)
    joined = {}
    for name, arrays in places.items():
        joined[name] = np.concatenate(arrays)
    return _with_columns(version, joined)


def _open_rows(
    version: Version,
    cursor: Cursor,
    position: int,
) -> tuple[Int64s, Int64s]:
    """Return (rows, their ordinals) of a part's undecided live rows, int64 [rows] each."""
    parts = version.parts
    n_rows = int(parts.n_rows[position])
    rows = np.arange(n_rows)
    if position < cursor.parts:
        ranges = cursor.ranges[position]
        stop = int(ranges[-1, 1])
        if stop > n_rows:  # before the ranges are filled: a damaged record could claim any number
            raise Corrupt(
                f"part {parts.id(position)} of {version.name} has {n_rows} rows; the record of a decision counts "
                f"{stop}: it was damaged. Restore follows/ from a mirror",
                what=f"part {parts.id(position)}",
                where=version.name,
                given=n_rows,
                accepted=stop,
            )
        rows = range_rows(ranges)
    first_ordinal = int(parts.first_ordinal[position])
    if position not in parts.live_rows:
        return rows, first_ordinal + rows
    is_live = parts.live_members(position)  # bool [rows of the part]
    n_live = np.cumsum(is_live, dtype=np.int64)  # [rows of the part]: live rows up to each
    live_rows = rows[is_live[rows]]
    # Ordinals count live rows only.
    ordinals: Int64s = first_ordinal + n_live[live_rows] - 1
    return live_rows, ordinals


def _with_columns(version: Version, places: dict[str, Int64s]) -> pa.Table:
    """Return the rows with their columns. places: `PLACES` -> int64 [rows]."""
    stored_columns = version.manifest["columns"]
    missing = [name for name in NEEDED if name not in stored_columns]
    if missing:
        raise InvalidSample(
            f"{version.name} has no column {missing[0]}: loader.online reads rollouts. Write them with loader.rollout, "
            "with versions= for tokens that a policy sampled",
            what=f"column {missing[0]}",
            where=version.name,
        )
    # Group of columns, not of rollouts. `columns_of_rows` reads one: counted columns of others are as if missing.
    column_group = stored_columns["group_id"]["group"]
    names = []
    for name in (*NEEDED, *COUNTED):
        column = stored_columns.get(name)
        if column is not None and column["group"] == column_group:
            names.append(name)
    columns = columns_of_rows(
        version,
        places["part"],
        places["row"],
        names,
    )
    for name in NEEDED:
        _check_values(
            version,
            columns,
            name,
            places["ordinal"],
        )

    n_rows = len(places["row"])
    env = _column(columns, "env", pa.string(), n_rows)
    n_tokens = _column(columns, "n_tokens", pa.int64(), n_rows)
    arrays: dict[str, Any] = {name: pa.array(values) for name, values in places.items()}
    arrays["group_id"] = pc.cast(columns["group_id"], pa.string())
    arrays["policy_min"] = pc.cast(columns["policy_min"], pa.int64())
    arrays["env"] = pc.fill_null(env, "")
    arrays["n_tokens"] = pc.fill_null(n_tokens, 0)
    arrays["reward"] = _column(columns, "reward", pa.float64(), n_rows)
    return pa.table(arrays)


def _column(
    columns: pa.Table,
    name: str,
    kind: pa.DataType,
    n_rows: int,
) -> Any:
    """Return a counted column, cast to `kind`; nulls if the dataset lacks it, or a value cannot be cast."""
    if name not in columns.column_names:
        return pa.nulls(n_rows, kind)
    try:
        return pc.cast(columns[name], kind)
    # It decides nothing (`COUNTED`), so a column of another type must not stop the training.
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(n_rows, kind)


def _check_values(
    version: Version,
    columns: pa.Table,
    name: str,
    ordinals: Int64s,
) -> None:
    """Raise InvalidSample unless each row has a value of the right type. ordinals: int64 [rows]."""
    values = columns[name]
    is_missing = values.is_null().to_numpy()
    missing = ordinals[is_missing]
    n_missing = len(missing)
    if n_missing:
        (key,) = version.keys(missing[:1])
        raise InvalidSample(
            f"{version.name}: sample {key!r} has no {name}, as {n_missing} undecided samples have none. Write rollouts "
            "with loader.rollout(..., versions=) and at least one sampled token, or leave these out: "
            f"root.exclude({version.dataset!r}, [{key!r}], reason=...)",
            what=name,
            where=f"{version.name}, sample {key!r}",
            given=n_missing,
        )
    if not len(values):
        return
    kind = values.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if name == "group_id" and not is_text:
        raise InvalidSample(f"{version.name}: column group_id is {kind}; texts are needed")
    if name == "policy_min" and not pa.types.is_integer(kind):
        raise InvalidSample(f"{version.name}: column policy_min is {kind}; whole numbers are needed")


def next_cursor(
    version: Version,
    cursor: Cursor,
    rows: pa.Table,
    n_parts_read: int,
    choice: GroupChoice,
) -> Cursor:
    """Return the position after a decision. Rows that are not live count as decided.

    rows, n_parts_read: what `read_undecided` yielded for the decision to choose from. `rows` has live rows only.
    """
    is_undecided = choice.verdicts == Verdict.UNDECIDED
    parts = integers(rows["part"])
    part_rows = integers(rows["row"])
    ranges = ranges_by_part(
        parts[is_undecided],
        part_rows[is_undecided],
    )
    for part, part_ranges in cursor.ranges.items():
        # Earlier decisions left rows of this part, and this one had enough groups before it read them.
        if part >= n_parts_read:
            ranges[part] = part_ranges
    n_parts = max(cursor.parts, n_parts_read)
    return Cursor(
        version=version.id,
        parts=n_parts,
        last=version.parts.id(n_parts - 1),
        ranges=ranges,
    )


def rows_of_decision(rows: pa.Table, after: Cursor) -> pa.Table:
    """Return the rows among these that are decided at a later position. rows: columns part and row."""
    parts = integers(rows["part"])
    part_rows = integers(rows["row"])
    is_decided = parts < after.parts
    for part, ranges in after.ranges.items():
        bounds = np.searchsorted(parts, [part, part + 1])
        own = slice(*bounds.tolist())  # the rows of the part
        undecided = range_rows(ranges)
        is_undecided = np.isin(part_rows[own], undecided)
        is_decided[own] &= ~is_undecided
    numbers = np.flatnonzero(is_decided)
    return take_rows(rows, numbers)
