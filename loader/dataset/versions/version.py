"""An open version, and views of its samples: immutable, thread-safe, picklable.

Opening reads only the manifest and small parts tables.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from ...modalities.fields import without_row_blocks
from ...order.sources.views import Delta
from ...storage import Store
from ..progress import Watch, unwatched
from ..reading.sample_places import Int64s
from ..reading.version_shards import Verify, VersionShards
from .view_samples import ViewSamples

if TYPE_CHECKING:
    import polars

    from ...order.sources.packing import PackBy, PackedView
    from ...order.sources.views import ListedView
    from ...order.sources.window_layout import WindowLayout
    from ...order.sources.window_view import WindowView
    from ..tables.annotations import Annotation
    from .sample_search import Like, SearchResult
    from .view_columns import AskedColumns, SampleColumns

Rows: TypeAlias = "slice | np.ndarray[Any, Any]"
"""Numbers of samples: outside of the classes, where `slice` is Python's."""


class Version(VersionShards):
    """One published version, from `root.open(ref)`. Its length is the number of live samples."""

    def __reduce__(self) -> Any:
        # The tables travel along: with a plan from the first rank, 10,000 others need not read them at once.
        facts = (self.store, self.dataset, self.number, self.id, self.manifest, self.verify)
        return _rebuild, (*facts, self._tables)

    def __repr__(self) -> str:
        return f"Version({self.name!r}, {len(self)} samples, {self.id[:14]})"

    def select(self, *fields: str, columns: "AskedColumns" = (), where_present: bool = False) -> "View":
        """Return a view of these fields. Only their bytes are fetched. No names: all fields but row blocks of others.

        columns: columns of the samples table, which batches have beside the fields: numbers and booleans as one array,
        texts as a list. Column -> class names instead gives int64 class numbers:
        `columns={"label": version.classes("label")}`. The first sample of a row group (65,536 rows) reads it; an
        annotated column is read whole, once per process. A sample without a value raises FieldMismatch: leave such
        samples out, `.where("label IS NOT NULL")`.

        where_present: leave out samples of parts that lack one of these fields; otherwise such a field raises
        FieldNotFound.

        Raises: FieldNotFound; FieldMismatch for a column of another type; InvalidPlan for invalid class names.
        """
        chosen = fields or without_row_blocks(self.fields)
        return View(self, chosen, None, where_present, columns=columns)

    def classes(self, column: str, first: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the distinct values of a text column, sorted: class names for `select(columns=)`. Reads the column.

        first: class names of an earlier version. They keep their numbers, and new names follow them.

        Raises: FieldNotFound; FieldMismatch for other types and above 100,000 values.
        """
        from .view_columns import class_names

        return class_names(self, column, first)

    def where(self, predicate: str) -> "View":
        """Return a view of the samples for which an SQL expression over the samples table is true."""
        return self.select().where(predicate)

    def slice(self, name: str, n: int | None = None) -> "View":
        """Return a view of the samples of a slice that `root.save_slice` stored, in any version of its dataset.

        A list's sample is found by its part and row; if it was written again, by its key. Samples that this version
        lacks are left out. n: number of the slice; None is the newest.

        Raises: SliceNotFound, also for a removed slice; Corrupt; FieldNotFound if a rule does not fit the columns.
        """
        return self.select().slice(name, n)

    def without(self, name: str, n: int | None = None) -> "View":
        """Return a view of the samples that are not in a slice: see `slice`."""
        return self.select().without(name, n)

    def search(
        self,
        words: str | None = None,
        *,
        like: "Like | None" = None,
        k: int = 60,
        where: str | None = None,
        field: str | None = None,
        cache: str | PathLike[str] | None = None,
    ) -> "SearchResult":
        """Return the samples like a key, keys (their mean) or a vector, or with these words: see `search_samples`."""
        from .sample_search import search_samples

        return search_samples(self, words, like=like, k=k, where=where, field_name=field, cache=cache)

    @overload
    def __getitem__(self, index: Rows) -> list[dict[str, Any]]: ...

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, or a list for a slice or an array, as `View.__getitem__`: {"__key__": key, field: value}.

        Raises: IndexError; TypeError; DecodeFailed; Corrupt; StoreError.
        """
        from .decoded_samples import decoded, select_samples

        return select_samples(
            index,
            len(self),
            lambda ordinals: decoded(self, self.fields, ordinals),
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every sample as `version[i]` returns it; 64 are read together."""
        from .decoded_samples import decoded

        yield from decoded(self, self.fields, np.arange(len(self)))

    def head(self, n: int = 5) -> "polars.DataFrame":
        """Return the first samples as a table: see `View.head`."""
        from .decoded_samples import decode_table, select_numbers

        return decode_table(self, self.fields, select_numbers(slice(n), len(self)))

    def samples(self) -> "polars.LazyFrame":
        """Return the samples table: `ordinal` (the live sample's number), keys, provenance, metadata columns."""
        from .samples_table import scan_samples

        return scan_samples(self)

    @property
    def annotations(self) -> "list[Annotation]":
        """Annotations made since the samples were written, oldest first."""
        from ..tables.annotations import annotations

        return annotations(self.manifest["samples"])

    def edits(self, column: str) -> "polars.LazyFrame":
        """Return every edit of a column for live samples, oldest first.

        Columns: `ordinal`, `key`, the column's value, `removed`, `annotation`, `annotated_by`, `annotated_at`. Raises:
        FieldNotFound.
        """
        from .samples_table import scan_edits

        return scan_edits(self, column)


class View(ViewSamples):
    """Samples and fields of a version. Immutable; `select` and `where` return narrower views.

    A view pickles as its version, fields, predicate and slices. Its length is the number of its samples.
    """

    version: "Version"
    """Version that has the samples."""

    _reader: "SampleColumns | None" = None

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

    def unsplit(self, by: str, edges: Sequence[str] | None, label: str) -> "View":
        """Return the view that `split` divided into this and other buckets. Raises: InvalidPlan."""
        from .bucket_views import whole_predicate

        predicate = whole_predicate(self, by, edges, label)
        return self._but(predicate=predicate, first=0)

    def since(self, old: "View", *, compare: bool = True) -> Delta:
        """Return the samples added and removed since `old`, a view of an earlier version (`view_delta`)."""
        from .earlier_versions import view_delta

        return view_delta(self, old, compare)

    def split(self, by: str, edges: Sequence[str] | None) -> "dict[str, View]":
        """Return label -> view of one bucket, as `loader.bucket(by, edges=)`."""
        from .bucket_views import split

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
        from .window_counts import view_windows

        return view_windows(self, layout, watch, earlier)

    @overload
    def __getitem__(self, index: Rows) -> list[dict[str, Any]]: ...

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def __getitem__(self, index: Any) -> Any:
        """Return a sample of the view, or a list of them for a slice or an array of integers [m].

        Samples are numbered in storage order. A number that an array repeats is read once, and gives the same dict.

        A sample is {"__key__": key, field: value, column: value}. A field is decoded by its extension, and left out
        if the sample lacks it. A column without a value is None; a value outside the column's class names is -1.
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


def _rebuild(
    store: Store,
    dataset: str,
    number: int,
    id: str,
    manifest: dict[str, Any],
    verify: Verify,
    tables: Mapping[str, bytes],
) -> Version:
    return Version(
        store, dataset=dataset, number=number, id=id, manifest=manifest, verify=verify, tables=tables
    )
