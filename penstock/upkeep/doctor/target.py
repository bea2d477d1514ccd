"""Check a store by its URL: whether it holds a root, its clock, and its settings or disk."""

from collections.abc import Iterator, Mapping
from typing import Any

from loader.dataset.log.marker import MARKER, PROBES, check_root
from loader.errors import FormatTooNew, NotARoot
from loader.storage import Store

from ...places import ENDPOINTS
from .azure_container import azure_container
from .clock import server_clock
from .filesystem import disk_clock, durability, file_system, links, names, renames, space
from .finding import Finding, fail, note, ok, warn
from .gcs_bucket import gcs_bucket
from .s3_bucket import s3_bucket

SETTINGS = {
    "s3": s3_bucket,
    "s3a": s3_bucket,
    "gs": gcs_bucket,
    "gcs": gcs_bucket,
    "az": azure_container,
    "abfs": azure_container,
    "abfss": azure_container,
}
"""URL scheme -> function of (URL, options), which yields findings."""

DISK = (space, links, durability, renames, names, disk_clock)


def root(store: Store) -> Iterator[Finding]:
    """Check whether a root exists or can be created. Costs one request, and a listing without one."""
    try:
        check_root(store)
    except FormatTooNew as error:
        yield fail("root", str(error), "upgrade penstock before this root is used")
    except NotARoot as error:
        foreign_keys = (one.key for one in store.list("") if not one.key.startswith(PROBES))
        other = next(foreign_keys, None)
        if other is None:
            yield ok("root", "nothing is there: the first root.write() makes it a root")
        elif other == MARKER:  # it exists, but is damaged
            yield fail("root", str(error), f"restore {MARKER} from a mirror or a backup")
        else:
            advice = "give an empty prefix below this one: a root is never made among other things"
            yield warn("root", f"no root, and it holds other things ({other} ...)", advice)
    else:
        yield ok("root", "a root is there, of a format that this penstock reads")


def clock(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the clock of a cloud provider's server. Raises: InvalidStore; MissingDependency."""
    endpoint = ENDPOINTS.get(url.split("://", 1)[0])
    if endpoint and "fsspec" not in options and (where := endpoint(url, options)):
        yield from server_clock(where)


def settings(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about a bucket's settings. Raises: InvalidStore; MissingDependency."""
    of_bucket = SETTINGS.get(url.split("://", 1)[0])
    if "fsspec" in options:
        yield note("settings", "opened through fsspec: what a bucket's owner has set was not asked for")
    elif of_bucket:
        yield from of_bucket(url, options)


def disk(folder: str) -> Iterator[Finding]:
    """Yield findings about a folder's file system, from tests in that folder. Raises: OSError."""
    yield from file_system(folder)
    for probe in DISK:
        yield from probe(folder)
