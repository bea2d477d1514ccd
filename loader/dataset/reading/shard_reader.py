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
from ...storage.store import disk_of
from ..columnar.choices import ColumnarOptions
from ..columnar.parquet_chunks import Chunks, DecodedParquet
from ..tables.foreign_objects import (
    FOREIGN_SCHEMA,
    ForeignObject,
    PlaceRecord,
    is_bucket,
    is_vouched,
    place_of,
    place_record,
    refusal,
)
from ..tables.parquet import TableFile, changes, get_tables, table_facts

KEPT_SHARDS = 4096
"""Most shards whose objects stay cached."""


def shard_reader(store: Store, files: Sequence[dict[str, Any]], name: str) -> PlacedStore:
    """Return a store of a version's shards, both in the root and in foreign locations.

    A location that is neither a bucket nor vouched for is not opened: reading from it raises Forbidden. Costs one
    request per table, two per location, and about 100 bytes per object.

    files: the manifest's list `foreign`. name: version name. Raises: Corrupt; ObjectNotFound if a location's record is
    missing.
    """
    tables = list(get_tables(store, [TableFile.from_json(file) for file in files]))
    empty = FOREIGN_SCHEMA.empty_table()
    table = pa.concat_tables([empty, *tables], promote_options="default").combine_chunks()
    facts = table_facts(tables[-1]) if tables else {}
    shards = table["shard"].combine_chunks()
    starts = np.flatnonzero(changes(shards)).tolist()
    rows = dict(
        zip(
            shards.take(pa.array(starts, pa.int64())).to_pylist(),
            pairwise([*starts, len(shards)]),
            strict=True,
        )
    )
    places = {place: place_record(store, place) for place in sorted(_places_of(rows, name))}
    stores, unvouched = dict[str, Store](), dict[str, str]()
    for place, record in places.items():
        if record is not None:
            stores[place] = _open(store, record, place, unvouched)

    @lru_cache(maxsize=KEPT_SHARDS)
    def objects_of(path: str) -> Sequence[PlacedObject]:
        if path not in rows:
            raise Corrupt(f"{path} is no registered shard of {name}: run penstock verify {name}")
        first, stop = rows[path]
        object_rows = table.slice(first, stop - first).to_pylist()
        objects = [ForeignObject.of_row(row, f"the table of objects of {name}") for row in object_rows]
        return [placed(one) for one in objects]

    def placed(record: ForeignObject) -> PlacedObject:
        here = record.place not in stores
        of, key = (store, record.path) if here else (stores[record.place], record.key)
        decoded = _decoded(f"{of.url}/{key}", record, facts) if record.chunks is not None else None
        if here:
            return PlacedObject(of, key, record.nbytes, "", None, record.offset, decoded)
        if record.etag and disk_of(of) is not None:
            raise Corrupt(
                f"the table of objects of {name} has a change token for {record.path}, which lies in a folder: no "
                "registration writes one. It was damaged or forged; register the place again"
            )
        return PlacedObject(of, key, record.nbytes, record.etag, record.modified_us, record.offset, decoded)

    return _Shards(store, list(stores.values()), objects_of, unvouched, (store, files, name))


def _places_of(shards: Iterable[str], name: str) -> set[str]:
    for path in shards:
        if not re.fullmatch(rf"{FOREIGN}[0-9a-f]{{32}}/.+", path or "", re.DOTALL):
            raise Corrupt(
                f"the table of objects of {name} has the shard {path!r}, which is no path in a place: it was damaged "
                "or forged. Register the place again"
            )
    return {place_of(path) for path in shards}


def _open(root: Store, record: PlaceRecord, place: str, unvouched: dict[str, str]) -> Store:
    key, url = record
    if not is_vouched(root, key, url):
        unvouched[place] = refusal(root, key, url, "copied into the root")
        if not is_bucket(url):
            return cast(Store, RefusedPlace(url, Forbidden(refusal(root, key, url, "read"))))
    try:
        return open_store(url)
    except (InvalidStore, MissingDependency) as error:
        return cast(Store, RefusedPlace(url, error))


def _decoded(name: str, record: ForeignObject, facts: Mapping[str, str]) -> Decoded:
    try:
        options = ColumnarOptions.of_registered(parse_json_object(facts["registered"]))
        return DecodedParquet(name, record.path, record.nbytes, Chunks.of_row(record.chunks or {}), options)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{name}: the table of objects does not say how it is decoded ({error})") from error


class _Shards(PlacedStore):
    def __init__(
        self,
        home: Store,
        places: Sequence[Store],
        objects_of: ObjectsOf,
        unvouched: Mapping[str, str],
        opened: tuple[Store, Sequence[dict[str, Any]], str],
    ) -> None:
        super().__init__(home, places, objects_of, unvouched)
        self._opened = opened

    def __reduce__(self) -> tuple[Any, ...]:
        return shard_reader, self._opened
