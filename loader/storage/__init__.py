"""Stores: one small set of operations over disks, memory and buckets.

    store = open_store("s3://bucket/datasets", {"endpoint_url": "http://127.0.0.1:9000"})
    store.put_if_absent("log/000001.json", b"{}")

A backend is one file here plus one line in `BACKENDS`, or an entry point in the group `penstock.stores`: scheme ->
opener.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from os import PathLike, fspath
from typing import cast

from ..errors import InvalidStore, MissingDependency
from .spec import StoreSpec, spec_of
from .store import (
    Blob,
    ByteRange,
    ObjectInfo,
    RangeReader,
    ReadLimits,
    Store,
    is_local,
    is_on_network,
    is_there,
)

__all__ = [
    "Blob",
    "ByteRange",
    "ObjectInfo",
    "RangeReader",
    "ReadLimits",
    "Store",
    "StoreSpec",
    "is_local",
    "is_on_network",
    "is_there",
    "open_store",
]

# scheme -> "module:function"; the function takes (url, options, spec). Clients are imported on first use.
BACKENDS = {
    "file": "disk.store:open_local",
    "local": "disk.store:open_local",
    "memory": "key_value:open_memory",
    "s3": "cloud.s3:open_s3",
    "s3a": "cloud.s3:open_s3",
    "gs": "cloud.gcs:open_gcs",
    "gcs": "cloud.gcs:open_gcs",
    "az": "cloud.azure:open_azure",
    "abfs": "cloud.azure:open_azure",
    "abfss": "cloud.azure:open_azure",
}
FSSPEC = "fsspec_store:open_fsspec"  # every other scheme, and every URL opened with options {"fsspec": {...}}
Opener = Callable[[str, Mapping[str, object], StoreSpec], Store]


def open_store(url: str | PathLike[str], options: Mapping[str, object] | None = None) -> Store:
    """Open the store at a local path or a URL, without creating or contacting anything yet.

    - url: `/data/root`, `file:///data/root`, `memory://name/prefix`, `s3://bucket/prefix`, `gs://...`, `az://...`,
      `abfs://...`, an installed package's scheme, or any other fsspec URL.
    - options: see the backend's module. {"fsspec": {...}} passes the URL and those options to fsspec.

    Raises: InvalidStore for an invalid URL or option; MissingDependency; ForkedStore in a forked child of a process
    that used a native client.
    """
    text = fspath(url) if isinstance(url, PathLike) else url
    if not isinstance(text, str) or not text:
        raise InvalidStore(
            f"store URL {text!r}: give a path or a URL such as '/data/root' or 's3://bucket/prefix'"
        )
    settings = dict(options or {})
    return _open(text, settings, spec_of(text, settings))


def open_spec(spec: StoreSpec) -> Store:
    return _open(spec.url, spec.options, spec)


def _open(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    scheme = url.split("://", 1)[0].lower() if "://" in url else "file"
    place = FSSPEC if "fsspec" in options else BACKENDS.get(scheme)
    opener = _ours(place) if place else _of_a_package(scheme) or _ours(FSSPEC)
    return opener(url, options, spec)


def _ours(place: str) -> Opener:
    module, function = place.split(":")
    return cast(Opener, getattr(import_module(f".{module}", __name__), function))


@cache
def _of_a_package(scheme: str) -> Opener | None:
    from importlib.metadata import entry_points  # 20 ms; the schemes above do not need it

    for entry_point in entry_points(group="penstock.stores", name=scheme):
        try:
            return cast(Opener, entry_point.load())
        except ImportError as error:
            raise MissingDependency(f"{scheme}:// is opened by {entry_point.value}: {error}") from error
    return None
