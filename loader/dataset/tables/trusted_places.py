"""Decide which recorded locations the caller vouches for (docs/security.md, "Places that a root names").

Any writer of a root may record any URL. penstock opens a location only if the caller named it in `PENSTOCK_PLACES`, or
wrote its record.
"""

import os
import stat
from enum import Enum, auto
from urllib.parse import unquote

from ...errors import Forbidden, NotARoot, ObjectNotFound
from ...json_text import DamagedJson, parse_json_object
from ...storage import Store, open_store
from ...storage.mirror import primary_store
from ..log.marker import MIRROR_OF, PRIMARY, check_root

PLACES_VARIABLE = "PENSTOCK_PLACES"
"""Environment variable: locations that the caller vouches for, separated by spaces."""
MAX_RECORD_BYTES = 2**20
_ROOT_USER = 0
_BUCKETS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
}
"""Bucket scheme -> canonical scheme. Buckets grant access only by credentials."""


class RecordAuthor(Enum):
    """Author of the record of a location."""

    CALLER = auto()
    """The user of this process, or the machine's root user."""
    OTHER = auto()
    """Another user; or a file that cannot be attributed, for example behind a link."""
    UNKNOWN = auto()
    """The record is in a bucket, whose objects do not tell their author."""


def is_vouched(
    store: Store,
    key: str,
    url: str,
) -> bool:
    """Return whether the caller vouches for a location. key: store key of its record."""
    location = _canonical_location(url)
    trusted = os.environ.get(PLACES_VARIABLE, "").split()
    if any(_is_inside(location, _canonical_location(place)) for place in trusted):
        return True
    return find_author(store, key, url) is RecordAuthor.CALLER


def is_bucket(url: str) -> bool:
    if "::" in url:  # fsspec reads one file system through another
        return False
    scheme, _, rest = url.partition("://")
    return bool(rest) and scheme.lower() in _BUCKETS


def find_author(
    store: Store,
    key: str,
    url: str,
) -> RecordAuthor:
    """Return who wrote the record `key`. A record that no longer names `url` is OTHER's."""
    primary = primary_store(store)
    if primary.url.startswith("memory://"):  # exists only in this process
        return RecordAuthor.CALLER
    if "://" in primary.url:
        return RecordAuthor.UNKNOWN
    if _is_written_by_caller(primary, key, url):
        return RecordAuthor.CALLER
    return RecordAuthor.OTHER


def _is_written_by_caller(
    folder: Store,
    key: str,
    url: str,
) -> bool:
    """Return whether the caller wrote the record that names `url` into a root on a disk."""
    path = f"{folder.url}/{key}"
    path_without_links = f"{os.path.realpath(folder.url)}/{key}"
    if os.path.realpath(path) != path_without_links:
        return False
    if not _is_own_file(path, url):
        return False

    # A copied file belongs to the user who copied it, not to the one who wrote the original.
    marker = check_root(folder)
    if MIRROR_OF in marker:
        return _is_copy_of_own_record(folder, str(marker[MIRROR_OF]), key, url)
    is_moved_root = PRIMARY in marker
    return not is_moved_root


def _is_own_file(path: str, url: str) -> bool:
    """Return whether the caller or the machine's root user owns this record, and it names `url`."""
    # Without waiting for the writer of a pipe, and without following a link.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
        with open(descriptor, "rb") as file:
            # Owner and content of one open file: between two opens the path may get another file.
            about = os.fstat(file.fileno())
            is_own = about.st_uid in (os.geteuid(), _ROOT_USER)
            if not stat.S_ISREG(about.st_mode) or not is_own:
                return False
            data = file.read(MAX_RECORD_BYTES)
        record = parse_json_object(data)
    except (OSError, DamagedJson):
        return False
    return bool(record.get("url") == url)


def _is_copy_of_own_record(
    mirror: Store,
    primary_url: str,
    key: str,
    url: str,
) -> bool:
    """Return whether the mirror's record is a copy of the primary's, which the caller wrote."""
    is_bucket_or_server = "://" in primary_url
    if is_bucket_or_server or os.path.realpath(primary_url) == os.path.realpath(mirror.url):
        return False
    primary = open_store(primary_url)
    try:
        # Both bytes, not only the URL: a writer of the mirror may have forged a record under the primary's number.
        primary_record = bytes(primary.get(key).data)
        mirror_record = bytes(mirror.get(key).data)
        # A mirror of a mirror is not followed: two that name each other would never end.
        if primary_record != mirror_record or MIRROR_OF in check_root(primary):
            return False
        return find_author(primary, key, url) is RecordAuthor.CALLER
    except (ObjectNotFound, NotARoot):
        return False


def untrusted_error(
    store: Store,
    key: str,
    url: str,
    refused: str,
) -> Forbidden:
    """Return the error for a location that the caller does not vouch for. refused: "read", "copied into the root"."""
    record = f"{store.url}/{key}"
    return Forbidden(
        f"{record} names {url}, which is not {refused}: any writer of the root may have written that record. "
        f"If you trust the place, run the same again with {PLACES_VARIABLE}={url}",
        what=f"location to be {refused}",
        where=record,
        given=url,
        accepted=f"locations in {PLACES_VARIABLE}",
    )


def _canonical_location(url: str) -> str:
    """Return the URL with its scheme's canonical name, or the real path of a folder."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if not rest or scheme in ("file", "local"):
        return os.path.realpath(open_store(url).url)
    bucket_scheme = _BUCKETS.get(scheme, scheme)
    path = rest.rstrip("/")
    return f"{bucket_scheme}://{path}"


def _is_inside(place: str, trusted: str) -> bool:
    r"""Return whether a location is the trusted one or below it. Servers read %2e as ".", some "\\" as "/"."""
    folder = trusted.rstrip("/") + "/"
    # With the final slash, so that /data2 is not in /data.
    if not f"{place}/".startswith(folder):
        return False
    path = f"{place}/".removeprefix(folder)
    if "://" in place:
        path = unquote(path)
    parts = path.replace("\\", "/").split("/")
    return {".", ".."}.isdisjoint(parts)
