"""Registered samples as rows, by shard and set of fields, with penstock's keys, names and groups."""

import hashlib
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.names import MAX_MEMBER_BYTES, check_field, check_key, escape_key, escape_name, hashes_of
from loader.dataset.tables.any_columns import table_of_any
from loader.errors import FieldMismatch, InvalidField, InvalidKey, InvalidSample
from loader.storage import ObjectInfo

from ..reading.sample import NO_METADATA, ForeignRun, ForeignSample, ForeignTable

_AT_ONCE = 1024
Int64s = np.ndarray[Any, np.dtype[np.int64]]
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]")
_HIDDEN = re.compile("__[^/]*__(/|$)")
_PLAIN = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]*(?:/[A-Za-z0-9][A-Za-z0-9_-]*)*\n)*")
"""Keys, each with a line feed, that need no escaping."""
COMMON = "media"
"""Group of the fields that all samples have."""


@dataclass(frozen=True, slots=True)
class NumberedKeys(Sequence[str]):
    """The keys `<prefix><first>`, `<prefix><first + 1>` ..."""

    prefix: str
    """Text before each number."""
    first: int
    """First number."""
    n: int
    """Number of keys."""

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        numbers = range(self.first, self.first + self.n)
        if isinstance(at, slice):
            return [f"{self.prefix}{number}" for number in numbers[at]]
        return f"{self.prefix}{numbers[at]}"


@dataclass(frozen=True, slots=True)
class Repeated(Sequence[Any]):
    """One value, repeated."""

    value: Any
    n: int
    """Number of rows."""

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int | slice) -> Any:
        selected = range(self.n)[at]
        return self.value if isinstance(selected, int) else [self.value] * len(selected)


@dataclass(frozen=True, slots=True)
class MetadataRows(Sequence[Mapping[str, Any]]):
    """A table's rows as mappings."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.table.slice(start, _AT_ONCE).to_pylist()

    @overload
    def __getitem__(self, at: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> "MetadataRows": ...
    def __getitem__(self, at: int | slice) -> "Mapping[str, Any] | MetadataRows":
        rows = range(len(self))[at]
        if isinstance(rows, int):
            row: dict[str, Any] = self.table.slice(rows, 1).to_pylist()[0]
            return row
        return MetadataRows(
            self.table.slice(rows.start, len(rows)) if rows.step == 1 else self.table.take([*rows])
        )


def text_array(texts: Sequence[str]) -> pa.Array:
    if isinstance(texts, Repeated):
        return pa.repeat(texts.value, len(texts))
    if not isinstance(texts, NumberedKeys):
        return pa.array(texts, pa.string())
    numbers = pc.cast(pa.array(np.arange(texts.first, texts.first + texts.n)), pa.string())
    return pc.binary_join_element_wise(texts.prefix, numbers, "") if texts.prefix else numbers


def overlap(ranges: Sequence[NumberedKeys]) -> bool:
    """Return whether two ranges share a key. Prefixes are "" or end with "/"."""
    ends: dict[str, int] = {}
    for keys in sorted(ranges, key=lambda keys: (keys.prefix, keys.first)):
        if keys.first < ends.get(keys.prefix, 0):
            return True
        ends[keys.prefix] = keys.first + keys.n
    return False


@dataclass(slots=True)
class Rows:
    """Rows of one shard with equal fields, which become a part."""

    fields: tuple[str, ...]
    """Sorted names."""
    source_keys: Any = field(default_factory=list)
    """Each row's foreign key: a list, or `NumberedKeys`."""
    objects: Any = field(default_factory=list)
    """Each row's object key: a list, or `Repeated`."""
    metadata: Any = field(default_factory=list)
    """Each row's metadata: mappings, `Repeated`, or an Arrow table."""
    sources: Any = field(default_factory=list)
    """Each row's provenance: a list, or `Repeated`."""
    places: Any = field(default_factory=list)
    """int64 [rows, fields, 2]: offset in the shard, nbytes; flat while `rows_of` runs.

    For contiguous values of one field: int64 [rows + 1], values' offsets and the last's end.
    """
    crcs: Any = field(default_factory=list)
    """int64 [rows, fields]: CRC-32C; flat while `rows_of` runs, empty if unknown."""
    index: Any = None
    """All fields' `IndexFiles`, if built."""

    def each_metadata(self) -> Sequence[Mapping[str, Any]]:
        rows: Sequence[Mapping[str, Any]] = self.metadata
        return MetadataRows(self.metadata) if isinstance(self.metadata, pa.Table) else rows

    def metadata_table(self) -> pa.Table | None:
        """Return a table whose types fit all values, or None."""
        if isinstance(self.metadata, pa.Table):
            return self.metadata
        has_metadata = not isinstance(self.metadata, Repeated) and any(self.metadata)
        return table_of_any(self.metadata) if has_metadata else None

    def spans(self) -> Int64s:
        """Return int64 [rows, fields, 2]: offset in the shard, nbytes."""
        places: Int64s = self.places
        return places if places.ndim == 3 else np.stack([places[:-1], np.diff(places)], 1)[:, None]

    def take(self, numbers: Sequence[int]) -> "Rows":
        metadata = self.metadata
        return Rows(
            self.fields,
            source_keys=[self.source_keys[number] for number in numbers],
            objects=[self.objects[number] for number in numbers],
            metadata=metadata.take(numbers)
            if isinstance(metadata, pa.Table)
            else [metadata[number] for number in numbers],
            sources=[self.sources[number] for number in numbers],
            places=self.spans()[numbers],
            crcs=self.crcs[numbers] if len(self.crcs) else self.crcs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignShard:
    """Objects that share one index."""

    name: str
    """First object's key."""
    infos: tuple[ObjectInfo, ...]
    """Objects in key order."""
    offsets: tuple[int, ...]
    """Each object's offset in the shard, which joins all of them."""
    nbytes: int
    """Total bytes."""


def shards_of(infos: Sequence[ObjectInfo], each: int) -> list[ForeignShard]:
    """Return shards of at most `each` objects."""
    out = []
    for start in range(0, len(infos), each):
        objects = tuple(infos[start : start + each])
        ends = np.cumsum([info.nbytes for info in objects]).tolist()
        out.append(ForeignShard(name=objects[0].key, infos=objects, offsets=(0, *ends[:-1]), nbytes=ends[-1]))
    return out


def rows_of(
    shard: ForeignShard,
    samples: Sequence[Iterable[ForeignSample | ForeignTable | ForeignRun]],
    without: Container[str],
) -> list[Rows]:
    """Return a shard's rows, one `Rows` per set of fields and per run. samples: one iterable per object."""
    kinds: dict[tuple[str, ...], Rows] = {}
    known: dict[tuple[str, ...], tuple[Rows, tuple[str, ...]]] = {}
    """Foreign field names -> their rows, and these names in the order of ours."""
    runs: list[Rows] = []

    def rows_with(names_there: tuple[str, ...], info: ObjectInfo, key: str) -> tuple[Rows, tuple[str, ...]]:
        if names_there not in known:
            our_names = names_of([name for name in names_there if name not in without], info, key)
            kind = tuple(sorted(our_names))
            known[names_there] = (
                kinds.setdefault(kind, Rows(fields=kind)),
                tuple(our_names[name] for name in kind),
            )
        return known[names_there]

    for info, start, samples_there in zip(shard.infos, shard.offsets, samples, strict=True):
        for sample in samples_there:
            if isinstance(sample, ForeignRun):
                runs += _run(sample, info, start, without)
                continue
            if isinstance(sample, ForeignTable):
                _add_table(sample, info, start, *rows_with(sample.fields, info, sample.keys[0]))
                continue
            key, fields, metadata, source, crcs = sample
            rows, in_order = rows_with(tuple(fields), info, key)
            if not in_order:
                continue
            rows.source_keys.append(key)
            rows.objects.append(info.key)
            if isinstance(rows.metadata, pa.Table):
                rows.metadata = rows.metadata.to_pylist()  # another object in the shard added a table
            rows.metadata.append(metadata)
            rows.sources.append(source)
            for name in in_order:
                offset, nbytes = fields[name]
                rows.places += (offset + start, nbytes)
                if crcs:
                    rows.crcs.append(crcs[name])
    kinds.pop((), None)  # samples that have no field left
    for rows in kinds.values():
        shape = len(rows.source_keys), len(rows.fields)
        rows.places = np.array(rows.places, np.int64).reshape(*shape, 2)
        rows.crcs = np.array(rows.crcs, np.int64).reshape(shape) if rows.crcs else rows.crcs
    return [*kinds.values(), *runs]


def _add_table(
    table: ForeignTable, info: ObjectInfo, start: int, rows: Rows, in_order: tuple[str, ...]
) -> None:
    if not in_order:
        return
    if table.metadata is not None and not rows.source_keys:
        rows.metadata = table.metadata
    else:
        rows_there = [NO_METADATA] * len(table.keys) if table.metadata is None else table.metadata.to_pylist()
        rows.metadata = [*rows.each_metadata(), *rows_there]
    n, columns = len(table.keys), [table.fields.index(name) for name in in_order]
    places = np.array(table.places, np.int64).reshape(n, len(table.fields), 2)[:, columns]
    places[:, :, 0] += start
    rows.source_keys += table.keys
    rows.objects += [info.key] * n
    rows.sources += [NO_METADATA] * n
    rows.places += places.reshape(-1).tolist()
    if table.crcs:
        rows.crcs += np.array(table.crcs, np.int64).reshape(n, -1)[:, columns].reshape(-1).tolist()


def _run(run: ForeignRun, info: ObjectInfo, start: int, without: Container[str]) -> list[Rows]:
    n = len(run.edges) - 1
    if not n or run.field in without:
        return []
    keys = NumberedKeys(run.prefix, run.first, n)
    kind = tuple(names_of([run.field], info, keys[0]))
    edges = run.edges + start if start else run.edges
    metadata = pa.table(dict(run.metadata)) if run.metadata else Repeated(NO_METADATA, n)
    return [Rows(kind, keys, Repeated(info.key, n), metadata, Repeated(run.source, n), edges)]


def names_of(theirs: Sequence[str], info: ObjectInfo, key: str) -> dict[str, str]:
    """Return penstock's field name -> foreign name. Raises: InvalidField; InvalidSample."""
    names = dict[str, str]()
    for name in theirs:
        try:
            ours = check_field(_FORBIDDEN.sub("_", escape_name(name)))
        except InvalidField as error:
            raise InvalidField(
                f"{info.key}, sample {key!r}: {error}. To register the rest, leave the field out: --without {name}"
            ) from error
        if ours in names:
            raise InvalidSample(
                f"{info.key}, sample {key!r}: of the fields {sorted(theirs)} two would have one name; leave one of "
                "them out (--without)"
            )
        names[ours] = name
    return names


def key_of(source_key: str, longest: int) -> str:
    """Return penstock's key: the foreign one, escaped, or a hash if too long.

    longest: length of the longest field name, in bytes.
    """
    try:
        key = check_key(source_key)
    except InvalidKey:
        key = escape_key(source_key)
    if len(key.encode()) + 1 + longest > MAX_MEMBER_BYTES or _HIDDEN.match(key):
        return hashlib.sha256(source_key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return key


def agree(
    parts: Sequence[Rows], members: JsonMembers, known: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Convert all rows' columns to common types; return column -> type. known: for `JsonMembers.agreed`."""
    tables = [rows.metadata_table() for rows in parts]
    types = members.agreed([table for table in tables if table is not None], known)
    for rows, table in zip(parts, tables, strict=True):
        if table is not None:
            agreed = members.as_agreed(table, types)
            rows.metadata = agreed if agreed.column_names else [NO_METADATA] * len(rows.source_keys)
    return types


def own_keys(rows: Rows) -> Sequence[str]:
    """Return the rows' keys in penstock; the source keys themselves if they need no escaping."""
    source_keys: Sequence[str] = rows.source_keys
    longest = max(map(len, rows.fields))
    most, every = max(map(len, source_keys)) + 1 + longest, "\n".join([*source_keys, ""])
    if most <= MAX_MEMBER_BYTES and every.count("\n") == len(source_keys) and _PLAIN.fullmatch(every):
        return source_keys
    return [key_of(key, longest) for key in source_keys]


def keys_of(parts: Sequence[Rows], in_use: Collection[str]) -> Sequence[Sequence[str]]:
    """Return each part's sample keys. Repeated keys and keys in use are prefixed with the object's name."""
    numbered = _numbered_keys(parts)
    if numbered is not None and not _may_be_in_use(numbered, in_use):
        return numbered
    plain = [own_keys(rows) for rows in parts]
    every = set[str]().union(*plain)
    if len(every) == sum(map(len, plain)) and every.isdisjoint(in_use):
        return plain
    seen, twice = set[str](), set[str]()
    for keys in plain:
        for key in keys:
            (twice if key in seen or key in in_use else seen).add(key)
    return [
        [
            key_of(f"{rows.objects[at]}/{rows.source_keys[at]}", max(map(len, rows.fields)))
            if key in twice
            else key
            for at, key in enumerate(keys)
        ]
        for rows, keys in zip(parts, plain, strict=True)
    ]


def _may_be_in_use(numbered: Sequence[NumberedKeys], in_use: Collection[str]) -> bool:
    if not in_use:
        return False
    hashes = hashes_of(in_use)
    return any(np.isin(hashes_of(text_array(keys)), hashes).any() for keys in numbered)


def _numbered_keys(parts: Sequence[Rows]) -> list[NumberedKeys] | None:
    out = []
    for rows in parts:
        theirs = rows.source_keys
        if not isinstance(theirs, NumberedKeys):
            return None
        longest = max(map(len, rows.fields))
        prefix = key_of(f"{theirs.prefix}0", longest)[:-1]
        if key_of(theirs[-1], longest) != f"{prefix}{theirs.first + theirs.n - 1}":
            return None
        out.append(NumberedKeys(prefix, theirs.first, theirs.n))
    return None if overlap(out) else out


def groups_of(parts: Sequence[Rows], known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return field -> group: one for fields that all samples have, and one for each other field.

    known: the dataset's groups. Raises: FieldMismatch if a part has only some of a group's fields.
    """
    group_of = {name: group for group, body in known.items() for name in body["field_nbytes"]}
    every = sorted({name for rows in parts for name in rows.fields})
    common = set.intersection(*(set(rows.fields) for rows in parts)) if not known else set()
    for name in every:
        if name in common:
            group_of[name] = COMMON
        elif name not in group_of:
            group_of[name] = group_name(name, {COMMON, *group_of.values()})
    members: dict[str, set[str]] = {}
    for name, group in group_of.items():
        members.setdefault(group, set()).add(name)
    for rows in parts:
        for group in {group_of[name] for name in rows.fields}:
            if missing := sorted(members[group] - set(rows.fields)):
                raise FieldMismatch(
                    f"{rows.objects[0]}, sample {rows.source_keys[0]!r} has no field {missing[0]!r}, which all had "
                    f"that were registered before with {sorted(members[group] & set(rows.fields))}: register the "
                    "place under another name"
                )
    return group_of


def group_guessed(known: Mapping[str, Mapping[str, Any]]) -> Callable[[str], str]:
    """Return a function from field name to probable group, before all samples are known.

    A known field keeps its group, a new one gets its own; in a new dataset, `COMMON`.
    """
    group_of = {name: group for group, body in known.items() for name in body["field_nbytes"]}
    in_use = {COMMON, *known}
    return lambda name: group_of.get(name) or (group_name(name, in_use) if known else COMMON)


def group_name(field: str, in_use: set[str]) -> str:
    name = re.sub("[^a-z0-9_]", "_", field.lower()).lstrip("_")[:48] or "field"
    free, n = name, 1
    while free in in_use:
        n += 1
        free = f"{name}_{n}"
    return free
