"""Edits of the records of training runs: windows name slow samples, and failures quote errors.

A takedown cannot search an object that it cannot parse. It deletes these: runs go on without them.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pyarrow as pa

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.tables.parquet import parse_small_table, table_bytes
from loader.errors import Corrupt, FormatTooNew
from loader.storage import ObjectInfo, Store

from ...denied.cells import json_object
from ...denied.hashed_names import Marks
from .derived import Edits

FOLDER = "trainings/"
_SEARCHED = re.compile(r"trainings/[^/]+/(?:windows/.*\.parquet|failures/.*\.json)")
SLOW_TEXTS = ("slow_stage", "slow_source", "slow_key", "slow_version", "slow_path")
"""Columns of a window that describe its slowest sample (docs/format.md)."""
WINDOW = "training-window"
AT_ONCE, BATCH = 16, 256
"""Objects read at once, and objects whose edits are applied together."""
MOST_BYTES = 64 * 2**20
"""Larger objects are no windows or failures: 100,000 ranks have 20 MB."""


def run_record_edits(store: Store, marks: Sequence[Marks]) -> Iterator[Edits]:
    """Yield the edits of all runs' records, in batches. Reads each window and failure. Raises: StoreError."""

    def edited(info: ObjectInfo) -> tuple[str, bytes | None, bool]:
        try:
            if info.nbytes > MOST_BYTES:
                raise Corrupt(f"{store.url}/{info.key} has {info.nbytes:,} bytes")
            return info.key, run_record_without(store, info.key, marks), False
        except Corrupt:
            return info.key, None, True

    infos = (info for info in store.list(FOLDER) if _SEARCHED.fullmatch(info.key))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-takedown") as pool:
        while batch := list(islice(infos, BATCH)):
            results = list(pool.map(edited, batch))
            puts = {path: data for path, data, _ in results if data is not None}
            deletes = tuple(path for path, _, is_damaged in results if is_damaged)
            if puts or deletes:
                yield Edits(puts=puts, deletes=deletes)


def run_record_without(store: Store, path: str, marks: Sequence[Marks]) -> bytes | None:
    """Return an object of a run's record without denied names; None if it has none. Raises: Corrupt; StoreError."""
    if not _SEARCHED.fullmatch(path):
        return None
    data = store.get(path).data
    try:
        if path.endswith(".parquet"):
            return _window_without(data, f"{store.url}/{path}", marks)
        return _failure_without(json_object(data, path, store.url), marks)
    except (Corrupt, FormatTooNew):  # a newer table is no damage
        raise
    except (*DAMAGED, pa.ArrowException) as error:  # columns of one name, no texts, floats
        raise Corrupt(f"{store.url}/{path} is no object of a run's record: {error}") from error


def _failure_without(body: dict[str, Any], marks: Sequence[Marks]) -> bytes | None:
    line = text = str(body.get("line", ""))
    for of_dataset in marks:
        line = of_dataset.without(line)
    return None if line == text else canonical({**body, "line": line})


def _window_without(data: bytes, where: str, marks: Sequence[Marks]) -> bytes | None:
    table = parse_small_table(data, where)
    column = table["slow_key"].to_pylist() if "slow_key" in table.column_names else [None]
    keys = [key for key in column if isinstance(key, str)]
    if len(keys) != len(column):
        raise Corrupt(f"{where} is not a table of windows: slow_key is not text in every row")
    # Of any dataset: a key that another dataset shares costs one name among the figures.
    denied = [bool(key) and any(one.takes("sample", key) for one in marks) for key in keys]
    if not any(denied):
        return None
    for name in set(SLOW_TEXTS) & set(table.column_names):
        texts = [
            "" if is_denied else text for is_denied, text in zip(denied, table[name].to_pylist(), strict=True)
        ]
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(texts, pa.string()))
    return table_bytes(table, WINDOW)
