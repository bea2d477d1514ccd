"""An open version: immutable, thread-safe, picklable. Nothing but the manifest is read until it is needed."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import Corrupt, FieldNotFound
from ..storage import Store
from .address import SampleAddress
from .index import ROW_GROUP_ROWS, IndexPlace, IndexRows
from .index_cache import IndexCache
from .parquet import TableFile, get_tables
from .parts_table import PartsTable
from .sample_places import FieldPlaces, SamplePlaces, members

if TYPE_CHECKING:
    import polars

    from .view import View

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Runs a function over items, in order: the built-in `map`, or a thread pool's."""
KEPT_SHARDS = 4096
"""SamplePlaces of shards that a version keeps at hand, some hundred bytes each."""


class Version:
    """One published version. Get one with `root.open(ref)`.

    id: "v-" + sha256 of the manifest; name: "photos@3"; fields: every field name, sorted; manifest: the parsed
    manifest; len(): live samples.
    """

    def __init__(self, store: Store, *, dataset: str, number: int, id: str, manifest: dict[str, Any]) -> None:
        self.store = store
        self.dataset, self.number, self.id, self.manifest = dataset, number, id, manifest
        self.reader: object = None  # whoever opened it and holds its lease; kept alive with it, not pickled
        self._lock = threading.Lock()
        self._parts: PartsTable | None = None
        self._indexes: IndexCache | None = None
        self._shards: dict[tuple[str, int], tuple[IndexPlace, str]] = {}

    def __reduce__(self) -> Any:
        return _rebuild, (self.store, self.dataset, self.number, self.id, self.manifest)

    def __repr__(self) -> str:
        return f"Version({self.name!r}, {len(self)} samples, {self.id[:14]})"

    def __len__(self) -> int:
        return int(self.manifest["n_live"])

    @property
    def name(self) -> str:
        return f"{self.dataset}@{self.number}"

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(
            sorted(field for group in self.manifest["groups"].values() for field in group["field_nbytes"])
        )

    @property
    def parts(self) -> PartsTable:
        """The parts, read at first use. Raises: Corrupt when a table is not the one the manifest names."""
        with self._lock:
            if self._parts is None:
                files = [*self.manifest["shards"], *self.manifest["exclusions"]]
                tables = list(get_tables(self.store, [TableFile.from_json(file) for file in files]))
                shards, gone = (
                    tables[: len(self.manifest["shards"])],
                    tables[len(self.manifest["shards"]) :],
                )
                parts = PartsTable(pa.concat_tables(shards), gone, self.name)
                if int(parts.first_ordinal[-1]) != len(self):
                    raise Corrupt(
                        f"{self.name}: its tables hold {int(parts.first_ordinal[-1])} live samples, its manifest says "
                        f"{len(self)}; run penstock verify {self.name}"
                    )
                self._parts = parts
            return self._parts

    @property
    def indexes(self) -> IndexCache:
        with self._lock:
            if self._indexes is None:
                self._indexes = IndexCache(self.store)
            return self._indexes

    def group_of(self, field: str) -> str:
        """The group that holds a field. Raises: FieldNotFound naming the fields there are."""
        for group, body in self.manifest["groups"].items():
            if field in body["field_nbytes"]:
                return str(group)
        raise FieldNotFound(f"{self.name} has no field {field!r}; it has {', '.join(self.fields)}")

    def select(self, *fields: str, where_present: bool = False) -> "View":
        """A view of these fields: only their bytes are fetched. Without names, of every field.

        where_present: leave out samples of parts that do not have these fields; otherwise such a field is
        refused. Raises: FieldNotFound.
        """
        from .view import View

        return View(self, fields or self.fields, None, where_present)

    def where(self, predicate: str) -> "View":
        """A view of the samples for which an SQL expression over the samples table is true."""
        return self.select().where(predicate)

    def samples(self) -> "polars.LazyFrame":
        """The samples table: `ordinal` (the live sample's number), keys, provenance, metadata columns."""
        from .samples import scan_samples

        return scan_samples(self)

    def address(self, ordinals: Int64s, fields: Sequence[str], run: Map = map) -> list[SampleAddress]:
        """Where these fields of these live ordinals lie, in the order given; see `places`."""
        ordinals = np.asarray(ordinals, np.int64)
        if not fields:
            return [replace(address, fields={}) for address in self._key_addresses(ordinals, run)]
        return self.places(ordinals, fields, run).addresses()

    def places(self, ordinals: Int64s, fields: Sequence[str], run: Map = map) -> SamplePlaces:
        """Where these fields, at least one, of these live ordinals lie, in the order given.

        Costs one index row group per distinct (group, 2,048-row stretch) that is not in memory. `run` may be a
        thread pool's map. Raises: Corrupt; ObjectNotFound; FieldNotFound for a sample without such a field;
        InvalidRuntime for an ordinal out of range.
        """
        part, row = self.parts.locate(ordinals)
        by_group: dict[str, list[str]] = {}
        for field in fields:
            by_group.setdefault(self.group_of(field), []).append(field)
        names, stretch = np.unique(part * 2**32 + row // ROW_GROUP_ROWS, return_inverse=True)
        places: dict[str, FieldPlaces] = {}
        keyed: list[IndexRows] = []
        for group in sorted(by_group):
            stretches = self._stretches(group, [divmod(name, 2**32) for name in names.tolist()], run)
            columns = sorted(self.manifest["groups"][group]["field_nbytes"])
            found = np.empty((len(row), len(columns), 3), np.int64)
            for number, mine in members(stretch, len(names)):
                rows = stretches[number].rows
                found[mine] = rows.places[row[mine] - rows.first_row]
            paths = {path: i for i, path in enumerate(dict.fromkeys(one.path for one in stretches))}
            shard = np.array([paths[one.path] for one in stretches], np.int64)[stretch]
            for field in by_group[group]:
                offset, nbytes, crc = found[:, columns.index(field)].T
                places[field] = FieldPlaces(
                    group=group, paths=list(paths), shard=shard, offset=offset, nbytes=nbytes, crc32c=crc
                )
            keyed = keyed or [one.rows for one in stretches]
        return SamplePlaces(
            version=self.name,
            version_id=self.id,
            part_ids=self.parts.ids,
            part=part,
            row=row,
            ordinal=ordinals,
            index=keyed,
            stretch=stretch,
            fields={field: places[field] for field in fields},
        )

    def keys(self, ordinals: Int64s) -> list[str]:
        """The keys of live ordinals, in the order given."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(16, thread_name_prefix="penstock-index") as pool:
            found = self._key_addresses(np.asarray(ordinals, np.int64), pool.map)
        return [address.key for address in found]

    def _key_addresses(self, ordinals: Int64s, run: Map) -> list[SampleAddress]:
        # Keys are in every group's index: take, per sample, a group that its part has.
        part, _ = self.parts.locate(ordinals)
        out: list[SampleAddress | None] = [None] * len(ordinals)
        left = np.ones(len(ordinals), bool)
        for group, body in self.manifest["groups"].items():
            mine = np.flatnonzero(left & self.parts.has_group(group)[part])
            if len(mine):
                left[mine] = False
                field = next(iter(body["field_nbytes"]))
                for i, address in zip(mine.tolist(), self.address(ordinals[mine], [field], run), strict=True):
                    out[i] = address
        return [address for address in out if address is not None]

    def _stretches(self, group: str, names: Sequence[tuple[int, int]], run: Map) -> "list[_Stretch]":
        """Index rows by (part, number of the stretch in it)."""
        fields = self.manifest["groups"][group]["field_nbytes"].keys()

        def load(name: tuple[int, int]) -> _Stretch:
            place, path = self._shard(group, name[0])
            found = self.indexes.rows(place, name[1] * ROW_GROUP_ROWS)
            if found.offset.keys() != fields:
                raise Corrupt(
                    f"{self.store.url}/{place.path} has fields {sorted(found.offset)}, the manifest of "
                    f"{self.name} says {sorted(fields)}; restore it from a mirror"
                )
            return _Stretch(found, path)

        here = all(self.indexes.holds(self._shard(group, part)[0], n * ROW_GROUP_ROWS) for part, n in names)
        # A pool costs more than it brings where nothing has to be read.
        return list(map(load, names) if here else run(load, names))

    def _shard(self, group: str, part: int) -> tuple[IndexPlace, str]:
        """Where a shard's index lies, and the shard. Arrow takes 20 us to tell, so those asked for last are kept."""
        found = self._shards.get((group, part))
        if found is None:
            shard = self.parts.shard(group, part)
            found = IndexPlace.of(shard), shard["path"]
            if len(self._shards) >= KEPT_SHARDS:
                self._shards.clear()
            self._shards[group, part] = found
        return found


class _Stretch(NamedTuple):
    """Index rows of the shard at `path`."""

    rows: IndexRows
    path: str


def _rebuild(store: Store, dataset: str, number: int, id: str, manifest: dict[str, Any]) -> Version:
    return Version(store, dataset=dataset, number=number, id=id, manifest=manifest)
