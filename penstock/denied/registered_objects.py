"""Objects that hold registered bytes of denied samples: adopted into the root, or still at their owner's.

The bytes of others are their owner's to delete. A record names such an object unless its key is a name that is taken
down: of that nothing is kept.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Any

from loader import Version
from loader.dataset.tables.foreign_objects import (
    ForeignObject,
    foreign_objects,
    is_bucket,
    is_vouched,
    owners_record,
    refusal,
)
from loader.dataset.writing.redact import shard_index
from loader.errors import ObjectNotFound, PenstockError
from loader.storage import Store, open_store
from loader.storage.external_shards import difference

from .hashed_names import Marks, mark
from .record import Place


def by_shard(version: Version) -> dict[str, list[ForeignObject]]:
    """Return path of a registered shard -> its objects, by offset. A request per table of them."""
    out: dict[str, list[ForeignObject]] = {}
    for one in foreign_objects(version.store, version.manifest["foreign"])[0]:
        out.setdefault(one.shard, []).append(one)
    return out


def objects_with(
    version: Version, shard: dict[str, Any], mine: Sequence[ForeignObject], rows: Collection[int]
) -> list[ForeignObject]:
    """Return the objects that hold fields of these rows of a registered shard. Reads its index.

    mine: objects of the shard.
    """
    starts = [one.offset for one in mine]
    _, places = shard_index(version.store, shard)
    found = {
        bisect_right(starts, int(table[row, 0])) - 1
        for table in places.values()
        for row in rows
        if table[row, 1]  # a redacted one lies nowhere
    }
    return [mine[number] for number in sorted(found)]


def owners_place(marks: Marks, one: ForeignObject, shard: dict[str, Any]) -> Place:
    """Return the place of an object of others, as a record has it. shard: that it is all or a part of.

    By the hash of its shard's path node caches name pages.
    """
    told: dict[str, Any] = {"place": one.place, "mark": mark(marks.salt, marks.dataset, one.path)}
    told["pages"] = [hashlib.sha256(shard["path"].encode()).hexdigest(), shard["nbytes"]]
    if not marks.names(one.key):
        told |= {"key": one.key, "nbytes": one.nbytes, "etag": one.etag, "modified_us": one.modified_us}
    return {
        "check": "registered",
        "what": "registered bytes, which are their owner's",
        "of": marks.dataset,
        **told,
    }


def look_at_owners(store: Store, place: Place) -> Place:
    """Return the place with `clean`, and `evidence` or `why`. store: of the root."""
    if "key" not in place:
        why = "its name was taken down too, so nobody can look: ask its owner whether the object was deleted"
        return {**place, "clean": False, "why": why}
    url = ""
    try:
        record, url = owners_record(store, place["place"])
        if not is_bucket(url) and not is_vouched(store, record, url):
            return {**place, "clean": False, "why": refusal(store, record, url, "looked at")}
        info = open_store(url).head(place["key"])
    except ObjectNotFound as error:
        if url:
            return {**place, "clean": True, "evidence": f"no object at {url}/{place['key']}"}
        return {**place, "clean": False, "why": str(error)}
    except PenstockError as error:
        return {
            **place,
            "clean": False,
            "why": f"{url}/{place['key']} could not be looked at: {type(error).__name__}",
        }
    if what := difference(info, place["nbytes"], place["etag"], place["modified_us"]):
        return {
            **place,
            "clean": True,
            "evidence": f"{url}/{place['key']} was written again since: it {what}",
        }
    why = f"{url}/{place['key']} is still there, and its owner's: it is to be deleted there, or written without them"
    return {**place, "clean": False, "why": why}
