"""Samples by their keys: a scan of a version's key column, for the few times that keys are given."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..storage.keys import is_text
from .parquet import TableFile, get_tables

if TYPE_CHECKING:
    from .version import Version

Int64s = np.ndarray[Any, np.dtype[np.int64]]


def live_rows(version: "Version", keys: frozenset[str]) -> dict[str, dict[int, str]]:
    """Part id -> row -> key of those of these keys that are live. Reads the key column of every run."""
    rows: dict[str, dict[int, str]] = {}
    wanted = pa.array(sorted(filter(is_text, keys)), pa.string())
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    for table in get_tables(version.store, files, ["part", "row", "key"]):
        mine = table.filter(pc.is_in(table["key"], value_set=wanted))
        for position, at in zip(
            version.parts.positions(mine["part"]).tolist(), mine.to_pylist(), strict=True
        ):
            if version.parts.live_members(position)[at["row"]]:
                rows.setdefault(at["part"], {})[at["row"]] = at["key"]
    return rows


def live_ordinals(version: "Version", keys: Sequence[str]) -> Int64s:
    """int64 ordinal of each key's live sample, -1 where there is none. Costs what `live_rows` does."""
    found: dict[str, int] = {}
    parts = version.parts
    for part, members in live_rows(version, frozenset(keys)).items() if keys else ():
        position = parts.position(part)
        live_before = np.cumsum(parts.live_members(position)) - 1
        for row, key in members.items():
            found[key] = int(parts.first_ordinal[position] + live_before[row])
    return np.array([found.get(key, -1) for key in keys], np.int64)
