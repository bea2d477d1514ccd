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
"""Samples per lookup. Each lookup hashes all given keys, so small tables are looked up together."""
NAMED = 10
"""Most keys without a sample that an error or a report names."""


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
    # values: the distinct keys. key_number: int64 [rows], the index of each row's key in them.
    values, key_number = codes(keys)
    # [values]: the last row of each key, because a later assignment overwrites an earlier one.
    last_row = np.zeros(len(values), np.int64)
    last_row[key_number] = np.arange(len(key_number))
    if len(values) < len(key_number) and not last_wins:
        raise _duplicate(values, key_number, at)
    empty = np.zeros(0, np.int64)  # `concatenate` needs an array
    sample_keys = [empty]
    sample_positions = [empty]
    sample_rows = [empty]
    for key, position, row in _matches(version, on, values, watch):
        sample_keys.append(key)
        sample_positions.append(position)
        sample_rows.append(row)
    sample_key = np.concatenate(sample_keys)
    if not len(sample_key):
        raise _no_match(version, on, values, at)
    is_matched = np.zeros(len(values), bool)
    is_matched[sample_key] = True
    row_of = last_row[sample_key]
    # By given row: the rows on disk are read in their order, and each batch takes the next samples.
    order = np.argsort(row_of, kind="stable")
    return Matches(
        row_of=row_of[order],
        position=np.concatenate(sample_positions)[order],
        row=np.concatenate(sample_rows)[order],
        unmatched=np.sort(last_row[~is_matched]),
        overruled=len(key_number) - len(values),
    )


def _matches(
    version: Version, on: str, values: pa.Array, watch: Watch
) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
    """Yield live samples as int64 [n] each: number of the key in `values`, position of the part, row in it."""
    files = _column_files(version, on)
    first_row, is_live = _live(version)
    pending: list[pa.Table] = []
    n_pending = 0
    tables = watch(
        get_tables(version.store, files, ["part", "row", on]),
        f"compare with {version.name}",
        lambda key_table: key_table.num_rows,
        lambda: sum(file.n_rows for file in files),
    )
    for number, table in enumerate(tables, 1):
        pending.append(table)
        n_pending += table.num_rows
        if n_pending < MATCH_ROWS and number < len(files):
            continue
        samples = pa.concat_tables(pending)
        pending = []
        n_pending = 0
        key = pc.index_in(samples[on], value_set=values)  # null for a sample that no row names
        named_samples = samples.filter(key.is_valid())
        key_number = integers(key.drop_null())
        position = version.parts.positions(named_samples["part"])
        row = integers(named_samples["row"])
        live = is_live[first_row[position] + row]  # bool [n]
        yield key_number[live], position[live], row[live]


def _column_files(version: Version, on: str) -> list[TableFile]:
    """Return the tables with the column `on`: a text that each sample has from its writer."""
    annotated = set[str]()
    texts = {"key", *SOURCE_COLUMNS}
    texts |= {name for name, body in version.manifest["columns"].items() if body["type"] == "string"}
    files: list[TableFile] = []
    written = set[str]()
    for entry in version.manifest["samples"]:
        if is_annotation(entry):
            annotated |= set(entry["columns"])
            continue
        written |= texts & set(entry["columns"])
        if on in texts and on in entry["columns"]:
            files.append(TableFile.from_json(entry))
    if not files or on in annotated:
        # An annotation may hold a value of a few samples only, or overrule the writer's.
        accepted = ", ".join(sorted(written - annotated))
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
    """Return (int64 [parts + 1]: first row of each part, bool [rows]: True for a live sample)."""
    parts = version.parts
    # One longer than the parts: the end of the last one, too.
    first_row = np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)])
    is_live = np.ones(int(first_row[-1]), bool)
    for position in parts.with_exclusions:
        is_live[first_row[position] : first_row[position + 1]] = parts.live_members(position)
    return first_row, is_live


def _no_match(version: Version, on: str, values: pa.Array, at: Callable[[int], str]) -> InvalidKey:
    if not len(values):
        return InvalidKey("there are no rows; give at least one", what="rows", given=0, accepted=1)
    return InvalidKey(
        f"none of the {len(values)} keys is the {on!r} of a live sample of {version.name}; the first is "
        f"{values[0].as_py()!r}, at {at(0)}. Keys of samples are in version.samples(); on= takes another column",
        what=on,
        where=at(0),
        given=values[0].as_py(),
        accepted=f"{on!r} of a live sample of {version.name}",
    )


def _duplicate(values: pa.Array, key_number: Int64s, at: Callable[[int], str]) -> DuplicateKey:
    rows = np.arange(len(key_number))
    # [values]: the first row of each key. Assigned in reverse order, so that the first one remains.
    first_row = np.zeros(len(values), np.int64)
    first_row[key_number[::-1]] = rows[::-1]
    repeated = rows[first_row[key_number] != rows]
    second = int(repeated[0])
    number = int(key_number[second])
    first = int(first_row[number])
    key = values[number].as_py()
    return DuplicateKey(
        f"key {key!r} is given twice, at {at(first)} and {at(second)} "
        f"({len(repeated)} rows repeat a key); keep one of them, or let the last one win (last_wins=True, --last-wins)",
        what="key",
        where=at(second),
        given=key,
        accepted="each key once",
    )
