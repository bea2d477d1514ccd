"""Read decoded samples in units of about a shard's size, or sort all samples on scratch.

Units are written before all fields and keys are known; `settled` returns those to write again. `in_workers` isolates an
object that crashes or hangs its reader.
"""

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from loader import errors
from loader.cores import n_cores
from loader.dataset.columnar.column_names import duplicate_key, without_field
from loader.dataset.names import key_hash
from loader.dataset.shards.part import Part
from loader.dataset.tables.parquet import get_tables
from loader.dataset.writing.part_writer import make_sample
from loader.dataset.writing.spill import Sample, Spill
from loader.errors import Corrupt, InvalidSample, PenstockError, WorkerFailed
from loader.modalities.fields import ROWS_SUFFIX
from loader.storage import ObjectInfo, Store

from ...compute.pool import LocalCompute
from ...compute.pool.environment import store_variables
from ...progress import progress
from ...threads import in_threads
from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import BOMB_BYTES, BOMB_TIMES
from ..reading.stated_counts import StatedCounts
from ..registration.parts import key_text
from ..registration.shard_rows import Rows, field_groups, field_names, sample_key
from ..registration.source_difference import token_of
from ..registration.taken_down import TakenDown
from .write_parts import RENAMED, WrittenUnit

SAMPLE_BYTES = 64
"""Overhead per sample in sums of sizes, in bytes."""


@dataclass(frozen=True, slots=True)
class ReadUnit:
    name: str
    """Name of its first part."""
    runs: Sequence[ImportRun]
    """In order."""

    @property
    def size(self) -> int:
        """Approximate bytes of its fields."""
        return sum(run.nbytes for run in self.runs)


def read_units(
    readable: Readable, infos: Iterable[ObjectInfo], shard_bytes: int, failures: list[str]
) -> list[ReadUnit]:
    """Return the objects' units in order; append errors to `failures`."""
    units: list[ReadUnit] = []
    pending: list[ImportRun] = []
    nbytes = 0
    for info in infos:
        try:
            runs = list(readable.runs(info))
        except PenstockError as error:
            failures.append(str(error))
            continue
        for run in runs:
            pending.append(run)
            nbytes += run.nbytes
            if nbytes >= shard_bytes:
                units.append(ReadUnit(f"{len(units):05d}", pending))
                pending = []
                nbytes = 0
    if pending:
        units.append(ReadUnit(f"{len(units):05d}", pending))
    return units


@dataclass(frozen=True, slots=True)
class UnitReader:
    """Reads units with final keys; thread-safe."""

    store: Store
    """The source's store."""
    readable: Readable
    """The source's objects."""
    options: ColumnarOptions
    """Import options."""
    in_use: Container[str]
    """Keys that the dataset keeps."""
    failures: list[str]
    """Output: errors of a unit's objects but the last, which is raised."""
    twice: Container[str] = ()
    """Repeated keys, which get the object's name as a prefix."""
    taken_down: TakenDown | None = None
    """Samples to leave out."""

    def __call__(self, unit: ReadUnit) -> Iterator[Sample]:
        """Yield a unit's samples; after an error, only check the other objects, then raise the last error."""
        errors: list[PenstockError] = []
        for run in unit.runs:
            try:
                for sample in self._samples(run):
                    if not errors:
                        yield sample
            except PenstockError as error:
                errors.append(error)
        if errors:
            self.failures.extend(str(error) for error in errors[:-1])
            raise errors[-1]

    def _samples(self, run: ImportRun) -> Iterator[Sample]:
        known = dict[tuple[str, ...], dict[str, str]]()
        total = 0
        most = max(BOMB_BYTES, BOMB_TIMES * run.info.nbytes)
        token = token_of(self.store, run.info)
        for sample in self.readable.samples(run):
            names = tuple(sample.fields)
            if names not in known:
                known[names] = self._names(run.info, sample)
            fields = {ours: sample.fields[name] for ours, name in known[names].items()}
            longest = max(map(len, fields))
            texts = (value for value in sample.metadata.values() if isinstance(value, str))
            total += SAMPLE_BYTES + sum(map(len, fields.values())) + sum(map(len, texts))
            if total > most:
                raise Corrupt(
                    f"{run.info.key}, sample {sample.key!r}: {run.info.nbytes:,} bytes became more than {most:,}; an "
                    "object that is compressed so much is probably a mistake or an attack: write it uncompressed"
                )
            key = sample_key(sample.key, longest)
            if key in self.twice or key in self.in_use:
                key = sample_key(f"{run.info.key}/{sample.key}", longest)
            source = {**sample.source, "raw_key": key_text(run.info.key), "raw_etag": token}
            if key != sample.key:
                source.setdefault("source_key", key_text(sample.key))
            if self.taken_down is not None and self.taken_down.has_sample(key, source):
                continue
            try:
                yield make_sample(key, fields, sample.metadata, source)
            except InvalidSample as error:
                raise error.with_message(f"{run.info.key}, sample {sample.key!r}: {error}") from error

    def _names(self, info: ObjectInfo, sample: ReadSample) -> dict[str, str]:
        """Return field name -> the format's name, except fields that the options leave out."""
        without = self.options.without
        # Row blocks go with their field.
        chosen = [
            name
            for name in sample.fields
            if name not in without and name.removesuffix(ROWS_SUFFIX) not in without
        ]
        names = field_names(chosen, info, sample.key)
        if not names:
            raise without_field(info.key, sample.key, sample.metadata)
        return names


class SettledUnits(NamedTuple):
    group_of: Mapping[str, str]
    """Field name -> group."""
    twice: frozenset[str]
    """Repeated keys."""
    again: list[ReadUnit]
    """Units to write again."""


def settle_units(
    root: Store, written: Sequence[WrittenUnit[ReadUnit]], known: Mapping[str, Mapping[str, Any]]
) -> SettledUnits:
    """Return groups and repeated keys of the written units. Reads all keys. known: the dataset's groups."""
    kinds: dict[tuple[str, ...], Rows] = {}
    keys: list[pa.Table] = []
    parts = [part for unit in written for part in unit.parts]
    files = [part.samples for part in parts if part.samples is not None]
    for part, table in zip(parts, get_tables(root, files, ["key", "raw_key"]), strict=True):
        kind = tuple(sorted(_group_by_field(part)))
        if kind not in kinds:
            first_key = table["key"][0].as_py()
            first_object = table["raw_key"][0].as_py()
            kinds[kind] = Rows(kind, [first_key], [first_object])
        keys.append(table.select(["key"]))
    group_of = field_groups(list(kinds.values()), known)
    twice = frozenset(_repetitions(pa.concat_tables(keys)["key"]))
    again = []
    position = 0
    for unit in written:
        unit_keys = keys[position : position + len(unit.parts)]
        position += len(unit.parts)
        has_groups = all(_group_by_field(part).items() <= group_of.items() for part in unit.parts)
        # Without repeated keys, no Python list of all keys is made.
        has_repeated = bool(twice) and any(
            not twice.isdisjoint(table["key"].to_pylist()) for table in unit_keys
        )
        if not has_groups or has_repeated:
            again.append(replace(unit.unit, name=f"{unit.unit.name}{RENAMED}"))
    return SettledUnits(group_of, twice, again)


def _group_by_field(part: Part) -> dict[str, str]:
    groups: dict[str, str] = {}
    for shard in part.shards:
        groups.update(dict.fromkeys(shard.field_nbytes, shard.group))
    return groups


def check_unique(root: Store, written: Sequence[WrittenUnit[ReadUnit]]) -> None:
    """Raise DuplicateKey if one object has a key twice. Reads all keys."""
    files = [part.samples for unit in written for part in unit.parts if part.samples is not None]
    table = pa.concat_tables(get_tables(root, files, ["key", "raw_key"]))
    repeated = _repetitions(table["key"])
    if repeated:
        row = pc.index(table["key"], repeated[0]).as_py()
        raise duplicate_key(repeated[0], table["raw_key"][row].as_py())


def _repetitions(keys: pa.ChunkedArray) -> list[str]:
    """Return the keys that come more than once, sorted."""
    counts = keys.value_counts()
    is_repeated = pc.greater(counts.field("counts"), 1)
    return sorted(counts.filter(is_repeated).field("values").to_pylist())


class Spilled:
    """Samples on scratch, sorted by key hash. Memory: 100 bytes per sample, plus 256 MiB."""

    def __init__(self) -> None:
        self._spill = Spill()
        self._lock = threading.Lock()
        self._seen = set[bytes]()
        self.kinds: dict[tuple[str, ...], Rows] = {}
        self.twice: dict[str, str] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample; of a repeated key, record only the key."""
        hashed = key_hash(sample.key)
        kind = tuple(sorted(sample.fields))
        with self._lock:
            if hashed in self._seen:
                self.twice[sample.key] = sample.source["raw_key"]
                return
            self._seen.add(hashed)
            if kind not in self.kinds:
                self.kinds[kind] = Rows(kind, [sample.key], [sample.source["raw_key"]])
            self._spill.add(sample)

    def drain(self) -> Iterator[Sample]:
        """Yield the samples once, by key hash."""
        return self._spill.drain()

    def group_of(self, known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return field -> group. known: the dataset's groups."""
        return field_groups([self.kinds[kind] for kind in sorted(self.kinds)], known)

    def close(self) -> None:
        self._spill.close()


def spill_units(reader: UnitReader, units: Sequence[ReadUnit], workers: int, failures: list[str]) -> Spilled:
    """Return all units' samples; reads twice if keys repeat. Appends errors to `failures`.

    Raises: DuplicateKey if one object has a key twice; StoreError if scratch is full.
    """
    twice: dict[str, str] = {}
    # A key that repeats in the second reading repeats within one object, whose name as prefix does not help.
    for _ in range(2):
        samples = Spilled()
        try:
            _read(replace(reader, twice=frozenset(twice)), units, samples, workers, failures)
        except BaseException:
            samples.close()
            raise
        if failures or not samples.twice:
            return samples
        samples.close()
        twice = samples.twice
    key, of = min(twice.items())
    raise duplicate_key(key, of)


def _read(
    reader: UnitReader, units: Sequence[ReadUnit], into: Spilled, workers: int, failures: list[str]
) -> None:
    def read(unit: ReadUnit) -> ReadUnit:
        for sample in reader(unit):
            into.add(sample)
        return unit

    finished = in_threads(read, units, workers, failures)
    for _ in progress(finished, "read", lambda unit: unit.size, sum(unit.size for unit in units)):
        pass


LIMIT_S = 600.0
"""Seconds per call, plus one per MiB."""

FindReadable = Callable[[Store, list[ObjectInfo], ColumnarOptions], Readable]
_ERRORS: dict[str, type[PenstockError]] = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, PenstockError)
}


class _ReadRequest(NamedTuple):
    info: ObjectInfo
    run: tuple[int, int] | None


@contextmanager
def in_workers(
    readable: Readable, find_readable: FindReadable, store: Store, options: ColumnarOptions, workers: int
) -> Iterator[Readable]:
    """Yield a copy of `readable` that reads in at most `workers` processes, which end with the block.

    A run's samples are in memory, at most 4 GiB. Credentials come from the environment.
    """
    options_json = options.to_json()
    function = partial(_read_in_worker, store, find_readable, options_json, options.allow_missing)
    variables = store_variables(store)

    def in_worker(info: ObjectInfo, run: ImportRun | None) -> Any:
        unit = _ReadRequest(info, run and (run.first, run.stop))
        limit_s = LIMIT_S + (run.nbytes // 2**20 if run else 0)
        (outcome,) = compute.map(function, [unit], timeout_s=limit_s, variables=variables)
        if outcome.value is None:
            why = "no answer"
            if outcome.error:
                why = outcome.error.summary
            address = f"{store.url}/{info.key}"
            code = outcome.error and outcome.error.code
            # A fault of the machine or of penstock: no repair of the object would help.
            if code in ("memory", "exception"):
                raise WorkerFailed(f"{address} was not read: {why}", what=code, where=address, given=why)
            raise Corrupt(
                f"{address} cannot be read: {why}; repair it, or move it elsewhere",
                what=code,
                where=address,
                given=why,
            )
        error, answer, missing, error_fields = outcome.value
        for text in missing:
            stated.lacks(text)
        if error:
            # By name, from one table of types: a hostile file may control the worker.
            raise _ERRORS.get(error, Corrupt)(answer, **error_fields)
        return answer

    def runs(info: ObjectInfo) -> list[ImportRun]:
        return [ImportRun(info, *one) for one in in_worker(info, None)]

    def samples(run: ImportRun) -> Iterator[ReadSample]:
        for values in in_worker(run.info, run):
            yield ReadSample(*values)

    stated = readable.stated or StatedCounts()
    with closing(LocalCompute(min(workers, n_cores()))) as compute:
        yield readable._replace(runs=runs, samples=samples, stated=stated)


def _read_in_worker(
    store: Store,
    find_readable: FindReadable,
    options_json: dict[str, Any],
    allow_missing: bool,
    request: _ReadRequest,
) -> tuple[str, Any, list[str], dict[str, Any]]:
    """Return the name of an error or "", its text or the answer, what the object lacks, and the error's fields."""
    options = ColumnarOptions.from_json(options_json)._replace(allow_missing=allow_missing)
    answer: Any
    try:
        readable = find_readable(store, [request.info], options)
        if request.run is None:
            answer = [one[1:] for one in readable.runs(request.info)]
        else:
            answer = [tuple(one) for one in readable.samples(ImportRun(request.info, *request.run))]
    except PenstockError as error:
        # Fields are plain values, so a worker can send them. The error itself would have to be unpickled here, and a
        # hostile file may control the worker.
        return type(error).__name__, str(error), [], error.fields
    missing = readable.stated.lines() if readable.stated is not None else []
    return "", answer, missing, {}
