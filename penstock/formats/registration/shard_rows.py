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

from ..reading.sample import (
    NO_METADATA,
    ForeignRun,
    ForeignSample,
    ForeignShard,
    ForeignTable,
    NumberedKeys,
    Repeated,
    overlap,
)

_AT_ONCE = 1024  # rows converted at a time
Int64s = np.ndarray[Any, np.dtype[np.int64]]
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]")
_HIDDEN = re.compile("__[^/]*__(/|$)")
_PLAIN = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]*(?:/[A-Za-z0-9][A-Za-z0-9_-]*)*\n)*")
"""Keys, each with a line feed, that need no escaping."""
COMMON = "media"
"""Group of the fields that all samples have."""


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
    numbers = np.arange(texts.first, texts.first + texts.n)
    number_texts = pc.cast(pa.array(numbers), pa.string())
    if not texts.prefix:
        return number_texts
    return pc.binary_join_element_wise(texts.prefix, number_texts, "")


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
        if isinstance(self.metadata, pa.Table):
            return MetadataRows(self.metadata)
        rows: Sequence[Mapping[str, Any]] = self.metadata
        return rows

    def metadata_table(self) -> pa.Table | None:
        """Return a table whose types fit all values, or None."""
        if isinstance(self.metadata, pa.Table):
            return self.metadata
        if isinstance(self.metadata, Repeated) or not any(self.metadata):
            return None
        return table_of_any(self.metadata)

    def spans(self) -> Int64s:
        """Return int64 [rows, fields, 2]: offset in the shard, nbytes."""
        places: Int64s = self.places
        if places.ndim == 3:
            return places
        offsets = places[:-1]
        sizes = np.diff(places)
        return np.stack([offsets, sizes], 1)[:, None]

    def take(self, numbers: Sequence[int]) -> "Rows":
        """Return some rows, in the order of their numbers."""
        if isinstance(self.metadata, pa.Table):
            metadata = self.metadata.take(numbers)
        else:
            metadata = [self.metadata[number] for number in numbers]
        crcs = self.crcs
        if len(crcs):
            crcs = crcs[numbers]
        return Rows(
            self.fields,
            source_keys=[self.source_keys[number] for number in numbers],
            objects=[self.objects[number] for number in numbers],
            metadata=metadata,
            sources=[self.sources[number] for number in numbers],
            places=self.spans()[numbers],
            crcs=crcs,
        )


def shard_rows(
    shard: ForeignShard,
    samples: Sequence[Iterable[ForeignSample | ForeignTable | ForeignRun]],
    without: Container[str],
) -> list[Rows]:
    """Return a shard's rows, one `Rows` per set of fields and per run. samples: one iterable per object."""
    kinds = _RowKinds(without)
    runs: list[Rows] = []
    for info, start, own_samples in zip(shard.infos, shard.offsets, samples, strict=True):
        for sample in own_samples:
            if isinstance(sample, ForeignRun):
                runs += _run(sample, info, start, without)
                continue
            if isinstance(sample, ForeignTable):
                rows, names = kinds.find_rows(sample.fields, info, sample.keys[0])
                _add_table(sample, info, start, rows, names)
                continue
            key, fields, metadata, source, crcs = sample
            rows, names = kinds.find_rows(tuple(fields), info, key)
            if not names:
                continue
            rows.source_keys.append(key)
            rows.objects.append(info.key)
            if isinstance(rows.metadata, pa.Table):
                rows.metadata = rows.metadata.to_pylist()  # another object in the shard added a table
            rows.metadata.append(metadata)
            rows.sources.append(source)
            for name in names:
                offset, nbytes = fields[name]
                rows.places += (offset + start, nbytes)
                if crcs:
                    rows.crcs.append(crcs[name])
    return [*kinds.all(), *runs]


class _RowKinds:
    """A shard's rows by their set of fields."""

    def __init__(self, without: Container[str]) -> None:
        self._without = without
        self._kinds: dict[tuple[str, ...], Rows] = {}
        self._known: dict[tuple[str, ...], tuple[Rows, tuple[str, ...]]] = {}

    def find_rows(
        self, foreign_names: tuple[str, ...], info: ObjectInfo, key: str
    ) -> tuple[Rows, tuple[str, ...]]:
        """Return the rows with these fields, and the foreign names in the order of `Rows.fields`."""
        known = self._known.get(foreign_names)
        if known is not None:
            return known
        names = [name for name in foreign_names if name not in self._without]
        foreign_name_of = field_names(names, info, key)
        kind = tuple(sorted(foreign_name_of))
        rows = self._kinds.setdefault(kind, Rows(fields=kind))
        self._known[foreign_names] = rows, tuple(foreign_name_of[name] for name in kind)
        return self._known[foreign_names]

    def all(self) -> list[Rows]:
        """Return the rows, with arrays in place of flat lists."""
        self._kinds.pop((), None)  # samples that have no field left
        for rows in self._kinds.values():
            shape = len(rows.source_keys), len(rows.fields)
            rows.places = np.array(rows.places, np.int64).reshape(*shape, 2)
            if rows.crcs:
                rows.crcs = np.array(rows.crcs, np.int64).reshape(shape)
        return [*self._kinds.values()]


def _add_table(table: ForeignTable, info: ObjectInfo, start: int, rows: Rows, names: tuple[str, ...]) -> None:
    if not names:
        return
    n = len(table.keys)
    if table.metadata is None:
        rows.metadata = [*rows.each_metadata(), *[NO_METADATA] * n]
    elif rows.source_keys:
        rows.metadata = [*rows.each_metadata(), *table.metadata.to_pylist()]
    else:
        rows.metadata = table.metadata  # the first rows: their columns need no conversion
    columns = [table.fields.index(name) for name in names]
    places = np.array(table.places, np.int64).reshape(n, len(table.fields), 2)[:, columns]
    places[:, :, 0] += start  # [rows, fields, 2]: offsets in the shard
    rows.source_keys += table.keys
    rows.objects += [info.key] * n
    rows.sources += [NO_METADATA] * n
    rows.places += places.reshape(-1).tolist()
    if table.crcs:
        crcs = np.array(table.crcs, np.int64).reshape(n, -1)[:, columns]
        rows.crcs += crcs.reshape(-1).tolist()


def _run(run: ForeignRun, info: ObjectInfo, start: int, without: Container[str]) -> list[Rows]:
    n = len(run.edges) - 1
    if not n or run.field in without:
        return []
    keys = NumberedKeys(run.prefix, run.first, n)
    edges = run.edges
    if start:
        edges = edges + start  # a copy of the array: not for the first object
    metadata: Any = Repeated(NO_METADATA, n)
    if run.metadata:
        metadata = pa.table(dict(run.metadata))
    rows = Rows(
        fields=tuple(field_names([run.field], info, keys[0])),
        source_keys=keys,
        objects=Repeated(info.key, n),
        metadata=metadata,
        sources=Repeated(run.source, n),
        places=edges,
    )
    return [rows]


def field_names(foreign_names: Sequence[str], info: ObjectInfo, key: str) -> dict[str, str]:
    """Return penstock's field name -> foreign name. Raises: InvalidField; InvalidSample."""
    names: dict[str, str] = {}
    where = f"{info.key}, sample {key!r}"
    for foreign_name in foreign_names:
        escaped = _FORBIDDEN.sub("_", escape_name(foreign_name))
        try:
            name = check_field(escaped)
        except InvalidField as error:
            remedy = f"To register the rest, leave the field out: --without {foreign_name}"
            raise InvalidField(f"{where}: {error}. {remedy}", what=foreign_name, where=where) from error
        if name in names:
            fields = sorted(foreign_names)
            remedy = "leave one of them out (--without)"
            message = f"{where}: of the fields {fields} two would have one name; {remedy}"
            raise InvalidSample(message, what="fields", where=where, given=fields)
        names[name] = foreign_name
    return names


def sample_key(source_key: str, longest: int) -> str:
    """Return penstock's key: the foreign one, escaped, or a hash if too long.

    longest: length of the longest field name, in bytes.
    """
    try:
        key = check_key(source_key)
    except InvalidKey:
        key = escape_key(source_key)
    member_bytes = len(key.encode()) + 1 + longest  # <key>.<field>
    if member_bytes > MAX_MEMBER_BYTES or _HIDDEN.match(key):
        return hashlib.sha256(source_key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return key


def agree(
    parts: Sequence[Rows], members: JsonMembers, known: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Convert all rows' columns to common types; return column -> type. known: for `JsonMembers.agreed`."""
    tables = [rows.metadata_table() for rows in parts]
    types = members.agreed([table for table in tables if table is not None], known)
    for rows, table in zip(parts, tables, strict=True):
        if table is None:
            continue
        converted = members.as_agreed(table, types)
        if converted.column_names:
            rows.metadata = converted
        else:
            rows.metadata = [NO_METADATA] * len(rows.source_keys)
    return types


def own_keys(rows: Rows) -> Sequence[str]:
    """Return the rows' keys in penstock; the source keys themselves if they need no escaping."""
    source_keys: Sequence[str] = rows.source_keys
    longest = max(map(len, rows.fields))
    most_bytes = max(map(len, source_keys)) + 1 + longest
    # One match over all keys: a call for each key would take most of a registration's time.
    lines = "\n".join([*source_keys, ""])
    is_line_each = lines.count("\n") == len(source_keys)  # no key has a line feed
    if most_bytes <= MAX_MEMBER_BYTES and is_line_each and _PLAIN.fullmatch(lines):
        return source_keys
    return [sample_key(key, longest) for key in source_keys]


def part_keys(parts: Sequence[Rows], in_use: Collection[str]) -> Sequence[Sequence[str]]:
    """Return each part's sample keys. Repeated keys and keys in use are prefixed with the object's name."""
    numbered = _number_keys(parts)
    if numbered is not None and not _may_be_in_use(numbered, in_use):
        return numbered
    plain = [own_keys(rows) for rows in parts]
    distinct = set[str]().union(*plain)
    n_keys = sum(map(len, plain))
    if len(distinct) == n_keys and distinct.isdisjoint(in_use):
        return plain
    repeated = _find_repeats(plain, in_use)
    return [_keys_with_objects(rows, keys, repeated) for rows, keys in zip(parts, plain, strict=True)]


def _find_repeats(parts: Sequence[Sequence[str]], in_use: Collection[str]) -> set[str]:
    """Return the keys that come more than once, or are in use."""
    distinct: set[str] = set()
    repeated: set[str] = set()
    for keys in parts:
        for key in keys:
            if key in distinct or key in in_use:
                repeated.add(key)
            else:
                distinct.add(key)
    return repeated


def _keys_with_objects(rows: Rows, keys: Sequence[str], repeated: Container[str]) -> list[str]:
    longest = max(map(len, rows.fields))
    out = []
    for number, key in enumerate(keys):
        if key in repeated:
            key = sample_key(f"{rows.objects[number]}/{rows.source_keys[number]}", longest)
        out.append(key)
    return out


def _may_be_in_use(numbered: Sequence[NumberedKeys], in_use: Collection[str]) -> bool:
    if not in_use:
        return False
    hashes = hashes_of(in_use)
    return any(np.isin(hashes_of(text_array(keys)), hashes).any() for keys in numbered)


def _number_keys(parts: Sequence[Rows]) -> list[NumberedKeys] | None:
    """Return each part's keys as a range of numbers; None if one has other keys, or two share a key."""
    out = []
    for rows in parts:
        source_keys = rows.source_keys
        if not isinstance(source_keys, NumberedKeys):
            return None
        longest = max(map(len, rows.fields))
        prefix = sample_key(f"{source_keys.prefix}0", longest)[:-1]
        last_number = source_keys.first + source_keys.n - 1
        if sample_key(source_keys[-1], longest) != f"{prefix}{last_number}":  # too long: the key is a hash
            return None
        out.append(NumberedKeys(prefix, source_keys.first, source_keys.n))
    if overlap(out):
        return None
    return out


def field_groups(parts: Sequence[Rows], known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return field -> group: one for fields that all samples have, and one for each other field.

    known: the dataset's groups. Raises: FieldMismatch if a part has only some of a group's fields.
    """
    group_of = _known_groups(known)
    field_sets = [set(rows.fields) for rows in parts]
    common: set[str] = set()
    if not known:
        common = set.intersection(*field_sets)
    for name in sorted(set[str]().union(*field_sets)):
        if name in common:
            group_of[name] = COMMON
        elif name not in group_of:
            group_of[name] = group_name(name, {COMMON, *group_of.values()})
    members: dict[str, set[str]] = {}
    for name, group in group_of.items():
        members.setdefault(group, set()).add(name)
    for rows, fields in zip(parts, field_sets, strict=True):
        for group in {group_of[name] for name in rows.fields}:
            missing = sorted(members[group] - fields)
            if missing:
                raise FieldMismatch(
                    f"{rows.objects[0]}, sample {rows.source_keys[0]!r} has no field {missing[0]!r}, which all had "
                    f"that were registered before with {sorted(members[group] & fields)}: register the place under "
                    "another name",
                    what=missing[0],
                    where=f"{rows.objects[0]}, sample {rows.source_keys[0]!r}",
                )
    return group_of


def _known_groups(known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return field -> group. known: the dataset's groups."""
    group_of: dict[str, str] = {}
    for group, body in known.items():
        group_of.update(dict.fromkeys(body["field_nbytes"], group))
    return group_of


def group_guessed(known: Mapping[str, Mapping[str, Any]]) -> Callable[[str], str]:
    """Return a function from field name to probable group, before all samples are known.

    A known field keeps its group, a new one gets its own; in a new dataset, `COMMON`.
    """
    group_of = _known_groups(known)
    in_use = {COMMON, *known}

    def probable_group(name: str) -> str:
        if name in group_of:
            return group_of[name]
        if not known:
            return COMMON
        return group_name(name, in_use)

    return probable_group


def group_name(field: str, in_use: set[str]) -> str:
    name = re.sub("[^a-z0-9_]", "_", field.lower()).lstrip("_")[:48] or "field"
    free_name = name
    n = 1
    while free_name in in_use:
        n += 1
        free_name = f"{name}_{n}"
    return free_name
