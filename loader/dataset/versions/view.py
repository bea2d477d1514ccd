"""A view: a version, the fields to fetch and an optional predicate."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, FieldNotFound, Forbidden, ObjectNotFound, StoreError
from ...modalities.array import clock_field
from ...modalities.fields import without_row_blocks
from ...order.sources.views import Delta
from ...storage.requests import retry_corrupt
from ...storage.threads import lock
from ..log.entries import canonical
from ..progress import Watch, unwatched
from ..shards.bitmap import Bools, SelectTable, pack, unpack
from ..shards.shard import crc32c
from ..tables.parquet import parse_stored, table_bytes

if TYPE_CHECKING:
    import polars

    from ...order.sources.packing import PackBy, PackedView
    from ...order.sources.views import ListedView
    from ...order.sources.window_layout import WindowLayout
    from ...order.sources.window_view import WindowView
    from .version import Version
    from .view_columns import AskedColumns, Classes, SampleColumns

logger = logging.getLogger(__name__)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
CHUNK_BITS = 2**20
"""Ordinals per row of a stored view: 128 KiB of bitmap."""


class View:
    """Samples and fields of a version. Immutable; `select` and `where` return narrower views.

    A view pickles as its version, fields and predicate. Its length is the number of its samples.
    """

    version: "Version"
    """Version that has the samples."""
    fields: tuple[str, ...]
    """Names of the fields to read, in the order requested."""
    predicate: str | None
    """SQL expression that selects the samples; None for all."""
    where_present: bool
    """True leaves out samples of parts that lack one of the fields; False rejects such fields."""
    first: int
    """First live ordinal of the version in the view (see `since`)."""
    columns: "dict[str, Classes]"
    """Column of the samples table that batches have -> class names, or None for its values."""

    def __init__(
        self,
        version: "Version",
        fields: Sequence[str],
        predicate: str | None,
        where_present: bool = False,
        first: int = 0,
        columns: "AskedColumns" = (),
    ) -> None:
        self.version, self.predicate, self.where_present = version, predicate, where_present
        self.first = first
        if not_names := [field for field in fields if not isinstance(field, str)]:
            raise FieldNotFound(
                f"select({not_names[0]!r}): names of fields are needed, each an argument: select('jpg', 'cls')"
            )
        self.fields = tuple(dict.fromkeys(fields))
        self.columns = self._checked(columns)
        self._groups = sorted({version.group_of(field) for field in self.fields})
        self._lock = lock()
        self._members: SelectTable | None = None
        self._reader: SampleColumns | None = None
        self._partial = [
            group for group in self._groups if self._coverage(group) < version.manifest["n_parts"]
        ]
        if self._partial and not where_present:
            raise FieldNotFound(self._missing_share())

    def __reduce__(self) -> Any:
        return View, (
            self.version,
            self.fields,
            self.predicate,
            self.where_present,
            self.first,
            self.columns,
        )

    def _checked(self, columns: "AskedColumns") -> "dict[str, Classes]":
        if not columns and isinstance(columns, tuple | list | dict):
            return {}
        from .view_columns import checked_columns  # reads tables, which most views need not

        return checked_columns(self.version, columns, self.fields)

    def __repr__(self) -> str:
        where = f" where {self.predicate}" if self.predicate else ""
        names = [*self.fields, *self.columns]
        return f"View({self.version.name!r}: {', '.join(names)}{where})"

    def select(self, *fields: str, columns: "AskedColumns" = (), where_present: bool = False) -> "View":
        """Return the same samples with these fields and columns: see `Version.select`. Raises: FieldNotFound."""
        present = where_present or self.where_present
        chosen = fields or without_row_blocks(self.version.fields)
        return View(self.version, chosen, self.predicate, present, self.first, columns)

    def where(self, predicate: str) -> "View":
        """Return the samples of this view for which an SQL expression is also true. Raises: FieldNotFound."""
        from .samples_table import check_names

        check_names(self.version, predicate)
        both = f"({self.predicate}) AND ({predicate})" if self.predicate else predicate
        return View(self.version, self.fields, both, self.where_present, self.first, self.columns)

    def of_version(self, version: "Version") -> "View":
        """Return a view of another version with the same fields, columns and predicate. Raises: FieldNotFound."""
        return View(version, self.fields, self.predicate, self.where_present, columns=self.columns)

    def unsplit(self, by: str, edges: Sequence[str] | None, label: str) -> "View":
        """Return the view that `split` divided into this and other buckets. Raises: InvalidPlan."""
        from .split import whole_predicate

        predicate = whole_predicate(self, by, edges, label)
        return View(self.version, self.fields, predicate, self.where_present, columns=self.columns)

    def since(self, old: "View", *, compare: bool = True) -> Delta:
        """Return the samples added and removed since `old`, a view of an earlier version (`delta.delta_of`)."""
        from .earlier import delta_of

        return delta_of(self, old, compare)

    def from_first(self, first: int) -> "View":
        """Return the samples of this view from live ordinal `first` of the version on."""
        view = View(self.version, self.fields, self.predicate, self.where_present, first, self.columns)
        if self.is_filtered:
            view._members = self._table
        return view

    def narrowed(self, predicate: str, members: Bools) -> "View":
        """Return `where(predicate)` for a caller that has evaluated it. members: bool [len(version)], the result."""
        view = self.where(predicate)
        if self.first:
            return view  # its table covers all of the version's samples, unlike `members`
        saved = view._load()
        view._members = view._kept(members) if saved is None else saved
        return view

    def clocks(self, fields: Iterable[str]) -> dict[str, str | None]:
        """Return field -> the field with its times; None for none."""
        return {field: clock_field(field, self.version.fields, self.version.facts) for field in fields}

    def members(self) -> Bools:
        """Return bool [len(version)]: True for a live ordinal in the view."""
        n = len(self.version)
        members = unpack(self._table.packed(), n) if self.is_filtered else np.ones(n, bool)
        members[: self.first] = False
        return members

    def split(self, by: str, edges: Sequence[str] | None) -> "dict[str, View]":
        """Return label -> view of one bucket, as `loader.bucket(by, edges=)`."""
        from .split import split

        return split(self, by, edges)

    def packed(self, asked: "PackBy", listed: "ListedView | None" = None) -> "PackedView":
        """Return the packed sequences of the documents, as `loader.pack()` specifies.

        listed: list of documents of this view; only they are packed, in the order of the list.
        """
        from .pack import packed

        return packed(listed or self, asked)

    def windowed(
        self, layout: "WindowLayout", watch: Watch = unwatched, earlier: "Iterable[WindowView]" = ()
    ) -> "WindowView":
        """Return the windows of the episodes."""
        from .windows import windows_of

        return windows_of(self, layout, watch, earlier)

    def __len__(self) -> int:
        return (len(self._table) if self.is_filtered else len(self.version)) - self._skipped

    @overload
    def __getitem__(self, index: "slice | np.ndarray[Any, Any]") -> list[dict[str, Any]]: ...

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def __getitem__(self, index: Any) -> Any:
        """Return a sample of the view, or a list of them for a slice or an array of integers [m].

        Samples are numbered in storage order. A number that an array repeats is read once, and gives the same dict.

        A sample is {"__key__": key, field: value, column: value}. A field is decoded by its extension; absent ones are
        left out. A column without a value is None, and -1 if the value is none of its class names.
        Videos stay bytes: `loader.video(frames=8)(sample["mp4"], None)` decodes one. Each sample costs an index lookup
        and a read: train with `Loader`, which reads batches.

        Raises: IndexError; TypeError; DecodeFailed; Corrupt; StoreError.
        """
        from .decoded_samples import select_samples

        return select_samples(
            index,
            len(self),
            lambda numbers: self._decoded(self.version_ordinals(numbers)),
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every sample as `view[i]` returns it; 64 are read together."""
        yield from self._decoded(self.version_ordinals(np.arange(len(self))))

    def _decoded(self, ordinals: Int64s) -> Iterator[dict[str, Any]]:
        from .decoded_samples import BLOCK, decoded

        if not self.columns:
            yield from decoded(self.version, self.fields, ordinals)
            return
        from .view_columns import SampleColumns

        with self._lock:
            if self._reader is None:
                self._reader = SampleColumns(self.version, self.columns)
        for start in range(0, len(ordinals), BLOCK):
            block = ordinals[start : start + BLOCK]
            columns = self._reader(block)
            for number, sample in enumerate(decoded(self.version, self.fields, block)):
                yield sample | {name: values[number] for name, values in columns.items()}

    def head(self, n: int = 5) -> "polars.DataFrame":
        """Return the first samples as a table: ordinal, key, fields, and samples-table columns.

        Long values appear as their size. Needs polars.
        """
        from .decoded_samples import picked, table_of

        return table_of(self.version, self.fields, self.version_ordinals(picked(slice(n), len(self))))

    @property
    def id(self) -> str:
        """The content hash of L0: covers version and selection, not the fields."""
        return self._id({"first": self.first} if self.first else {})

    @property
    def identity(self) -> str:
        """The version id, which digests combine with version ordinals."""
        return self.version.id

    @property
    def mean_sample_bytes(self) -> int:
        """Mean payload bytes of the selected fields of one sample, rounded up."""
        total = 0
        for group in self._groups:
            body = self.version.manifest["groups"][group]
            chosen = sum(n for field, n in body["field_nbytes"].items() if field in self.fields)
            total += -(-chosen // max(body["n_rows"], 1))
        return total

    @property
    def decoded_chunk(self) -> tuple[int, int] | None:
        """(average samples per chunk, decoded bytes per chunk) of a registered table, or None."""
        tables = [one for one in self.version.manifest.get("foreign", ()) if "chunk_rows" in one]
        fields = {field for one in tables for field in one["chunk_fields"]}.intersection(self.fields)
        if not fields:
            return None
        rows = max(one["chunk_rows"] for one in tables)
        nbytes = View(self.version, tuple(sorted(fields)), None, where_present=True).mean_sample_bytes
        return max(1, rows * len(self) // max(1, len(self.version))), max(1, rows * nbytes)

    def spec(self) -> dict[str, Any]:
        """Return plain JSON that a plan stores to reopen the view."""
        return {
            "kind": "version",
            "version": self.version.id,
            "fields": list(self.fields),
            "where": self.predicate,
            "where_present": self.where_present,
            "n": len(self),
            "id": self.id,
            **({"first": self.first} if self.first else {}),
            # A list of pairs: the order of the columns is a batch's order, and a plan's JSON sorts its names.
            **({"columns": [[name, each] for name, each in self.columns.items()]} if self.columns else {}),
        }

    def version_ordinals(self, x: Int64s) -> Int64s:
        """Return the int64 live ordinals of the version for int64 view ordinals."""
        x = x + self._skipped if self.first else x
        return self._table.select(x) if self.is_filtered else x

    def keys(self, version_ordinals: Int64s) -> list[str]:
        """Return the sample keys of live ordinals of the version."""
        return self.version.keys(version_ordinals)

    def ordinals(self, keys: Sequence[str]) -> Int64s:
        """Return the int64 live ordinals of sample keys, -1 where missing. Reads the key column."""
        from .samples_table import live_ordinals

        return live_ordinals(self.version, keys)

    @property
    def is_filtered(self) -> bool:
        """True if a predicate or a missing field leaves out samples of the version."""
        return self.predicate is not None or bool(self._partial)

    @property
    def _skipped(self) -> int:
        return self._table.rank(self.first) if self.first and self.is_filtered else self.first

    def _id(self, more: dict[str, Any]) -> str:
        body = {"version": self.version.id, "where": self.predicate, "groups": self._partial, **more}
        return "w-" + hashlib.sha256(canonical(body)).hexdigest()

    def _coverage(self, group: str) -> int:
        return int(self.version.manifest["groups"][group]["n_parts"])

    def _missing_share(self) -> str:
        total = self.version.manifest["n_rows"]
        shares = []
        for group in self._partial:
            missing = total - self.version.manifest["groups"][group]["n_rows"]
            fields = [field for field in self.fields if self.version.group_of(field) == group]
            shares.append(f"{', '.join(fields)} (group {group!r}) for {missing} of {total} samples")
        return (
            f"{self.version.name} lacks {'; '.join(shares)}. Select with where_present=True to leave those samples "
            "out, or add the group for them with root.add_group"
        )

    @property
    def _table(self) -> SelectTable:
        with self._lock:
            if self._members is None:
                saved = self._load()
                self._members = self._make() if saved is None else saved
            return self._members

    @property
    def _path(self) -> str:
        return f"views/{self._id({}).removeprefix('w-')}.parquet"  # one table for every `first`

    def _load(self) -> SelectTable | None:
        return retry_corrupt(self._read_table)

    def _read_table(self) -> SelectTable | None:
        try:
            data = self.version.store.get(self._path).data
        except ObjectNotFound:
            return None
        name = f"{self.version.store.url}/{self._path}"
        table = parse_stored(data, self._path, name)
        try:
            first, rows = table["first_ordinal"].to_pylist(), table["bits"].to_pylist()
            sums = table["crc32c"].to_pylist() if "crc32c" in table.column_names else map(crc32c, rows)
            wrong = [at for at, row, crc in zip(first, rows, sums, strict=True) if crc32c(row) != crc]
            bits = b"".join(rows)
        except (KeyError, TypeError) as error:
            raise Corrupt(f"{name} is not a view: {error}; delete it to rebuild it") from error
        if first != [i * CHUNK_BITS for i in range(len(first))] or len(bits) != -(-len(self.version) // 8):
            raise Corrupt(
                f"{name} has {len(bits)} bytes of bits in rows from {first[:3]}; {self.version.name} with "
                f"{len(self.version)} samples needs {-(-len(self.version) // 8)}. Delete it to rebuild it"
            )
        if wrong:
            raise Corrupt(f"{name}: the bits from ordinal {wrong[0]} on are damaged. Delete it to rebuild it")
        return SelectTable(bits, len(self.version))

    def _make(self) -> SelectTable:
        members = np.ones(len(self.version), bool)
        if self.predicate is not None:
            from .samples_table import live_where

            members &= live_where(self.version, self.predicate)
        parts = self.version.parts
        for group in self._partial:
            members &= np.repeat(parts.has_group(group), parts.n_live)
        return self._kept(members)

    def _kept(self, members: Bools) -> SelectTable:
        table = SelectTable(pack(members), len(self.version))
        try:
            self._save(pack(members))
        except AlreadyExists:
            # Another process stored a different result first: all ranks use that one.
            saved = self._load()
            return table if saved is None else saved
        return table

    def _save(self, packed: bytes) -> None:
        step = CHUNK_BITS // 8
        chunks = [packed[at : at + step] for at in range(0, len(packed), step)]
        table = pa.table(
            {
                "first_ordinal": [i * CHUNK_BITS for i in range(len(chunks))],
                "bits": pa.array(chunks, pa.binary()),
                "crc32c": pa.array(map(crc32c, chunks), pa.int64()),
            }
        )
        try:
            data = table_bytes(table, "view", facts={"path": self._path})
            self.version.store.put_if_absent(self._path, data)
        except AlreadyExists:
            raise
        except Forbidden:
            logger.warning(
                "the root is read-only here: view %s was not saved, each process scans the samples", self.id
            )
        except StoreError as error:
            logger.warning("view %s was not saved (%s); each process scans the samples", self.id, error)
