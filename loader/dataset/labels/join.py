"""Match keys with a version's key columns to find the samples that they name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DuplicateKey, FieldNotFound, InvalidKey
from ..progress import Watch, unwatched
from ..tables.columns import SOURCE_COLUMNS, is_annotation
from ..tables.parquet import TableFile, codes, get_tables, integers
from ..versions.version import Version

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MATCH_ROWS = 2**20
"""Samples per lookup. Each lookup hashes all given keys."""
NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    row_of: Int64s
    """int64 [samples], ascending: number of the given row."""
    position: Int64s
    """int64 [samples]: position of the sample's part."""
    row: Int64s
    """int64 [samples]: row in the part."""
    unmatched: Int64s
    """int64, ascending: given rows whose keys no live sample has."""
    overruled: int
    """Rows replaced by a later row of the same key."""


def match_keys(
    version: Version,
    keys: pa.ChunkedArray,
    on: str,
    at: Callable[[int], str],
    *,
    last_wins: bool = False,
    watch: Watch = unwatched,
) -> Matches:
    """Return the live samples whose column `on` is one of these keys (strings, no nulls).

    Reads the tables with this column and takes 24 bytes per match. at: given row -> name for messages.

    Raises: DuplicateKey for a key given twice, unless `last_wins`; FieldNotFound if the column does not identify
    samples; InvalidKey if no key matches.
    """
    values, code = codes(keys)
    last = np.zeros(len(values), np.int64)
    last[code] = np.arange(len(code))
    if len(values) < len(code) and not last_wins:
        raise _duplicate(values, code, at)
    pairs = list(_matches(version, on, values, watch))
    sample_of, position, row = (
        np.concatenate([np.zeros(0, np.int64), *column])
        for column in (zip(*pairs, strict=True) if pairs else ((),) * 3)
    )
    matched = np.zeros(len(values), bool)
    matched[sample_of] = True
    if not len(values):
        raise InvalidKey("there are no rows; give at least one", what="rows", given=0, accepted=1)
    if not len(sample_of):
        raise InvalidKey(
            f"none of the {len(values)} keys is the {on!r} of a live sample of {version.name}; the first is "
            f"{values[0].as_py()!r}, at {at(0)}. Keys of samples are in version.samples(); on= takes another column",
            what=on,
            where=at(0),
            given=values[0].as_py(),
            accepted=f"{on!r} of a live sample of {version.name}",
        )
    sample_of = last[sample_of]
    order = np.argsort(sample_of, kind="stable")
    return Matches(
        row_of=sample_of[order],
        position=position[order],
        row=row[order],
        unmatched=np.sort(last[~matched]),
        overruled=len(code) - len(values),
    )


def _matches(
    version: Version, on: str, values: pa.Array, watch: Watch
) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
    files = _column_files(version, on)
    start, live = _live(version)
    pending: list[pa.Table] = []
    tables = watch(
        get_tables(version.store, files, ["part", "row", on]),
        f"compare with {version.name}",
        lambda key_table: key_table.num_rows,
        lambda: sum(file.n_rows for file in files),
    )
    for number, table in enumerate(tables, 1):
        pending.append(table)
        if number == len(files) or sum(key_table.num_rows for key_table in pending) >= MATCH_ROWS:
            together, pending = pa.concat_tables(pending), []
            key = pc.index_in(together[on], value_set=values)
            together, key = together.filter(key.is_valid()), key.drop_null()
            position, row = version.parts.positions(together["part"]), integers(together["row"])
            ordinals = live[start[position] + row]
            yield integers(key)[ordinals], position[ordinals], row[ordinals]


def _column_files(version: Version, on: str) -> list[TableFile]:
    """Return the tables with the column `on`: a text that each sample has from its writer."""
    annotated = set[str]()
    texts = {"key", *SOURCE_COLUMNS}
    texts |= {name for name, body in version.manifest["columns"].items() if body["type"] == "string"}
    files, there = [], set[str]()
    for entry in version.manifest["samples"]:
        if is_annotation(entry):
            annotated |= set(entry["columns"])
            continue
        there |= texts & set(entry["columns"])
        if on in texts and on in entry["columns"]:
            files.append(TableFile.from_json(entry))
    if not files or on in annotated:
        # An annotation may hold a value of a few samples only, or overrule the writer's.
        accepted = ", ".join(sorted(there - annotated))
        raise FieldNotFound(
            f"samples of {version.name} are not found by {on!r}; accepted are its columns of texts without "
            f"annotations: {accepted}",
            what="on",
            where=version.name,
            given=on,
            accepted=accepted,
        )
    return files


def _live(version: Version) -> tuple[Int64s, Bools]:
    """Return (int64 [parts]: first row of each part, bool [rows]: True for a live sample)."""
    parts = version.parts
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)])
    live = np.ones(int(start[-1]), bool)
    for position in parts.with_exclusions:
        live[start[position] : start[position + 1]] = parts.live_members(position)
    return start, live


def _duplicate(values: pa.Array, code: Int64s, at: Callable[[int], str]) -> DuplicateKey:
    rows = np.arange(len(code))
    first = np.zeros(len(values), np.int64)
    first[code[::-1]] = rows[::-1]
    again = rows[first[code] != rows]
    second = int(again[0])
    key = values[int(code[second])].as_py()
    return DuplicateKey(
        f"key {key!r} is given twice, at {at(int(first[code[second]]))} and {at(second)} "
        f"({len(again)} rows repeat a key); keep one of them, or let the last one win (last_wins=True, --last-wins)",
        what="key",
        where=at(second),
        given=key,
        accepted="each key once",
    )
