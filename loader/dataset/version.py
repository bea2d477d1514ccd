"""An open version: immutable, thread-safe, picklable. Nothing but the manifest is read until it is needed."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import Corrupt, FieldNotFound
from ..storage import Store
from .address import SampleAddress
from .index import IndexPlace, IndexRows
from .index_cache import IndexCache
from .parquet import TableFile, get_tables
from .parts_table import PartsTable

if TYPE_CHECKING:
    import polars

    from .view import View

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Runs a function over items, in order: the built-in `map`, or a thread pool's."""


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
        """Where these fields of these live ordinals lie, in the order given.

        Costs one index row group per distinct (group, 2,048-row stretch) that is not in memory. `run` may be a
        thread pool's map. Raises: Corrupt; ObjectNotFound; FieldNotFound for a sample without such a field;
        InvalidRuntime for an ordinal out of range.
        """
        ordinals = np.asarray(ordinals, np.int64)
        if not fields:
            return [replace(address, fields={}) for address in self._key_addresses(ordinals, run)]
        part, row = self.parts.locate(ordinals)
        groups = {field: self.group_of(field) for field in fields}
        names = sorted(set(groups.values()))
        rows = {name: self._index_rows(name, part, row, run) for name in names}
        key_rows, out = rows[names[0]], []
        name, ids = self.name, self.parts.ids
        part_ids = {p: ids[p].as_py() for p in set(part.tolist())}
        for i, (ordinal, p, at) in enumerate(
            zip(ordinals.tolist(), part.tolist(), row.tolist(), strict=True)
        ):
            index, _ = key_rows[i]
            places = {}
            for field, group in groups.items():
                found, path = rows[group][i]
                places[field] = found.address(field, group, path, at - found.first_row)
            out.append(
                SampleAddress(
                    key=index.keys[at - index.first_row],
                    version=name,
                    version_id=self.id,
                    part=part_ids[p],
                    row=at,
                    ordinal=ordinal,
                    fields=places,
                )
            )
        return out

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

    def _index_rows(self, group: str, part: Int64s, row: Int64s, run: Map) -> list[tuple[IndexRows, str]]:
        """Per sample, the index rows around it and its shard's path."""
        from .index import ROW_GROUP_ROWS

        wanted: dict[tuple[int, int], tuple[dict[str, Any], int]] = {}
        for p, r in zip(part.tolist(), row.tolist(), strict=True):
            stretch = (p, r // ROW_GROUP_ROWS)
            if stretch not in wanted:
                wanted[stretch] = (self.parts.shard(group, p), r)
        cache, fields = self.indexes, self.manifest["groups"][group]["field_nbytes"].keys()

        def load(item: tuple[dict[str, Any], int]) -> tuple[IndexRows, str]:
            shard, r = item
            rows = cache.rows(IndexPlace.of(shard), r)
            if rows.offset.keys() != fields:
                raise Corrupt(
                    f"{self.store.url}/{shard['index_path']} has fields {sorted(rows.offset)}, the manifest of "
                    f"{self.name} says {sorted(fields)}; restore it from a mirror"
                )
            return rows, shard["path"]

        loaded = dict(zip(wanted, run(load, list(wanted.values())), strict=True))
        return [loaded[p, r // ROW_GROUP_ROWS] for p, r in zip(part.tolist(), row.tolist(), strict=True)]


def _rebuild(store: Store, dataset: str, number: int, id: str, manifest: dict[str, Any]) -> Version:
    return Version(store, dataset=dataset, number=number, id=id, manifest=manifest)
