"""Decide which raw objects a takedown may delete.

They are in no root, and below a source of their dataset or a place that the operator names.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from loader.dataset.log.denies import file_names
from loader.errors import InvalidStore
from loader.storage import ObjectInfo, Store

from .cells import json_object

_BATCH = re.compile(r"[0-9]{6,}\.json")
_ROOT_MARKER = "penstock.json"


def landings(store: Store, dataset: str) -> frozenset[str]:
    """Return the landing locations of a dataset's batches. Reads each manifest."""
    places = (body.get("landing") for body in _manifests(store, dataset))
    return frozenset(landing for landing in places if isinstance(landing, str))


class CompositeObject(NamedTuple):
    """A raw object that consists of several files."""

    key: str
    """Key of the object and of its first file."""
    uri: str
    """Object's URI."""
    names: list[str]
    """Keys and URIs of the other files."""


def composite_objects(store: Store, dataset: str) -> Iterator[CompositeObject]:
    """Yield the raw objects of a dataset's batches that consist of several files. Reads each manifest."""
    for body in _manifests(store, dataset):
        for entry in body.get("objects", ()):
            if files := entry.get("files"):
                key = entry["key"]
                uri = entry["uri"]
                yield CompositeObject(key, uri, file_names(key, uri, files))


def _manifests(store: Store, dataset: str) -> Iterator[dict[str, Any]]:
    place = f"tables/{dataset}/manifests/"
    for info in store.list(place):
        if _BATCH.fullmatch(info.key.removeprefix(place)):
            yield json_object(store.get(info.key).data, info.key, store.url)


def plain_uri(uri: str) -> str:
    """Return a local path without `file://`."""
    return uri.removeprefix("file://")


def check_place(place: str) -> str:
    """Return the location unchanged. Raises: InvalidStore if it covers everything, or is not a location."""
    if not _base(place):
        raise InvalidStore(
            f"--raw-below {place!r} is neither a folder nor a bucket; write a path in full, such as /data/landing, or "
            "a URL such as s3://bucket/landing"
        )
    return place


def why_not(uri: str, places: Collection[str], root_url: str) -> str:
    """Return why an object must not be deleted, or "" if it is below one of `places`, in no root, and unambiguous."""
    plain = plain_uri(uri)
    bases = sorted(base for base in map(_base, places) if base)
    inside = _bases_above(plain, bases)
    if not inside:
        known = ", ".join(bases) or "none are known, --raw-below URL names one"
        return f"it is not below a source of its dataset ({known})"
    rest = plain.removeprefix(f"{min(inside, key=len)}/").split("/")
    has_query = "://" in plain and "?" in plain.rpartition("/")[0]
    if {"", ".", ".."} & set(rest) or "\0" in plain or has_query:
        return "its address can be read in two ways"
    if plain.startswith(f"{plain_uri(root_url).rstrip('/')}/"):
        return "it lies in the root"
    if plain.startswith("/"):
        return _why_not_on_disk(plain, inside)
    return ""


def why_unreadable(uri: str, places: Collection[str]) -> str:
    """Return why an object on a disk cannot be deleted now: its source is not mounted, or is empty. "" if it can."""
    plain = plain_uri(uri)
    if not plain.startswith("/"):
        return ""
    bases = _bases_above(plain, map(_base, places))
    for base in bases:
        if any(names for _, _, names in os.walk(base)):
            return ""
    return f"{', '.join(bases)} has no file on this machine: run this where its disk is mounted"


def _bases_above(path: str, bases: Iterable[str]) -> list[str]:
    """Return the locations that contain a path. bases: "" contains nothing."""
    return [base for base in bases if base and path.startswith(f"{base}/")]


def _why_not_on_disk(path: str, bases: Collection[str]) -> str:
    folder = os.path.realpath(os.path.dirname(path))
    if not any(f"{folder}/".startswith(f"{os.path.realpath(base)}/") for base in bases):
        return f"a link leads it out of its source, to {folder}"
    if any(os.path.lexists(os.path.join(above, _ROOT_MARKER)) for above in _upwards(folder)):
        return "it lies in a root"
    return ""


def _upwards(folder: str) -> Iterator[str]:
    while True:
        yield folder
        if (above := os.path.dirname(folder)) == folder:
            return
        folder = above


def _base(place: str) -> str:
    """Return how every address below a location begins, up to a "/"; "" if a takedown must not delete there."""
    base = plain_uri(place).rstrip("/")
    if "://" in base:
        return base  # no store opens a URL with a segment ".."
    # On a disk, ".." behind a link leads to another folder than its text suggests.
    has_parent_segment = ".." in base.split("/")
    if base.startswith("/") and not has_parent_segment:
        return base
    return ""


def list_twice(store: Store, prefix: str) -> list[ObjectInfo]:
    """Return the objects of two listings, sorted by key; one may miss some. Raises: StoreError."""
    infos = {info.key: info for _ in range(2) for info in store.list(prefix)}
    return [infos[key] for key in sorted(infos)]
