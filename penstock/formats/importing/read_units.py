"""Work units of samples that an importer makes: neighbouring runs, of about a shard's bytes.

Units are written before it is known which fields all samples have, and which keys repeat. `settled` tells afterwards;
the units that do not fit are written again, under other names.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.columnar.column_names import duplicate_key, without_field
from loader.dataset.tables.parquet import get_tables
from loader.dataset.writing.part_writer import make_sample
from loader.dataset.writing.spill import Sample
from loader.errors import Corrupt, InvalidSample, PenstockError
from loader.storage import ObjectInfo, Store

from ..registration.earlier import token_of
from ..registration.groups import groups_of
from ..registration.parts import text_of
from ..registration.shard_rows import Rows, key_of, names_of
from .importer import Options, Readable, ReadSample, Run
from .unit_writer import RENAMED, Written

BOMB_BYTES, BOMB_TIMES = 2**30, 1000
"""A run gives no more bytes than the first, or so many times those of its object."""

SAMPLE_BYTES = 64
"""Bytes that a sample counts beside its fields and texts."""


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """Runs that are read one behind the other."""

    name: str
    """Name in the import, and of its first part."""
    runs: Sequence[Run]
    """The runs, in order."""

    @property
    def size(self) -> int:
        """Bytes of its fields, estimated."""
        return sum(run.nbytes for run in self.runs)


def read_units(
    readable: Readable, infos: Iterable[ObjectInfo], shard_bytes: int, failures: list[str]
) -> list[ReadUnit]:
    """Return the units of objects, in order; name the objects that cannot be cut into runs."""
    units, some, nbytes = list[ReadUnit](), list[Run](), 0
    for info in infos:
        try:
            runs = list(readable.runs(info))
        except PenstockError as error:
            failures.append(str(error))
            continue
        for run in runs:
            some.append(run)
            nbytes += run.nbytes
            if nbytes >= shard_bytes:
                units.append(ReadUnit(f"{len(units):05d}", some))
                some, nbytes = [], 0
    if some:
        units.append(ReadUnit(f"{len(units):05d}", some))
    return units


@dataclass(frozen=True, slots=True)
class UnitReader:
    """Reads the samples of units under their keys; used by many threads."""

    store: Store
    """The place."""
    readable: Readable
    """Its objects of the format."""
    options: Options
    """The choices of whoever imports."""
    taken: Container[str]
    """Keys of the dataset that stay."""
    failures: list[str]
    """Gets the errors of a unit's objects but the last, which is raised."""
    twice: Container[str] = ()
    """Keys that repeat: their samples have the object's name in front."""

    def __call__(self, unit: ReadUnit) -> Iterator[Sample]:
        """Yield the samples of a unit. An object that fails does not keep the others from being looked at.

        Raises: the last error of its objects.
        """
        errors = list[PenstockError]()
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

    def _samples(self, run: Run) -> Iterator[Sample]:
        known, total = dict[tuple[str, ...], dict[str, str]](), 0
        most = max(BOMB_BYTES, BOMB_TIMES * run.info.nbytes)
        token = token_of(self.store, run.info)
        for one in self.readable.samples(run):
            told = tuple(one.fields)
            if told not in known:
                known[told] = self._names(run.info, one)
            fields = {mine: one.fields[name] for mine, name in known[told].items()}
            longest = max(map(len, fields))
            texts = (value for value in one.metadata.values() if isinstance(value, str))
            total += SAMPLE_BYTES + sum(map(len, fields.values())) + sum(map(len, texts))
            if total > most:
                raise Corrupt(
                    f"{run.info.key}, sample {one.key!r}: {run.info.nbytes:,} bytes became more than {most:,}; an "
                    "object that is compressed so much is taken for a mistake or an attack: write it uncompressed"
                )
            key = key_of(one.key, longest)
            if key in self.twice or key in self.taken:
                key = key_of(f"{run.info.key}/{one.key}", longest)
            source = {**one.source, "raw_key": text_of(run.info.key), "raw_etag": token}
            if key != one.key:
                source.setdefault("source_key", text_of(one.key))
            try:
                yield make_sample(key, fields, one.metadata, source)
            except InvalidSample as error:
                raise type(error)(f"{run.info.key}, sample {one.key!r}: {error}") from error

    def _names(self, info: ObjectInfo, one: ReadSample) -> dict[str, str]:
        """Return our name of each field -> its format's. Raises: InvalidSample without fields; InvalidField."""
        names = names_of([name for name in one.fields if name not in self.options.without], info, one.key)
        if not names:
            raise without_field(info.key, one.key, one.metadata)
        return names


class Settled(NamedTuple):
    """Facts of all samples, which no unit knows alone."""

    group_of: Mapping[str, str]
    """Field -> its group."""
    twice: frozenset[str]
    """Keys that repeat."""
    again: list[ReadUnit]
    """Units to write again."""


def settled(
    root: Store, written: Sequence[Written[ReadUnit]], known: Mapping[str, Mapping[str, Any]]
) -> Settled:
    """Return groups and repeated keys of written units. known: groups of the dataset, as its newest manifest has them.

    Costs the keys of all samples. Raises: FieldMismatch, as `groups_of`; StoreError.
    """
    kinds, keys = dict[tuple[str, ...], Rows](), list[pa.Table]()
    parts = [part for unit in written for part in unit.parts]
    files = [part.samples for part in parts if part.samples is not None]
    for part, table in zip(parts, get_tables(root, files, ["key", "raw_key"]), strict=True):
        kind = tuple(sorted(name for shard in part.shards for name in shard.field_nbytes))
        first = [table["key"][0].as_py()], [table["raw_key"][0].as_py()]
        kinds.setdefault(kind, Rows(kind, *first))
        keys.append(table.select(["key"]))
    group_of = groups_of(list(kinds.values()), known)
    twice = frozenset(_repeated(pa.concat_tables(keys)["key"]))
    fits = iter(zip(parts, keys, strict=True))
    again = []
    for unit in written:
        mine = [next(fits) for _ in unit.parts]
        if any(
            any(group_of[name] != shard.group for shard in part.shards for name in shard.field_nbytes)
            or (twice and not twice.isdisjoint(table["key"].to_pylist()))
            for part, table in mine
        ):
            again.append(replace(unit.unit, name=f"{unit.unit.name}{RENAMED}"))
    return Settled(group_of, twice, again)


def check_unique(root: Store, written: Sequence[Written[ReadUnit]]) -> None:
    """Raise DuplicateKey for two samples of one object with one key. Costs the keys of all samples."""
    files = [part.samples for unit in written for part in unit.parts if part.samples is not None]
    table = pa.concat_tables(get_tables(root, files, ["key", "raw_key"]))
    if twice := _repeated(table["key"]):
        at = pc.index(table["key"], twice[0]).as_py()
        raise duplicate_key(twice[0], table["raw_key"][at].as_py())


def _repeated(keys: pa.ChunkedArray) -> list[str]:
    counts = keys.value_counts()
    return sorted(counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist())
