"""Stored slices: samples that a person named, to train on them, to weigh them or to leave them out.

    slices/<dataset>/<name>/<n, 6 digits>.json       the record, created once
    slices/<dataset>/<name>/<n, 6 digits>.parquet    ordinal, part, row, key of a list's samples, created before it

A rule has no table: its samples are those for which its SQL expression is true. The removal of a slice is a record
too. Every object here is untrusted. Only a takedown replaces or deletes one.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, FormatTooNew, InvalidName, InvalidSample, ObjectNotFound, SliceNotFound
from ...json_text import DamagedJson, damage_fields, integer_member, parse_json_object, text_member
from ...order.sources.views import list_sha256
from ...storage import Store
from ...storage.requests import retry_corrupt
from ..log.entries import DAMAGED, canonical, check_record_format
from ..names import check_dataset_name
from .parquet import Int64s, integers, table_bytes, table_facts
from .small_tables import parse_small_table

FORMAT = 1
FOLDER = "slices/"
MAX_SLICE_SAMPLES = 10_000_000
"""Most samples of a list."""
MAX_NUMBER = 999_999
MAX_RECORD_BYTES = 8 * 2**20
"""Most bytes of a record: a rule may name tens of thousands of values, and a reason may be long."""
SliceKind = Literal["list", "rule"]

_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,63}")
_PATH = re.compile(r"slices/(?P<dataset>[^/]+)/(?P<name>[^/]+)/(?P<n>[0-9]{6})\.(?:json|parquet)")
_SHA256 = re.compile("[0-9a-f]{64}")
_VERSION_NUMBER = re.compile("[1-9][0-9]{0,17}")
_VERSION_ID = re.compile("v-[0-9a-f]{64}")
_TABLE = "slice"
_ROW_BYTES = 512
"""Most uncompressed bytes of a table per sample; keys have at most 150."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecord:
    """One number of a slice."""

    dataset: str
    """Dataset name."""
    name: str
    """Name of the slice in its dataset."""
    n: int
    """Number, from 1; the largest one is the slice."""
    version: str
    """Version in which the person saw the samples, such as `photos@3`."""
    version_id: str
    kind: SliceKind
    """Kind: "list" for samples, "rule" for an SQL expression."""
    sha256: str
    """SHA-256 (hex) of the samples' ordinals in `version`, as little-endian int64, ascending."""
    where: str
    """SQL expression of a rule; "" for a list."""
    n_samples: int
    """Samples in `version`."""
    by: str
    """Person's name."""
    why: str
    """Person's reason."""
    page: str
    """URL of the page on which the samples were chosen, or ""."""
    removed: bool = False
    """True for a record that ends the slice; the other facts are of the last number."""
    at_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    """Time of the record, UTC microseconds."""

    @property
    def full_name(self) -> str:
        """Dataset and name, such as `photos/cups`."""
        return f"{self.dataset}/{self.name}"

    @property
    def path(self) -> str:
        """The record's path in the root."""
        return f"{slice_folder(self.dataset, self.name)}{self.n:06d}.json"

    @property
    def table_path(self) -> str:
        """Path of a list's table in the root."""
        return f"{slice_folder(self.dataset, self.name)}{self.n:06d}.parquet"

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def to_bytes(self) -> bytes:
        return canonical(self.to_json())


def check_slice_name(name: object) -> str:
    """Return the name of a slice. Raises: InvalidName."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be a slice's name: accepted are 1 to 64 of a-z 0-9 . _ - and the first a letter or digit",
            what="name",
            given=name,
        )
    return name


def check_record_size(record: SliceRecord) -> None:
    """Raise InvalidSample for a record that no reader would take."""
    nbytes = len(record.to_bytes())
    if nbytes > MAX_RECORD_BYTES:
        raise InvalidSample(
            f"the record of the slice {record.name!r} has {nbytes:,} bytes; accepted are up to {MAX_RECORD_BYTES:,}. "
            "Save a list, or write a shorter rule or reason",
            what=f"slice {record.name}",
            given=nbytes,
            accepted=f"at most {MAX_RECORD_BYTES}",
        )


def slice_folder(dataset: str, name: str) -> str:
    return f"{FOLDER}{check_dataset_name(dataset)}/{check_slice_name(name)}/"


def path_parts(path: str) -> tuple[str, str, int] | None:
    """Return (dataset, name, number) of a path under `slices/`; None for a path that no slice has."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    number = int(match["n"])
    return match["dataset"], match["name"], number


def parse_slice(data: bytes | memoryview, path: str) -> SliceRecord:
    """Return the record in a file. Raises: FormatTooNew; Corrupt."""
    try:
        body = parse_json_object(bytes(data))
        check_record_format(integer_member(body, "format", 1), FORMAT, path)
        record = SliceRecord(
            dataset=check_dataset_name(text_member(body, "dataset")),
            name=check_slice_name(body["name"]),
            n=integer_member(body, "n", 1),
            version=text_member(body, "version"),
            version_id=text_member(body, "version_id"),
            kind=body["kind"],
            sha256=text_member(body, "sha256"),
            where=text_member(body, "where"),
            n_samples=integer_member(body, "n_samples", 0),
            by=text_member(body, "by"),
            why=text_member(body, "why"),
            page=text_member(body, "page"),
            removed=body["removed"],
            at_us=integer_member(body, "at_us", 0),
        )
        _check_record(record, path)
    except FormatTooNew:
        raise
    except DAMAGED as error:
        raise Corrupt(
            f"{path} is not a record of a slice ({error}); restore it from a mirror, or delete it",
            where=path,
            **damage_fields(error, "record"),
        ) from error
    return record


def _check_record(record: SliceRecord, path: str) -> None:
    """Raise DamagedJson unless the record agrees with its path, and its facts with one another."""
    if record.path != path:
        message = f"it names itself {record.path}: it was copied or renamed"
        raise DamagedJson(message, what="path", value=record.path)
    if record.kind not in get_args(SliceKind):
        raise DamagedJson(f"kind = {record.kind!r:.80}", what="kind", value=record.kind)
    if not isinstance(record.removed, bool):
        raise DamagedJson(f"removed = {record.removed!r:.80}", what="removed", value=record.removed)
    prefix = f"{record.dataset}@"
    version_number = record.version.removeprefix(prefix)
    is_number = _VERSION_NUMBER.fullmatch(version_number)
    is_of_dataset = record.version.startswith(prefix) and is_number
    is_id = _VERSION_ID.fullmatch(record.version_id)
    if not is_of_dataset or not is_id:
        message = f"version = {record.version!r:.80}, {record.version_id!r:.80}"
        if not is_of_dataset:
            raise DamagedJson(message, what="version", value=record.version)
        raise DamagedJson(message, what="version_id", value=record.version_id)
    if not _SHA256.fullmatch(record.sha256):
        raise DamagedJson(f"sha256 = {record.sha256!r:.80}", what="sha256", value=record.sha256)
    has_expression = bool(record.where.strip())
    if has_expression != (record.kind == "rule"):
        message = f"a {record.kind} with where = {record.where!r:.80}"
        raise DamagedJson(message, what="where", value=record.where)
    is_size_of_list = 1 <= record.n_samples <= MAX_SLICE_SAMPLES
    if record.kind == "list" and not is_size_of_list:
        message = f"n_samples = {record.n_samples}; a list has 1 to {MAX_SLICE_SAMPLES}"
        raise DamagedJson(message, what="n_samples", value=record.n_samples)


def slice_numbers(store: Store, dataset: str, name: str) -> list[int]:
    """Return the numbers of a slice's records, ascending. Costs a listing."""
    folder = slice_folder(dataset, name)
    numbers = []
    for info in store.list(folder):
        parts = path_parts(info.key)
        is_record = info.key.endswith(".json")
        if parts is not None and is_record:
            numbers.append(parts[2])
    return sorted(numbers)


def read_slice(
    store: Store,
    dataset: str,
    name: str,
    n: int | None = None,
    *,
    nbytes: int | None = None,
) -> SliceRecord:
    """Return a number of a slice; None is the newest, which may say that the slice is removed.

    name: of the slice in its dataset; also with the dataset before it, such as `photos/cups`. nbytes: size of the
    record in a listing; None costs a request.

    Raises: SliceNotFound; InvalidName; Corrupt; FormatTooNew.
    """
    prefix = f"{dataset}/"
    if isinstance(name, str):
        name = name.removeprefix(prefix)
    folder = slice_folder(dataset, name)
    number = n
    if number is None:
        numbers = slice_numbers(store, dataset, name)
        if not numbers:
            raise SliceNotFound(
                f"{store.url} has no slice {dataset}/{name}; penstock slice ls {dataset} lists them, and "
                "root.save_slice makes one",
                what=f"slice {dataset}/{name}",
                where=store.url,
            )
        number = numbers[-1]
    is_integer = isinstance(number, int) and not isinstance(number, bool)
    if not is_integer or not 1 <= number <= MAX_NUMBER:
        raise SliceNotFound(
            f"n = {number!r}: the number of a slice is from 1 to {MAX_NUMBER}",
            what="n",
            given=number,
            accepted=f"1 to {MAX_NUMBER}",
        )
    path = f"{folder}{number:06d}.json"

    def read() -> SliceRecord:
        stored = store.get(path)
        return parse_slice(stored.data, path)

    try:
        if nbytes is None:
            nbytes = store.head(path).nbytes
        if nbytes > MAX_RECORD_BYTES:
            raise _too_large(store, path, nbytes, MAX_RECORD_BYTES)
        return retry_corrupt(read)
    except ObjectNotFound:
        raise SliceNotFound(
            f"{store.url} has no number {number} of the slice {dataset}/{name}; penstock slice show "
            f"{dataset}/{name} lists its numbers",
            what=f"slice {dataset}/{name}",
            where=store.url,
            given=number,
        ) from None


def _too_large(
    store: Store,
    path: str,
    nbytes: int,
    most_bytes: int,
) -> Corrupt:
    return Corrupt(
        f"{store.url}/{path} has {nbytes:,} bytes, and a slice's has at most {most_bytes:,}: it was not read. Restore "
        "it from a mirror, or delete it",
        what="bytes",
        where=path,
        given=nbytes,
        accepted=most_bytes,
    )


def _most_table_bytes(record: SliceRecord) -> int:
    return 2**20 + record.n_samples * _ROW_BYTES


def slice_table_bytes(record: SliceRecord, table: pa.Table) -> bytes:
    return table_bytes(table, _TABLE, facts={"path": record.table_path})


def slice_table(
    ordinals: Int64s,
    parts: pa.Array,
    rows: Int64s,
    keys: Sequence[str] | pa.Array | pa.ChunkedArray,
) -> pa.Table:
    """Return a list's table. Arguments: [n] each, by ascending ordinal."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()  # the stored bytes depend on the chunks
    return pa.table(
        {
            "ordinal": pa.array(ordinals, pa.int64()),
            "part": parts.cast(pa.string()),
            "row": pa.array(rows, pa.int64()),
            "key": pa.array(keys, pa.string()),
        }
    )


def read_slice_table(
    store: Store,
    record: SliceRecord,
    columns: Sequence[str],
) -> pa.Table:
    """Return columns of a list's table, in bounded memory. Raises: Corrupt."""

    def read() -> pa.Table:
        stored = store.get(record.table_path)
        return parse_slice_table(stored.data, record, columns)

    most_bytes = _most_table_bytes(record)
    try:
        nbytes = store.head(record.table_path).nbytes
        if nbytes > most_bytes:
            raise _too_large(store, record.table_path, nbytes, most_bytes)
        return retry_corrupt(read)
    except ObjectNotFound as error:
        raise Corrupt(
            f"{store.url} lacks {record.table_path}, the table of {record.path}: restore it from a mirror",
            what=record.table_path,
            where=store.url,
        ) from error


_COLUMNS = {
    "ordinal": pa.int64(),
    "part": pa.string(),
    "row": pa.int64(),
    "key": pa.string(),
}


def parse_slice_table(
    data: bytes,
    record: SliceRecord,
    columns: Sequence[str],
) -> pa.Table:
    """Return columns of a list's table from a file, checked against its record. Raises: Corrupt; FormatTooNew."""
    path = record.table_path
    most_bytes = _most_table_bytes(record)
    read_columns = [name for name in _COLUMNS if name == "ordinal" or name in columns]
    table = parse_small_table(
        data,
        path,
        read_columns,
        most_rows=record.n_samples,
        most_bytes=most_bytes,
    )
    kinds = {name: table.schema.field(name).type for name in table.column_names}
    has_nulls = any(column.null_count for column in table.columns)
    expected = {name: _COLUMNS[name] for name in read_columns}
    if kinds != expected or has_nulls or table.num_rows != record.n_samples:
        raise Corrupt(
            f"{path} is not a table of {record.path}: it has {table.num_rows} rows of {kinds}; needed are "
            f"{record.n_samples} of {expected} without nulls. Restore it from a mirror",
            what="columns",
            where=path,
            given=[table.num_rows, *(f"{name} {kind}" for name, kind in kinds.items())],
            accepted=[record.n_samples, *(f"{name} {kind}" for name, kind in expected.items())],
        )
    facts = table_facts(table)
    written_as = facts.get("path")
    if written_as != path or facts.get("table") != _TABLE:
        raise Corrupt(
            f"{path} was written as {written_as}: it was exchanged or renamed",
            what="table",
            where=path,
            given=written_as,
        )

    ordinals = integers(table["ordinal"])
    steps = np.diff(ordinals)
    is_ascending = ordinals[0] >= 0 and bool((steps > 0).all())
    sha256 = list_sha256(ordinals)
    if not is_ascending or sha256 != record.sha256:
        message = (
            f"{path}: the sha256 of its ordinals is {sha256}, {record.path} states {record.sha256}: it was changed. "
            "Restore both from a mirror, or save the slice again"
        )
        if is_ascending:
            raise Corrupt(message, what="sha256", where=path, given=sha256, accepted=record.sha256)
        first = ordinals[:5].tolist()
        raise Corrupt(message, what="ordinals", where=path, given=first, accepted="ascending numbers from 0")
    return table.select(list(columns))
