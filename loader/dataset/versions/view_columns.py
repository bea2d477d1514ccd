"""Columns of the samples table that a view delivers with its fields.

Stored columns are read by row group, when a sample of one is first needed, and cached up to CACHE_BYTES. So a start
costs a few row groups, however large the version is. Annotated columns, and columns of groups that only some parts
have, are read whole, once per process: their rows are not in the order of the samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

from ...errors import FieldMismatch, FieldNotFound, InvalidPlan
from ...keywords import did_you_mean
from ...order.sources.window_layout import MAX_COLUMNS
from ...storage.threads import SizedLru, lock
from ..tables.columns import is_annotation
from ..tables.parquet import ROW_GROUP_ROWS, TableFile
from ..tables.table_rows import get_rows

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Map = Callable[..., Iterable[Any]]
"""`map`, or a thread pool's."""
Classes: TypeAlias = tuple[str, ...] | None
"""Class names, whose positions a batch has in place of the names; None for the column's own values."""
AskedColumns: TypeAlias = Sequence[str] | Mapping[str, Sequence[str] | None]
"""Names of columns, or column -> class names or None."""

ARROW_TYPES = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}
"""Types of columns that batches can have, by their names in a manifest."""
DELIVERED_TYPES = tuple(ARROW_TYPES)
MAX_CLASSES = 100_000
"""Most class names of a column: a plan stores them."""
CACHE_BYTES = 256 * 2**20
"""Bytes of recent row groups that a process caches per view."""
_BLOCK_BITS = 32
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1
UNKNOWN = -1
"""Class number of a name that is not among the class names."""


def check_columns(
    version: "VersionData",
    asked: AskedColumns,
    fields: Sequence[str],
) -> dict[str, Classes]:
    """Return column -> its class names, or None. Raises: FieldNotFound; FieldMismatch; InvalidPlan."""
    is_sequence = isinstance(asked, Sequence) and not isinstance(asked, str)
    if not is_sequence and not isinstance(asked, Mapping):
        message = f"columns = {asked!r:.200}; names of columns are needed, such as ['label'], "
        message += "or class names by column, such as {'label': version.classes('label')}"
        raise InvalidPlan(message, what="columns", given=asked, accepted="names of columns")
    n = len(asked)
    if n > MAX_COLUMNS:
        message = f"columns names {n} columns; accepted: at most {MAX_COLUMNS}"
        raise InvalidPlan(message, what="columns", given=n, accepted=MAX_COLUMNS)
    columns: dict[str, Classes] = {}
    for name in asked:
        kind = _check_kind(
            version,
            name,
            fields,
        )
        columns[name] = None
        if isinstance(asked, Mapping):
            classes = asked[name]
            if classes is not None:
                columns[name] = _check_classes(
                    name,
                    classes,
                    kind,
                )
    return columns


def _check_kind(
    version: "VersionData",
    name: str,
    fields: Sequence[str],
) -> str:
    """Return the Arrow type of a column that batches can have."""
    known = version.manifest["columns"]
    if name not in known:
        near = ";"
        if isinstance(name, str):  # a list of a user may hold anything
            near = did_you_mean(name, known) or ";"
        known_names = ", ".join(sorted(known))
        message = f"columns names {name!r}{near} the samples table of {version.name} has {known_names}"
        raise FieldNotFound(message, what="columns", where=version.name, given=name)
    if name in fields:
        message = f"{name!r} is a field and a column of {version.name}, and a batch has one value of a name: "
        message += "leave one of them out of select()"
        raise InvalidPlan(message, what=name, where=version.name)
    kind: str = known[name]["type"]
    if kind not in DELIVERED_TYPES:
        accepted = ", ".join(DELIVERED_TYPES)
        message = f"column {name!r} of {version.name} is {kind}; batches can have columns of {accepted}"
        raise FieldMismatch(message, what=name, where=version.name, given=kind)
    return kind


def _check_classes(
    name: str,
    classes: object,
    kind: str,
) -> tuple[str, ...]:
    names: tuple[Any, ...] = ()
    is_sequence = isinstance(classes, Sequence) and not isinstance(classes, str)
    if is_sequence:
        names = tuple(cast(Sequence[Any], classes))
    are_texts = all(isinstance(each, str) for each in names)
    if not is_sequence or not are_texts:
        raise InvalidPlan(
            f"columns: the classes of {name!r} are {classes!r:.200}; a list of names is needed, such as "
            f"version.classes({name!r})"
        )
    if kind != "string":
        message = f"columns: {name!r} is {kind} and has no class names; without them a batch has its values"
        raise FieldMismatch(message, what="columns", where=name, given=kind, accepted="a column of texts")
    if not 0 < len(names) <= MAX_CLASSES:
        message = f"columns: {name!r} has {len(names)} class names; accepted: 1 to {MAX_CLASSES:,}"
        raise InvalidPlan(message, what="class names", where=name, given=len(names), accepted=MAX_CLASSES)
    if len(set(names)) < len(names):
        message = f"columns: the class names of {name!r} repeat one; each needs one number"
        raise InvalidPlan(message, what="class names", where=name, given=names, accepted="each name once")
    return names


def class_names(
    version: "VersionData",
    column: str,
    first: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return a string column's distinct values: `first` in its order, then the others sorted. See `Version.classes`."""
    check_columns(version, {column: ["any"]}, ())
    # scan_samples imports polars
    from .samples_table import scan_samples

    scan = scan_samples(version, [column]).select(column)
    distinct = scan.unique().collect()
    values = distinct.to_series().to_list()
    others = {value for value in values if value is not None}
    others.difference_update(first)
    # Sorted: a class has the same number in every process, whatever the order in which polars returns the values.
    names = (*first, *sorted(others))
    if len(names) > MAX_CLASSES:
        raise FieldMismatch(
            f"column {column!r} of {version.name} has {len(names):,} distinct values; accepted are up to "
            f"{MAX_CLASSES:,} classes"
        )
    return names


class _RowGroup(NamedTuple):
    """A block: the rows of one row group of a stored table, which are read together."""

    group: str
    """Column group."""
    file: int
    """Number of the file in its group."""
    number: int
    """Number of the block in its file."""


class _Group:
    """The files of one column group, whose rows are the version's rows in order."""

    def __init__(self, files: Sequence[Mapping[str, Any]], names: list[str]) -> None:
        self.files = files
        self.names = names
        sizes = [file["n_rows"] for file in files]
        self.first_row = _starts(sizes)
        """int64 [files + 1]: first row of each file in the version, then the number of all rows."""


def _starts(counts: Sequence[int] | Int64s) -> Int64s:
    """Return int64 [n + 1]: the sum of the counts before each, then the sum of all."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, dtype=np.int64, out=starts[1:])
    return starts


class SampleColumns:
    """Values of a view's columns for live ordinals of its version; thread-safe.

    Reads the row groups of the requested samples, and caches them: 8 bytes per row and number, or a text's bytes.
    """

    def __init__(
        self,
        version: "VersionData",
        columns: Mapping[str, Classes],
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._version = version
        self._columns = dict(columns)
        self._cache = SizedLru(cache_bytes)
        self._lock = lock()
        self._whole: dict[str, pa.Array] = {}  # column read whole -> its values by live ordinal
        self._unknown: dict[str, str] = {}  # column -> example of a text that is none of its class names
        self._row_of_part = _starts(version.parts.n_rows)
        """int64 [parts + 1]: number of rows before each part."""
        self._groups: dict[str, _Group] = {}
        for name in self._columns:
            self._group_column(name)

    def _group_column(self, name: str) -> None:
        """Add a column to its group, if its rows can be read by position."""
        entries = self._version.manifest["samples"]
        column_files = [entry for entry in entries if name in entry["columns"]]
        groups = {entry["group"] for entry in column_files}
        is_annotated = any(is_annotation(entry) for entry in column_files)
        if len(groups) != 1 or is_annotated:
            return
        (group_name,) = groups
        group = self._groups.get(group_name)
        if group is not None:
            group.names.append(name)
            return
        files = [entry for entry in entries if entry["group"] == group_name]
        n_rows = sum(file["n_rows"] for file in files)
        # A group that some parts lack has fewer rows, which are not at the version's positions.
        if n_rows == self._row_of_part[-1]:
            self._groups[group_name] = _Group(files, [name])

    def __call__(self, ordinals: Int64s, parallel_map: Map = map) -> dict[str, list[Any]]:
        """Return column -> one value per live ordinal (int64 [n]), None for a null.

        A column with class names has their numbers, or UNKNOWN. parallel_map: `map`, or a thread pool's.

        Raises: Corrupt; StoreError; MissingDependency if a column must be read whole, and polars is missing.
        """
        arrays = self.arrays(ordinals, parallel_map)
        return {name: values.to_pylist() for name, values in arrays.items()}

    def arrays(self, ordinals: Int64s, parallel_map: Map = map) -> dict[str, pa.Array]:
        """Return column -> its values as an Arrow array [n] of the column's type. Arguments, errors: as `__call__`."""
        part, row = self._version.parts.locate(ordinals)
        place = self._row_of_part[part] + row  # int64 [n]: number of each sample's row in the version
        values: dict[str, pa.Array] = {}
        # A copy: `_by_position` removes a group that is not in order.
        groups = list(self._groups.items())
        for name, group in groups:
            by_position = self._by_position(
                name,
                group,
                place,
                parallel_map,
            )
            if by_position is not None:
                values |= by_position
        for name in self._columns.keys() - values.keys():
            column = self._whole_column(name)
            values[name] = column.take(pa.array(ordinals))
        return {name: values[name] for name in self._columns}

    def is_known(self, name: str, value: Any) -> bool:
        """Return whether a sample has a value, and one of the column's class names if there are any."""
        return value is not None and (value != UNKNOWN or self._columns[name] is None)

    def refusal(
        self,
        name: str,
        value: Any,
        sample: str,
    ) -> FieldMismatch:
        """Return the error for a value that is not known. sample: for the message."""
        if value is None:
            return FieldMismatch(
                f"{sample} has no {name!r} in the samples table, which select(columns=) delivers. Leave such samples "
                f'out, .where("{name} IS NOT NULL"), or annotate them (penstock annotate)'
            )
        classes = self._columns[name] or ()
        example = self._unknown.get(name, "")
        return FieldMismatch(
            f"{sample} has a {name!r} that is none of the {len(classes)} class names of "
            f"select(columns=), such as {example!r}; version.classes({name!r}, first=...) adds new "
            "names after them"
        )

    def _by_position(
        self,
        name: str,
        group: _Group,
        place: Int64s,
        parallel_map: Map,
    ) -> dict[str, pa.Array] | None:
        """Return the group's columns at rows; None if its table is not in the order of the parts."""
        if not len(place):
            return {column: pa.nulls(0, self._type(column)) for column in group.names}
        file = np.searchsorted(group.first_row, place, side="right") - 1
        row_of_file = place - group.first_row[file]
        block = row_of_file // ROW_GROUP_ROWS
        row_of_block = row_of_file % ROW_GROUP_ROWS
        # [n]: one number per file and block, which numpy sorts ten times as fast as pairs.
        block_of_sample = (file << _BLOCK_BITS) + block
        distinct, number = np.unique(block_of_sample, return_inverse=True)
        blocks = []
        for value in distinct.tolist():
            block_number = value & _BLOCK_MASK
            blocks.append(_RowGroup(name, value >> _BLOCK_BITS, block_number))
        block_positions: list[Int64s] = []  # of each block: positions of its samples in `place`
        block_values: dict[str, list[pa.Array]] = {column: [] for column in group.names}
        for index, arrays in enumerate(self._read(blocks, group, parallel_map)):
            if arrays is None:
                with self._lock:
                    self._groups.pop(name, None)
                return None
            is_of_block = number == index
            rows = pa.array(row_of_block[is_of_block])
            block_positions.append(np.flatnonzero(is_of_block))
            for column, array in arrays.items():
                block_values[column].append(array.take(rows))

        by_block = np.concatenate(block_positions)  # [n]: a permutation
        position = np.empty(len(place), np.int64)
        position[by_block] = np.arange(len(place))
        order = pa.array(position)
        values: dict[str, pa.Array] = {}
        for column, parts in block_values.items():
            values[column] = pa.concat_arrays(parts).take(order)
        return values

    def _read(
        self,
        blocks: Sequence[_RowGroup],
        group: _Group,
        parallel_map: Map,
    ) -> Iterator[Mapping[str, pa.Array] | None]:
        """Yield each block, as `_block` returns it, in order."""
        cached = [self._cache.get(block) for block in blocks]
        missing = [block for block, arrays in zip(blocks, cached, strict=True) if arrays is None]

        def read_block(block: _RowGroup) -> Mapping[str, pa.Array] | None:
            return self._block(block, group)

        # A thread pool reads the missing blocks side by side: each costs one or two requests.
        missing_arrays = parallel_map(read_block, missing)
        arrays_by_block = dict(zip(missing, missing_arrays, strict=True))
        for block, arrays in zip(blocks, cached, strict=True):
            if arrays is None:
                yield arrays_by_block[block]
            else:
                yield arrays

    def _block(self, block: _RowGroup, group: _Group) -> Mapping[str, pa.Array] | None:
        """Return column -> values of a block's rows; None if these are not in the order of the parts."""
        file = group.files[block.file]
        start = block.number * ROW_GROUP_ROWS
        stop = min(start + ROW_GROUP_ROWS, file["n_rows"])
        stored = [name for name in group.names if name in file["columns"]]
        entry = TableFile.from_json(dict(file))
        rows = np.arange(start, stop, dtype=np.int64)
        table = get_rows(
            self._version.store,
            entry,
            rows,
            ["part", "row", *stored],
        )
        first_row = int(group.first_row[block.file])
        if not self._is_in_order(table, first_row + rows):
            return None
        arrays = {}
        for name in group.names:
            if name in stored:
                arrays[name] = self._deliver(name, table[name])
            else:
                arrays[name] = pa.nulls(len(rows), self._type(name))
        nbytes = sum(array.nbytes for array in arrays.values())
        self._cache.put(block, arrays, nbytes)
        return arrays

    def _is_in_order(self, table: pa.Table, place: Int64s) -> bool:
        """Return whether a table's rows are the version's rows at `place`. Earlier releases merged some otherwise."""
        part = np.searchsorted(self._row_of_part, place, side="right") - 1
        table_part = self._version.parts.positions(table["part"])
        if not np.array_equal(table_part, part):
            return False
        row = place - self._row_of_part[part]
        table_row = table["row"].to_numpy()
        return bool(np.array_equal(table_row, row))

    def _whole_column(self, name: str) -> pa.Array:
        with self._lock:
            if name not in self._whole:
                values = column_values(self._version, [name])
                stored = values[name].to_arrow()
                column = pa.chunked_array([stored])
                self._whole[name] = self._deliver(name, column)
            return self._whole[name]

    def _type(self, name: str) -> pa.DataType:
        """Return the type of a column as batches have it."""
        if self._columns[name] is not None:
            return pa.int64()  # numbers of classes
        kind = self._version.manifest["columns"][name]["type"]
        return ARROW_TYPES[kind]

    def _deliver(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        """Return a column as batches have it: values of its type in the version, or class numbers."""
        import pyarrow.compute as pc  # 40 ms, saved at startup

        values = column.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
        classes = self._columns[name]
        if classes is None:
            # A part of whole numbers is int64 even if the version's column is double.
            return values.cast(self._type(name))

        values = values.cast(pa.string())
        is_valid = values.is_valid()
        value_set = pa.array(classes, pa.string())
        numbers = pc.index_in(values, value_set=value_set)  # null for a null, and for a name without a number
        is_unknown = pc.and_(is_valid, numbers.is_null())
        others = values.filter(is_unknown)
        if len(others):
            example = others[0].as_py()
            self._unknown.setdefault(name, example)
        numbers = numbers.cast(pa.int64())
        numbers = pc.fill_null(numbers, UNKNOWN)
        null = pa.scalar(None, pa.int64())
        return pc.if_else(is_valid, numbers, null)


def column_values(version: "VersionData", names: Sequence[str]) -> dict[str, Any]:
    """Return column -> its values, one per live ordinal of a version. Reads them whole. Raises: FieldNotFound."""
    from .samples_table import live_values  # imports polars

    # As SQL expressions: in quotes a name is a column, whatever characters it has.
    expressions = []
    for name in names:
        escaped = name.replace('"', '""')
        expressions.append(f'"{escaped}"')
    frame = live_values(version, expressions, f"columns={list(names)}")
    values = {}
    for number, name in enumerate(names):
        values[name] = frame[str(number)]  # `live_values` names its columns by number
    return values
