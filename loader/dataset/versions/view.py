"""A view: a version, the fields to fetch, and optionally a predicate and slices."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from ...errors import AlreadyExists, Corrupt, FieldNotFound
from ...modalities.array import clock_field
from ...modalities.fields import without_row_blocks
from ...order.sources.views import Delta
from ...storage.requests import retry_corrupt
from ...storage.threads import lock
from ..log.entries import canonical
from ..progress import Watch, unwatched
from ..shards.bitmap import Bools, SelectTable, pack, unpack
from .stored_view import read_view, save_view

if TYPE_CHECKING:
    import polars

    from ...order.sources.packing import PackBy, PackedView
    from ...order.sources.views import ListedView
    from ...order.sources.window_layout import WindowLayout
    from ...order.sources.window_view import WindowView
    from .slice_members import SliceTerm
    from .version import Version
    from .view_columns import AskedColumns, Classes, SampleColumns

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Rows: TypeAlias = "slice | np.ndarray[Any, Any]"
"""Numbers of samples: outside of the class, where `slice` is Python's."""


class View:
    """Samples and fields of a version. Immutable; `select` and `where` return narrower views.

    A view pickles as its version, fields, predicate and slices. Its length is the number of its samples.
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
    slices: "tuple[SliceTerm, ...]"
    """Slices that the samples are in, or outside of."""

    def __init__(
        self,
        version: "Version",
        fields: Sequence[str],
        predicate: str | None,
        where_present: bool = False,
        first: int = 0,
        columns: "AskedColumns" = (),
        slices: "Sequence[SliceTerm]" = (),
    ) -> None:
        self.version, self.predicate, self.where_present = version, predicate, where_present
        self.first = first
        self.slices = tuple(slices)
        if not_names := [field for field in fields if not isinstance(field, str)]:
            raise FieldNotFound(
                f"select({not_names[0]!r}): names of fields are needed, each an argument: select('jpg', 'cls')"
            )
        self.fields = tuple(dict.fromkeys(fields))
        self.columns = self._check_columns(columns)
        self._groups = sorted({version.group_of(field) for field in self.fields})
        self._lock = lock()
        self._members: SelectTable | None = None
        self._reader: SampleColumns | None = None
        self._partial = [
            group
            for group in self._groups
            if version.manifest["groups"][group]["n_parts"] < version.manifest["n_parts"]
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
            self.slices,
        )

    def _but(self, **changes: Any) -> "View":
        """Return this view with other arguments."""
        arguments: dict[str, Any] = {
            "version": self.version,
            "fields": self.fields,
            "predicate": self.predicate,
            "where_present": self.where_present,
            "first": self.first,
            "columns": self.columns,
            "slices": self.slices,
        }
        return View(**(arguments | changes))

    def _check_columns(self, columns: "AskedColumns") -> "dict[str, Classes]":
        if not columns and isinstance(columns, tuple | list | dict):
            return {}
        from .view_columns import check_columns  # reads tables, which most views need not

        return check_columns(self.version, columns, self.fields)

    def __repr__(self) -> str:
        where = f" where {self.predicate}" if self.predicate else ""
        for term in self.slices:
            where += f" {'without' if term.without else 'in'} slice {term.name}"
        names = [*self.fields, *self.columns]
        return f"View({self.version.name!r}: {', '.join(names)}{where})"

    def select(self, *fields: str, columns: "AskedColumns" = (), where_present: bool = False) -> "View":
        """Return the same samples with these fields and columns: see `Version.select`. Raises: FieldNotFound."""
        present = where_present or self.where_present
        chosen = fields or without_row_blocks(self.version.fields)
        return self._but(fields=chosen, where_present=present, columns=columns)

    def where(self, predicate: str) -> "View":
        """Return the samples of this view for which an SQL expression is also true. Raises: FieldNotFound."""
        from .samples_table import check_names

        check_names(self.version, predicate)
        both = f"({self.predicate}) AND ({predicate})" if self.predicate else predicate
        return self._but(predicate=both)

    def slice(self, name: str, n: int | None = None) -> "View":
        """Return the samples of this view that are in a slice: see `Version.slice`."""
        return self._slice(name, n, without=False)

    def without(self, name: str, n: int | None = None) -> "View":
        """Return the samples of this view that are not in a slice: see `Version.slice`."""
        return self._slice(name, n, without=True)

    def _slice(self, name: str, n: int | None, *, without: bool) -> "View":
        from .slice_members import slice_term

        term = slice_term(self.version, name, n, without=without)
        return self._but(slices=(*self.slices, term))

    def of_version(self, version: "Version") -> "View":
        """Return a view of another version with the same fields, columns, predicate and slices.

        Raises: FieldNotFound.
        """
        slices = []
        if self.slices:
            from .slice_members import version_term

            slices = [version_term(version, term) for term in self.slices]
        return self._but(version=version, first=0, slices=slices)

    def unsplit(self, by: str, edges: Sequence[str] | None, label: str) -> "View":
        """Return the view that `split` divided into this and other buckets. Raises: InvalidPlan."""
        from .split import whole_predicate

        predicate = whole_predicate(self, by, edges, label)
        return self._but(predicate=predicate, first=0)

    def since(self, old: "View", *, compare: bool = True) -> Delta:
        """Return the samples added and removed since `old`, a view of an earlier version (`delta.view_delta`)."""
        from .earlier import view_delta

        return view_delta(self, old, compare)

    def from_first(self, first: int) -> "View":
        """Return the samples of this view from live ordinal `first` of the version on."""
        view = self._but(first=first)
        if self.is_filtered:
            view._members = self._table
        return view

    def narrowed(self, predicate: str, members: Bools) -> "View":
        """Return `where(predicate)` for a caller that has evaluated it. members: bool [len(version)], the result."""
        view = self.where(predicate)
        if self.first:
            return view  # its table covers all of the version's samples, unlike `members`
        saved = view._load()
        view._members = view._keep_members(members) if saved is None else saved
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
        from .windows import view_windows

        return view_windows(self, layout, watch, earlier)

    def __len__(self) -> int:
        return (len(self._table) if self.is_filtered else len(self.version)) - self._n_skipped

    @overload
    def __getitem__(self, index: Rows) -> list[dict[str, Any]]: ...

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
            lambda numbers: self._decode(self.version_ordinals(numbers)),
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every sample as `view[i]` returns it; 64 are read together."""
        yield from self._decode(self.version_ordinals(np.arange(len(self))))

    def _decode(self, ordinals: Int64s) -> Iterator[dict[str, Any]]:
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
        from .decoded_samples import decode_table, select_numbers

        return decode_table(
            self.version, self.fields, self.version_ordinals(select_numbers(slice(n), len(self)))
        )

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
            **({"slices": [term.to_json() for term in self.slices]} if self.slices else {}),
            # A list of pairs: the order of the columns is a batch's order, and a plan's JSON sorts its names.
            **({"columns": [[name, each] for name, each in self.columns.items()]} if self.columns else {}),
        }

    def version_ordinals(self, x: Int64s) -> Int64s:
        """Return the int64 live ordinals of the version for int64 view ordinals."""
        x = x + self._n_skipped if self.first else x
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
        """True if a predicate, a slice or a missing field leaves out samples of the version."""
        return self.predicate is not None or bool(self._partial) or bool(self.slices)

    @property
    def _n_skipped(self) -> int:
        return self._table.rank(self.first) if self.first and self.is_filtered else self.first

    def _id(self, more: dict[str, Any]) -> str:
        body = {"version": self.version.id, "where": self.predicate, "groups": self._partial, **more}
        if self.slices:  # views without slices have the ids of earlier releases
            body["slices"] = [term.to_json() for term in self.slices]
        return "w-" + hashlib.sha256(canonical(body)).hexdigest()

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
        table = read_view(self.version, self._path)
        if table is not None and self.slices:
            self._check_slices(unpack(table.packed(), len(self.version)))
        return table

    def _check_slices(self, members: Bools) -> None:
        """Raise Corrupt if a stored bitmap, bool [len(version)], selects samples that the slices do not."""
        from .slice_members import check_term

        what = f"{self.version.store.url}/{self._path}: the slice"
        if self._is_one_slice:
            check_term(self.version, self.slices[0], members, what)
            return
        outside = np.flatnonzero(members & ~self._in_slices())
        if len(outside):
            raise Corrupt(f"{what} lacks ordinal {outside[0]}, which is selected: delete it to rebuild it")

    @property
    def _is_one_slice(self) -> bool:
        return len(self.slices) == 1 and self.predicate is None and not self._partial

    def _in_slices(self) -> Bools:
        """Return bool [len(version)]: True for live ordinals that all slices select."""
        members = np.ones(len(self.version), bool)
        for term in self.slices:
            # A view of its own, whose stored bitmap outlives the slice.
            members &= View(self.version, (), None, slices=(term,)).members()
        return members

    def _make(self) -> SelectTable:
        members = np.ones(len(self.version), bool)
        if self._is_one_slice:
            from .slice_members import term_members

            return self._keep_members(term_members(self.version, self.slices[0]))
        if self.predicate is not None:
            from .samples_table import live_where

            members &= live_where(self.version, self.predicate)
        parts = self.version.parts
        for group in self._partial:
            members &= parts.has_live_group(group)
        if self.slices:
            members &= self._in_slices()
        return self._keep_members(members)

    def _keep_members(self, members: Bools) -> SelectTable:
        packed = pack(members)
        try:
            save_view(self.version, self._path, packed, self.id)
        except AlreadyExists:
            # Another process stored a different result first: all ranks use that one.
            saved = self._load()
            if saved is not None:
                return saved
        return SelectTable(packed, len(self.version))
