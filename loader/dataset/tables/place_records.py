"""Records of the locations of registered objects, in the root.

    places/<place>/<n>.json    {"format", "url", "at_us"}: created once, the highest n applies

`url` is null once the objects are in the root (adopted). A record is untrusted: `trusted_places.py` decides whether the
caller vouches for its URL.
"""

import re
import time
from functools import partial
from typing import Any, NamedTuple

from ...errors import AlreadyExists, Corrupt, FormatTooNew, ObjectNotFound
from ...json_text import parse_json_object
from ...storage import Store
from ...storage.requests import retry_corrupt
from ..log.entries import canonical
from .trusted_places import RecordAuthor, find_author

PLACES = "places/"
_RECORD = re.compile(r"[0-9]{12}\.json")
LAST_RECORD = 10**12 - 1
"""Highest number of a location's record: a later one would not be read."""
PLACE_FORMAT = 1
"""Format of a record of a location with a URL."""
ADOPTED_FORMAT = 2
"""Format of a record without a URL: the objects are in the root."""


class PlaceRecord(NamedTuple):
    key: str
    """Store key of the record."""
    url: str
    """URL of the location, untrusted: see `is_vouched`."""


def put_place(
    store: Store,
    place: str,
    url: str | None,
) -> None:
    """Record a location, unless the newest record agrees. url: None if the objects are in the root.

    After another user's record it adds this user's, which vouches for the location (`find_author`). Raises:
    StoreError; Corrupt.
    """
    while True:
        number, record = _newest_record(store, place)
        key = _record_key(place, number)
        if record is not None and record["url"] == url:
            if url is None:  # the root itself needs no voucher
                return
            # A bucket does not tell the author: there, one record with this URL is enough.
            if find_author(store, key, url) is not RecordAuthor.OTHER:
                return
        # The number of a forged record may leave no room for another.
        if number >= LAST_RECORD:
            raise Corrupt(
                f"{store.url}/{key} has the last number that a record of a place may have: it was forged. "
                "Find out who may write there, delete it, then run this again",
                what="number of a location's record",
                where=f"{store.url}/{key}",
                given=number,
                accepted=LAST_RECORD - 1,
            )
        body = {
            "format": PLACE_FORMAT,
            "url": url,
            "at_us": time.time_ns() // 1000,
        }
        if url is None:
            body["format"] = ADOPTED_FORMAT
        next_key = _record_key(place, number + 1)
        try:
            # Of two writers one gets the number; the other reads what it wrote, and decides again.
            store.put_if_absent(next_key, canonical(body))
        except AlreadyExists:
            continue
        return


def is_adopted(store: Store, place: str) -> bool:
    """Return whether the location's objects are in the root. False for a location without a record."""
    _, record = _newest_record(store, place)
    return record is not None and record["url"] is None


def place_record(store: Store, place: str) -> PlaceRecord | None:
    """Return a location's newest record; None if its objects are in the root."""
    number, record = _newest_record(store, place)
    if record is None:
        raise ObjectNotFound(
            f"{store.url} has no {PLACES}{place}/: the location of these bytes is unknown. Register them again, from "
            "where they are now"
        )
    url = record["url"]
    if url is None:
        return None
    return PlaceRecord(_record_key(place, number), url)


def owner_record(store: Store, place: str) -> PlaceRecord:
    """Return the newest record with the owner's URL; if the location was adopted, the one before the adoption."""
    for key in sorted(_record_keys(store, place), reverse=True):
        record = retry_corrupt(partial(_read_record, store, key))
        if record["url"] is not None:
            return PlaceRecord(key, record["url"])
    raise ObjectNotFound(f"{store.url} has no {PLACES}{place}/ with the location of these bytes")


def _record_key(place: str, number: int) -> str:
    return f"{PLACES}{place}/{number:012d}.json"


def _record_keys(store: Store, place: str) -> list[str]:
    """Return the keys of a location's records; other files in their folder are ignored."""
    keys = []
    for info in store.list(f"{PLACES}{place}/"):
        name = info.key.rpartition("/")[2]
        if _RECORD.fullmatch(name):
            keys.append(info.key)
    return keys


def _newest_record(store: Store, place: str) -> tuple[int, dict[str, Any] | None]:
    """Return (number, record) of a location's newest record; (0, None) if it has none. Numbers begin at 1."""
    keys = _record_keys(store, place)
    if not keys:
        return 0, None
    key = max(keys)  # numbers have leading zeros
    body = retry_corrupt(partial(_read_record, store, key))
    if body["format"] > ADOPTED_FORMAT:
        raise FormatTooNew(
            f"{store.url}/{key} has format {body['format']}; this penstock reads up to {ADOPTED_FORMAT}. "
            "Upgrade penstock-data (docs/install.md)"
        )
    _, _, name = key.rpartition("/")
    return int(name.removesuffix(".json")), body


def _read_record(store: Store, key: str) -> dict[str, Any]:
    try:
        body = parse_json_object(store.get(key).data)
        has_url = isinstance(body["url"], str | None)
        has_format = isinstance(body["format"], int)
        if not has_url or not has_format:
            raise TypeError("url is a text or null, format a number")
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{store.url}/{key} is not a record of a place ({error}); register the bytes again"
        ) from error
    return body
