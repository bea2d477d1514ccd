"""Documents to pack: their order, sizes, and values of columns.

A view's documents are read with whole indexes and columns. For a list, only the row groups of its documents are read,
so that the cost does not grow with the version.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import Corrupt, InvalidPlan
from ...order.sources.views import ListedView
from ...storage.threads import DaemonPool
from ..shards.index import IndexFile, IndexPlace
from ..tables.parquet import READ_AHEAD
from .expression import parse_expression
from .samples_table import import_polars, live_values

if TYPE_CHECKING:
    import polars

    from ..reading.sample_places import VersionData
    from .view_samples import ViewSamples

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class ViewDocuments:
    """All documents of a view, in its order."""

    def __init__(self, view: "ViewSamples") -> None:
        self.view = view
        self.version = view.version
        self.id = view.id
        """Content hash of the view, or of the list."""

    def __len__(self) -> int:
        return len(self.view)

    def first(self) -> Int64s:
        """Return int64 [1]: version ordinal of the first document."""
        return self.view.version_ordinals(np.zeros(1, np.int64))

    @cached_property
    def ordinals(self) -> Int64s:
        """int64 [N]: version ordinals of the documents. Raises: InvalidPlan if a list repeats one."""
        numbers = np.arange(len(self.view), dtype=np.int64)
        return self.view.version_ordinals(numbers)

    def nbytes(self, field: str) -> Int64s:
        """Return int64 [N]: size of a field of each document, -1 where it is missing."""
        by_part = list(field_nbytes(self.version, field))
        sizes = np.concatenate(by_part)  # [live samples of the version]
        return sizes[self.ordinals]

    def values(self, expression: str, what: str) -> "polars.Series":
        """Return [N] values of an SQL expression. what: its purpose, for messages. Raises: FieldNotFound."""
        frame = live_values(self.version, [expression], what)
        values = frame.to_series()  # [live samples of the version]
        return values.gather(self.ordinals)


class ListedDocuments(ViewDocuments):
    """The documents of a list, in the list's order."""

    def __init__(self, listed: ListedView) -> None:
        super().__init__(cast("ViewSamples", listed.listed))
        self.id = listed.id
        self._ordinals = listed.in_order

    def __len__(self) -> int:
        return len(self._ordinals)

    def first(self) -> Int64s:
        return self._ordinals[:1]

    @cached_property
    def ordinals(self) -> Int64s:
        # The table of sequences counts tokens per document: a repeated one would count double.
        distinct, n_times = np.unique(self._ordinals, return_counts=True)
        repeated = distinct[n_times > 1]
        if len(repeated):
            first_keys = self.version.keys(repeated[:3])
            keys = ", ".join(map(repr, first_keys))
            raise InvalidPlan(
                f"pack of a list that has {len(repeated)} documents more than once: {keys} ...; list each document "
                "once. To train on it again, use a second plan, or a weight",
                what="list",
                where="pack",
                given=first_keys,
                accepted="each document once",
            )
        return self._ordinals

    def nbytes(self, field: str) -> Int64s:
        with DaemonPool(READ_AHEAD, "penstock-index") as pool:
            places = self.version.places(
                self.ordinals,
                [field],
                pool.map,
            )
        field_places = places.fields[field]
        return field_places.nbytes

    def values(self, expression: str, what: str) -> "polars.Series":
        column = self._plain_column(expression, what)
        if column is None:  # an expression may depend on all rows of the table
            return super().values(expression, what)
        from .view_columns import SampleColumns

        pl = import_polars()
        read = SampleColumns(self.version, {column: None})
        with DaemonPool(READ_AHEAD, "penstock-columns") as pool:
            columns = read(self.ordinals, pool.map)
        kinds = {
            "bool": pl.Boolean,
            "int64": pl.Int64,
            "double": pl.Float64,
            "string": pl.String,
        }
        known = self.version.manifest["columns"]
        kind = known[column]["type"]
        series: polars.Series = pl.Series(
            columns[column],
            dtype=kinds[kind],
        )
        return series

    def _plain_column(self, expression: str, what: str) -> str | None:
        """Return the column that an expression names, if it is nothing more, of a type that batches deliver."""
        from .view_columns import DELIVERED_TYPES

        pl = import_polars()
        parsed = parse_expression(pl, expression, what)
        names = parsed.meta.root_names()
        # SQL's `null` and `true` name no column, whatever columns there are.
        if len(names) != 1 or not parsed.meta.eq(pl.col(names[0])):
            return None
        name = names[0]
        known = self.version.manifest["columns"]
        column = known.get(name)
        if column is None or column["type"] not in DELIVERED_TYPES:
            return None
        return name


def view_documents(source: "ViewSamples | ListedView") -> ViewDocuments:
    if isinstance(source, ListedView):
        return ListedDocuments(source)
    return ViewDocuments(source)


def field_nbytes(
    version: "VersionData",
    field: str,
    first_part: int = 0,
) -> Iterator[Int64s]:
    """Yield one int64 array per part from `first_part` on: field size per live sample, -1 where the field is missing.

    Reads these indexes of the group whole, a few at a time.
    """
    group = version.group_of(field)
    parts = version.parts
    has_group = parts.has_group(group)

    def read_part(position: int) -> Int64s:
        is_live = parts.live_members(position)  # bool [rows]
        if not has_group[position]:
            n_live = int(is_live.sum())
            return np.full(n_live, -1, np.int64)
        shard = parts.shard(group, position)
        place = IndexPlace.of(shard)
        index = IndexFile(version.store, place, whole=True)
        sizes = index.column(f"{field}_nbytes")
        if len(sizes) != len(is_live):
            raise Corrupt(
                f"{index.url} has {len(sizes)} rows, its part has {len(is_live)}; restore it from a mirror",
                what="rows",
                where=index.url,
                given=len(sizes),
                accepted=len(is_live),
            )
        return sizes[is_live]

    n_parts = len(parts)
    with DaemonPool(READ_AHEAD, "penstock-index") as pool:
        for first in range(first_part, n_parts, READ_AHEAD):
            stop = min(first + READ_AHEAD, n_parts)
            yield from pool.map(read_part, range(first, stop))
