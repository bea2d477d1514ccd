"""Locations that a root names, and the person who runs penstock vouches for.

Any writer of a root may have put a location's record there. Followed blindly, it makes a reader open its own files and
buckets for another user. A location counts as vouched for by

- `PENSTOCK_PLACES`: URLs and paths, separated by white space, of locations and all below them;
- a record in a folder that this user, or the machine's root user, wrote. A mirror uses its primary's records, if that
  is a folder too. A moved root vouches for nothing.
"""

import os
import stat
from collections.abc import Iterator
from urllib.parse import unquote

from ...errors import NotARoot, ObjectNotFound
from ...json_text import DamagedJson, parse_json_object
from ...storage import Store, open_store
from ...storage.mirror.store import primary_of
from ..log.marker import MIRROR_OF, PRIMARY, check_root

VARIABLE = "PENSTOCK_PLACES"
MAX_RECORD_BYTES = 2**20
_BUCKETS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Schemes of buckets, which grant access by credentials only -> their one spelling."""


def is_vouched(store: Store, key: str, url: str) -> bool:
    """Return whether the caller vouches for a location. key: of its record in the root."""
    spelled = _spelled(url)
    return any(_lies_in(spelled, named) for named in _named()) or is_own_record(store, key, url) is True


def is_bucket(url: str) -> bool:
    """Return whether a location grants access by credentials only."""
    scheme, _, rest = url.partition("://")
    return bool(rest) and "::" not in url and scheme.lower() in _BUCKETS


def is_own_record(store: Store, key: str, url: str) -> bool | None:
    """Return whether the caller wrote the record that names `url`; None in a bucket, which has no owner.

    A link on the path counts as another user's. Owner and URL are read from one open file, which may be replaced.
    """
    primary = primary_of(store)
    if "://" in primary.url:
        return primary.url.startswith("memory://") or None  # only in this process
    path = f"{primary.url}/{key}"
    if os.path.realpath(path) != f"{os.path.realpath(primary.url)}/{key}" or not _is_own_file(path, url):
        return False
    marker = check_root(primary)
    return (
        _is_of_primary(primary, str(marker[MIRROR_OF]), key, url)
        if MIRROR_OF in marker
        else PRIMARY not in marker
    )


def _is_own_file(path: str, url: str) -> bool:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid not in (os.geteuid(), 0):
                return False
            return bool(parse_json_object(file.read(MAX_RECORD_BYTES)).get("url") == url)
    except (OSError, DamagedJson):
        return False


def _is_of_primary(mirror: Store, primary: str, key: str, url: str) -> bool:
    if "://" in primary or os.path.realpath(primary) == os.path.realpath(mirror.url):
        return False
    source = open_store(primary)
    try:
        is_same = bytes(source.get(key).data) == bytes(mirror.get(key).data)
        return is_same and MIRROR_OF not in check_root(source) and is_own_record(source, key, url) is True
    except (ObjectNotFound, NotARoot):
        return False


def refusal(store: Store, key: str, url: str, what: str) -> str:
    """Return why a location is not opened. what: its purpose."""
    return (
        f"{store.url}/{key} names {url}, which is not {what}: any writer of the root may have written that record. If "
        f"you trust the place, run the same again with {VARIABLE}={url}"
    )


def _named() -> Iterator[str]:
    yield from map(_spelled, os.environ.get(VARIABLE, "").split())


def _spelled(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if not rest or scheme.lower() in ("file", "local"):
        return os.path.realpath(open_store(url).url)
    return f"{_BUCKETS.get(scheme.lower(), scheme.lower())}://{rest.rstrip('/')}"


def _lies_in(place: str, named: str) -> bool:
    r"""Return whether a location is, or lies below, the named one. Servers read %2e as ".", some "\\" as "/"."""
    rest = f"{place}/".removeprefix(f"{named.rstrip('/')}/")
    path = unquote(rest) if "://" in place else rest
    return rest != f"{place}/" and {".", ".."}.isdisjoint(path.replace("\\", "/").split("/"))
