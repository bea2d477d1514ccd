"""An open version: immutable, thread-safe, picklable. Opening reads only the manifest and small parts tables."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, FieldNotFound, InvalidRuntime, PenstockError
from ...keywords import did_you_mean
from ...modalities.fields import without_row_blocks
from ...storage import RangeReader, Store
from ...storage.threads import Together, lock
from ..log.state import VersionRecord
from ..reading.places import Lookup
from ..reading.sample_places import Map, RowStretch, SamplePlaces
from ..reading.sha256_store import VerifiedStore
from ..shards.address import SampleAddress
from ..shards.index import ROW_GROUP_ROWS, IndexPlace
from ..shards.index_cache import CACHED_INDEX_BYTES, IndexCache
from ..shards.numbered_rows import ShardRows
from ..shards.parts_table import PartsTable
from ..shards.shard import PageHashes
from ..shards.shards_file import ShardsFile
from ..tables.manifest import read_record_manifest
from ..tables.parquet import TableFile, get_table_bytes, parse_table

if TYPE_CHECKING:
    import polars

    from ...storage.external_shards import PlacedStore
    from ..tables.annotations import Annotation
    from .sample_search import Like, SearchResult
    from .view import View
    from .view_columns import AskedColumns

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Rows: TypeAlias = "slice | np.ndarray[Any, Any]"
"""Numbers of samples: outside of the class, where `slice` is Python's."""
Verify = Literal["crc32c", "sha256"]
"""Checks on samples' bytes: "crc32c" per field; "sha256" also checks pages."""
PREPARED_BYTES = 2**20
"""Most bytes of parts tables that opening reads: about 5,000 shards."""
ShardsFiles: TypeAlias = MutableMapping[TableFile, ShardsFile]
"""Open shards tables, as long as a version has them."""
KEPT_SHARDS = 4096
"""Most shard index places that a version caches, some hundred bytes each."""


class Version:
    """One published version, from `root.open(ref)`. Its length is the number of live samples."""

    store: Store
    """Store of the root."""
    verify: Verify
    """Checks on samples, as set by the root."""
    dataset: str
    """Dataset name."""
    number: int
    """Number of the version in its dataset."""
    id: str
    """Content hash: "v-" and sha256 hex of the manifest."""
    manifest: dict[str, Any]
    """The parsed manifest."""
    reader: object
    """The root with the version's lease, or None. Not pickled."""
    searches: object
    """Open search indexes, or None. Not pickled."""
    shards_files: ShardsFiles
    """Open shards tables, which the versions of a root share. Not pickled."""
    index_bytes: int = CACHED_INDEX_BYTES
    """Most bytes of index rows that stay in memory. Set it before the first read. Not pickled."""

    def __init__(
        self,
        store: Store,
        *,
        dataset: str,
        number: int,
        id: str,
        manifest: dict[str, Any],
        verify: Verify = "crc32c",
        tables: Mapping[str, bytes] | None = None,
    ) -> None:
        """tables: Path -> checked bytes of parts tables, which are not read again."""
        self.store, self.verify = store, verify
        self.dataset, self.number, self.id, self.manifest = dataset, number, id, manifest
        self.reader = None
        self.searches = None
        self._lock = lock()
        self._parts: PartsTable | None = None
        self._tables = tables or {}
        self.shards_files = WeakValueDictionary()
        self._indexes: IndexCache | None = None
        self._shards: dict[tuple[str, int], tuple[IndexPlace, str]] = {}
        self._placed: PlacedStore | None = None
        self._verified: VerifiedStore | None = None

    def __reduce__(self) -> Any:
        # The tables travel along: with a plan from the first rank, 10,000 others need not read them at once.
        facts = (self.store, self.dataset, self.number, self.id, self.manifest, self.verify)
        return _rebuild, (*facts, self._tables)

    def __repr__(self) -> str:
        return f"Version({self.name!r}, {len(self)} samples, {self.id[:14]})"

    def __len__(self) -> int:
        return int(self.manifest["n_live"])

    @property
    def name(self) -> str:
        """Dataset and number, such as "photos@3"."""
        return f"{self.dataset}@{self.number}"

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field name, sorted."""
        return tuple(
            sorted(field for group in self.manifest["groups"].values() for field in group["field_nbytes"])
        )

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Field -> facts from its writers, such as {"unit": "dB"}; fields without facts are left out."""
        return {name: dict(each) for name, each in self.manifest.get("facts", {}).items()}

    @property
    def parts(self) -> PartsTable:
        """The parts, read at first use. Raises: Corrupt."""
        with self._lock:
            if self._parts is None:
                self._parts = self._read_parts()
            return self._parts

    def prepare(self) -> None:
        """Read the parts now, if their tables are small."""
        if sum(file.nbytes for file in self._parts_files()) <= PREPARED_BYTES:
            with suppress(PenstockError):  # raised again when the parts are needed
                self.parts  # noqa: B018

    def _parts_files(self) -> list[TableFile]:
        return [
            TableFile.from_json(file) for file in (*self.manifest["shards"], *self.manifest["exclusions"])
        ]

    def _read_parts(self) -> PartsTable:
        files, n_shards = self._parts_files(), len(self.manifest["shards"])
        # Files that another version has open are neither read nor decoded again.
        shared = {file: self.shards_files.get(file) for file in files[:n_shards]}
        unread = [file.path for file in files if file.path not in self._tables and shared.get(file) is None]
        shards: list[ShardsFile] = []
        exclusions: list[pa.Table] = []
        tables: dict[str, bytes] = {}
        with Together(self.store, unread[1:]) as store:
            for number, file in enumerate(files):
                name = f"{store.url}/{file.path}"
                opened = shared.get(file)
                if opened is not None:
                    shards.append(opened)
                    tables[file.path] = opened.data
                    continue
                data = self._tables.get(file.path) or get_table_bytes(store, file)
                tables[file.path] = bytes(data)
                if number >= n_shards:
                    exclusions.append(parse_table(data, name))
                    continue
                opened = ShardsFile(name, data)
                shards.append(opened)
                self.shards_files[file] = opened
        if sum(file.nbytes for file in files) <= PREPARED_BYTES:
            self._tables = tables
        parts = PartsTable(ShardRows(shards), exclusions, self.name)
        if int(parts.first_ordinal[-1]) != len(self):
            raise Corrupt(
                f"{self.name}: its tables hold {int(parts.first_ordinal[-1])} live samples, its manifest counts "
                f"{len(self)}; run penstock verify {self.name}"
            )
        return parts

    @property
    def shard_store(self) -> RangeReader:
        """Store of all shards, including registered ones; with verify="sha256" it checks page hashes."""
        origin = self.placed or self.store
        if self.verify == "crc32c":
            return origin
        with self._lock:
            if self._verified is None:
                self._verified = VerifiedStore(origin, self._page_hashes)
            return self._verified

    @property
    def placed(self) -> "PlacedStore | None":
        """Store of registered shards, or None."""
        if not (foreign := self.manifest.get("foreign")):
            return None
        from ..reading.shard_reader import shard_reader  # not needed if no shards are registered

        with self._lock:
            if self._placed is None:
                self._placed = shard_reader(self.store, foreign, self.name)
            return self._placed

    def _page_hashes(self, path: str) -> PageHashes:
        shard = self.parts.find_shard(path)
        if shard is None:
            raise Corrupt(f"{path} is no shard of {self.name}: nothing is known of its bytes")
        hashes = self.indexes.page_hashes(IndexPlace.of(shard), shard["nbytes"])
        if hashes is None and not shard["sha256"]:
            raise InvalidRuntime(
                f"{path}, a shard of {self.name}, is registered where it lies, and has no hashes of pages: "
                'verify="sha256" cannot prove it. Open the root with verify="crc32c"'
            )
        if hashes is None:
            raise InvalidRuntime(
                f"{self.store.url}/{path}, a shard of {self.name}, was written by a release that kept no hashes of "
                'pages: verify="sha256" cannot prove it. Write its samples again, or open the root with '
                f'verify="crc32c" and run penstock verify {self.name} --full'
            )
        return hashes

    @property
    def indexes(self) -> IndexCache:
        with self._lock:
            if self._indexes is None:
                self._indexes = IndexCache(self.store, self.index_bytes)
            return self._indexes

    def group_of(self, field: str) -> str:
        """Return the group that holds a field. Raises: FieldNotFound, which names the existing fields."""
        for group, body in self.manifest["groups"].items():
            if field in body["field_nbytes"]:
                return str(group)
        near = did_you_mean(field, self.fields) if isinstance(field, str) else ""
        text = f"{self.name} has no field {field!r}{near or ';'} it has {', '.join(self.fields)}"
        raise FieldNotFound(text, what=field, where=self.name)

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
        from .view import View

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

    def address(self, ordinals: Int64s, fields: Sequence[str], run: Map = map) -> list[SampleAddress]:
        """Return the addresses of these fields for live ordinals, in order; see `places`."""
        ordinals = np.asarray(ordinals, np.int64)
        if not fields:
            from ..reading.sample_keys import key_addresses

            return key_addresses(self, ordinals)
        return self.places(ordinals, fields, run).addresses()

    def places(self, ordinals: Int64s, fields: Sequence[str], run: Map = map) -> SamplePlaces:
        """Return the places of one or more fields for live ordinals, in order: see `Lookup.places`."""
        only = np.zeros(len(ordinals), np.int64)
        return Lookup([self], fields).places(only, ordinals, run)

    def keys(self, ordinals: Int64s) -> list[str]:
        from ..reading.sample_keys import sample_keys

        return sample_keys(self, np.asarray(ordinals, np.int64))

    def stretch_keys(self, part: int, number: int) -> list[str]:
        """Return the keys of stretch `number` (2,048 rows) of a part. Raises: Corrupt; ObjectNotFound."""
        # Every group's index has the keys: any that the part has will do.
        group = next(name for name in self.manifest["groups"] if self.parts.has_group(name)[part])
        place, _ = self._shard(group, part)
        return self.indexes.keys(place, number * ROW_GROUP_ROWS)

    def cached_stretch(self, group: str, part: int, number: int) -> RowStretch | None:
        """Return what `stretch` returns if its rows are in memory, else None."""
        place, path = self._shard(group, part)
        rows = self.indexes.held(place, number * ROW_GROUP_ROWS)
        return None if rows is None else self._check_stretch(group, place, RowStretch(rows, path))

    def stretch(self, group: str, part: int, number: int) -> RowStretch:
        """Return stretch `number` (2,048 rows) of a part's index. Raises: Corrupt; ObjectNotFound; FieldNotFound."""
        place, path = self._shard(group, part)
        return self._check_stretch(
            group, place, RowStretch(self.indexes.rows(place, number * ROW_GROUP_ROWS), path)
        )

    def _check_stretch(self, group: str, place: IndexPlace, stretch: RowStretch) -> RowStretch:
        fields = self.manifest["groups"][group]["field_nbytes"].keys()
        if stretch.rows.offset.keys() != fields:
            raise Corrupt(
                f"{self.store.url}/{place.path} has fields {sorted(stretch.rows.offset)}, the manifest of {self.name} "
                f"has {sorted(fields)}; restore it from a mirror"
            )
        if (
            not stretch.rows.sealed
            and (placed := self.placed) is not None
            and placed.is_adopted(stretch.path)
        ):
            raise InvalidRuntime(
                f"{stretch.path}, a shard of {self.name}, was copied into {self.store.url} and has no checksums here: "
                f"penstock seal {self.name} first, or restore {place.seal} from a mirror"
            )
        return stretch

    def _shard(self, group: str, part: int) -> tuple[IndexPlace, str]:
        """Return (place of a shard's index, shard path), cached: Arrow takes 20 us."""
        shard_place = self._shards.get((group, part))
        if shard_place is None:
            shard = self.parts.shard(group, part)
            n_fields = len(self.manifest["groups"][group]["field_nbytes"])
            shard_place = IndexPlace.of(shard, n_fields), shard["path"]
            if len(self._shards) >= KEPT_SHARDS:
                self._shards.clear()
            self._shards[group, part] = shard_place
        return shard_place


def open_record(store: Store, record: VersionRecord, manifest: dict[str, Any] | None = None) -> Version:
    """Return the version of a log record, with CRC-32C checks. manifest: None reads it.

    Raises: as `read_record_manifest`.
    """
    if manifest is None:
        manifest = read_record_manifest(store, record)
    return Version(store, dataset=record.dataset, number=record.number, id=record.id, manifest=manifest)


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
