"""Objects that hold registered bytes of denied samples: adopted into the root, or still at their owner's.

Bytes of others are their owner's to delete. A record names such an object unless its key is a denied name.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Any

from loader import Version
from loader.dataset.tables.foreign_objects import ForeignObject, foreign_objects, owners_record
from loader.dataset.tables.vouched_places import is_bucket, is_vouched, refusal
from loader.dataset.writing.redact import shard_index
from loader.errors import ObjectNotFound, PenstockError
from loader.storage import Store, open_store
from loader.storage.external_shards import difference

from .hashed_names import Marks, mark
from .record import Place


def by_shard(version: Version) -> dict[str, list[ForeignObject]]:
    """Return path of a registered shard -> its objects, by offset. Costs a request per table of them."""
    out: dict[str, list[ForeignObject]] = {}
    for object_ in foreign_objects(version.store, version.manifest["foreign"])[0]:
        out.setdefault(object_.shard, []).append(object_)
    return out


def objects_with(
    version: Version, shard: dict[str, Any], candidates: Sequence[ForeignObject], rows: Collection[int]
) -> list[ForeignObject]:
    """Return the objects that hold fields of these rows of a registered shard. Reads its index.

    candidates: objects of the shard.
    """
    starts = [one.offset for one in candidates]
    _, places = shard_index(version.store, shard)
    numbers = {
        bisect_right(starts, int(table[row, 0])) - 1
        for table in places.values()
        for row in rows
        if table[row, 1]  # a redacted one lies nowhere
    }
    return [candidates[number] for number in sorted(numbers)]


def owners_place(marks: Marks, object_: ForeignObject, shard: dict[str, Any]) -> Place:
    """Return the record's place for an object of others. shard: the shard that it is all or a part of."""
    facts: dict[str, Any] = {"place": object_.place, "mark": mark(marks.salt, marks.dataset, object_.path)}
    # Node caches name pages by the hash of the shard's path.
    facts["pages"] = [hashlib.sha256(shard["path"].encode()).hexdigest(), shard["nbytes"]]
    if not marks.names(object_.key):
        facts |= {
            "key": object_.key,
            "nbytes": object_.nbytes,
            "etag": object_.etag,
            "modified_us": object_.modified_us,
        }
    return {
        "check": "registered",
        "what": "registered bytes, which are their owner's",
        "of": marks.dataset,
        **facts,
    }


def look_at_owners(store: Store, place: Place) -> Place:
    """Return the place with `clean`, and `evidence` or `why`. store: of the root."""
    if "key" not in place:
        why = "its name was denied too, so it cannot be checked: ask its owner whether the object was deleted"
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
