"""Read the shards of an open version: its parts, where its samples' bytes are, and their indexes."""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, FieldNotFound, InvalidRuntime, PenstockError
from ...keywords import did_you_mean
from ...storage import RangeReader, Store
from ...storage.threads import Together, lock
from ..shards.address import SampleAddress
from ..shards.index import ROW_GROUP_ROWS, IndexPlace
from ..shards.index_cache import CACHED_INDEX_BYTES, IndexCache
from ..shards.numbered_rows import ShardRows
from ..shards.parts_table import PartsTable
from ..shards.shard import PageHashes
from ..shards.shards_file import ShardsFile
from ..tables.manifest import read_record_manifest
from ..tables.parquet import TableFile, get_table_bytes, parse_table
from .places import Lookup
from .sample_places import Int64s, Map, RowStretch, SamplePlaces
from .sha256_store import VerifiedStore

if TYPE_CHECKING:
    from ...storage.external_shards import PlacedStore
    from ..log.state import VersionRecord

Verify = Literal["crc32c", "sha256"]
"""Checks on samples' bytes: "crc32c" per field; "sha256" also checks pages."""
PREPARED_BYTES = 2**20
"""Most bytes of parts tables that opening reads: about 5,000 shards."""
ShardsFiles: TypeAlias = MutableMapping[TableFile, ShardsFile]
"""Open shards tables, as long as a version has them."""
KEPT_SHARDS = 4096
"""Most shard index places that a version caches, some hundred bytes each."""


def check_verify(verify: object) -> None:
    """Raise InvalidRuntime unless these are checks on samples' bytes."""
    modes = get_args(Verify)
    if verify not in modes:
        raise InvalidRuntime(
            f"verify = {verify!r}; accepted: {', '.join(map(repr, modes))}",
            what="verify",
            given=verify,
            accepted=modes,
        )


class VersionShards:
    """The parts of a version and the places of its samples' bytes: what `Version` reads of its root."""

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
        self.store = store
        self.verify = verify
        self.dataset = dataset
        self.number = number
        self.id = id
        self.manifest = manifest
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

    @classmethod
    def of_record(
        cls,
        store: Store,
        record: "VersionRecord",
        manifest: dict[str, Any] | None = None,
    ) -> Self:
        """Return the version of a log record, with CRC-32C checks. manifest: None reads it.

        Raises: as `read_record_manifest`.
        """
        if manifest is None:
            manifest = read_record_manifest(store, record)
        return cls(
            store,
            dataset=record.dataset,
            number=record.number,
            id=record.id,
            manifest=manifest,
        )

    def __len__(self) -> int:
        return int(self.manifest["n_live"])

    @property
    def name(self) -> str:
        """Dataset and number, such as "photos@3"."""
        return f"{self.dataset}@{self.number}"

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field name, sorted."""
        names: list[str] = []
        for group in self.manifest["groups"].values():
            names.extend(group["field_nbytes"])
        names.sort()
        return tuple(names)

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
        nbytes = sum(file.nbytes for file in self._parts_files())
        if nbytes <= PREPARED_BYTES:
            with suppress(PenstockError):  # raised again when the parts are needed
                self.parts  # noqa: B018

    def _parts_files(self) -> list[TableFile]:
        """Return the files of the shards tables, then the files of the exclusions."""
        shards = self.manifest["shards"]
        exclusions = self.manifest["exclusions"]
        return [TableFile.from_json(file) for file in (*shards, *exclusions)]

    def _read_parts(self) -> PartsTable:
        files = self._parts_files()
        n_shards = len(self.manifest["shards"])
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
        parts = PartsTable(
            ShardRows(shards),
            exclusions,
            self.name,
        )
        n_live = int(parts.first_ordinal[-1])
        if n_live != len(self):
            raise Corrupt(
                f"{self.name}: its tables hold {n_live} live samples, its manifest counts "
                f"{len(self)}; run penstock verify {self.name}",
                what="live samples",
                where=self.name,
                given=n_live,
                accepted=len(self),
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
        foreign = self.manifest.get("foreign")
        if not foreign:
            return None
        from .registered_shard_store import open_shard_store  # not needed if no shards are registered

        with self._lock:
            if self._placed is None:
                self._placed = open_shard_store(self.store, foreign, self.name)
            return self._placed

    def _page_hashes(self, path: str) -> PageHashes:
        shard = self.parts.find_shard(path)
        if shard is None:
            raise Corrupt(
                f"{path} is not a shard of {self.name}: nothing is known of its bytes",
                what="shard",
                where=self.name,
                given=path,
            )
        place = IndexPlace.of(shard)
        hashes = self.indexes.page_hashes(place, shard["nbytes"])
        if hashes is None:
            raise self._unprovable(path, is_registered=not shard["sha256"])
        return hashes

    def _unprovable(self, path: str, *, is_registered: bool) -> InvalidRuntime:
        """Return the error for a shard without hashes of pages."""
        if is_registered:
            message = (
                f"{path}, a shard of {self.name}, is registered where it lies, and has no hashes of pages: "
                'verify="sha256" cannot prove it. Open the root with verify="crc32c"'
            )
        else:
            message = (
                f"{self.store.url}/{path}, a shard of {self.name}, was written by a release that kept no hashes of "
                'pages: verify="sha256" cannot prove it. Write its samples again, or open the root with '
                f'verify="crc32c" and run penstock verify {self.name} --full'
            )
        return InvalidRuntime(
            message,
            what="verify",
            where=path,
            given="sha256",
            accepted="crc32c",
        )

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
        near = ""
        if isinstance(field, str):
            near = did_you_mean(field, self.fields)
        known = ", ".join(self.fields)
        raise FieldNotFound(
            f"{self.name} has no field {field!r}{near or ';'} it has {known}",
            what=field,
            where=self.name,
        )

    def address(
        self,
        ordinals: Int64s,
        fields: Sequence[str],
        parallel_map: Map = map,
    ) -> list[SampleAddress]:
        """Return the addresses of these fields for live ordinals, in order; see `places`."""
        ordinals = np.asarray(ordinals, np.int64)
        if not fields:
            from .sample_keys import key_addresses

            return key_addresses(self, ordinals)
        places = self.places(ordinals, fields, parallel_map)
        return places.addresses()

    def places(
        self,
        ordinals: Int64s,
        fields: Sequence[str],
        parallel_map: Map = map,
    ) -> SamplePlaces:
        """Return the places of one or more fields for live ordinals, in order: see `Lookup.places`."""
        # int64 [m]: which of the lookup's versions has each ordinal. It has one.
        only = np.zeros(len(ordinals), np.int64)
        lookup = Lookup([self], fields)
        return lookup.places(only, ordinals, parallel_map)

    def keys(self, ordinals: Int64s) -> list[str]:
        from .sample_keys import sample_keys

        ordinals = np.asarray(ordinals, np.int64)
        return sample_keys(self, ordinals)

    def stretch_keys(self, part: int, number: int) -> list[str]:
        """Return the keys of stretch `number` (2,048 rows) of a part. Raises: Corrupt; ObjectNotFound."""
        # Every group's index has the keys: any that the part has will do.
        group = next(name for name in self.manifest["groups"] if self.parts.has_group(name)[part])
        place, _ = self._shard(group, part)
        return self.indexes.keys(place, number * ROW_GROUP_ROWS)

    def cached_stretch(
        self,
        group: str,
        part: int,
        number: int,
    ) -> RowStretch | None:
        """Return what `stretch` returns if its rows are in memory, else None."""
        place, path = self._shard(group, part)
        rows = self.indexes.held(place, number * ROW_GROUP_ROWS)
        if rows is None:
            return None
        stretch = RowStretch(rows, path)
        return self._check_stretch(group, place, stretch)

    def stretch(
        self,
        group: str,
        part: int,
        number: int,
    ) -> RowStretch:
        """Return stretch `number` (2,048 rows) of a part's index. Raises: Corrupt; ObjectNotFound; FieldNotFound."""
        place, path = self._shard(group, part)
        rows = self.indexes.rows(place, number * ROW_GROUP_ROWS)
        stretch = RowStretch(rows, path)
        return self._check_stretch(group, place, stretch)

    def _check_stretch(
        self,
        group: str,
        place: IndexPlace,
        stretch: RowStretch,
    ) -> RowStretch:
        expected = self.manifest["groups"][group]["field_nbytes"].keys()
        if stretch.rows.offset.keys() != expected:
            index_fields = sorted(stretch.rows.offset)
            manifest_fields = sorted(expected)
            raise Corrupt(
                f"{self.store.url}/{place.path} has fields {index_fields}, the manifest of {self.name} "
                f"has {manifest_fields}; restore it from a mirror",
                what="fields",
                where=f"{self.store.url}/{place.path}",
                given=index_fields,
                accepted=manifest_fields,
            )
        if stretch.rows.sealed:
            return stretch
        placed = self.placed
        if placed is not None and placed.is_adopted(stretch.path):
            raise InvalidRuntime(
                f"{stretch.path}, a shard of {self.name}, was copied into {self.store.url} and has no checksums here: "
                f"penstock seal {self.name} first, or restore {place.seal} from a mirror",
                what="checksums",
                where=stretch.path,
            )
        return stretch

    def _shard(self, group: str, part: int) -> tuple[IndexPlace, str]:
        """Return (place of a shard's index, shard path), cached: Arrow takes 20 us."""
        shard_place = self._shards.get((group, part))
        if shard_place is None:
            shard = self.parts.shard(group, part)
            n_fields = len(self.manifest["groups"][group]["field_nbytes"])
            place = IndexPlace.of(shard, n_fields)
            shard_place = (place, shard["path"])
            if len(self._shards) >= KEPT_SHARDS:
                self._shards.clear()
            self._shards[group, part] = shard_place
        return shard_place
