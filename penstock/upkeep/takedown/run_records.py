"""Edits of the records of training runs: intervals name slow samples, and failures quote errors.

A takedown cannot search an object that it cannot parse. It deletes these: runs go on without them. It keeps and names
the objects of a newer release.
"""

import gzip
import io
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.tables.parquet import table_bytes
from loader.dataset.tables.small_tables import parse_small_table
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from loader.json_text import DamagedJson, parse_json
from loader.storage import ObjectInfo, Store
from loader.storage.threads import DaemonPool

from ...denied.cells import json_object, texts
from ...denied.hashed_names import Marks
from .derived import Edits

FOLDER = "trainings/"
_SEARCHED = re.compile(r"trainings/[^/]+/(?:windows/.*\.parquet|(?:failures|ends)/.*\.json)")
SLOW_TEXTS = ("slow_stage", "slow_source", "slow_key", "slow_version", "slow_path")
"""Columns of an interval that describe its slowest sample (docs/format.md)."""
INTERVAL = "training-window"
AT_ONCE = 16
BATCH = 256
"""Objects read at once, and objects whose edits are applied together."""
MOST_BYTES = 64 * 2**20
"""Larger objects are not intervals or failures: 100,000 ranks have 20 MB. Also the most bytes in memory at once."""
_TEXT = re.compile(rb"[^\s'\"(),;\[\]{}<>]+")
"""Words of a text, which may be a name."""
_ONE_INTERVAL = threading.Lock()
"""Held while an interval is parsed: a forged one may take 256 MiB."""


def run_record_edits(store: Store, marks: Sequence[Marks], newer: Callable[[str], object]) -> Iterator[Edits]:
    """Yield the edits of all runs' records, in batches. Reads each interval and failure. Raises: StoreError.

    newer: is called with the path of each object that names a newer release; it stays.
    """

    def edit(info: ObjectInfo) -> tuple[str, bytes | None, bool]:
        try:
            return info.key, scrub_run_record(store, info.key, marks, info.nbytes), False
        except FormatTooNew:
            newer(info.key)
            return info.key, None, False
        except Corrupt:
            return info.key, None, True

    infos = (info for info in store.list(FOLDER) if _SEARCHED.fullmatch(info.key))
    with DaemonPool(AT_ONCE, "penstock-takedown") as pool:
        for batch in _batches(infos):
            results = list(pool.map(edit, batch))
            puts = {path: data for path, data, _ in results if data is not None}
            deletes = tuple(path for path, _, is_damaged in results if is_damaged)
            if puts or deletes:
                yield Edits(puts=puts, deletes=deletes)


def records_with_names(store: Store, marks: Sequence[Marks]) -> Iterator[str]:
    """Yield the paths of objects of runs' records that name denied samples and are never rewritten. Reads each."""
    for info in store.list(FOLDER):
        if not is_rewritten(info.key):
            try:
                if run_record_names(store, info.key, marks, info.nbytes):
                    yield info.key
            except (Corrupt, ObjectNotFound):
                continue  # a proof names what it cannot read


def _batches(infos: Iterable[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """Yield objects in batches of at most `BATCH` objects and `MOST_BYTES` bytes to read."""
    batch = list[ObjectInfo]()
    nbytes = 0
    for info in infos:
        read = 0
        if info.nbytes <= MOST_BYTES:
            read = info.nbytes
        if batch and (len(batch) == BATCH or nbytes + read > MOST_BYTES):
            yield batch
            batch = []
            nbytes = 0
        batch.append(info)
        nbytes += read
    if batch:
        yield batch


def scrub_run_record(store: Store, path: str, marks: Sequence[Marks], nbytes: int) -> bytes | None:
    """Return an object of a run's record without denied names; None if it has none. nbytes: its size.

    Raises: Corrupt, also for a larger object than a run stores, which is not read; FormatTooNew; StoreError.
    """
    if not is_rewritten(path):
        return None
    if nbytes > MOST_BYTES:
        raise Corrupt(f"{store.url}/{path} has {nbytes:,} bytes; a run stores at most {MOST_BYTES:,}")
    data = store.get(path).data
    try:
        if path.endswith(".parquet"):
            with _ONE_INTERVAL:
                return _scrub_interval(data, f"{store.url}/{path}", marks)
        return _scrub_failure(json_object(data, path, store.url), marks)
    except (Corrupt, FormatTooNew):  # a newer table is not damage
        raise
    except (*DAMAGED, pa.ArrowException) as error:  # columns of one name, no texts, floats
        raise Corrupt(f"{store.url}/{path} is not an object of a run's record: {error}") from error


def is_rewritten(path: str) -> bool:
    """Return whether a takedown rewrites an object of a run's record: an interval or a failure."""
    return _SEARCHED.fullmatch(path) is not None


def run_record_names(store: Store, path: str, marks: Sequence[Marks], nbytes: int) -> bool | None:
    """Return whether another object of a run's record, such as an event or a profile, names a denied sample.

    None: it is too large to search. nbytes: its size. Raises: Corrupt; StoreError.
    """
    if nbytes > MOST_BYTES:
        return None
    data: bytes | None = store.get(path).data
    if path.endswith(".gz"):
        data = _unpack(data or b"", f"{store.url}/{path}")
    if data is None:
        return None
    # In the raw text too: a profile may be cut off, or no JSON.
    words = {match[0].decode(errors="replace") for match in _TEXT.finditer(data)}
    words |= set(_json_texts(data))
    return any(of_dataset.has(word) for of_dataset in marks for word in words)


def _unpack(data: bytes, where: str) -> bytes | None:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            # One byte more shows that it is too large; a bomb stays packed.
            unpacked = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Corrupt(f"{where} is not a gzip file: {error}") from error
    if len(unpacked) <= MOST_BYTES:
        return unpacked
    return None


def _json_texts(data: bytes) -> Iterator[str]:
    try:
        yield from texts(parse_json(data))
    except DamagedJson:
        return  # its words were searched


def _scrub_failure(body: dict[str, Any], marks: Sequence[Marks]) -> bytes | None:
    def without(text: Any) -> str:
        line = str(text)
        for of_dataset in marks:
            line = of_dataset.without(line)
        return line

    edited = dict(body)
    for name in {"line", "text"} & body.keys():
        edited[name] = without(body[name])
    for name in {"lines", "unknown"} & body.keys():
        edited[name] = [without(line) for line in body[name]]
    if edited == body:
        return None
    return canonical(edited)


def _scrub_interval(data: bytes, where: str, marks: Sequence[Marks]) -> bytes | None:
    table = parse_small_table(data, where)
    column = table["slow_key"].to_pylist() if "slow_key" in table.column_names else [None]
    keys = [key for key in column if isinstance(key, str)]
    if len(keys) != len(column):
        raise Corrupt(f"{where} is not a table of intervals: slow_key is not text in every row")
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
    return table_bytes(table, INTERVAL)
