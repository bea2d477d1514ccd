"""Open the store that serves a version's shards, mapping registered shards to objects in foreign locations."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, Forbidden, InvalidStore, MissingDependency
from ...json_text import parse_json_object
from ...storage import Store, open_store
from ...storage.external_shards import FOREIGN, Decoded, ObjectsOf, PlacedObject, PlacedStore, RefusedPlace
from ...storage.store import as_disk
from ..columnar.choices import ColumnarOptions
from ..columnar.parquet_chunks import Chunks, DecodedParquet
from ..tables.foreign_objects import FOREIGN_SCHEMA, ForeignObject, foreign_place
from ..tables.parquet import TableFile, changes, get_tables, table_facts
from ..tables.place_records import place_record
from ..tables.trusted_places import is_bucket, is_vouched, untrusted_error

MAX_SHARDS = 4096
"""Most shards whose objects stay cached."""


def open_shard_store(store: Store, files: Sequence[dict[str, Any]], name: str) -> PlacedStore:
    """Return a store of a version's shards, both in the root and in foreign locations.

    A folder that the root does not vouch for is not opened: reading from it raises Forbidden. Costs one request per
    table, two per location, and about 100 bytes per object.

    files: the manifest's list `foreign`. name: version name. Raises: Corrupt; ObjectNotFound if a location's record is
    missing.
    """
    table_files = [TableFile.from_json(file) for file in files]
    tables = list(get_tables(store, table_files))
    facts: Mapping[str, str] = {}
    if tables:
        # All registrations of a version have the same options, or are refused: the newest table's facts are all's.
        facts = table_facts(tables[-1])
    empty = FOREIGN_SCHEMA.empty_table()  # has the columns that tables of earlier releases lack
    table = pa.concat_tables([empty, *tables], promote_options="default").combine_chunks()
    rows = _rows_of_shards(table)

    places = _locations(rows, name)
    stores, unvouched = _open_locations(store, places)

    @lru_cache(maxsize=MAX_SHARDS)
    def path_objects(path: str) -> Sequence[PlacedObject]:
        if path not in rows:
            raise Corrupt(f"{path} is not a registered shard of {name}: run penstock verify {name}")
        first, stop = rows[path]
        objects: list[PlacedObject] = []
        for row in table.slice(first, stop - first).to_pylist():
            record = ForeignObject.of_row(row, f"the table of objects of {name}")
            placed = _find_object(
                record,
                root=store,
                stores=stores,
                facts=facts,
                name=name,
            )
            objects.append(placed)
        return objects

    return _Shards(
        home=store,
        places=list(stores.values()),
        objects_of=path_objects,
        unvouched=unvouched,
        arguments=(store, files, name),
    )


def _rows_of_shards(table: pa.Table) -> dict[str, tuple[int, int]]:
    """Return path -> (first row, row after the last) of each shard's objects, which are adjacent."""
    shards = table["shard"].combine_chunks()
    starts = np.flatnonzero(changes(shards)).tolist()
    paths = shards.take(pa.array(starts, pa.int64())).to_pylist()
    bounds = pairwise([*starts, len(shards)])
    return dict(zip(paths, bounds, strict=True))


def _locations(shards: Iterable[str], name: str) -> set[str]:
    """Return the locations in the shards' paths. Raises: Corrupt for a path that has none."""
    for path in shards:
        is_path = re.fullmatch(rf"{FOREIGN}[0-9a-f]{{32}}/.+", path or "", re.DOTALL)
        if not is_path:
            raise Corrupt(
                f"the table of objects of {name} has the shard {path!r}, which is not a path in a place: it was "
                "damaged or forged. Register the place again"
            )
    return {foreign_place(path) for path in shards}


def _open_locations(
    root: Store,
    places: Iterable[str],
) -> tuple[dict[str, Store], dict[str, Forbidden]]:
    """Return (location -> its store, location -> error that a copy of its objects into the root raises).

    The first has no location whose objects were copied into the root already, the second only those without a voucher.
    """
    stores: dict[str, Store] = {}
    unvouched: dict[str, Forbidden] = {}
    for place in sorted(places):
        record = place_record(root, place)
        if record is None:  # its objects are in the root
            continue
        key, url = record
        is_readable = True
        if not is_vouched(root, key, url):
            unvouched[place] = untrusted_error(root, key, url, "copied into the root")
            # A bucket may be read anyway: its credentials are the reader's own. A folder may not even be read.
            is_readable = is_bucket(url)
        if is_readable:
            stores[place] = _open(url)
        else:
            error = untrusted_error(root, key, url, "read")
            stores[place] = cast(Store, RefusedPlace(url, error))
    return stores, unvouched


def _open(url: str) -> Store:
    """Return a location's store. If it cannot be opened here, reading from it raises the error."""
    try:
        return open_store(url)
    except (InvalidStore, MissingDependency) as error:
        return cast(Store, RefusedPlace(url, error))


def _find_object(
    record: ForeignObject,
    *,
    root: Store,
    stores: Mapping[str, Store],
    facts: Mapping[str, str],
    name: str,
) -> PlacedObject:
    """Return where one object's bytes are now. Raises: Corrupt for a record that no registration writes."""
    if record.place not in stores:  # adopted: the object was copied into the root
        return PlacedObject(
            store=root,
            key=record.path,
            nbytes=record.nbytes,
            etag="",
            modified_us=None,
            offset=record.offset,
            decoded=_decode_facts(root, record.path, record, facts),
        )

    store = stores[record.place]
    decoded = _decode_facts(store, record.key, record, facts)
    # Registrations write no token for a folder, where it contains the inode number: a copy of the folder has others.
    if record.etag and as_disk(store) is not None:
        raise Corrupt(
            f"the table of objects of {name} has a change token for {record.path}, which lies in a folder: no "
            "registration writes one. It was damaged or forged; register the place again"
        )
    return PlacedObject(
        store=store,
        key=record.key,
        nbytes=record.nbytes,
        etag=record.etag,
        modified_us=record.modified_us,
        offset=record.offset,
        decoded=decoded,
    )


def _decode_facts(
    store: Store,
    key: str,
    record: ForeignObject,
    facts: Mapping[str, str],
) -> Decoded | None:
    """Return how an object of Parquet chunks is decoded; None for any other object."""
    if record.chunks is None:
        return None  # the shard has the object's own bytes
    name = f"{store.url}/{key}"
    try:
        registered = parse_json_object(facts["registered"])
        options = ColumnarOptions.of_registered(registered)
        chunks = Chunks.of_row(record.chunks)
        return DecodedParquet(
            name,
            record.path,
            record.nbytes,
            chunks,
            options,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{name}: the table of objects does not say how it is decoded ({error})") from error


class _Shards(PlacedStore):
    def __init__(
        self,
        home: Store,
        places: Sequence[Store],
        objects_of: ObjectsOf,
        unvouched: Mapping[str, Forbidden],
        arguments: tuple[Store, Sequence[dict[str, Any]], str],
    ) -> None:
        super().__init__(home, places, objects_of, unvouched)
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        # Other processes read the tables again: the open stores cannot be pickled.
        return open_shard_store, self._arguments
