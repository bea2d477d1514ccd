"""The reader of a version's shards, in the root and in places of others."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import Corrupt
from ...json_text import parse_json_object
from ...storage import Store, open_store
from ...storage.placed import Decoded, ObjectsOf, PlacedObject, PlacedStore
from ..columnar.choices import Options
from ..columnar.parquet_chunks import Chunks, DecodedParquet
from ..tables.foreign_objects import FOREIGN_SCHEMA, ForeignObject, place_of, place_url
from ..tables.parquet import TableFile, changes, get_tables, table_facts

KEPT_SHARDS = 4096
"""Shards whose objects are kept at hand."""


def shard_reader(store: Store, files: Sequence[dict[str, Any]], name: str) -> PlacedStore:
    """Return the reader of a version's shards, in the root and in places.

    Costs a request per table, and two per place; some 100 bytes per object. files: the manifest's list `foreign`.
    name: of the version. Raises: Corrupt; ObjectNotFound for a place without a record; InvalidStore.
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
    urls = {place: place_url(store, place) for place in sorted({place_of(path) for path in rows})}
    stores = {place: open_store(url) for place, url in urls.items() if url is not None}

    @lru_cache(maxsize=KEPT_SHARDS)
    def objects_of(path: str) -> Sequence[PlacedObject]:
        if path not in rows:
            raise Corrupt(f"{path} is no registered shard of {name}: run penstock verify {name}")
        first, stop = rows[path]
        found = [ForeignObject(**row) for row in table.slice(first, stop - first).to_pylist()]
        return [placed(one) for one in found]

    def placed(one: ForeignObject) -> PlacedObject:
        here = one.place not in stores
        of, key = (store, one.path) if here else (stores[one.place], one.key)
        decoded = _decoded(f"{of.url}/{key}", one, facts) if one.chunks is not None else None
        if here:
            return PlacedObject(of, key, one.nbytes, "", None, one.offset, decoded)
        return PlacedObject(of, key, one.nbytes, one.etag, one.modified_us, one.offset, decoded)

    return _Shards(store, list(stores.values()), objects_of, (store, files, name))


def _decoded(name: str, one: ForeignObject, facts: Mapping[str, str]) -> Decoded:
    """Return what an object decodes to. facts: of the table, with the options of the registration. Raises: Corrupt."""
    try:
        options = Options.of_registered(parse_json_object(facts["registered"]))
        return DecodedParquet(name, one.path, one.nbytes, Chunks.of_row(one.chunks or {}), options)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{name}: the table of objects does not say how it is decoded ({error})") from error


class _Shards(PlacedStore):
    """A reader that another process opens anew."""

    def __init__(
        self,
        home: Store,
        places: Sequence[Store],
        objects_of: ObjectsOf,
        opened: tuple[Store, Sequence[dict[str, Any]], str],
    ) -> None:
        super().__init__(home, places, objects_of)
        self._opened = opened

    def __reduce__(self) -> tuple[Any, ...]:
        return shard_reader, self._opened
