"""A viewer's cached columns of versions: codes for facets, values for sorting and rows, results of expressions."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.versions.samples_table import import_polars, live_columns, scan_samples
from loader.errors import Corrupt, FieldNotFound, FormatTooNew, NotIndexed

from ...search.map.version_map import VersionMap, read_map
from ...upkeep.diff import column_statistics
from ..kinds.stored_bytes import release_memory
from ..lru_cache import LruCache
from .column_codes import Bools, CodedColumn, Int64s, code_column
from .map_columns import CLUSTER, LABEL, SHARE, LabelCodes, coded_labels, map_column, map_columns, text_labels
from .spread_rows import SpreadRows, is_spread, spread_rows, spread_samples
from .version_searches import VersionSearches

if TYPE_CHECKING:
    import polars

CODES_BYTES = 64 * 2**20
"""Cached codes, in bytes: 60 columns of a million samples."""
VALUES_BYTES = 64 * 2**20
"""Cached values, in bytes."""
MAPS_BYTES = 64 * 2**20
"""Cached maps, in bytes: seven million samples."""
MEMBERS_BYTES = 16 * 2**20
"""Cached results of expressions, a bit a sample, in bytes."""
CELLS_AT_ONCE = 16_000_000
"""Values read at once to make codes."""
Bits = np.ndarray[Any, np.dtype[np.uint8]]
Key = tuple[str, str, str]
"""Store's URL, version's id, and a column or expression."""
Statistics = Mapping[str, Mapping[str, Any]]
"""Column -> stored statistics."""


class VersionColumns:
    """Columns of open versions. Thread-safe. Bounded in bytes."""

    def __init__(self) -> None:
        self._codes = LruCache[CodedColumn](CODES_BYTES, lambda coded: coded.nbytes)
        self._values = LruCache[Any](VALUES_BYTES, lambda series: series.estimated_size())
        self._members = LruCache[Bits](MEMBERS_BYTES, lambda bits: bits.nbytes)
        self._statistics = LruCache[Statistics](64)
        self._spread = LruCache[SpreadRows](4)
        self.searches = VersionSearches()
        """Open indexes of versions."""
        self._maps = LruCache[VersionMap](MAPS_BYTES, lambda places: places.nbytes)
        # Many requests for a new version's columns read them once.
        self._reads = Lock()
        # Only the last page's columns: a person clicks there, not on earlier pages.
        self._next: tuple[loader.Version, Sequence[str]] | None = None

    def statistics(self, version: "loader.Version") -> Statistics:
        """Return column -> stored statistics, which include excluded samples."""
        key = _key(version, "")
        return self._statistics.get(key, lambda: column_statistics(version))

    def ordinals(self, version: "loader.Version") -> Int64s | None:
        """Return int64 [rows]: the live samples that are counted of a large version. None: all are."""
        if not is_spread(version):
            return None
        return self._spread_rows(version).ordinals

    def _spread_rows(self, version: "loader.Version") -> SpreadRows:
        key = _key(version, "")
        return self._spread.get(key, lambda: spread_rows(version))

    def n_rows(self, version: "loader.Version") -> int:
        """Return the number of samples that are counted."""
        ordinals = self.ordinals(version)
        if ordinals is None:
            return len(version)
        return len(ordinals)

    def places(self, version: "loader.Version") -> VersionMap:
        """Return the places of a version's samples on its map. Raises: NotIndexed; FieldNotFound; Corrupt."""
        key = _key(version, "")
        return self._maps.get(key, lambda: read_map(version))

    def has_places(self, version: "loader.Version") -> bool:
        key = _key(version, "")
        return key in self._maps

    def map_error(self, version: "loader.Version") -> str:
        """Return why a version's map cannot be read; "" if it can."""
        try:
            self.places(version)
        except (NotIndexed, FieldNotFound, Corrupt, FormatTooNew) as error:
            return str(error)
        return ""

    def label_codes(self, version: "loader.Version") -> LabelCodes | None:
        """Return the labels of the samples that are counted; None without a column of texts."""
        if LABEL not in version.manifest["columns"]:
            return None
        # Not `codes`: a caller may hold the lock of reads.
        key = _key(version, LABEL)
        coded = self._codes.get(key, lambda: self._code(version, LABEL))
        labels = coded_labels(coded)
        if labels is None:
            labels = text_labels(self._series(version, LABEL))
        return labels

    def has_codes(self, version: "loader.Version", name: str) -> bool:
        key = _key(version, name)
        return key in self._codes

    def has_values(self, version: "loader.Version", name: str) -> bool:
        key = _key(version, name)
        return key in self._values

    def has_members(self, version: "loader.Version", text: str) -> bool:
        key = _key(version, text)
        return key in self._members

    def prepare(
        self,
        version: "loader.Version",
        coded: Sequence[str],
        values: Sequence[str],
    ) -> None:
        """Cache codes of some columns and values of others, reading the tables once."""
        with self._reads:
            no_codes = [name for name in coded if not self.has_codes(version, name)]
            no_values = [name for name in values if not self.has_values(version, name)]
            names = list(dict.fromkeys([*no_values, *no_codes]))
            if not names:
                return
            # A few columns at a time: the values of fifty do not fit in memory.
            n_rows = max(1, self.n_rows(version))
            n_columns = max(1, CELLS_AT_ONCE // n_rows)
            for first in range(
                0,
                len(names),
                n_columns,
            ):
                stop = first + n_columns
                for name, series in self._read(version, names[first:stop]).items():
                    key = _key(version, name)
                    if name in no_codes:
                        coding = _code_series(version, name, series)
                        self._codes.put(key, coding)
                    # Numbers are filtered and sorted next. Texts take more memory, and have codes.
                    is_number = series.dtype.is_numeric() or series.dtype.is_temporal()
                    if is_number or name in no_values:
                        self._values.put(key, series)
                # The loop variable would keep the last column alive while memory is released.
                del series
            release_memory()

    def plan_ahead(self, version: "loader.Version", names: Sequence[str]) -> None:
        """Name the columns that `read_ahead` codes next: the ones that a filter of the page will count."""
        self._next = version, names

    def read_ahead(self) -> None:
        """Code the columns of the last page, so that the first click in a facet need not read them."""
        planned = self._next
        if planned is None:
            return
        # Before the read: a page that is shown meanwhile plans its own columns.
        self._next = None
        version, names = planned
        self.prepare(
            version,
            names,
            [],
        )

    def codes(self, version: "loader.Version", name: str) -> CodedColumn:
        """Return a column's codes. Reads the tables if they are not cached."""
        self.prepare(
            version,
            [name],
            [],
        )
        key = _key(version, name)

        # Made again if it was evicted a moment ago.
        return self._codes.get(key, lambda: self._code(version, name))

    def _code(self, version: "loader.Version", name: str) -> CodedColumn:
        series = self._column(version, name)
        return _code_series(version, name, series)

    def code_of(
        self,
        version: "loader.Version",
        column: str,
        term: str,
    ) -> int | None:
        """Return the code that a facet's term selects; None without codes, or if no facet wrote it."""
        if not self.has_codes(version, column):
            return None
        coded = self.codes(version, column)
        return coded.code_of(term)

    def values(self, version: "loader.Version", names: Sequence[str]) -> "polars.DataFrame":
        """Return columns of all live samples, in version order."""
        pl = import_polars()
        self.prepare(
            version,
            [],
            names,
        )
        columns = [self._series(version, name) for name in names]
        frame: polars.DataFrame = pl.DataFrame(columns)
        return frame

    def _series(self, version: "loader.Version", name: str) -> "polars.Series":
        key = _key(version, name)

        # Read again if it was evicted a moment ago, or is too large for the cache.
        series: polars.Series = self._values.get(key, lambda: self._column(version, name))
        return series

    def _column(self, version: "loader.Version", name: str) -> "polars.Series":
        """Return a column of the samples that are counted, from the tables or from the map. Raises: NotIndexed."""
        if name not in map_columns(version):
            return self._scan(version, [name])[name]
        labels = None
        if name == SHARE:
            labels = self.label_codes(version)
        return map_column(
            name,
            self.places(version),
            self.ordinals(version),
            labels,
        )

    def scan(self, version: "loader.Version", names: Sequence[str]) -> "polars.LazyFrame":
        """Return ordinal and these columns, as `scan_samples` does, from cached values."""
        pl = import_polars()
        counted = self.ordinals(version)
        if counted is None:
            counted = np.arange(len(version))
        ordinals = pl.Series("ordinal", counted)
        stored = [name for name in names if name != "ordinal"]
        frame = self.values(version, stored)
        columns = [ordinals, *frame.get_columns()]
        lazy: polars.LazyFrame = pl.DataFrame(columns).lazy()
        return lazy

    def members(
        self,
        version: "loader.Version",
        queries: Sequence[tuple[str, str]],
    ) -> dict[str, Bools]:
        """Return expression -> bool [live samples]: True where it is true; null is False.

        queries: (expression, purpose) pairs. Raises: FieldNotFound if one cannot be evaluated.
        """
        missing = [query for query in queries if not self.has_members(version, query[0])]
        new = self._evaluate(version, missing)
        members = {}
        for query in queries:
            text = query[0]
            bits = new.get(text)
            if bits is None:
                bits = self._find_bits(version, query)
            # `count` drops the bits that fill up the last byte.
            unpacked = np.unpackbits(bits, count=self.n_rows(version))
            members[text] = unpacked.astype(bool)
        return members

    def _find_bits(self, version: "loader.Version", query: tuple[str, str]) -> Bits:
        text = query[0]
        key = _key(version, text)

        def make() -> Bits:
            # Evicted a moment ago.
            return self._evaluate(version, [query])[text]

        return self._members.get(key, make)

    def _evaluate(
        self,
        version: "loader.Version",
        queries: Sequence[tuple[str, str]],
    ) -> dict[str, Bits]:
        """Return expression -> uint8 [ceil(live samples / 8)]: a bit for each sample that satisfies it."""
        if not queries:
            return {}
        frame = live_columns(
            version,
            queries,
            truths=len(queries),
            scan=self.scan,
            extra=map_columns(version),
        )
        members = {}
        for number, (text, _) in enumerate(queries):
            truth = frame[str(number)].to_numpy()
            bits = np.packbits(truth.astype(bool))
            key = _key(version, text)
            self._members.put(key, bits)
            members[text] = bits
        del frame
        release_memory()
        return members

    def _scan(self, version: "loader.Version", names: Sequence[str]) -> "polars.DataFrame":
        """Return columns of the samples that are counted, and free what reading them took.

        They are all samples, or `SPREAD_ROWS` of a larger version's.
        """
        if is_spread(version):
            frame = spread_samples(version, self._spread_rows(version), names)
        else:
            frame = scan_samples(version, names).collect()
        release_memory()
        return frame

    def _read(
        self,
        version: "loader.Version",
        names: Sequence[str],
    ) -> "dict[str, polars.Series]":
        """Return column -> its values. Cached ones are not read."""
        columns = {}
        others = []
        of_map = map_columns(version)
        for name in names:
            if self.has_values(version, name) or name in of_map:
                columns[name] = self._series(version, name)
            else:
                others.append(name)
        if others:
            frame = self._scan(version, others)
            columns.update(frame.to_dict())
            # `scan_samples` adds it to whatever is asked for.
            columns.pop("ordinal", None)
        return columns


def _code_series(
    version: "loader.Version",
    name: str,
    series: "polars.Series",
) -> CodedColumn:
    if name == CLUSTER and name in map_columns(version):
        return code_column(name, series, has_categories=True)
    return code_column(name, series)


def _key(version: "loader.Version", text: str) -> Key:
    return version.store.url, version.id, text
